"""Joins the lexical and the semantic ranking of a scope (M4). Pure functions over one score an entry, in order.

Scores are in [0, 1]: the mean of a lexical part, 1 for the best match of the query's words, and a semantic part, the
cosine similarity. Where there is no semantic part the lexical one stands alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from foldline.domain.enums import MemoryFusion

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

RRF_K = 60
SPREAD = 2
"""Entries before an entry whose similarity is averaged into its own: an answer follows its question."""


def spread(similarity: Floats, embedded: Bools) -> Floats:
    """Each similarity averaged with those of the ``SPREAD`` entries before it; 0 where there is no vector."""
    summed, counted = np.where(embedded, similarity, 0).astype(np.float32), embedded.astype(np.float32)
    total, count = summed.copy(), counted.copy()
    for step in range(1, SPREAD + 1):
        total[step:] += summed[:-step]
        count[step:] += counted[:-step]
    return np.where(embedded, total / np.maximum(count, 1), np.float32(0)).clip(0, 1)


def fuse(
    lexical: Floats, semantic: Floats, embedded: Bools, fusion: MemoryFusion
) -> tuple[Floats, Floats, Floats]:
    """(score, lexical part, semantic part) of every entry; score 0 where neither ranking found it."""
    best = lexical.max(initial=0)
    lexical = lexical / best if best > 0 else lexical
    if not semantic.any():
        return lexical, lexical, semantic
    if fusion == MemoryFusion.RRF:
        scores = (_reciprocal(lexical) + _reciprocal(semantic)) * np.float32((RRF_K + 1) / 2)
    else:
        scores = (lexical + np.where(embedded, semantic, lexical * semantic.max())) / 2
    return scores, lexical, semantic


def _reciprocal(scores: Floats) -> Floats:
    ranks = np.empty(len(scores), np.float32)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return np.where(scores > 0, 1 / (RRF_K + ranks), np.float32(0)).astype(np.float32)
