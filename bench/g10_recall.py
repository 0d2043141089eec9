"""G10: recall of what was folded, through the RPCs: rows are appended, folded whole, embedded and searched.

The default set-up in a process of its own. Two inputs: LoCoMo, whose questions name the turns that hold the answer, one
session a dialogue; and a real coding session with 40 questions of our own (``questions.json``) about its identifiers,
decisions and causes of errors. What ranks was tuned on the even-numbered dialogues; the goal is about the odd ones.
Vectors are kept between runs in the temporary directory, since embedding all rows takes a core some minutes; what is
not kept yet the server embeds itself. How many were kept is part of the result; with ``TMPDIR`` another one none is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from foldline.domain.ports import Embedder
from foldline.memory.embed import MiniLm
from foldline.server.codec.rows import wire_rows
from foldline.store import SqliteStore
from foldline.v1 import (
    compaction_service_pb2,
    compaction_service_pb2_grpc,
    memory_service_pb2,
    memory_service_pb2_grpc,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)

from bench import _recall, _recall_peers
from bench._recall import MOST_HITS, Talk
from bench._servers import MODEL, product

VECTORS = Path(tempfile.gettempdir()) / "foldline-bench-vectors"
PART = 200
"""Rows an append."""
PENDING_SECONDS = 7200.0
GOAL, CODING_GOAL, CODING_CUT = 0.80, 0.9, 5
ALL_TOKENS = 1 << 30


class KeptVectors:
    """Vectors of texts, kept in a file between runs."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._file = VECTORS / hashlib.sha256(embedder.identity.encode()).hexdigest()[:16] / "vectors.bin"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        size = 32 + embedder.width * 4
        data = self._file.read_bytes() if self._file.exists() else b""
        self._known = {data[at : at + 32]: data[at + 32 : at + size] for at in range(0, len(data) - size + 1, size)}

    def known(self, text: str) -> bytes | None:
        return self._known.get(hashlib.sha256(text.encode()).digest())

    def keep(self, texts: Iterable[tuple[str, bytes]]) -> None:
        with self._file.open("ab") as file:
            for text, vector in texts:
                name = hashlib.sha256(text.encode()).digest()
                if vector and name not in self._known:
                    self._known[name] = vector
                    file.write(name + vector)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        for text in texts:
            if self.known(text) is None:
                self.keep([(text, self.embedder.embed([text])[0])])
        return [self.known(text) or b"" for text in texts]


