"""CompactionService."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from foldline.commands.bound_results import BoundTexts, bound_results
from foldline.commands.check_pressure import plan_compaction
from foldline.commands.compact_session import Compact, compact_session
from foldline.commands.fold_parts import Progress
from foldline.server.chain import Call
from foldline.server.codec.basics import model_ref
from foldline.server.codec.policy import layer
from foldline.server.codec.pressure import shape_of, wire_report
from foldline.server.codec.records import SKIPS, wire_bounded, wire_plan, wire_record
from foldline.server.push import Pushed, pushes
from foldline.server.servicers import steps
from foldline.server.servicers.attach import attach
from foldline.server.servicers.base import caller_of, optional
from foldline.server.servicers.checkpoints import CheckpointServicer
from foldline.server.servicers.hosted import HostedServicer
from foldline.v1 import compaction_pb2, policy_pb2
from foldline.v1 import compaction_service_pb2 as pb
from foldline.v1 import compaction_service_pb2_grpc as rpc

_PHASES = {
    "waiting": compaction_pb2.PROGRESS_PHASE_WAITING,
    "planned": compaction_pb2.PROGRESS_PHASE_PLANNING,
    "summarizing": compaction_pb2.PROGRESS_PHASE_SUMMARIZING,
    "summarized": compaction_pb2.PROGRESS_PHASE_CHECKING,
    "proven": compaction_pb2.PROGRESS_PHASE_COMMITTING,
}


class CompactionServicer(HostedServicer, CheckpointServicer, rpc.CompactionServiceServicer):
    def PrepareRequest(
        self, request: pb.PrepareRequestRequest, context: grpc.ServicerContext
    ) -> pb.PrepareRequestResponse:
        return steps.prepare(self.services, request, context, self.settings.max_message_bytes)

    @pushes
    def AttachSession(  # type: ignore[override]
        self, request_iterator: Iterator[pb.AttachSessionRequest], context: Call, stream: Pushed
    ) -> None:
        attach(self.services, self.settings, request_iterator, context, stream)

    def RecordAnswer(self, request: pb.RecordAnswerRequest, context: grpc.ServicerContext) -> pb.RecordAnswerResponse:
        return steps.record(self.services, request, context)

    def FinishRun(self, request: pb.FinishRunRequest, context: grpc.ServicerContext) -> pb.FinishRunResponse:
        return steps.finish(self.services, request, context)

    def CheckPressure(
        self, request: pb.CheckPressureRequest, context: grpc.ServicerContext
    ) -> pb.CheckPressureResponse:
        return steps.check(self.services, request, context)

    def PlanCompaction(
        self, request: pb.PlanCompactionRequest, context: grpc.ServicerContext
    ) -> pb.PlanCompactionResponse:
        planned = plan_compaction(
            self.services, caller_of(request, context, "PlanCompaction"), request.session_id, shape_of(request.shape),
            layer(request.override),
        )  # fmt: skip
        return pb.PlanCompactionResponse(
            plan=wire_plan(planned.fold) if planned.fold else None, pressure=wire_report(planned.report),
            skip=SKIPS.wire(planned.skip), revision=planned.revision,
        )  # fmt: skip

    def BoundResults(self, request: pb.BoundResultsRequest, context: grpc.ServicerContext) -> pb.BoundResultsResponse:
        bounded = bound_results(
            self.services,
            BoundTexts(
                results=[(r.call_id, r.text) for r in request.results],
                model=model_ref(request.model),
                limit_bytes=optional(request, "limit_bytes"),
                limit_tokens=optional(request, "limit_tokens"),
                override=layer(policy_pb2.Policy(bounding=request.bounding)),
            ),
        )
        return pb.BoundResultsResponse(bounded=wire_bounded(bounded.results), too_large=bounded.too_large)

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
