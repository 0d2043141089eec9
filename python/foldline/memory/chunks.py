"""Cuts long text at natural breaks (M2)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import pairwise

Count = Callable[[str], int]
"""Tokens of a text."""

_BREAKS = tuple(
    re.compile(pattern)
    for pattern in (r"\n[^\S\n]*\n\s*", r"\n", r"(?<=[.!?])\s+|(?<=[。！？])", r"(?<=[,;:)\]}])\s*", r"\s+")
)
"""From the best place to cut to the worst: paragraph, line, sentence, clause, word; after that between characters."""


def chunk(text: str, limit: int, count: Count) -> list[tuple[int, int]]:
    """Character spans of ``limit`` tokens and of similar size; only white space lies between them.

    Tokens are added up over the pieces of a span, so that one may hold a few more where they merge less well.
    """
    # No text has more tokens than bytes, no character more than four of them.
    total = 0 if 4 * len(text) <= limit else count(text)
    if total <= limit:
        spans = [(0, len(text))]
    else:
        target = math.ceil(total / math.ceil(total / limit))
        spans = _pack(_leaves(text, 0, len(text), limit, count, 0), target, limit)
    trimmed = (_trim(text, *span) for span in spans)
    return [span for span in trimmed if span[0] < span[1]]


def _leaves(text: str, start: int, end: int, limit: int, count: Count, level: int) -> Iterator[tuple[int, int, int]]:
    """Contiguous (start, end, tokens) that fit, cut no finer than needed."""
    tokens = count(text[start:end])
    if tokens <= limit or end - start == 1:
        yield start, end, tokens
        return
    if level == len(_BREAKS):
        parts = min(math.ceil(tokens / limit), end - start)
        cuts = [start + i * (end - start) // parts for i in range(parts + 1)]
    else:
        inner = (match.end() for match in _BREAKS[level].finditer(text, start, end))
        cuts = [start, *(cut for cut in inner if start < cut < end), end]
        level += 1
    for left, right in pairwise(cuts):
        yield from _leaves(text, left, right, limit, count, level)


def _pack(leaves: Iterator[tuple[int, int, int]], target: int, limit: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    size = limit
    for start, end, tokens in leaves:
        if size + tokens > limit or size >= target:
            spans.append((start, end))
            size = tokens
        else:
            spans[-1] = (spans[-1][0], end)
            size += tokens
    return spans


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    if start < end and not text[start].isspace() and not text[end - 1].isspace():
        return start, end
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
