"""G16: start to ready of ``foldline serve``, against ``import grpc`` and an empty server on the same interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench._servers import spread

STARTS = 5
EMPTY = """
from concurrent.futures import ThreadPoolExecutor
import grpc
server = grpc.server(ThreadPoolExecutor(16))
server.add_insecure_port("127.0.0.1:0")
server.start()
print("serves", flush=True)
server.wait_for_termination()
"""


def run(rounds: int) -> dict[str, Any]:
    """Ratio of the times to the line that says that it serves (goal 2): a new store, and one that is there already."""
    with tempfile.TemporaryDirectory(prefix="foldline-bench-") as folder:
        _start(_serve(Path(folder) / "old"))
        return {
            "goal": 2.0,
            "existing_store": _measure(rounds, lambda _: Path(folder) / "old"),
            "new_store": _measure(rounds, lambda number: Path(folder) / f"new-{number}"),
        }


def _measure(rounds: int, place: Any) -> dict[str, Any]:
    ratios, times = [], []
    for number in range(rounds + 1):
        mine, floor = [], []
        for start in range(STARTS):
            mine.append(_start(_serve(place(f"{number}-{start}"))))
            floor.append(_start([sys.executable, "-c", EMPTY]))
        if number:
            ratios.append(_median(mine) / _median(floor))
            times.append((_median(mine), _median(floor)))
    middle = sorted(times)[len(times) // 2]
    return {"ratio": spread(ratios), "milliseconds": {"foldline": middle[0] * 1e3, "empty": middle[1] * 1e3}}


def _serve(folder: Path) -> list[str]:
    places = ["--data", str(folder), "--listen", "127.0.0.1:0", "--socket", ""]
    return [sys.executable, "-m", "foldline", "serve", *places, "--set", "log.level=error"]


def _start(command: list[str]) -> float:
    """Seconds from the start of a process to its first line."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOLDLINE_")}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=clean)
    assert process.stdout is not None
    line = process.stdout.readline()
    taken = time.perf_counter() - started
    process.kill()
    process.wait()
    process.stdout.close()
    assert b"serves" in line
    return taken


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
