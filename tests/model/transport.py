"""The steps of a model call over either transport: one call each, or steps of a stream (W2)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import grpc
from foldline.v1 import compaction_service_pb2 as pb
from foldline.v1 import session_service_pb2
from google.rpc import status_pb2

from tests.support.attached import Attached
from tests.support.server import Client

STEPS = {
    "PrepareRequest": ("prepare", "prepared"),
    "RecordAnswer": ("record", "recorded"),
    "FinishRun": ("finish", "finished"),
    "CheckPressure": ("check", "checked"),
}
"""Field of the request and of the answer by RPC."""


class Refused(grpc.RpcError):
    """A step's error, in the shape that a call's has."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status

    def code(self) -> grpc.StatusCode:
        return next(c for c in grpc.StatusCode if c.value[0] == self.status.code)

    def details(self) -> str:
        return str(self.status.message)

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return (("grpc-status-details-bin", self.status.SerializeToString()),)


class Transport:
    """Sends a step over the stream of its session now and then; streams stay open until the server goes."""

    def __init__(self, rng: random.Random, share: float = 0.25) -> None:
        self.rng, self.share = rng, share
        self._streams: dict[str, Attached] = {}
        self._client: Client | None = None
        self.used = 0

    def send(self, client: Client, name: str, method: Callable[..., Any], request: Any) -> Any:
        if client is not self._client:
            self._streams, self._client = {}, client
        draw = self.rng.random()
        # A stream takes the list of its last answer for the host's where a request names none.
        unnamed = name == "PrepareRequest" and not request.HasField("known_revision")
        revision = name == "AppendRows" and request.HasField("expected_revision")
        if name not in (*STEPS, "AppendRows") or draw >= self.share or unnamed or revision:
            return method(request, timeout=60)
        self.used += 1
        stream = self._streams.get(request.session_id) or self._open(client, request.session_id)
        if name == "AppendRows":
            step = pb.AttachAppend(request_id=request.request_id, input=request.input, run_id=request.run_id)
            made = self._ask(request.session_id, stream, append=step).appended
            return session_service_pb2.AppendRowsResponse(
                revision=made.revision, first_offset=made.first_offset, last_offset=made.last_offset,
                warnings=made.warnings,
            )  # fmt: skip
        ask, answer = STEPS[name]
        response = getattr(self._ask(request.session_id, stream, **{ask: request}), answer)
        if draw < self.share / 20:
            self.drop(request.session_id)
        return response

    def _open(self, client: Client, session_id: str) -> Attached:
        while len(self._streams) >= 8:
            self.drop(next(iter(self._streams)))
        stream = self._streams[session_id] = Attached(client, session_id, timeout=None)
        return stream

    def _ask(self, session_id: str, stream: Attached, **step: Any) -> pb.AttachSessionResponse:
        try:
            answer = stream.ask(**step)
        except grpc.RpcError:
            self.drop(session_id)
            raise
        if answer.HasField("error"):
            raise Refused(answer.error)
        return answer

    def drop(self, session_id: str) -> None:
        """Ends a stream: its session was deleted, or it has served long enough."""
        stream = self._streams.pop(session_id, None)
        if stream is not None:
            stream.__exit__()
