"""One fold, from its snapshot to its commit (§6-§8, L2, V1-V10).

The session's lock is held while the snapshot is taken and while the candidate is committed, not while a source writes
the summary: appends go on, and V9 puts them behind it. Every attempt ends in exactly one terminal event (§13).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from foldline import _core
from foldline.commands.draft import Draft, chained, commit, measured, media_tokens
from foldline.commands.list_rows import to_row
from foldline.commands.live import FoldInProgress, LiveSession
from foldline.commands.services import Services
from foldline.commands.snapshots import facts_of_stored, snapshot_of
from foldline.domain.changes import replace
from foldline.domain.enums import (
    EventKind,
    FailureKind,
    OnFailure,
    RevisionKind,
    SkipReason,
    SummarySource,
    SummarySourcePolicy,
    Trigger,
)
from foldline.domain.events import Event
from foldline.domain.folding import (
    CheckFailure,
    CompactionRecord,
    FoldPlan,
    RowFacts,
    Snapshot,
    SummaryFailed,
    SummaryRequest,
    SummaryResult,
    to_ranges,
)
from foldline.domain.policy import Policy
from foldline.domain.ports import Batch, Rewrite, StoredRequest, StoredRow
from foldline.domain.pressure import Limits
from foldline.domain.rows import CompactionSummaryRow, Row
from foldline.domain.session import Session, SourceTotals
from foldline.engine import cadence, ledger
from foldline.engine.cadence import Decision
from foldline.engine.checks import Candidate, check
from foldline.engine.planning import PlanInputs, plan
from foldline.engine.pressure import over_hard_limit
from foldline.engine.rebase import rebase
from foldline.engine.structure import analyze

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a fold: ``waiting`` for another caller's, ``planned``, ``summarizing``, ``summarized``, ``proven``."""

    step: str
    fold_id: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class FoldRequest:
    """What asks for a fold and by which limits it is planned. Tokens after the factor.

    Attributes:
        remember: what to write with the fold so that a repeat of its request finds the record (W2).
    """

    decision: Decision
    policy: Policy
    limits: Limits
    tools_tokens: int = 0
    tools_bytes: int = 0
    instructions: str = ""
    progress: Callable[[Progress], None] = field(default=lambda step: None)
    remember: Callable[[CompactionRecord], StoredRequest | None] = field(default=lambda record: None)


