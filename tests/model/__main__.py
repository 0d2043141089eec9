"""``python -m tests.model --operations 20000 --seed 7``: as many steps as asked for, each seed a run of its own."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from foldline.server import logs

from tests.model.driver import Driver
from tests.model.server import Backend


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--operations", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--separate", action="store_true", help="the server in a process of its own, to be killed")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--log", action="store_true", help="show the server's log")
    asked = parser.parse_args()
    if asked.log:
        logs.configure("warning")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fm") as folder:
        backend = Backend(Path(folder), separate=asked.separate, seed=asked.seed)
        try:
            driver = Driver(backend, asked.seed, lambda line: sys.stdout.write(line + "\n") if asked.verbose else None)
            driver.run(asked.operations, asked.seconds)
        finally:
            backend.close()
    sys.stdout.write(f"seed {asked.seed}: {driver.step} steps in {time.monotonic() - started:.0f} s\n")
    sys.stdout.write(", ".join(f"{name} {count}" for name, count in sorted(driver.counts.items())) + "\n")


if __name__ == "__main__":
    main()
