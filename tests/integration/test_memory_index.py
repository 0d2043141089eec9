"""Scopes of every size, searched by a graph and exactly: the same answers, whatever happens between (M3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import structlog
from foldline.config import Memory
from foldline.domain.enums import EntryRole, MemoryFusion, MemoryIndex
from foldline.domain.memory import MemoryAnswer, MemoryFilter, MemoryQuery
from foldline.memory import MemoryService, ScopeCache, graph, index, indexer
from foldline.memory.graph import Graph
from foldline.store import SqliteStore
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.server import until
from tests.unit.memory.scopes import HashedWords, fold, new_session, says, show_only, user, words

CROSSOVER = 200
FOLD = 10_000
WORDS = [f"word{n}" for n in range(300)]


class Scope:
    """A session of random talk in a store of its own, and its memory."""

    def __init__(self, path: Path, crossover: int = CROSSOVER, cache_bytes: int = 1 << 26) -> None:
        self.path, self.crossover, self.cache_bytes = path, crossover, cache_bytes
        self.embedder = HashedWords()
        self.random = np.random.default_rng(7)
        self.texts: list[str] = []
        self._open()
        self.session = new_session(self.store)

    def _open(self) -> None:
        self.store = SqliteStore(self.path, synchronous="NORMAL")
        self.cache = ScopeCache(self.cache_bytes)
        self.memory = MemoryService(self.store, lambda: self.embedder, self.cache, words, crossover=self.crossover)
        self.memory.start()

    def close(self) -> None:
        self.memory.stop()
        self.store.close()

    def restart(self) -> None:
        self.close()
        self._open()

    def grow(self, count: int, copies: int = 0, settle: float = 60) -> None:
        """Folds rows of random words, some of them copies of one."""
        made = [" ".join(self.random.choice(WORDS, 6)) for _ in range(count - copies)] + ["walnut cake"] * copies
        self.random.shuffle(made)
        bodies = [user(text) if n % 2 else says(text) for n, text in enumerate(made)]
        if bodies:
            self.session = fold(self.store, self.memory, self.session, bodies)
        self.texts += made
        self.settle(settle)

    def settle(self, seconds: float = 60) -> None:
        self.memory.wake()
        assert self.memory.settle(seconds)
        # A search asks for the graph, and the next one after it was built asks for what came since.
        for _ in range(3):
            self.ask("word1")
            assert self.memory.settle(seconds)

    def show(self, *ranges: tuple[int, ...], settle: float = 60) -> None:
        self.session = show_only(self.store, self.session, ranges)  # type: ignore[arg-type]
        self.settle(settle)

    @property
    def graphs(self) -> int:
        """Scopes in memory that are searched by a graph."""
        return sum(held.graph is not None for held in self.cache.scopes())

    def ask(self, text: str, by: MemoryIndex = MemoryIndex.AUTO, limit: int = 20, **more: object) -> MemoryAnswer:
        return self.memory.search(self.session, MemoryQuery(text, limit=limit, index=by, max_tokens=10**6, **more))  # type: ignore[arg-type]

    def recall(self, questions: int = 20, by: MemoryIndex = MemoryIndex.AUTO, **more: object) -> float:
        """Of the texts that exact search gives, those that the other gives; with the same scores where both do.

        Texts, for which of equal ones is shown a rounding may decide.
        """
        found = wanted = 0
        for _ in range(questions):
            text = " ".join(self.random.choice(WORDS, 3))
            exact = {h.entry.text: h for h in self.ask(text, MemoryIndex.EXACT, **more).hits}
            answer = self.ask(text, by, **more)
            assert answer.degraded == ""
            hits = {h.entry.text: h for h in answer.hits}
            assert len(hits) == len(answer.hits)
            for said in exact.keys() & hits.keys():
                assert hits[said].semantic == pytest.approx(exact[said].semantic, abs=1e-4)
            found, wanted = found + len(exact.keys() & hits.keys()), wanted + len(exact)
        return found / wanted if wanted else 1.0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Scope]]:
    made: list[Scope] = []

    def make(**how: int) -> Scope:
        made.append(Scope(tmp_path / f"{len(made)}.db", **how))
        return made[-1]

    yield make
    for scope in made:
        scope.close()


def answers_as_exact_search_does(scope: Scope, size: int) -> None:
    """Grows a scope, and searches it after each thing that may happen to one; nothing raises."""
    wait = 60 + size / 50

    def least(embedded: int, passing: int | None = None) -> float:
        """Recall that is asked for: all of it where no graph is searched."""
        exact = embedded < scope.crossover or (passing is not None and passing <= index.EXACT)
        return 1.0 if exact else 0.98

    for _ in range(size // FOLD):
        scope.grow(FOLD, settle=wait)
    scope.grow(size % FOLD, settle=wait)
    assert scope.graphs == int(size >= scope.crossover)
    assert scope.recall() >= least(size)
    for filtered, passing in (
        (MemoryFilter(roles=(EntryRole.USER,)), size // 2),
        (MemoryFilter(first_offset=2, last_offset=4), 3),
        (MemoryFilter(first_offset=10**6), 0),
        (MemoryFilter(last_offset=max(1, size // 30)), size // 30),
        (MemoryFilter(first_offset=size // 2, last_offset=size // 2 + 100), 101),
    ):
        assert scope.recall(5, filter=filtered) >= least(size, passing)
    scope.grow(3, settle=wait)
    assert scope.graphs == int(size + 3 >= scope.crossover)
    assert scope.recall(5) >= least(size + 3)
    kept = (size // 5 + 1, size + 3)
    scope.show(kept, settle=wait)
    assert scope.recall(5) >= 0.98
    assert all(hit.entry.offset >= kept[0] for hit in scope.ask("word1 word2").hits)
    scope.restart()
    assert scope.recall(3) == 1.0, "searched exactly until the graph is there"
    scope.settle(wait)
    assert scope.graphs == int(size + 3 - size // 5 >= scope.crossover)
    assert scope.recall(5) >= least(size + 3 - size // 5)
    scope.show((1, size + 3), settle=wait)
    assert scope.graphs == int(size + 3 >= scope.crossover)
    assert scope.recall(5) >= least(size + 3)
    assert scope.cache.held <= scope.cache_bytes
    scope.store.drop_scope(scope.session.key)
    scope.memory.forget(scope.session.key)
    assert (scope.ask("word1 word2").hits, scope.cache.held) == ((), 0)


@pytest.mark.parametrize("size", [0, 1, 5, CROSSOVER - 1, CROSSOVER, CROSSOVER + 1, 1500])
def test_m3_a_scope_of_each_size_answers_as_exact_search_does(make: Callable[..., Scope], size: int) -> None:
    """With folds, filters, rows that are active again and restarts."""
    answers_as_exact_search_does(make(), size)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "size", [0, 1, 5, index.CROSSOVER - 1, index.CROSSOVER, index.CROSSOVER + 1, 100_000]
)  # fmt: skip
def test_m3_xk16_around_the_crossover_and_far_beyond_it_answers_are_those_of_exact_search(
    make: Callable[..., Scope], size: int
) -> None:
    """The crossover of the product, and its budget."""
    answers_as_exact_search_does(make(crossover=index.CROSSOVER, cache_bytes=Memory().cache_bytes), size)


@pytest.mark.parametrize("by", MemoryIndex)
@pytest.mark.parametrize("size", [0, 1, 5, 300])
def test_m3_the_knob_decides(make: Callable[..., Scope], by: MemoryIndex, size: int) -> None:
    """Also for a scope of nothing; HNSW below the crossover, EXACT above it."""
    scope = make()
    scope.grow(size)
    scope.memory.forget(scope.session.key)
    for _ in range(2):
        answer = scope.ask("word1 word2 word3", by)
        assert len(answer.hits) == min(size, 20)
        assert scope.memory.settle(30)
    wanted = {MemoryIndex.EXACT: False, MemoryIndex.AUTO: size >= CROSSOVER, MemoryIndex.HNSW: size > 0}[by]
    assert scope.graphs == int(wanted)


def test_m3_what_came_after_the_graph_is_found_at_once_and_joins_it(make: Callable[..., Scope]) -> None:
    scope = make()
    scope.grow(400)
    assert scope.graphs == 1
    scope.session = fold(scope.store, scope.memory, scope.session, [user("the hamster is called Ida")])
    scope.memory.wake()
    assert scope.memory.settle(30)
    assert scope.ask("hamster Ida", limit=1).hits[0].entry.text == "the hamster is called Ida"
    scope.grow(400)
    (held,) = scope.cache.scopes()
    assert held.graph is not None
    assert held.graph.count >= 700
    assert len(held.rows) <= 256
    assert scope.recall(10) >= 0.98


def test_m3_a_graph_that_grew_is_given_back_as_large_as_it_was_counted(make: Callable[..., Scope]) -> None:
    """Far beyond what it was made for, several times; the budget is of what is held."""
    scope = make()
    for _ in range(4):
        scope.grow(600)
        assert scope.cache.held == sum(held.size for held in scope.cache.scopes()) > 0
    scope.memory.forget(scope.session.key)
    assert scope.cache.held == 0


class Tiring(HashedWords):
    """Is down after so many texts; questions are embedded still."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.down = len(self.embedded) >= self.most
        return super().embed(texts)

    def query(self, text: str) -> bytes:
        return HashedWords().query(text)


