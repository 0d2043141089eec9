"""Summaries ahead of need (A1-A4): written in the background before T is crossed, committed when it is.

What is written is held in memory. It holds no barrier (L2), and a restart ends it as interrupted (§13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from foldline.commands.attempts import plan_inputs, planned_attempt, start
from foldline.commands.draft import Draft
from foldline.commands.fold_parts import Attempt, FoldInProgress, FoldOutcome, FoldRequest, Written
from foldline.commands.live import LiveSession
from foldline.commands.proving import fail, finish, rebased, too_long_by_now
from foldline.commands.services import Services
from foldline.commands.sources import EXTERNAL, is_paid, may_write_ahead
from foldline.commands.summarizing import account, write
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, SkipReason, SummarySourcePolicy, Trigger
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import SummaryFailed
from foldline.engine import cadence
from foldline.engine.planning import would_fit

log = structlog.get_logger(__name__)

GoOn = Callable[[FoldInProgress, "FoldOutcome | Written | None"], None]


@dataclass(slots=True)
class Ahead:
    """One summary ahead of need.

    Attributes:
        rewrites: of the session when it began; another number voids it (A3).
        attempt: once its start is in the log.
        written: once it is ready.
        wanted: what to do at its end, where a fold that is due waits for it.
    """

    request: FoldRequest
    fold: FoldInProgress
    fold_id: str
    rewrites: int
    attempt: Attempt | None = None
    written: Written | None = None
    wanted: tuple[FoldRequest, GoOn] | None = None


def is_ready(live: LiveSession) -> bool:
    """Whether a fold now would call no source. Under the session's lock."""
    mine = live.ahead
    return mine is not None and mine.written is not None and mine.rewrites == live.session.rewrites


def consider(services: Services, live: LiveSession, request: FoldRequest) -> None:
    """A1: has the summary of what would fold written, where T is near. Under the session's lock, after a boundary.

    Planning reads the transcript, so that it is tried anew only once that has grown.
    """
    session, policy = live.session, request.policy
    if live.fold is not None:
        return  # It may wait for the summary, or have taken it in: what becomes of it is the fold's to say.
    if live.ahead is not None and live.ahead.rewrites != session.rewrites:
        drop(services, live, "the rows that it covers changed")
        session = live.session
    if live.ahead is not None or not may_write_ahead(services, policy, session):
        return
    paid = is_paid(services, policy)
    if not cadence.ahead_due(request.decision.report, session.cadence, policy, now=services.clock(), paid=paid):
        return
    tokens = live.transcript_size()[0]
    rewrites, tried = live.ahead_tried
    if rewrites == session.rewrites and tokens < tried * (1 + max(policy.min_progress, 0.01)):
        return
    live.ahead_tried = (session.rewrites, tokens)
    fold = FoldInProgress("")
    decision = replace(
        request.decision, trigger=Trigger.BACKGROUND, forced=False, barred=None, skip=None, restates=False
    )
    live.ahead = mine = Ahead(replace(request, decision=decision), fold, "", session.rewrites)
    release = services.sessions.hold(live)

    def work() -> None:
        try:
            _write(services, live, mine)
        except FoldlineError as error:
            # The session was deleted, or the server stops: there is nothing to write ahead for.
            log.debug("a summary ahead of need was given up", reason=error.reason)
        finally:
            release()

    services.workers.ahead(work, paid=paid, dropped=release)


def _write(services: Services, live: LiveSession, mine: Ahead) -> None:
    with live.locked():
        if not _begin(services, live, mine):
            return
    attempt = mine.attempt
    assert attempt is not None
    written, failure = None, None
    try:
        written = write(services, mine.request, attempt)
    except SummaryFailed as error:
        failure = error
    except BaseException as error:  # A panic of the core is no Exception.
        if not services.workers.stopping.is_set():
            log.error("a summary ahead of need failed", fold_id=mine.fold_id, exc_info=error)
        failure = SummaryFailed(FailureKind.INTERNAL, type(error).__name__)
    with live.locked():
        fold, wanted = mine.fold, mine.wanted
        try:
            _end(services, live, mine, attempt, written, failure)
        except BaseException as error:
            if wanted is not None and fold.outcome is None:
                # The store failed, say: whoever waits must not do so for ever, nor the barrier stand (L2).
                lost = FoldOutcome(skip=SkipReason.ATTEMPT_FAILED, failure=FailureKind.INTERNAL, error=error)
                wanted[1](fold, lost)
            raise


def _end(
    services: Services, live: LiveSession, mine: Ahead, attempt: Attempt, written: Written | None,
    failure: SummaryFailed | None,
) -> None:  # fmt: skip
    """Keeps what was written until it is due, or hands it to the fold that waits for it. Under the session's lock."""
    mine.written = written
    _pay(services, live, mine)
    gone = live.ahead is not mine
    if gone and (failure is None or failure.kind is FailureKind.CANCELLED):
        _dropped(services, live, mine, "the rows that it covers changed")
        return
    if written is not None and mine.wanted is None:
        # The rows can be read again; held by every session near its threshold they would fill the memory.
        mine.attempt = replace(attempt, rows={}, stored={})
        return
    if not gone:
        live.ahead = None
    outcome: FoldOutcome | Written | None = None
    if failure is not None:  # Also where the rows changed meanwhile: a source that fails cools (C5).
        outcome = fail(
            services, live, mine.request, attempt, failure.kind, failure.detail, retry_after=failure.retry_after
        )
    if mine.wanted is not None:
        fold, (request, go_on) = mine.fold, mine.wanted
        if outcome is None:
            live.ahead = mine
            outcome = _settle(services, live, request, mine)
            # The fold that goes on has an id and an end of its own; what is ready may still be needed if it fails.
            mine.fold, mine.wanted = FoldInProgress(mine.fold_id), None
            mine.attempt = replace(attempt, fold=mine.fold, rows={}, stored={})
        go_on(fold, outcome)