@dataclass(frozen=True, slots=True)
class FoldOutcome:
    """A committed record, or why there is none. ``joined`` says that it is another caller's, which was waited for."""

    record: CompactionRecord | None = None
    skip: SkipReason | None = None
    failure: FailureKind | None = None
    detail: str = ""
    checks: tuple[CheckFailure, ...] = ()
    joined: bool = False


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What the snapshot gave: everything the summary and the checks need, out of the lock."""

    fold: FoldInProgress
    snapshot: Snapshot
    plan: FoldPlan
    rows: Mapping[int, Row]
    stored: Mapping[int, StoredRow]
    boundary: int
    started: float
    session: Session


def run_fold(
    services: Services, live: LiveSession, request: FoldRequest, *, wait: Callable[[], float | None]
) -> FoldOutcome:
    """Plans, writes, proves and commits a fold. Called without the session's lock.

    Args:
        wait: seconds that the caller can still wait for a fold that is already running.
    """
    with live.locked():
        if live.fold is not None:
            request.progress(Progress("waiting", live.fold.fold_id))
            return _join(live, wait)
        begun = _begin(services, live, request)
        if isinstance(begun, FoldOutcome):
            return begun
    try:
        try:
            summary = _summarize(services, request, begun)
            return _finish(services, live, request, begun, summary)
        except SummaryFailed as error:
            return _fail(services, live, request, begun, error.kind, error.detail, retry_after=error.retry_after)
        except Exception as error:
            # Whatever went wrong, the attempt has started in the log and must end there; the history is untouched.
            failed = _fail(services, live, request, begun, FailureKind.INTERNAL, type(error).__name__)
            if request.decision.trigger in (Trigger.MANUAL, Trigger.CHECKPOINT):
                raise
            # A request is answered whatever becomes of its fold: the host can still send it unfolded.
            log.error("a fold failed", fold_id=begun.fold.fold_id, exc_info=error)
            return failed
    finally:
        with live.lock:
            live.fold = None
            live.lock.notify_all()


def _join(live: LiveSession, wait: Callable[[], float | None]) -> FoldOutcome:
    """L2: a second caller joins the running fold and is told so."""
    running = live.fold
    while live.fold is running:
        left = wait()
        if left is not None and left <= 0:
            return FoldOutcome(skip=SkipReason.DEADLINE, joined=True)
        live.lock.wait(left)
    return FoldOutcome(running.record if running else None, joined=True)


def _begin(services: Services, live: LiveSession, request: FoldRequest) -> _Attempt | FoldOutcome:
    started = time.monotonic()
    draft = Draft(services, live)
    session, decision = draft.session, request.decision
    stored = services.store.read_rows(session.key, live.offsets())
    rows = [to_row(r) for r in stored]
    snapshot = snapshot_of(services, session, stored, rows, decision.report.factor)
    calls = ledger.calls_of_rounds(rows, session.calls)
    planned = plan(snapshot, analyze(snapshot), plan_inputs(session, request), calls)
    if planned is None:
        draft.session = replace(session, cadence=cadence.nothing_to_fold(session.cadence))
        return _skip(draft, decision, SkipReason.NOTHING_TO_FOLD)
    vetoed = cadence.veto(
        planned,
        decision,
        session.cadence,
        request.policy,
        request.limits,
        tools_tokens=request.tools_tokens,
        now=draft.now,
    )
    if vetoed is not None:
        return _skip(draft, decision, vetoed)
    boundary = max(0, session.cadence.boundaries - 1)
    trigger = decision.trigger or Trigger.AUTOMATIC
    fold = FoldInProgress(f"f-{uuid.uuid4().hex}")
    draft.session = replace(
        session,
        cadence=cadence.attempt_started(session.cadence, boundary, trigger=trigger, paid=False, now=draft.now),
    )
    draft.event(
        EventKind.COMPACTION_STARTED, fold_id=fold.fold_id, trigger=trigger, signals=decision.signals,
        source=source_of(request), run_id=session.open_run.run_id if session.open_run else "",
        rows=len(planned.source_rows), tokens=planned.transcript_tokens, bytes=draft.size()[1],
    )  # fmt: skip
    draft.commit()
    live.fold = fold
    request.progress(Progress("planned", fold.fold_id, len(planned.discard)))
    return _Attempt(
        fold,
        snapshot,
        planned,
        {r.offset: r for r in rows},
        {r.offset: r for r in stored},
        boundary,
        started,
        live.session,
    )


def plan_inputs(session: Session, request: FoldRequest) -> PlanInputs:
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
    )


def _skip(draft: Draft, decision: Decision, reason: SkipReason) -> FoldOutcome:
    note_skip(draft, decision, reason)
    draft.commit()
    return FoldOutcome(skip=reason)


def note_skip(draft: Draft, decision: Decision, reason: SkipReason) -> None:
    """C8: the event log records a skip when its reason changes."""
    record, changed = cadence.skipped(draft.session.cadence, reason)
    draft.session = replace(draft.session, cadence=record)
    if changed:
        draft.event(
            EventKind.COMPACTION_SKIPPED, trigger=decision.trigger, signals=decision.signals, skip=reason,
            tokens=decision.report.transcript_tokens,
        )  # fmt: skip


def source_of(request: FoldRequest) -> SummarySource:
    """Who is to write the summary (S2): what the policy says; AUTO without a provider is extractive."""
    source = request.policy.summary.source
    if source is SummarySourcePolicy.AUTO:
        return SummarySource.EXTRACTIVE
    over = over_hard_limit(request.decision.report)
    on_failure = request.policy.summary.on_failure
    takes_next = on_failure is OnFailure.NEXT or (on_failure is OnFailure.RESCUE and over)
    if source is not SummarySourcePolicy.CURATOR and takes_next:
        return SummarySource.EXTRACTIVE
    return SummarySource[source.name]


def _summarize(services: Services, request: FoldRequest, attempt: _Attempt) -> SummaryResult:
    policy, planned = request.policy.summary, attempt.plan
    source = source_of(request)
    if source is SummarySource.CURATOR:
        raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, "summary.source is CURATOR and no curator is connected")
    if source is not SummarySource.EXTRACTIVE:
        raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, f"summary.source is {source} and none is configured")
    earlier = [attempt.rows[o].body for o in planned.earlier]
    request.progress(Progress("summarizing", attempt.fold.fold_id, len(planned.discard)))
    result = services.summarizer.summarize(
        SummaryRequest(
            rows=tuple(attempt.rows[o] for o in planned.source_rows),
            earlier=tuple(b for b in earlier if isinstance(b, CompactionSummaryRow)),
            budget=planned.budget,
            appendix=policy.appendix_tokens,
            coverage_floor=policy.coverage_floor,
            redact=policy.redact,
            instructions="\n\n".join(filter(None, (policy.instructions, request.instructions))),
        )
    )
    request.progress(Progress("summarized", attempt.fold.fold_id, len(planned.discard)))
    return result


def _finish(
    services: Services, live: LiveSession, request: FoldRequest, attempt: _Attempt, summary: SummaryResult
) -> FoldOutcome:
    """Proves the rewrite and commits it, rebased over what was appended meanwhile (V9)."""
    with live.locked():
        if attempt.fold.cancelled:
            return _fail(services, live, request, attempt, FailureKind.CANCELLED, "the session was deleted")
        session = live.session
        stored, rows = dict(attempt.stored), dict(attempt.rows)
        offsets = live.offsets()
        for late in services.store.read_rows(session.key, [o for o in offsets if o not in stored]):
            stored[late.offset], rows[late.offset] = late, to_row(late)
        # A pin set while the summary was written counts (R6): it stands beside the body.
        for fresh in services.store.read_rows(session.key, list(attempt.plan.discard)):
            stored[fresh.offset], rows[fresh.offset] = fresh, to_row(fresh)
        now = snapshot_of(
            services, session, [stored[o] for o in offsets], [rows[o] for o in offsets], request.decision.report.factor
        )
        exempt = request.decision.forced or request.decision.trigger in (Trigger.MANUAL, Trigger.CHECKPOINT)
        planned = rebase(
            attempt.plan, attempt.snapshot, now, min_progress=0.0 if exempt else request.policy.min_progress,
            forced=request.decision.forced,
            calls=ledger.calls_of_rounds([rows[o] for o in offsets], session.calls),
        )  # fmt: skip
        if planned is None:
            return _fail(
                services,
                live,
                request,
                attempt,
                FailureKind.REBASE_LOST,
                "too little is left to fold after the appends",
            )
        return _commit(services, live, request, attempt, summary, planned, now, stored, rows)


def _commit(
    services: Services, live: LiveSession, request: FoldRequest, attempt: _Attempt, summary: SummaryResult,
    planned: FoldPlan, now: Snapshot, stored: Mapping[int, StoredRow], rows: Mapping[int, Row],
) -> FoldOutcome:  # fmt: skip
    session, policy = live.session, request.policy
    revision, offset = session.revision + 1, session.next_offset
    text_ledger = ledger.render(
        planned.ledger, policy.summary.ledger_tokens, lambda text: services.count(text, session.model)
    )
    discarded = [stored[o] for o in planned.discard]
    digest_of_discarded = _core.digest_rows([r.offset for r in discarded], [r.body for r in discarded]).hex()
    body = CompactionSummaryRow(
        text=summary.text, fold_id=attempt.fold.fold_id, source=summary.source, digest=digest_of_discarded,
        of_run=planned.covers_run, durable=summary.durable, ledger=text_ledger,
    )  # fmt: skip
    summary_row = measured(services, session, [Row(offset, body)], revision, {})[0]
    facts = facts_of_stored(summary_row, Row(offset, body), session, True)
    after_offsets = _after(planned, offset)
    by_offset: dict[int, RowFacts] = {f.offset: f for f in now.rows} | {offset: facts}
    after = [by_offset[o] for o in after_offsets]
    failures = check(
        now, after,
        Candidate(
            plan=planned, summary=facts, text=summary.text, source=summary.source,
            prose_tokens=services.count(summary.text, session.model) - summary.appendix_tokens,
            appendix_tokens=summary.appendix_tokens,
            ledger_tokens=services.count(text_ledger, session.model) if text_ledger else 0,
            discarded=to_ranges(planned.discard), digest=digest_of_discarded,
        ),
        policy, request.limits, tools_tokens=request.tools_tokens, forced=request.decision.forced,
        planned=(attempt.snapshot, attempt.plan),
    )  # fmt: skip
    if failures:
        kind = _kind_of(failures)
        detail = "; ".join(f"{f.rule}: {f.detail}" for f in failures)
        return _fail(services, live, request, attempt, kind, detail, checks=failures)
    request.progress(Progress("proven", attempt.fold.fold_id, len(planned.discard)))
    order = [rows[f.offset] for f in now.rows]
    gone = set(planned.discard)
    entries = services.memory.project(
        [r for r in order if r.offset in gone], order, policy.memory.chunk_tokens, policy.memory.index_tool_results
    )
    active = to_ranges(tuple(after_offsets))
    digest = chained(
        session.digest, RevisionKind.FOLD, _core.digest_rows([offset], [summary_row.body]),
        bytes.fromhex(digest_of_discarded), msgspec.json.encode(active),
    )  # fmt: skip
    factor = now.factor
    before_tokens, after_tokens = (sum(f.tokens for f in facts_ if not f.superseded) for facts_ in (now.rows, after))
    left = int(after_tokens * factor)
    record = CompactionRecord(
        fold_id=attempt.fold.fold_id,
        trigger=request.decision.trigger or Trigger.AUTOMATIC,
        scope=planned.scope,
        signals=request.decision.signals,
        revision_before=session.revision,
        revision_after=revision,
        discarded=to_ranges(planned.discard),
        retained=to_ranges(planned.retain),
        summary_offset=offset,
        rows_summarized=len(planned.source_rows),
        tokens_before=int(before_tokens * factor),
        tokens_after=left,
        bytes_before=sum(f.bytes for f in now.rows),
        bytes_after=sum(f.bytes for f in after),
        summary_source=summary.source,
        bound=summary.bound,
        coverage=summary.coverage,
        digest=digest_of_discarded,
        summary_text=summary.text,
        duration=time.monotonic() - attempt.started,
        boundary=attempt.boundary,
        model=summary.model,
        usage=summary.usage,
        memory_entries=len(entries),
        memory_dropped=session.memory_dropped,
        results_indexed=policy.memory.index_tool_results,
    )
    state = replace(
        _folded(session, planned, rows),
        revision=revision,
        digest=digest,
        next_offset=offset + 1,
        rewrites=session.rewrites + 1,
        folds=session.folds + 1,
        media_tokens=media_tokens(rows[o].body for o in planned.retain),
        cadence=cadence.fold_committed(
            session.cadence, boundary=attempt.boundary, left_tokens=left, threshold=request.limits.threshold,
            summary_tokens=int(summary_row.tokens * factor),
        ),
        summary_totals=add_source(session.summary_totals, summary, folds=1),
    )  # fmt: skip
    event = Event(
        kind=EventKind.COMPACTION_COMPLETED, time=services.clock(), revision=revision, boundary=attempt.boundary,
        run_id=session.open_run.run_id if session.open_run else "", fold_id=attempt.fold.fold_id,
        trigger=record.trigger, signals=record.signals, record=record, source=summary.source, usage=summary.usage,
    )  # fmt: skip
    commit(
        services, live,
        Batch(
            expected_revision=session.revision, session=state, rows=(summary_row,),
            rewrite=Rewrite(revision, RevisionKind.FOLD, session.revision, active, digest, services.clock(), record),
            events=(event,), publish=() if session.memory_dropped else entries, request=request.remember(record),
        ),
    )  # fmt: skip
    live.session = state
    live.folded(gone, summary_row, planned.insert_before)
    attempt.fold.record = record
    services.memory.wake()
    return FoldOutcome(record)


def _after(planned: FoldPlan, summary: int) -> list[int]:
    """The list after the fold: the retained rows with the summary at its place (V3)."""
    after: list[int] = []
    for offset in planned.retain:
        if offset == planned.insert_before:
            after.append(summary)
        after.append(offset)
    if planned.insert_before is None:
        after.append(summary)
    return after


def _folded(session: Session, planned: FoldPlan, rows: Mapping[int, Row]) -> Session:
    """Calls and run after the fold: open calls of folded rows are late now (R3), the ledger is the plan's (F3)."""
    gone = set(planned.discard)
    calls = tuple(
        replace(c, folded=True) if c.offset in gone else c
        for c in session.calls
        if not (c.offset in gone and c.answered)
    )
    superseded = tuple(s for s in session.superseded if s.offset not in gone)
    run = session.open_run
    if run is not None and planned.covers_run == run.run_id:
        run = replace(run, ledger=planned.ledger)
    return replace(session, calls=calls, superseded=superseded, open_run=run)


