"""RecordAnswer and FinishRun: what became of a prepared request (§3.3, L1, 4.3, 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from foldline.commands import usage_marks
from foldline.commands.answer_usage import counted, decoded, of_body, of_messages
from foldline.commands.draft import Draft
from foldline.commands.host_owned import answers
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.inputs import Input, RawMessages, RowsInput, read_input
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, RefusalKind, RunOutcome, StopReason, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.models import Usage
from foldline.domain.rows import AssistantRow, ModelRef, NewRow, ToolCallBlock
from foldline.domain.session import Prepared, Session
from foldline.engine import cadence, factor, readings, refusals
from foldline.engine.runs import close_run, require_open
from foldline.engine.usage import from_response

DID_NOT_FIT = (RefusalKind.CONTEXT_EXCEEDED, RefusalKind.BODY_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer: rows, or the provider's whole response body; usage normalised or raw.

    Attributes:
        partial: a streamed or cancelled answer: text stays, calls without complete arguments go (L1).
    """

    rows: RowsInput | None = None
    response: RawMessages | None = None
    usage: Usage | None = None
    usage_json: bytes = b""
    model: ModelRef = ModelRef()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request: HTTP status and raw body, or a kind the host knows."""

    http_status: int = 0
    raw_body: bytes = b""
    kind: RefusalKind | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    prepare_id: str
    answer: Answer | None = None
    refusal: Refusal | None = None
    finish: RunOutcome | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What recording did. Offsets are 0 where the answer had no rows; ``usage`` is what was read."""

    revision: int
    first_offset: int = 0
    last_offset: int = 0
    usage: Usage | None = None
    counted: bool = False
    refusal: RefusalKind | None = None
    run_closed: bool = False
    warnings: tuple[Warning_, ...] = ()


def record_answer(
    services: Services, caller: Caller, session_id: str, run_id: str, request_id: str, outcome: Outcome
) -> Recorded:
    """Records the outcome of a prepared request; durable when this returns.

    Args:
        run_id: empty for the run that the request was prepared for.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, PREPARE_NOT_FOUND, RUN_NOT_OPEN, FIELD_VALIDATION for a request of another
            run, REQUEST_ID_REUSED, FORMAT_INVALID and what an append refuses.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        found = repeated(services, caller, live.session.key, request_id)
        if found is not None:
            return answer_of(found, Recorded)
        draft = Draft(services, live)
        if run_id and not _needs_no_run(outcome):
            require_open(draft.session, run_id)
        recorded = record(draft, outcome, run_id)
        draft.commit(remember(services, caller, request_id, recorded))
        return recorded


def finish_run(
    services: Services, caller: Caller, session_id: str, run_id: str, request_id: str, outcome: RunOutcome
) -> int:
    """Closes the open run; a failed run's request rows stay committed (§3.4). Returns the revision.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, RUN_NOT_OPEN, REQUEST_ID_REUSED.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        found = repeated(services, caller, live.session.key, request_id)
        if found is not None:
            return answer_of(found, int)
        draft = Draft(services, live)
        require_open(draft.session, run_id)
        finish(draft, outcome)
        draft.commit(remember(services, caller, request_id, draft.session.revision))
        return draft.session.revision


def finish(draft: Draft, outcome: RunOutcome) -> None:
    draft.session, closed = close_run(draft.session, outcome)
    draft.close_run(closed)


def _needs_no_run(outcome: Outcome) -> bool:
    """Whether an outcome says something only of its request, as usage alone (L1) and a refusal do (4.4).

    It may come when its run is closed: whoever ends a run and then says why it failed has said it.
    """
    answer = outcome.answer
    usage_alone = answer is not None and answer.response is None and not answer.rows
    return outcome.refusal is not None or (usage_alone and outcome.finish is None)


