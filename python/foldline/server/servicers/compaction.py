"""CompactionService."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from foldline.commands.check_pressure import check_pressure, plan_compaction
from foldline.commands.compact_session import Compact, compact_session
from foldline.commands.fold import Progress
from foldline.commands.prepare_request import Prepare, PreparedRequest, prepare_request
from foldline.commands.record_answer import finish_run, record_answer
from foldline.commands.reply import Reply
from foldline.domain.enums import Action, ReplyMode
from foldline.domain.errors import FoldlineError, Reason
from foldline.server.codec.basics import enum_map, wire_usage, wire_warnings
from foldline.server.codec.policy import layer
from foldline.server.codec.pressure import shape_of, wire_report
from foldline.server.codec.records import FAILURES, REFUSALS, SKIPS, wire_bounded, wire_plan, wire_record, wire_splices
from foldline.server.codec.rows import FORMATS, rows_input, wire_rows
from foldline.server.codec.sessions import OUTCOMES, outcome_of, wire_recorded
from foldline.server.servicers.base import Servicer, caller_of, not_yet
from foldline.v1 import compaction_pb2, model_pb2
from foldline.v1 import compaction_service_pb2 as pb
from foldline.v1 import compaction_service_pb2_grpc as rpc

ACTIONS = enum_map(compaction_pb2.Action, Action, "ACTION")
REPLIES = enum_map(compaction_pb2.ReplyMode, ReplyMode, "REPLY_MODE")
_PHASES = {
    "waiting": compaction_pb2.PROGRESS_PHASE_WAITING,
    "planned": compaction_pb2.PROGRESS_PHASE_PLANNING,
    "summarizing": compaction_pb2.PROGRESS_PHASE_SUMMARIZING,
    "summarized": compaction_pb2.PROGRESS_PHASE_CHECKING,
    "proven": compaction_pb2.PROGRESS_PHASE_COMMITTING,
}


class CompactionServicer(Servicer, rpc.CompactionServiceServicer):
    AttachSession = not_yet("AttachSession")
    SaveCheckpoint = not_yet("SaveCheckpoint")
    ListCheckpoints = not_yet("ListCheckpoints")
    GetCheckpoint = not_yet("GetCheckpoint")
    CompactTranscript = not_yet("CompactTranscript")
    CommitProjection = not_yet("CommitProjection")
    AbortProjection = not_yet("AbortProjection")
    BoundResults = not_yet("BoundResults")

    def PrepareRequest(
        self, request: pb.PrepareRequestRequest, context: grpc.ServicerContext
    ) -> pb.PrepareRequestResponse:
        prepared = prepare_request(self.services, caller_of(request, context, "PrepareRequest"), _prepare(request))
        return _response(prepared)

    def RecordAnswer(self, request: pb.RecordAnswerRequest, context: grpc.ServicerContext) -> pb.RecordAnswerResponse:
        recorded = record_answer(
            self.services, caller_of(request, context, "RecordAnswer"), request.session_id, request.run_id,
            request.request_id, outcome_of(request.outcome, "outcome"),
        )  # fmt: skip
        return pb.RecordAnswerResponse(
            revision=recorded.revision, first_offset=recorded.first_offset, last_offset=recorded.last_offset,
            usage=wire_recorded(recorded), refusal=REFUSALS.wire(recorded.refusal), run_closed=recorded.run_closed,
            warnings=wire_warnings(recorded.warnings),
        )  # fmt: skip

    def FinishRun(self, request: pb.FinishRunRequest, context: grpc.ServicerContext) -> pb.FinishRunResponse:
        revision = finish_run(
            self.services, caller_of(request, context, "FinishRun"), request.session_id, request.run_id,
            request.request_id, OUTCOMES.domain(request.outcome),
        )  # fmt: skip
        return pb.FinishRunResponse(revision=revision)

    def CheckPressure(
        self, request: pb.CheckPressureRequest, context: grpc.ServicerContext
    ) -> pb.CheckPressureResponse:
        if request.HasField("transcript"):
            will = "measure a transcript that the host keeps"
            raise FoldlineError(
                Reason.NOT_YET, f"CheckPressure with a transcript will {will}", method="CheckPressure", will=will
            )
        pressure = check_pressure(
            self.services, caller_of(request, context, "CheckPressure"), request.session_id, shape_of(request.shape),
            layer(request.override),
            request.known_revision if request.HasField("known_revision") else None,
        )  # fmt: skip
        return pb.CheckPressureResponse(
            pressure=wire_report(pressure.report), fold_due=pressure.decision.fold,
            skip=SKIPS.wire(pressure.decision.skip), revision=pressure.revision,
        )  # fmt: skip

    def PlanCompaction(
        self, request: pb.PlanCompactionRequest, context: grpc.ServicerContext
    ) -> pb.PlanCompactionResponse:
        planned = plan_compaction(
            self.services, caller_of(request, context, "PlanCompaction"), request.session_id, shape_of(request.shape),
            layer(request.override),
        )  # fmt: skip
        return pb.PlanCompactionResponse(
            plan=wire_plan(planned.plan) if planned.plan else None, pressure=wire_report(planned.report),
            skip=SKIPS.wire(planned.skip), revision=planned.revision,
        )  # fmt: skip

    def CompactSession(
        self, request: pb.CompactSessionRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.CompactSessionResponse]:
        caller = caller_of(request, context, "CompactSession")
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def progress(now: Progress) -> None:
            told.put(
                compaction_pb2.Progress(
                    phase=_PHASES[now.step], fold_id=now.fold_id, joined=now.step == "waiting", rows=now.rows
                )
            )

        def work() -> None:
            compact = Compact(
                request.session_id, request.request_id, request.instructions, shape_of(request.shape)
            )  # fmt: skip
            try:
                told.put(compact_session(self.services, caller, compact, progress))
            except BaseException as error:
                told.put(error)

        # The fold runs on its own thread, so that a host that goes away ends the stream, not the fold (A5).
        threading.Thread(target=work, name="compact", daemon=True).start()
        while True:
            item = told.get()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, compaction_pb2.Progress):
                yield pb.CompactSessionResponse(progress=item)
                continue
            yield pb.CompactSessionResponse(record=wire_record(item))
            return


def _prepare(request: pb.PrepareRequestRequest) -> Prepare:
    return Prepare(
        session_id=request.session_id,
        run_id=request.run_id,
        request_id=request.request_id,
        expected_revision=request.expected_revision if request.HasField("expected_revision") else None,
        supersede_open_run=request.supersede_open_run,
        previous_answer=(
            outcome_of(request.previous_answer, "previous_answer") if request.HasField("previous_answer") else None
        ),
        append=rows_input(request.append, "append") if request.HasField("append") else None,
        shape=shape_of(request.shape),
        reply=Reply(
            mode=REPLIES.domain(request.reply) or ReplyMode.WHOLE,
            format=FORMATS.domain(request.format),
            known_revision=request.known_revision if request.HasField("known_revision") else None,
        ),
        override=layer(request.override) if request.HasField("override") else None,
    )


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
    )
    if content.rendered is not None:
        made.rendered_json = content.rendered
    elif content.splices is not None:
        made.splices.CopyFrom(wire_splices(content.splices))
    elif content.rows is not None:
        made.rows.CopyFrom(wire_rows(content.rows))
    return made
