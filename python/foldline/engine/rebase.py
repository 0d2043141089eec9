"""A plan carried over to the list as it is when its summary is ready (V9)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from foldline.domain.changes import replace
from foldline.domain.folding import FoldPlan, FoldScope, Snapshot
from foldline.domain.session import LedgerCall
from foldline.engine.checks import appends_only
from foldline.engine.ledger import merge
from foldline.engine.placement import insert_before
from foldline.engine.structure import Region, Structure, analyze, must_stay
from foldline.engine.units import SUMMARY_KINDS, UNSUMMARIZED_KINDS


def rebase(
    plan: FoldPlan,
    then: Snapshot,
    now: Snapshot,
    *,
    min_progress: float,
    forced: bool = False,
    calls: Mapping[int, tuple[LedgerCall, ...]] | None = None,
) -> FoldPlan | None:
    """The plan on the list ``now``: what was appended follows, what must stay now leaves the discard set with its unit.

    A summary whose run has closed keeps its place and loses its ledger (A5).

    Args:
        then: the snapshot it was planned on.
        min_progress: least saving as a share of the transcript, asked for where rows left the discard set; 0 asks
            only that something is saved.
        forced: a P6 fold (4.4).
        calls: ledger calls by assistant row; without them the ledger stays as planned.

    Returns:
        None where the lists differ by more than appends, or too little is left to fold.
    """
    if not appends_only(then, now):
        return None
    structure = analyze(now)
    stay = must_stay(now, structure, newest_round=not forced)
    planned = frozenset(plan.discard)
    lost = {
        o for u in structure.units if not planned.isdisjoint(u.offsets) and not _folds(u.offsets, planned, stay)
        for o in u.offsets
    }  # fmt: skip
    gone = planned - lost
    rows = now.rows
    if not plan.restated and all(r.kind in UNSUMMARIZED_KINDS for r in rows if r.offset in gone):
        return None
    if plan.restated and gone != planned:
        return None
    transcript = math.ceil(sum(r.tokens for r in rows if not r.superseded) * now.factor)
    kept = math.ceil(sum(r.tokens for r in rows if not r.superseded and r.offset not in gone) * now.factor)
    usual = plan.discarded_tokens - plan.predicted_saving
    saving = transcript - kept - usual
    if lost & planned and saving < min_progress * transcript:
        return None
    run = now.open_run
    open_still = run is not None and plan.covers_run != "" and plan.covers_run in (run.run_id, run.continues)
    folding = [r for r in rows if r.offset in gone]
    return replace(
        plan,
        discard=tuple(r.offset for r in folding),
        retain=tuple(r.offset for r in rows if r.offset not in gone),
        insert_before=_place(plan, then, now, structure, gone, run_open=open_still),
        source_rows=tuple(r.offset for r in folding if r.kind not in UNSUMMARIZED_KINDS),
        earlier=tuple(r.offset for r in folding if r.kind in SUMMARY_KINDS),
        ledger=_ledger(plan, now, structure, gone, calls) if open_still else (),
        discarded_tokens=transcript - kept,
        retained_tokens=kept,
        predicted_saving=saving,
        transcript_tokens=transcript,
        discarded_bytes=sum(r.bytes for r in folding if not r.superseded),
    )


def _folds(unit: tuple[int, ...], planned: frozenset[int], stay: frozenset[int]) -> bool:
    return planned.issuperset(unit) and stay.isdisjoint(unit)


def _place(
    plan: FoldPlan,
    then: Snapshot,
    now: Snapshot,
    structure: Structure,
    gone: frozenset[int],
    *,
    run_open: bool,
) -> int | None:
    if plan.scope in (FoldScope.WHOLE, FoldScope.STAGE_1) or run_open:
        return insert_before(now, structure, gone, plan.scope)
    # The run has closed: behind the same row as planned, whatever was appended since.
    offsets = [r.offset for r in then.rows]
    place = offsets.index(plan.insert_before) if plan.insert_before is not None else len(offsets)
    ahead = set(offsets[:place])
    last = max((p for p, r in enumerate(now.rows) if r.offset in ahead), default=-1)
    return next((r.offset for r in now.rows[last + 1 :] if r.offset not in gone), None)


def _ledger(
    plan: FoldPlan,
    now: Snapshot,
    structure: Structure,
    gone: frozenset[int],
    calls: Mapping[int, tuple[LedgerCall, ...]] | None,
) -> tuple[LedgerCall, ...]:
    if calls is None or now.open_run is None:
        return plan.ledger
    made = [
        c for u in structure.units if u.region is Region.RUN for o in u.offsets if o in gone for c in calls.get(o, ())
    ]
    return merge(now.open_run.ledger, made)
