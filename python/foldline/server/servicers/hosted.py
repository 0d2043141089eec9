"""The RPCs of sessions whose transcript the host keeps (§14)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from foldline.commands.check_pressure import Pressure
from foldline.commands.host_owned.check_transcript import check_transcript
from foldline.commands.host_owned.compact_transcript import Compacted, CompactTranscript, compact_transcript
from foldline.commands.host_owned.projections import abort_projection, commit_projection
from foldline.commands.host_owned.views import Given, given
from foldline.commands.services import Services
from foldline.domain.events import Warning_
from foldline.server.codec.basics import timestamp, wire_warnings
from foldline.server.codec.policy import layer
from foldline.server.codec.pressure import shape_of, wire_report
from foldline.server.codec.records import FAILURES, SKIPS, wire_record
from foldline.server.codec.rows import rows_input, wire_row
from foldline.server.servicers.base import Servicer, Waiting, caller_of
from foldline.v1 import compaction_service_pb2 as pb

MOST_WARNINGS = 1024


class HostedServicer(Servicer):
    """The part of CompactionService that is for host-owned sessions alone."""

    def CompactTranscript(
        self, request: pb.CompactTranscriptRequest, context: grpc.ServicerContext
    ) -> pb.CompactTranscriptResponse:
        compacted = compact_transcript(
            self.services, caller_of(request, context, "CompactTranscript"),
            CompactTranscript(
                session_id=request.session_id, transcript=_given(self.services, request.transcript),
                shape=shape_of(request.shape), request_id=request.request_id, manual=request.manual,
                instructions=request.instructions,
                override=layer(request.override) if request.HasField("override") else None,
            ),
        )  # fmt: skip
        return _response(compacted, request.transcript.row_ids)

    def CommitProjection(
        self, request: pb.CommitProjectionRequest, context: grpc.ServicerContext
    ) -> pb.CommitProjectionResponse:
        entries = commit_projection(
            self.services, caller_of(request, context, "CommitProjection"), request.session_id, request.projection_id,
            request.request_id,
        )  # fmt: skip
        return pb.CommitProjectionResponse(memory_entries=entries)

    def AbortProjection(
        self, request: pb.AbortProjectionRequest, context: grpc.ServicerContext
    ) -> pb.AbortProjectionResponse:
        abort_projection(
            self.services, caller_of(request, context, "AbortProjection"), request.session_id, request.projection_id,
            request.request_id,
        )  # fmt: skip
        return pb.AbortProjectionResponse()


def check(
    services: Services, request: pb.CheckPressureRequest, context: Waiting
) -> tuple[Pressure, tuple[Warning_, ...]]:
    """CheckPressure with a transcript."""
    checked = check_transcript(
        services, caller_of(request, context, "CheckPressure"), request.session_id,
        _given(services, request.transcript), shape_of(request.shape), layer(request.override),
    )  # fmt: skip
    return checked.pressure, checked.warnings


def _given(services: Services, transcript: pb.HostTranscript) -> Given:
    rows = rows_input(transcript.input, "transcript.input")
    assert rows is not None
    return given(services, rows, transcript.row_ids, transcript.open_run_start, transcript.run_id)


def _response(compacted: Compacted, row_ids: Sequence[str]) -> pb.CompactTranscriptResponse:
    gone = set(compacted.discarded)
    return pb.CompactTranscriptResponse(
        kept_row_ids=[i for i in row_ids if i not in gone],
        discarded_row_ids=compacted.discarded,
        summary=wire_row(compacted.summary) if compacted.summary else None,
        summary_before_row_id=compacted.before,
        record=wire_record(compacted.record) if compacted.record else None,
        projection_id=compacted.projection_id,
        projection_expire_time=timestamp(compacted.expire),
        pressure=wire_report(compacted.report),
        skip=SKIPS.wire(compacted.skip),
        failure=FAILURES.wire(compacted.failure),
        warnings=wire_warnings(compacted.warnings[:MOST_WARNINGS]),
        prepare_id=compacted.prepare_id,
    )
