"""A host's end of an AttachSession stream, for tests."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
from foldline.v1 import compaction_service_pb2 as pb
from google.rpc import error_details_pb2, status_pb2

from tests.support.server import Client


class Attached:
    """One stream. Requests are sent as they are given; answers are read when they are asked for.

    Attributes:
        sequence: of the last request.
    """

    def __init__(self, client: Client, session_id: str = "", timeout: float | None = 30, **opening: Any) -> None:
        self._requests: queue.SimpleQueue[pb.AttachSessionRequest | None] = queue.SimpleQueue()
        self.call: Any = client.compaction.AttachSession(iter(self._requests.get, None), timeout=timeout)
        self.sequence = 0
        if session_id:
            self.opened = self.ask(open=pb.AttachOpen(session_id=session_id, **opening)).opened

    def send(self, sequence: int | None = None, **step: Any) -> int:
        """Sends a step under the next number, or under ``sequence``; returns it."""
        self.sequence = self.sequence + 1 if sequence is None else sequence
        self._requests.put(pb.AttachSessionRequest(sequence=self.sequence, **step))
        return self.sequence

    def next(self) -> pb.AttachSessionResponse:
        """The next message, heartbeats included."""
        answer: pb.AttachSessionResponse = next(self.call)
        return answer

    def answer(self) -> pb.AttachSessionResponse:
        """The next answer."""
        while (found := self.next()).HasField("heartbeat"):
            assert found.sequence == 0
        return found

    def ask(self, **step: Any) -> pb.AttachSessionResponse:
        """Sends a step and reads its answer."""
        number = self.send(**step)
        found = self.answer()
        assert found.sequence == number
        return found

    def end(self) -> list[pb.AttachSessionResponse]:
        """Sends no more; returns the rest of the answers."""
        self._requests.put(None)
        return [a for a in self.call if not a.HasField("heartbeat")]

    def ended(self) -> grpc.RpcError:
        """The error that ended the stream."""
        try:
            self.end()
        except grpc.RpcError as error:
            return error
        raise AssertionError("the stream ended well")

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self._requests.put(None)


def reason_of(status: status_pb2.Status) -> str:
    """The reason in a step's error."""
    return next(_infos(status)).reason


def metadata_of(status: status_pb2.Status) -> dict[str, str]:
    return dict(next(_infos(status)).metadata)


def _infos(status: status_pb2.Status) -> Iterator[error_details_pb2.ErrorInfo]:
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            yield info
