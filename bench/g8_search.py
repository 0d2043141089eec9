"""G8: SearchMemory on a warm scope of 10 000 entries, against the parts that any search of this kind has.

The peer embeds the query, asks hnswlib and FTS5 in the bench's own process, and makes an echo of as many bytes; all
four and the product take turns query by query.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np
from foldline.memory.embed import MiniLm
from foldline.memory.terms import query_terms, terms
from foldline.v1 import memory_service_pb2, memory_service_pb2_grpc

from bench._scope import fill, texts, vectors
from bench._servers import ECHO, echo, percentile, product, spread, timed

ENTRIES, QUERIES, HITS = 10_000, 40, 5


def run(rounds: int) -> dict[str, Any]:
    """p50 of the product over the sum of the p50s of its parts (goal 1.5)."""
    said, model = texts(ENTRIES), MiniLm()
    held = vectors(ENTRIES, model.width)
    asked = [" ".join(said[n * 97 % ENTRIES].split()[1:9]) for n in range(QUERIES)]
    with tempfile.TemporaryDirectory(prefix="foldline-bench-") as name:
        fill(Path(name), said, held, model.identity)
        with product("--data", name) as channel, echo() as floor:
            search = memory_service_pb2_grpc.MemoryServiceStub(channel).SearchMemory
            bounce = floor.unary_unary(ECHO, request_serializer=bytes, response_deserializer=bytes)
            index, words = _hnsw(held), _fts(said)
            ratios, parts = [], {}
            for number in range(rounds + 1):
                times: dict[str, list[float]] = {"product": [], "embed": [], "hnswlib": [], "fts5": [], "echo": []}
                for query in asked:
                    request = memory_service_pb2.SearchMemoryRequest(session_id="bench", query=query, limit=HITS)
                    answer = search(request)
                    assert not answer.degraded, answer.degraded_reason
                    payload = answer.ByteSize().to_bytes(4, "big") + bytes(request.ByteSize())
                    question = np.frombuffer(model.query(query), "<f4")
                    times["product"].append(timed(lambda r=request: search(r)))
                    times["embed"].append(timed(lambda q=query: model.query(q)))
                    times["hnswlib"].append(timed(lambda v=question: index.knn_query(v, k=100, num_threads=1)))
                    times["fts5"].append(timed(lambda q=query: _match(words, q)))
                    times["echo"].append(timed(lambda p=payload: bounce(p)))
                if number:
                    middle = {part: percentile(values, 0.5) for part, values in times.items()}
                    ratios.append(middle["product"] / sum(t for part, t in middle.items() if part != "product"))
                    parts = {part: round(t * 1e3, 3) for part, t in middle.items()}
    return {"goal": 1.5, "entries": ENTRIES, "over_its_parts": spread(ratios), "last_round_ms": parts}


def _hnsw(held: Any) -> hnswlib.Index:
    index = hnswlib.Index("ip", held.shape[1])
    index.init_index(len(held), M=16, ef_construction=100)
    index.add_items(held)
    index.set_ef(128)
    return index


def _fts(said: list[str]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5 (text, tokenize = 'porter')")
    db.executemany("INSERT INTO t (text) VALUES (?)", [(" ".join(terms(text)),) for text in said])
    return db


def _match(db: sqlite3.Connection, query: str) -> list[Any]:
    wanted = " OR ".join(f'"{term}"' for term in query_terms(query))
    return db.execute("SELECT rowid, bm25(t) FROM t WHERE t MATCH ? ORDER BY rank LIMIT 100", (wanted,)).fetchall()
