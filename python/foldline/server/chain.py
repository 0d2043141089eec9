"""What every call passes through, in this order:

1. admission: a call beyond what may run and wait is refused before it queues (OVERLOADED)
2. request id: the client's ``x-request-id``, else a new one; in every log line, returned in the trailing metadata
3. logging: one line a call with method, code, duration and sizes; payloads never
4. errors: whatever is raised becomes a status with details (``foldline.server.errors``)
5. readiness: refused while the server starts or has no store (NOT_READY)
6. sizes: requests and answers over the limit are refused with both sizes (MESSAGE_TOO_LARGE, W5)
7. validation: the contract's rules (``foldline.server.validation``)
8. deadline: what a use case may wait is the client's deadline, capped

One interceptor carries all of it, since grpcio charges a call for each one it is given. Requests and answers pass
grpcio as bytes and are decoded here, so that damaged and oversized ones are refused with details like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import urandom
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import Message
from google.rpc import status_pb2

from foldline.domain.errors import FoldlineError, Reason
from foldline.server import errors, logs
from foldline.server.health import Readiness, not_ready
from foldline.server.pools import CallPool, Pools
from foldline.server.push import Pushed
from foldline.server.validation import decoded, validate

log = structlog.get_logger("foldline.call")

_ENDLESS = frozenset(
    {
        "/foldline.v1.CompactionService/AttachSession",
        "/foldline.v1.CuratorService/Curate",
        "/foldline.v1.EventService/WatchEvents",
    }
)
"""Streams that end when the client goes, not when they are done: a server that drains has to end them."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_SEVERE = {Reason.INTERNAL, Reason.STORE_CORRUPT, Reason.NOT_READY}
"""Reasons whose causes the operator must see."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A method as served: its handler, and the one that refuses when its pool is full."""

    pool: CallPool
    handler: Handler
    refusal: Handler


@dataclass(slots=True)
class _Step:
    """A step of a stream; ``error`` is what its client learns where it failed."""

    error: status_pb2.Status | None = None


class Call:
    """The context that servicers see: grpcio's, with the deadline capped and ids known."""

    __slots__ = ("_context", "_ends", "_max_wait", "_readiness", "method", "request_id", "started")

    def __init__(self, context: grpc.ServicerContext, method: str, readiness: Readiness, max_wait: float) -> None:
        self._context = context
        self._readiness = readiness
        self.method = method
        self.started = time.monotonic()
        self._max_wait = max_wait
        self._ends = self.started + max_wait
        self.request_id = request_id_of(context)

    def time_remaining(self) -> float:
        """Seconds the caller still waits; a client that set no deadline is given ``server.max_wait``."""
        return max(0.0, min(self._context.time_remaining(), self._ends - time.monotonic()))

    def ends(self, timeout: float | None) -> float:
        """``time.monotonic()`` until which a step of a stream is waited for, that arrives now."""
        wait = self._max_wait if timeout is None else min(timeout, self._max_wait)
        return time.monotonic() + min(wait, self._context.time_remaining())

    def require(self) -> None:
        """Refuses a step while the server misses a component, as it would a call.

        Raises:
            FoldlineError: NOT_READY.
        """
        self._readiness.require()

    @contextmanager
    def step(self, sequence: int, kind: str) -> Iterator[_Step]:
        """One step of a stream: whatever is raised within becomes its error; logged like a call."""
        request_id = f"{self.request_id}/{sequence}"
        token = logs.REQUEST_ID.set(request_id)
        started, entry = time.monotonic(), _Step()
        code, details = "OK", dict[str, Any]()
        try:
            yield entry
        except BaseException as error:  # a panic of the core is no Exception
            shown, details = _shown(error, request_id)
            entry.error = errors.rpc_status(shown)
            code = errors.CODES[shown.reason].name
        _write({"event": "step", "method": self.method, "step": kind, "code": code, "ms": _since(started), **details})
        logs.REQUEST_ID.reset(token)

    def is_active(self) -> bool:
        """Whether anybody waits for the answer; an endless stream also ends when the server drains."""
        draining = self._readiness.draining and self.method in _ENDLESS
        return bool(self._context.is_active()) and not draining

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def request_id_of(context: grpc.ServicerContext) -> str:
    """The client's ``x-request-id`` if it is printable and at most 128 long, else a new one."""
    for key, value in context.invocation_metadata():
        if key == errors.REQUEST_ID_KEY and isinstance(value, str):
            if 0 < len(value) <= 128 and value.isascii() and value.isprintable():
                return value
            break
    return urandom(12).hex()


