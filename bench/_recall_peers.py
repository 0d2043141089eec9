"""Other recipes for the same questions, one entry a turn, in one process: what the product is compared with."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bench._recall import MOST_HITS, Search, Talk, text_of

Floats = npt.NDArray[np.float32]

RRF_K = 60
BUCKETS = 4096


def bm25(talks: Sequence[Talk]) -> Search:
    """BM25 of SQLite's FTS5 with Porter stems, every word of the question."""
    db = sqlite3.connect(":memory:")
    for number, talk in enumerate(talks):
        db.execute(f"CREATE VIRTUAL TABLE t{number} USING fts5 (text, tokenize = 'porter unicode61')")
        db.executemany(
            f"INSERT INTO t{number} (rowid, text) VALUES (?, ?)", [(row.offset, text_of(row)) for row in talk.rows]
        )
    numbers = {talk.name: number for number, talk in enumerate(talks)}

    def search(talk: Talk, question: str) -> list[int]:
        quoted = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        table = f"t{numbers[talk.name]}"
        rows = db.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid", (quoted,))
        return [offset for (offset,) in rows]

    return search


def hashed_words(talks: Sequence[Talk]) -> Search:
    """Cosine of hashed bags of words, 4 096 wide."""

    def vector(text: str) -> Floats:
        counts = np.zeros(BUCKETS, np.float32)
        for word in re.findall(r"\w+", text.lower()):
            counts[zlib.crc32(word.encode()) % BUCKETS] += 1
        return counts / max(float(np.linalg.norm(counts)), 1.0)

    return _nearest({talk.name: np.stack([vector(text_of(row)) for row in talk.rows]) for talk in talks}, vector)


def cosine(talks: Sequence[Talk], embed: Callable[[Sequence[str]], list[bytes]]) -> Search:
    """Cosine of the default model's vectors alone."""

    def vector(text: str) -> Floats:
        return np.frombuffer(embed([text])[0], "<f4")

    return _nearest({talk.name: np.stack([vector(text_of(row)) for row in talk.rows]) for talk in talks}, vector)


def _nearest(matrices: dict[str, Floats], vector: Callable[[str], Floats]) -> Search:
    def search(talk: Talk, question: str) -> list[int]:
        scores = matrices[talk.name] @ vector(question)
        return [int(at) + 1 for at in np.argsort(-scores, kind="stable")]

    return search


def rrf(*rankings: Search) -> Search:
    """Reciprocal rank fusion, k = 60."""

    def search(talk: Talk, question: str) -> list[int]:
        scores: dict[int, float] = {}
        for ranking in rankings:
            for rank, offset in enumerate(ranking(talk, question), 1):
                scores[offset] = scores.get(offset, 0.0) + 1 / (RRF_K + rank)
        return sorted(scores, key=lambda offset: (-scores[offset], offset))[:MOST_HITS]

    return search
