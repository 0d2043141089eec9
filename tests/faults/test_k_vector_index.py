"""Vector indices, at the service: what users of others saw as tracebacks, empty answers and crashes.

What the library itself does wrong is provoked in ``tests/unit/memory/test_memory_graph.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import structlog
from foldline.domain.enums import MemoryIndex
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter
from foldline.memory import index
from foldline.memory.graph import MIN_CAPACITY, Graph
from foldline.store import SqliteStore

from tests.integration.test_memory_index import Scope, make
from tests.unit.memory.scopes import fold, new_session, user

__all__ = ["make"]

Make = Callable[..., Scope]


@pytest.fixture(autouse=True)
def by_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small scopes too are searched by their graph."""
    monkeypatch.setattr(index, "EXACT", 8)


def test_xk1_rows_that_are_gone_leave_every_answer_full(make: Make) -> None:
    """Most entries gone, ten asked for: ten there are, whatever ef and M."""
    scope = make()
    scope.grow(1200)
    for last in (900, 650, 300, 40, 12):
        scope.show((1, last))
        for limit in (1, 10, 20):
            hits = scope.ask("word1 word2 word3", limit=limit).hits
            assert len(hits) == min(limit, last)
            assert all(hit.entry.offset <= last for hit in hits)
    assert scope.recall(5) >= 0.98


@pytest.mark.parametrize("passing", [0, 1, 3, 9, 20, 64])
def test_xk3_a_filter_that_leaves_few_gives_all_of_them(make: Make, passing: int) -> None:
    scope = make()
    scope.grow(700)
    hits = scope.ask("word1", filter=MemoryFilter(first_offset=301, last_offset=300 + passing)).hits
    assert len(hits) == min(passing, 20)


