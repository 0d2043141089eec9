"""Handing a compactor the rows before the run, and taking what it answers (F12)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from foldline.commands.curating import compact_by_host
from foldline.commands.fold_parts import Attempt, FoldRequest
from foldline.commands.native import as_text, items_of
from foldline.commands.services import Services
from foldline.domain.enums import FailureKind, SummarySource, SummarySourcePolicy
from foldline.domain.folding import Compacted, CompactorTask, FoldPlan, SummaryFailed, SummaryResult
from foldline.domain.rows import CompactionSummaryRow, kind_of
from foldline.engine import planning
from foldline.engine.structure import analyze
from foldline.engine.units import UNSUMMARIZED_KINDS

log = structlog.get_logger(__name__)


def compact(services: Services, request: FoldRequest, attempt: Attempt) -> tuple[FoldPlan, SummaryResult]:
    """F12: the compactor decides what stays of the rows before the run, and writes the summary of the rest."""
    planned = attempt.plan
    snapshot, structure = attempt.snapshot, analyze(attempt.snapshot)
    handed = planning.handed(snapshot, structure, attempt.inputs)
    bodies = {o: attempt.rows[o] for unit in handed for o in unit.offsets}
    earlier = tuple(r.body for r in bodies.values() if isinstance(r.body, CompactionSummaryRow))
    earlier = (*as_text(services, attempt.session, items_of(bodies.values()), planned.budget), *earlier)
    units = tuple(u.offsets for u in handed if kind_of(bodies[u.offsets[0]].body) not in UNSUMMARIZED_KINDS)
    free = {o for unit in units for o in unit}
    timeout = request.policy.summary.timeout
    task = CompactorTask(
        rows=tuple(attempt.rows[r.offset] for r in snapshot.rows if r.offset in free), units=units, earlier=earlier,
        budget=planned.budget, instructions=request.all_instructions, timeout=timeout,
        cancelled=lambda: attempt.fold.cancelled,
    )  # fmt: skip
    if request.policy.summary.source is SummarySourcePolicy.CURATOR:
        answer = compact_by_host(services, request, attempt, task)
    else:
        answer = _by_package(services, task)
    try:
        plan = planning.plan_keeping(snapshot, structure, attempt.inputs, answer.keep)
    except (ValueError, TypeError) as error:
        detail = f"the compactor answered nonsense: {error}"
        raise SummaryFailed(FailureKind.CURATOR_FAILED, detail, usage=answer.usage, model=answer.model) from error
    # F8: what earlier summaries carry of the user's constraints is carried on, whatever the compactor writes.
    durable = tuple(dict.fromkeys(line for summary in earlier for line in summary.durable))
    written = SummaryResult(answer.text, durable, SummarySource.COMPACTOR, model=answer.model, usage=answer.usage)
    return plan, written


def _by_package(services: Services, task: CompactorTask) -> Compacted:
    compactor = services.sources.compactor
    if compactor is None:
        raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, "no compactor is configured")
    return _within(lambda: compactor.compact(task), task.timeout)


def _within(call: Callable[[], object], timeout: float) -> Compacted:
    """Runs a compactor on a thread of its own: one that is late is not waited for, whatever it does.

    Raises:
        SummaryFailed: CURATOR_FAILED where it raised, was late, or answered something else.
    """
    answers: list[object] = []
    done = threading.Event()

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            log.error("a compactor failed", exc_info=error)
        finally:
            done.set()

    threading.Thread(target=work, name="compactor", daemon=True).start()
    if not done.wait(timeout):
        raise SummaryFailed(FailureKind.CURATOR_FAILED, f"the compactor took longer than {timeout:g} s")
    answer = answers[0] if answers else None
    if not isinstance(answer, Compacted):
        what = "raised" if answer is None else f"answered a {type(answer).__name__}"
        raise SummaryFailed(FailureKind.CURATOR_FAILED, f"the compactor {what}")
    return answer
