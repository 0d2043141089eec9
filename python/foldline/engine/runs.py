"""Opening, continuing and closing runs (§1 run, L4, L5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, RunOutcome
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import RowFacts
from foldline.domain.session import ClosedRun, OpenRun, Session
from foldline.engine.appending import close_run_calls, joins_request


@dataclass(frozen=True, slots=True)
class Opening:
    """What a ``run_id`` asks of the session: ``expired`` and ``superseded`` name the run that is closed for it."""

    opens: bool
    closes: OpenRun | None = None
    expired: bool = False


def opening(session: Session, run_id: str, *, supersede: bool, now: float, ttl: float) -> Opening:
    """Whether ``run_id`` continues the open run, opens one, or may not (L4).

    Raises:
        FoldlineError: RUN_ALREADY_OPEN, naming the open run and how long it may still be idle.
    """
    run = session.open_run
    if run is None:
        return Opening(opens=True)
    if run.run_id == run_id:
        return Opening(opens=False)
    idle = now - run.last_active
    if supersede or idle >= ttl:
        return Opening(opens=True, closes=run, expired=not supersede)
    raise FoldlineError(
        Reason.RUN_ALREADY_OPEN,
        f"run {run.run_id} is open (idle for {idle:.0f} s of {ttl:.0f} s): finish it, or set supersede_open_run",
        open_run_id=run.run_id, run_id=run_id, idle_seconds=f"{idle:.0f}", run_ttl_seconds=f"{ttl:.0f}",
    )  # fmt: skip


def open_run(
    session: Session,
    trailing: Sequence[RowFacts],
    run_id: str,
    *,
    last_run_id: str,
    last_request: tuple[int, ...],
    now: float,
) -> Session:
    """Opens ``run_id`` on the request that the transcript ends on (§1 request, continued run).

    Args:
        trailing: facts of the rows after the last assistant row or result that is not late, in list order.
        last_run_id: run of the last row of the transcript that has one, for a run without a request of its own.
        last_request: that run's request and user rows that are still active, in list order.

    Raises:
        FoldlineError: RUN_NOT_OPEN where there is no request and no run to continue (L5).
    """
    group = [r for r in trailing if joins_request(r.kind, r.late) and _uncarried_if_late(r, session)]
    request = tuple(r.offset for r in group if r.run_id in ("", run_id))
    continues = ""
    if not request:
        if not last_run_id:
            raise FoldlineError(
                Reason.RUN_NOT_OPEN,
                f"run {run_id} has no request: append a user, context or notice row, or name a run to continue",
                run_id=run_id, open_run_id="",
            )  # fmt: skip
        request = (*last_request, *(r.offset for r in group if r.offset not in last_request))
        continues = last_run_id
    run = OpenRun(
        run_id=run_id,
        opened_boundary=session.cadence.boundaries,
        opened_offset=session.next_offset,
        last_active=now,
        request=request,
        continues=continues,
    )
    return replace(session, open_run=run)


def _uncarried_if_late(row: RowFacts, session: Session) -> bool:
    return row.kind != RowKind.TOOL_RESULT or row.offset > session.carried_through


def close_run(session: Session, outcome: RunOutcome) -> tuple[Session, ClosedRun]:
    """Closes the open run; its unanswered calls are closed with it (R3), its ledger ends unless it is continued (F3).

    Raises:
        FoldlineError: RUN_NOT_OPEN.
    """
    run = session.open_run
    if run is None:
        raise FoldlineError(Reason.RUN_NOT_OPEN, "no run is open")
    return replace(close_run_calls(session, run), open_run=None), ClosedRun(run.run_id, outcome, run.asked)


def require_open(session: Session, run_id: str) -> OpenRun:
    """The open run, if it is ``run_id``.

    Raises:
        FoldlineError: RUN_NOT_OPEN, naming the open run if there is one.
    """
    run = session.open_run
    if run is None or run.run_id != run_id:
        raise FoldlineError(
            Reason.RUN_NOT_OPEN,
            f"run {run_id} is not open" + (f"; {run.run_id} is" if run else ""),
            run_id=run_id, open_run_id=run.run_id if run else "",
        )  # fmt: skip
    return run
