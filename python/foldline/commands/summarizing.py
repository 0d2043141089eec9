"""Who writes a summary, and having it written (S2, S5, F5, F12)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

from foldline.commands.fold_parts import Attempt, FoldRequest, Progress, Spent, Written
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, SummarySource, SummarySourcePolicy
from foldline.domain.folding import (
    Compacted,
    CompactorTask,
    FoldPlan,
    FoldScope,
    SummaryFailed,
    SummaryRequest,
    SummaryResult,
)
from foldline.domain.memory import MemoryEntry
from foldline.domain.models import Usage
from foldline.domain.policy import Memory, Policy
from foldline.domain.rows import CompactionSummaryRow, ModelRef, Row, kind_of
from foldline.domain.session import Session, SourceTotals
from foldline.engine import cadence, planning
from foldline.engine.pressure import over_hard_limit
from foldline.engine.spending import priced
from foldline.engine.structure import analyze
from foldline.engine.units import UNSUMMARIZED_KINDS

log = structlog.get_logger(__name__)

EXTERNAL = frozenset({SummarySource.CURATOR, SummarySource.COMPACTOR})
"""Sources that are handed only the rows before the run (F5)."""
PAID = EXTERNAL | {SummarySource.PROVIDER, SummarySource.NATIVE}
"""Sources whose calls cost money, or may: nobody tells what a curator or compactor does (C6)."""


def source_of(services: Services, policy: Policy) -> SummarySource:
    """Who writes summaries by configuration (S2); AUTO takes the compactor or provider that the server has."""
    asked = policy.summary.source
    if asked is not SummarySourcePolicy.AUTO:
        return SummarySource[asked.name]
    if services.sources.compactor is not None:
        return SummarySource.COMPACTOR
    return SummarySource.PROVIDER if services.sources.provider is not None else SummarySource.EXTRACTIVE


def is_external(services: Services, policy: Policy) -> bool:
    return source_of(services, policy) in EXTERNAL


def is_paid(services: Services, policy: Policy) -> bool:
    return source_of(services, policy) in PAID


def may_write_ahead(services: Services, policy: Policy) -> bool:
    """A1, A4: whether summaries are written ahead of need; by default those that cost nothing."""
    source = source_of(services, policy)
    if source is SummarySource.COMPACTOR:
        opted = bool(getattr(services.sources.compactor, "background", False))
        return opted and bool(policy.background.enabled)
    if source is SummarySource.CURATOR:
        return False
    enabled = policy.background.enabled
    return source not in PAID if enabled is None else enabled


def writer_of(services: Services, policy: Policy, scope: FoldScope) -> SummarySource:
    """Who writes the summary of a plan: rounds of the open run are the sidecar's own to fold (F5)."""
    source = source_of(services, policy)
    if source in EXTERNAL and scope in (FoldScope.STAGE_2, FoldScope.COMBINED):
        return SummarySource.PROVIDER if services.sources.provider is not None else SummarySource.EXTRACTIVE
    return source


def write(services: Services, request: FoldRequest, attempt: Attempt) -> Written:
    """Has the summary of a plan written, by its source or, where the policy says so, its successor (S2).

    Raises:
        SummaryFailed: of the configured source, where no other may write or that one failed too.
    """
    fold, failed = attempt.fold, None
    request.progress(Progress("summarizing", fold.fold_id, len(attempt.plan.discard)))
    for source in _order(request, attempt.source):
        try:
            plan, summary = _call(services, request, attempt, source)
        except SummaryFailed as error:
            fold.spent.append(Spent(source, _with_cost(services, error.usage, error.model), error.model))
            failed = failed or error
            continue
        summary = replace(summary, usage=_with_cost(services, summary.usage, summary.model))
        fold.spent.append(Spent(source, summary.usage, summary.model))
        request.progress(Progress("summarized", fold.fold_id, len(plan.discard)))
        order = [attempt.rows[r.offset] for r in attempt.snapshot.rows]
        entries = projected(services, attempt.session, request.policy.memory, order, plan)
        return Written(plan, summary, entries, request.policy.memory, failed)
    assert failed is not None
    raise failed


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


def _order(request: FoldRequest, source: SummarySource) -> list[SummarySource]:
    """The source, and after it who may write in its place; a barred source is not asked (C5, C6)."""
    over = over_hard_limit(request.decision.report)
    order = [source]
    if source in (SummarySource.PROVIDER, SummarySource.NATIVE) and cadence.successor_may_write(request.policy, over):
        order.append(SummarySource.EXTRACTIVE)
    if request.decision.barred is not None and len(order) > 1:
        order = order[1:]
    return order


