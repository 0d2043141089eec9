"""The vectors of a scope in memory (M3): a cache over the store, never the only copy.

A scope below the crossover is one matrix, searched exactly: scores of every entry are what fusion wants anyway. Above
it a graph is built in the background; what the graph does not hold yet stays in the matrix, and is searched exactly
beside it. Where the budget has no room for the matrix, each search reads the vectors from the store, a part at a time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import structlog

from foldline.domain.enums import MemoryIndex
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import StoreReads
from foldline.domain.session import Session
from foldline.memory.graph import Graph, Labels
from foldline.memory.vectors import Bools, Floats, stacked

CROSSOVER = 40_000
"""Embedded entries from which on scoring all of them costs more than embedding the query (``bench/g11``)."""
NEAREST = 256
"""Entries that a graph is asked for; far more than the most that an answer shows."""
LIKELY = 256
"""Entries with the best words whose cosine is looked up, since it decides between them."""
EXACT = 4096
"""Entries up to which those that pass a filter are scored one by one."""
SPREAD = 16
"""A graph is searched for at least one in so many of its entries; what narrower filters let pass is scored exactly."""

LOOSE = 16 << 20
"""Bytes of vectors that one search may hold over the budget: as many as it reads in a moment."""

Positions = npt.NDArray[np.intp]
Ids = npt.NDArray[np.int64]
Name = tuple[int, str, bool]
"""Of a scope: the session's key, the embedder's identity, whether it is to be exact."""
State = tuple[int, int, tuple[tuple[int, int], ...]]
"""What decides which entries a session shows: its list's rewrites, its folds, what its host holds active again (M2)."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Scope:
    """Visible entries of a session in (offset, chunk) order.

    Attributes:
        name: whose entries and vectors these are.
        state: of the session it was read for; None for one that shows something else by now.
        pending: entries that a vector may still come for.
        order: positions by ascending id.
        matrix: (rows, width) unit vectors of the entries that are in no graph; ``rows`` are their positions.
        labels: of each entry in ``graph``, -1 for none.
        embedded: entries with a vector.
    """

    name: Name
    state: State | None
    pending: int
    ids: Ids
    order: Positions
    rows: Positions
    matrix: Floats
    labels: Labels
    embedded: Bools
    graph: Graph | None = None

    @property
    def size(self) -> int:
        """Bytes held, the graph's too."""
        arrays = (
            self.ids, self.order, self.rows, self.matrix, self.labels, self.embedded, self.absent, *self.by_label,
        )  # fmt: skip
        return sum(a.nbytes for a in arrays) + (self.graph.size if self.graph else 0)

    @cached_property
    def count(self) -> int:
        """Entries with a vector."""
        return int(np.count_nonzero(self.embedded))

    @cached_property
    def by_label(self) -> tuple[Positions, Labels]:
        """Positions by ascending label, and these labels."""
        at = np.argsort(self.labels, kind="stable")
        return at, self.labels[at]

    @cached_property
    def absent(self) -> Positions:
        """Embedded entries whose vectors are not here: neither in the matrix nor in the graph."""
        absent = self.embedded & (self.labels < 0)
        absent[self.rows] = False
        return np.flatnonzero(absent)

    def positions(self, ids: Ids) -> Positions:
        """Where entries stand, -1 for those that are not visible here."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.intp)
        at = np.searchsorted(self.ids, ids, sorter=self.order).clip(0, len(self.ids) - 1)
        found = self.order[at]
        return np.where(self.ids[found] == ids, found, -1)

    def cosines(
        self, reads: StoreReads, question: Floats, lexical: Floats, allowed: Bools | None
    ) -> tuple[Floats, float]:
        """Cosines of a question with the entries, 0 for what is not near it, and the least that all nearer ones have.

        Args:
            lexical: scores of the entries by their words: of the best the cosine is looked up in any case.
            allowed: entries that pass the filter; None for all.
        """
        scores = self.matrix @ question
        if len(scores) == len(self.ids):
            return scores.clip(0, 1), 0.0
        found, floor = np.zeros(len(self.ids), np.float32), 0.0
        found[self.rows] = scores
        if len(self.absent):
            absent = self.absent if allowed is None else self.absent[allowed[self.absent]]
            self._look_up(reads, question, absent, found)
        if self.graph is not None:
            inside = self.labels >= 0 if allowed is None else (self.labels >= 0) & allowed
            some = int(np.count_nonzero(inside))
            # Narrow filters leave too little of what lies near.
            if some <= EXACT or some * SPREAD < self.graph.count:
                self._look_up(reads, question, np.flatnonzero(inside), found)
            else:
                floor = self._near(reads, question, inside, some, found)
                likely = np.flatnonzero(inside & (lexical > 0) & (found == 0))
                if len(likely) > LIKELY:
                    likely = likely[np.argpartition(-lexical[likely], LIKELY)[:LIKELY]]
                self._look_up(reads, question, likely, found)
        return found.clip(0, 1), floor

    def _near(self, reads: StoreReads, question: Floats, inside: Bools, some: int, found: Floats) -> float:
        """Cosines of what the graph finds near; returns that of the farthest. All of them, where the graph fails."""
        assert self.graph is not None
        k = int(min(some, NEAREST) * 1.1 * self.graph.count / some) + 1
        try:
            labels, cosines = self.graph.nearest(question, k)
        except Exception as error:
            log.error("memory index failed a search, which went on without it", exc_info=error)
            labels, cosines = self.labels[:0], found[:0]
        if 2 * len(labels) < min(k, self.graph.count):
            self._look_up(reads, question, np.flatnonzero(inside), found)
            return 0.0
        by_label, held = self.by_label
        first, last = np.searchsorted(held, labels, "left"), np.searchsorted(held, labels, "right")
        counts = last - first
        at = by_label[np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)]
        found[at] = np.where(inside[at], np.repeat(cosines, counts), 0)
        return float(cosines[-1]) if len(cosines) < self.graph.count else 0.0

    def _look_up(self, reads: StoreReads, question: Floats, at: Positions, found: Floats) -> None:
        """Exact cosines of some entries, whose vectors the store gives."""
        key, identity, _ = self.name
        for start in range(0, len(at), EXACT):
            wanted = self.ids[at[start : start + EXACT]].tolist()
            ids, vectors = stacked(reads.memory_vectors(key, identity, wanted), len(question))
            found[self.positions(ids)] = vectors @ question


def wants_graph(scope: Scope, index: MemoryIndex, crossover: int) -> bool:
    """Whether a scope is to be searched by a graph that it does not have, or that holds too little of it."""
    if index is MemoryIndex.EXACT or not scope.count:
        return False
    if index is MemoryIndex.AUTO and scope.count < crossover:
        return False
    if scope.graph is None or 2 * scope.count < scope.graph.count:
        return True
    return outgrown(scope.count, scope.count - len(scope.rows) - len(scope.absent))


def outgrown(count: int, before: int) -> bool:
    """Whether so many vectors came, or went, since there were ``before``, that what was made of these is too little."""
    return abs(count - before) > max(256, count // 50)


def state_of(session: Session) -> State:
    return session.rewrites, session.folds, session.again


class Mark:
    """A point in time from which on a scope is read; void once its session was forgotten."""

    def __init__(self, key: int) -> None:
        self.key, self.void = key, False


class ScopeCache:
    """Scopes read from the store, least recently searched evicted over ``budget`` bytes. Thread-safe."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._scopes: OrderedDict[Name, Scope] = OrderedDict()
        self._sizes: dict[Name, int] = {}
        self._held = self._reserved = 0
        self._marks: WeakSet[Mark] = WeakSet()

    def get(self, reads: StoreReads, session: Session, name: Name, width: int) -> Scope:
        """The scope as ``reads`` has it; what is already here is not read again.

        No embedder is an empty identity and width 0.
        """
        state: State | None = state_of(session)
        with self._lock:
            room = self.budget - self._reserved
            known = self._scopes.get(name)
            if known:
                self._scopes.move_to_end(name)
        if known and len(known.absent) and known.size + 4 * width * len(known.absent) <= room:
            known = None  # There was no room for its vectors, now there is.
        if known and known.state == state and not known.pending:
            return known
        entries, pending = reads.memory_count(*name[:2])
        if known and (known.state, len(known.ids), known.pending) == (state, entries, pending):
            return known
        mark = self.mark(name[0])
        # The session may have moved on before ``reads`` began, and may come back to what it showed.
        now = reads.load_session(session.tenant, session.session_id)
        state = state_of(now) if now else None
        scope = read(reads, state, name, width, pending, known, max(room, LOOSE))
        self._put(scope, mark)
        return scope

    def mark(self, key: int) -> Mark:
        """Now, for ``adopt``."""
        mark = Mark(key)
        with self._lock:
            self._marks.add(mark)
        return mark

    def adopt(self, scope: Scope, mark: Mark, before: Scope | None = None) -> None:
        """Takes a scope that was made since ``mark``, unless ``before`` was replaced or its session forgotten since."""
        if before is None or self._scopes.get(scope.name) is before:
            self._put(scope, mark)

    def _put(self, scope: Scope, mark: Mark) -> None:
        with self._lock:
            if mark.void:
                return
            self._drop(scope.name)
            # Once: its graph grows, and what is taken off later has to be what was added.
            size = scope.size
            if size <= self.budget:
                self._scopes[scope.name], self._sizes[scope.name] = scope, size
                self._held += size
            self._make_room()

    def reserve(self, size: int) -> bool:
        """Makes room for what is being built; False where there is none. ``release`` gives it back."""
        with self._lock:
            if size + self._reserved > self.budget:
                return False
            self._reserved += size
            self._make_room()
            return True

    def release(self, size: int) -> None:
        with self._lock:
            self._reserved -= size

    def forget(self, key: int) -> None:
        """Lets go of a session's vectors, also of those that are just being read."""
        with self._lock:
            for mark in self._marks:
                mark.void = mark.void or mark.key == key
            for name in [name for name in self._scopes if name[0] == key]:
                self._drop(name)

    @property
    def held(self) -> int:
        """Bytes of all cached scopes, and of what is being built."""
        return self._held + self._reserved

    def scopes(self) -> tuple[Scope, ...]:
        """Cached scopes, the least recently searched first."""
        with self._lock:
            return tuple(self._scopes.values())

    def _make_room(self) -> None:
        while self._scopes and self.held > self.budget:
            self._drop(next(iter(self._scopes)))

    def _drop(self, name: Name) -> None:
        if self._scopes.pop(name, None):
            self._held -= self._sizes.pop(name)


