"""Proving a written summary and committing its fold, or ending it as failed (§7, V1-V10)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import reduce

import msgspec

from foldline import _core
from foldline.commands.candidates import Proposal
from foldline.commands.draft import Draft, chained, commit, media_tokens
from foldline.commands.fold_parts import Attempt, FoldOutcome, FoldRequest, Progress, Spent, Written
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.commands.snapshots import snapshot_of
from foldline.commands.summarizing import account, projected
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, RevisionKind, SkipReason, SummarySource, Trigger
from foldline.domain.errors import FoldlineError
from foldline.domain.events import Event
from foldline.domain.folding import CheckFailure, CompactionRecord, FoldPlan, OffsetRange, Snapshot, to_ranges
from foldline.domain.models import Usage
from foldline.domain.ports import Batch, Rewrite, StoredRow
from foldline.domain.rows import Row, identity_of
from foldline.domain.session import Session
from foldline.engine import cadence, ledger
from foldline.engine.checks import check, over_budget
from foldline.engine.rebase import rebase


def finish(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, written: Written
) -> FoldOutcome:
    """Proves the rewrite and commits it, rebased over what was appended meanwhile (V9). Under the session's lock."""
    if attempt.fold.cancelled:
        return fail(services, live, request, attempt, FailureKind.CANCELLED, "nobody wants the fold any more")
    found = rebased(services, live, request, attempt, written)
    if found is None:
        detail = "too little is left to fold after the appends"
        return fail(services, live, request, attempt, FailureKind.REBASE_LOST, detail)
    try:
        return _Commit(services, live, request, attempt, written, found).run()
    except FoldlineError as error:
        # Only the store writes: the transcript is as it was (V10).
        return fail(services, live, request, attempt, FailureKind.COMMIT_FAILED, error.message, error=error)


def too_long_by_now(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, written: Written, found: Rebased
) -> bool:  # fmt: skip
    """Whether a summary that kept to its budget is longer than V6 allows by now: nothing is said against its source."""
    return _Commit(services, live, request, attempt, written, found).too_long_by_now()


class Rebased:
    """A plan on the list as it is now, with everything that proving it needs."""

    def __init__(self, plan: FoldPlan, now: Snapshot, stored: Mapping[int, StoredRow], rows: Mapping[int, Row]) -> None:
        self.plan, self.now, self.stored, self.rows = plan, now, stored, rows


def rebased(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, written: Written
) -> Rebased | None:
    """V9: the plan on the current list; None where it no longer stands or too little is left of it."""
    session = live.session
    if session is attempt.session and attempt.snapshot.factor == request.decision.report.factor:
        # Nothing was committed since the snapshot: the list is the one that was planned on.
        return Rebased(written.plan, attempt.snapshot, attempt.stored, attempt.rows)
    stored, rows = dict(attempt.stored), dict(attempt.rows)
    offsets = live.offsets()
    for late in services.store.read_rows(session.key, [o for o in offsets if o not in stored]):
        stored[late.offset], rows[late.offset] = late, to_row(late)
    # A pin set while the summary was written counts (R6): it stands beside the body.
    for fresh in services.store.read_rows(session.key, list(written.plan.discard)):
        if fresh.pinned != stored[fresh.offset].pinned:
            stored[fresh.offset], rows[fresh.offset] = fresh, to_row(fresh)
    now = snapshot_of(
        services, session, [stored[o] for o in offsets], [rows[o] for o in offsets], request.decision.report.factor
    )
    exempt = request.decision.forced or request.decision.trigger in (Trigger.MANUAL, Trigger.CHECKPOINT)
    planned = rebase(
        written.plan, attempt.snapshot, now, min_progress=0.0 if exempt else request.policy.min_progress,
        forced=request.decision.forced, calls=ledger.calls_of_rounds([rows[o] for o in offsets], session.calls),
    )  # fmt: skip
    return None if planned is None else Rebased(planned, now, stored, rows)


