"""Ranks the entries of a scope for a question (M4): first by what the store and the vectors say of all of them, then,
of the best, by what only their texts say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from heapq import merge
from itertools import islice

import numpy as np

from foldline.domain.enums import MemoryFusion
from foldline.domain.memory import MemoryEntry, MemoryFilter, MemoryQuery
from foldline.domain.ports import StoreReads
from foldline.memory.days import Days, distance, named_days, tells_when, told_days, widened
from foldline.memory.index import Scope
from foldline.memory.questions import Question
from foldline.memory.ranking import (
    ASKING,
    DAYS,
    NEAR_DAYS,
    REPEATED,
    SPEAKER,
    TELLS_WHEN,
    TOLD_DAYS,
    Floats,
    Part,
    fuse,
    mean,
    words,
)
from foldline.memory.search import Ranked
from foldline.memory.terms import coverage

LEXICAL_LIMIT = 1000
SORTED = 128
READ = 50
"""Entries whose texts are read before they are ranked: enough that what a text says can lift it among the 20 that a
query may ask for.
"""


def ranked(
    reads: StoreReads, key: int, query: MemoryQuery, scope: Scope, question: Question, vector: Floats | None
) -> Iterator[Ranked]:
    """Entries with a score, best first; of equal ones the newest first.

    Args:
        vector: of the question's meaning; None searches by words alone.
    """
    days = _days(reads, key, scope, question)
    part = lexical = mean([_words(reads, key, query, scope, question), *_told(reads, key, scope, question, days)])
    cosine, allowed = np.zeros_like(lexical.scores), None
    if query.filter != MemoryFilter():
        allowed = np.isin(scope.ids, reads.memory_ids(key, query.filter))
    if vector is not None:
        cosine, floor = scope.cosines(reads, vector, lexical.scores, allowed)
        # Ranks count only so far down as every entry above is known.
        near = cosine if query.fusion == MemoryFusion.MIN_MAX else np.where(cosine < floor, np.float32(0), cosine)
        part = fuse(lexical, near, scope.embedded, query.fusion)
    scores = part.scores
    if allowed is not None:
        scores = np.where(allowed, scores, np.float32(0))
    order = _best_first(scores)
    if query.fusion == MemoryFusion.MIN_MAX:
        best = np.fromiter(islice(order, READ), np.int64)
        scores = _read(reads, key, scope, question, days, best, Part(scores, part.weight))
        # What was not read keeps its order: all of it was scaled alike.
        order = merge(best[np.lexsort((-best, -scores[best]))], order, key=lambda at: (-scores[at], -at))
    last = len(scope.ids) - 1
    for at in order:
        yield Ranked(
            id=int(scope.ids[at]),
            score=float(scores[at]),
            lexical=float(lexical.scores[at]),
            semantic=float(cosine[at]),
            before=int(scope.ids[at - 1]) if at > 0 else None,
            after=int(scope.ids[at + 1]) if at < last else None,
        )


def _best_first(scores: Floats) -> Iterator[int]:
    """Places of the entries with a score, best first; sorts no more of them than are asked for."""
    found = np.flatnonzero(scores > 0)
    while len(found):
        floor = np.partition(scores[found], -SORTED)[-SORTED] if len(found) > SORTED else 0
        upper = found[scores[found] >= floor]
        yield from upper[np.lexsort((-upper, -scores[upper]))]
        found = found[scores[found] < floor]


def _words(reads: StoreReads, key: int, query: MemoryQuery, scope: Scope, question: Question) -> Part:
    found = reads.search_lexical(key, question.terms, query.filter, LEXICAL_LIMIT)
    bm25 = np.zeros(len(scope.ids), np.float32)
    if found:
        ids, scores = zip(*found, strict=True)
        at = scope.positions(np.array(ids, np.int64))
        bm25[at[at >= 0]] = np.array(scores, np.float32)[at >= 0]
    held = [
        term
        for stored in reads.memory_entries(key, [entry_id for entry_id, _ in found[:1]])
        for term in f"{stored.entry.terms} {stored.entry.context}".split()
    ]
    return words(bm25, coverage(question.terms, held))


def _days(reads: StoreReads, key: int, scope: Scope, question: Question) -> tuple[Days, ...]:
    """Spans of days that a question names; of a day without its year, that of every year the scope spans,
    newest first.
    """

    @cache
    def years() -> Sequence[int]:
        ends = [int(i) for i in (scope.ids[0], scope.ids[-1])] if len(scope.ids) else []
        found = [day.year for stored in reads.memory_entries(key, ends) if (day := _day(stored.entry))]
        return range(max(found), min(found) - 1, -1) if found else ()

    return named_days(question.text, years)


def _told(reads: StoreReads, key: int, scope: Scope, question: Question, days: Sequence[Days]) -> Iterator[Part]:
    """Parts of what a question says beside its words."""
    if question.spoken is not None:
        yield Part(np.isin(scope.ids, question.spoken).astype(np.float32), SPEAKER)
    if days:
        near = np.zeros(len(scope.ids), np.float32)
        for by in (0, NEAR_DAYS):
            within: set[int] = set()
            for first, last in (widened(span, by) for span in days):
                where = MemoryFilter(after_time=f"{first}T00:00:00.000000Z", before_time=f"{last}T23:59:59.999999Z")
                within.update(reads.memory_ids(key, where))
            near += np.isin(scope.ids, list(within)).astype(np.float32) / 2
        yield Part(near, DAYS)


def _read(
    reads: StoreReads,
    key: int,
    scope: Scope,
    question: Question,
    days: Sequence[Days],
    best: np.ndarray,
    part: Part,
) -> Floats:
    """Scores after a look at the texts of the best entries."""
    asks_when = question.asks_when
    entries = [stored.entry for stored in reads.memory_entries(key, [int(scope.ids[at]) for at in best])]
    if len(entries) != len(best):
        return part.scores
    parts = [part]
    if asks_when:
        parts.append(_of_texts(scope, best, [float(tells_when(entry.text)) for entry in entries], TELLS_WHEN))
    if days:
        parts.append(_of_texts(scope, best, [_tells_of(entry, days) for entry in entries], TOLD_DAYS))
    scores = mean(parts).scores
    asking = [at for at, entry in zip(best, entries, strict=True) if entry.text.rstrip().endswith(("?", "？"))]
    scores[asking] *= np.float32(ASKING)
    better: Counter[int] = Counter()
    for i in np.argsort(-scores[best], kind="stable"):
        scores[best[i]] *= np.float32(REPEATED ** better[entries[i].offset])
        better[entries[i].offset] += 1
    return scores


def _of_texts(scope: Scope, best: np.ndarray, values: Sequence[float], weight: float) -> Part:
    scores = np.zeros(len(scope.ids), np.float32)
    scores[best] = values
    return Part(scores, weight)


def _tells_of(entry: MemoryEntry, days: Sequence[Days]) -> float:
    """1 for a text that tells of one of these days, less for one near by."""
    today = _day(entry)
    apart = distance(told_days(entry.text, today), days) if today else None
    return 0.0 if apart is None else float(np.exp(-apart / 2))


def _day(entry: MemoryEntry) -> date | None:
    return date.fromisoformat(entry.create_time[:10]) if entry.create_time else None