def test_m8_a_graph_that_was_given_up_is_tried_again_once_the_embedder_is_back(
    make: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are the same, their vectors are not. Until then it is tried once, and once after it is forgotten."""

    def fails(*_: object) -> graph.Labels:
        raise RuntimeError("out of memory")

    def failed() -> int:
        scope.ask("word1")
        return sum("memory index failed" in log["event"] for log in logs)

    add = Graph.add
    monkeypatch.setattr(Graph, "add", fails)
    with structlog.testing.capture_logs() as logs:
        scope = make()
        scope.embedder = Tiring(400)
        bodies = [user(f"word{n} word{n + 1}") for n in range(1000)]
        scope.session = fold(scope.store, scope.memory, scope.session, bodies)
        scope.memory.wake()
        assert until(lambda: scope.memory.counts(scope.session.key) == (1000, 600), 60)
        assert until(lambda: failed() == 1, 30)
        assert [failed() for _ in range(5)] == [1] * 5
        scope.memory.forget(scope.session.key)
        assert until(lambda: failed() == 2, 30)
    monkeypatch.setattr(Graph, "add", add)
    assert scope.graphs == 0
    scope.embedder.most = np.inf
    scope.settle()
    assert scope.memory.counts(scope.session.key) == (1000, 0)
    assert scope.graphs == 1
    assert scope.recall(5) >= 0.98


def test_m3_a_graph_that_is_mostly_of_rows_that_are_active_again_is_built_anew(make: Callable[..., Scope]) -> None:
    scope = make()
    scope.grow(1000)
    scope.show((1, 300))
    (held,) = scope.cache.scopes()
    assert held.graph is not None
    assert held.graph.count < 700
    assert scope.recall(10) >= 0.98
    scope.show((1, 1000))
    assert scope.recall(10) >= 0.98


def test_m3_copies_are_one_label_and_each_entry_is_found(make: Callable[..., Scope]) -> None:
    """M4: they are one hit, and hide no other."""
    scope = make()
    scope.grow(900, copies=600)
    (held,) = scope.cache.scopes()
    assert held.graph is not None
    assert held.graph.count <= 301
    assert [h.entry.text for h in scope.ask("walnut cake").hits].count("walnut cake") == 1
    assert scope.recall(10) >= 0.98
    allowed = MemoryFilter(first_offset=1, last_offset=900)
    assert scope.ask("walnut cake", limit=1, filter=allowed).hits[0].entry.text == "walnut cake"


@pytest.mark.parametrize("fusion", MemoryFusion)
def test_m4_both_fusions_rank_by_a_graph(make: Callable[..., Scope], fusion: MemoryFusion) -> None:
    scope = make()
    scope.grow(1200)
    assert scope.recall(20, fusion=fusion) >= 0.9


def test_xk3_a_filter_leaves_fewer_than_are_asked_for(make: Callable[..., Scope]) -> None:
    scope = make()
    scope.grow(600)
    for last in (0, 1, 2, 19, 20, 21, 300):
        hits = scope.ask("word1 word2", filter=MemoryFilter(last_offset=last)).hits
        assert len(hits) == min(last, 20)


def test_m3_filters_of_every_width_beside_a_large_graph(
    make: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are searched by the graph, which a small scope has none of otherwise."""
    monkeypatch.setattr(index, "EXACT", 50)
    monkeypatch.setattr(index, "NEAREST", 64)
    scope = make()
    scope.grow(1500)
    for last in (10, 60, 90, 100, 200, 700, 1499):
        assert scope.recall(5, filter=MemoryFilter(last_offset=last)) >= 0.95


def test_xk15_a_restart_builds_the_graph_from_rows(make: Callable[..., Scope]) -> None:
    """XK19, XK20: there is no file of it that could be lost, torn or out of date."""
    scope = make()
    scope.grow(1200)
    before = [(h.entry.offset, h.score) for h in scope.ask("word1 word2").hits]
    files = {path.name for path in scope.path.parent.iterdir()}
    assert not any("index" in name or "hnsw" in name for name in files)
    scope.restart()
    assert scope.graphs == 0
    assert [h.entry.offset for h in scope.ask("word1 word2").hits]
    scope.settle()
    assert scope.graphs == 1
    assert [o for o, _ in before] == [h.entry.offset for h in scope.ask("word1 word2").hits]


@pytest.mark.parametrize("cache_bytes", [0, 10_000, 500_000, 1_500_000])
def test_m3_whatever_fits_answers_are_the_same_and_the_budget_holds(
    make: Callable[..., Scope], cache_bytes: int
) -> None:
    scope = make(cache_bytes=cache_bytes)
    scope.grow(1000)
    assert scope.recall(5) >= 0.98
    assert scope.cache.held <= cache_bytes
    assert scope.graphs <= 1


@pytest.mark.parametrize("cache_bytes", [0, 10_000, 150_000, 500_000, 1_500_000])
def test_m3_vectors_that_there_is_no_room_for_are_read_by_each_search(
    make: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    """The same answers, with filters, what comes later, rows that are active again, and restarts; M9 too."""
    monkeypatch.setattr(index, "LOOSE", 0)
    monkeypatch.setattr(index, "EXACT", 64)
    scope = make(cache_bytes=cache_bytes)
    scope.grow(900)
    ((_, bad),) = scope.store.pending_vectors("another", 1)
    scope.store.put_vectors(scope.embedder.identity, [(bad.id, b"")])
    for change in (lambda: None, lambda: scope.grow(200), lambda: scope.show((1, 700)), scope.restart, scope.settle):
        change()
        assert scope.recall(5) >= 0.98
        assert scope.recall(3, filter=MemoryFilter(first_offset=100, last_offset=400)) == 1.0
        assert scope.cache.held <= cache_bytes
        exact = scope.ask(scope.texts[5], MemoryIndex.EXACT, limit=1).hits[0]
        assert exact.entry.text == scope.texts[5]
        assert exact.semantic == pytest.approx(1, abs=1e-4)


def test_m3_while_a_graph_is_built_searches_hold_no_more_than_there_is_room_for(
    make: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are the same before, meanwhile and after; room that is there again is used."""
    monkeypatch.setattr(index, "LOOSE", 0)
    building, go_on = threading.Event(), threading.Event()
    add = Graph.add

    def slow(self: Graph, vectors: graph.Floats, stopping: Callable[[], bool] = lambda: False) -> graph.Labels:
        building.set()
        go_on.wait(30)
        return add(self, vectors, stopping)

    monkeypatch.setattr(Graph, "add", slow)
    scope = make(cache_bytes=900_000)
    session, texts = scope.session, ["the hamster is called Ida", *(f"word{n} word{n + 7}" for n in range(900))]
    scope.session = fold(scope.store, scope.memory, session, [user(text) for text in texts])
    scope.memory.wake()
    assert scope.memory.settle(60)
    before = {h.entry.offset: h.score for h in scope.ask("hamster Ida word3").hits}
    assert building.wait(30)
    for _ in range(2):
        meanwhile = {h.entry.offset: h.score for h in scope.ask("hamster Ida word3").hits}
        assert meanwhile == pytest.approx(before, abs=1e-5)
        (held,) = scope.cache.scopes()
        assert (len(held.matrix), len(held.absent)) == (0, 901)
        assert scope.cache.held <= 900_000
    go_on.set()
    assert scope.memory.settle(30)
    scope.ask("hamster")
    (held,) = scope.cache.scopes()
    assert (held.graph is not None, len(held.matrix), len(held.absent)) == (True, 0, 0)
    assert scope.ask("hamster Ida word3").hits[0].entry.offset == next(iter(before))


def test_m3_a_graph_that_does_not_fit_is_said_once(make: Callable[..., Scope]) -> None:
    with structlog.testing.capture_logs() as logs:
        scope = make(cache_bytes=100_000)
        scope.grow(1000)
        for _ in range(5):
            scope.ask("word1")
            scope.memory.settle(10)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == [
        "memory.cache_bytes is too small for the index of a scope"
    ]


@pytest.mark.parametrize("damage", ["not installed", "fails", "finds nothing"])
def test_xk17_a_graph_that_cannot_be_had_leaves_exact_search(
    make: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """XK18: what is built is asked for its own vectors before anybody relies on it; said once, tried once."""

    class Broken(Graph):
        def __init__(self, width: int, capacity: int = 0) -> None:
            if damage == "not installed":
                raise ImportError("No module named 'hnswlib'")
            super().__init__(width, capacity)

        def add(self, vectors: graph.Floats, stopping: Callable[[], bool] = lambda: False) -> graph.Labels:
            if damage == "fails":
                raise RuntimeError("out of memory")
            return super().add(vectors, stopping)

        def nearest(self, question: graph.Floats, k: int) -> tuple[graph.Labels, graph.Floats]:
            found, cosines = super().nearest(question, k)
            return found + 1, cosines

    monkeypatch.setattr(indexer, "Graph", Broken)
    with structlog.testing.capture_logs() as logs:
        scope = make()
        scope.grow(500)
        assert scope.recall(5) == 1.0
    assert scope.graphs == 0
    errors = [log for log in logs if log["log_level"] == "error"]
    assert len(errors) == 1
    assert "hnswlib" in errors[0]["mend"]


def test_m3_a_stop_while_a_graph_is_built_ends_soon(make: Callable[..., Scope]) -> None:
    scope = make()
    scope.grow(CROSSOVER - 1)
    scope.session = fold(scope.store, scope.memory, scope.session, [user(f"word{n} word{n + 1}") for n in range(2000)])
    scope.memory.wake()
    assert scope.memory.settle(60)
    scope.ask("word1")
    scope.restart()
    assert scope.recall(3) >= 0.98


def test_m7_xl6_a_dropped_scope_gives_its_graph_back(make: Callable[..., Scope]) -> None:
    scope = make()
    scope.grow(500)
    assert scope.cache.held > 0
    scope.store.drop_scope(scope.session.key)
    scope.memory.forget(scope.session.key)
    assert (scope.graphs, scope.cache.held) == (0, 0)
    assert scope.ask("word1").hits == ()


@pytest.mark.parametrize("mine", [False, True], ids=["another", "its own"])
def test_m7_a_session_that_goes_while_a_graph_is_built_takes_no_other_graph_along(
    make: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch, mine: bool
) -> None:
    building, go_on = threading.Event(), threading.Event()
    add = Graph.add

    def slow(self: Graph, vectors: graph.Floats, stopping: Callable[[], bool] = lambda: False) -> graph.Labels:
        building.set()
        go_on.wait(30)
        return add(self, vectors, stopping)

    monkeypatch.setattr(Graph, "add", slow)
    scope = make()
    scope.session = fold(scope.store, scope.memory, scope.session, [user(f"word{n} here") for n in range(400)])
    scope.memory.wake()
    assert scope.memory.settle(60)
    scope.ask("word1")
    assert building.wait(30)
    key = scope.session.key if mine else new_session(scope.store, "another").key
    scope.store.delete_session(key)
    scope.memory.forget(key)
    go_on.set()
    assert scope.memory.settle(30)
    assert scope.graphs == (0 if mine else 1)


@settings(max_examples=12)
@given(data=st.data())
def test_m3_any_history_of_a_scope_answers_as_exact_search_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Folds, restores, restarts and evictions in any order, with copies among the rows."""
    scope = Scope(tmp_path_factory.mktemp("scope") / "s.db", crossover=20)
    try:
        for _ in range(data.draw(st.integers(1, 6))):
            what = data.draw(st.sampled_from(["grow", "grow", "show", "restart", "forget"]))
            if what == "grow":
                count = data.draw(st.integers(0, 60))
                scope.grow(count, copies=data.draw(st.integers(0, count)))
            elif what == "show" and scope.texts:
                first, last = sorted(
                    data.draw(st.tuples(st.integers(1, len(scope.texts)), st.integers(1, len(scope.texts))))
                )
                scope.show((first, last))
            elif what == "restart":
                scope.restart()
            else:
                scope.memory.forget(scope.session.key)
            assert scope.recall(2) == 1.0
    finally:
        scope.close()