class Client:
    """The calls of a host."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self._compaction = compaction_service_pb2_grpc.CompactionServiceStub(channel)
        self._memory = memory_service_pb2_grpc.MemoryServiceStub(channel)

    def fold_whole(self, talk: Talk) -> None:
        """Appends all rows of a session and folds every one of them."""
        model = model_pb2.ModelRef(provider="openai", model=MODEL)
        policy = policy_pb2.Policy(retention=policy_pb2.RetentionPolicy(turns=0, messages=0))
        self._sessions.CreateSession(
            session_service_pb2.CreateSessionRequest(session_id=talk.name, model=model, policy=policy)
        )
        for first in range(0, len(talk.rows), PART):
            rows = wire_rows(talk.rows[first : first + PART])
            for row in rows.rows:
                row.ClearField("offset")
            self._sessions.AppendRows(
                session_service_pb2.AppendRowsRequest(session_id=talk.name, input=row_pb2.RowInput(rows=rows))
            )
        for _ in self._compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id=talk.name)):
            pass

    def search(self, talk: Talk, question: str) -> list[int]:
        """Offsets of the rows that hits are of, best first."""
        return list(dict.fromkeys(hit.offset for hit in self.ask(talk, question, MOST_HITS).hits))

    def ask(self, talk: Talk, question: str, limit: int) -> memory_service_pb2.SearchMemoryResponse:
        return self._memory.SearchMemory(
            memory_service_pb2.SearchMemoryRequest(
                session_id=talk.name, query=question, limit=limit, max_tokens=ALL_TOKENS
            )
        )

    def wait_for_vectors(self, talks: Sequence[Talk]) -> None:
        end = time.monotonic() + PENDING_SECONDS
        for talk in talks:
            while (answer := self.ask(talk, talk.questions[0].text, 1)).degraded:
                if time.monotonic() > end:
                    raise RuntimeError(f"{talk.name}: {answer.degraded_reason}")
                time.sleep(1)


def run(rounds: int = 1) -> dict[str, Any]:
    """Measures once: recall has no noise, so ``rounds`` changes nothing."""
    if not _recall.LOCOMO.exists():
        return {"id": "G10", "skipped": f"{_recall.LOCOMO.name} is not there"}
    talks = _recall.dialogues()
    coding = [_recall.coding()] if _recall.CODING.exists() else []
    kept = KeptVectors(MiniLm())
    with tempfile.TemporaryDirectory(prefix="foldline-bench-") as folder:
        with product("--data", folder, "--set", "memory.embedder=none") as channel:
            client = Client(channel)
            for talk in (*talks, *coding):
                client.fold_whole(talk)
            by_words = _parts(client.search, talks)
            coding_by_words = _coding(client, coding)
        with _store(folder) as store:
            pending = store.pending_vectors(kept.embedder.identity, 1 << 30)
            known = ((stored.id, kept.known(stored.entry.text)) for _, stored in pending)
            before = [(i, vector) for i, vector in known if vector]
            store.put_vectors(kept.embedder.identity, before)
        with product("--data", folder) as channel:
            client = Client(channel)
            client.wait_for_vectors((*talks, *coding))
            ours, ours_coding = _parts(client.search, talks), _coding(client, coding)
        with _store(folder) as store:
            for key in {key for key, _ in pending}:
                texts = {stored.id: stored.entry.text for owner, stored in pending if owner == key}
                kept.keep(
                    (texts[i], vector) for i, vector in store.memory_vectors(key, kept.embedder.identity, list(texts))
                )
    words, meaning = _recall_peers.bm25(talks), _recall_peers.cosine(talks, kept.embed)
    peers = {
        "BM25, stemmed": words,
        "MiniLM": meaning,
        "hashed bag of words": _recall_peers.hashed_words(talks),
        "RRF of BM25 and MiniLM": _recall_peers.rrf(words, meaning),
    }
    reached = ours["odd"]["all"]["recall@10"]
    return {
        "id": "G10",
        "what": "recall through the RPCs: evidence of LoCoMo, one session a dialogue, and answers of a coding session",
        "goal": f"recall@10 >= {GOAL} on the odd dialogues; hit@{CODING_CUT} >= {CODING_GOAL} on the coding session",
        "vectors": {"kept from runs before": len(before), "embedded in this run": len(pending) - len(before)},
        "recall": {"product": ours, "product, words alone": by_words}
        | {name: _parts(search, talks) for name, search in peers.items()},
        "coding": {"product": ours_coding, "product, words alone": coding_by_words},
        "reached": reached >= GOAL and (not coding or ours_coding["all"][f"hit@{CODING_CUT}"] >= CODING_GOAL),
    }


def _parts(search: _recall.Search, talks: Sequence[Talk]) -> dict[str, dict[str, dict[str, float | int]]]:
    """Recall on the dialogues tuned on (even), on the others, and on all."""
    parts = {"even": talks[::2], "odd": talks[1::2], "all": talks}
    return {name: _recall.recall(search, part) for name, part in parts.items()}


def _coding(client: Client, talks: Sequence[Talk]) -> dict[str, dict[str, float | int]]:
    """Share of the questions that have a row with the answer among the first hits."""
    found: dict[str, list[list[float]]] = {}
    for talk in talks:
        for question in talk.questions:
            offsets = [hit.offset for hit in client.ask(talk, question.text, CODING_CUT).hits]
            rank = _recall.reciprocal_rank(offsets, question.evidence)
            for part in (question.kind, "all"):
                found.setdefault(part, []).append([float(rank > 0), rank])
    return {
        part: {"questions": len(rows), f"hit@{CODING_CUT}": _mean(rows, 0), "mrr": _mean(rows, 1)}
        for part, rows in sorted(found.items())
    }


def _mean(rows: Sequence[Sequence[float]], column: int) -> float:
    return round(sum(row[column] for row in rows) / len(rows), 4)


@contextlib.contextmanager
def _store(folder: str) -> Iterator[SqliteStore]:
    store = SqliteStore(Path(folder) / "foldline.db")
    try:
        yield store
    finally:
        store.close()


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1), indent=2))
