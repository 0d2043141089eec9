"""Real servers on a folder of their own, over TCP and a Unix socket, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from foldline.config import Config
from foldline.domain.ports import Compactor, Summarizer
from foldline.server import app
from foldline.v1 import (
    admin_service_pb2_grpc,
    compaction_service_pb2_grpc,
    curator_service_pb2_grpc,
    estimate_service_pb2_grpc,
    event_service_pb2_grpc,
    memory_service_pb2_grpc,
    session_service_pb2_grpc,
    tool_service_pb2_grpc,
)
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

MESSAGE_BYTES = 64 * 1024 * 1024
ADMIN_KEY = "admin-key-of-the-tests"


@dataclass(frozen=True)
class Refusal:
    """What a client learns of a refused call."""

    code: str
    reason: str
    metadata: dict[str, str]
    message: str
    request_id: str
    violations: tuple[tuple[str, str], ...] = ()
    retry_seconds: float | None = None
    domain: str = ""


def until(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Waits for what another thread or process brings about; False if it takes longer."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def watched(call: Callable[[], Any]) -> Iterator[list[float]]:
    """Makes a call over and over beside the block; yields how many seconds each took, all of them once it is left."""
    waits, over = list[float](), threading.Event()

    def ask() -> None:
        while not over.wait(0.02):
            started = time.monotonic()
            call()
            waits.append(time.monotonic() - started)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield waits
    finally:
        over.set()
        asking.join()


def refusal_of(error: grpc.RpcError) -> Refusal:
    trailing = dict(error.trailing_metadata() or ())
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    found: set[str] = set()
    for detail in status_pb2.Status.FromString(trailing.get("grpc-status-details-bin", b"")).details:
        for kind in (info, bad, retry):
            if detail.Unpack(kind):
                assert kind.DESCRIPTOR.name not in found, "each kind of detail comes at most once"
                found.add(kind.DESCRIPTOR.name)
    return Refusal(
        code=error.code().name,
        reason=info.reason,
        metadata=dict(info.metadata),
        message=error.details() or "",
        request_id=trailing.get("x-request-id", ""),
        violations=tuple((v.field, v.description) for v in bad.field_violations),
        retry_seconds=retry.retry_delay.ToMilliseconds() / 1000 if "RetryInfo" in found else None,
        domain=info.domain,
    )


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Refusal:
    """The refusal of a call; streams are read to their end."""
    try:
        answer = call(*args, **kwargs)
        if isinstance(answer, grpc.Call) and hasattr(answer, "__iter__"):
            list(answer)
    except grpc.RpcError as error:
        return refusal_of(error)
    raise AssertionError("the call was not refused")


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def keys_file(folder: Path) -> str:
    """A file with the key that clients of tests give where one is needed (M7)."""
    path = folder / "admin.keys"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{ADMIN_KEY}\n")
    return str(path)


class Client:
    """Stubs of every service over one channel; they give the admin key where one is needed."""

    def __init__(self, target: str) -> None:
        sizes = [(f"grpc.max_{way}_message_length", MESSAGE_BYTES) for way in ("receive", "send")]
        # A channel of its own each: one that shares connections outlives a server that was restarted.
        self.channel = grpc.insecure_channel(target, options=[*sizes, ("grpc.use_local_subchannel_pool", 1)])
        self.session = session_service_pb2_grpc.SessionServiceStub(self.channel)
        self.compaction = compaction_service_pb2_grpc.CompactionServiceStub(self.channel)
        self.curator = curator_service_pb2_grpc.CuratorServiceStub(self.channel)
        self.memory = memory_service_pb2_grpc.MemoryServiceStub(self.channel)
        self.tool = tool_service_pb2_grpc.ToolServiceStub(self.channel)
        self.event = event_service_pb2_grpc.EventServiceStub(self.channel)
        self.estimate = estimate_service_pb2_grpc.EstimateServiceStub(self.channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        for stub, name in (
            (self.memory, "DropScope"),
            (self.memory, "EnumerateScope"),
            (self.admin, "GetEffectiveConfig"),
        ):
            setattr(stub, name, partial(getattr(stub, name), metadata=bearer(ADMIN_KEY)))

    def serving(self, service: str = "") -> str:
        answer = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10, wait_for_ready=True)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.channel.close()


def config_of(folder: Path, settings: Mapping[str, Any] | None = None) -> Config:
    """A configuration of its own: no file, no environment, a free port, no embedder, an admin key, a quick end."""
    flags = {
        "data": str(folder / "data"),
        "listen": "127.0.0.1:0",
        "socket": str(folder / "s"),
        "memory.embedder": "none",
        "server.drain_grace": 1.0,
        "admin.keys_file": keys_file(folder),
        **(settings or {}),
    }
    return Config.load(env={}, flags=flags)


@contextlib.contextmanager
def started(
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
    clock: Callable[[], float] = time.time,
    compactor: Compactor | None = None,
) -> Iterator[app.Server]:
    """A server of this process that listens and is not ready."""
    server = app.build(config_of(folder, settings), summarizer, clock, compactor)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_server(
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
    clock: Callable[[], float] = time.time,
    compactor: Compactor | None = None,
) -> Iterator[Client]:
    """A client of a server of this process, over TCP."""
    with started(folder, settings, summarizer, clock, compactor) as server:
        server.ready()
        with Client(server.addresses[0]) as client:
            yield client


class Process:
    """``foldline serve`` in a process of its own."""

    def __init__(self, folder: Path, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "foldline", "serve", "--set", f"admin.keys_file={keys_file(folder)}"]
        places = ["--data", str(folder / "data"), "--socket", str(folder / "s"), "--listen", "127.0.0.1:0"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FOLDLINE_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *command,
                    *places,
                    "--set",
                    "memory.embedder=none",
                    "--set",
                    f"admin.keys_file={keys_file(folder)}",
                    *args,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**clean, **(env or {})},
                cwd=folder,
            )

    def wait_ready(self) -> str:
        """The TCP address, once the server says that it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert " serves " in line, self.log.read_text()
        return line.split(" serves ")[1].split(" and ")[0].strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def served_process(folder: Path, *args: str, env: Mapping[str, str] | None = None) -> Iterator[Process]:
    """A server process; killed at the end if it still runs."""
    process = Process(folder, *args, env=env)
    try:
        yield process
    finally:
        process.close()
