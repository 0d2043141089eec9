"""PrepareRequest: the one call an agent makes before each model call (§3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from foldline.commands import ahead
from foldline.commands.attempts import note_skip
from foldline.commands.draft import Draft
from foldline.commands.enter_run import enter_run
from foldline.commands.fold import by_now, run_fold
from foldline.commands.fold_parts import FoldOutcome, FoldRequest
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.inputs import Input, RawMessages, RowsInput, read_input
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.live_request import wire_of
from foldline.commands.measuring import Exact, RequestShape, measurement, tools_of
from foldline.commands.native import headers_needed, is_moved
from foldline.commands.ownership import sidecar_owned
from foldline.commands.record_answer import Outcome, record
from foldline.commands.render_transcript import ENDS_ON_ASSISTANT
from foldline.commands.reply import (
    Bounds,
    Content,
    Reply,
    bound_results,
    content_of,
    exact_of,
    host_exact,
    own_rows,
    stable_prefix,
)
from foldline.commands.services import Caller, Services
from foldline.commands.sessions import require_revision
from foldline.commands.sources import awake, is_compacted, is_external, is_paid
from foldline.domain.changes import replace
from foldline.domain.enums import (
    Action,
    EventKind,
    FailureKind,
    ReadingSource,
    ReplyMode,
    RowKind,
    SkipReason,
    WarningCode,
)
from foldline.domain.events import BoundedResult, Warning_
from foldline.domain.folding import CompactionRecord, is_paused
from foldline.domain.models import Usage
from foldline.domain.policy import Layer, Policy
from foldline.domain.ports import Tools
from foldline.domain.pressure import Limits, PressureReport
from foldline.domain.rows import AssistantRow, ModelRef, calls_of
from foldline.domain.session import OpenRun, Prepared, Session
from foldline.engine import cadence
from foldline.engine.appending import mark_sent
from foldline.engine.cadence import Decision
from foldline.engine.limits import limits as limits_of
from foldline.engine.pressure import Measurement, measure, over_hard_limit

T = TypeVar("T")

_LEFT_OUT = "what another model compacted could not be summarized again; the request goes out without it"
_JOINED = Warning_(WarningCode.FOLD_JOINED, "another caller's fold was waited for")


@dataclass(frozen=True, slots=True)
class Prepare:
    """One boundary. ``known_revision`` is that of the list the host holds, for ``EDITS`` (W1)."""

    session_id: str
    run_id: str
    request_id: str = ""
    expected_revision: int | None = None
    supersede_open_run: bool = False
    previous_answer: Outcome | None = None
    append: RowsInput | None = None
    shape: RequestShape = RequestShape()
    reply: Reply = Reply()
    override: Layer | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What a boundary decided and measured: everything of its answer but the rows themselves.

    Attributes:
        sent: pressure as sent, None where it is as checked.
        first_offset, last_offset: of the rows that came with the call, the answer's included; 0 where there are none.
        headers: of HTTP, which the request needs beside the host's own (§12).
    """

    revision: int
    prepare_id: str
    action: Action
    checked: PressureReport
    sent: PressureReport | None
    bounded: tuple[BoundedResult, ...] = ()
    fold: CompactionRecord | None = None
    skip: SkipReason | None = None
    fold_pending: bool = False
    stable_prefix_rows: int = 0
    failure: FailureKind | None = None
    last_usage: Usage | None = None
    usage_counted: bool = False
    first_offset: int = 0
    last_offset: int = 0
    warnings: tuple[Warning_, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    decided: Decided
    content: Content


@dataclass(frozen=True, slots=True)
class _Entered:
    """What the first try of a boundary wrote; a repeat says the same of it (W2).

    Attributes:
        first_offset, last_offset: of the rows that came with the call, the answer's included; 0 where there are none.
    """

    first_offset: int = 0
    last_offset: int = 0
    last_usage: Usage | None = None
    usage_counted: bool = False


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a repeat of the request id finds: nothing decided yet, or a decision to give again (W2)."""

    entered: _Entered
    decided: Decided | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    """The request as it would be sent now, before its results are bounded (B5)."""

    exact: Exact
    known: Measurement
    report: PressureReport


@dataclass(slots=True)
class _Boundary:
    """One boundary while it is worked on."""

    request: Prepare
    policy: Policy
    limits: Limits
    tools: Tools
    entered: _Entered
    warnings: list[Warning_]


def prepare_request(services: Services, caller: Caller, request: Prepare, encode: Callable[[PreparedRequest], T]) -> T:
    """Appends, measures, folds if due, bounds, and answers with what to send (§3.1). Durable when this returns.

    Args:
        encode: makes the answer that is returned, before what it tells of is committed: it refuses one that cannot be
            sent (W5).

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REVISION_MISMATCH, REQUEST_ID_REUSED, RUN_ALREADY_OPEN (L4), RUN_NOT_OPEN (L5,
            or a closed run's id), PREPARE_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION, FORMAT_INVALID and what an append
            refuses. In every case nothing was written: once the rows are in, the call is answered, also
            where another caller closed its run meanwhile. What ``encode`` raises; after a fold the rows are in then,
            and a repeat of the request appends nothing.
    """
    appended = read_input(services, request.append)
    with services.sessions.use(caller.tenant, request.session_id) as live:
        with live.locked():
            sidecar_owned(live.session)
            asked = request.shape.model if request.shape.model.model else live.session.model
            request = replace(request, reply=replace(request.reply, model=asked))
            seen = _seen(services, caller, live, request)
            if seen is not None and seen.decided is not None:
                return encode(_again(services, live, request, seen.decided))
            draft = Draft(services, live)
            boundary = _boundary(services, draft, request, appended.warnings, seen)
            exact = host_exact(services, live, request.reply, request.shape)
            if seen is None:
                require_revision(live.session, request.expected_revision)
                _enter(services, draft, boundary, appended)
            exact = exact_of(services, draft, request.reply, boundary.limits, request.shape, boundary.tools, exact)
            known = measurement(services, draft, request.shape, boundary.tools, exact)
            report = measure(known, draft.session.cadence, boundary.limits)
            decision = cadence.decide(
                report, draft.session.cadence, boundary.policy, now=draft.now, deadline_left=caller.left(),
                paid=is_paid(services, boundary.policy) and not ahead.is_ready(live),
                external=is_external(services, boundary.policy),
            )  # fmt: skip
            is_open = _own_run(draft.session, request.run_id) is not None
            restates = is_open and is_moved(services, live, known.model, request.reply.format)
            if restates and not decision.fold and decision.skip is not SkipReason.DEADLINE:
                decision = cadence.restating(decision)
            if not decision.fold or not is_open:
                if is_open and decision.skip is not None:
                    note_skip(draft, decision, boundary.policy, decision.skip)
                outcome = FoldOutcome(skip=decision.skip if is_open else None)
                now = _Measured(exact, known, report)
                return _answer(services, caller, live, draft, boundary, decision, outcome, now, encode)
            draft.commit(remember(services, caller, request.request_id, _Remembered(boundary.entered)))
            before = live.transcript_size()
        due = replace(_fold_request(boundary, decision, known.model), at_most=boundary.policy.fold_wait)
        outcome = run_fold(services, live, due, wait=caller.left)
        if restates and not decision.restates and outcome.record is None and outcome.pending is None:
            # Nothing was folded, and the item of another model is still there: the request cannot carry it (N4).
            due = replace(due, decision=cadence.restating(decision))
            restated = run_fold(services, live, due, wait=caller.left)
            outcome = restated if restated.record is not None or restated.pending is not None else outcome
        if outcome.joined and outcome.pending is None:
            outcome = _after_joining(services, caller, live, boundary, outcome, (exact, before, report.factor))
        with live.locked():
            # A host whose line broke may have repeated the call meanwhile: what that was told holds (W2).
            seen = _seen(services, caller, live, request)
            if seen is not None and seen.decided is not None:
                return encode(_again(services, live, request, seen.decided))
            if outcome.pending is not None:
                # It may have committed between the wait and now: the list that is answered with is the folded one then.
                outcome = by_now(outcome, due)
            after = live.transcript_size()
            exact = exact.shifted(round((after[0] - before[0]) * report.factor), after[1] - before[1])
            boundary.warnings += [*draft.warnings, *outcome.warnings]
            if outcome.joined and outcome.pending is None:
                boundary.warnings.append(_JOINED)
            draft = Draft(services, live)
            exact = exact_of(services, draft, request.reply, boundary.limits, request.shape, boundary.tools, exact)
            known = measurement(services, draft, request.shape, boundary.tools, exact)
            now = _Measured(exact, known, measure(known, draft.session.cadence, boundary.limits))
            return _answer(services, caller, live, draft, boundary, decision, outcome, now, encode)


def _after_joining(
    services: Services, caller: Caller, live: LiveSession, boundary: _Boundary, joined: FoldOutcome,
    stated: tuple[Exact, tuple[int, int], float],
) -> FoldOutcome:  # fmt: skip
    """The fold that was waited for was planned on a shorter list, or failed: one of this boundary's own may be due.

    Only where the request is still over W or the byte limit (C7): it must not go out so while a fold could help.

    Args:
        stated: what the host stated, of the list of that size, at that factor.
    """
    request, policy, (exact, before, factor) = boundary.request, boundary.policy, stated
    with live.locked():
        draft = Draft(services, live)
        after = live.transcript_size()
        exact = exact.shifted(round((after[0] - before[0]) * factor), after[1] - before[1])
        known = measurement(services, draft, request.shape, boundary.tools, exact)
        decision = cadence.decide(
            measure(known, draft.session.cadence, boundary.limits), draft.session.cadence, policy, now=draft.now,
            deadline_left=caller.left(), paid=is_paid(services, policy) and not ahead.is_ready(live),
            external=is_external(services, policy),
        )  # fmt: skip
        is_open = _own_run(draft.session, request.run_id) is not None
    if not (is_open and decision.fold and over_hard_limit(decision.report)):
        return joined
    asked = replace(_fold_request(boundary, decision, known.model), at_most=policy.fold_wait)
    own = run_fold(services, live, asked, wait=caller.left)
    if own.record is None and joined.record is not None:
        return joined
    boundary.warnings.append(_JOINED)
    return own


def _seen(services: Services, caller: Caller, live: LiveSession, request: Prepare) -> _Remembered | None:
    found = repeated(services, caller, live.session.key, request.request_id)
    return answer_of(found, _Remembered) if found else None


def _boundary(
    services: Services, draft: Draft, request: Prepare, warnings: Sequence[Warning_], seen: _Remembered | None
) -> _Boundary:
    session = draft.session
    model = request.shape.model if request.shape.model.model else session.model
    info = services.model(model)
    if not info.known:
        draft.warn(
            WarningCode.UNKNOWN_MODEL, f"model {model.model} is not in the catalog: its default window of "
            f"{info.context_window} tokens is used", once=True, event=True,
        )  # fmt: skip
    policy = services.policy(session, request.override).policy
    limits = limits_of(policy, info, request.shape.output_reserve_tokens)
    tools, new = tools_of(services, session, request.shape)
    sent_as = request.reply.format or (request.append.format if isinstance(request.append, RawMessages) else None)
    wire = wire_of(session.wire, policy, model, sent_as, tools)
    json = None if wire is None or tools.kept else request.shape.tools_json
    if new or json is not None:
        draft.know_tools(tools, json)
    if wire != session.wire:
        draft.session = replace(draft.session, wire=wire)
    draft.session = awake(services, policy, draft.session)
    entered = seen.entered if seen else _Entered()
    return _Boundary(request, policy, limits, tools, entered, list(warnings))


def _enter(services: Services, draft: Draft, boundary: _Boundary, appended: Input) -> None:
    """Takes the previous answer, the run and the new rows, and counts the boundary (§3.1, L4, L5)."""
    request = boundary.request
    usage, counted = None, False
    if request.previous_answer is not None:
        recorded = record(draft, request.previous_answer)
        usage, counted = recorded.usage, recorded.counted
        boundary.warnings += [w for w in recorded.warnings if w not in draft.warnings]
    enter_run(
        services, draft, appended, request.run_id, supersede=request.supersede_open_run, ttl=boundary.policy.run_ttl
    )
    first, last = (draft.rows[0].offset, draft.rows[-1].offset) if draft.rows else (0, 0)
    boundary.entered = _Entered(first, last, usage, counted)
    counted_now = cadence.count_boundary(draft.session.cadence)
    draft.session = replace(
        draft.session, cadence=cadence.transcript_grew(counted_now, draft.size()[0], boundary.policy)
    )


def _answer(
    services: Services, caller: Caller, live: LiveSession, draft: Draft, boundary: _Boundary, decision: Decision,
    outcome: FoldOutcome, measured: _Measured, encode: Callable[[PreparedRequest], T],
) -> T:  # fmt: skip
    """Bounds, judges (L3), encodes, commits and answers."""
    request, limits = boundary.request, boundary.limits
    exact, known, report = measured.exact, measured.known, measured.report
    run = _own_run(draft.session, request.run_id)
    if run is None:
        message = f"run {request.run_id} was closed before its request was answered"
        boundary.warnings.append(Warning_(WarningCode.RUN_SUPERSEDED, message))
    bound = bound_results(services, draft, run, boundary.policy, limits, report, known.model)
    if bound.results:
        exact = exact.shifted(bound.tokens_saved * -1, bound.bytes_saved * -1)
        exact = exact_of(services, draft, request.reply, limits, request.shape, boundary.tools, exact, bound.texts)
        report = measure(
            replace(
                known, exact_tokens=exact.tokens, exact_bytes=exact.bytes, exact_source=exact.tokens_source,
                exact_bytes_source=exact.bytes_source,
                transcript_tokens=known.transcript_tokens - bound.tokens_saved,
                transcript_bytes=known.transcript_bytes - bound.bytes_saved,
            ),
            draft.session.cadence, limits,
        )  # fmt: skip
    action, over = _judge(report, limits, folded=outcome.record is not None)
    record = draft.session.cadence
    if over and action is not Action.TOO_LARGE:
        boundary.warnings.append(Warning_(WarningCode.FORECAST_OVER_WINDOW, _numbers(report)))
    if outcome.record is not None and record.left_tokens is not None and record.left_tokens >= limits.threshold:
        draft.warn(
            WarningCode.HISTORY_OVER_THRESHOLD,
            f"a fold left {record.left_tokens} tokens of {limits.threshold}: raise the threshold, shorten the system "
            "rows, or use a model with a larger window", once=True, event=True,
        )  # fmt: skip
    _note_bounds(draft, boundary, bound, action, report.forecast_tokens)
    renders = request.reply.mode is ReplyMode.WHOLE and request.reply.format is not None
    if not renders and _ends_on_assistant(services, live, draft):
        draft.warn(WarningCode.ENDS_ON_ASSISTANT, ENDS_ON_ASSISTANT)
    if is_moved(services, live, known.model, request.reply.format):
        draft.warn(WarningCode.NATIVE_ITEM_LEFT_OUT, _LEFT_OUT)
    prepare_id = f"p-{uuid.uuid4().hex}"
    position = _first_bounded(live, draft, bound.results)
    stable = stable_prefix(services, live, draft, position)
    if action is not Action.TOO_LARGE:
        draft.session = mark_sent(draft.session)
    tokens, _ = draft.size()
    run = draft.session.open_run
    beside = request.shape.beside_tokens(boundary.tools, known.factor)
    draft.session = replace(draft.session, prepared_through=draft.session.next_offset - 1)
    draft.prepare(
        Prepared(
            prepare_id=prepare_id, run_id=request.run_id, revision=draft.session.revision,
            boundary=draft.session.cadence.boundaries - 1, rewrites=draft.session.rewrites,
            rows=len(live.ledger) + len(draft.rows), covered_tokens=tokens,
            request_tokens=tokens - bound.tokens_saved + beside, request_bytes=report.body_bytes,
            bounded=bool(bound.results), beside_tokens=beside,
            beside_bytes=request.shape.beside_bytes(boundary.tools),
            model=known.model, window=services.model(known.model).context_window, ceiling=limits.ceiling,
            media_tokens=draft.session.media_tokens, first_bounded=position,
            paused=_position(live, draft, run.paused) if run is not None and run.paused else None,
        )
    )  # fmt: skip
    entered = boundary.entered
    own = own_rows(entered.first_offset, entered.last_offset)
    content = content_of(services, live, draft, request.reply, own, bound.texts, rendered=exact.rendered)
    decided = Decided(
        revision=draft.session.revision,
        prepare_id=prepare_id,
        action=action,
        checked=decision.report,
        sent=None if report == decision.report else report,
        bounded=bound.results,
        fold=outcome.record,
        skip=outcome.skip,
        fold_pending=live.fold is not None,
        stable_prefix_rows=stable,
        failure=outcome.failure,
        last_usage=entered.last_usage,
        usage_counted=entered.usage_counted,
        first_offset=entered.first_offset,
        last_offset=entered.last_offset,
        warnings=(*boundary.warnings, *draft.warnings, *content.warnings),
        headers=headers_needed(services, live, known.model, request.reply.format),
    )
    # A request that was too large or skipped its fold is measured again when it is repeated (W2).
    again = action is Action.TOO_LARGE or outcome.skip is not None
    remembered = _Remembered(entered, None if again else decided)
    answer = encode(PreparedRequest(decided, content))
    draft.commit(remember(services, caller, request.request_id, remembered))
    if action is not Action.TOO_LARGE:
        ahead.consider(services, live, _fold_request(boundary, replace(decision, report=report), known.model))
    return answer


def _fold_request(boundary: _Boundary, decision: Decision, model: ModelRef) -> FoldRequest:
    return FoldRequest(
        decision=decision, policy=boundary.policy, limits=boundary.limits, model=model,
        tools_tokens=decision.report.parts.tools, tools_bytes=boundary.request.shape.beside_bytes(boundary.tools),
    )  # fmt: skip


def _own_run(session: Session, run_id: str) -> OpenRun | None:
    """The open run, where it is the one that asks."""
    run = session.open_run
    return run if run is not None and run.run_id == run_id else None


def _ends_on_assistant(services: Services, live: LiveSession, draft: Draft) -> bool:
    """Whether what would be rendered ends on an assistant message, as ``engine.render`` says it (R5)."""
    last = next((r for r in reversed(draft.rows) if r.kind != RowKind.SYSTEM), None)
    if last is None:
        offset = live.last_of_other_kind(RowKind.SYSTEM)
        last = services.store.read_rows(draft.session.key, [offset])[0] if offset else None
    if last is None or last.kind != RowKind.ASSISTANT:
        return False
    body = to_row(last).body
    # Calls end on their results or on placeholders, a paused row is still to be continued.
    return isinstance(body, AssistantRow) and not calls_of(body) and not is_paused(body)


def _judge(report: PressureReport, limits: Limits, *, folded: bool) -> tuple[Action, bool]:
    """L3: TOO_LARGE only by an exact count or exact bytes; whether the request is over either limit at all."""
    tokens_over = report.forecast_tokens > limits.input_budget
    bytes_over = limits.body_cap is not None and report.body_bytes > limits.body_cap
    exact = (tokens_over and report.forecast_source is ReadingSource.EXACT) or (
        bytes_over and report.bytes_source is ReadingSource.EXACT
    )
    if exact:
        return Action.TOO_LARGE, True
    return (Action.SEND_FOLDED if folded else Action.SEND), tokens_over or bytes_over


def _numbers(report: PressureReport) -> str:
    parts, limits = report.parts, report.limits
    return (
        f"forecast {report.forecast_tokens} of {limits.input_budget} tokens, {report.body_bytes} body bytes: "
        f"system {parts.system}, tools {parts.tools}, request {parts.request}, rounds {parts.rounds}, "
        f"results {parts.results}, pinned {parts.pinned}, history {parts.history}"
    )


def _note_bounds(draft: Draft, boundary: _Boundary, bound: Bounds, action: Action, tokens: int) -> None:
    """B3, B4, L3: the event, and the did-not-fit fact; while automatic compaction is off a bound does not set it."""
    run, results = _own_run(draft.session, boundary.request.run_id), bound.results
    if results:
        draft.event(
            EventKind.TOOL_RESULTS_BOUNDED_FOR_REQUEST, run_id=run.run_id if run else "",
            bounded=tuple(replace(r, text="") for r in results), limit=bound.limit,
            cause="bytes" if bound.by_bytes else "tokens",
        )  # fmt: skip
    too_large = action is Action.TOO_LARGE
    # F12: a compactor's plan must not be overruled because results were bounded.
    compacts = is_compacted(draft.services, boundary.policy, draft.session)
    if too_large or (boundary.policy.auto_compact and results and not compacts):
        cause = "too_large" if too_large else "bounded"
        if draft.session.cadence.did_not_fit is None:
            draft.event(EventKind.DID_NOT_FIT_RECORDED, run_id=run.run_id if run else "", cause=cause, tokens=tokens)
        draft.session = replace(draft.session, cadence=cadence.did_not_fit(draft.session.cadence, cause))


def _first_bounded(live: LiveSession, draft: Draft, results: tuple[BoundedResult, ...]) -> int | None:
    found = [_position(live, draft, r.offset) for r in results]
    return min((p for p in found if p is not None), default=None)


def _position(live: LiveSession, draft: Draft, offset: int) -> int | None:
    """List position of a row of the draft's transcript."""
    fresh = next((i for i, r in enumerate(draft.rows) if r.offset == offset), None)
    return live.ledger.position(offset) if fresh is None else len(live.ledger) + fresh


def _again(services: Services, live: LiveSession, request: Prepare, decided: Decided) -> PreparedRequest:
    """A repeated answer, with the rows of its revision and the texts it shortened."""
    texts = {b.offset: b.text for b in decided.bounded}
    own = own_rows(decided.first_offset, decided.last_offset)
    content = content_of(services, live, None, request.reply, own, texts, revision=decided.revision)
    return PreparedRequest(decided, content)
