"""A data directory with one session whose memory holds many entries: what G8, G9 and G11 search."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from foldline import _core
from foldline.domain.changes import replace
from foldline.domain.ports import Batch, StoredRow
from foldline.domain.rows import AssistantRow, ModelRef, Row, RowBody, TextBlock, UserRow, encode_body, kind_of
from foldline.domain.session import Session
from foldline.memory import MemoryService, ScopeCache
from foldline.store import SqliteStore

Floats = npt.NDArray[np.float32]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "locomo10.json"
SEED, FOLD, THEMES, RANK = 8, 500, 400, 48
WORDS = (
    "parser", "trailing", "comma", "config", "retry", "orders", "migrated", "commit", "passed", "failed", "rewrote",
    "because", "window", "queue", "deploy", "timeout", "branch", "walnut", "garden", "release", "meeting", "invoice",
)  # fmt: skip


def texts(count: int) -> list[str]:
    """Turns of the LoCoMo dialogues, again with other numbers where more are wanted; made up without the file."""
    chosen = random.Random(SEED)
    if DATA.exists():
        talks = [item["conversation"] for item in json.loads(DATA.read_text())]
        turns = [t for talk in talks for name, part in talk.items() if isinstance(part, list) for t in part]
        said = [f"{t['speaker']}: {t['text']}" for t in turns if isinstance(t, dict)]
    else:
        said = [" ".join(chosen.choices(WORDS, k=25)) for _ in range(count)]
    return [said[n % len(said)] + (f" ({n})" if n >= len(said) else "") for n in range(count)]


def vectors(count: int, width: int, seed: int = SEED) -> Floats:
    """Unit vectors that lie as those of texts do: in themes, with few directions that matter, and some noise."""
    made = np.random.default_rng(seed)
    themes = made.standard_normal((THEMES, width)) * (1 / (1 + np.arange(width) / RANK))
    spread = made.standard_normal((RANK, width))
    parts = [
        themes[made.integers(0, THEMES, size)]
        + made.standard_normal((size, RANK)) @ spread / np.sqrt(RANK) * 0.6
        + made.standard_normal((size, width)) * 0.15
        for size in [min(5000, count - at) for at in range(0, count, 5000)]
    ]
    found = np.concatenate(parts).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def fill(folder: Path, said: Sequence[str], held: Floats, identity: str, session_id: str = "bench") -> Session:
    """Writes a session whose rows all have folded, 500 a fold, and the vectors of its entries."""
    store = SqliteStore(folder / "foldline.db", synchronous="NORMAL")
    memory = MemoryService(store, None, ScopeCache(0), lambda text: _core.count_tokens(text, "o200k_base"))
    session = store.create_session(
        Session(0, "", session_id, "2025-01-01T00:00:00+00:00", ModelRef("bench", "bench")), None
    )
    for start in range(0, len(said), FOLD):
        bodies: list[RowBody] = [
            UserRow((TextBlock(text),)) if n % 2 else AssistantRow((TextBlock(text),))
            for n, text in enumerate(said[start : start + FOLD])
        ]
        rows = [Row(session.next_offset + n, body) for n, body in enumerate(bodies)]
        state = replace(
            session, revision=session.revision + 1, next_offset=session.next_offset + len(rows),
            rewrites=session.rewrites + 1,
        )  # fmt: skip
        stored = tuple(
            StoredRow(r.offset, int(kind_of(r.body)), "", False, 1, 1, state.revision, encode_body(r.body))
            for r in rows
        )
        entries = memory.project(rows, (), 256, True)
        store.commit(Batch(session.revision, state, rows=stored, publish=entries))
        session = state
    pending = store.pending_vectors(identity, len(held))
    given = [(stored.id, held[n % len(held)].astype("<f4").tobytes()) for n, (_, stored) in enumerate(pending)]
    for start in range(0, len(given), 1000):
        store.put_vectors(identity, given[start : start + 1000])
    store.merge_segments()
    store.close()
    return session
