"""Server reflection v1 over the services that the contract publishes."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1 = "grpc.reflection.v1.ServerReflection"


def add(server: grpc.Server, services: Iterable[str]) -> None:
    """Describes ``services`` to clients of v1, and to older ones of v1alpha: the messages are the same on the wire."""
    names = (*services, V1)
    reflection.enable_server_reflection(names, server)
    servicer = reflection.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": handler}),))