def record(draft: Draft, outcome: Outcome, run_id: str = "") -> Recorded:
    """Puts an outcome into a draft; the caller commits.

    Args:
        run_id: the run that the request must have been prepared for, if one is named.

    Raises:
        FoldlineError: PREPARE_NOT_FOUND, RUN_NOT_OPEN, FIELD_VALIDATION, FORMAT_INVALID and what an append refuses.
    """
    session, services = draft.session, draft.services
    prepared = _prepared(services, session, outcome.prepare_id)
    if run_id and run_id != prepared.run_id:
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            f"request {prepared.prepare_id} was prepared for run {prepared.run_id}, not {run_id}",
            field="run_id", value=run_id, range=prepared.run_id,
        )  # fmt: skip
    run = session.open_run
    if not _needs_no_run(outcome):
        run = require_open(session, prepared.run_id)
    if run is not None and run.run_id == prepared.run_id:
        draft.session = replace(session, open_run=replace(run, last_active=draft.now))
    before = len(draft.warnings)
    recorded = Recorded(session.revision)
    if outcome.answer is not None:
        recorded = _answer(draft, prepared, outcome.answer)
    elif outcome.refusal is not None:
        recorded = _refusal(draft, prepared, outcome.refusal)
    run = draft.session.open_run
    if outcome.finish is not None and run is not None and run.run_id == prepared.run_id:
        finish(draft, outcome.finish)
    return replace(
        recorded,
        revision=draft.session.revision,
        run_closed=draft.session.open_run is None or draft.session.open_run.run_id != prepared.run_id,
        warnings=(*recorded.warnings, *draft.warnings[before:]),
    )


def _prepared(services: Services, session: Session, prepare_id: str) -> Prepared:
    if session.last_prepared is not None and session.last_prepared.prepare_id == prepare_id:
        return session.last_prepared
    found = services.store.find_prepared(session.key, prepare_id)
    if found is None:
        raise FoldlineError(
            Reason.PREPARE_NOT_FOUND, f"no request {prepare_id} was prepared in this session in the last 24 h",
            prepare_id=prepare_id,
        )  # fmt: skip
    return found


def _answer(draft: Draft, prepared: Prepared, answer: Answer) -> Recorded:
    services, hosted = draft.services, answers.keeps_rows(draft.session)
    if hosted and answer.rows:
        raise answers.refuse_rows()
    given = read_input(services, answer.rows)
    rows, warnings = given.rows, given.warnings
    if answer.response is not None:
        parsed = services.formats.parse_response(answer.response.format, answer.response.json)
        rows, warnings = () if hosted else parsed.rows, parsed.warnings
    only_appends = prepared.rewrites == draft.session.rewrites and (
        not hosted or answers.describes_list(draft, prepared)
    )
    kept, dropped = complete_rows(rows, partial=answer.partial)
    model = answer.model if answer.model.model else prepared.model
    first, last = draft.append([_with_model(r, model) for r in kept], prepared.run_id)
    usage = _usage(services, answer, given, model)
    if model != prepared.model:
        # Who answered instead has a window, and a factor, of its own.
        prepared = replace(prepared, model=model, window=services.model(model).context_window)
    raw_tokens = prepared.request_tokens
    known = services.factor_of(draft.session, model)
    estimate = factor.apply(known, raw_tokens)
    record, verdict = readings.answered(
        draft.session.cadence,
        prepared,
        usage,
        revisions_only_appends=only_appends,
        estimate=estimate,
        media_tokens=factor.apply(known, prepared.media_tokens),
        answer_tokens=0 if dropped else sum(r.tokens for r in draft.rows if first <= r.offset <= last),
    )
    if hosted:
        record = answers.covering(record, prepared, draft.session.cadence)
    draft.session = _counted_once(replace(draft.session, cadence=record), prepared, usage)
    if usage_marks.enabled(services, draft.session):
        draft.session = usage_marks.made_by(draft.session, first or 1, last, prepared.prepare_id)
        if verdict.input_tokens and verdict.warning is not WarningCode.USAGE_AGGREGATED:
            draft.session = usage_marks.reported(draft.session, prepared.prepare_id, verdict.input_tokens)
    if verdict.warning is not None:
        draft.warn(
            verdict.warning,
            _verdict_text(verdict, estimate, prepared),
            event=verdict.warning != WarningCode.USAGE_MISSING,
        )
    if verdict.learn and verdict.input_tokens and not prepared.metered and (only_appends or not hosted):
        shared = services.factor(draft.session.tenant, model)
        draft.learn(factor.learn(shared, raw_tokens, verdict.input_tokens))
    return Recorded(draft.session.revision, first, last, usage, verdict.counted, warnings=(*warnings, *dropped))


def _with_model(new: NewRow, model: ModelRef) -> NewRow:
    body = new.body
    if isinstance(body, AssistantRow) and not body.model.model:
        return msgspec.structs.replace(new, body=msgspec.structs.replace(body, model=model))
    return new


