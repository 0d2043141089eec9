"""The steps of a model call, as the unary RPCs and the streams of ``AttachSession`` take them: one function each."""

from __future__ import annotations

from foldline.commands import append_rows as appending
from foldline.commands.check_pressure import check_pressure
from foldline.commands.prepare_request import Prepare, PreparedRequest, prepare_request
from foldline.commands.record_answer import finish_run, record_answer
from foldline.commands.reply import Content, Reply
from foldline.commands.services import Services
from foldline.domain.enums import Action, ReplyMode
from foldline.domain.events import Warning_
from foldline.server.codec.basics import enum_map, wire_usage, wire_warnings
from foldline.server.codec.policy import layer
from foldline.server.codec.pressure import shape_of, wire_report
from foldline.server.codec.records import FAILURES, REFUSALS, SKIPS, wire_bounded, wire_record, wire_splices
from foldline.server.codec.rows import FORMATS, rows_input, wire_rows
from foldline.server.codec.sessions import OUTCOMES, outcome_of, wire_recorded
from foldline.server.errors import too_large
from foldline.server.servicers import hosted
from foldline.server.servicers.base import Waiting, caller_of, optional
from foldline.v1 import compaction_pb2, model_pb2, session_service_pb2
from foldline.v1 import compaction_service_pb2 as pb

ACTIONS = enum_map(compaction_pb2.Action, Action, "ACTION")
REPLIES = enum_map(compaction_pb2.ReplyMode, ReplyMode, "REPLY_MODE")

_HOW_TO_ANSWER = ("reply", "format", "known_revision")
"""What of a PrepareRequest a repeat may ask for in another way (W2): it changes nothing of what is done."""


def prepare(
    services: Services, request: pb.PrepareRequestRequest, context: Waiting, max_bytes: int, known: int | None = None
) -> pb.PrepareRequestResponse:
    """PrepareRequest.

    Args:
        max_bytes: what an answer may have (W5).
        known: the revision that the host is known to hold, where the request names none.

    Raises:
        FoldlineError: MESSAGE_TOO_LARGE, and what the command raises.
    """
    caller = caller_of(request, context, "PrepareRequest", apart_from=_HOW_TO_ANSWER)

    def encode(prepared: PreparedRequest) -> pb.PrepareRequestResponse:
        made = _response(prepared)
        if _holds_bodies(prepared.content) and (size := made.ByteSize()) > max_bytes:
            raise too_large("answer", size, max_bytes)
        return made

    return prepare_request(services, caller, _prepare(request, known), encode)


def record(services: Services, request: pb.RecordAnswerRequest, context: Waiting) -> pb.RecordAnswerResponse:
    recorded = record_answer(
        services, caller_of(request, context, "RecordAnswer"), request.session_id, request.run_id,
        request.request_id, outcome_of(request.outcome, "outcome"),
    )  # fmt: skip
    return pb.RecordAnswerResponse(
        revision=recorded.revision, first_offset=recorded.first_offset, last_offset=recorded.last_offset,
        usage=wire_recorded(recorded), refusal=REFUSALS.wire(recorded.refusal), run_closed=recorded.run_closed,
        warnings=wire_warnings(recorded.warnings),
    )  # fmt: skip


def finish(services: Services, request: pb.FinishRunRequest, context: Waiting) -> pb.FinishRunResponse:
    revision = finish_run(
        services, caller_of(request, context, "FinishRun"), request.session_id, request.run_id,
        request.request_id, OUTCOMES.domain(request.outcome),
    )  # fmt: skip
    return pb.FinishRunResponse(revision=revision)


def append(
    services: Services, request: session_service_pb2.AppendRowsRequest, context: Waiting
) -> session_service_pb2.AppendRowsResponse:
    rows = rows_input(request.input, "input")
    assert rows is not None
    appended = appending.append_rows(
        services, caller_of(request, context, "AppendRows"),
        appending.Append(
            request.session_id, rows, request.run_id, request.request_id, optional(request, "expected_revision")
        ),
    )  # fmt: skip
    return session_service_pb2.AppendRowsResponse(
        revision=appended.revision, first_offset=appended.first_offset, last_offset=appended.last_offset,
        warnings=wire_warnings(appended.warnings),
    )  # fmt: skip


def check(services: Services, request: pb.CheckPressureRequest, context: Waiting) -> pb.CheckPressureResponse:
    warnings: tuple[Warning_, ...] = ()
    if request.HasField("transcript"):
        pressure, warnings = hosted.check(services, request, context)
    else:
        pressure = check_pressure(
            services, caller_of(request, context, "CheckPressure"), request.session_id, shape_of(request.shape),
            layer(request.override), optional(request, "known_revision"),
        )  # fmt: skip
    return pb.CheckPressureResponse(
        pressure=wire_report(pressure.report), fold_due=pressure.decision.fold,
        skip=SKIPS.wire(pressure.decision.skip), revision=pressure.revision, warnings=wire_warnings(warnings),
    )  # fmt: skip


def _prepare(request: pb.PrepareRequestRequest, known: int | None) -> Prepare:
    return Prepare(
        session_id=request.session_id,
        run_id=request.run_id,
        request_id=request.request_id,
        expected_revision=optional(request, "expected_revision"),
        supersede_open_run=request.supersede_open_run,
        previous_answer=(
            outcome_of(request.previous_answer, "previous_answer") if request.HasField("previous_answer") else None
        ),
        append=rows_input(request.append, "append") if request.HasField("append") else None,
        shape=shape_of(request.shape),
        reply=Reply(
            mode=REPLIES.domain(request.reply) or ReplyMode.WHOLE,
            format=FORMATS.domain(request.format),
            known_revision=request.known_revision if request.HasField("known_revision") else known,
        ),
        override=layer(request.override) if request.HasField("override") else None,
    )


def _holds_bodies(content: Content) -> bool:
    """Whether an answer may be large: splices of the host's own rows name offsets alone."""
    return bool(content.rows or content.rendered or any(s.rows for s in content.splices or ()))


def _response(prepared: PreparedRequest) -> pb.PrepareRequestResponse:
    decided, content = prepared.decided, prepared.content
    checked = wire_report(decided.checked)
    made = pb.PrepareRequestResponse(
        revision=decided.revision,
        prepare_id=decided.prepare_id,
        action=ACTIONS.wire(decided.action),
        pressure_checked=checked,
        pressure_sent=checked if decided.sent is None else wire_report(decided.sent),
        bounded=wire_bounded(decided.bounded),
        fold=wire_record(decided.fold) if decided.fold else None,
        skip=SKIPS.wire(decided.skip),
        failure=FAILURES.wire(decided.failure),
        fold_pending=decided.fold_pending,
        stable_prefix_rows=decided.stable_prefix_rows,
        last_usage=(
            model_pb2.UsageReading(usage=wire_usage(decided.last_usage), counted=decided.usage_counted)
            if decided.last_usage
            else None
        ),
        warnings=wire_warnings(decided.warnings),
        first_offset=decided.first_offset,
        last_offset=decided.last_offset,
        request_headers=decided.headers,
    )
    if content.rendered is not None:
        made.rendered_json = content.rendered
    elif content.splices is not None:
        made.splices.CopyFrom(wire_splices(content.splices))
    elif content.rows is not None:
        made.rows.CopyFrom(wire_rows(content.rows))
    return made
