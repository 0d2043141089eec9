"""What every source reads before it writes: rows without secrets, constraints, identifiers (S4, F8, S9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import Coverage, Named, SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.rows import MEDIA, CompactionSummaryRow, Row
from foldline.summarize.constraints import MEMORY_LINE, Constraint, constraints_of, durable_part
from foldline.summarize.coverage import missing, share
from foldline.summarize.goals import constraint_line
from foldline.summarize.identifiers import Identifier, identifiers_of
from foldline.summarize.reading import Reading, read_rows
from foldline.summarize.redact import Redactor
from foldline.summarize.text import defuse, source_text

_DURABLE_SHARE = 0.35
_MEDIA_TOKENS = 1600
_ROW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of one fold as read.

    Attributes:
        room: tokens for the prose: its budget, or the source's size where that is smaller.
        total: tokens for prose and appendix, by the same rule.
        durable: constraints that travel on verbatim, oldest first; ``gave_way`` says that others did not fit (F8).
        mask: hides secrets; ``clean`` also defuses tool protocol.
    """

    reading: Reading
    room: int
    total: int
    durable: tuple[Constraint, ...]
    gave_way: bool
    identifiers: tuple[Identifier, ...]
    mask: Callable[[str], str]
    clean: Callable[[str], str]

    @property
    def named(self) -> tuple[Named, ...]:
        """What coverage is scored by (S9), as memory is asked for it."""
        return tuple(Named(i.offset, i.probe) for i in self.identifiers)

    def kept(self, text: str) -> tuple[str, ...]:
        """The constraints that the text holds."""
        return tuple(c.text for c in self.durable if c.text in text)


def read_source(request: SummaryRequest, count: Callable[[str], int]) -> Source:
    """Reads the rows of a request; ``count`` gives a text's tokens.

    Raises:
        SummaryFailed: SUMMARIZER_FAILED for patterns that RE2 does not accept.
    """
    try:
        redactor = Redactor(request.redact)
    except FoldlineError as error:
        raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, error.message) from error

    def clean(text: str) -> str:
        return defuse(redactor.mask(text))

    reading = read_rows(request.rows, redactor.mask)
    room, total = _room(request, count)
    stated = constraints_of(reading.requests)
    durable, gave_way = _durable(stated, request.earlier, clean, int(room * _DURABLE_SHARE), count)
    identifiers = identifiers_of(reading, [(c.offset, c.text) for c in stated])
    return Source(reading, room, total, durable, gave_way, identifiers, redactor.mask, clean)


def scored(request: SummaryRequest, written: SummaryResult, count: Callable[[str], int]) -> SummaryResult:
    """A compactor's text with its coverage of the rows (S9): it was handed them as they are, and stands as written."""
    source = read_source(replace(request, redact=()), request.count or count)
    found = share(source.identifiers, missing(source.identifiers, written.text))
    return replace(written, coverage=Coverage(found, found, len(source.identifiers)), named=source.named)


def _room(request: SummaryRequest, count: Callable[[str], int]) -> tuple[int, int]:
    whole = request.budget + request.appendix
    size = 0
    for row in (*request.rows, *(Row(0, e) for e in request.earlier)):
        size += count(source_text(row)) + _ROW_TOKENS
        size += sum(_MEDIA_TOKENS for b in getattr(row.body, "content", ()) if isinstance(b, MEDIA))
        if size >= whole:
            return request.budget, whole
    return min(request.budget, size), size


def _durable(
    stated: Sequence[Constraint], earlier: Sequence[CompactionSummaryRow], clean: Callable[[str], str], room: int,
    count: Callable[[str], int],
) -> tuple[tuple[Constraint, ...], bool]:  # fmt: skip
    """The constraints that fit ``room``, and whether others gave way, now or before.

    The oldest give way first; one that would take more than half of the room does before them.
    """
    carried = [tuple(clean(d) for d in e.durable) for e in earlier]
    durable = durable_part(carried, stated)
    kept: list[Constraint] = []
    left = room
    for constraint in reversed(durable):
        cost = count(constraint_line(constraint, 0).text + "\n")
        if cost > left:
            if cost > room // 2 > 0:
                continue
            break
        left -= cost
        kept.append(constraint)
    gave_way = len(kept) < len(durable) or any(MEMORY_LINE in e.text for e in earlier)
    return tuple(kept[::-1]), gave_way
