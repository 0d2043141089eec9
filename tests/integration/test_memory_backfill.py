"""Embedding in the background: restart, failure, quarantine, another model (M3, M8, M9)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import structlog
from foldline.domain.memory import MemoryAnswer, MemoryQuery
from foldline.domain.session import Session
from foldline.memory import MemoryService, ScopeCache
from foldline.memory.embed import MiniLm
from foldline.store import SqliteStore

from tests.unit.memory.scopes import HashedWords, fold, new_session, says, user, words

ROWS = [user("the parrot likes walnuts"), says("noted"), user("the release is in march")]


class Place:
    """A store that can be closed and opened again, and the memory over it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store = SqliteStore(path, synchronous="NORMAL")
        self._memories: list[MemoryService] = []

    def memory(self, embedder: HashedWords, start: bool = True, cache_bytes: int = 1 << 20) -> MemoryService:
        self.cache = ScopeCache(cache_bytes)
        memory = MemoryService(self.store, lambda: embedder, self.cache, words)
        if start:
            memory.start()
            self._memories.append(memory)
        return memory

    def close(self) -> None:
        while self._memories:
            self._memories.pop().stop()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.store = SqliteStore(self._path, synchronous="NORMAL")


@pytest.fixture
def place(tmp_path: Path):
    place = Place(tmp_path / "foldline.db")
    yield place
    place.close()


def ask(memory: MemoryService, session: Session, text: str = "parrot walnuts") -> MemoryAnswer:
    return memory.search(session, MemoryQuery(text, limit=20))


def pending(place: Place, session: Session, embedder: HashedWords) -> int:
    return place.store.memory_count(session.key, embedder.identity)[1]


def test_entries_are_found_by_words_before_and_by_meaning_after(place: Place) -> None:
    """M8: pending is allowed, searchable at once, and said."""
    embedder = HashedWords()
    waiting = place.memory(embedder, start=False)
    session = fold(place.store, waiting, new_session(place.store), ROWS)
    answer = ask(waiting, session)
    assert answer.hits[0].entry.offset == 1
    assert answer.hits[0].semantic == 0
    assert "words alone" in answer.degraded
    memory = place.memory(embedder)
    assert memory.settle(10)
    answer = ask(memory, session)
    assert answer.degraded == ""
    assert answer.hits[0].semantic > 0.3


def test_a_restart_goes_on_where_it_stopped(place: Place) -> None:
    """M8: what was pending when the process ended is embedded by the next one, the rest not again."""
    first = HashedWords()
    memory = place.memory(first)
    session = fold(place.store, memory, new_session(place.store), ROWS)
    memory.wake()
    assert memory.settle(10)
    memory.stop()
    session = fold(place.store, memory, session, [user("the hamster is called Ida")])
    place.reopen()
    second = HashedWords()
    memory = place.memory(second)
    assert memory.settle(10)
    ask(memory, session, "x")
    assert pending(place, session, second) == 0
    assert "the hamster is called Ida" in second.embedded
    assert not {"the parrot likes walnuts", "noted"} & set(second.embedded)


