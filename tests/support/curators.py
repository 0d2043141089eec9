"""A host's end of a Curate stream, for tests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from foldline.v1 import curator_pb2, row_pb2
from foldline.v1 import curator_service_pb2 as pb

from tests.support.server import Client


@dataclass(frozen=True)
class Task:
    """A task with all its rows; ``parts`` is how many messages they came in."""

    head: curator_pb2.CuratorTask
    rows: tuple[row_pb2.Row, ...]
    parts: int

    @property
    def id(self) -> str:
        return self.head.task_id


class Curator:
    """One stream. What the sidecar says is read on a thread of its own and kept in order.

    Args:
        reads: False for a host that takes nothing but its registration.
    """

    def __init__(self, client: Client, *, reads: bool = True, register: bool = True, **fields: Any) -> None:
        self._requests: queue.SimpleQueue[pb.CurateRequest | None] = queue.SimpleQueue()
        self.call: Any = client.curator.Curate(iter(self._requests.get, None))
        self.sequence = 0
        self.heard: list[pb.CurateResponse] = []
        self.error: grpc.RpcError | None = None
        self._changed = threading.Condition()
        self._read = 0
        self._ended = False
        if register:
            fields.setdefault("role", curator_pb2.CURATOR_ROLE_CURATOR)
            self.send(register=curator_pb2.CuratorRegister(**fields))
            first = next(self.call)
            assert first.sequence == 1
            self.id: str = first.registered.curator_id
            self.interval = first.registered.heartbeat_interval.ToTimedelta().total_seconds()
        if reads:
            threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for message in self.call:
                with self._changed:
                    self.heard.append(message)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            self.error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def send(self, sequence: int | None = None, **message: Any) -> None:
        self.sequence = self.sequence + 1 if sequence is None else sequence
        self._requests.put(pb.CurateRequest(sequence=self.sequence, **message))

    def next(self, kind: str, seconds: float = 10) -> Any:
        """The next message of a kind that was not read yet; others are passed over."""
        with self._changed:

            def found() -> bool:
                return any(m.HasField(kind) for m in self.heard[self._read :])

            assert self._changed.wait_for(lambda: found() or self._ended, seconds), f"no {kind} came"
            assert found(), f"the stream ended before a {kind} came: {self.error}"
            at = next(i for i in range(self._read, len(self.heard)) if self.heard[i].HasField(kind))
            self._read = at + 1
            return getattr(self.heard[at], kind)

    def task(self, seconds: float = 10) -> Task:
        head = self.next("task", seconds)
        rows, more, parts = list(head.rows), head.more_rows, 1
        while more:
            further = self.next("rows", seconds)
            assert further.task_id == head.task_id
            rows += further.rows
            more, parts = further.more_rows, parts + 1
        return Task(head, tuple(rows), parts)

    def beat(self, *task_ids: str) -> None:
        self.send(heartbeat=curator_pb2.CuratorHeartbeat(task_ids=task_ids))

    def answer(self, task: Task | str, text: str, **fields: Any) -> None:
        summary = curator_pb2.CuratorSummary(text=text, **fields)
        self._result(task, summary=summary)

    def rewrite(self, task: Task | str, keep: list[int], text: str, **fields: Any) -> None:
        made = curator_pb2.CompactorRewrite(keep_offsets=keep, text=text, **fields)
        self._result(task, rewrite=made)

    def fail(self, task: Task | str, message: str = "", **fields: Any) -> None:
        self._result(task, failure=curator_pb2.CuratorFailure(message=message, **fields))

    def _result(self, task: Task | str, **kind: Any) -> None:
        task_id = task if isinstance(task, str) else task.id
        self.send(result=curator_pb2.CuratorResult(task_id=task_id, **kind))

    def serving(self, write: Callable[[Task], str]) -> Curator:
        """Answers every task on a thread of its own, until the stream ends."""

        def run() -> None:
            while True:
                try:
                    task = self.task(seconds=3600)
                except AssertionError:
                    return
                self.answer(task, write(task))

        threading.Thread(target=run, daemon=True).start()
        return self

    def leave(self) -> None:
        """Sends no more, which ends the stream."""
        self._requests.put(None)

    def close(self) -> None:
        self.call.cancel()
        self._requests.put(None)

    def ended(self, seconds: float = 10) -> grpc.RpcError | None:
        """The error that ended the stream, None where it ended well."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, seconds), "the stream goes on"
        return self.error

    def __enter__(self) -> Curator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
