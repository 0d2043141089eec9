"""The lexical index of entries (M4): what of their texts it holds, by stem.

A store keeps, for each published group of entries (a segment) and each term, one row of postings; it finds them by
session, segment and term. ``store.bm25`` says what a query makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from foldline._core import Words
from foldline.domain.memory import MemoryEntry
from foldline.store.stemming import Stemmer

_stemmer = Stemmer()


@dataclass(frozen=True, slots=True)
class Segment:
    """The index of a group of entries that are given consecutive ids; ``lengths`` are theirs in terms, in order."""

    lengths: tuple[int, ...]
    postings: Mapping[str, bytes]


_NOTHING = Segment((), {})


def stems(terms: Iterable[str]) -> list[str]:
    """Distinct stems of query terms, in order."""
    words = [word for term in terms for word in term.split()]
    known = _stemmer.stems(words)
    return list(dict.fromkeys(known[word] for word in words))


def segment(entries: Sequence[MemoryEntry]) -> Segment:
    """Indexes entries by stem."""
    if not entries:
        return _NOTHING
    words = Words([column for entry in entries for column in (entry.terms, entry.context)])
    distinct = words.words()
    known = _stemmer.stems(distinct)
    return Segment(tuple(words.lengths()), dict(words.postings([known[word] for word in distinct])))
