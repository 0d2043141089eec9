"""Joins what is known of the entries of a scope into one score each (M4). Pure functions over arrays in entry order.

The scale of scores, documented for ``min_score``, is [0, 1]: a mean of parts, each in [0, 1], over those parts that the
query has, by the weights below. The words weigh 1: BM25 with a share for matches close by, 1 for the best match if it
holds every term of the query. What the query says beside its words weighs as much as it tells: who speaks, which days.
The meaning, the cosine of the angle between query and entry, weighs ``MEANING``; an entry that is not embedded yet is
given what its words suggest. RRF is 1 for an entry that is first in both rankings. Without an embedder the rest stands
alone. The numbers were chosen on the even dialogues of ``bench/g10_recall.py``; docs/memory.md says what each is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foldline.domain.enums import MemoryFusion

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

MEANING = 1.5
SPEAKER = 0.7
"""For entries of the speakers that a query names."""
DAYS = 0.4
"""For entries of the days that a query names, half of it for those within ``NEAR_DAYS`` of them."""
NEAR_DAYS = 3
TOLD_DAYS = 0.4
"""For entries that tell of such a day in words of their own (``last Friday``)."""
TELLS_WHEN = 0.3
"""For entries that tell a time, where the query asks for one."""
ASKING = 0.85
"""What is left to an entry that ends in a question: it shares the words of a query and seldom holds the answer."""
REPEATED = 0.9
"""What is left to an entry for every better one of its own row, so that a long row does not fill the answer alone."""
PASSAGE = 4
"""Entries to each side that make up the passage an entry stands in."""
PASSAGE_WEIGHT = 0.15
"""Of each of them: an entry gains from matches close by, since conversations spread one matter over several rows."""
RRF_K = 60


@dataclass(frozen=True, slots=True)
class Part:
    """Scores of all entries, in [0, 1], and how much they weigh beside others."""

    scores: Floats
    weight: float


def in_passage(lexical: Floats) -> Floats:
    """Lexical scores with the share that each gains from its passage."""
    total = lexical.copy()
    for step in range(1, min(PASSAGE, len(lexical) - 1) + 1):
        total[step:] += np.float32(PASSAGE_WEIGHT) * lexical[:-step]
        total[:-step] += np.float32(PASSAGE_WEIGHT) * lexical[step:]
    return total


def words(bm25: Floats, coverage: float) -> Part:
    """BM25 scores on the scale.

    Args:
        coverage: the share of the query's terms that the best match holds.
    """
    passage = in_passage(bm25)
    best = passage.max(initial=0)
    return Part(passage * np.float32(coverage / best) if best > 0 else passage, 1.0)


def mean(parts: Sequence[Part]) -> Part:
    """One part of several."""
    weight = sum(part.weight for part in parts)
    total = np.zeros_like(parts[0].scores)
    for part in parts:
        total += np.float32(part.weight / weight) * part.scores
    return Part(total, weight)


def fuse(lexical: Part, cosine: Floats, embedded: Bools, fusion: MemoryFusion) -> Part:
    """All parts but those that only a text tells; 0 where neither ranking found an entry."""
    if not embedded.any():
        return lexical
    cosine = np.where(embedded, cosine, lexical.scores * cosine.max(initial=0))
    meaning = Part(cosine, MEANING)
    if fusion == MemoryFusion.RRF:
        ranks = (_reciprocal(lexical.scores) + _reciprocal(cosine)) * np.float32((RRF_K + 1) / 2)
        return Part(ranks, lexical.weight + MEANING)
    return mean((lexical, meaning))


def _reciprocal(scores: Floats) -> Floats:
    ranks = np.empty(len(scores), np.float32)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return np.where(scores > 0, 1 / (RRF_K + ranks), np.float32(0)).astype(np.float32)
