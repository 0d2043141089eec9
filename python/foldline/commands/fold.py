"""One fold, from its snapshot to its commit (§6-§8, L2, A2, A5).

The session's lock is held while the snapshot is taken and while the candidate is committed, not while a source writes
the summary: appends go on, and V9 puts them behind it. The fold runs on a thread of its own, so that it outlives a
caller that cannot wait. Every attempt ends in exactly one terminal event (§13).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from foldline.commands import ahead
from foldline.commands.attempts import begin
from foldline.commands.draft import Draft
from foldline.commands.fold_parts import Attempt, FoldInProgress, FoldOutcome, FoldRequest, Progress, Written
from foldline.commands.live import LiveSession
from foldline.commands.proving import fail, finish
from foldline.commands.services import ANSWER_SECONDS, Services
from foldline.commands.sources import EXTERNAL
from foldline.commands.summarizing import write
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, SkipReason, Trigger
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import FoldScope, SummaryFailed
from foldline.engine.planning import would_fit

log = structlog.get_logger(__name__)

_MANUAL = (Trigger.MANUAL, Trigger.CHECKPOINT)


def run_fold(
    services: Services, live: LiveSession, request: FoldRequest, *, wait: Callable[[], float | None]
) -> FoldOutcome:
    """Plans, writes, proves and commits a fold. Called without the session's lock.

    A summary that was written ahead of need is used where it stands and makes the request fit (A2). A caller that has
    waited ``at_most``, or to its deadline, gets ``pending``; the fold goes on without it (A5).

    Args:
        wait: seconds that the caller can still wait, None for ever.
    """
    until = None if request.at_most is None else time.monotonic() + request.at_most
    with live.locked():
        if live.fold is not None:
            request.progress(Progress("waiting", live.fold.fold_id))
            return _await(services, live, live.fold, request, wait, until, joined=True)
        if services.workers.ends(manual=request.decision.trigger in _MANUAL):
            # A fold that nobody may wait for is not begun: one that was joined may just have been cut off.
            return FoldOutcome(skip=SkipReason.DEADLINE)
        ready = ahead.take(services, live, request, lambda fold, found: _go_on(services, live, request, fold, found))
        if isinstance(ready, FoldOutcome):
            return ready
        if isinstance(ready, FoldInProgress):
            return _await(services, live, ready, request, wait, until)
        begun = begin(services, live, request, ready=ready)
        if isinstance(begun, FoldOutcome):
            return begun
        carry_out(services, live, request, begun)
        return _await(services, live, begun.fold, request, wait, until)


def _patience(request: FoldRequest, left: float | None, until: float | None, *, joined: bool) -> float | None:
    """Seconds to wait on, None for ever: who asked for the fold itself stays to its end, on a thread of its own."""
    if request.decision.trigger in _MANUAL and not joined:
        return None
    limits = []
    if left is not None:
        limits.append(left - ANSWER_SECONDS)
    if until is not None:
        limits.append(until - time.monotonic())
    return min(limits, default=None)


def _go_on(
    services: Services, live: LiveSession, request: FoldRequest, fold: FoldInProgress,
    ready: FoldOutcome | Written | None,
) -> None:  # fmt: skip
    """A summary ahead of need that was waited for has come to its end. Under the session's lock.

    Args:
        ready: what became of it; a summary that does not suffice is taken in by a fold of its own (A2).
    """
    begun = ready if isinstance(ready, FoldOutcome) else begin(services, live, request, ready=ready, fold=fold)
    if isinstance(begun, FoldOutcome):
        end(live, fold, begun)
    else:
        carry_out(services, live, request, begun)


def carry_out(services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt) -> None:
    """Starts the work of a fold. Under the session's lock."""

    def folds() -> FoldOutcome:
        outcome = _attempted(services, live, request, attempt)
        second = _second(services, live, request, attempt, outcome)
        if second is None:
            return outcome
        again = _attempted(services, live, request, second)
        return again if again.record is not None else replace(outcome, warnings=again.warnings)

    on_thread(services, live, request, attempt, folds)


def on_thread(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, folds: Callable[[], FoldOutcome]
) -> None:
    """Runs ``folds`` on a thread; the session stays in memory until it has ended. Under the session's lock."""
    live.fold = attempt.fold
    release = services.sessions.hold(live)

    def work() -> None:
        outcome: FoldOutcome | None = None
        try:
            outcome = folds()
        finally:
            with live.lock:
                # What fails behind a fold that has committed, as the start of a second one (F3), undoes nothing of it.
                failed = FoldOutcome(skip=SkipReason.ATTEMPT_FAILED, failure=FailureKind.INTERNAL)
                end(live, attempt.fold, outcome or attempt.fold.committed or failed)
            release()

    try:
        services.workers.now(work)
    except RuntimeError as error:  # No thread could be started: the fold ends here, not its caller's request.
        release()
        end(live, attempt.fold, fail(services, live, request, attempt, FailureKind.INTERNAL, str(error), error=error))


def end(live: LiveSession, fold: FoldInProgress, outcome: FoldOutcome) -> None:
    """Gives the outcome to who waits, and the barrier back (L2). Under the session's lock."""
    fold.outcome = outcome
    if live.fold is fold:
        live.fold = None
    live.lock.notify_all()