def _begin(services: Services, live: LiveSession, mine: Ahead) -> bool:
    """Plans on a snapshot and says in the log that a source is about to be called; False where there is no cause."""
    if live.ahead is not mine:
        return False
    live.ahead = None  # Also where the store refuses the start: another boundary may try.
    draft = Draft(services, live)
    if mine.rewrites != draft.session.rewrites or live.fold is not None:
        return False
    attempt = planned_attempt(services, live, mine.request, draft, trigger=Trigger.BACKGROUND)
    if not isinstance(attempt, Attempt):
        return False
    mine.fold.fold_id = mine.fold_id = attempt.fold.fold_id
    attempt = replace(attempt, fold=mine.fold)
    start(draft, mine.request, attempt)
    mine.attempt = replace(attempt, session=live.session)
    live.ahead = mine
    return True


def _pay(services: Services, live: LiveSession, mine: Ahead) -> None:
    """Counts what the call cost at once: a crash or a drop later must not lose it (A2, A3, S5)."""
    if mine.written is None or not mine.fold.spent:
        return
    draft = Draft(services, live)
    draft.session = account(services, draft.session, mine.fold.spent, now=draft.now, folded=False)
    mine.fold.spent.clear()
    draft.conclude()


def take(
    services: Services, live: LiveSession, request: FoldRequest, go_on: GoOn
) -> FoldOutcome | FoldInProgress | Written | None:
    """What a fold that is due gets from the summary ahead of need (A2). Under the session's lock.

    It serves no P6 and no instructions, nor a curator's place (S6); those folds come before it and void it.

    Returns:
        The outcome where it was committed, the fold to wait for where it is still being written, the summary where it
        is to be taken in as the earlier one, None where there is none.
    """
    mine = live.ahead
    if mine is None or request.decision.forced or request.instructions:
        return None
    if mine.rewrites != live.session.rewrites:
        drop(services, live, "the rows that it covers changed")
        return None
    if mine.attempt is None:
        live.ahead = None
        return None
    if request.policy.summary.source is SummarySourcePolicy.CURATOR and mine.attempt.source not in EXTERNAL:
        return None  # S6: it was written under another policy than this request's.
    if mine.written is None:
        mine.wanted = (request, go_on)
        live.fold = mine.fold
        return mine.fold
    return _settle(services, live, request, mine)


def _settle(services: Services, live: LiveSession, request: FoldRequest, mine: Ahead) -> FoldOutcome | Written | None:
    """Commits a ready summary if the request fits with it; else it is for the fold that follows (A2).

    So is one that is longer than policy, model and factor of this request allow: it was written under others.
    """
    attempt, written = mine.attempt, mine.written
    assert attempt is not None
    assert written is not None
    found = rebased(services, live, request, attempt, written)
    if found is None:
        drop(services, live, "too little is left of what it covers")
        return None
    factor = request.decision.report.factor
    summary = round(services.count(written.summary.text, live.session.model) * factor)
    calls = sum(len(c.name) + len(c.arguments_json) for c in found.plan.ledger) // 3
    inputs = plan_inputs(services, live.session, request)
    fits = would_fit(
        found.plan, inputs, summary_tokens=summary + min(calls, request.policy.summary.ledger_tokens),
        transcript_bytes=live.transcript_size()[1],
    )  # fmt: skip
    if not fits or too_long_by_now(services, live, request, attempt, written, found):
        return written
    live.ahead = None
    return finish(services, live, request, attempt, written)


def drop(services: Services, live: LiveSession, why: str, *, used: bool = False) -> None:
    """A3: a summary ahead of need is of no use any more; its cost stays counted. Under the session's lock.

    Args:
        used: a fold took it in as its earlier summary, which is no failure of foresight.
    """
    mine, live.ahead = live.ahead, None
    if mine is None:
        return
    if mine.written is None:
        mine.fold.cancelled = True
    else:
        _dropped(services, live, mine, why, used=used)


def _dropped(services: Services, live: LiveSession, mine: Ahead, why: str, *, used: bool = False) -> None:
    draft, written = Draft(services, live), mine.written
    session = account(services, draft.session, mine.fold.spent, now=draft.now, folded=False)
    mine.fold.spent.clear()
    draft.session = session if used else replace(session, cadence=cadence.ahead_dropped(session.cadence))
    draft.event(
        EventKind.COMPACTION_FAILED, fold_id=mine.fold_id, trigger=Trigger.BACKGROUND,
        signals=mine.request.decision.signals, failure=FailureKind.READY_DROPPED,
        source=mine.attempt.source if mine.attempt else None, usage=written.summary.usage if written else None,
        message=why,
    )  # fmt: skip
    draft.conclude()
