"""Summaries without a model (S8): deterministic, offline, in the six headed sections of S3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.summarize.constraints import MEMORY_LINE, Constraint
from foldline.summarize.coverage import cover
from foldline.summarize.details import carried, detail_lines
from foldline.summarize.done import action_lines, error_lines, notice_lines
from foldline.summarize.earlier import carried_lines
from foldline.summarize.goals import constraint_line, last_request, last_request_line, request_lines
from foldline.summarize.packing import ACTIONS, GOALS, Line, Packer
from foldline.summarize.reading import Reading
from foldline.summarize.source import Source, read_source
from foldline.summarize.style import style_for
from foldline.summarize.text import has_protocol
from foldline.summarize.told import answer_lines, open_lines, told_lines

_SHARES = (0.22, 0.2, 0.24, 0.12, 0.08, 0.14)
_AGED_SHARE = 0.4
_LAST_REQUEST_SHARE = 0.25
_CHARS_A_TOKEN = 3
_SPEECH_VALUE = 10.0


class ExtractiveSummarizer:
    """Writes a summary from the rows' own words; the same rows and budget give the same bytes.

    Args:
        count: tokens of a text, where a request does not say how its session estimates.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        """Writes a summary of at most ``request.budget`` tokens, plus an appendix of at most ``request.appendix``.

        Raises:
            SummaryFailed: UNMEASURED_TRANSCRIPT when such speech does not fit verbatim, NOT_SMALLER when the rows are
                no longer than their summary would be, SUMMARIZER_FAILED for patterns that RE2 does not accept.
        """
        count = request.count or self._count
        source = read_source(request, count)
        room, reading, durable = source.room, source.reading, source.durable
        lines = self._lines(source, request)
        lines += _speech_lines(reading, source.mask)
        prose = _pack(reading, lines, durable, source.gave_way, room, count)
        if prose is None:
            raise SummaryFailed(
                FailureKind.NOT_SMALLER,
                f"the six headings do not fit in {room} tokens (budget {request.budget}, source {source.total})",
            )
        for line in lines:
            if line.value >= _SPEECH_VALUE and line.text not in prose:
                raise SummaryFailed(
                    FailureKind.UNMEASURED_TRANSCRIPT,
                    f"unmeasured speech of row {line.order[1]} does not fit verbatim in {room} tokens",
                )
        spare = min(request.appendix, source.total - count(prose))
        text, coverage, added = cover(prose, source.identifiers, request.coverage_floor, spare, count)
        return SummaryResult(
            text,
            source.kept(prose),
            SummarySource.EXTRACTIVE,
            coverage=coverage,
            appendix_tokens=added,
            named=source.named,
        )

    def _lines(self, source: Source, request: SummaryRequest) -> list[Line]:
        reading, durable, identifiers, room = source.reading, source.durable, source.identifiers, source.room
        last = last_request(reading)
        lines: list[Line] = []
        if last is not None:
            lines.append(last_request_line(last, int(room * _LAST_REQUEST_SHARE) * _CHARS_A_TOKEN))
        shown = lines[0].text if lines else ""
        stated = [constraint_line(c, age) for age, c in enumerate(reversed(durable)) if c.text not in shown]
        lines += stated
        shown += "\n".join(line.text for line in stated)
        style = style_for(room, identifiers, source.clean(request.instructions))
        lines += request_lines(reading, last, durable, shown, style)
        lines += told_lines(reading, identifiers, max(12, min(100, room // 40)), style)
        lines += answer_lines(reading, style) + action_lines(reading, style)
        lines += notice_lines(reading, style)
        lines += error_lines(reading, style) + open_lines(reading, last, style)
        lines += detail_lines(identifiers, style)
        lines += carried(carried_lines(request.earlier, [c.text for c in durable], source.clean))
        return [style.focused(line) for line in lines]


def _pack(
    reading: Reading, lines: list[Line], durable: Sequence[Constraint], gave_way: bool, room: int,
    count: Callable[[str], int],
) -> str | None:  # fmt: skip
    """Packs, with the line that names memory where constraints gave way, before or only now."""
    memory = [Line(GOALS, f"- {MEMORY_LINE}", 8.0, (1, 0))]
    preface = _preface(reading)
    prose = Packer(preface, lines + memory * gave_way, room, count).pack(_SHARES, _AGED_SHARE)
    if prose and not gave_way and any(c.text not in prose for c in durable):
        prose = Packer(preface, lines + memory, room, count).pack(_SHARES, _AGED_SHARE)
    return prose


def _speech_lines(reading: Reading, mask: Callable[[str], str]) -> list[Line]:
    lines = []
    for speech in reading.speech:
        text = mask(speech.text)
        if not text.strip():
            continue
        if has_protocol(text):
            raise SummaryFailed(
                FailureKind.UNMEASURED_TRANSCRIPT,
                f"unmeasured speech of row {speech.offset} holds tool protocol and cannot stand verbatim in a summary",
            )
        quoted = f'"""\n{text}\n"""' if "\n" in text else f'"{text}"'
        line = f"- Spoken, unmeasured [#{speech.offset}]: {quoted}"
        lines.append(Line(ACTIONS, line, _SPEECH_VALUE, (1, speech.offset)))
    return lines


def _preface(reading: Reading) -> str:
    if not reading.rows:
        return ""
    return (
        f"Extract of conversation rows {reading.first}-{reading.last}, not the user's words. "
        "Quotes are verbatim, [#n] is a row; memory_search finds the rest."
    )