def read(
    reads: StoreReads, state: State | None, name: Name, width: int, pending: int, known: Scope | None, room: int
) -> Scope:
    """A scope as the store has it; vectors and labels that ``known`` holds are taken from there.

    Args:
        room: bytes that its matrix may take.
    """
    key, identity, _ = name
    ids = np.array(reads.memory_ids(key, MemoryFilter()), np.int64)
    scope = without_vectors(name, width, state, pending, ids)
    if known is not None:
        scope = _with_vectors(_taken(scope, known), known.ids[known.rows], known.matrix)
    missing = ids[~scope.embedded]
    if not len(missing):
        return scope
    if 4 * width * (len(scope.rows) + len(missing)) <= room:
        wanted = None if known is None else missing.tolist()
        return _with_vectors(scope, *stacked(reads.memory_vectors(key, identity, wanted), width))
    embedded = scope.embedded.copy()
    for start in range(0, len(missing), EXACT):
        found, _ = stacked(reads.memory_vectors(key, identity, missing[start : start + EXACT].tolist()), width)
        embedded[scope.positions(found)] = True
    return replace(scope, embedded=embedded)


def _taken(scope: Scope, known: Scope) -> Scope:
    """The scope with the graph of ``known``, and with what that knows to be embedded though it holds no vector."""
    at = known.positions(scope.ids)
    labels, embedded = scope.labels, scope.embedded.copy()
    if known.graph is not None and len(known.labels):
        labels = np.where(at >= 0, known.labels[at], -1).astype(np.int32)
        embedded |= labels >= 0
    there = np.flatnonzero(at >= 0)
    embedded[there[np.isin(at[there], known.absent)]] = True
    return replace(scope, labels=labels, embedded=embedded, graph=known.graph)


def without_vectors(name: Name, width: int, state: State | None, pending: int, ids: Ids) -> Scope:
    """A scope of which nothing is known but its entries."""
    none = np.full(len(ids), -1, np.int32)
    order = np.argsort(ids, kind="stable")
    nothing = np.empty((0, width), np.float32)
    return Scope(name, state, pending, ids, order, np.empty(0, np.intp), nothing, none, none >= 0)


def _with_vectors(scope: Scope, ids: Ids, vectors: Floats) -> Scope:
    """The scope with vectors of those of the entries that it has and that have none yet."""
    at = scope.positions(ids)
    new = np.flatnonzero(at >= 0)
    new = new[~scope.embedded[at[new]]]
    if len(new) < len(at):
        at, vectors = at[new], vectors[new]
    if len(scope.rows):
        at, vectors = np.concatenate([scope.rows, at]), np.concatenate([scope.matrix, vectors])
    if (at[1:] < at[:-1]).any():
        in_order = np.argsort(at, kind="stable")
        at, vectors = at[in_order], vectors[in_order]
    embedded = scope.embedded.copy()
    embedded[at] = True
    return replace(scope, rows=at, matrix=vectors, embedded=embedded)
