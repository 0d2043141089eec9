"""R1: what an agent can still reach of what mattered in the rows that folded, through the RPCs, for each source.

Every real recording, every dialogue and the demo session is appended and folded in pieces of ``PIECE`` tokens, each
fold with the summary of the one before. Of the identifiers that matter in the folded piece (S9, the constraints a user
stated among them) are counted: those in the summary with its appendix, and those that ``SearchMemory``, asked for the
identifier itself, has among its first ``CUT`` hits. Memory is searched by words alone.
``PROVIDER`` asks a fake that quotes requests and counts calls, so that its own share says little; ``MECHANICAL`` stands
in for one that refuses every call for its size (S7).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from foldline.domain.policy import DEFAULT_REDACT
from foldline.domain.rows import NoticeRow, Row, SystemRow, UserRow
from foldline.server.codec.rows import wire_rows
from foldline.summarize.constraints import constraints_of
from foldline.summarize.coverage import mentions, missing
from foldline.summarize.identifiers import Identifier, identifiers_of
from foldline.summarize.reading import read_rows
from foldline.summarize.redact import Redactor
from foldline.summarize.text import source_text
from foldline.v1 import (
    compaction_pb2,
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

from bench import _recall, retention
from bench._servers import MODEL, product
from tests.support.providers import Does, FakeProvider

SOURCES = ("extractive", "mechanical", "provider")
PIECE, CUT, PART, GOAL = 40_000, 5, 200, 0.95
SHORTEST = 400
"""Tokens below which a piece is not folded: its summary would be no shorter."""


@dataclass
class Kept:
    """Identifiers counted over folds."""

    folds: int = 0
    identifiers: int = 0
    summary: int = 0
    found: int = 0
    reached: int = 0

    def add(self, other: Kept) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def shares(self) -> dict[str, float | int]:
        most = max(1, self.identifiers)
        return {
            "folds": self.folds, "identifiers": self.identifiers, "summary": round(self.summary / most, 4),
            f"memory@{CUT}": round(self.found / most, 4), "either": round(self.reached / most, 4),
        }  # fmt: skip


class Host:
    """One session and the folds of its rows."""

    def __init__(self, channel: grpc.Channel, name: str, source: str) -> None:
        self._sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self._compaction = compaction_service_pb2_grpc.CompactionServiceStub(channel)
        self._memory = memory_service_pb2_grpc.MemoryServiceStub(channel)
        self.id = name
        wanted = "EXTRACTIVE" if source == "extractive" else "PROVIDER"
        policy = policy_pb2.Policy(
            auto_compact=False,
            retention=policy_pb2.RetentionPolicy(turns=0, messages=0),
            summary=policy_pb2.SummaryPolicy(
                source=policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{wanted}")
            ),
        )
        model = model_pb2.ModelRef(provider="openai", model=MODEL)
        self._sessions.CreateSession(
            session_service_pb2.CreateSessionRequest(session_id=name, model=model, policy=policy)
        )

    def append(self, rows: Sequence[Row]) -> None:
        for first in range(0, len(rows), PART):
            part = wire_rows(rows[first : first + PART])
            for row in part.rows:
                row.ClearField("offset")
            self._sessions.AppendRows(
                session_service_pb2.AppendRowsRequest(session_id=self.id, input=row_pb2.RowInput(rows=part))
            )

    def fold(self) -> compaction_pb2.CompactionRecord:
        request = compaction_service_pb2.CompactSessionRequest(session_id=self.id)
        return list(self._compaction.CompactSession(request))[-1].record

    def finds(self, identifier: Identifier) -> bool:
        request = memory_service_pb2.SearchMemoryRequest(session_id=self.id, query=identifier.probe[:1000], limit=CUT)
        hits = self._memory.SearchMemory(request).hits
        return any(mentions(text, identifier) for hit in hits for text in (hit.text, " ".join(hit.text.split())))


def recordings() -> Iterator[tuple[str, str, list[Row]]]:
    """File, name of a session and its rows."""
    for number, (name, rows) in enumerate(retention.recordings()):
        yield name, f"{name}-{number}", rows
    if _recall.LOCOMO.exists():
        for talk in _recall.dialogues():
            yield _recall.LOCOMO.name, talk.name, [r for r in talk.rows if not isinstance(r.body, SystemRow)]


def pieces(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows in runs of about ``PIECE`` tokens, parted where a request begins."""
    piece: list[Row] = []
    size = 0
    for row in rows:
        if size >= PIECE and isinstance(row.body, UserRow | NoticeRow):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += retention.count(source_text(row))
    if size >= SHORTEST:
        yield piece


def measure(host: Host, rows: Sequence[Row]) -> Kept:
    """Folds a session piece by piece and counts what is kept of each."""
    kept, mask = Kept(), Redactor(DEFAULT_REDACT).mask
    for piece in pieces(rows):
        host.append(piece)
        record = host.fold()
        reading = read_rows(piece, mask)
        wanted = identifiers_of(reading, [(c.offset, c.text) for c in constraints_of(reading.requests)])
        absent = {i.text for i in missing(wanted, record.summary_text)}
        found = {i.text for i in wanted if host.finds(i)}
        kept.add(Kept(1, len(wanted), len(wanted) - len(absent), len(found), len(wanted) - len(absent - found)))
    return kept


def source(name: str) -> dict[str, Any]:
    """Shares of one source, by file and over all."""
    files: dict[str, Kept] = {}
    with FakeProvider() as fake:
        fake.otherwise = Does("context_exceeded" if name == "mechanical" else "success")
        settings = [
            "memory.embedder=none", "providers.openai.type=openai",
            f"providers.openai.base_url={fake.base_url('openai')}",
        ]  # fmt: skip
        with product(*(word for setting in settings for word in ("--set", setting))) as channel:
            for file, session, rows in recordings():
                files.setdefault(file, Kept()).add(measure(Host(channel, session, name), rows))
    whole = Kept()
    for kept in files.values():
        whole.add(kept)
    return {file: kept.shares() for file, kept in files.items()} | {"all": whole.shares()}


def run(rounds: int = 1) -> dict[str, Any]:
    """Measures once: nothing here is by chance, so ``rounds`` changes nothing."""
    shares = {name: source(name) for name in SOURCES}
    return {
        "id": "R1",
        "what": f"identifiers of folded rows in the summary with its appendix, or among the first {CUT} hits for them",
        "goal": f"extractive >= {GOAL}",
        "shares": shares,
        "reached": shares["extractive"]["all"]["either"] >= GOAL,
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1), indent=2))
