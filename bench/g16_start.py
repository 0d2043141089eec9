"""G16: start to ready of ``foldline serve``, against ``import grpc`` and an empty server on the same interpreter.

Both find their modules compiled, as an installation has them. Of what development alone installs structlog would import
rich, which is kept from both.
"""

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
PRODUCT = """
import sys
sys.modules["rich"] = None
from foldline.cli.main import main
main()
"""
EMPTY = """
import sys
sys.modules["rich"] = None
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
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        _start(_serve(Path(folder) / "old"))
        _start(_empty())
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
            floor.append(_start(_empty()))
        if number:
            ratios.append(_median(mine) / _median(floor))
            times.append((_median(mine), _median(floor)))
    middle = sorted(times)[len(times) // 2]
    return {"ratio": spread(ratios), "milliseconds": {"foldline": middle[0] * 1e3, "empty": middle[1] * 1e3}}


def _serve(folder: Path) -> list[str]:
    places = ["--data", str(folder), "--listen", "127.0.0.1:0", "--socket", ""]
    return [sys.executable, "-c", PRODUCT, "serve", *places, "--set", "log.level=error"]


def _empty() -> list[str]:
    return [sys.executable, "-c", EMPTY]


def _start(command: list[str]) -> float:
    """Seconds from the start of a process to its first line."""
    own = ("FOLDLINE_", "PYTHONDONTWRITEBYTECODE")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(own)}
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
