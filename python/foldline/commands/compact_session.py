"""CompactSession: a fold because someone asked (P7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foldline.commands.check_pressure import pressure_of, shape_of_last
from foldline.commands.draft import Draft
from foldline.commands.fold import run_fold
from foldline.commands.fold_parts import FoldOutcome, FoldRequest, Progress
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.live import LiveSession
from foldline.commands.measuring import RequestShape
from foldline.commands.ownership import sidecar_owned
from foldline.commands.services import Caller, Services
from foldline.commands.workers import stops
from foldline.domain.enums import FailureKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import CompactionRecord

_REASONS = {
    FailureKind.SUMMARIZER_FAILED: Reason.SUMMARIZER_FAILED,
    FailureKind.SUMMARIZER_TIMEOUT: Reason.SUMMARIZER_FAILED,
    FailureKind.UNMEASURED_TRANSCRIPT: Reason.SUMMARIZER_FAILED,
    FailureKind.SUMMARY_REJECTED: Reason.REWRITE_REJECTED,
    FailureKind.REWRITE_REJECTED: Reason.REWRITE_REJECTED,
    FailureKind.REBASE_LOST: Reason.REWRITE_REJECTED,
    FailureKind.NOT_SMALLER: Reason.REWRITE_REJECTED,
    FailureKind.CURATOR_UNAVAILABLE: Reason.CURATOR_UNAVAILABLE,
    FailureKind.CURATOR_FAILED: Reason.CURATOR_FAILED,
    FailureKind.CANCELLED: Reason.SESSION_NOT_FOUND,
}


@dataclass(frozen=True, slots=True)
class Compact:
    session_id: str
    request_id: str = ""
    instructions: str = ""
    shape: RequestShape = RequestShape()


def compact_session(
    services: Services, caller: Caller, compact: Compact, progress: Callable[[Progress], None]
) -> CompactionRecord:
    """Folds now, whatever the measures and the cadence say, and leaves room for what is sent beside the rows (F2).

    A fold that is already running is joined (L2): its record is the answer, unless instructions were given, which it
    does not follow, or it fails; then a fold of its own comes after it.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, NOTHING_TO_FOLD, FOLD_IN_PROGRESS when the deadline comes
            before a running fold ends, SUMMARIZER_FAILED, REWRITE_REJECTED naming the checks, NOT_READY where the
            server stops. The transcript is then as it was.
    """
    with services.sessions.use(caller.tenant, compact.session_id) as live:
        while True:
            with live.locked():
                sidecar_owned(live.session)
                found = repeated(services, caller, live.session.key, compact.request_id)
                if found is not None:
                    return answer_of(found, CompactionRecord)
                shape = shape_of_last(services, live.session, compact.shape)
                pressure = pressure_of(services, live, shape, None, manual=True)
            request = FoldRequest(
                decision=pressure.decision, policy=pressure.policy, limits=pressure.limits,
                tools_tokens=pressure.report.parts.tools, tools_bytes=shape.beside_bytes(pressure.tools),
                model=shape.model, instructions=compact.instructions, progress=progress,
                remember=lambda record: remember(services, caller, compact.request_id, record),
            )  # fmt: skip
            outcome = run_fold(services, live, request, wait=caller.left)
            if outcome.pending is not None:
                message = "another fold of this session is still running" if outcome.joined else "the fold goes on"
                fold_id = live.fold.fold_id if live.fold else ""
                raise FoldlineError(Reason.FOLD_IN_PROGRESS, message, fold_id=fold_id)
            if not outcome.joined:
                break
            if outcome.record is not None and not compact.instructions:
                _remember_joined(services, caller, live, compact, outcome.record)
                break
        if outcome.record is None:
            raise refusal_of(outcome)
        return outcome.record


def _remember_joined(
    services: Services, caller: Caller, live: LiveSession, compact: Compact, record: CompactionRecord
) -> None:
    """Another caller's commit could not hold this request's id (W2); the call itself writes nothing else."""
    request = remember(services, caller, compact.request_id, record)
    if request is not None:
        with live.locked():
            Draft(services, live).commit(request)


def refusal_of(outcome: FoldOutcome) -> FoldlineError:
    if outcome.failure is None:
        why = outcome.detail or "no rows may be folded: what there is has to stay or is folded already"
        return FoldlineError(Reason.NOTHING_TO_FOLD, why, skip=outcome.skip or "")
    checks = ",".join(dict.fromkeys(c.rule for c in outcome.checks))
    if outcome.failure is FailureKind.INTERRUPTED:
        return stops()
    reason = Reason.NOTHING_TO_FOLD if outcome.nothing else _REASONS.get(outcome.failure, Reason.INTERNAL)
    return FoldlineError(reason, f"the fold failed: {outcome.detail}", failure=outcome.failure, checks=checks)
