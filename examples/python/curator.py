"""A curator: a host that connects to a Foldline sidecar and writes the summaries of its sessions.

    python examples/python/curator.py --target 127.0.0.1:7420

Sessions whose policy says `summary.source: CURATOR` are summarized here and nowhere else. What it writes is made from
the rows alone, so that it needs no model and no key; put your own into `summary`. It says on standard output what it
does, and comes back when the sidecar was away.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import grpc
from foldline.v1 import curator_pb2, curator_service_pb2, curator_service_pb2_grpc, row_pb2

CAUSES_TO_COME_BACK = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


def summary(task: curator_pb2.CuratorTask, rows: Sequence[row_pb2.Row]) -> str:
    """What was asked, called and said last, in at most one character a token of the budget."""
    asked = [line(row.user.content) for row in rows if row.HasField("user")]
    said = [line(row.assistant.content) for row in rows if row.HasField("assistant")]
    made = [b.tool_call.name for row in rows for b in row.assistant.content if b.HasField("tool_call")]
    failed = sum(row.tool_result.is_error for row in rows)
    lines = ["Work so far, as its host tells it."]
    if task.HasField("earlier_summary"):
        lines.append(f"Before: {cut(task.earlier_summary.text, task.budget_tokens // 3)}")
    if made:
        lines.append(f"Called: {', '.join(f'{n} x{c}' for n, c in sorted(Counter(made).items()))}; {failed} failed.")
    if any(said):
        lines.append(f"Said last: {[text for text in said if text][-1]}")
    lines += [f"Asked: {text}" for text in reversed(asked) if text]
    return cut("\n".join(lines), task.budget_tokens)


def line(blocks: Sequence[row_pb2.ContentBlock]) -> str:
    return cut(" ".join(" ".join(b.text.text for b in blocks if b.HasField("text")).split()), 160)


def cut(text: str, most: int) -> str:
    return text[:most].rstrip()


class Stream:
    """One stream: what is sent is queued, what is received is acted on, each task on a thread of its own."""

    def __init__(self, register: curator_pb2.CuratorRegister, delay: float) -> None:
        self.register, self.delay = register, delay
        self.outgoing: queue.SimpleQueue[curator_service_pb2.CurateRequest | None] = queue.SimpleQueue()
        self.tasks: dict[str, tuple[curator_pb2.CuratorTask, list[row_pb2.Row]]] = {}
        self.lock, self.over = threading.Lock(), threading.Event()
        self.sequence = 0

    def send(self, **message: object) -> None:
        with self.lock:
            self.sequence += 1
            self.outgoing.put(curator_service_pb2.CurateRequest(sequence=self.sequence, **message))

    def run(self, stub: curator_service_pb2_grpc.CuratorServiceStub) -> None:
        self.send(register=self.register)
        try:
            for message in stub.Curate(iter(self.outgoing.get, None)):
                self.hear(message)
        finally:
            self.over.set()
            self.outgoing.put(None)

    def hear(self, message: curator_service_pb2.CurateResponse) -> None:
        kind = message.WhichOneof("kind")
        if kind == "registered":
            interval = message.registered.heartbeat_interval.ToTimedelta().total_seconds()
            print("connected", message.registered.curator_id, flush=True)
            threading.Thread(target=self.beat, args=(interval / 3,), daemon=True).start()
        elif kind == "task":
            print("task", message.task.task_id, message.task.session_id, flush=True)
            self.tasks[message.task.task_id] = (message.task, list(message.task.rows))
            if not message.task.more_rows:
                self.start(message.task.task_id)
        elif kind == "rows" and message.rows.task_id in self.tasks:
            self.tasks[message.rows.task_id][1].extend(message.rows.rows)
            if not message.rows.more_rows:
                self.start(message.rows.task_id)
        elif kind == "cancel":
            print("cancelled", message.cancel.task_id, message.cancel.reason, flush=True)
            self.tasks.pop(message.cancel.task_id, None)

    def beat(self, seconds: float) -> None:
        while not self.over.wait(seconds):
            self.send(heartbeat=curator_pb2.CuratorHeartbeat(task_ids=list(self.tasks)))

    def start(self, task_id: str) -> None:
        threading.Thread(target=self.write, args=(task_id, *self.tasks[task_id]), daemon=True).start()

    def write(self, task_id: str, task: curator_pb2.CuratorTask, rows: list[row_pb2.Row]) -> None:
        time.sleep(self.delay)
        result = curator_pb2.CuratorResult(task_id=task_id)
        try:
            result.summary.text = summary(task, rows)
        except Exception as error:
            result.failure.message = f"the summary could not be written: {type(error).__name__}"
        if self.tasks.pop(task_id, None) is not None:
            self.send(result=result)
            print("answered", task_id, flush=True)


def labels(pairs: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        key, _, value = pair.partition("=")
        yield key, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="127.0.0.1:7420", help="host:port, or unix:///path")
    parser.add_argument("--name", default="python", help="what the sidecar's log calls it")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="a session must have it")
    parser.add_argument("--tasks", type=int, default=4, help="tasks at once")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that a summary takes")
    given = parser.parse_args()
    register = curator_pb2.CuratorRegister(
        role=curator_pb2.CURATOR_ROLE_CURATOR, name=given.name, labels=dict(labels(given.label)), max_tasks=given.tasks
    )
    with grpc.insecure_channel(given.target, options=[("grpc.max_reconnect_backoff_ms", 2000)]) as channel:
        stub = curator_service_pb2_grpc.CuratorServiceStub(channel)
        while True:
            try:
                Stream(register, given.delay).run(stub)
            except grpc.RpcError as error:
                if error.code() not in CAUSES_TO_COME_BACK:
                    raise
                print("away", error.code().name, flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
