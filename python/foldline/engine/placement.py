"""Where a summary stands in the list after a fold (V3)."""

from __future__ import annotations

from collections.abc import Collection

from foldline.domain.enums import RowKind
from foldline.domain.folding import FoldScope, Snapshot
from foldline.engine.structure import Structure


def insert_before(snapshot: Snapshot, structure: Structure, discard: Collection[int], scope: FoldScope) -> int | None:
    """Offset of the retained row that the summary stands before, None for the end of the list.

    Whole and stage 1: at the first discarded row that is no system row, so behind leading system rows; where
    that is inside a unit that stays, before the unit. Stage 2 and combined: directly behind the run's request.
    """
    gone = frozenset(discard)
    rows = snapshot.rows
    if scope in (FoldScope.STAGE_2, FoldScope.COMBINED):
        place = structure.request_end
    else:
        place = next(p for p, r in enumerate(rows) if r.offset in gone and r.kind != RowKind.SYSTEM)
        spans = [(u.positions[0], u.positions[-1]) for u in structure.units if u.offsets[0] not in gone]
        # Spans come by their first row: walking back once meets every unit that the place could move into.
        for first, last in reversed(spans):
            if first < place <= last:
                place = first
    return next((r.offset for r in rows[place:] if r.offset not in gone), None)
