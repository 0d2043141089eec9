"""Starting an attempt: the snapshot, the plan, and what the log says of it (§6, C4, C8, §13)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

from foldline.commands.draft import Draft
from foldline.commands.fold_parts import Attempt, FoldInProgress, FoldOutcome, FoldRequest, Progress, Written
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.native import behind, items_of, native_model, obstacle
from foldline.commands.services import Services
from foldline.commands.snapshots import snapshot_of
from foldline.commands.sources import EXTERNAL, PAID, in_its_place, is_external, summary_model, writer_of
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, SkipReason, SummarySource, Trigger, WarningCode
from foldline.domain.folding import FoldPlan, Snapshot
from foldline.domain.policy import Policy
from foldline.domain.pressure import PressureReport
from foldline.domain.rows import ModelRef, Row
from foldline.domain.session import Session
from foldline.engine import cadence, ledger
from foldline.engine.cadence import Decision
from foldline.engine.planning import PlanInputs, plan, plan_restating
from foldline.engine.structure import analyze


def begin(
    services: Services, live: LiveSession, request: FoldRequest, *, ready: Written | None = None,
    rounds_only: bool = False, fold: FoldInProgress | None = None,
) -> Attempt | FoldOutcome:  # fmt: skip
    """Takes the snapshot, plans, and records that an attempt starts. Under the session's lock.

    Args:
        ready: a summary ahead of need that the fold takes in (A2).
        rounds_only, fold: the second of two folds at one check, under the barrier of the first (F3).
    """
    draft = Draft(services, live)
    attempt = planned_attempt(services, live, request, draft, ready=ready, rounds_only=rounds_only)
    if isinstance(attempt, SkipReason):
        if attempt is SkipReason.NOTHING_TO_FOLD:
            draft.session = replace(draft.session, cadence=cadence.nothing_to_fold(draft.session.cadence))
        return _skip(draft, request, attempt)
    if fold is not None:
        fold.fold_id = attempt.fold.fold_id
        attempt = replace(attempt, fold=fold)
    if attempt.unavailable:
        draft.warn(WarningCode.NATIVE_UNAVAILABLE, attempt.unavailable, once=True, event=True)
    start(draft, request, attempt)
    request.progress(Progress("planned", attempt.fold.fold_id, len(attempt.plan.discard)))
    return replace(attempt, session=live.session)


def planned_attempt(
    services: Services, live: LiveSession, request: FoldRequest, draft: Draft, *, ready: Written | None = None,
    rounds_only: bool = False, trigger: Trigger | None = None,
) -> Attempt | SkipReason:  # fmt: skip
    """Reads and plans; writes nothing. The reason where no attempt is to be made (F4, C4, C7)."""
    started = time.monotonic()
    session, decision = draft.session, request.decision
    stored = services.store.read_rows(session.key, live.offsets())
    rows = [to_row(r) for r in stored]
    snapshot = snapshot_of(services, session, stored, rows, decision.report.factor)
    calls = ledger.calls_of_rounds(rows, session.calls)
    inputs = replace(plan_inputs(services, session, request), rounds_only=rounds_only)
    if decision.restates:
        planned = plan_of_restating(services, session, snapshot, rows, inputs)
    else:
        planned = plan(snapshot, analyze(snapshot), inputs, calls)
    if planned is None:
        return SkipReason.NOTHING_TO_FOLD
    by_offset = {r.offset: r for r in rows}
    source, unavailable = who_writes(
        services, session, request, snapshot, planned, by_offset, background=trigger is Trigger.BACKGROUND
    )  # fmt: skip
    vetoed = None if decision.restates else cadence.veto(
        planned, decision, session.cadence, request.policy, request.limits, tools_tokens=request.tools_tokens,
        now=draft.now, paid=source in PAID, external=source in EXTERNAL,
    )  # fmt: skip
    if vetoed is not None:
        return vetoed
    # The call ahead of need, or the first of two folds, may have spent the budget since the check (C6).
    barred = cadence.barred_by(decision, session.cadence, request.policy, now=draft.now, paid=source in PAID)
    return Attempt(
        fold=FoldInProgress(f"f-{uuid.uuid4().hex}"),
        trigger=trigger or decision.trigger or Trigger.AUTOMATIC,
        source=source if barred is None else SummarySource.EXTRACTIVE,
        barred=barred,
        inputs=inputs,
        snapshot=snapshot,
        plan=planned,
        rows=by_offset,
        stored={r.offset: r for r in stored},
        boundary=max(0, session.cadence.boundaries - 1),
        started=started,
        session=session,
        ready=ready if ready and set(ready.plan.discard) <= set(planned.discard) else None,
        unavailable=unavailable,
    )


def who_writes(
    services: Services, session: Session, request: FoldRequest, snapshot: Snapshot, planned: FoldPlan,
    rows: Mapping[int, Row], *, background: bool = False,
) -> tuple[SummarySource, str]:  # fmt: skip
    """Who is to write the summary of a plan (S2), and why not the provider itself, where policy asks for that (N3)."""
    if request.decision.restates:
        return in_its_place(services), ""
    source = writer_of(services, request.policy, planned.scope, session, background=background)
    if source is not SummarySource.NATIVE:
        return source, ""
    unavailable = obstacle(services, session, request, snapshot, planned, rows)
    return (in_its_place(services) if unavailable else source), unavailable


def plan_of_restating(
    services: Services, session: Session, snapshot: Snapshot, rows: Sequence[Row], inputs: PlanInputs
) -> FoldPlan | None:
    """N4: the plan of a fold that replaces native items alone; None where there are none by now."""
    items = items_of(rows)
    if not items:
        return None
    hidden = behind(services, session, items)
    offsets = [r.offset for r in hidden.rows]
    return plan_restating(snapshot, analyze(snapshot), inputs, [i.offset for i in items], offsets, hidden.tokens)


def start(draft: Draft, request: FoldRequest, attempt: Attempt) -> None:
    """Records the attempt and its event, then commits (§13): a source is about to be called."""
    session, run = draft.session, draft.session.open_run
    draft.session = replace(
        session,
        cadence=cadence.attempt_started(
            session.cadence, attempt.boundary, trigger=attempt.trigger, paid=attempt.source in PAID, now=draft.now
        ),
    )
    draft.event(
        EventKind.COMPACTION_STARTED, fold_id=attempt.fold.fold_id, trigger=attempt.trigger,
        signals=request.decision.signals, source=attempt.source, run_id=run.run_id if run else "",
        rows=len(attempt.plan.source_rows), tokens=attempt.plan.transcript_tokens, bytes=draft.size()[1],
        model=writing_model(draft.services, request, session, attempt.source),
    )  # fmt: skip
    draft.commit()


def writing_model(services: Services, request: FoldRequest, session: Session, source: SummarySource) -> ModelRef:
    """The model that a source calls; empty where it is none of ours."""
    if source is SummarySource.NATIVE:
        return native_model(request, session)
    if source is not SummarySource.PROVIDER:
        return ModelRef()
    return services.sources.called(summary_model(request, session))


def plan_inputs(services: Services, session: Session, request: FoldRequest) -> PlanInputs:
    """What a plan is made by; shared with PlanCompaction, so that what is shown is what would happen."""
    run = session.open_run
    return PlanInputs(
        policy=request.policy,
        limits=request.limits,
        tools_tokens=request.tools_tokens,
        tools_bytes=request.tools_bytes,
        forced=request.decision.forced,
        in_run=run is not None and run.rounds > 0,
        usual_summary=lambda budget: cadence.summary_size(session.cadence, budget),
        external_source=is_external(services, request.policy),
    )


def _skip(draft: Draft, request: FoldRequest, reason: SkipReason) -> FoldOutcome:
    why = note_skip(draft, request.decision, request.policy, reason)
    draft.commit()
    return FoldOutcome(skip=reason, detail=why)


def note_skip(draft: Draft, decision: Decision, policy: Policy, reason: SkipReason) -> str:
    """C8: the event log records a skip when its reason changes; returns what keeps the source, empty for nothing."""
    why = cadence.why_gated(reason, draft.session.cadence, policy, now=draft.now)
    record, changed = cadence.skipped(draft.session.cadence, reason)
    draft.session = replace(draft.session, cadence=record)
    if changed:
        numbers = _numbers(decision.report)
        draft.event(
            EventKind.COMPACTION_SKIPPED, trigger=decision.trigger, signals=decision.signals, skip=reason,
            tokens=decision.report.transcript_tokens, message=f"{why}; {numbers}" if why else numbers,
        )  # fmt: skip
    return why


def _numbers(report: PressureReport) -> str:
    """What the decision was made by, for developers."""
    limits = report.limits
    return (
        f"transcript {report.transcript_tokens} of {limits.threshold} tokens, request {report.forecast_tokens} of "
        f"{limits.input_budget}, {report.body_bytes} body bytes"
    )