def _kind_of(failures: tuple[CheckFailure, ...]) -> FailureKind:
    rules = {f.rule for f in failures}
    if rules == {"V6"}:
        smaller = all("smaller" in f.detail for f in failures)
        return FailureKind.NOT_SMALLER if smaller else FailureKind.SUMMARY_REJECTED
    return FailureKind.REWRITE_REJECTED


def _fail(
    services: Services, live: LiveSession, request: FoldRequest, attempt: _Attempt, kind: FailureKind, detail: str, *,
    checks: tuple[CheckFailure, ...] = (), retry_after: float | None = None,
) -> FoldOutcome:  # fmt: skip
    """Ends an attempt in the log; the transcript is as it was (C5, §7)."""
    trigger = request.decision.trigger or Trigger.AUTOMATIC
    with live.lock:
        if not live.stale:
            draft = Draft(services, live)
            record = cadence.attempt_failed(
                draft.session.cadence, now=draft.now, policy=request.policy, trigger=trigger, retry_after=retry_after,
                only_not_smaller=kind is FailureKind.NOT_SMALLER,
            )  # fmt: skip
            draft.session = replace(draft.session, cadence=record)
            draft.event(
                EventKind.COMPACTION_FAILED, fold_id=attempt.fold.fold_id, trigger=trigger,
                signals=request.decision.signals, failure=kind, checks=checks, source=source_of(request),
                message=detail, duration=time.monotonic() - attempt.started, cooldown_until=record.cooldown_until,
            )  # fmt: skip
            draft.commit()
    return FoldOutcome(skip=SkipReason.ATTEMPT_FAILED, failure=kind, detail=detail, checks=checks)


