"""G9: the first search of a scope of 10 000 entries that is not in memory, against reading its vectors from SQLite.

Both in the bench's own process, from the same file; the embedder is loaded, the scope is let go before each search.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from foldline import _core
from foldline.domain.memory import MemoryQuery
from foldline.memory import MemoryService, ScopeCache
from foldline.memory.embed import MiniLm
from foldline.store import SqliteStore

from bench._scope import fill, texts, vectors
from bench._servers import percentile, spread, timed

ENTRIES, TIMES = 10_000, 8


def run(rounds: int) -> dict[str, Any]:
    """The product over the read (goal 3)."""
    said, model = texts(ENTRIES), MiniLm()
    with tempfile.TemporaryDirectory(prefix="foldline-bench-") as name:
        fill(Path(name), said, vectors(ENTRIES, model.width), model.identity)
        store = SqliteStore(Path(name) / "foldline.db", synchronous="NORMAL")
        memory = MemoryService(
            store, lambda: model, ScopeCache(1 << 28), lambda text: _core.count_tokens(text, "o200k_base")
        )
        memory.start()
        session = store.load_session("", "bench")
        assert session is not None
        reader = sqlite3.connect(Path(name) / "foldline.db")
        query = MemoryQuery(" ".join(said[777].split()[1:9]))
        memory.search(session, query)
        ratios, warm = [], []
        for number in range(rounds + 1):
            times: dict[str, list[float]] = {"cold": [], "read": [], "warm": []}
            for _ in range(TIMES):
                memory.forget(session.key)
                times["cold"].append(timed(lambda: memory.search(session, query)))
                times["read"].append(timed(lambda: _read(reader, model.width)))
                times["warm"].append(timed(lambda: memory.search(session, query)))
            if number:
                middle = {part: percentile(values, 0.5) for part, values in times.items()}
                ratios.append(middle["cold"] / middle["read"])
                warm.append((middle["cold"] - middle["warm"]) / middle["read"])
            time.sleep(0)
        memory.stop()
        reader.close()
        store.close()
    ends = {part: round(t * 1e3, 2) for part, t in middle.items()}
    return {
        "goal": 3.0, "entries": ENTRIES, "over_the_read": spread(ratios), "of_that_beyond_a_warm_search": spread(warm),
        "last_round_ms": ends,
    }  # fmt: skip


def _read(db: sqlite3.Connection, width: int) -> np.ndarray:
    found = db.execute("SELECT entry_id, vector FROM memory_vector ORDER BY entry_id").fetchall()
    return np.frombuffer(b"".join(vector for _, vector in found), "<f4").reshape(len(found), width)
