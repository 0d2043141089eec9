"""Sessions whose rows are folded at once, in a real store, for tests of memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import OffsetRange
from foldline.domain.memory import MemoryQuery
from foldline.domain.ports import Batch, Rewrite, Store, StoredRow
from foldline.domain.rows import (
    AssistantRow,
    ModelRef,
    Row,
    RowBody,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
    encode_body,
    kind_of,
)
from foldline.domain.session import Session
from foldline.memory import MemoryService


def words(text: str) -> int:
    """A token count whose numbers a reader can check: words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def user(text: str, create_time: str = "") -> UserRow:
    return UserRow((TextBlock(text),), create_time=create_time)


def says(text: str, create_time: str = "") -> AssistantRow:
    return AssistantRow((TextBlock(text),), create_time=create_time)


def calls(call_id: str, name: str, arguments_json: str) -> AssistantRow:
    return AssistantRow((ToolCallBlock(call_id, name, arguments_json),))


def result(call_id: str, text: str, call_offset: int | None = None) -> ToolResultRow:
    return ToolResultRow(call_id, (TextBlock(text),), call_offset)


class HashedWords:
    """An embedder that needs no model: each word adds a direction of its own. Texts that share no word are unlike."""

    width = 64
    batch = 1

    def __init__(self, identity: str = "hashed-words/64") -> None:
        self.identity = identity
        self.down = False
        self.refuses = ""
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        if self.down:
            raise FoldlineError(Reason.EMBEDDER_UNAVAILABLE, "the embedder is down")
        vectors = []
        for text in texts:
            if self.refuses and self.refuses in text:
                raise ValueError("this text cannot be embedded")
            self.embedded.append(text)
            vector = np.full(self.width, 1e-3, np.float32)
            for word in re.findall(r"\w+", text.lower()):
                vector += np.random.default_rng(list(word.encode())).standard_normal(self.width).astype(np.float32)
            vectors.append((vector / np.linalg.norm(vector)).astype("<f4").tobytes())
        return vectors

    def query(self, text: str) -> bytes:
        return self.embed([text])[0]


def new_session(store: Store, session_id: str = "s", tenant: str = "t") -> Session:
    session = Session(0, tenant, session_id, "2025-01-01T00:00:00Z", ModelRef("openai", "gpt"))
    return store.create_session(session, None)


def fold(
    store: Store, memory: MemoryService, session: Session, bodies: Sequence[RowBody], *, chunk_tokens: int = 64
) -> Session:
    """Appends rows and publishes their entries, as the fold that discards them does; the rows before are context."""
    first = session.next_offset
    rows = [Row(first + i, body) for i, body in enumerate(bodies)]
    state = replace(
        session, revision=session.revision + 1, next_offset=first + len(rows), rewrites=session.rewrites + 1
    )
    stored = tuple(
        StoredRow(row.offset, int(kind_of(row.body)), "", False, 1, 1, state.revision, encode_body(row.body))
        for row in rows
    )
    entries = memory.project(rows, (), chunk_tokens, True)
    store.commit(Batch(session.revision, state, rows=stored, publish=entries))
    return state


def show_only(store: Store, session: Session, visible: tuple[OffsetRange, ...]) -> Session:
    """What a restore does to memory: only entries of these offsets stay visible (M2)."""
    state = replace(session, revision=session.revision + 1, rewrites=session.rewrites + 1)
    rewrite = Rewrite(state.revision, RevisionKind.RESTORE, session.revision, (), "", 0.0)
    store.commit(Batch(session.revision, state, rewrite=rewrite, visible=visible))
    return state


def texts(memory: MemoryService, session: Session, question: str, **options: object) -> list[str]:
    """Texts of the hits of a question."""
    answer = memory.search(session, MemoryQuery(question, **options))  # type: ignore[arg-type]
    return [hit.entry.text for hit in answer.hits]
