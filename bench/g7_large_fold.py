"""G7: a fold of 10 000 rows (1 M tokens), its summary excluded, against writing the same rows once in SQLite.

The fold is whole: reading, plan, checks, digests, index, commit. Vectors follow in the background (M8), so against the
peer that embeds the same texts a fold is timed until all its vectors are stored, on fewer rows, since embedding takes
tens of milliseconds of a core a row.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foldline.commands.append_rows import Append, append_rows
from foldline.commands.compact_session import Compact, compact_session
from foldline.commands.list_rows import to_row
from foldline.commands.services import Caller, Services
from foldline.commands.sessions import NewSession, create_session
from foldline.config import Config
from foldline.domain.enums import SummarySource
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.domain.ports import StoredRow
from foldline.domain.rows import AssistantRow, ModelRef, NewRow, TextBlock, ToolCallBlock, ToolResultRow, UserRow
from foldline.memory.embed import MiniLm
from foldline.server import app

from bench import _prepare
from bench._servers import MODEL, WINDOW, spread

ROWS, EMBEDDED_ROWS, CHUNK, SEED = 10_000, 100, 500, 7
ROW_CHARS = 420
"""About 100 tokens."""
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SUMMARY = SummaryResult("What was said and done, in short.", (), SummarySource.EXTRACTIVE)
CALLER = Caller()


class Written:
    """A summary that is there at once: what it takes to write one is not this figure's."""

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        return SUMMARY


def _texts() -> Iterator[str]:
    """Pieces of real coding and talk, in an order of the seed; words of a seed where those are missing."""
    pieces: list[str] = []
    for file in (DATA / name for name in ("coding-session.jsonl", "locomo10.json", "airline-runs.json")):
        whole = "\n".join(t for t in _strings(_read(file)) if len(t) >= 20)
        pieces += [whole[at : at + ROW_CHARS] for at in range(0, len(whole) - ROW_CHARS, ROW_CHARS)]
    random.Random(SEED).shuffle(pieces)
    for number in itertools.count(1):
        yield f"{number}. {pieces[number % len(pieces)]}" if pieces else _prepare.text(number, ROW_CHARS)


def _read(file: Path) -> Any:
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(below)


def _rows(count: int) -> list[NewRow]:
    """Turns of a request, a call, its result and an answer."""
    texts, rows = _texts(), list[NewRow]()
    while len(rows) < count:
        call = f"call_{len(rows)}"
        arguments = json.dumps({"path": f"src/module_{len(rows)}.py", "query": next(texts)[:200]})
        said = TextBlock(next(texts)[:200])
        rows += [
            NewRow(UserRow((TextBlock(next(texts)),))),
            NewRow(AssistantRow((said, ToolCallBlock(call, "search_files", arguments)))),
            NewRow(ToolResultRow(call, (TextBlock(next(texts)),))),
            NewRow(AssistantRow((TextBlock(next(texts)),))),
        ]
    return rows[:count]


def _session(services: Services, name: str, rows: list[NewRow]) -> list[StoredRow]:
    policy = {"retention.turns": 0, "retention.messages": 0, "background.enabled": False}
    create_session(services, CALLER, NewSession(name, ModelRef("openai", MODEL), policy))
    for first in range(0, len(rows), CHUNK):
        append_rows(services, CALLER, Append(name, tuple(rows[first : first + CHUNK])))
    with services.sessions.use("", name) as live:
        return services.store.read_rows(live.session.key, live.offsets())


def _fold(services: Services, name: str) -> int:
    record = compact_session(services, CALLER, Compact(name), lambda step: None)
    assert record.memory_entries > 0.9 * record.rows_summarized
    return record.rows_summarized


def _write(path: Path, rows: list[StoredRow]) -> None:
    """One transaction that writes the rows as they are, synced before it ends."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    columns = "session, offset, kind, run_id, pinned, tokens, bytes, revision, place, body"
    db.execute(f"CREATE TABLE row (id INTEGER PRIMARY KEY, {columns})")
    db.execute("CREATE UNIQUE INDEX row_by_offset ON row (session, offset)")
    db.execute("BEGIN IMMEDIATE")
    db.executemany(
        f"INSERT INTO row ({columns}) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(r.offset, int(r.kind), r.run_id, r.pinned, r.tokens, r.bytes, r.revision, r.place, r.body) for r in rows],
    )
    db.execute("COMMIT")
    db.close()


def run(rounds: int) -> dict[str, Any]:
    """Ratios of a fold over its peers: the rows written once (goal 1.3 with embedding)."""
    return {
        "goal": 1.3,
        "seed": SEED,
        "real_input": (DATA / "coding-session.jsonl").exists(),
        "without_embedding": _measure(rounds, ROWS, None),
        "with_embedding": _measure(rounds, EMBEDDED_ROWS, MiniLm()),
    }


def _measure(rounds: int, count: int, embedder: MiniLm | None) -> dict[str, Any]:
    ratios, times, new = [], [], _rows(count)
    with tempfile.TemporaryDirectory(prefix="foldline-bench-") as folder:
        catalog = Path(folder) / "models.json"
        catalog.write_text(json.dumps({MODEL: {"context_window": WINDOW, "type": "openai", "encoding": "o200k_base"}}))
        flags = {
            "data": folder, "listen": "", "socket": "", "catalog": str(catalog), "log.level": "error",
            "memory.embedder": "minilm" if embedder else "none",
        }  # fmt: skip
        server = app.build(Config.load(env={}, flags=flags), Written())
        services = server.services
        try:
            services.memory.start()
            for number in range(rounds + 1):
                rows = _session(services, f"g7-{number}", new)
                texts = [services.memory.row_text(to_row(row).body) for row in rows]
                started = time.perf_counter()
                folded = _fold(services, f"g7-{number}")
                assert embedder is None or services.memory.settle(600)
                ours = time.perf_counter() - started
                started = time.perf_counter()
                _write(Path(folder) / f"floor-{number}.db", rows)
                if embedder:
                    for text in texts:
                        embedder.embed([text])
                floor = time.perf_counter() - started
                if number:
                    ratios.append(ours / floor)
                    times.append((ours, floor))
        finally:
            server.stop()
    ours, floor = sorted(times)[len(times) // 2]
    tokens = sum(r.tokens for r in rows)
    seconds = {"fold": ours, "floor": floor}
    return {**spread(ratios), "rows": count, "folded": folded, "tokens": tokens, "seconds": seconds}