def add_source(totals: tuple[SourceTotals, ...], summary: SummaryResult, folds: int) -> tuple[SourceTotals, ...]:
    """Totals by source after one more attempt (S5)."""
    old = next((t for t in totals if t.source is summary.source), SourceTotals(summary.source))
    usage = summary.usage
    new = replace(
        old,
        attempts=old.attempts + 1,
        folds=old.folds + folds,
        input_tokens=old.input_tokens + (usage.input_tokens or 0 if usage else 0),
        output_tokens=old.output_tokens + (usage.output_tokens or 0 if usage else 0),
        cost=old.cost if usage is None or usage.cost is None else (old.cost or 0.0) + usage.cost,
    )
    return (*(t for t in totals if t.source is not summary.source), new)


def interrupted(services: Services) -> int:
    """Ends the folds that a crash cut off, at start (§13, V10); returns how many there were."""
    found = services.store.unfinished_folds()
    for tenant, session_id, start in found:
        with services.sessions.use(tenant, session_id) as live, live.locked():
            draft = Draft(services, live)
            draft.event(
                EventKind.COMPACTION_FAILED, fold_id=start.fold_id, trigger=start.trigger, signals=start.signals,
                failure=FailureKind.INTERRUPTED, source=start.source, message="the sidecar stopped during the fold",
            )  # fmt: skip
            draft.commit()
    return len(found)
