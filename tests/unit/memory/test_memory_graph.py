"""hnswlib behind its guards: every hazard, provoked (M3)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from foldline.memory import graph as module
from foldline.memory.graph import MIN_CAPACITY, BrokenGraph, Graph
from hypothesis import given, settings
from hypothesis import strategies as st

WIDTH = 16


def vectors(count: int, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def test_what_is_added_is_found_again_and_by_its_cosine() -> None:
    graph, held = Graph(WIDTH), vectors(500)
    labels = graph.add(held)
    assert labels.tolist() == list(range(500))
    for at in (0, 7, 499):
        found, cosines = graph.nearest(held[at], 3)
        assert found[0] == labels[at]
        assert cosines == pytest.approx(held[found] @ held[at], abs=1e-5)
        assert (cosines[:-1] >= cosines[1:]).all()


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("k", [0, 1, 3, 1000])
def test_xk1_asking_for_more_than_there_is_gives_what_there_is(count: int, k: int) -> None:
    graph, held = Graph(WIDTH), vectors(count)
    graph.add(held)
    found, cosines = graph.nearest(vectors(1, 9)[0], k)
    assert len(found) == len(cosines) == min(k, count)
    assert len(set(found.tolist())) == len(found)


def test_xk5_xk14_it_grows_beyond_what_it_was_made_for() -> None:
    """Also where nobody said how much will come."""
    graph = Graph(WIDTH, 1)
    held = vectors(2 * MIN_CAPACITY + 100)
    labels = np.concatenate([graph.add(held[at : at + 300]) for at in range(0, len(held), 300)])
    assert graph.count == len(held)
    graph.verify(held, labels)


@pytest.mark.parametrize("width", [0, -1])
def test_xk12_a_graph_of_no_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="width"):
        Graph(width)


@pytest.mark.parametrize("capacity", [0, 1, -5])
def test_xk12_a_capacity_of_nothing_is_no_unusable_index(capacity: int) -> None:
    graph = Graph(WIDTH, capacity)
    graph.add(vectors(3))
    assert len(graph.nearest(vectors(1)[0], 3)[0]) == 3


@pytest.mark.parametrize("width", [1, WIDTH - 1, WIDTH + 1, 2 * WIDTH])
def test_a_vector_of_another_width_never_reaches_the_library(width: int) -> None:
    graph = Graph(WIDTH)
    graph.add(vectors(100))
    with pytest.raises(ValueError, match="width"):
        graph.nearest(vectors(1, width=width)[0], 5)
    with pytest.raises(ValueError, match="width"):
        graph.add(vectors(2, width=width))
    assert graph.count == 100
    assert len(graph.nearest(vectors(1)[0], 5)[0]) == 5


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1e30, 1e-30])
def test_what_is_no_direction_never_reaches_the_library(value: float) -> None:
    graph, wrong = Graph(WIDTH), np.full((1, WIDTH), value, np.float32)
    graph.add(vectors(100))
    for call in (lambda: graph.add(wrong), lambda: graph.nearest(wrong[0], 5)):
        with pytest.raises(ValueError, match="unit length"):
            call()
    assert graph.count == 100
    mixed = np.concatenate([vectors(3, 5), wrong])
    with pytest.raises(ValueError, match="unit length"):
        graph.add(mixed)
    assert graph.count == 100, "all or nothing"


def test_copies_share_a_label_and_hide_nothing() -> None:
    """2 000 copies beside 200 distinct vectors: each of these is found as if the copies were one."""
    graph, distinct = Graph(WIDTH), vectors(200)
    copies = np.repeat(vectors(1, 77), 2000, axis=0)
    labels = graph.add(np.concatenate([copies[:1000], distinct, copies[1000:]]))
    assert graph.count == 201
    assert len(set(labels[:1000].tolist()) | set(labels[1200:].tolist())) == 1
    hits = sum(
        graph.nearest(vector, 1)[0][0] == label for vector, label in zip(distinct, labels[1000:1200], strict=True)
    )
    assert hits == 200


def test_what_was_there_before_gets_its_old_label() -> None:
    graph, held = Graph(WIDTH), vectors(50)
    first = graph.add(held)
    assert graph.add(held[::-1]).tolist() == first[::-1].tolist()
    assert graph.count == 50


def test_xk8_searches_beside_adding_and_growing() -> None:
    """Each search sees a whole graph, and its own vectors in it."""
    graph, held = Graph(WIDTH), vectors(4000)
    graph.add(held[:200])
    problems: list[BaseException] = []
    done = threading.Event()

    def search(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            while not done.is_set():
                at = int(random.integers(0, 200))
                found, cosines = graph.nearest(held[at], 50)
                assert len(found) == 50
                assert found[0] == at
                assert np.isfinite(cosines).all()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for at in range(200, 4000, 190):
        graph.add(held[at : at + 190])
    done.set()
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert graph.count == 4000


def test_adding_stops_when_told_and_says_what_is_left() -> None:
    graph, asked = Graph(WIDTH), iter([False, False, True])
    labels = graph.add(vectors(1000), lambda: next(asked))
    assert graph.count == 2 * module.STEP
    assert (labels[: graph.count] >= 0).all()
    assert (labels[graph.count :] == -1).all()


class OutOfReach:
    """The library, where parts of a graph are out of reach: it refuses to answer in part."""

    def __init__(self, index: object, reach: int) -> None:
        self._index, self._reach = index, reach

    def knn_query(self, question: np.ndarray, k: int, num_threads: int) -> object:
        if k > self._reach:
            raise RuntimeError("Cannot return the results in a contiguous 2D array. Probably ef or M is too small")
        return self._index.knn_query(question, k=k, num_threads=num_threads)  # type: ignore[attr-defined]


@pytest.mark.parametrize("reach", [0, 1, 7, 64])
def test_xk4_a_graph_that_reaches_less_gives_less_and_raises_nothing(reach: int) -> None:
    graph = Graph(WIDTH)
    graph.add(vectors(100))
    graph._index = OutOfReach(graph._index, reach)
    found, _ = graph.nearest(vectors(1)[0], 100)
    assert reach / 2 <= len(found) <= reach
    if not reach:
        with pytest.raises(BrokenGraph, match="0 of 32"):
            graph.verify(vectors(100), np.arange(100, dtype=np.int32))


class Failing:
    """The library, where some calls fail midway: after part of the vectors, or before there is room for them."""

    def __init__(self, index: object, fails: Iterator[int | None]) -> None:
        self._index, self._fails = index, fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def add_items(self, vectors: np.ndarray, labels: np.ndarray, num_threads: int) -> None:
        after = next(self._fails)
        if after != 0:
            self._index.add_items(vectors[:after], labels[:after], num_threads=num_threads)  # type: ignore[attr-defined]
        if after is not None:
            raise RuntimeError("Not enough memory: addPoint failed to allocate linklist")


@pytest.mark.parametrize("after", [0, 1, 30])
def test_m3_what_could_not_be_added_names_no_other_vector(after: int) -> None:
    """Neither a label that was given before the library failed, nor one that it had got to."""
    graph, held = Graph(WIDTH), vectors(300)
    first = graph.add(held[:100])
    graph._index = Failing(graph._index, iter([after, *[None] * 20]))
    with pytest.raises(RuntimeError, match="Not enough memory"):
        graph.add(held[100:150])
    others, again = graph.add(held[200:]), graph.add(held[100:200])
    labels = np.concatenate([first, again, others])
    assert len(set(labels.tolist())) == 300
    for at, label in enumerate(labels.tolist()):
        # What the library had got to is in it twice.
        found, cosines = graph.nearest(held[at], 2)
        assert cosines[found.tolist().index(label)] == pytest.approx(1, abs=1e-5)


def test_m3_a_graph_that_could_not_grow_is_searched_as_before_and_grows_later() -> None:
    graph, held = Graph(WIDTH, 1), vectors(2 * MIN_CAPACITY)
    graph.add(held[:MIN_CAPACITY])

    class NoRoom(Failing):
        def resize_index(self, capacity: int) -> None:
            raise RuntimeError("Not enough memory: resizeIndex failed to allocate base layer")

    whole = graph._index
    graph._index = NoRoom(whole, itertools.repeat(None))
    size = graph.size
    for _ in range(2):
        with pytest.raises(RuntimeError, match="resizeIndex"):
            graph.add(held[MIN_CAPACITY:])
        assert graph.size == size
    assert graph.count == MIN_CAPACITY
    graph.verify(held[:MIN_CAPACITY], np.arange(MIN_CAPACITY, dtype=np.int32))
    graph._index = whole
    graph.verify(held[MIN_CAPACITY:], graph.add(held[MIN_CAPACITY:]))


@settings(max_examples=30)
@given(data=st.data())
def test_m3_whatever_fails_each_label_is_of_one_vector(data: st.DataObject) -> None:
    """M3: batches with copies, of which some fail after some of their vectors and come again."""
    graph, pool = Graph(WIDTH), vectors(60)
    fails = st.none() | st.integers(0, 20)
    graph._index = Failing(graph._index, iter(lambda: data.draw(fails), object()))
    label_of: dict[int, int] = {}
    for batch in data.draw(st.lists(st.lists(st.integers(0, 59), min_size=1, max_size=20), max_size=8)):
        try:
            labels = graph.add(pool[batch])
        except RuntimeError:
            continue
        for number, label in zip(batch, labels.tolist(), strict=True):
            assert label_of.setdefault(number, label) == label
    assert len(set(label_of.values())) == len(label_of)
    number_of = {label: number for number, label in label_of.items()}
    asked = pool[data.draw(st.integers(0, 59))]
    found, cosines = graph.nearest(asked, graph.count)
    for label, cosine in zip(found.tolist(), cosines.tolist(), strict=True):
        if label in number_of:
            assert cosine == pytest.approx(float(pool[number_of[label]] @ asked), abs=1e-5)


@settings(max_examples=30)
@given(
    batches=st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12),
    asked=st.integers(0, 60),
    k=st.integers(0, 60),
)
def test_whatever_is_added_small_graphs_are_exact(batches: list[list[int]], asked: int, k: int) -> None:
    """With copies among batches and across them."""
    pool, graph = vectors(61), Graph(WIDTH)
    given_labels: dict[int, int] = {}
    for batch in batches:
        for number, label in zip(batch, graph.add(pool[batch]).tolist() if batch else [], strict=True):
            assert given_labels.setdefault(number, label) == label
    assert graph.count == len(given_labels)
    found, cosines = graph.nearest(pool[asked], k)
    numbers = {label: number for number, label in given_labels.items()}
    exact = sorted((float(pool[number] @ pool[asked]) for number in given_labels), reverse=True)[:k]
    assert cosines.tolist() == pytest.approx(exact, abs=1e-5)
    assert [float(pool[numbers[label]] @ pool[asked]) for label in found.tolist()] == pytest.approx(exact, abs=1e-5)
