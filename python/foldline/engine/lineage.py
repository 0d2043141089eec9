"""Folds and trims in effect at a revision: the lineage that memory shows (M2) and that forks take along (X3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from foldline.domain.enums import RevisionKind
from foldline.domain.folding import OffsetRange, to_ranges
from foldline.domain.ports import Rewrite


def lineage(rewrites: Sequence[Rewrite], revision: int) -> list[Rewrite]:
    """Folds and trims in effect at ``revision``, newest first: a restore continues at the revision it went back to."""
    found: list[Rewrite] = []
    at = revision
    for rewrite in sorted(rewrites, key=lambda r: r.revision, reverse=True):
        if rewrite.revision > at:
            continue
        if rewrite.kind is RevisionKind.RESTORE:
            at = rewrite.parent_revision
        elif rewrite.kind in (RevisionKind.FOLD, RevisionKind.TRIM):
            found.append(rewrite)
    return found


def folded_offsets(rewrites: Sequence[Rewrite], revision: int) -> set[int]:
    """Every offset that a fold or trim in the lineage of ``revision`` discarded."""
    return {o for r in lineage(rewrites, revision) for o in expand(r.discarded)}


@dataclass(frozen=True, slots=True)
class CallPlaces:
    """Where calls stand that trims moved or took (K2); all others stand in the row that made them.

    Attributes:
        moved: offset of the row that made calls to that of the row derived from it last, which holds those still left.
        trimmed: (offset, call id) of calls that are gone from every row.
    """

    moved: Mapping[int, int] = field(default_factory=dict)
    trimmed: AbstractSet[tuple[int, str]] = frozenset()

    def row_of(self, offset: int) -> int:
        return self.moved.get(offset, offset)

    def in_rows(self, offset: int, call_id: str, rows: AbstractSet[int]) -> bool:
        """Whether the row that holds a call is one of ``rows``."""
        return (offset, call_id) not in self.trimmed and self.row_of(offset) in rows

    def is_folded(self, offset: int, call_id: str, folded: AbstractSet[int]) -> bool:
        return (offset, call_id) in self.trimmed or self.row_of(offset) in folded


UNMOVED = CallPlaces()


def call_places(rewrites: Sequence[Rewrite], revision: int) -> CallPlaces:
    """Where the calls of the trims in the lineage of ``revision`` stand."""
    moved: dict[int, int] = {}
    first: dict[int, int] = {}
    trimmed: set[tuple[int, str]] = set()
    for rewrite in reversed(lineage(rewrites, revision)):
        for new, old in rewrite.trim.derived if rewrite.trim else ():
            first[new] = first.get(old, old)
            moved[first[new]] = new
        trimmed.update((c.offset, c.call_id) for c in (rewrite.trim.calls if rewrite.trim else ()))
    return CallPlaces(moved, trimmed)


def expand(ranges: Sequence[OffsetRange]) -> Iterator[int]:
    """The offsets of ranges, in the given order."""
    for first, last in ranges:
        yield from range(first, last + 1)


def visible_ranges(folded: set[int], active: Sequence[int]) -> tuple[OffsetRange, ...]:
    """Offsets whose memory entries show: folded and not active again (M2)."""
    return to_ranges(tuple(sorted(folded.difference(active))))