def _counted_once(session: Session, prepared: Prepared, usage: Usage | None) -> Session:
    """The session's totals with this answer: usage may come in a second call for the same request (L1)."""
    metered = prepared.metered or (usage is not None and bool(usage.input_tokens))
    last = session.last_prepared
    if last is not None and last.prepare_id == prepared.prepare_id:
        last = replace(last, answered=True, metered=metered)
    session = replace(session, last_prepared=last)
    return counted(session, None if prepared.metered else usage, calls=int(not prepared.answered))


def _usage(services: Services, answer: Answer, given: Input, model: ModelRef) -> Usage | None:
    """As the host states it, else as the provider reported it: apart, in the response, or on its message."""
    if answer.usage is not None:
        return answer.usage
    info = services.model(model)
    if answer.usage_json:
        return from_response(info.type, decoded(answer.usage_json), info.prices) or Usage()
    if answer.response is not None:
        return of_body(answer.response.json, info)
    return of_messages(services, model, given.usages)


def _verdict_text(verdict: readings.UsageVerdict, estimate: int, prepared: Prepared) -> str:
    count = verdict.input_tokens
    if verdict.warning == WarningCode.USAGE_OUTLIER:
        return (
            f"the provider's count of {count} is no reading of this request: estimated {estimate} tokens, "
            f"{prepared.request_bytes} bytes, window {prepared.window}"
        )
    if verdict.warning == WarningCode.USAGE_AGGREGATED:
        return f"the usage of {count} input tokens sums several calls and is no reading"
    return "the answer's usage names no input tokens: unknown"


def complete_rows(rows: Sequence[NewRow], *, partial: bool) -> tuple[list[NewRow], list[Warning_]]:
    """Drops calls without complete arguments of a partial answer (L1), and what an error left empty (R4)."""
    kept: list[NewRow] = []
    warnings: list[Warning_] = []
    for new in rows:
        body = new.body
        if isinstance(body, AssistantRow) and partial:
            whole = tuple(b for b in body.content if not isinstance(b, ToolCallBlock) or _is_json(b.arguments_json))
            if len(whole) < len(body.content):
                lost = [b.call_id for b in body.content if isinstance(b, ToolCallBlock) and b not in whole]
                warnings.append(
                    Warning_(
                        WarningCode.PARTIAL_CALLS_DROPPED,
                        f"calls {lost} of a partial answer have no complete arguments",
                    )
                )
                body = msgspec.structs.replace(body, content=whole)
                new = msgspec.structs.replace(new, body=body)
        broken = isinstance(body, AssistantRow) and (
            partial or body.stop_reason in (StopReason.ERROR, StopReason.ABORTED)
        )
        if broken and isinstance(body, AssistantRow) and not body.content:
            warnings.append(
                Warning_(WarningCode.MESSAGE_DROPPED, "an answer that ended before its first block is dropped")
            )
            continue
        kept.append(new)
    return kept, warnings


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _refusal(draft: Draft, prepared: Prepared, refusal: Refusal) -> Recorded:
    """Takes a refusal; the fact it sets is one of the last request only (P6), a reading it is of any (4.4)."""
    classified = refusals.classify(refusal.http_status, refusal.raw_body, prepared.model.provider)
    kind = refusal.kind or classified.kind
    if kind in DID_NOT_FIT and prepared.boundary >= draft.session.cadence.boundaries - 1:
        record = cadence.refused(draft.session.cadence, kind, classified.named_tokens)
        draft.session = replace(draft.session, cadence=record)
        draft.event(
            EventKind.DID_NOT_FIT_RECORDED, run_id=prepared.run_id, cause="refused", refusal=kind,
            tokens=classified.named_tokens or 0, limit=classified.named_limit,
        )  # fmt: skip
    if kind is RefusalKind.CONTEXT_EXCEEDED:
        shared = draft.services.factor(draft.session.tenant, prepared.model)
        learned = factor.learn_refusal(shared, prepared, classified.named_tokens, classified.named_limit)
        if learned is not shared:
            draft.learn(learned)
    if draft.session.open_run is not None and draft.session.open_run.run_id == prepared.run_id:
        finish(draft, RunOutcome.FAILED)
    return Recorded(draft.session.revision, refusal=kind)
