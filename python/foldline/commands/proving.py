"""Proving a written summary and committing its fold, or ending it as failed (§7, V1-V10)."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from foldline import _core
from foldline.commands.draft import Draft, chained, commit, measured, media_tokens
from foldline.commands.fold_parts import Attempt, FoldOutcome, FoldRequest, Progress, Spent, Written
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.commands.snapshots import facts_of_stored, snapshot_of
from foldline.commands.summarizing import account, projected
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, RevisionKind, SkipReason, Trigger, WarningCode
from foldline.domain.errors import FoldlineError
from foldline.domain.events import Event, Warning_
from foldline.domain.folding import CheckFailure, CompactionRecord, FoldPlan, RowFacts, Snapshot, to_ranges
from foldline.domain.memory import MemoryEntry
from foldline.domain.ports import Batch, Rewrite, StoredRow
from foldline.domain.rows import CompactionSummaryRow, Row
from foldline.domain.session import Session
from foldline.engine import cadence, ledger
from foldline.engine.checks import Candidate, check, over_budget
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
    """One candidate: its summary row, the checks, and the batch that makes it so."""

    def __init__(
        self, services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, written: Written,
        found: Rebased,
    ) -> None:  # fmt: skip
        self.services, self.live, self.request, self.attempt, self.written = services, live, request, attempt, written
        self.plan, self.now, self.stored, self.rows = found.plan, found.now, found.stored, found.rows
        self.session, self.summary = live.session, written.summary
        self.revision, self.offset = self.session.revision + 1, self.session.next_offset
        self.factor = self.now.factor
        self.entries = written.entries
        if request.policy.memory != written.memory:
            # Written ahead of need under another policy (A1): memory holds what the fold's own says (V8).
            order = [self.rows[f.offset] for f in self.now.rows]
            self.entries = projected(services, self.session, request.policy.memory, order, self.plan)
        gone = [self.stored[o] for o in self.plan.discard]
        self.digest_of_discarded = _core.digest_rows([r.offset for r in gone], [r.body for r in gone]).hex()
        policy = request.policy.summary
        self.ledger = ledger.render(self.plan.ledger, policy.ledger_tokens, self._count)
        summary = self.summary
        self.body = CompactionSummaryRow(
            text=summary.text, fold_id=attempt.fold.fold_id, source=summary.source, digest=self.digest_of_discarded,
            of_run=self.plan.covers_run, durable=summary.durable, ledger=self.ledger,
        )  # fmt: skip
        self.row = measured(services, self.session, [Row(self.offset, self.body)], self.revision, {})[0]
        self.facts = facts_of_stored(self.row, Row(self.offset, self.body), self.session, True)
        by_offset: dict[int, RowFacts] = {f.offset: f for f in self.now.rows} | {self.offset: self.facts}
        self.after = [by_offset[o] for o in _after(self.plan, self.offset)]

    def _count(self, text: str) -> int:
        return self.services.count(text, self.session.model)

    def run(self) -> FoldOutcome:
        request, attempt = self.request, self.attempt
        failures = self._check()
        if failures:
            detail = "; ".join(f"{f.rule}: {f.detail}" for f in failures)
            return fail(
                self.services, self.live, request, attempt, kind_of_failure(failures), detail, checks=failures
            )  # fmt: skip
        request.progress(Progress("proven", attempt.fold.fold_id, len(self.plan.discard)))
        record = self._record()
        state = self._state(record)
        commit(self.services, self.live, self._batch(record, state))
        self.live.session = state
        self.live.folded(set(self.plan.discard), self.row, self.plan.insert_before)
        attempt.fold.spent.clear()
        self.services.memory.wake()
        return FoldOutcome(record, warnings=self._warnings())

    def too_long_by_now(self) -> bool:
        request, attempt, candidate = self.request, self.attempt, self._candidate()
        return candidate.prose_tokens <= attempt.plan.budget and over_budget(
            self.now, candidate, request.policy, request.limits, tools_tokens=request.tools_tokens,
            planned=(attempt.snapshot, self.written.plan),
        )  # fmt: skip

    def _candidate(self) -> Candidate:
        summary = self.summary
        return Candidate(
            plan=self.plan, summary=self.facts, text=summary.text, source=summary.source,
            prose_tokens=self._count(summary.text) - summary.appendix_tokens,
            appendix_tokens=summary.appendix_tokens, ledger_tokens=self._count(self.ledger) if self.ledger else 0,
            discarded=to_ranges(self.plan.discard), digest=self.digest_of_discarded,
        )  # fmt: skip

    def _check(self) -> tuple[CheckFailure, ...]:
        request, attempt = self.request, self.attempt
        return check(
            self.now, self.after, self._candidate(), request.policy, request.limits, tools_tokens=request.tools_tokens,
            forced=request.decision.forced, planned=(attempt.snapshot, self.written.plan),
        )  # fmt: skip

    def _entries(self) -> tuple[MemoryEntry, ...]:
        """What the fold publishes: nothing once the scope is dropped, also while it was under way (M7)."""
        if self.session.memory_dropped:
            return ()
        gone = set(self.plan.discard)
        return tuple(e for e in self.entries if e.offset in gone)

    def _record(self) -> CompactionRecord:
        before, after = (
            sum(f.tokens for f in facts if not f.superseded) for facts in (self.now.rows, self.after)
        )  # fmt: skip
        summary, plan, attempt = self.summary, self.plan, self.attempt
        return CompactionRecord(
            fold_id=attempt.fold.fold_id,
            trigger=attempt.trigger,
            scope=plan.scope,
            signals=self.request.decision.signals,
            revision_before=self.session.revision,
            revision_after=self.revision,
            discarded=to_ranges(plan.discard),
            retained=to_ranges(plan.retain),
            summary_offset=self.offset,
            rows_summarized=len(plan.source_rows),
            tokens_before=int(before * self.factor),
            tokens_after=int(after * self.factor),
            bytes_before=sum(f.bytes for f in self.now.rows),
            bytes_after=sum(f.bytes for f in self.after),
            summary_source=summary.source,
            bound=summary.bound,
            coverage=summary.coverage,
            digest=self.digest_of_discarded,
            summary_text=summary.text,
            duration=time.monotonic() - attempt.started,
            boundary=self._boundary(),
            model=summary.model,
            usage=summary.usage,
            memory_entries=len(self._entries()),
            memory_dropped=self.session.memory_dropped,
            results_indexed=self.request.policy.memory.index_tool_results,
            time=self.services.clock(),
        )

    def _boundary(self) -> int:
        """A fold ahead of need counts where it commits (A2), one that outlives its request where it began."""
        return max(0, self.session.cadence.boundaries - 1) if self._is_ahead() else self.attempt.boundary

    def _is_ahead(self) -> bool:
        return self.attempt.trigger is Trigger.BACKGROUND

    def _state(self, record: CompactionRecord) -> Session:
        now, failed = self.services.clock(), self.written.failed
        session = account(self.services, self.session, self.attempt.fold.spent, now=now, folded=True)
        if failed is not None:
            # S2: the source that failed cools, though its successor wrote.
            trigger = record.trigger
            session = replace(
                session,
                cadence=cadence.attempt_failed(
                    session.cadence,
                    now=now,
                    policy=self.request.policy,
                    trigger=trigger,
                    retry_after=failed.retry_after,
                ),
            )
        barred = failed is not None or self.attempt.barred is not None
        return replace(
            _folded(session, self.plan),
            update_time=now,
            revision=self.revision,
            digest=self._digest(),
            next_offset=self.offset + 1,
            rewrites=session.rewrites + 1,
            folds=session.folds + 1,
            media_tokens=media_tokens(self.rows[o].body for o in self.plan.retain),
            cadence=cadence.fold_committed(
                session.cadence, boundary=record.boundary, left_tokens=record.tokens_after,
                threshold=self.request.limits.threshold, summary_tokens=int(self.row.tokens * self.factor),
                barred=barred,
            ),
        )  # fmt: skip

    def _active(self) -> tuple[tuple[int, int], ...]:
        return to_ranges(tuple(f.offset for f in self.after))

    def _digest(self) -> str:
        return chained(
            self.session.digest, RevisionKind.FOLD, _core.digest_rows([self.offset], [self.row.body]),
            bytes.fromhex(self.digest_of_discarded), msgspec.json.encode(self._active()),
        )  # fmt: skip

    def _batch(self, record: CompactionRecord, state: Session) -> Batch:
        session, now = self.session, self.services.clock()
        failed, run = self.written.failed, session.open_run
        event = Event(
            kind=EventKind.COMPACTION_COMPLETED, time=now, revision=self.revision, boundary=record.boundary,
            run_id=run.run_id if run else "", fold_id=record.fold_id, trigger=record.trigger, signals=record.signals,
            record=record, source=record.summary_source, usage=record.usage,
            failure=failed.kind if failed else None, message=failed.detail if failed else "",
        )  # fmt: skip
        rewrite = Rewrite(self.revision, RevisionKind.FOLD, session.revision, self._active(), state.digest, now, record)
        return Batch(
            expected_revision=session.revision, session=state, rows=(self.row,), rewrite=rewrite, events=(event,),
            publish=self._entries(), request=self.request.remember(record),
        )  # fmt: skip

    def _warnings(self) -> tuple[Warning_, ...]:
        failed, found = self.written.failed, list[Warning_]()
        if failed is not None:
            message = f"the configured source failed ({failed.kind}); {self.summary.source} wrote the summary"
            found.append(Warning_(WarningCode.SOURCE_FAILED, message))
        if self.session.memory_dropped:
            found.append(Warning_(WarningCode.MEMORY_DROPPED, "the fold published no entries: memory was dropped"))
        return tuple(found)


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


def _folded(session: Session, planned: FoldPlan) -> Session:
    """Calls and run after the fold: open calls of folded rows are late now (R3), the ledger is the plan's (F3)."""
    gone = set(planned.discard)
    calls = tuple(
        replace(c, folded=True) if c.offset in gone else c
        for c in session.calls
        if not (c.offset in gone and c.answered)
    )
    superseded = tuple(s for s in session.superseded if s.offset not in gone)
    run = session.open_run
    if run is not None and planned.covers_run and planned.covers_run in (run.run_id, run.continues):
        run = replace(run, ledger=planned.ledger)
    return replace(session, calls=calls, superseded=superseded, open_run=run)


