"""Memory as commands use it: projects folded rows, searches what folds published, embeds in the background (§10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import structlog

from foldline.domain.memory import MemoryAnswer, MemoryEntry, MemoryFilter, MemoryQuery
from foldline.domain.ports import Embedder, Store
from foldline.domain.rows import Row, RowBody
from foldline.domain.session import Session
from foldline.memory import projection, text
from foldline.memory.backfill import Backfill, EmbedderHolder
from foldline.memory.index import Scope, ScopeCache
from foldline.memory.ranking import Floats, fuse, spread
from foldline.memory.search import Ranked, check, collect
from foldline.memory.terms import query_terms

LOAD_WAIT = 2.0
"""Seconds that the first search waits for the embedder, which loads on another thread, before it goes on without."""
LEXICAL_LIMIT = 1000

log = structlog.get_logger(__name__)


class MemoryService:
    """Implements ``domain.ports.Memory``.

    Without ``start`` it projects and searches by words; ``start`` brings embedding, loaded when first needed.

    Args:
        embedder_factory: makes the embedder, on the background thread; None for search by words alone.
        cache_bytes: budget of vectors held in memory over all scopes (M3).
        count: tokens of a text, for chunks and answer budgets.
    """

    def __init__(
        self,
        store: Store,
        embedder_factory: Callable[[], Embedder] | None,
        cache_bytes: int,
        count: Callable[[str], int],
    ) -> None:
        self._store = store
        self._count = count
        self._holder = EmbedderHolder(embedder_factory)
        self._backfill = Backfill(store, self._holder)
        self._cache = ScopeCache(store, cache_bytes)

    def start(self) -> None:
        self._backfill.start()

    def stop(self) -> None:
        self._backfill.stop()

    def wake(self) -> None:
        self._backfill.wake()

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
            return MemoryAnswer((), scope_dropped=True)
        embedder, problem = self._embedder()
        question: Floats | None = None
        if embedder:
            try:
                question = np.frombuffer(embedder.embed([query.text])[0], "<f4")
            except Exception as error:
                problem = "the query could not be embedded"
                log.warning("query not embedded", exc_info=error)
        scope = self._cache.get(
            session, embedder.identity if embedder else "", embedder.width if embedder else 0
        )
        if not scope.positions:
            return MemoryAnswer(())
        ranked = self._rank(session.key, query, scope, question)
        hits = collect(self._store, session.key, ranked, query, self._count)
        return MemoryAnswer(hits, degraded=_degraded(problem, scope))

    def _embedder(self) -> tuple[Embedder | None, str]:
        """The embedder, or why there is none now."""
        if self._backfill.running:
            self._backfill.wake()
            embedder = self._holder.wait(LOAD_WAIT)
            return embedder, "" if embedder else self._holder.problem or "the embedder is still loading"
        return None, self._holder.problem or "the embedder is not started"

    def _rank(self, key: int, query: MemoryQuery, scope: Scope, question: Floats | None) -> list[Ranked]:
        where = query.filter
        lexical = np.zeros(len(scope.ids), np.float32)
        for entry_id, score in self._store.search_lexical(key, query_terms(query.text), where, LEXICAL_LIMIT):
            if entry_id in scope.positions:
                lexical[scope.positions[entry_id]] = score
        if question is not None and question.size == scope.matrix.shape[1]:
            semantic = spread(scope.matrix @ question, scope.embedded)
        else:
            semantic = np.zeros_like(lexical)
        scores, lexical, semantic = fuse(lexical, semantic, scope.embedded, query.fusion)
        if where != MemoryFilter():
            allowed = np.isin(scope.ids, self._store.memory_ids(key, where))
            scores = np.where(allowed, scores, 0)
        found = np.flatnonzero(scores > 0)
        order = found[np.lexsort((-found, -scores[found]))]
        last = len(scope.ids) - 1
        return [
            Ranked(
                id=int(scope.ids[at]),
                score=float(scores[at]),
                lexical=float(lexical[at]),
                semantic=float(semantic[at]),
                before=int(scope.ids[at - 1]) if at > 0 else None,
                after=int(scope.ids[at + 1]) if at < last else None,
            )
            for at in order
        ]


def _degraded(problem: str, scope: Scope) -> str:
    """What an answer lacks and what becomes of it (M8); empty when nothing."""
    if problem:
        return f"searched by words alone: {problem}"
    pending = scope.stamp[2]
    if pending:
        return f"{pending} of {len(scope.ids)} entries are not embedded yet and are found by words alone"
    return ""