class Gate(HashedWords):
    """Holds every embedding until told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.entered.set()
        assert self.released.wait(10)
        return super().embed(texts)


def test_stopping_waits_for_one_text_only(place: Place) -> None:
    """M8: the rest stays pending for the next start; appends meanwhile are not held up."""
    embedder = Gate()
    memory = place.memory(embedder)
    session = fold(place.store, memory, new_session(place.store), [user(f"walnut {i}") for i in range(100)])
    memory.wake()
    assert embedder.entered.wait(10)
    session = fold(place.store, memory, session, [user("appended while embedding")])
    stopper = threading.Thread(target=memory.stop)
    stopper.start()
    embedder.released.set()
    stopper.join(10)
    assert not stopper.is_alive()
    assert len(embedder.embedded) < 100
    assert pending(place, session, embedder) == 101 - len(embedder.embedded)


def test_a_text_that_cannot_be_embedded_is_quarantined_and_still_found(place: Place) -> None:
    """M9: reported once, tried once, and the scope works."""
    embedder = HashedWords()
    embedder.refuses = "poison walnuts"
    memory = place.memory(embedder)
    with structlog.testing.capture_logs() as logs:
        session = fold(place.store, memory, new_session(place.store), [*ROWS, user("poison walnuts")])
        memory.wake()
        assert memory.settle(10)
        memory.wake()
        assert memory.settle(10)
    assert [log["log_level"] for log in logs if "quarantined" in log["event"]] == ["warning"]
    answer = ask(memory, session, "poison")
    assert answer.hits[0].entry.text == "poison walnuts"
    assert answer.degraded == ""


class Broken(HashedWords):
    """Gives one text a vector that is none."""

    def __init__(self, vector: bytes) -> None:
        super().__init__()
        self.vector = vector

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [self.vector if text == "noted" else super(Broken, self).embed([text])[0] for text in texts]


@pytest.mark.parametrize(
    "vector",
    [b"", b"123", np.zeros(64, "<f4").tobytes(), np.full(64, np.nan, "<f4").tobytes(), np.ones(63, "<f4").tobytes()],
)
def test_a_vector_that_is_none_is_quarantined(place: Place, vector: bytes) -> None:
    """M9"""
    memory = place.memory(Broken(vector))
    session = fold(place.store, memory, new_session(place.store), ROWS)
    memory.wake()
    assert memory.settle(10)
    assert ask(memory, session, "noted").hits[0].entry.text == "noted"
    assert all(np.isfinite(hit.score) for hit in ask(memory, session).hits)


def test_a_vector_that_went_bad_in_the_store_fails_nothing(place: Place) -> None:
    """M9"""
    embedder = HashedWords()
    memory = place.memory(embedder)
    session = fold(place.store, memory, new_session(place.store), ROWS)
    memory.wake()
    assert memory.settle(10)
    ids = place.store.memory_ids(session.key, MemoryQuery("x").filter)
    place.store.put_vectors(embedder.identity, [(ids[0], b"\1\2\3"), (ids[1], np.full(64, np.inf, "<f4").tobytes())])
    answer = ask(place.memory(embedder), session)
    assert answer.hits[0].entry.text == "the parrot likes walnuts"
    assert all(np.isfinite(hit.score) for hit in answer.hits)


def test_an_embedder_that_is_down_quarantines_nothing(place: Place) -> None:
    """M8: its entries stay pending and are embedded when it is back."""
    embedder = HashedWords()
    memory = place.memory(embedder)
    memory.wake()
    assert memory.settle(10)
    embedder.down = True
    session = fold(place.store, memory, new_session(place.store), ROWS)
    memory.wake()
    assert not memory.settle(0.2)
    answer = ask(memory, session)
    assert answer.hits[0].entry.offset == 1
    assert answer.degraded == "searched by words alone: the embedder is down"
    assert pending(place, session, embedder) == 3
    embedder.down = False
    memory.wake()
    assert memory.settle(10)
    assert pending(place, session, embedder) == 0
    assert ask(memory, session).degraded == ""


def test_another_model_embeds_anew_and_answers_meanwhile(place: Place) -> None:
    """M8: vectors of another identity never meet this one's query; degraded, not empty."""
    memory = place.memory(HashedWords("old/64"))
    session = fold(place.store, memory, new_session(place.store), ROWS)
    memory.wake()
    assert memory.settle(10)
    place.reopen()
    gate = Gate()
    gate.identity = "new/64"
    memory = place.memory(gate)
    assert gate.entered.wait(10)
    threading.Timer(0.05, gate.released.set).start()
    assert ask(memory, session).hits
    assert memory.settle(10)
    assert place.store.memory_count(session.key, "new/64") == (3, 0)
    assert place.store.memory_count(session.key, "old/64") == (3, 3)
    assert ask(memory, session).degraded == ""


