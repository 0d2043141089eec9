"""The published service config (W7): existing methods, UNAVAILABLE alone, and gRPC takes it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from foldline.v1 import (
    admin_service_pb2,
    compaction_service_pb2,
    curator_service_pb2,
    estimate_service_pb2,
    event_service_pb2,
    memory_service_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
    tool_service_pb2,
)
from foldline.v1.session_service_pb2 import GetSessionRequest, GetSessionResponse
from google.protobuf.descriptor import MethodDescriptor

TEXT = (Path(__file__).resolve().parents[2] / "proto/foldline/v1/service_config.json").read_text()
CONFIG = json.loads(TEXT)["methodConfig"]
METHODS: dict[tuple[str, str], MethodDescriptor] = {
    (service.full_name, method.name): method
    for module in (
        admin_service_pb2, compaction_service_pb2, curator_service_pb2, estimate_service_pb2,
        event_service_pb2, memory_service_pb2, session_service_pb2, tool_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}  # fmt: skip


def test_it_names_every_method_that_may_be_repeated_once_and_no_other() -> None:
    named = [(name["service"], name["method"]) for entry in CONFIG for name in entry["name"]]
    assert len(named) == len(set(named))
    assert set(named) == {key for key, method in METHODS.items() if not method.client_streaming}


def test_reads_and_writes_stand_apart() -> None:
    reads, writes = ([METHODS[name["service"], name["method"]] for name in entry["name"]] for entry in CONFIG)
    assert all(m.GetOptions().idempotency_level == m.GetOptions().NO_SIDE_EFFECTS for m in reads)
    assert all("request_id" in m.input_type.fields_by_name for m in writes)


def test_only_unavailable_is_retried() -> None:
    assert {code for entry in CONFIG for code in entry["retryPolicy"]["retryableStatusCodes"]} == {"UNAVAILABLE"}


@pytest.mark.parametrize(
    ("code", "attempts"),
    [(grpc.StatusCode.UNAVAILABLE, 4), (grpc.StatusCode.ABORTED, 1)],
    ids=["unavailable", "aborted"],
)
def test_a_client_follows_it(code: grpc.StatusCode, attempts: int) -> None:
    """A server that always fails sees one call, or as many as the policy allows."""
    seen: list[str] = []

    def fail(request: GetSessionRequest, context: grpc.ServicerContext) -> GetSessionResponse:
        seen.append(request.session_id)
        context.abort(code, "always")
        raise AssertionError("abort raises")

    handler = grpc.unary_unary_rpc_method_handler(
        fail,
        request_deserializer=GetSessionRequest.FromString,
        response_serializer=GetSessionResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("foldline.v1.SessionService", {"GetSession": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.service_config", TEXT)]) as channel:
            stub = session_service_pb2_grpc.SessionServiceStub(channel)
            with pytest.raises(grpc.RpcError) as error:
                stub.GetSession(GetSessionRequest(session_id="s"), timeout=20)
        assert error.value.code() is code
        assert seen == ["s"] * attempts
    finally:
        server.stop(None)
