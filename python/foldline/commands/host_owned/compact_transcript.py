"""CompactTranscript: one boundary of a host that keeps its transcript, and the fold that is due at it (H3).

The fold runs on a thread of its own and ends as a staged projection, or in the log. A caller that cannot wait finds it
staged with its next call: a projection that was made from the leading rows of the list that is sent is given again
instead of a second fold, as to a second caller that waits for the first one's (L2).
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from foldline.commands.attempts import note_skip
from foldline.commands.compact_session import refusal_of
from foldline.commands.draft import Draft, media_tokens
from foldline.commands.fold import have_written, on_thread
from foldline.commands.fold_parts import Attempt, FoldInProgress, FoldOutcome
from foldline.commands.host_owned.pressure import Measured, measured, plan_of, with_ledger
from foldline.commands.host_owned.staging import discarded_positions, settle_expired, stage, summary_name
from foldline.commands.host_owned.views import Given, is_new_session, view_of
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.live import LiveSession
from foldline.commands.measuring import RequestShape
from foldline.commands.ownership import host_owned
from foldline.commands.services import ANSWER_SECONDS, Caller, Services
from foldline.commands.sources import PAID
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, SkipReason, SummarySource, Trigger, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.folding import CompactionRecord, to_ranges
from foldline.domain.policy import Layer
from foldline.domain.pressure import PressureReport
from foldline.domain.projections import Projection, StagedFold
from foldline.domain.rows import AssistantRow, Row, decode_body
from foldline.domain.session import Prepared
from foldline.engine import cadence
from foldline.engine import factor as factors
from foldline.engine.hosted import list_digests
from foldline.engine.lineage import folded_offsets, visible_ranges


@dataclass(frozen=True, slots=True)
class CompactTranscript:
    session_id: str
    transcript: Given
    shape: RequestShape = RequestShape()
    request_id: str = ""
    manual: bool = False
    instructions: str = ""
    override: Layer | None = None


@dataclass(frozen=True, slots=True)
class Compacted:
    """The answer, less the ids of what stays, which are all others.

    Attributes:
        before: id of the kept row that the summary stands before; empty for the end.
        prepare_id: what the provider says of the request is recorded under; empty for a manual fold.
    """

    report: PressureReport
    prepare_id: str = ""
    discarded: tuple[str, ...] = ()
    summary: Row | None = None
    before: str = ""
    record: CompactionRecord | None = None
    projection_id: str = ""
    expire: float | None = None
    skip: SkipReason | None = None
    failure: FailureKind | None = None
    warnings: tuple[Warning_, ...] = ()


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a repeat of the request id finds: a counted boundary, and what was decided at it (W2)."""

    decided: Compacted | None = None


def compact_transcript(services: Services, caller: Caller, request: CompactTranscript) -> Compacted:
    """Counts the boundary, measures, folds if due, and stages what the host may commit (H3).

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REQUEST_ID_REUSED, TOOLS_UNKNOWN, FIELD_VALIDATION, SUMMARY_ROW_REFUSED and
            what an append refuses of the rows; of a manual fold also NOTHING_TO_FOLD, SUMMARIZER_FAILED,
            REWRITE_REJECTED, CURATOR_UNAVAILABLE, CURATOR_FAILED, FOLD_IN_PROGRESS.
    """
    with services.sessions.use(caller.tenant, request.session_id) as live, live.locked():
        host_owned(live.session)
        found = repeated(services, caller, live.session.key, request.request_id)
        seen = answer_of(found, _Remembered) if found else None
        if seen is not None and seen.decided is not None:
            return seen.decided
        return _Boundary(services, caller, live, request, counted=seen is not None).run()