class _Commit:
    """One candidate on the list as it is, and the batch that makes it so."""

    def __init__(
        self, services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, written: Written,
        found: Rebased,
    ) -> None:  # fmt: skip
        self.services, self.live, self.request, self.attempt, self.written = services, live, request, attempt, written
        self.plan, self.now, self.rows = found.plan, found.now, found.rows
        self.session = live.session
        gone = [found.stored[o] for o in self.plan.discard]
        self.proposal = Proposal(
            services, self.session, request, attempt, written, plan=self.plan, before=self.now,
            digest=_core.digest_rows([r.offset for r in gone], [r.body for r in gone]).hex(),
            offset=self.session.next_offset,
        )  # fmt: skip
        entries = written.entries
        if request.policy.memory != written.memory:
            # Written ahead of need under another policy (A1): memory holds what the fold's own says (V8).
            order = [self.rows[f.offset] for f in self.now.rows]
            entries = projected(services, self.session, request.policy.memory, order, self.plan)
        self.entries = self.proposal.published(entries)

    def run(self) -> FoldOutcome:
        attempt, proposal = self.attempt, self.proposal
        failures = self._check()
        if failures:
            return rejected(self.services, self.live, self.request, attempt, failures)
        self.request.progress(Progress("proven", attempt.fold.fold_id, len(self.plan.discard)))
        # A fold ahead of need counts where it commits (A2), one that outlives its request where it began.
        ahead = attempt.trigger is Trigger.BACKGROUND
        boundary = max(0, self.session.cadence.boundaries - 1) if ahead else attempt.boundary
        record = proposal.record(
            boundary=boundary, retained=to_ranges(self.plan.retain), entries=self.entries
        )  # fmt: skip
        state = self._state(record)
        commit(self.services, self.live, self._batch(record, state))
        self.live.session = state
        self.live.folded(set(self.plan.discard), proposal.row, self.plan.insert_before)
        attempt.fold.spent.clear()
        self.services.memory.wake()
        return FoldOutcome(record, warnings=proposal.warnings())

    def too_long_by_now(self) -> bool:
        request, attempt, candidate = self.request, self.attempt, self.proposal.candidate()
        return candidate.prose_tokens <= attempt.plan.budget and over_budget(
            self.now, candidate, request.policy, request.limits, tools_tokens=request.tools_tokens,
            planned=(attempt.snapshot, self.written.plan),
        )  # fmt: skip

    def _check(self) -> tuple[CheckFailure, ...]:
        request, attempt, proposal = self.request, self.attempt, self.proposal
        return check(
            self.now, proposal.after, proposal.candidate(), request.policy, request.limits,
            tools_tokens=request.tools_tokens, forced=request.decision.forced,
            planned=(attempt.snapshot, self.written.plan),
        )  # fmt: skip

    def _state(self, record: CompactionRecord) -> Session:
        proposal = self.proposal
        session = proposal.paid(self.session, folded=True)
        return replace(
            _folded(session, self.plan, {identity_of(self.rows[o]) for o in self.plan.discard}),
            update_time=record.time,
            revision=proposal.revision,
            digest=self._digest(),
            next_offset=proposal.offset + 1,
            rewrites=session.rewrites + 1,
            folds=session.folds + 1,
            media_tokens=media_tokens(self.rows[o].body for o in self.plan.retain),
            cadence=cadence.fold_committed(
                session.cadence, boundary=record.boundary, left_tokens=record.tokens_after,
                threshold=self.request.limits.threshold, summary_tokens=proposal.summary_tokens,
                barred=proposal.barred,
            ),
        )  # fmt: skip

    def _active(self) -> tuple[OffsetRange, ...]:
        return to_ranges(tuple(f.offset for f in self.proposal.after))

    def _digest(self) -> str:
        proposal = self.proposal
        return chained(
            self.session.digest, RevisionKind.FOLD, _core.digest_rows([proposal.offset], [proposal.row.body]),
            bytes.fromhex(proposal.digest), msgspec.json.encode(self._active()),
        )  # fmt: skip

    def _batch(self, record: CompactionRecord, state: Session) -> Batch:
        session, failed, run = self.session, self.written.failed, self.session.open_run
        event = Event(
            kind=EventKind.COMPACTION_COMPLETED, time=record.time, revision=state.revision, boundary=record.boundary,
            run_id=run.run_id if run else "", fold_id=record.fold_id, trigger=record.trigger, signals=record.signals,
            record=record, source=record.summary_source, usage=record.usage,
            failure=failed.kind if failed else None, message=failed.detail if failed else "",
        )  # fmt: skip
        # K1: the second of two folds at one check (F3) comes after what the first has saved.
        checkpoint = None if self.attempt.rounds_only else self.request.checkpoint(record)
        events = (event,) if checkpoint is None else (event, replace(
            event, kind=EventKind.CHECKPOINT_SAVED, trigger=Trigger.CHECKPOINT, record=None, source=None, usage=None,
            failure=None, message="", checkpoint=checkpoint,
        ))  # fmt: skip
        rewrite = Rewrite(
            state.revision, RevisionKind.FOLD, session.revision, self._active(), state.digest, record.time, record
        )
        return Batch(
            expected_revision=session.revision, session=state, rows=(self.proposal.row,), rewrite=rewrite,
            events=events, publish=self.entries, request=self.request.remember(record), checkpoint=checkpoint,
        )  # fmt: skip


