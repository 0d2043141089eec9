"""G14: resident memory of a server without its embedder: idle, for an open session of 1 000 rows, for a cold one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import grpc
from foldline.v1 import session_service_pb2, session_service_pb2_grpc

from bench._prepare import Session
from bench._servers import product

SESSIONS, ROWS = 150, 1_000
HELD, COLD = 50_000, 20_000
"""Sessions after which every cache of a server is full, and how many are added beyond them."""


def run(rounds: int) -> dict[str, Any]:
    """MiB idle (goal 150), KB a session (200), B a cold session (200)."""
    with product("--set", "memory.embedder=none") as channel:
        idle = _resident()
        Session(channel, "warm", ROWS).prepare()()
        before = _resident()
        for number in range(SESSIONS):
            Session(channel, f"open-{number}", ROWS).prepare()()
        opened = (_resident() - before) / SESSIONS
    with product("--set", "memory.embedder=none") as channel:
        _create(channel, "held", HELD)
        before = _resident()
        _create(channel, "cold", COLD)
        cold = (_resident() - before) / COLD
    return {
        "goal": {"idle_mib": 150, "open_kb": 200, "cold_bytes": 200},
        "idle_mib": round(idle / 2**20, 1), "open_kb": round(opened / 1000, 1), "cold_bytes": round(cold),
    }  # fmt: skip


def _create(channel: grpc.Channel, name: str, count: int) -> None:
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    for number in range(count):
        stub.CreateSession(session_service_pb2.CreateSessionRequest(session_id=f"{name}-{number}"))


def _resident() -> int:
    """Bytes of the one server that this process started."""
    command = ["pgrep", "-P", str(os.getpid()), "-f", "foldline serve"]
    own = subprocess.run(command, capture_output=True, text=True, check=True)
    status = Path(f"/proc/{own.stdout.split()[0]}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024