class _Boundary:
    """One call, under the session's lock but while it waits."""

    def __init__(
        self, services: Services, caller: Caller, live: LiveSession, request: CompactTranscript, *, counted: bool
    ) -> None:
        self.services, self.caller, self.live, self.request = services, caller, live, request
        self.counted = counted or request.manual
        self.joined = self._wait_for_running()
        self.view = with_ledger(services, live.session, view_of(services, live, request.transcript))
        self.warnings: list[Warning_] = list(self.view.warnings)

    def run(self) -> Compacted:
        self._refuse_uncommitted()
        draft = Draft(self.services, self.live)
        settle_expired(self.services, draft)
        self._count(draft)
        found = self._measure(draft)
        again = self._staged_for(draft, found)
        if again is not None:
            if self.joined:
                self._warn(WarningCode.FOLD_JOINED, "another caller's fold was waited for")
            return self._answer(draft, found, FoldOutcome(), again)
        if self.live.fold is not None:
            return self._answer(draft, found, self._too_late(self.live.fold), None)
        if not found.decision.fold:
            return self._answer(draft, found, self._skipped(draft, found, found.decision.skip), None)
        attempt = self._planned(draft, found)
        if isinstance(attempt, SkipReason):
            return self._answer(draft, found, self._skipped(draft, found, attempt), None)
        outcome = self._fold(draft, found, attempt)
        self.warnings += outcome.warnings
        staged = self.services.store.staged_projection(self.live.session.key) if outcome.record else None
        if outcome.record is not None and (staged is None or staged[0].fold_id != outcome.record.fold_id):
            # It gave way before its caller could go on: what stands in its place was made from another list.
            detail = "another fold was staged in its place"
            outcome = FoldOutcome(skip=SkipReason.ATTEMPT_FAILED, failure=FailureKind.REBASE_LOST, detail=detail)
            staged = None
            if self.request.manual:
                raise refusal_of(outcome)
        return self._answer(Draft(self.services, self.live), found, outcome, staged)

    # Before the fold

    def _refuse_uncommitted(self) -> None:
        """The rows that a staged summary stands for are in no archive yet: another fold would lose them."""
        if self.view.uncommitted is None:
            return
        position, projection = self.view.uncommitted
        row_id = self.view.transcript.keys[position][0]
        raise FoldlineError(
            Reason.SUMMARY_ROW_REFUSED,
            f"row {row_id} is the summary of projection {projection.projection_id}, which is not committed: commit it "
            "first", row=position, row_id=row_id,
        )  # fmt: skip

    def _wait_for_running(self) -> bool:
        """L2: waits for a running fold, as long as the caller can; whether there was one."""
        running = self.live.fold
        if running is None:
            return False
        self._wait(running)
        return True

    def _wait(self, fold: FoldInProgress) -> None:
        at_most = self.services.policy(self.live.session, self.request.override).policy.fold_wait
        until = None if at_most is None or self.request.manual else time.monotonic() + at_most
        while fold.outcome is None:
            if self.services.workers.ends(manual=self.request.manual):
                return
            left = self.caller.left()
            limits = [left - ANSWER_SECONDS] if left is not None else []
            limits += [until - time.monotonic()] if until is not None else []
            if limits and min(limits) <= 0:
                return
            self.live.lock.wait(min(limits, default=None))
            if self.live.stale:
                raise self.live.stale_reason

    def _count(self, draft: Draft) -> None:
        """A boundary, numbered from 0; a list that comes with a history starts at its assistant rows (§1)."""
        session = draft.session
        model = self.request.shape.model if self.request.shape.model.model else session.model
        info = self.services.model(model)
        if not info.known:
            draft.warn(
                WarningCode.UNKNOWN_MODEL, f"model {model.model} is not in the catalog: its default window of "
                f"{info.context_window} tokens is used", once=True, event=True,
            )  # fmt: skip
        if self.counted:
            return
        record = draft.session.cadence
        if is_new_session(session):
            made = sum(1 for r in self.view.transcript.rows if isinstance(r.body, AssistantRow))
            record = replace(record, boundaries=made)
        draft.session = replace(draft.session, cadence=cadence.count_boundary(record))

    def _measure(self, draft: Draft) -> Measured:
        """Measures, and takes what the list says of count, anchor, run and archived rows into the state."""
        found = measured(
            self.services, draft.session, self.view, self.request.shape, self.request.override,
            boundary=max(0, draft.session.cadence.boundaries - 1), manual=self.request.manual,
            deadline_left=self.caller.left(),
        )  # fmt: skip
        draft.session = replace(draft.session, cadence=found.record, open_run=found.run)
        again = to_ranges(tuple(sorted(self.view.again)))
        if again != draft.session.again:
            rewrites = self.services.rewrites(draft.session.key)
            draft.visible = visible_ranges(folded_offsets(rewrites, draft.session.revision), tuple(self.view.again))
            draft.session = replace(draft.session, again=again)
        if found.tools_new:
            draft.know_tools(found.tools)
        return found

    def _staged_for(self, draft: Draft, found: Measured) -> tuple[Projection, StagedFold] | None:
        """What is staged already, where it was made from the leading rows of this list and still suffices."""
        decision = found.decision
        if not draft.session.staged or (self.request.manual and self.request.instructions):
            return None
        staged = self.services.store.staged_projection(draft.session.key)
        if staged is None or not self.view.grew_behind(staged[1]):
            return None
        # It is given whatever is due by now: its own attempt has cleared the fact of P6, or holds ordinary trips back,
        # and where it outlived its caller, nobody was told of it (A5).
        if decision.forced and staged[1].record.trigger is not Trigger.DID_NOT_FIT:
            return None
        gone = discarded_positions(self.view.sent, staged[1].discarded)
        stay = sum(f.tokens for i, f in enumerate(self.view.facts) if i not in gone and not f.superseded)
        stay += staged[1].rows[-1].tokens
        left = factors.apply(found.factor, stay) + found.report.parts.tools
        fits = left < found.limits.threshold and left + found.limits.reserve < found.limits.ceiling
        # Another fold of the same list, to be judged by the same threshold, would leave no less.
        same = staged[1].list_rows == len(self.view.facts) and staged[1].threshold == found.limits.threshold
        return staged if fits or same or not decision.fold else None

    def _too_late(self, running: FoldInProgress) -> FoldOutcome:
        """W9: a fold outlives its caller; what it stages is there for the next call (A5)."""
        if self.request.manual:
            raise FoldlineError(
                Reason.FOLD_IN_PROGRESS, "a fold of this session is still running", fold_id=running.fold_id
            )
        return FoldOutcome(skip=SkipReason.DEADLINE)

    def _skipped(self, draft: Draft, found: Measured, reason: SkipReason | None) -> FoldOutcome:
        if self.request.manual:
            why = cadence.why_gated(reason, draft.session.cadence, found.policy, now=draft.now)
            raise refusal_of(FoldOutcome(skip=reason, detail=why))
        if reason is SkipReason.NOTHING_TO_FOLD:
            draft.session = replace(draft.session, cadence=cadence.nothing_to_fold(draft.session.cadence))
        if reason is not None:
            note_skip(draft, found.decision, found.policy, reason)
        return FoldOutcome(skip=reason)

    # The fold

    def _planned(self, draft: Draft, found: Measured) -> Attempt | SkipReason:
        started, session = time.monotonic(), draft.session
        planned = plan_of(self.services, session, self.view, found, self.request.shape, draft.now)
        if isinstance(planned, SkipReason):
            return planned
        return Attempt(
            fold=FoldInProgress(f"f-{uuid.uuid4().hex}"),
            trigger=found.decision.trigger or Trigger.AUTOMATIC,
            source=SummarySource.EXTRACTIVE if found.decision.barred is not None else planned.source,
            inputs=planned.inputs,
            snapshot=planned.snapshot,
            plan=planned.plan,
            rows={r.offset: r for r in self.view.transcript.rows},
            stored={},
            boundary=max(0, session.cadence.boundaries - 1),
            started=started,
            session=session,
        )

    def _fold(self, draft: Draft, found: Measured, attempt: Attempt) -> FoldOutcome:
        """Records the attempt, has it carried out, and waits for its end as long as the caller can."""
        services, live, run = self.services, self.live, found.run
        record = cadence.attempt_started(
            draft.session.cadence, attempt.boundary, trigger=attempt.trigger, paid=attempt.source in PAID, now=draft.now
        )
        draft.session = replace(draft.session, cadence=record)
        draft.event(
            EventKind.COMPACTION_STARTED, fold_id=attempt.fold.fold_id, trigger=attempt.trigger,
            signals=found.decision.signals, source=attempt.source, run_id=run.run_id if run else "",
            rows=len(attempt.plan.source_rows), tokens=attempt.plan.transcript_tokens, bytes=self.view.size()[1],
        )  # fmt: skip
        request_id = "" if self.request.manual else self.request.request_id
        draft.commit(remember(services, self.caller, request_id, _Remembered()))
        asked = found.fold_request(self.request.shape, self.request.instructions)

        def folds() -> FoldOutcome:
            return have_written(
                services, live, asked, attempt,
                lambda written: stage(services, live, asked, attempt, self.view, written),
            )  # fmt: skip

        on_thread(services, live, asked, attempt, folds)
        self._wait(attempt.fold)
        outcome = attempt.fold.outcome
        if outcome is None:
            return self._too_late(attempt.fold)
        if self.request.manual and outcome.record is None:
            raise outcome.error or refusal_of(outcome)
        return outcome

    # The answer

    def _warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(Warning_(code, message))

    def _answer(
        self, draft: Draft, found: Measured, outcome: FoldOutcome, staged: tuple[Projection, StagedFold] | None
    ) -> Compacted:
        """Says what to send, and remembers it: as the list that the provider's usage will be of (L1, 4.3)."""
        report, budget = found.report, found.limits.input_budget
        left = report.forecast_tokens
        if staged is not None:
            left -= staged[1].record.tokens_before - staged[1].record.tokens_after
        if left > budget:
            self._warn(WarningCode.FORECAST_OVER_WINDOW, f"forecast {left} of {budget} tokens")
        if staged is not None and staged[1].record.tokens_after >= staged[1].threshold:
            draft.warn(
                WarningCode.HISTORY_OVER_THRESHOLD,
                f"a fold leaves {staged[1].record.tokens_after} tokens of {staged[1].threshold}: raise the threshold, "
                "shorten the system rows, or use a model with a larger window", once=True, event=True,
            )  # fmt: skip
        prepare_id = ""
        if not self.request.manual:
            prepared = self._prepared(draft, found, staged)
            prepare_id = prepared.prepare_id
            draft.prepare(prepared)
        decided = Compacted(
            report=report, prepare_id=prepare_id, skip=outcome.skip, failure=outcome.failure,
            warnings=(*self.warnings, *draft.warnings), **(self._folded(staged) if staged else {}),
        )  # fmt: skip
        # A skipped fold is measured again when the call is repeated (W2).
        remembered = _Remembered(None if outcome.skip is not None and not self.request.manual else decided)
        draft.commit(remember(self.services, self.caller, self.request.request_id, remembered))
        return decided

    def _folded(self, staged: tuple[Projection, StagedFold]) -> dict[str, Any]:
        projection, fold = staged
        summary = fold.rows[-1]
        return {
            "discarded": fold.discarded, "summary": Row(summary.offset, decode_body(summary.body)),
            "before": self._before(fold), "record": fold.record, "projection_id": projection.projection_id,
            "expire": projection.expire,
        }  # fmt: skip

    def _before(self, fold: StagedFold) -> str:
        """Rows that came since it was staged follow the list that it makes."""
        if fold.before or len(self.view.names) == fold.list_rows:
            return fold.before
        return next((row_id for row_id, _ in self.view.transcript.keys[fold.list_rows :] if row_id), "")

    def _prepared(self, draft: Draft, found: Measured, staged: tuple[Projection, StagedFold] | None) -> Prepared:
        """The request that the host sends if it does as it is told."""
        view, report, session = self.view, found.report, draft.session
        tokens, size = view.size()
        names, rows, projection_id = list(view.names), list(view.transcript.rows), ""
        if staged is not None:
            fold, projection_id = staged[1], staged[0].projection_id
            summary, gone = fold.rows[-1], discarded_positions(view.sent, fold.discarded)
            body = Row(summary.offset, decode_body(summary.body))
            dropped = [f for i, f in enumerate(view.facts) if i in gone and not f.superseded]
            tokens += summary.tokens - sum(f.tokens for f in dropped)
            size += summary.bytes - sum(f.bytes for f in dropped)
            at = self._place(fold, gone)
            kept = [i for i in range(len(rows)) if i not in gone]
            names = [names[i] for i in kept]
            rows = [rows[i] for i in kept]
            names.insert(at, summary_name(summary.body))
            rows.insert(at, body)
        return Prepared(
            prepare_id=f"p-{uuid.uuid4().hex}", run_id=found.run.run_id if found.run else "",
            revision=max(0, session.cadence.boundaries - 1), boundary=max(0, session.cadence.boundaries - 1),
            rewrites=session.rewrites, rows=len(rows), covered_tokens=tokens,
            request_tokens=tokens + found.beside_tokens,
            request_bytes=max(0, report.body_bytes + size - view.size()[1]), bounded=False, model=found.model,
            window=self.services.model(found.model).context_window, ceiling=found.limits.ceiling,
            media_tokens=media_tokens(r.body for r in rows),
            list_digest=list_digests(names, (len(names),))[len(names)], projection_id=projection_id,
        )  # fmt: skip

    def _place(self, fold: StagedFold, gone: frozenset[int]) -> int:
        """Position of the summary among the rows that stay."""
        before = self._before(fold)
        kept = [key[0] for i, key in enumerate(self.view.transcript.keys) if i not in gone]
        return kept.index(before) if before else len(kept)
