"""Joins the lexical and the semantic ranking of a scope (M4). Pure functions over one score an entry, in order.

The scale of scores, documented for ``min_score``, is [0, 1]. The lexical part is 1 for an entry that is the best match
and holds every term of the query, and shrinks with the terms that even the best match lacks; where the query names
somebody who is labelled as a speaker, ``SPEAKER_SHARE`` of it is for the entries of that speaker. The semantic part is
the cosine of the angle between query and entry. MIN_MAX weighs the lexical part ``LEXICAL_SHARE`` to the rest; an entry
that is not embedded yet is given the semantic part its words suggest. RRF is 1 for an entry that is first in both
rankings. Without an embedder the lexical part stands alone. The numbers below were chosen on the even dialogues of
``bench/g10``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from foldline.domain.enums import MemoryFusion

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

LEXICAL_SHARE = 0.7
SPEAKER_SHARE = 0.15
PASSAGE = 4
"""Entries to each side that make up the passage an entry stands in."""
PASSAGE_WEIGHT = 0.1
"""Of each of them: an entry gains from matches close by, since conversations spread one matter over several rows."""
RRF_K = 60


def in_passage(lexical: Floats) -> Floats:
    """Lexical scores with the share that each gains from its passage."""
    total = lexical.copy()
    for step in range(1, min(PASSAGE, len(lexical) - 1) + 1):
        total[step:] += np.float32(PASSAGE_WEIGHT) * lexical[:-step]
        total[:-step] += np.float32(PASSAGE_WEIGHT) * lexical[step:]
    return total


def lexical_part(bm25: Floats, coverage: float, named: Bools) -> Floats:
    """BM25 scores on the scale.

    Args:
        coverage: the share of the query's terms that the best match holds.
        named: entries whose speaker the query names.
    """
    passage = in_passage(bm25)
    best = passage.max(initial=0)
    part = passage * np.float32(coverage / best) if best > 0 else passage
    if named.any():
        part = np.float32(1 - SPEAKER_SHARE) * part + np.float32(SPEAKER_SHARE) * named
    return part


def fuse(lexical: Floats, semantic: Floats, embedded: Bools, fusion: MemoryFusion) -> Floats:
    """The score of every entry from its two parts; 0 where neither ranking found it."""
    semantic = np.where(embedded, semantic, lexical * semantic.max(initial=0))
    if fusion == MemoryFusion.RRF:
        return (_reciprocal(lexical) + _reciprocal(semantic)) * np.float32((RRF_K + 1) / 2)
    return np.float32(LEXICAL_SHARE) * lexical + np.float32(1 - LEXICAL_SHARE) * semantic


def _reciprocal(scores: Floats) -> Floats:
    ranks = np.empty(len(scores), np.float32)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return np.where(scores > 0, 1 / (RRF_K + ranks), np.float32(0)).astype(np.float32)