def test_half_embedded_scopes_say_how_many_are_pending(place: Place) -> None:
    """M8"""
    embedder = HashedWords()
    memory = place.memory(embedder)
    session = fold(place.store, memory, new_session(place.store), ROWS)
    memory.wake()
    assert memory.settle(10)
    session = fold(place.store, memory, session, [user("parrot walnuts again")])
    answer = ask(memory, session)
    assert answer.degraded.startswith("1 of 4 entries are not embedded yet")
    assert answer.hits[0].entry.text in ("parrot walnuts again", "the parrot likes walnuts")


def test_an_embedder_that_cannot_start_is_said_and_logged_once(place: Place) -> None:
    """M8"""

    def broken() -> HashedWords:
        raise RuntimeError("no such file /secret/path")

    memory = MemoryService(place.store, broken, ScopeCache(1 << 20), words)
    session = fold(place.store, memory, new_session(place.store), ROWS)
    with structlog.testing.capture_logs() as logs:
        memory.start()
        assert memory.settle(10)
        answers = [ask(memory, session) for _ in range(3)]
        memory.stop()
    assert all("failed to start" in answer.degraded and "/secret" not in answer.degraded for answer in answers)
    assert all(answer.hits for answer in answers)
    assert [log["log_level"] for log in logs] == ["error"]


@pytest.mark.parametrize("cache_bytes", [0, 3_000, 1 << 20])
def test_the_cache_is_no_source_of_truth(place: Place, cache_bytes: int) -> None:
    """M3: whatever fits in memory, answers are the same; what is held stays within the budget."""
    embedder = HashedWords()
    memory = place.memory(embedder, cache_bytes=cache_bytes)
    sessions = [
        fold(place.store, memory, new_session(place.store, f"s{i}"), [user(f"parrot walnut {i}"), says(f"noted {i}")])
        for i in range(8)
    ]
    memory.wake()
    assert memory.settle(10)
    for _ in range(2):
        for i, session in enumerate(sessions):
            assert ask(memory, session).hits[0].entry.text == f"parrot walnut {i}"
            assert place.cache.held <= cache_bytes


def test_the_embedded_model_finds_what_words_do_not(place: Place) -> None:
    """M4: the default set-up, offline: a paraphrase without a word in common comes first."""
    memory = MemoryService(place.store, MiniLm, ScopeCache(1 << 20), words)
    rows = [
        user("My parrot adores walnuts and almonds."),
        user("The launch moved to the fourteenth of March."),
        user("We painted the kitchen green yesterday."),
        *(says(f"Acknowledged, item {i}.") for i in range(10)),
    ]
    session = fold(place.store, memory, new_session(place.store), rows)
    memory.start()
    try:
        assert memory.settle(60)
        answer = ask(memory, session, "Which snacks would a bird enjoy?")
    finally:
        memory.stop()
    assert answer.degraded == ""
    assert answer.hits[0].entry.offset == 1
    assert answer.hits[0].semantic > 0.3


def test_searches_folds_and_embedding_at_once(place: Place) -> None:
    """Nothing is lost, doubled or taken from another session while everything happens together."""
    memory = place.memory(HashedWords(), cache_bytes=20_000)
    sessions = {name: new_session(place.store, name) for name in "abc"}
    problems: list[BaseException] = []
    done = threading.Event()

    def search(name: str) -> None:
        try:
            while not done.is_set():
                answer = ask(memory, sessions[name], f"{name} walnut")
                found = [hit.entry.text for hit in answer.hits]
                assert all(text.startswith(f"{name} walnut") for text in found)
                assert len(found) == len(set(found))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=search, args=(name,)) for name in sessions for _ in range(2)]
    for thread in threads:
        thread.start()
    for round_ in range(8):
        for name in sessions:
            sessions[name] = fold(
                place.store, memory, sessions[name], [user(f"{name} walnut {round_} {i}") for i in range(3)]
            )
            memory.wake()
    assert memory.settle(30)
    done.set()
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert all(memory.counts(session.key) == (24, 0) for session in sessions.values())
