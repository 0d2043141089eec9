"""Records to write, and a scribe that keeps the state of one session as commands would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foldline.domain.changes import replace
from foldline.domain.enums import EntryKind, EntryRole, EventKind, RevisionKind, RowKind, SummarySource, Trigger
from foldline.domain.events import Event
from foldline.domain.folding import CompactionRecord, Coverage, FoldScope, SourceBound, to_ranges
from foldline.domain.memory import MemoryEntry
from foldline.domain.ports import Batch, Rewrite, Store, StoredRequest, StoredRow
from foldline.domain.rows import ModelRef
from foldline.domain.session import Prepared, Session

MODEL = ModelRef("openai", "gpt-x")


def session(session_id: str = "s", tenant: str = "acme", **fields: Any) -> Session:
    return Session(
        key=0, tenant=tenant, session_id=session_id, create_time="2026-01-02T03:04:05+00:00", model=MODEL, **fields
    )


def row(offset: int, revision: int, **fields: Any) -> StoredRow:
    values: dict[str, Any] = {
        "kind": RowKind.USER, "run_id": "", "pinned": False, "tokens": 10, "bytes": 100,
        "body": b'{"type":"user","content":[{"type":"text","text":"row %d"}]}' % offset,
    }  # fmt: skip
    return StoredRow(offset=offset, revision=revision, **(values | fields))


def request(request_id: str, time: float, answer: bytes = b"answer", method: str = "AppendRows") -> StoredRequest:
    return StoredRequest(request_id, method, b"digest of the payload", answer, time)


def prepared(prepare_id: str, revision: int = 0) -> Prepared:
    return Prepared(
        prepare_id=prepare_id, run_id="r", revision=revision, boundary=1, rewrites=0, rows=1, covered_tokens=5,
        request_tokens=9, request_bytes=90, bounded=False, model=MODEL, window=256_000,
    )  # fmt: skip


def entry(offset: int, chunk: int = 0, text: str = "", **fields: Any) -> MemoryEntry:
    text = text or f"entry {offset}"
    values: dict[str, Any] = {"kind": EntryKind.TEXT, "role": EntryRole.USER, "terms": text.lower()}
    return MemoryEntry(offset=offset, chunk=chunk, text=text, **(values | fields))


def event(kind: EventKind = EventKind.WARNING, fold_id: str = "", **fields: Any) -> Event:
    return Event(kind=kind, time=1.5, revision=0, boundary=0, fold_id=fold_id, **fields)


def record(fold_id: str, discarded: Sequence[int], revision: int, **fields: Any) -> CompactionRecord:
    return CompactionRecord(
        fold_id=fold_id, trigger=Trigger.MANUAL, scope=FoldScope.WHOLE, signals=(), revision_before=revision - 1,
        revision_after=revision, discarded=to_ranges(tuple(discarded)), retained=(), summary_offset=0,
        rows_summarized=len(discarded), tokens_before=100, tokens_after=50, bytes_before=1000, bytes_after=500,
        summary_source=SummarySource.EXTRACTIVE, bound=SourceBound(), coverage=Coverage(), digest="d",
        summary_text="what was done", duration=0.1, boundary=0, **fields,
    )  # fmt: skip


@dataclass
class Scribe:
    """One session with its active list, written step by step; every step is one commit."""

    store: Store
    session: Session
    active: list[int]

    @classmethod
    def create(cls, store: Store, session_id: str = "s", **fields: Any) -> Scribe:
        return cls(store, store.create_session(session(session_id, **fields), None), [])

    @property
    def key(self) -> int:
        return self.session.key

    def append(self, count: int = 1, places: Sequence[int | None] = (), **fields: Any) -> tuple[Event, ...]:
        """Appends rows; ``places`` names, row by row, the row each stands behind; ``fields`` are the batch's."""
        revision = self.session.revision + 1
        rows = []
        for index in range(count):
            offset = self.session.next_offset + index
            place = places[index] if index < len(places) else None
            rows.append(row(offset, revision, place=place))
            at = len(self.active) if place is None else self.active.index(place) + 1
            self.active.insert(at, offset)
        after = replace(self.session, revision=revision, next_offset=self.session.next_offset + count)
        return self.commit(after, rows=tuple(rows), **fields)

    def rewrite(
        self, active: Sequence[int], kind: RevisionKind = RevisionKind.EDIT, rows: int = 0, **fields: Any
    ) -> tuple[Event, ...]:
        """Sets the active list; ``rows`` new ones, whose offsets ``active`` may name, come with it."""
        revision = self.session.revision + 1
        first = self.session.next_offset
        after = replace(self.session, revision=revision, next_offset=first + rows, rewrites=self.session.rewrites + 1)
        new = Rewrite(
            revision, kind, fields.pop("parent", revision - 1), to_ranges(tuple(active)), f"digest {revision}", 2.5,
            fields.pop("record", None), fields.pop("note", ""),
        )  # fmt: skip
        events = self.commit(after, rows=tuple(row(first + i, revision) for i in range(rows)), rewrite=new, **fields)
        self.active = list(active)
        return events

    def commit(self, after: Session | None = None, **fields: Any) -> tuple[Event, ...]:
        """Commits ``fields`` of a batch, at the same revision unless ``after`` says otherwise."""
        after = after or self.session
        events = self.store.commit(Batch(self.session.revision, after, **fields))
        self.session = after
        return events
