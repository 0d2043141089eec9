"""hnswlib behind what it needs guarding against (M3).

Before each call: vectors of the right width and unit length, k within what is there, room for what is added, and nobody
who searches while somebody adds. Equal vectors share a label, since copies crowd out what lies beside them. Of its
functions that go wrong none is used: nothing is deleted, read back, saved or loaded; an entry that is gone is a label
that no entry has, and a graph is built again from the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from foldline.memory.vectors import Floats, units

LINKS, BUILD_EFFORT, EFFORT = 24, 200, 400
"""M, ef_construction and ef of the graph; with these recall@10 at 100 000 entries is measured by ``bench/g11``."""
MIN_CAPACITY = 1024
GROWTH = 1.5
STEP = 64
"""Vectors added at a time: so long does a search wait that comes between."""
PROBES = 32
_NODE_BYTES = 8 * LINKS + 160
"""What a node takes beside its vector: links of the lowest layer, its share of the others, label, lock, hash."""

Labels = npt.NDArray[np.int32]


class BrokenGraph(Exception):
    """A graph does not find what it holds."""


class Graph:
    """An approximate index of unit vectors that only grows. Thread-safe: searches run together, adding runs alone.

    Attributes:
        count: labels given, from 0; one whose vector could not be added stands for nothing and is not given again.
    """

    def __init__(self, width: int, capacity: int = 0) -> None:
        """Makes an empty graph.

        Raises:
            ImportError: hnswlib is not installed.
            ValueError: no width.
        """
        import hnswlib

        if width <= 0:
            raise ValueError(f"vectors of width {width}")
        self.width, self.count = width, 0
        self._held = 0
        self._capacity = max(capacity, MIN_CAPACITY)
        self._index: Any = hnswlib.Index("ip", width)
        self._index.init_index(self._capacity, M=LINKS, ef_construction=BUILD_EFFORT)
        self._index.set_num_threads(1)
        self._index.set_ef(EFFORT)
        self._labels: dict[int, int] = {}
        self._lock = _ManyOrOne()

    @property
    def size(self) -> int:
        """Bytes held."""
        return size_of(self._capacity, self.width)

    def add(self, vectors: Floats, stopping: Callable[[], bool] = lambda: False) -> Labels:
        """Adds vectors; returns the label of each, that of its equal where there is one. For one thread at a time.

        What is left when ``stopping`` says so has the label -1. After an error, of the library too, the graph is
        searched as before, and takes what was left when that comes again.

        Raises:
            ValueError: a vector of another width, or not of unit length.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        self._check(vectors)
        labels = np.full(len(vectors), -1, np.int32)
        for start in range(0, len(vectors), STEP):
            if stopping():
                break
            part = vectors[start : start + STEP]
            names = [hash(vector.tobytes()) for vector in part]
            fresh = dict[int, int]()
            for at, name in enumerate(names):
                if name not in self._labels:
                    fresh.setdefault(name, at)
            if fresh:
                self._labels.update(zip(fresh, self._insert(part[list(fresh.values())]), strict=True))
            labels[start : start + len(part)] = [self._labels[name] for name in names]
        return labels

    def _insert(self, vectors: Floats) -> range:
        """Adds vectors; returns their labels. What the library raises leaves those it had got to in it, unnamed."""
        with self._lock.one():
            first, wanted = self.count, self.count + len(vectors)
            if wanted > self._capacity:
                capacity = max(wanted, int(self._capacity * GROWTH))
                self._index.resize_index(capacity)
                self._capacity = capacity
            # Also where it fails midway: a label given twice would be the cosine of another vector.
            self.count = wanted
            self._index.add_items(vectors, np.arange(first, wanted), num_threads=1)
            self._held += len(vectors)
        return range(first, wanted)

    def nearest(self, question: Floats, k: int) -> tuple[Labels, Floats]:
        """Up to ``k`` labels and their cosines with a unit vector, best first; fewer where the graph gives fewer.

        Raises:
            ValueError: a question of another width, or not of unit length.
        """
        question = np.ascontiguousarray(question, np.float32).reshape(1, -1)
        self._check(question)
        with self._lock.many():
            k = min(k, self._held)
            while k > 0:
                try:
                    labels, distances = self._index.knn_query(question, k=k, num_threads=1)
                except RuntimeError:
                    # Parts of a graph may be out of reach: it answers all that is asked for, or nothing.
                    k //= 2
                    continue
                return labels[0].astype(np.int32), (1 - distances[0]).astype(np.float32)
        return np.empty(0, np.int32), np.empty(0, np.float32)

    def verify(self, vectors: Floats, labels: Labels) -> None:
        """Looks some of its own vectors up.

        Raises:
            BrokenGraph: it does not find nearly all of them.
        """
        sample = np.linspace(0, len(vectors) - 1, min(PROBES, len(vectors)), dtype=int)
        found = sum(labels[at] in self.nearest(vectors[at], 4)[0] for at in sample)
        if found < 0.9 * len(sample):
            raise BrokenGraph(f"{found} of {len(sample)} vectors are found again")

    def _check(self, vectors: Floats) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            raise ValueError(f"vectors of shape {vectors.shape} in a graph of width {self.width}")
        if not units(vectors).all():
            raise ValueError("vectors that are not of unit length")


def size_of(capacity: int, width: int) -> int:
    """Bytes that a graph of a capacity holds, with what this module keeps of each vector."""
    return max(capacity, MIN_CAPACITY) * (4 * width + _NODE_BYTES + 100)


class _ManyOrOne:
    """Lets in many who read or one who writes; who waits to write goes before who comes to read."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._many = self._waiting = 0
        self._one = False

    @contextmanager
    def many(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._one and not self._waiting)
            self._many += 1
        try:
            yield
        finally:
            with self._changed:
                self._many -= 1
                self._changed.notify_all()

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._one and not self._many)
            finally:
                self._waiting -= 1
            self._one = True
        try:
            yield
        finally:
            with self._changed:
                self._one = False
                self._changed.notify_all()