def _attempted(services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt) -> FoldOutcome:
    def commits(written: Written) -> FoldOutcome:
        outcome = finish(services, live, request, attempt, written)
        if outcome.record is not None:
            attempt.fold.committed = outcome
            ahead.drop(services, live, f"fold {attempt.fold.fold_id} came before", used=attempt.ready is not None)
        return outcome

    return have_written(services, live, request, attempt, commits)


def have_written(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt,
    settle: Callable[[Written], FoldOutcome],
) -> FoldOutcome:  # fmt: skip
    """Has the summary written; whatever goes wrong, the attempt has started in the log and ends there.

    Args:
        settle: proves and commits what was written. Called under the session's lock.
    """
    try:
        written = write(services, request, attempt)
        with live.lock:
            if live.stale:  # Deleted, which cancels (L2), or written to by another server: no defect to log.
                reason = live.stale_reason
                return fail(services, live, request, attempt, FailureKind.CANCELLED, reason.message, error=reason)
            return settle(written)
    except SummaryFailed as error:
        return fail(
            services, live, request, attempt, error.kind, error.detail, retry_after=error.retry_after,
            absent=error.absent,
        )  # fmt: skip
    except BaseException as error:  # A panic of the core is no Exception; it ends the attempt all the same.
        if not services.workers.stopping.is_set():
            log.error("a fold failed", fold_id=attempt.fold.fold_id, exc_info=error)
        return fail(services, live, request, attempt, FailureKind.INTERNAL, type(error).__name__, error=error)


def _second(
    services: Services, live: LiveSession, request: FoldRequest, first: Attempt, outcome: FoldOutcome
) -> Attempt | None:
    """F3: with a curator or compactor stage 2 is a fold of its own, at the same check, where stage 1 left too much."""
    record = outcome.record
    if record is None or first.source not in EXTERNAL or first.plan.scope is not FoldScope.STAGE_1:
        return None
    with live.locked():
        tokens, size = live.transcript_size()
        left = replace(first.plan, retained_tokens=round(tokens * request.decision.report.factor), discarded_bytes=0)
        if would_fit(left, first.inputs, summary_tokens=0, transcript_bytes=size) and not request.decision.forced:
            return None
        begun = begin(services, live, request, rounds_only=True, fold=first.fold)
        return begun if isinstance(begun, Attempt) else None


def _await(
    services: Services, live: LiveSession, fold: FoldInProgress, request: FoldRequest, wait: Callable[[], float | None],
    until: float | None, *, joined: bool = False,
) -> FoldOutcome:  # fmt: skip
    """Waits for a fold, as long as its caller can. A second caller joins the running one and is told so (L2).

    Near the end of the server nobody waits on: manual callers may repeat the call (W7), requests go out unfolded (A5).
    """
    while fold.outcome is None:
        if live.stale:
            raise live.stale_reason
        patience = _patience(request, wait(), until, joined=joined)
        if services.workers.ends(manual=request.decision.trigger in _MANUAL):
            patience = 0.0
        if patience is not None and patience <= 0:
            return FoldOutcome(pending=fold, joined=joined)
        live.lock.wait(patience)
    return _ended(fold.outcome, request, joined=joined)


def by_now(pending: FoldOutcome, request: FoldRequest) -> FoldOutcome:
    """What has become of a fold since its caller stopped waiting. Under the session's lock."""
    fold = pending.pending
    assert fold is not None
    outcome = fold.outcome or fold.committed
    return pending if outcome is None else _ended(outcome, request, joined=pending.joined)


def _ended(found: FoldOutcome, request: FoldRequest, *, joined: bool) -> FoldOutcome:
    """A fold's outcome, for one that waited for it."""
    outcome = replace(found, joined=joined)
    if outcome.error is not None and not joined and request.decision.trigger in _MANUAL:
        raise outcome.error
    # What another caller's fold failed of is its own: this one's check decides anew at its next boundary.
    return FoldOutcome(outcome.record, joined=True) if joined else outcome


def interrupted(services: Services) -> int:
    """Ends the folds that a crash cut off, at start (§13, V10); returns how many there were."""
    found = services.store.unfinished_folds()
    for tenant, session_id, started in found:
        with services.sessions.use(tenant, session_id) as live, live.locked():
            draft = Draft(services, live)
            draft.event(
                EventKind.COMPACTION_FAILED, fold_id=started.fold_id, trigger=started.trigger, signals=started.signals,
                failure=FailureKind.INTERRUPTED, source=started.source, model=started.model,
                message="the sidecar stopped during the fold",
            )  # fmt: skip
            draft.commit()
    return len(found)


def write_owed(services: Services) -> None:
    """Writes what the store refused at the ends of folds, of sessions that nobody calls meanwhile (S5, §13).

    Raises:
        FoldlineError: the store refuses still.
    """
    for tenant, session_id in services.sessions.owing():
        try:
            with services.sessions.use(tenant, session_id) as live, live.locked():
                if live.owed is not None:
                    Draft(services, live).commit()
        except FoldlineError as error:
            if error.reason not in (Reason.SESSION_NOT_FOUND, Reason.REVISION_MISMATCH):
                raise