def _call(
    services: Services, request: FoldRequest, attempt: Attempt, source: SummarySource
) -> tuple[FoldPlan, SummaryResult]:
    if source is SummarySource.COMPACTOR:
        return _compact(services, request, attempt)
    if source is SummarySource.CURATOR:
        raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, "summary.source is CURATOR and no curator is connected")
    made_by = {
        SummarySource.EXTRACTIVE: services.sources.extractive, SummarySource.PROVIDER: services.sources.provider,
    }.get(source)  # fmt: skip
    if made_by is None:
        raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, f"summary.source is {source} and none is configured")
    return attempt.plan, made_by.summarize(_summary_request(services, request, attempt))


def _summary_request(services: Services, request: FoldRequest, attempt: Attempt) -> SummaryRequest:
    policy, planned, ready = request.policy.summary, attempt.plan, attempt.ready
    model = summary_model(request, attempt.session)
    covered = set(ready.plan.discard) if ready else set()
    earlier = [
        b for o in planned.earlier if o not in covered if isinstance(b := attempt.rows[o].body, CompactionSummaryRow)
    ]
    if ready is not None:
        # A2: what was written ahead of need stands for the rows that it covers.
        summary = ready.summary
        earlier.append(CompactionSummaryRow(summary.text, "", source=summary.source, durable=summary.durable))
    return SummaryRequest(
        rows=tuple(attempt.rows[o] for o in planned.source_rows if o not in covered),
        earlier=tuple(earlier),
        budget=planned.budget,
        appendix=policy.appendix_tokens,
        coverage_floor=policy.coverage_floor,
        redact=policy.redact,
        instructions=_instructions(request),
        model=model,
        # Sizes are raw estimates (4.5): a model that counts higher takes fewer of them.
        window=int(services.model(model).ceiling / max(1.0, services.factor_of(attempt.session, model).value)),
        timeout=policy.timeout,
        retries=policy.retries,
        oversize=policy.oversize,
        cancelled=lambda: attempt.fold.cancelled,
        count=lambda text: services.count(text, attempt.session.model),
    )


def _instructions(request: FoldRequest) -> str:
    return "\n\n".join(filter(None, (request.policy.summary.instructions, request.instructions)))


def summary_model(request: FoldRequest, session: Session) -> ModelRef:
    """S2: the fast model, else that of the current request, else of the last answer, else the session's."""
    last = session.last_prepared.model if session.last_prepared else ModelRef()
    candidates = (request.policy.summary.fast_model or ModelRef(), request.model, last)
    return next((m for m in candidates if m.model), session.model)


def _compact(services: Services, request: FoldRequest, attempt: Attempt) -> tuple[FoldPlan, SummaryResult]:
    """F12: the compactor decides what stays of the rows before the run, and writes the summary of the rest."""
    compactor, planned = services.sources.compactor, attempt.plan
    if compactor is None:
        raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, "no compactor is configured")
    snapshot, structure = attempt.snapshot, analyze(attempt.snapshot)
    handed = planning.handed(snapshot, structure, attempt.inputs)
    bodies = {o: attempt.rows[o] for unit in handed for o in unit.offsets}
    earlier = tuple(r.body for r in bodies.values() if isinstance(r.body, CompactionSummaryRow))
    units = tuple(u.offsets for u in handed if kind_of(bodies[u.offsets[0]].body) not in UNSUMMARIZED_KINDS)
    free = {o for unit in units for o in unit}
    timeout = request.policy.summary.timeout
    task = CompactorTask(
        rows=tuple(attempt.rows[r.offset] for r in snapshot.rows if r.offset in free), units=units, earlier=earlier,
        budget=planned.budget, instructions=_instructions(request), timeout=timeout,
        cancelled=lambda: attempt.fold.cancelled,
    )  # fmt: skip
    answer = _within(lambda: compactor.compact(task), timeout)
    try:
        plan = planning.plan_keeping(snapshot, structure, attempt.inputs, answer.keep)
    except (ValueError, TypeError) as error:
        detail = f"the compactor answered nonsense: {error}"
        raise SummaryFailed(FailureKind.CURATOR_FAILED, detail, usage=answer.usage, model=answer.model) from error
    # F8: what earlier summaries carry of the user's constraints is carried on, whatever the compactor writes.
    durable = tuple(dict.fromkeys(line for summary in earlier for line in summary.durable))
    written = SummaryResult(answer.text, durable, SummarySource.COMPACTOR, model=answer.model, usage=answer.usage)
    return plan, written


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
