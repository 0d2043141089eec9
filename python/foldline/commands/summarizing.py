"""Having a summary written, and what that used (S2, S5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import structlog

from foldline.commands.compacting import compact
from foldline.commands.curating import curate
from foldline.commands.fold_parts import Attempt, FoldRequest, Progress, Spent, Written
from foldline.commands.live_request import live_request
from foldline.commands.native import behind, compact_natively, items_of
from foldline.commands.services import Services
from foldline.commands.sources import PAID, handoff_follows, in_its_place, order, summary_model
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, PromptCache, SummarySource
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import FoldPlan, SummaryFailed, SummaryRequest, SummaryResult, has_unmeasured_speech
from foldline.domain.memory import MemoryEntry
from foldline.domain.models import Usage
from foldline.domain.policy import Memory, require_provider
from foldline.domain.rows import CompactionSummaryRow, ModelRef, Row
from foldline.domain.session import Session, SourceTotals
from foldline.engine import cadence
from foldline.engine.spending import priced

log = structlog.get_logger(__name__)


def write(services: Services, request: FoldRequest, attempt: Attempt) -> Written:
    """Has the summary of a plan written, by its source or, where the policy says so, its successor (S2).

    Where the provider's call failed for its size, a mechanical handoff comes last (S7).

    Raises:
        SummaryFailed: of the configured source, where no other may write or that one failed too; UNMEASURED_TRANSCRIPT
            where a handoff would come and may not.
    """
    fold, failed = attempt.fold, None
    request.progress(Progress("summarizing", fold.fold_id, len(attempt.plan.discard)))
    unavailable, lacking = None, attempt.unavailable
    waiting = deque(order(services, request, attempt.source))
    while waiting:
        source = waiting.popleft()
        if source is SummarySource.MECHANICAL:
            _refuse_speech(services, attempt, failed)
        try:
            plan, summary = _call(services, request, attempt, source)
        except SummaryFailed as error:
            fold.spent.append(Spent(source, _with_cost(services, error.usage, error.model), error.model))
            if error.kind is FailureKind.NATIVE_UNAVAILABLE:
                # Nothing is said against the source: it is not there, and the next one writes by its own rules (N3).
                unavailable, waiting = error, deque(order(services, request, in_its_place(services)))
                lacking = error.detail
                continue
            if failed is None:
                failed = error
                if lacking:
                    failed.detail = f"no compaction by the provider itself ({lacking}), in whose place {error.detail}"
            elif error.retry_after is not None:
                # C5: both cool as one, so that neither is asked again before it said.
                failed.retry_after = max(failed.retry_after or 0.0, error.retry_after)
            if handoff_follows(source, error):
                waiting.append(SummarySource.MECHANICAL)
            continue
        summary = replace(summary, usage=_with_cost(services, summary.usage, summary.model))
        fold.spent.append(Spent(source, summary.usage, summary.model))
        request.progress(Progress("summarized", fold.fold_id, len(plan.discard)))
        listed = [attempt.rows[r.offset] for r in attempt.snapshot.rows]
        entries = projected(services, attempt.session, request.policy.memory, listed, plan)
        return Written(plan, summary, entries, request.policy.memory, failed or unavailable)
    assert failed is not None
    raise failed


def _refuse_speech(services: Services, attempt: Attempt, failed: SummaryFailed | None) -> None:
    """S7: no handoff while any active row, or one behind a native item, holds speech of which nobody knows how much was
    heard.

    Raises:
        SummaryFailed: UNMEASURED_TRANSCRIPT.
    """
    hidden = behind(services, attempt.session, items_of(attempt.rows.values())).rows
    held = next((row for row in (*hidden, *attempt.rows.values()) if has_unmeasured_speech(row)), None)
    if held is not None:
        what = f"row {held.offset} holds unmeasured speech, which a mechanical handoff would lose"
        raise SummaryFailed(FailureKind.UNMEASURED_TRANSCRIPT, f"{failed.detail}; {what}" if failed else what)


def projected(
    services: Services, session: Session, memory: Memory, rows: Sequence[Row], plan: FoldPlan
) -> tuple[MemoryEntry, ...]:
    """What memory will hold of the rows that a plan discards (V8); nothing once its scope was dropped (M7).

    Args:
        rows: the active rows, in list order.

    Raises:
        SummaryFailed: PROJECTION_FAILED.
    """
    if session.memory_dropped:
        return ()
    gone = set(plan.discard)
    try:
        return services.memory.project(
            [r for r in rows if r.offset in gone], rows, memory.chunk_tokens, memory.index_tool_results
        )
    except Exception as error:
        log.error("the memory projection of a fold failed", session=session.session_id, exc_info=error)
        raise SummaryFailed(FailureKind.PROJECTION_FAILED, "the rows could not be made searchable") from error


def _call(
    services: Services, request: FoldRequest, attempt: Attempt, source: SummarySource
) -> tuple[FoldPlan, SummaryResult]:
    if source is SummarySource.COMPACTOR:
        plan, written = compact(services, request, attempt)
        return plan, services.sources.scored(_summary_request(services, request, replace(attempt, plan=plan)), written)
    if source is SummarySource.NATIVE:
        return attempt.plan, compact_natively(services, request, attempt)
    if source is SummarySource.CURATOR:
        return attempt.plan, curate(services, request, attempt, _summary_request(services, request, attempt))
    made_by = {
        SummarySource.EXTRACTIVE: services.sources.extractive, SummarySource.PROVIDER: services.sources.provider,
        SummarySource.MECHANICAL: services.sources.mechanical,
    }.get(source)  # fmt: skip
    if made_by is None:
        raise SummaryFailed(
            FailureKind.SUMMARIZER_FAILED,
            f"summary.source is {source} and no [providers.NAME] is configured",
        )
    if source is SummarySource.PROVIDER:
        try:
            require_provider(request.policy, services.sources.providers)
        except FoldlineError as error:  # It was configured when it was chosen.
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, error.message) from None
    asked = _summary_request(services, request, attempt)
    if source is SummarySource.MECHANICAL:
        asked = replace(asked, budget=min(asked.budget, request.policy.summary.mechanical_tokens))
    return attempt.plan, made_by.summarize(asked)


def _summary_request(services: Services, request: FoldRequest, attempt: Attempt) -> SummaryRequest:
    policy, planned, ready = request.policy.summary, attempt.plan, attempt.ready
    model = summary_model(request, attempt.session)
    learned = services.factor_of(attempt.session, model)
    covered = set(ready.plan.discard) if ready else set()
    earlier = [
        b for o in planned.earlier if o not in covered if isinstance(b := attempt.rows[o].body, CompactionSummaryRow)
    ]
    hidden = behind(services, attempt.session, items_of(attempt.rows[o] for o in planned.earlier if o not in covered))
    if ready is not None:
        # A2: what was written ahead of need stands for the rows that it covers.
        summary = ready.summary
        earlier.append(CompactionSummaryRow(summary.text, "", source=summary.source, durable=summary.durable))
    return SummaryRequest(
        rows=(*hidden.rows, *(attempt.rows[o] for o in planned.source_rows if o not in covered)),
        earlier=(*hidden.earlier, *earlier),
        budget=planned.budget,
        appendix=policy.appendix_tokens,
        coverage_floor=policy.coverage_floor,
        redact=policy.redact,
        instructions=request.all_instructions,
        model=model,
        window=services.model(model).ceiling,
        factor=learned.value if learned.readings else None,
        timeout=policy.timeout,
        retries=policy.retries,
        oversize=policy.oversize,
        cancelled=lambda: attempt.fold.cancelled,
        count=lambda text: services.count(text, attempt.session.model),
        live=live_request(services, attempt) if policy.prompt_cache is PromptCache.APPEND else None,
    )


def account(services: Services, session: Session, spent: Sequence[Spent], *, now: float, folded: bool) -> Session:
    """The session with what sources used and cost, committed or not (S5, C6).

    Args:
        folded: the last of the calls wrote the summary that is committed.
    """
    totals, record = session.summary_totals, session.cadence
    for index, call in enumerate(spent):
        usage = call.usage or Usage()
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        if call.source in PAID:
            record = cadence.spent(record, now=now, tokens=tokens, cost=usage.cost)
        totals = _added(totals, call.source, usage, folds=int(folded and index == len(spent) - 1))
    return replace(session, cadence=record, summary_totals=totals)


def _with_cost(services: Services, usage: Usage | None, model: ModelRef) -> Usage | None:
    """The usage with its cost by the catalog's prices, so that record and events name it too (S5)."""
    return usage if usage is None or not model.model else priced(usage, services.model(model).prices)


def _added(
    totals: tuple[SourceTotals, ...], source: SummarySource, usage: Usage, *, folds: int
) -> tuple[SourceTotals, ...]:
    old = next((t for t in totals if t.source is source), SourceTotals(source))
    new = replace(
        old,
        attempts=old.attempts + 1,
        folds=old.folds + folds,
        input_tokens=old.input_tokens + (usage.input_tokens or 0),
        output_tokens=old.output_tokens + (usage.output_tokens or 0),
        cost=old.cost if usage.cost is None else (old.cost or 0.0) + usage.cost,
    )
    return (*(t for t in totals if t.source is not source), new)
