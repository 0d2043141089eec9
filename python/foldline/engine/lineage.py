"""Which folds are in effect at a revision: the lineage that memory shows (M2) and that forks take along (X3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foldline.domain.enums import RevisionKind
from foldline.domain.folding import OffsetRange, to_ranges
from foldline.domain.ports import Rewrite


def lineage(rewrites: Sequence[Rewrite], revision: int) -> list[Rewrite]:
    """Folds in effect at ``revision``, newest first: a restore continues at the revision it went back to."""
    found: list[Rewrite] = []
    at = revision
    for rewrite in sorted(rewrites, key=lambda r: r.revision, reverse=True):
        if rewrite.revision > at:
            continue
        if rewrite.kind is RevisionKind.RESTORE:
            at = rewrite.parent_revision
        elif rewrite.kind is RevisionKind.FOLD:
            found.append(rewrite)
    return found


def folded_offsets(rewrites: Sequence[Rewrite], revision: int) -> set[int]:
    """Every offset that a fold in the lineage of ``revision`` discarded."""
    return {o for r in lineage(rewrites, revision) if r.record for o in expand(r.record.discarded)}


def expand(ranges: Sequence[OffsetRange]) -> Iterator[int]:
    """The offsets of ranges, in the given order."""
    for first, last in ranges:
        yield from range(first, last + 1)


def visible_ranges(folded: set[int], active: Sequence[int]) -> tuple[OffsetRange, ...]:
    """Offsets whose memory entries show: folded and not active again (M2)."""
    return to_ranges(tuple(sorted(folded.difference(active))))