def test_xk4_a_graph_that_raises_is_logged_and_the_answer_is_whole(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = make()
    scope.grow(700)
    exact = [hit.entry.offset for hit in scope.ask("word1 word2", MemoryIndex.EXACT).hits]

    def fails(self: Graph, question: object, k: int) -> object:
        raise RuntimeError("Cannot return the results in a contiguous 2D array. Probably ef or M is too small")

    monkeypatch.setattr(Graph, "nearest", fails)
    with structlog.testing.capture_logs() as logs:
        assert [hit.entry.offset for hit in scope.ask("word1 word2").hits] == exact
    assert [log["log_level"] for log in logs] == ["error"]


@pytest.mark.parametrize("by", [MemoryIndex.HNSW, MemoryIndex.AUTO])
def test_xk5_xk14_a_scope_grows_beyond_what_its_index_was_made_for(make: Make, by: MemoryIndex) -> None:
    """Far over what an index is first made with."""
    scope = make(crossover=10)
    for _ in range(6):
        scope.grow(MIN_CAPACITY // 3)
        assert scope.recall(3, by=by) >= 0.98
    scope.memory.settle(30)
    (held,) = (s for s in scope.cache.scopes() if s.graph is not None)
    assert held.graph is not None
    assert held.graph.count > 1.9 * MIN_CAPACITY


def test_xk7_no_index_file_is_ever_read(make: Make) -> None:
    """Crafted or torn ones beside the store change nothing: there are none, and none is looked for."""
    scope = make()
    scope.grow(500)
    before = [hit.entry.offset for hit in scope.ask("word1 word2").hits]
    for name in ("index.bin", "hnsw.bin", "header.bin", "data_level0.bin", "memory.index"):
        (scope.path.parent / name).write_bytes(b"\xff" * 4096)
    scope.restart()
    scope.settle()
    assert [hit.entry.offset for hit in scope.ask("word1 word2").hits] == before


def grows_meanwhile(scope: Scope, look: Callable[[int], None]) -> None:
    """Entries come in while three threads look over and over, each with its number; none of them may fail."""
    problems: list[BaseException] = []
    done = threading.Event()

    def looks(number: int) -> None:
        try:
            while not done.is_set():
                look(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=looks, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        scope.grow(300)
    done.set()
    for thread in threads:
        thread.join(60)
    assert problems == []


def test_xk8_searches_while_entries_come_in(make: Make) -> None:
    """Folds, embedding, a graph that grows and many who search, at once."""
    scope = make()
    scope.grow(400)

    def search(seed: int) -> None:
        assert len(scope.ask("word1 word2 word3").hits) == 20

    grows_meanwhile(scope, search)
    assert scope.recall(5) >= 0.98


def test_xk9_vectors_are_looked_up_while_entries_come_in(make: Make) -> None:
    """Those of a narrow filter, of the likely and of exact search; what is looked up is the entry's own."""
    scope = make()
    scope.grow(400)
    random = [np.random.default_rng(seed) for seed in range(3)]

    def look_up(seed: int) -> None:
        at = int(random[seed].integers(0, 400))
        for by in (MemoryIndex.HNSW, MemoryIndex.EXACT):
            where = MemoryFilter(first_offset=at + 1, last_offset=at + 1)
            (hit,) = scope.ask(scope.texts[at], by, filter=where).hits
            assert (hit.entry.offset, hit.entry.text) == (at + 1, scope.texts[at])
            assert hit.semantic == pytest.approx(1, abs=1e-4)

    grows_meanwhile(scope, look_up)
    assert scope.graphs > 0


def test_xk10_rows_go_and_come_back_many_times(make: Make) -> None:
    scope = make()
    scope.grow(500)
    random = np.random.default_rng(3)
    for _ in range(15):
        first, last = sorted(random.integers(1, 501, 2).tolist())
        scope.show((first, last))
        hits = scope.ask("word1 word2", limit=20).hits
        assert all(first <= hit.entry.offset <= last for hit in hits)
        assert len(hits) == min(20, last - first + 1)
    scope.show((1, 500))
    assert scope.recall(5) >= 0.98


def test_xk12_a_scope_of_nothing_is_searched_as_any_other(make: Make) -> None:
    scope = make(crossover=0)
    for by in MemoryIndex:
        assert scope.ask("word1", by).hits == ()
    scope.grow(1)
    for by in MemoryIndex:
        assert len(scope.ask(scope.texts[0], by).hits) == 1


def test_xk16_large_and_small_scopes_come_back_after_a_restart(make: Make) -> None:
    """XK15: over a thousand vectors, and a few; none of them is lost for good."""
    scope = make()
    scope.grow(1500)
    large = scope.session
    small = new_session(scope.store, "small")
    small = fold(scope.store, scope.memory, small, [user("the hamster is called Ida")])
    scope.memory.wake()
    assert scope.memory.settle(30)
    for _ in range(3):
        scope.restart()
        scope.session = small
        assert scope.ask("hamster").hits[0].entry.text == "the hamster is called Ida"
        scope.session = large
        assert scope.recall(3) >= 0.98
        scope.settle()
        assert scope.recall(3) >= 0.98


def test_xk18_counts_do_not_go_through_what_may_be_broken(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = make()
    scope.grow(500)

    def fails(*_: object) -> object:
        raise RuntimeError("broken")

    for name in ("nearest", "add", "verify"):
        monkeypatch.setattr(Graph, name, fails)
    assert scope.memory.counts(scope.session.key) == (500, 0)
    with structlog.testing.capture_logs():
        assert scope.recall(3) == 1.0
        scope.grow(400)
        assert scope.memory.counts(scope.session.key) == (900, 0)
        assert scope.recall(3) == 1.0


def test_xk19_an_index_that_was_never_finished_is_no_damage(make: Make) -> None:
    """Killed before the graph was built, again and again: nothing is quarantined, everything is found."""
    scope = make()
    scope.session = fold(scope.store, scope.memory, scope.session, [user(f"word{n} word{n + 1}") for n in range(290)])
    for _ in range(3):
        scope.memory.wake()
        assert scope.memory.settle(60)
        scope.ask("word1")
        scope.restart()
    assert scope.memory.counts(scope.session.key) == (290, 0)
    assert scope.store.memory_health(scope.embedder.identity) == []
    assert scope.recall(3) >= 0.98


def test_xk20_a_torn_database_is_refused_and_not_begun_anew(tmp_path: Path) -> None:
    """The text is in the store alone: an empty answer from a damaged one would look like nothing stored."""
    path = tmp_path / "foldline.db"
    SqliteStore(path).close()
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)
    path.write_bytes(data)
    with pytest.raises(FoldlineError) as caught:
        SqliteStore(path)
    assert caught.value.reason is Reason.STORE_CORRUPT
    assert path.read_bytes() == data