class Chain(grpc.ServerInterceptor):
    """The interceptor of a server."""

    def __init__(self, pools: Pools, readiness: Readiness, max_message_bytes: int, max_wait: float) -> None:
        self._pools = pools
        self._readiness = readiness
        self._max_bytes = max_message_bytes
        self._max_wait = max_wait
        self._entries: dict[str, _Entry] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Admission; runs on the thread that accepts calls, so it may not wait."""
        method = handler_call_details.method
        entry = self._entries.get(method)
        if entry is None:
            handler = continuation(handler_call_details)
            if handler is None:
                return None
            entry = self._entries[method] = self._entry(method, handler)
        return entry.refusal if entry.pool.full() else entry.handler

    def _entry(self, method: str, handler: Handler) -> _Entry:
        pool = self._pools.of(method, handler.request_streaming or handler.response_streaming)
        if method.startswith("/grpc."):
            return _Entry(pool, _standard(handler, pool), self._refusal(method, handler, pool))
        return _Entry(pool, self._served(method, handler, pool), self._refusal(method, handler, pool))

    def _served(self, method: str, handler: Handler, pool: CallPool) -> Handler:
        if getattr(_behavior(handler), "pushes", False):
            decode = partial(self._decoded, handler.request_deserializer)
            run = _on(pool, partial(self._pushed, method, _behavior(handler), decode))
            run.experimental_non_blocking = True  # type: ignore[attr-defined]
            return _rebuilt(handler, run)
        serve = self._stream if handler.response_streaming else self._unary
        request = self._requests if handler.request_streaming else self._request
        read = partial(request, handler.request_deserializer)
        return _rebuilt(handler, _on(pool, partial(serve, method, _behavior(handler), read)))

    def _refusal(self, method: str, handler: Handler, pool: CallPool) -> Handler:
        def refuse(_request: Any, context: grpc.ServicerContext) -> Any:
            what = "streams" if pool is self._pools.streams else "calls"
            error = FoldlineError(
                Reason.OVERLOADED, f"the server has as many {what} as it takes: {pool.limit}", limit=pool.limit
            )
            self._fail(Call(context, method, self._readiness, self._max_wait), error, 0)

        return _rebuilt(handler, _on(self._pools.refusals, refuse))

    def _unary(
        self,
        method: str,
        behavior: Callable[[Any, Any], Message],
        read: Callable[[Any], Any],
        raw: Any,
        context: grpc.ServicerContext,
    ) -> bytes:
        call = Call(context, method, self._readiness, self._max_wait)
        logs.REQUEST_ID.set(call.request_id)
        size = len(raw) if isinstance(raw, bytes) else 0
        try:
            self._readiness.require()
            answer = self._sent(behavior(read(raw), call))
        except BaseException as error:  # a panic of the core is no Exception, and would leave the client waiting
            self._fail(call, error, size)
            raise
        context.set_trailing_metadata(((errors.REQUEST_ID_KEY, call.request_id),))
        _log(call, "OK", size, len(answer))
        return answer

    def _stream(
        self,
        method: str,
        behavior: Callable[[Any, Any], Iterator[Message]],
        read: Callable[[Any], Any],
        raw: Any,
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        call = Call(context, method, self._readiness, self._max_wait)
        logs.REQUEST_ID.set(call.request_id)
        size, sent = len(raw) if isinstance(raw, bytes) else 0, 0
        try:
            self._readiness.require()
            for message in behavior(read(raw), call):
                answer = self._sent(message)
                sent += len(answer)
                yield answer
            if self._readiness.draining and method in _ENDLESS and context.is_active():
                raise not_ready("the server stops")
        except GeneratorExit:
            _log(call, "CANCELLED", size, sent)
            raise
        except BaseException as error:
            self._fail(call, error, size, sent)
            raise
        context.set_trailing_metadata(((errors.REQUEST_ID_KEY, call.request_id),))
        _log(call, "OK", size, sent)

    def _pushed(
        self,
        method: str,
        behavior: Callable[[Any, Any, Pushed], None],
        read: Callable[[bytes], Message],
        raws: Iterator[bytes],
        context: grpc.ServicerContext,
        push: Callable[[bytes | None], None],
    ) -> None:
        """A stream that is answered by calls; it validates its steps itself, since one that is bad does not end it."""
        call = Call(context, method, self._readiness, self._max_wait)
        logs.REQUEST_ID.set(call.request_id)
        stream = Pushed(push, self._sent)
        stops = not_ready("the server stops")

        def stopped() -> None:
            status = errors.status(stops, call.request_id)
            context.set_code(status.code)
            context.set_details(status.details)
            context.set_trailing_metadata(status.trailing_metadata)

        def ended() -> None:
            context.set_trailing_metadata(((errors.REQUEST_ID_KEY, call.request_id),))

        try:
            self._readiness.require()
            with self._readiness.at_drain(lambda: stream.end(stopped, if_waiting=True)):
                behavior(stream.requests(raws, read, lambda: self._readiness.draining), call, stream)
            draining = self._readiness.draining
            stream.end(stopped if draining else ended)
        except BaseException as error:
            stream.close()
            self._fail(call, error, stream.received, stream.sent)
            raise
        _log(call, "UNAVAILABLE" if draining else "OK", stream.received, stream.sent)

    def _request(self, decode: Any, raw: bytes) -> Message:
        """One request, of a size and kind that may be served."""
        request = self._decoded(decode, raw)
        validate(request)
        return request

    def _decoded(self, decode: Any, raw: bytes) -> Message:
        if len(raw) > self._max_bytes:
            raise errors.too_large("request", len(raw), self._max_bytes)
        request: Message = decoded(decode, raw)
        return request

    def _requests(self, decode: Any, raws: Iterator[bytes]) -> Iterator[Message]:
        return (self._request(decode, raw) for raw in raws)

    def _sent(self, answer: Message) -> bytes:
        data = answer.SerializeToString()
        if len(data) > self._max_bytes:
            raise errors.too_large("answer", len(data), self._max_bytes)
        return data

    def _fail(self, call: Call, error: BaseException, size: int, sent: int = 0) -> None:
        """Ends a call with the status of an error. It does not return, since grpcio ends calls by raising."""
        if isinstance(error, grpc.RpcError):  # the client went while its requests were read
            _log(call, "CANCELLED", size, sent)
            return
        shown, details = _shown(error, call.request_id)
        status = errors.status(shown, call.request_id)
        _log(call, status.code.name, size, sent, **details)
        call._context.abort_with_status(status)


def _log(call: Call, code: str, size: int, sent: int, **details: Any) -> None:
    _write(
        {
            "event": "call",
            "method": call.method,
            "code": code,
            "ms": _since(call.started),
            "bytes_in": size,
            "bytes_out": sent,
            **details,
        }
    )


def _since(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 3)


def _shown(error: BaseException, request_id: str) -> tuple[FoldlineError, dict[str, Any]]:
    """What a client learns of an error, and what is logged of it."""
    shown = errors.published(error, request_id)
    details: dict[str, Any] = {"reason": str(shown.reason)}
    if shown.reason in _SEVERE:
        details |= {"metadata": shown.metadata, "exc_info": error}
    return shown, details


def _write(event: dict[str, Any]) -> None:
    if "exc_info" in event:
        log.error(**event)
    else:
        logs.write("info", event)


def _behavior(handler: Handler) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _on(pool: CallPool, behavior: Callable[..., Any]) -> Callable[..., Any]:
    """The behavior, to be run by the threads of ``pool``."""

    def run(*args: Any) -> Any:
        return behavior(*args)

    run.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return run


def _standard(handler: Handler, pool: CallPool) -> Handler:
    """A method of health or reflection: as grpcio serves it, on its own threads, logged at debug only."""
    behavior = _behavior(handler)

    def logged(*args: Any) -> Any:
        log.debug("call", kind=type(args[0]).__name__)
        return behavior(*args)

    run = _on(pool, logged)
    run.experimental_non_blocking = getattr(behavior, "experimental_non_blocking", False)  # type: ignore[attr-defined]
    return _rebuilt(handler, run, handler.request_deserializer, handler.response_serializer)


_FORMS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _rebuilt(handler: Handler, behavior: Callable[..., Any], decode: Any = None, encode: Any = None) -> Handler:
    """A handler of the same form; by default it takes and gives bytes."""
    return _FORMS[handler.request_streaming, handler.response_streaming](behavior, decode, encode)
