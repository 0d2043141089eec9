"""The call ledger read off the archive, where a run takes rounds over that it did not fold itself (F3)."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.domain.enums import RowKind
from foldline.domain.folding import FoldScope
from foldline.domain.ports import Rewrite
from foldline.domain.rows import Row, calls_of, identity_of
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
    in_folds = {o for f in folds if f.record and f.record.scope in _OF_ROUNDS for o in expand(f.record.discarded)}
    trims = [f.trim for f in folds if f.trim is not None]
    taken = {(c.offset, c.call_id) for trim in trims for c in trim.calls if not c.history and c.offset > start}
    # Rows that gave calls to a trim (K2), with the results of these, stand in no fold.
    in_trims = {o for trim in trims for o in expand(trim.discarded)} if taken else set[int]()
    gone = {o for o in in_folds | in_trims if o > start} - here
    rows = [to_row(r) for r in services.store.read_rows(session.key, sorted(gone))]
    outcomes = ledger.calls_of_rounds([*rows, *active], session.calls)
    made: dict[tuple[int, str], LedgerCall] = {}
    for row in rows:
        for call, entry in zip(calls_of(row.body), outcomes.get(row.offset, ()), strict=True):
            name = (identity_of(row), call.call_id)
            if name in taken or (row.offset in in_folds and name[0] > start):
                made[name] = entry
    return ledger.merge((), [made[name] for name in sorted(made, key=lambda name: name[0])])


def calls_taken_over(services: Services, live: LiveSession, run: OpenRun) -> tuple[LedgerCall, ...]:
    """The ledger that a run starts with: empty, unless it continues one whose rounds have folded (§1)."""
    session = live.session
    if not run.continues or not session.rewrites:
        return ()
    folds = lineage(services.rewrites(session.key), session.revision)
    offsets, kinds = live.ledger.slice()[:2]
    results = [o for o, kind in zip(offsets, kinds, strict=True) if kind == RowKind.TOOL_RESULT]
    again = {o for f in folds for o in expand(f.discarded)}.intersection(offsets)
    rows = services.store.read_rows(session.key, sorted({*results, *again}))
    return folded_calls(services, session, run, folds, [to_row(r) for r in rows])