def _folded(session: Session, planned: FoldPlan, callers: set[int]) -> Session:
    """Calls and run after the fold: open calls of folded rows are late now (R3), the ledger is the plan's (F3).

    Args:
        callers: what results of the folded rows' calls name (K2).
    """
    gone = set(planned.discard)
    calls = tuple(
        replace(c, folded=True) if c.offset in callers else c
        for c in session.calls
        if not (c.offset in callers and c.answered)
    )
    superseded = tuple(s for s in session.superseded if s.offset not in gone)
    run = session.open_run
    if run is not None and planned.covers_run and planned.covers_run in (run.run_id, run.continues):
        run = replace(run, ledger=planned.ledger)
    return replace(session, calls=calls, superseded=superseded, open_run=run)


def rejected(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, failures: tuple[CheckFailure, ...]
) -> FoldOutcome:
    """Ends an attempt whose candidate did not hold."""
    detail = "; ".join(f"{f.rule}: {f.detail}" for f in failures)
    return fail(services, live, request, attempt, _kind_of_failure(failures), detail, checks=failures)


def _kind_of_failure(failures: tuple[CheckFailure, ...]) -> FailureKind:
    rules = {f.rule for f in failures}
    if rules == {"V6"}:
        smaller = all("smaller" in f.detail for f in failures)
        return FailureKind.NOT_SMALLER if smaller else FailureKind.SUMMARY_REJECTED
    return FailureKind.REWRITE_REJECTED


def fail(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, kind: FailureKind, detail: str, *,
    checks: tuple[CheckFailure, ...] = (), retry_after: float | None = None, error: BaseException | None = None,
    absent: bool = False,
) -> FoldOutcome:  # fmt: skip
    """Ends an attempt in the log; the transcript is as it was (C5, §7). What it cost is counted all the same (S5)."""
    trigger = attempt.trigger
    last_source = attempt.fold.spent[-1].source if attempt.fold.spent else attempt.source
    with live.lock:
        if not live.stale:
            draft = Draft(services, live)
            session = account(services, draft.session, attempt.fold.spent, now=draft.now, folded=False)
            record = session.cadence
            if kind is not FailureKind.INTERRUPTED:  # Nobody failed: as after a crash, the next boundary may try.
                record = cadence.attempt_failed(
                    record, now=draft.now, policy=request.policy, trigger=trigger, retry_after=retry_after,
                    only_not_smaller=kind is FailureKind.NOT_SMALLER, absent=absent,
                )  # fmt: skip
            draft.session = replace(session, cadence=record)
            # What stood in for a source that was paid used nothing: the event names the model that did last, and what
            # all of them used.
            spent = attempt.fold.spent or [Spent(attempt.source)]
            last = next((s for s in reversed(spent) if s.usage is not None), spent[-1])
            used = [s.usage for s in spent if s.usage is not None]
            draft.event(
                EventKind.COMPACTION_FAILED, fold_id=attempt.fold.fold_id, trigger=trigger,
                signals=request.decision.signals, failure=kind, checks=checks, source=attempt.source,
                usage=reduce(Usage.plus, used) if used else None, model=last.model,
                message=detail, duration=time.monotonic() - attempt.started, cooldown_until=record.cooldown_until,
            )  # fmt: skip
            draft.conclude()
            attempt.fold.spent.clear()
    nothing = kind is FailureKind.NOT_SMALLER and last_source is not SummarySource.NATIVE
    return FoldOutcome(
        skip=SkipReason.ATTEMPT_FAILED, failure=kind, detail=detail, checks=checks, error=error, nothing=nothing
    )
