"""What a query asks for beside its words: who spoke, which days, whether for a time (M4)."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import StoreReads
from foldline.memory.days import asks_when, in_words
from foldline.memory.terms import naming, query_terms, terms

Ids = npt.NDArray[np.int64]

LEAST_SPEECHES, LEAST_SHARE = 2, 0.01
"""Entries that a label stands before, at least, to be a speaker's name: ``Note:`` now and then is nobody's."""

_WORD = re.compile(r"[^\W_]+(?:['’][sS]\b)?")
_EVERY_ENTRY = 1 << 31


@dataclass(frozen=True, slots=True)
class Question:
    """A query, read.

    Attributes:
        terms: to search for; without the names of speakers, which hardly tell their entries apart.
        meaning: text to embed, without these names likewise: their share of a vector drowns what is asked.
        spoken: ids of the entries of speakers that are named; None if nobody is.
    """

    text: str
    terms: tuple[str, ...]
    meaning: str
    spoken: Ids | None = field(default=None, compare=False)

    @property
    def asks_when(self) -> bool:
        return asks_when(self.text)


def read(reads: StoreReads, key: int, text: str) -> Question:
    """A query as the scope of a session understands it."""
    # The numbers of an ISO date are those of clocks and versions, too: they draw meaning away from the day.
    worded = in_words(text)
    found = query_terms(text if worded == text else f"{text} {worded}")
    spoken = _speakers(reads, key, found)
    if not spoken:
        return Question(text, tuple(found), worded)
    return Question(
        text,
        tuple(term for term in found if term not in spoken) or tuple(found),
        without(worded, spoken),
        np.unique(np.concatenate(list(spoken.values()))),
    )


def _speakers(reads: StoreReads, key: int, wanted: list[str]) -> dict[str, Ids]:
    """Terms of a query that name speakers, and the ids of what these said."""
    if not reads.search_lexical(key, naming(wanted), MemoryFilter(), 1):
        return {}
    entries, _ = reads.memory_count(key, "")
    found: dict[str, Ids] = {}
    for name in wanted:
        speeches = reads.search_lexical(key, naming((name,)), MemoryFilter(), _EVERY_ENTRY)
        if len(speeches) >= max(LEAST_SPEECHES, LEAST_SHARE * entries):
            found[name] = np.array([entry_id for entry_id, _ in speeches], np.int64)
    return found


def without(text: str, names: Collection[str]) -> str:
    """A text without the words that are such names; whole if nothing else is there."""
    left = " ".join(_WORD.sub(lambda word: "" if _names(word[0], names) else word[0], text).split())
    return left if terms(left) else text


def _names(word: str, names: Collection[str]) -> bool:
    found = terms(word)
    return len(found) == 1 and found[0] in names
