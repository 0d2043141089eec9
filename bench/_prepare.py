"""The call of G3, G4 and G5: PrepareRequest with one appended 1 KB row, EDITS, nothing due."""

from __future__ import annotations

import json
import queue
import random
from collections.abc import Callable
from typing import Any

import grpc
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    compaction_service_pb2_grpc,
    model_pb2,
    row_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)

from bench._servers import ECHO, MODEL, PING_PONG

CHUNK = 500
_WORDS = ("fold", "window", "session", "retry", "ledger", "deploy", "timeout", "queue", "index", "commit", "branch")


def text(seed: int, size: int) -> str:
    """Words of a seed, ``size`` characters long."""
    words = random.Random(seed)
    made = ""
    while len(made) < size:
        made += f"{words.choice(_WORDS)}-{words.randrange(1000)} "
    return made[:size]


def row(seed: int, size: int = 1024, *, answer: bool = False) -> row_pb2.Row:
    block = row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text(seed, size)))
    if answer:
        return row_pb2.Row(assistant=row_pb2.AssistantRow(content=[block]))
    return row_pb2.Row(user=row_pb2.UserRow(content=[block]))


class Session:
    """A session of ``rows`` rows, ready for a boundary."""

    def __init__(self, channel: grpc.Channel, name: str, rows: int) -> None:
        model = model_pb2.ModelRef(provider="openai", model=MODEL)
        self.revision = 0
        sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        sessions.CreateSession(session_service_pb2.CreateSessionRequest(session_id=name, model=model))
        for first in range(0, rows, CHUNK):
            part = [row(first + i, 200, answer=i % 2 == 1) for i in range(min(CHUNK, rows - first))]
            self.revision = sessions.AppendRows(
                session_service_pb2.AppendRowsRequest(
                    session_id=name, input=row_pb2.RowInput(rows=row_pb2.RowList(rows=part))
                )
            ).revision
        self._stub = compaction_service_pb2_grpc.CompactionServiceStub(channel)
        self._name = name
        self._calls = 0
        self._shape = compaction_service_pb2.RequestShape(model=model)
        self.request_bytes = self.answer_bytes = 0
        first = self.request()
        self.answered(first, self._stub.PrepareRequest(first))

    def prepare(self) -> Callable[[], None]:
        """The next call, built beforehand, so that only the call is timed."""
        request = self.request()

        def call() -> None:
            self.answered(request, self._stub.PrepareRequest(request))

        return call

    def request(self) -> compaction_service_pb2.PrepareRequestRequest:
        """The next request."""
        self._calls += 1
        return compaction_service_pb2.PrepareRequestRequest(
            session_id=self._name,
            run_id="run-1",
            request_id=f"{self._name}-{self._calls}",
            append=row_pb2.RowInput(rows=row_pb2.RowList(rows=[row(self._calls)])),
            shape=self._shape,
            reply=compaction_pb2.REPLY_MODE_EDITS,
            known_revision=self.revision,
        )

    def answered(
        self,
        request: compaction_service_pb2.PrepareRequestRequest,
        answer: compaction_service_pb2.PrepareRequestResponse,
    ) -> None:
        """Takes the answer; what is sent next goes on from it."""
        assert answer.action == compaction_pb2.ACTION_SEND
        self.revision = answer.revision
        self.request_bytes, self.answer_bytes = request.ByteSize(), answer.ByteSize()


class LongRun(Session):
    """A session in whose open run ``rounds`` rounds of unlike calls have folded: its ledger holds every call (F3)."""

    def __init__(self, channel: grpc.Channel, name: str, rounds: int) -> None:
        super().__init__(channel, name, 0)
        sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        for first in range(0, rounds, CHUNK):
            part = [each for i in range(first, min(first + CHUNK, rounds)) for each in _round(i)]
            rows = row_pb2.RowInput(rows=row_pb2.RowList(rows=part))
            sessions.AppendRows(session_service_pb2.AppendRowsRequest(session_id=name, run_id="run-1", input=rows))
        self.prepare()()
        folds = self._stub.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id=name))
        self.revision = list(folds)[-1].record.revision_after


def _round(number: int) -> tuple[row_pb2.Row, row_pb2.Row]:
    call_id = f"call-{number}"
    arguments = json.dumps({"path": f"src/module_{number}.py", "query": text(number, 40)})
    call = row_pb2.ToolCallBlock(call_id=call_id, name="read", arguments_json=arguments)
    said = row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text(number, 100)))
    return (
        row_pb2.Row(assistant=row_pb2.AssistantRow(content=[row_pb2.ContentBlock(tool_call=call)])),
        row_pb2.Row(tool_result=row_pb2.ToolResultRow(call_id=call_id, content=[said])),
    )


class Stream:
    """One stream of messages each way, a request and its answer in turn."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers = method(iter(self._requests.get, None))

    def ask(self, request: Any) -> Any:
        self._requests.put(request)
        return next(self._answers)

    def close(self) -> None:
        self._requests.put(None)
        assert list(self._answers) == []


class AttachedSession(Session):
    """The same session, whose calls are steps of one stream."""

    def __init__(self, channel: grpc.Channel, name: str, rows: int) -> None:
        super().__init__(channel, name, rows)
        self.stream = Stream(self._stub.AttachSession)
        self._sequence = 1
        opening = compaction_service_pb2.AttachOpen(session_id=name)
        self.stream.ask(compaction_service_pb2.AttachSessionRequest(sequence=1, open=opening))

    def prepare(self) -> Callable[[], None]:
        self._sequence += 1
        step = compaction_service_pb2.AttachSessionRequest(sequence=self._sequence, prepare=self.request())

        def call() -> None:
            self.answered(step.prepare, self.stream.ask(step).prepared)

        return call


def ping_pong(channel: grpc.Channel, request_bytes: int, answer_bytes: int) -> tuple[Stream, Callable[[], None]]:
    """A stream of echoes with as many bytes each way."""
    stream = Stream(channel.stream_stream(PING_PONG))
    request = answer_bytes.to_bytes(4, "big") + bytes(max(0, request_bytes - 4))
    return stream, lambda: stream.ask(request)


def echo_call(channel: grpc.Channel, request_bytes: int, answer_bytes: int) -> Callable[[], None]:
    """An echo with as many bytes each way."""
    method = channel.unary_unary(ECHO)
    request = answer_bytes.to_bytes(4, "big") + bytes(max(0, request_bytes - 4))

    def call() -> None:
        method(request)

    return call
