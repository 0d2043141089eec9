"""Memory as commands use it: projects folded rows, searches what folds published, embeds in the background (§10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import structlog

from foldline.domain.enums import MemoryIndex
from foldline.domain.errors import FoldlineError
from foldline.domain.memory import MemoryAnswer, MemoryEntry, MemoryFilter, MemoryQuery, StoredEntry
from foldline.domain.ports import Embedder, Store
from foldline.domain.rows import Row, RowBody
from foldline.domain.session import Session
from foldline.memory import projection, text
from foldline.memory.backfill import Backfill, EmbedderHolder
from foldline.memory.condition import Condition
from foldline.memory.index import CROSSOVER, Scope, ScopeCache, wants_graph
from foldline.memory.indexer import Indexer
from foldline.memory.questions import read
from foldline.memory.retrieval import ranked
from foldline.memory.search import check, checked, collect
from foldline.memory.vectors import Floats, is_unit

LOAD_WAIT = 2.0
"""Seconds that the first search waits for the embedder, which loads on another thread, before it goes on without."""

log = structlog.get_logger(__name__)


class MemoryService:
    """Implements ``domain.ports.Memory``.

    Without ``start`` it projects and searches by words; ``start`` brings embedding, loaded when first needed.

    Args:
        embedder_factory: makes the embedder, on the background thread; None for search by words alone.
        cache: of the vectors held in memory, over all scopes (M3).
        count: tokens of a text, for chunks and answer budgets.
        ring: told of a session that has a new event (§13).
        crossover: embedded entries from which on a scope is searched by a graph (M3).
        masked: a text of a session as an embedder elsewhere may see it (S4).
    """

    def __init__(
        self,
        store: Store,
        embedder_factory: Callable[[], Embedder] | None,
        cache: ScopeCache,
        count: Callable[[str], int],
        ring: Callable[[int], None] = lambda key: None,
        crossover: int = CROSSOVER,
        masked: Callable[[int, str], str] = lambda key, text: text,
    ) -> None:
        self._store = store
        self._count = count
        self._holder = EmbedderHolder(embedder_factory)
        self._backfill = Backfill(store, self._holder, Condition(store, ring), masked)
        self._cache = cache
        self._indexer = Indexer(store, cache)
        self._crossover = crossover
        self._masked = masked

    def start(self) -> None:
        self._backfill.start()

    def stop(self) -> None:
        self._backfill.stop()
        self._indexer.stop()

    def wake(self) -> None:
        self._backfill.wake()

    def settle(self, seconds: float) -> bool:
        """Waits until what is pending now has been embedded or given up, and no graph is being built or added to.

        Returns:
            False if that takes longer.
        """
        until = time.monotonic() + seconds
        return self._backfill.settle(seconds) and self._indexer.settle(until - time.monotonic())

    @property
    def problem(self) -> str:
        return self._holder.problem if self._holder.configured else ""

    def counts(self, key: int) -> tuple[int, int]:
        """(entries that search can show, of these without a vector of the current embedder)."""
        embedder = self._holder.embedder
        return self._store.memory_count(key, embedder.identity if embedder else "")

    def checked(self, where: MemoryFilter) -> MemoryFilter:
        return checked(where)

    def forget(self, key: int) -> None:
        self._cache.forget(key)
        self._indexer.forget(key)

    def is_pending(self, stored: StoredEntry) -> bool:
        embedder = self._holder.embedder
        return stored.embedder != embedder.identity if embedder else not stored.embedder

    def row_text(self, body: RowBody) -> str:
        return text.row_text(body)

    def indexable(self, body: RowBody, index_tool_results: bool) -> bool:
        return text.indexable(body, index_tool_results)

    def project(
        self, rows: Sequence[Row], context: Sequence[Row], chunk_tokens: int, index_tool_results: bool
    ) -> tuple[MemoryEntry, ...]:
        return projection.project(rows, context, chunk_tokens, index_tool_results, self._count)

    def search(self, session: Session, query: MemoryQuery) -> MemoryAnswer:
        query = check(query)
        if session.memory_dropped:
            self.forget(session.key)
            return MemoryAnswer((), scope_dropped=True)
        if self._holder.embedder is None and not self._store.memory_count(session.key, "")[0]:
            return MemoryAnswer(())
        embedder, problem = self._embedder()
        question, vector = read(self._store, session.key, query.text), None
        if embedder:
            vector = self._vector(embedder, self._masked(session.key, question.meaning))
            if vector is None:
                problem = self._holder.problem or "the query could not be embedded"
        with self._store.snapshot() as reads:
            identity, width = (embedder.identity, embedder.width) if embedder else ("", 0)
            name = (session.key, identity, query.index is MemoryIndex.EXACT)
            scope = self._cache.get(reads, session, name, width)
            found = ranked(reads, session.key, query, scope, question, vector)
            hits = collect(reads, session.key, found, query, self._count)
        if wants_graph(scope, query.index, self._crossover):
            self._indexer.want(scope, width)
        return MemoryAnswer(hits, degraded=_degraded(problem, scope))

    def _embedder(self) -> tuple[Embedder | None, str]:
        """The embedder, or why there is none now."""
        embedder = self._holder.embedder
        if embedder is None and not self._holder.problem and self._backfill.running:
            self._backfill.wake()
            embedder = self._holder.wait(LOAD_WAIT)
        return embedder, "" if embedder else self._holder.problem or "the embedder is not loaded yet"

    def _vector(self, embedder: Embedder, text: str) -> Floats | None:
        """The vector of a query; None where there is none, which is told (M8)."""
        try:
            vector = embedder.query(text)
        # It is down, or the model behind it has become another: both are for the backfill to mend.
        except FoldlineError as error:
            self._holder.fails(error)
            self._backfill.suspect()
            return None
        except Exception as error:
            log.warning("query not embedded", exc_info=error)
            return None
        if is_unit(vector, embedder.width):
            return np.frombuffer(vector, "<f4")
        log.warning("query not embedded", vector_bytes=len(vector), width=embedder.width)
        return None


def _degraded(problem: str, scope: Scope) -> str:
    """What an answer lacks and what becomes of it (M8); empty when nothing."""
    if problem:
        return f"searched by words alone: {problem}"
    if scope.pending:
        return f"{scope.pending} of {len(scope.ids)} entries are not embedded yet and are found by words alone"
    return ""
