"""G6: durable appends a second of 64 callers, against raw SQLite that writes the same rows with a group commit.

A caller of the store commits one row of 1 KB in a session of its own, with the session's state, which is what makes it
an append; a caller of the floor hands the row to a thread that writes whatever has gathered in one transaction. Both
sync the disk before they answer.
"""

from __future__ import annotations

import json
import queue
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foldline.domain.changes import replace
from foldline.domain.ports import Batch, StoredRow
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
from foldline.store import SqliteStore

CALLERS = 64
APPENDS = 40
"""Of each caller, in one round."""

SEED = 6


class Floor:
    """Raw SQLite: one thread writes, all rows that wait go into one transaction."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(
            "CREATE TABLE row (id INTEGER PRIMARY KEY, session, offset, kind, run_id, pinned, tokens, bytes, revision, "
            "place, body)"
        )
        self._db.execute("CREATE UNIQUE INDEX row_by_offset ON row (session, offset)")
        self._queue: queue.SimpleQueue[tuple[tuple[Any, ...], threading.Lock] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def append(self, caller: int, offset: int, body: bytes) -> None:
        done = threading.Lock()
        done.acquire()
        self._queue.put(((caller, offset, 3, "run", 0, 250, 1000, offset, None, body), done))
        done.acquire()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._db.close()

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            while not self._queue.empty():
                item = self._queue.get()
                assert item is not None
                group.append(item)
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO row (session, offset, kind, run_id, pinned, tokens, bytes, revision, place, body) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [values for values, _ in group],
            )
            self._db.execute("COMMIT")
            for _, done in group:
                done.release()


class Product:
    """The store, a session a caller."""

    def __init__(self, path: Path) -> None:
        self._store = SqliteStore(path, synchronous="FULL")
        made, model = "2026-01-01T00:00:00Z", ModelRef("openai", "x")
        self._sessions = [
            self._store.create_session(Session(0, "bench", f"s{i}", made, model), None) for i in range(CALLERS)
        ]

    def append(self, caller: int, offset: int, body: bytes) -> None:
        before = self._sessions[caller]
        after = replace(before, revision=before.revision + 1, next_offset=offset + 1)
        row = StoredRow(offset, 3, "run", False, 250, 1000, after.revision, body)
        self._store.commit(Batch(before.revision, after, rows=(row,)))
        self._sessions[caller] = after

    def close(self) -> None:
        self._store.close()


def _round(append: Callable[[int, int, bytes], None], first: int, body: bytes) -> float:
    """Appends a second of all callers together."""
    start = threading.Barrier(CALLERS + 1)

    def caller(number: int) -> None:
        start.wait()
        for offset in range(first, first + APPENDS):
            append(number, offset, body)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return CALLERS * APPENDS / (time.perf_counter() - began)


def run(rounds: int) -> dict[str, Any]:
    """Plays ``rounds`` counted rounds of each in turns, after a warm-up; the ratio is product over floor."""
    body = random.Random(SEED).randbytes(1000)
    with tempfile.TemporaryDirectory() as directory:
        floor, product = Floor(Path(directory) / "floor.db"), Product(Path(directory) / "store" / "foldline.db")
        try:
            ratios, floors, products = [], [], []
            for number in range(rounds + 1):
                first = 1 + number * APPENDS
                raw, ours = _round(floor.append, first, body), _round(product.append, first, body)
                if number:
                    floors.append(raw)
                    products.append(ours)
                    ratios.append(ours / raw)
        finally:
            floor.close()
            product.close()
    return {
        "id": "G6",
        "what": f"durable appends a second, {CALLERS} callers, over raw SQLite with a group commit",
        "goal": ">= 0.5",
        "seed": SEED,
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "reached": statistics.median(ratios) >= 0.5,
        "absolute": {"floor": statistics.median(floors), "product": statistics.median(products), "unit": "appends/s"},
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 5), indent=2))
