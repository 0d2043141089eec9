"""Having a connected host write the summary of what stands before the run (S6, F5), or fold it in our place (F12)."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.commands.fold_parts import Attempt, FoldRequest
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.curators import Curated, CuratorRole, Work
from foldline.domain.enums import FailureKind
from foldline.domain.folding import Compacted, CompactorTask, SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.rows import CompactionSummaryRow, Row


def curate(services: Services, request: FoldRequest, attempt: Attempt, asked: SummaryRequest) -> SummaryResult:
    """S6: a connected curator's text, with what it must carry of the user's constraints (F8) and its coverage (S9).

    Raises:
        SummaryFailed: CURATOR_UNAVAILABLE, CURATOR_FAILED, CANCELLED, INTERRUPTED; SUMMARY_REJECTED where the text is
            over its budget.
    """
    carrying = services.sources.carrying
    if carrying is None:
        raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, "this server takes no curators")
    carried = carrying(asked)
    work = _work(
        request, attempt, CuratorRole.CURATOR, asked.rows, asked.earlier, max(1, asked.budget - carried.tokens)
    )
    answer = services.curators.ask(work, asked.cancelled)
    assert isinstance(answer, Curated)
    return carried.into(answer)


def compact_by_host(services: Services, request: FoldRequest, attempt: Attempt, task: CompactorTask) -> Compacted:
    """F12, over a stream.

    Raises:
        SummaryFailed: CURATOR_UNAVAILABLE, CURATOR_FAILED, CANCELLED, INTERRUPTED.
    """
    work = _work(request, attempt, CuratorRole.COMPACTOR, task.rows, task.earlier, task.budget)
    answer = services.curators.ask(replace(work, units=task.units), task.cancelled)
    assert isinstance(answer, Compacted)
    return answer


def _work(
    request: FoldRequest, attempt: Attempt, role: CuratorRole, rows: Sequence[Row],
    earlier: Sequence[CompactionSummaryRow], budget: int,
) -> Work:  # fmt: skip
    session = attempt.session
    return Work(
        role=role, tenant=session.tenant, session_id=session.session_id, key=session.key,
        fold_id=attempt.fold.fold_id, trigger=attempt.trigger, rows=rows, earlier=earlier, budget=budget,
        timeout=request.policy.summary.timeout, instructions=request.all_instructions,
        model=request.model if request.model.model else session.model, labels=dict(session.labels),
    )  # fmt: skip
