"""The checkpoints of CompactionService (K1-K3)."""

from __future__ import annotations

import grpc

from foldline.commands import checkpoints
from foldline.server.codec.records import SKIPS, wire_checkpoint, wire_record
from foldline.server.servicers.base import Servicer, caller_of, optional, page_size, page_token, read_token
from foldline.v1 import compaction_service_pb2 as pb


class CheckpointServicer(Servicer):
    def SaveCheckpoint(
        self, request: pb.SaveCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.SaveCheckpointResponse:
        save = checkpoints.SaveCheckpoint(
            request.session_id, request.description, optional(request, "trim_count"), request.request_id,
            optional(request, "expected_revision"),
        )  # fmt: skip
        saved = checkpoints.save_checkpoint(self.services, caller_of(request, context, "SaveCheckpoint"), save)
        return pb.SaveCheckpointResponse(
            checkpoint=wire_checkpoint(saved.checkpoint),
            fold=wire_record(saved.record) if saved.record else None,
            skip=SKIPS.wire(saved.skip),
        )

    def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: grpc.ServicerContext
    ) -> pb.ListCheckpointsResponse:
        token = read_token(request)
        found, following = checkpoints.list_checkpoints(
            self.services, caller_of(request, context, "ListCheckpoints"), request.session_id,
            token[0] if token else None, page_size(request.page_size),
        )  # fmt: skip
        return pb.ListCheckpointsResponse(
            checkpoints=[wire_checkpoint(c) for c in found],
            next_page_token="" if following is None else page_token(request, following),
        )

    def GetCheckpoint(
        self, request: pb.GetCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.GetCheckpointResponse:
        caller = caller_of(request, context, "GetCheckpoint")
        found = checkpoints.get_checkpoint(self.services, caller, request.session_id, request.checkpoint_id)
        return pb.GetCheckpointResponse(checkpoint=wire_checkpoint(found))
