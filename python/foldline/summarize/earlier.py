"""Lines of earlier summaries, so that a next fold carries their facts on with less room (F8, XG1, XG18)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foldline.domain.enums import SummarySource
from foldline.domain.rows import CompactionSummaryRow
from foldline.summarize.constraints import MEMORY_LINE, REACH_LINE
from foldline.summarize.coverage import APPENDIX_TITLE
from foldline.summarize.cues import ASKS, FILLER
from foldline.summarize.packing import ACTIONS, DECISIONS, DETAILS, ERRORS, GOALS, HEADINGS, NOTHING, OPEN
from foldline.summarize.text import one_line, sentences

CARRIED = "(earlier) "
_HEADING = re.compile(r"^\s*(?:#{1,6}\s+|\*\*)(.+?)(?:\*\*)?:?\s*$")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+")
_WORDS = (
    (ERRORS, re.compile(r"error|problem|fix|issue|bug|failure", re.IGNORECASE)),
    (OPEN, re.compile(r"open|next|pending|remaining|todo|question|current", re.IGNORECASE)),
    (DECISIONS, re.compile(r"decision|rationale|decided|choice|agreed", re.IGNORECASE)),
    (GOALS, re.compile(r"goal|constraint|request|objective|intent|instruction", re.IGNORECASE)),
    (DETAILS, re.compile(r"technical|detail|file|path|identifier|reference|context|environment", re.IGNORECASE)),
    (ACTIONS, re.compile(r"action|result|done|completed|progress|work|history", re.IGNORECASE)),
)
_QUOTE = re.compile(r'"""\n(.*?)\n"""', re.DOTALL)
_LAST_REQUEST = re.compile(r"^Last (?:request|notice \S+) \[#(\d+)\] \([^)]*\)")
_TAG = re.compile(r"^\[#\d+\] ")
_MOMENT = re.compile(r"no result among these rows$|no closing answer in these rows$|^\d+ rows folded here: ")
_LABEL = re.compile(r"^[^:\"]{0,60}:")
_LONGEST, _LONGEST_HEADING, _FEW_WORDS = 600, 80, 4
_OWN = (SummarySource.EXTRACTIVE, SummarySource.MECHANICAL)


@dataclass(frozen=True, slots=True)
class CarriedLine:
    """A line of an earlier summary: where it stood, and whether it had been carried before."""

    section: int
    text: str
    age: int
    order: int


def section_of(heading: str) -> int | None:
    """The section a heading of any source stands for; None for headings that name none."""
    wanted = heading.strip().lower()
    for index, title in enumerate(HEADINGS):
        if wanted == title.lower():
            return index
    return next((index for index, words in _WORDS if words.search(wanted)), None)


def carried_lines(
    earlier: Sequence[CompactionSummaryRow], durable: Sequence[str], clean: Callable[[str], str]
) -> list[CarriedLine]:
    """Lines of earlier summaries in order.

    Left out are those that say no more than a durable constraint, which travels by itself, and what our own summaries
    said of their moment: preface, calls without a result, an unanswered last request, questions and announced steps.
    """
    found: dict[str, CarriedLine] = {}
    for row in earlier:
        section = ACTIONS
        own = row.source in _OWN
        started = not own
        for raw in _lines_of(clean(row.text)):
            heading = _HEADING.match(raw) if len(raw) < _LONGEST_HEADING else None
            if heading:
                named = section_of(heading.group(1))
                section = section if named is None else named
                started = True
                continue
            line = one_line(_BULLET.sub("", raw))
            if not started or not line or line.lower() == NOTHING or line == REACH_LINE or MEMORY_LINE in line:
                continue
            if (own and _of_its_moment(section, line)) or _is_durable(line, durable):
                continue
            age = 2 if line.startswith(CARRIED) else 1
            line = _LAST_REQUEST.sub(r"Asked [#\1]", line.removeprefix(CARRIED))
            for part in _parts(line):
                found.setdefault(part, CarriedLine(section, part, age, len(found)))
    return list(found.values())


def _is_durable(line: str, durable: Sequence[str]) -> bool:
    """Whether a line is a durable constraint and little else; a task that it limits is carried with it (XG12)."""
    held = [d for d in durable if d in line]
    if not held:
        return False
    rest = line
    for text in held:
        rest = rest.replace(text, " ")
    return len(_LABEL.sub("", rest).strip(' "').split()) < _FEW_WORDS


def _of_its_moment(section: int, line: str) -> bool:
    """Whether our own summary said it of the rows it had: later rows have answered, done or dropped it."""
    said = _TAG.sub("", line.removeprefix(CARRIED))
    return bool(_MOMENT.search(line)) or (section == OPEN and bool(ASKS.search(said) or FILLER.match(said)))


def _parts(line: str) -> list[str]:
    """An appendix in short lists, so that a part of it can be carried; any other line as it is."""
    if not line.startswith(APPENDIX_TITLE):
        return [line]
    names = line.removeprefix(APPENDIX_TITLE).strip().split(", ")
    return [f"Mentioned: {', '.join(names[i : i + 6])}" for i in range(0, len(names), 6)]


def _lines_of(text: str) -> list[str]:
    lines: list[str] = []
    for raw in _QUOTE.sub(lambda m: f'"{one_line(m.group(1))}"', text).splitlines():
        if len(raw) <= _LONGEST:
            lines.append(raw)
        else:
            lines += sentences(raw)
    return lines
