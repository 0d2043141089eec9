"""Summaries without a model (S8): deterministic, offline, in the six headed sections of S3."""

from __future__ import annotations

from collections.abc import Callable

from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.rows import MEDIA, Row
from foldline.summarize.constraints import MEMORY_LINE, Constraint, constraints_of, durable_part
from foldline.summarize.coverage import cover
from foldline.summarize.details import carried, detail_lines
from foldline.summarize.done import action_lines, error_lines
from foldline.summarize.earlier import carried_lines
from foldline.summarize.goals import constraint_line, last_request, last_request_line, request_lines
from foldline.summarize.identifiers import Identifier, identifiers_of
from foldline.summarize.packing import ACTIONS, GOALS, Line, Packer
from foldline.summarize.reading import Reading, read_rows
from foldline.summarize.redact import Redactor
from foldline.summarize.style import style_for
from foldline.summarize.text import defuse, has_protocol, source_text
from foldline.summarize.told import answer_lines, open_lines, told_lines

_SHARES = (0.22, 0.2, 0.24, 0.12, 0.08, 0.14)
_AGED_SHARE = 0.4
_DURABLE_SHARE = 0.35
_LAST_REQUEST_SHARE = 0.25
_CHARS_A_TOKEN = 3
_MEDIA_TOKENS = 1600
_ROW_TOKENS = 4
_SPEECH_VALUE = 10.0


class ExtractiveSummarizer:
    """Writes a summary from the rows' own words; the same rows and budget give the same bytes.

    Args:
        count: tokens of a text, by the encoding the session estimates with.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        """Writes a summary of at most ``request.budget`` tokens, plus an appendix of at most ``request.appendix``.

        Raises:
            SummaryFailed: UNMEASURED_TRANSCRIPT when such speech does not fit verbatim, NOT_SMALLER when the rows are
                no longer than their summary would be, SUMMARIZER_FAILED for patterns that RE2 does not accept.
        """
        try:
            redactor = Redactor(request.redact)
        except FoldlineError as error:
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, error.message) from error

        def clean(text: str) -> str:
            return defuse(redactor.mask(text))

        reading = read_rows(request.rows, redactor.mask)
        room, total = self._room(request)
        stated = constraints_of(reading.requests)
        durable, gave_way = self._durable(stated, request, clean, int(room * _DURABLE_SHARE))
        identifiers = identifiers_of(reading, [(c.offset, c.text) for c in stated])
        lines = self._lines(reading, request, durable, identifiers, room, clean)
        lines += _speech_lines(reading, redactor)
        prose = self._pack(reading, lines, durable, gave_way, room)
        if prose is None:
            raise SummaryFailed(
                FailureKind.NOT_SMALLER,
                f"the six headings do not fit in {room} tokens (budget {request.budget}, source {total})",
            )
        for line in lines:
            if line.value >= _SPEECH_VALUE and line.text not in prose:
                raise SummaryFailed(
                    FailureKind.UNMEASURED_TRANSCRIPT,
                    f"unmeasured speech of row {line.order[1]} does not fit verbatim in {room} tokens",
                )
        spare = min(request.appendix, total - self._count(prose))
        text, coverage, added = cover(prose, identifiers, request.coverage_floor, spare, self._count)
        kept = tuple(c.text for c in durable if c.text in prose)
        return SummaryResult(text, kept, SummarySource.EXTRACTIVE, coverage=coverage, appendix_tokens=added)

    def _room(self, request: SummaryRequest) -> tuple[int, int]:
        """Tokens for the prose and for all: the budgets, or the source's size where that is smaller."""
        whole = request.budget + request.appendix
        size = 0
        for row in (*request.rows, *(Row(0, e) for e in request.earlier)):
            size += self._count(source_text(row)) + _ROW_TOKENS
            size += sum(_MEDIA_TOKENS for b in getattr(row.body, "content", ()) if isinstance(b, MEDIA))
            if size >= whole:
                return request.budget, whole
        return min(request.budget, size), size

    def _durable(
        self, stated: list[Constraint], request: SummaryRequest, clean: Callable[[str], str], room: int
    ) -> tuple[list[Constraint], bool]:
        """The constraints that fit ``room``, and whether others gave way, now or before.

        The oldest give way first; one that would take more than half of the room does before them.
        """
        carried = [tuple(clean(d) for d in e.durable) for e in request.earlier]
        durable = durable_part(carried, stated)
        kept: list[Constraint] = []
        left = room
        for constraint in reversed(durable):
            cost = self._count(constraint_line(constraint, 0).text + "\n")
            if cost > left:
                if cost > room // 2 > 0:
                    continue
                break
            left -= cost
            kept.append(constraint)
        gave_way = len(kept) < len(durable) or any(MEMORY_LINE in e.text for e in request.earlier)
        return kept[::-1], gave_way

    def _lines(
        self, reading: Reading, request: SummaryRequest, durable: list[Constraint], identifiers: tuple[Identifier, ...],
        room: int, clean: Callable[[str], str],
    ) -> list[Line]:  # fmt: skip
        last = last_request(reading)
        lines: list[Line] = []
        if last is not None:
            lines.append(last_request_line(last, int(room * _LAST_REQUEST_SHARE) * _CHARS_A_TOKEN))
        shown = lines[0].text if lines else ""
        stated = [constraint_line(c, age) for age, c in enumerate(reversed(durable)) if c.text not in shown]
        lines += stated
        shown += "\n".join(line.text for line in stated)
        style = style_for(room, identifiers, clean(request.instructions))
        lines += request_lines(reading, last, durable, shown, style)
        lines += told_lines(reading, identifiers, max(12, min(100, room // 40)), style)
        lines += answer_lines(reading, style) + action_lines(reading, style)
        lines += error_lines(reading, style) + open_lines(reading, last, style)
        lines += detail_lines(identifiers, style)
        lines += carried(carried_lines(request.earlier, [c.text for c in durable], clean))
        return [style.focused(line) for line in lines]

    def _pack(
        self, reading: Reading, lines: list[Line], durable: list[Constraint], gave_way: bool, room: int
    ) -> str | None:
        """Packs, with the line that names memory where constraints gave way, before or only now."""
        memory = [Line(GOALS, f"- {MEMORY_LINE}", 8.0, (1, 0))]
        preface = _preface(reading)
        prose = Packer(preface, lines + memory * gave_way, room, self._count).pack(_SHARES, _AGED_SHARE)
        if prose and not gave_way and any(c.text not in prose for c in durable):
            prose = Packer(preface, lines + memory, room, self._count).pack(_SHARES, _AGED_SHARE)
        return prose


def _speech_lines(reading: Reading, redactor: Redactor) -> list[Line]:
    lines = []
    for speech in reading.speech:
        text = redactor.mask(speech.text)
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
