"""A gRPC server between a host and a sidecar that loses requests and answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc

PREPARE = "/foldline.v1.CompactionService/PrepareRequest"
STREAMED = "/foldline.v1.CompactionService/CompactSession"


class _Forward(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, channel: grpc.Channel, loses: Callable[[], str]) -> None:
        self.channel, self.loses = channel, loses

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = call.method

        def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
            lost = self.loses() if method == PREPARE else ""
            if lost == "request":
                context.abort(grpc.StatusCode.UNAVAILABLE, "the request is lost")
            try:
                answer: bytes = self.channel.unary_unary(method)(request, timeout=context.time_remaining())
            except grpc.RpcError as error:
                _pass_on(context, error)
            if lost == "answer":
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return answer

        def streamed(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                yield from self.channel.unary_stream(method)(request, timeout=context.time_remaining())
            except grpc.RpcError as error:
                _pass_on(context, error)

        if method == STREAMED:
            return grpc.unary_stream_rpc_method_handler(streamed)
        return grpc.unary_unary_rpc_method_handler(unary)


def _pass_on(context: grpc.ServicerContext, error: grpc.RpcError) -> None:
    context.set_trailing_metadata(error.trailing_metadata())
    context.abort(error.code(), error.details())


@contextlib.contextmanager
def lossy(channel: grpc.Channel, loses: Callable[[], str]) -> Iterator[str]:
    """Serves what ``channel`` serves; ``loses`` says of each PrepareRequest what is lost: ``request``, ``answer``, "".

    Yields:
        The address.
    """
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((_Forward(channel, loses),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
