"""What the index rows of a scope make of a query (M4): BM25, by the formula of SQLite's FTS5.

Counting stays within the scope, so that no session's scores depend on another's words (M1) and a search costs what its
own scope holds. It is imported by the first search, since numpy is a good part of a server's start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OWN_WEIGHT, CONTEXT_WEIGHT = 4.0, 1.0
"""How much a term counts in an entry's own text and in its context."""

K1, B = 1.2, 0.75

POSTING = np.dtype([("entry", "<u4"), ("own", "u1"), ("context", "u1"), ("length", "<u2")])
"""One entry that holds a term: its id less the segment's first, how often in each column, and its length in terms.

A term that stands more often, or a longer entry, counts as the most there is room for.
"""


@dataclass(frozen=True, slots=True)
class ScopeSize:
    """How many entries a scope shows, and how many terms they hold."""

    entries: int
    length: int


def rank(
    rows: Iterable[tuple[int, str, bytes]], hidden: npt.NDArray[np.int64], size: ScopeSize
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Scores the entries of a query's posting rows.

    Args:
        rows: (segment's first id, stem, postings).
        hidden: ids of entries that the scope does not show.
        size: of what it shows.

    Returns:
        Ids, ascending, and their scores, all over 0.
    """
    by_stem: dict[str, list[tuple[int, bytes]]] = {}
    for first, stem, postings in rows:
        by_stem.setdefault(stem, []).append((first, postings))
    ids: list[npt.NDArray[np.int64]] = []
    scores: list[npt.NDArray[np.float64]] = []
    mean = size.length / size.entries if size.entries else 1.0
    for parts in by_stem.values():
        held = np.frombuffer(b"".join(data for _, data in parts), POSTING)
        firsts = np.repeat([first for first, _ in parts], [len(data) // POSTING.itemsize for _, data in parts])
        entries = (firsts + held["entry"]).astype(np.int64, copy=False)
        if len(hidden):
            shown = ~np.isin(entries, hidden)
            held, entries = held[shown], entries[shown]
        rarity = np.log((size.entries - len(entries) + 0.5) / (len(entries) + 0.5))
        frequency = OWN_WEIGHT * held["own"].astype(np.float64) + CONTEXT_WEIGHT * held["context"]
        norm = K1 * (1 - B + B * held["length"] / mean)
        ids.append(entries)
        # A term that most entries hold still counts as a match, only for next to nothing.
        scores.append(max(rarity, 1e-6) * frequency * (K1 + 1) / (frequency + norm))
    if not ids:
        return np.empty(0, np.int64), np.empty(0)
    distinct, positions = np.unique(np.concatenate(ids), return_inverse=True)
    return distinct, np.bincount(positions, np.concatenate(scores), len(distinct)).astype(np.float64, copy=False)
