"""The call ledger read off the archive, where a run takes rounds over that it did not fold itself (F3)."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.domain.enums import RowKind
from foldline.domain.folding import FoldScope
from foldline.domain.ports import Rewrite
from foldline.domain.rows import Row
from foldline.domain.session import LedgerCall, OpenRun, Session
from foldline.engine import ledger
from foldline.engine.lineage import expand, lineage

_OF_ROUNDS = (FoldScope.STAGE_2, FoldScope.COMBINED)


def folded_calls(
    services: Services, session: Session, run: OpenRun, folds: Sequence[Rewrite], active: Sequence[Row]
) -> tuple[LedgerCall, ...]:
    """Calls of the run's rounds that are folded, oldest first.

    Args:
        folds: those in effect.
        active: the active rows, or of them at least the results and what stands in ``folds`` and is active again.
    """
    if not run.request:
        # What the calls were made for has folded too: they are history.
        return ()
    start, here = min(run.request), {r.offset for r in active}
    records = [f.record for f in folds if f.record is not None and f.record.scope in _OF_ROUNDS]
    gone = {o for record in records for o in expand(record.discarded) if o > start} - here
    folded = [to_row(r) for r in services.store.read_rows(session.key, sorted(gone))]
    made = ledger.calls_of_rounds([*folded, *active], session.calls)
    return ledger.merge((), [call for r in folded for call in made.get(r.offset, ())])


def calls_taken_over(services: Services, live: LiveSession, run: OpenRun) -> tuple[LedgerCall, ...]:
    """The ledger that a run starts with: empty, unless it continues one whose rounds have folded (§1)."""
    session = live.session
    if not run.continues or not session.folds:
        return ()
    folds = lineage(services.rewrites(session.key), session.revision)
    offsets, kinds = live.ledger.slice()[:2]
    results = [o for o, kind in zip(offsets, kinds, strict=True) if kind == RowKind.TOOL_RESULT]
    again = {o for f in folds if f.record is not None for o in expand(f.record.discarded)}.intersection(offsets)
    rows = services.store.read_rows(session.key, sorted({*results, *again}))
    return folded_calls(services, session, run, folds, [to_row(r) for r in rows])
