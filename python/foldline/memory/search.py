"""From ranked entries to an answer: checks of a query, duplicates, score floor, token budget, neighbours (M4-M6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryEntry, MemoryFilter, MemoryHit, MemoryQuery
from foldline.domain.ports import StoreReads
from foldline.memory.times import time_bound

MIN_LIMIT, MAX_LIMIT = 1, 20
_SPARE = 3
"""Entries read beyond those still wanted, for equal texts among them."""


def check(query: MemoryQuery) -> MemoryQuery:
    """The query with its time bounds in the form entries have.

    Raises:
        FoldlineError: EMPTY_QUERY, MEMORY_LIMIT_EXCEEDED (M5), FIELD_VALIDATION.
    """
    if not query.text.strip():
        raise FoldlineError(Reason.EMPTY_QUERY, "the query is empty; say in words what to look for")
    if not MIN_LIMIT <= query.limit <= MAX_LIMIT:
        raise FoldlineError(
            Reason.MEMORY_LIMIT_EXCEEDED,
            f"limit is {query.limit}, allowed is {MIN_LIMIT}-{MAX_LIMIT}",
            limit=query.limit,
            minimum=MIN_LIMIT,
            maximum=MAX_LIMIT,
        )
    if query.min_score is not None and not 0 <= query.min_score <= 1:
        raise _invalid("min_score", query.min_score, "[0, 1]")
    if query.max_tokens <= 0:
        raise _invalid("max_tokens", query.max_tokens, "> 0")
    return replace(query, filter=checked(query.filter))


def checked(where: MemoryFilter) -> MemoryFilter:
    """A filter with its time bounds in the form entries have.

    Raises:
        FoldlineError: FIELD_VALIDATION.
    """
    after, before = time_bound("after_time", where.after_time), time_bound("before_time", where.before_time)
    return replace(where, after_time=after, before_time=before)


def _invalid(field: str, value: object, allowed: str) -> FoldlineError:
    return FoldlineError(
        Reason.FIELD_VALIDATION,
        f"{field} is {value}, allowed is {allowed}",
        field=field,
        value=value,
        range=allowed,
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    """An entry's scores and the ids of the entries before and after it, None at the ends."""

    id: int
    score: float
    lexical: float
    semantic: float
    before: int | None
    after: int | None


def collect(
    reads: StoreReads, key: int, ranked: Iterable[Ranked], query: MemoryQuery, count: Callable[[str], int]
) -> tuple[MemoryHit, ...]:
    """The best entries, each text once, as many as ``limit``, ``min_score`` and ``max_tokens`` let in.

    The first hit is cut to the budget if it alone exceeds it, so that a small budget still shows where to read on.
    Neighbours take what the hits left of the budget, so that they never push one out.
    """
    hits: list[tuple[Ranked, MemoryHit]] = []
    left = query.max_tokens
    for rank, entry in _distinct(reads, key, ranked, query.limit + _SPARE):
        if len(hits) == query.limit or (query.min_score is not None and rank.score < query.min_score):
            break
        tokens = count(entry.text)
        if tokens > left and not hits:
            entry = _cut(entry, left, count)
            tokens = left
        if tokens > left or not entry.text:
            break
        left -= tokens
        hits.append((rank, MemoryHit(entry, rank.score, rank.lexical, rank.semantic)))
    if not query.include_neighbors:
        return tuple(hit for _, hit in hits)
    return _with_neighbors(reads, key, hits, left, count)


def _distinct(
    reads: StoreReads, key: int, ranked: Iterable[Ranked], page_size: int
) -> Iterator[tuple[Ranked, MemoryEntry]]:
    """Entries in rank order; of equal texts only the best."""
    seen: set[str] = set()
    ahead = iter(ranked)
    while page := list(islice(ahead, page_size)):
        entries = {stored.id: stored.entry for stored in reads.memory_entries(key, [rank.id for rank in page])}
        for rank in page:
            entry = entries.get(rank.id)
            text = " ".join(entry.text.split()) if entry else ""
            if entry and text not in seen:
                seen.add(text)
                yield rank, entry


def _cut(entry: MemoryEntry, budget: int, count: Callable[[str], int]) -> MemoryEntry:
    """The longest beginning of an entry within ``budget`` tokens, its byte range with it."""
    low, high = 0, len(entry.text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(entry.text[:middle]) <= budget:
            low = middle
        else:
            high = middle - 1
    text = entry.text[:low]
    return replace(entry, text=text, byte_end=entry.byte_start + len(text.encode()))


def _with_neighbors(
    reads: StoreReads, key: int, hits: Sequence[tuple[Ranked, MemoryHit]], left: int, count: Callable[[str], int]
) -> tuple[MemoryHit, ...]:
    wanted = {i for rank, _ in hits for i in (rank.before, rank.after) if i is not None}
    texts = {stored.id: stored.entry.text for stored in reads.memory_entries(key, sorted(wanted))}
    found: list[MemoryHit] = []
    for rank, hit in hits:
        around: list[str] = []
        for neighbor in (rank.before, rank.after):
            text = texts.get(neighbor, "") if neighbor is not None else ""
            tokens = count(text) if text else 0
            around.append(text if tokens <= left else "")
            left -= tokens if tokens <= left else 0
        found.append(replace(hit, before=around[0], after=around[1]))
    return tuple(found)