def kind_of_failure(failures: tuple[CheckFailure, ...]) -> FailureKind:
    rules = {f.rule for f in failures}
    if rules == {"V6"}:
        smaller = all("smaller" in f.detail for f in failures)
        return FailureKind.NOT_SMALLER if smaller else FailureKind.SUMMARY_REJECTED
    return FailureKind.REWRITE_REJECTED


def fail(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, kind: FailureKind, detail: str, *,
    checks: tuple[CheckFailure, ...] = (), retry_after: float | None = None, error: BaseException | None = None,
) -> FoldOutcome:  # fmt: skip
    """Ends an attempt in the log; the transcript is as it was (C5, §7). What it cost is counted all the same (S5)."""
    trigger = attempt.trigger
    with live.lock:
        if not live.stale:
            draft = Draft(services, live)
            session = account(services, draft.session, attempt.fold.spent, now=draft.now, folded=False)
            record = cadence.attempt_failed(
                session.cadence, now=draft.now, policy=request.policy, trigger=trigger, retry_after=retry_after,
                only_not_smaller=kind is FailureKind.NOT_SMALLER,
            )  # fmt: skip
            draft.session = replace(session, cadence=record)
            last = attempt.fold.spent[-1] if attempt.fold.spent else Spent(attempt.source)
            draft.event(
                EventKind.COMPACTION_FAILED, fold_id=attempt.fold.fold_id, trigger=trigger,
                signals=request.decision.signals, failure=kind, checks=checks, source=attempt.source,
                usage=last.usage, model=last.model,
                message=detail, duration=time.monotonic() - attempt.started, cooldown_until=record.cooldown_until,
            )  # fmt: skip
            draft.commit()
            attempt.fold.spent.clear()
    return FoldOutcome(skip=SkipReason.ATTEMPT_FAILED, failure=kind, detail=detail, checks=checks, error=error)
