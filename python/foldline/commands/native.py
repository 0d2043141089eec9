"""Compaction by the provider itself (§12): whether it may write a fold, its call, and what its items stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foldline.commands.fold_parts import Attempt, FoldRequest
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.live_request import tools_in_sight
from foldline.commands.render_transcript import render_rows
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, Format, RowKind, SummarySource
from foldline.domain.folding import FoldPlan, Snapshot, SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.native import (
    ASK_AGAIN_SECONDS,
    Capability,
    NativeRoute,
    NativeTask,
    format_of,
    headers_of,
    is_readable,
)
from foldline.domain.rows import CompactionSummaryRow, ModelRef, ProviderCompactionRow, Row, SystemRow
from foldline.domain.session import Session
from foldline.engine.lineage import expand

_UNTOLD = (SystemRow, CompactionSummaryRow, ProviderCompactionRow)
_TRIGGER_MARGIN = 1.25
"""An estimate so far above a provider's own least input is above it by its count too."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What native items stand for, from the archive: rows and summaries in list order, and the rows' raw tokens."""

    rows: tuple[Row, ...] = ()
    earlier: tuple[CompactionSummaryRow, ...] = ()
    tokens: int = 0


def items_of(rows: Iterable[Row]) -> list[Row]:
    return [r for r in rows if isinstance(r.body, ProviderCompactionRow)]


def behind(services: Services, session: Session, items: Sequence[Row]) -> Behind:
    """N4: the rows that items were made from, and those of the items that these replaced.

    Only the provider that made an item can read it: whoever else writes a summary reads these.
    """
    if not items:
        return Behind()
    discarded = {
        r.record.summary_offset: tuple(expand(r.record.discarded)) for r in services.rewrites(session.key) if r.record
    }
    rows: list[Row] = []
    earlier: list[CompactionSummaryRow] = []
    tokens = 0
    waiting = [item.offset for item in items]
    while waiting:
        stored = services.store.read_rows(session.key, discarded.get(waiting.pop(), ()))
        found = [to_row(r) for r in stored]
        tokens += sum(r.tokens for r in stored if r.kind not in (RowKind.SYSTEM, RowKind.PROVIDER_COMPACTION))
        # What an earlier item stood for is older than what was folded with it.
        rows[:0] = [r for r in found if not isinstance(r.body, _UNTOLD)]
        earlier[:0] = [b for r in found if isinstance(b := r.body, CompactionSummaryRow)]
        waiting += [r.offset for r in items_of(found)]
    return Behind(tuple(rows), tuple(earlier), tokens)


def as_text(
    services: Services, session: Session, items: Sequence[Row], budget: int
) -> tuple[CompactionSummaryRow, ...]:
    """What items stand for, for a compactor, which decides on active rows alone (F12): as an extractive summary."""
    hidden = behind(services, session, items)
    if not hidden.rows:
        return hidden.earlier
    asked = SummaryRequest(hidden.rows, hidden.earlier, budget, appendix=0, coverage_floor=0.0)
    made = services.sources.extractive.summarize(asked)
    return (CompactionSummaryRow(made.text, "", SummarySource.EXTRACTIVE, durable=made.durable),)


def native_model(request: FoldRequest, session: Session) -> ModelRef:
    """Who is to compact: the model that the requests go to, since no other can read the item."""
    last = session.last_prepared.model if session.last_prepared else ModelRef()
    return next((m for m in (request.model, last) if m.model), session.model)


def obstacle(
    services: Services, session: Session, request: FoldRequest, snapshot: Snapshot, plan: FoldPlan,
    rows: Mapping[int, Row],
) -> str:  # fmt: skip
    """Why the provider itself cannot write this fold, so that provider or extractive does (N1, N3); empty if it can."""
    model = native_model(request, session)
    source = services.sources.native
    route = source.route(model) if source is not None else None
    if route is None:
        named = model.provider or "(none)"
        return f"there is no [providers.{named}] of a type with compaction of its own: openai_responses, anthropic"
    found = _known(services, route)
    if found is not None and not found.there:
        return f"{model.model} has no compaction of its own there: {found.reason}"
    wire = session.wire
    if wire is not None and wire.format not in (None, Format.CANONICAL, route.format):
        return f"requests go out as {wire.format}, which carries no item of {model.provider}"
    if request.all_instructions and not route.takes_instructions:
        return f"the compaction of {model.provider} takes no instructions"
    # Without the live request's tools the provider would read another context than the model has (XI8).
    if route.takes_tools and tools_in_sight(services, session) is None:
        return "the tools are not known but by their digest"
    if not _is_prefix(snapshot, plan):
        return "rows that stay stand before rows that fold"
    if not all(_same_way(item.body, route) for item in items_of(rows[o] for o in plan.discard)):
        return "an item of another model or way is among the rows"
    tokens = call_tokens(snapshot, plan, request)
    window = services.model(model).ceiling
    if tokens >= window:
        return f"{tokens} tokens do not fit the call, whose window is {window}"
    if tokens < route.least_tokens * _TRIGGER_MARGIN:
        return f"{tokens} tokens are too few for {route.protocol}, which compacts from {route.least_tokens} on"
    return ""


def _known(services: Services, route: NativeRoute) -> Capability | None:
    found = services.store.native_capability(route)
    # A clock that was set back makes nothing last for years.
    fresh = found is not None and 0 <= services.clock() - found.time < ASK_AGAIN_SECONDS
    return found if fresh else None


def _is_prefix(snapshot: Snapshot, plan: FoldPlan) -> bool:
    """Whether all that folds comes before all that stays, system rows apart.

    An item stands for everything before it: what stayed there would be lost, or the request refused.
    """
    gone = set(plan.discard)
    last = max(i for i, row in enumerate(snapshot.rows) if row.offset in gone)
    return all(row.offset in gone or row.kind is RowKind.SYSTEM for row in snapshot.rows[:last])


def _same_way(item: object, route: NativeRoute) -> bool:
    return (
        isinstance(item, ProviderCompactionRow)
        and item.model == route.model
        and format_of(item) is route.format
        and item.beta in ("", route.protocol)
    )


def _sent(snapshot: Snapshot, plan: FoldPlan) -> list[int]:
    """Offsets of what the provider is given: the rows that fold and every system row, in list order (XI8)."""
    gone = set(plan.discard)
    return [r.offset for r in snapshot.rows if not r.superseded and (r.offset in gone or r.kind is RowKind.SYSTEM)]


def call_tokens(snapshot: Snapshot, plan: FoldPlan, request: FoldRequest) -> int:
    """Estimate of what the provider is given to compact."""
    sent = set(_sent(snapshot, plan))
    return int(sum(r.tokens for r in snapshot.rows if r.offset in sent) * snapshot.factor) + request.tools_tokens


def compact_natively(services: Services, request: FoldRequest, attempt: Attempt) -> SummaryResult:
    """Has the provider compact the rows of a plan, and remembers whether it can (N1, N3).

    Raises:
        SummaryFailed: as ``NativeSource.compact``.
    """
    source, model = services.sources.native, native_model(request, attempt.session)
    route = source.route(model) if source is not None else None
    if source is None or route is None:
        raise SummaryFailed(FailureKind.NATIVE_UNAVAILABLE, "no compaction of the provider's own is configured")
    rows = [attempt.rows[o] for o in _sent(attempt.snapshot, attempt.plan)]
    rendered = render_rows(services, attempt.session, rows, route.format)
    known = _known(services, route)
    policy = request.policy.summary
    task = NativeTask(
        route=route, rendered=rendered.json, instructions=request.all_instructions, known=known is not None,
        tools=(tools_in_sight(services, attempt.session) or b"") if route.takes_tools else b"",
        timeout=policy.timeout, retries=policy.retries, cancelled=lambda: attempt.fold.cancelled,
    )  # fmt: skip
    try:
        made = source.compact(task)
    except SummaryFailed as failure:
        if failure.remember:
            found = Capability(False, failure.detail, services.clock())
            services.store.put_native_capability(route, found)
        raise
    if known is None:
        services.store.put_native_capability(route, Capability(True, "", services.clock()))
    return made


def is_moved(services: Services, live: LiveSession, model: ModelRef, fmt: Format | None) -> bool:
    """N4: whether the list holds an item that a request to ``model`` cannot carry. Under the session's lock."""
    item = _item_of(services, live)
    return item is not None and not (is_readable(item, model, fmt) and _leads(live))


def headers_needed(services: Services, live: LiveSession, model: ModelRef, fmt: Format | None) -> Mapping[str, str]:
    """HTTP headers that a request with this list needs. Under the session's lock."""
    item = _item_of(services, live)
    return {} if item is None or is_moved(services, live, model, fmt) else headers_of([item])


def _item_of(services: Services, live: LiveSession) -> ProviderCompactionRow | None:
    """The active native item, but for what it holds, which may be large and is asked for at every boundary."""
    if not live.native:
        return None
    if live.native_item is None or live.native_item[0] != live.native:
        body = to_row(services.store.read_rows(live.session.key, [live.native])[0]).body
        assert isinstance(body, ProviderCompactionRow)
        live.native_item = live.native, replace(body, item_json="")
    return live.native_item[1]


def _leads(live: LiveSession) -> bool:
    """Whether nothing but system rows stands before the item: an edit may have put other rows there."""
    position = live.ledger.position(live.native)
    return position is not None and all(k == RowKind.SYSTEM for k in live.ledger.slice(0, position)[1])
