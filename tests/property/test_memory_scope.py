"""Folds, restores and drops in any order, against what memory may then show (M1, M2, M7)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from foldline.domain.enums import EntryRole
from foldline.domain.memory import MemoryFilter, MemoryQuery
from foldline.domain.session import Session
from foldline.memory import MemoryService, ScopeCache
from foldline.store import SqliteStore
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.memory.scopes import HashedWords, fold, new_session, says, show_only, user, words

WORDS = ["walnut", "parrot", "release", "config_path", "E-12"]
NAMES = st.sampled_from(["a", "b"])


class Scopes(RuleBasedStateMachine):
    """Two sessions; each says a word in every row, with the row's session, so that a stray hit shows."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.store = SqliteStore(Path(self._directory.name) / "foldline.db", synchronous="NORMAL")
        self.embedder = HashedWords()
        self.memory = MemoryService(self.store, lambda: self.embedder, ScopeCache(8_000), words)
        self.memory.start()
        self.sessions: dict[str, Session] = {name: new_session(self.store, name) for name in ("a", "b")}
        self.said: dict[str, dict[int, str]] = {"a": {}, "b": {}}
        self.shown: dict[str, set[int]] = {"a": set(), "b": set()}

    def teardown(self) -> None:
        self.memory.stop()
        self.store.close()
        self._directory.cleanup()

    @rule(name=NAMES, spoken=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
    def folds(self, name: str, spoken: list[str]) -> None:
        session = self.sessions[name]
        bodies = []
        for i, word in enumerate(spoken):
            offset = session.next_offset + i
            self.said[name][offset] = word
            self.shown[name].add(offset)
            bodies.append((user if offset % 2 else says)(f"{name}{offset} {word}"))
        self.sessions[name] = fold(self.store, self.memory, session, bodies)

    @rule(name=NAMES, low=st.integers(1, 12), high=st.integers(1, 12))
    def restores(self, name: str, low: int, high: int) -> None:
        self.sessions[name] = show_only(self.store, self.sessions[name], ((low, high),) if low <= high else ())
        self.shown[name] = {offset for offset in self.said[name] if low <= offset <= high}

    @rule()
    def embeds(self) -> None:
        self.memory.wake()
        assert self.memory.settle(10)

    @rule()
    def restarts_memory(self) -> None:
        self.memory.stop()
        self.memory = MemoryService(self.store, lambda: self.embedder, ScopeCache(8_000), words)
        self.memory.start()

    @rule(name=NAMES, word=st.sampled_from(WORDS), role=st.sampled_from([None, EntryRole.USER]))
    def searches(self, name: str, word: str, role: EntryRole | None) -> None:
        where = MemoryFilter(roles=(role,) if role else ())
        answer = self.memory.search(self.sessions[name], MemoryQuery(word, limit=20, filter=where))
        found = [hit.entry.offset for hit in answer.hits]
        allowed = {offset for offset in self.shown[name] if role is None or offset % 2}
        assert set(found) <= allowed
        assert len(found) == len(set(found))
        assert all(hit.entry.text.startswith(f"{name}{hit.entry.offset} ") for hit in answer.hits)
        matching = {offset for offset in allowed if self.said[name][offset] == word}
        if len(allowed) <= 20:
            assert matching <= set(found)

    @invariant()
    def counts_agree(self) -> None:
        for name, session in self.sessions.items():
            assert self.memory.counts(session.key)[0] == len(self.shown[name])


Scopes.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
TestScopes = Scopes.TestCase
