"""Builds graphs of large scopes, and adds to them, on a thread of its own (M3): a search never waits for one."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace

import structlog

from foldline.domain.ports import Store
from foldline.memory.graph import Graph, size_of
from foldline.memory.index import Ids, Name, Scope, ScopeCache, outgrown, without_vectors
from foldline.memory.vectors import stacked

READ = 2048
"""Vectors read at a time."""
ROOM = 1.1
"""Of a new graph, over what it holds: entries that come while it is built need no resizing."""
STOP_SECONDS = 5.0
MEND = "pip install --force-reinstall hnswlib"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Job:
    width: int
    scope: Scope


class Indexer:
    """Takes scopes that want a graph, one after the other.

    One that failed is searched exactly from then on. It is tried again once so many vectors came or went as would have
    a graph added to, such as after the embedder was away: what failed may have been of what there was.
    """

    def __init__(self, store: Store, cache: ScopeCache) -> None:
        self._store = store
        self._cache = cache
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._busy: Name | None = None
        self._given_up: dict[Name, int] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def want(self, scope: Scope, width: int) -> None:
        """Has a graph built of a scope, or what its graph lacks added to it."""
        with self._changed:
            asked = scope.name == self._busy or any(job.scope.name == scope.name for job in self._jobs)
            failed_at = self._given_up.get(scope.name)
            if asked or self._stopping or (failed_at is not None and not outgrown(scope.count, failed_at)):
                return
            self._given_up.pop(scope.name, None)
            self._jobs.append(_Job(width, scope))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="memory-index", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, seconds: float) -> bool:
        """Waits until nothing is being built; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and self._busy is None, seconds)

    def forget(self, key: int) -> None:
        """Lets go of what is known of a session whose scope is gone."""
        with self._changed:
            self._jobs = deque(job for job in self._jobs if job.scope.name[0] != key)
            for name in [name for name in self._given_up if name[0] == key]:
                del self._given_up[name]
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._jobs.clear()
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread:
            thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or bool(self._jobs))
                if self._stopping:
                    return
                job = self._jobs.popleft()
                self._busy = job.scope.name
            try:
                self._work(job)
            except Exception as error:
                if not self._stopping:
                    self._give_up(job)
                    log.error("memory index failed, the scope is searched exactly", mend=MEND, exc_info=error)
            with self._changed:
                self._busy = None
                self._changed.notify_all()

    def _give_up(self, job: _Job) -> None:
        with self._changed:
            self._given_up[job.scope.name] = job.scope.count

    def _work(self, job: _Job) -> None:
        scope = job.scope
        if scope.graph is not None and 2 * scope.count >= scope.graph.count:
            self._grow(scope, scope.graph)
            return
        size = size_of(int(ROOM * scope.count), job.width)
        if not self._cache.reserve(size):
            self._give_up(job)
            log.warning("memory.cache_bytes is too small for the index of a scope", needed=size)
            return
        mark = self._cache.mark(scope.name[0])
        try:
            built = self._build(scope.name, scope.ids[scope.embedded], job.width)
        finally:
            # Before it is adopted: it takes the room that was kept for it.
            self._cache.release(size)
        if built is not None:
            self._cache.adopt(built, mark)

    def _grow(self, scope: Scope, graph: Graph) -> None:
        key, identity, _ = scope.name
        mark, labels = self._cache.mark(key), scope.labels.copy()
        labels[scope.rows] = graph.add(scope.matrix, lambda: self._stopping)
        for start in range(0, len(scope.absent), READ):
            wanted = scope.ids[scope.absent[start : start + READ]].tolist()
            found, vectors = stacked(self._store.memory_vectors(key, identity, wanted), graph.width)
            labels[scope.positions(found)] = graph.add(vectors, lambda: self._stopping)
            if self._stopping:
                return
        left = labels[scope.rows] < 0
        grown = replace(scope, labels=labels, rows=scope.rows[left], matrix=scope.matrix[left])
        self._cache.adopt(grown, mark, scope)

    def _build(self, name: Name, ids: Ids, width: int) -> Scope | None:
        """A new graph, of vectors as the store has them: the scope's own need not stay in memory meanwhile.

        Returns:
            The scope with it; None where the server stops.
        """
        key, identity, _ = name
        graph = Graph(width, int(ROOM * len(ids)))
        made = without_vectors(name, width, None, 0, ids)
        labels = made.labels.copy()
        for start in range(0, len(ids), READ):
            wanted = ids[start : start + READ].tolist()
            found, vectors = stacked(self._store.memory_vectors(key, identity, wanted), width)
            added = graph.add(vectors, lambda: self._stopping)
            if self._stopping:
                return None
            labels[made.positions(found)] = added
            graph.verify(vectors, added)
        return replace(made, labels=labels, embedded=labels >= 0, graph=graph)
