"""EventService, EstimateService, AdminService."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import grpc

from foldline import _core
from foldline.commands import estimate, events
from foldline.domain.enums import EventKind, Format, ReadingSource, WarningCode
from foldline.domain.events import Warning_
from foldline.server.codec.basics import (
    duration,
    model_ref,
    timestamp,
    wire_model_info,
    wire_usage,
    wire_warnings,
)
from foldline.server.codec.policy import effective
from foldline.server.codec.pressure import SOURCES
from foldline.server.codec.records import EVENTS, REFUSALS, wire_event
from foldline.server.codec.rows import FORMATS, rows_input
from foldline.server.servicers.base import (
    LONG_PAGE,
    Servicer,
    caller_of,
    page_size,
    page_token,
    read_token,
)
from foldline.v1 import (
    admin_pb2,
    admin_service_pb2,
    admin_service_pb2_grpc,
    estimate_service_pb2,
    estimate_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
)


class EventServicer(Servicer, event_service_pb2_grpc.EventServiceServicer):
    def ListEvents(
        self, request: event_service_pb2.ListEventsRequest, context: grpc.ServicerContext
    ) -> event_service_pb2.ListEventsResponse:
        token, size = read_token(request), page_size(request.page_size, LONG_PAGE)
        caller = caller_of(request, context, "ListEvents")
        after = token[0] if token else request.after
        found, more = events.list_events(self.services, caller, request.session_id, after, size, _kinds(request.kinds))
        return event_service_pb2.ListEventsResponse(
            events=[wire_event(e, request.session_id) for e in found],
            next_page_token=page_token(request, found[-1].seq) if more else "",
        )

    def WatchEvents(
        self, request: event_service_pb2.WatchEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[event_service_pb2.WatchEventsResponse]:
        caller = caller_of(request, context, "WatchEvents")
        # A stream whose client went gives its thread back at once, not at its next event.
        context.add_callback(self.services.bell.wake)
        for event, cursor in events.watch_events(
            self.services, caller, request.session_id, request.after, context.is_active,
            self.settings.heartbeat_interval, _kinds(request.kinds),
        ):  # fmt: skip
            yield event_service_pb2.WatchEventsResponse(
                event=wire_event(event, request.session_id) if event else None, cursor=cursor
            )


def _kinds(given: Iterable[int]) -> set[EventKind]:
    """Kinds to show; empty for all. The unspecified one is nobody's."""
    return {EVENTS.domain(k) for k in given}


class EstimateServicer(Servicer, estimate_service_pb2_grpc.EstimateServiceServicer):
    def CountTokens(
        self, request: estimate_service_pb2.CountTokensRequest, context: grpc.ServicerContext
    ) -> estimate_service_pb2.CountTokensResponse:
        kind, caller = request.WhichOneof("input"), caller_of(request, context, "CountTokens")
        counted = estimate.count_tokens(
            self.services, caller, model_ref(request.model), request.text if kind == "text" else None,
            rows_input(request.rows, "rows") if kind == "rows" else None, request.tools_json,
        )  # fmt: skip
        return estimate_service_pb2.CountTokensResponse(
            tokens=counted.tokens, bytes=counted.bytes,
            source=SOURCES.wire(ReadingSource.EXACT if counted.exact else ReadingSource.ESTIMATED),
            estimator_name=counted.estimator, estimator_factor=counted.factor.value,
            estimator_error=counted.factor.error, row_tokens=counted.rows, warnings=wire_warnings(counted.warnings),
        )  # fmt: skip

    def ClassifyError(
        self, request: estimate_service_pb2.ClassifyErrorRequest, context: grpc.ServicerContext
    ) -> estimate_service_pb2.ClassifyErrorResponse:
        found = estimate.classify_error(request.http_status, request.raw_body, request.provider)
        return estimate_service_pb2.ClassifyErrorResponse(
            kind=REFUSALS.wire(found.kind), request_tokens=found.named_tokens, limit_tokens=found.named_limit,
            retry_after=duration(found.retry_after),
        )  # fmt: skip

    def NormalizeUsage(
        self, request: estimate_service_pb2.NormalizeUsageRequest, context: grpc.ServicerContext
    ) -> estimate_service_pb2.NormalizeUsageResponse:
        found = estimate.normalize_usage(self.services, model_ref(request.model), request.usage_json)
        warnings = []
        if not found.input_tokens:
            warnings.append(Warning_(WarningCode.USAGE_MISSING, "the usage names no input tokens: unknown"))
        if found.aggregated:
            warnings.append(Warning_(WarningCode.USAGE_AGGREGATED, "the usage sums several calls and is no reading"))
        return estimate_service_pb2.NormalizeUsageResponse(usage=wire_usage(found), warnings=wire_warnings(warnings))


class AdminServicer(Servicer, admin_service_pb2_grpc.AdminServiceServicer):
    def GetServerInfo(
        self, request: admin_service_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetServerInfoResponse:
        settings = self.settings
        return admin_service_pb2.GetServerInfoResponse(
            server=admin_pb2.ServerInfo(
                version=settings.version, core_version=settings.core_version, start_time=timestamp(settings.start_time),
                store=settings.store, embedder=settings.embedder(), encodings=_core.encodings(),
                formats=[FORMATS.wire(f) for f in Format],
                max_request_bytes=settings.max_message_bytes, max_response_bytes=settings.max_message_bytes,
            )
        )  # fmt: skip

    def GetEffectiveConfig(
        self, request: admin_service_pb2.GetEffectiveConfigRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.GetEffectiveConfigResponse:
        self.admin_of(request, context, "GetEffectiveConfig").require_admin()
        entries = [admin_pb2.ConfigEntry(key=k, value=v, origin=o) for k, v, o in self.settings.config]
        policy = effective(self.settings.policy) if self.settings.policy else None
        return admin_service_pb2.GetEffectiveConfigResponse(entries=entries, policy=policy)

    def ListModels(
        self, request: admin_service_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> admin_service_pb2.ListModelsResponse:
        token, size = read_token(request), page_size(request.page_size, LONG_PAGE)
        start = token[0] if token else 0
        part = self.settings.models[start : start + size]
        more = start + size < len(self.settings.models)
        return admin_service_pb2.ListModelsResponse(
            models=[wire_model_info(ref, info) for ref, info in part],
            next_page_token=page_token(request, start + size) if more else "",
        )
