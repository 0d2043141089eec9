"""G12: bounding 100 results of 1 MB to fit, against copying the bytes that are kept.

What is measured is the work of §9 on texts in memory: sharing, cutting, marking. A token axis is sized by tokens where
the vocabulary is embedded, which means counting what is kept, and by two bytes a token where it is not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from foldline import _core
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Bounding
from foldline.domain.rows import TextBlock, ToolResultRow, encode_body
from foldline.engine.bounding import (
    BoundableResult,
    LongResult,
    plan,
    shorten,
    shorten_texts,
    smallest_share,
    utf8_size,
)

from bench._prepare import text
from bench._servers import spread

RESULTS, SIZE = 100, 1_000_000
BYTES, TOKENS = 9_000_000, 200_000
"""The body cap of a provider, and the window of a model."""
ENCODING = "o200k_base"
SEED = 12


def _ascii(number: int) -> str:
    lines = text(SEED + number, 4_000).replace(" ", "\n", 40)
    return (lines * (SIZE // len(lines) + 1))[:SIZE]


def _han(number: int) -> str:
    """Lines of Han characters, three bytes each."""
    words = random.Random(SEED + number)
    line = "".join(chr(words.randrange(0x4E00, 0x9000)) for _ in range(60)) + "。\n"
    return (line * (SIZE // 180))[: SIZE // 3]


class _Case:
    """Results of one kind of text, measured as rows are when they are appended."""

    def __init__(self, make: Callable[[int], str]) -> None:
        texts = [make(number) for number in range(RESULTS)]
        self.long = [LongResult(t, utf8_size(t), f"call_{n}", "read_file") for n, t in enumerate(texts)]
        rows = [encode_body(ToolResultRow(r.call_id, (TextBlock(r.text),))) for r in self.long]
        self.sizes = {encoding: _core.measure_rows(rows, encoding or None) for encoding in ("", ENCODING)}
        self.texts = texts

    def rows(self, token_budget: int | None, byte_budget: int | None, encoding: str) -> list[str]:
        """As ``PrepareRequest`` bounds the results of a run, whose sizes are stored with their rows."""
        results = [BoundableResult(n, *size) for n, size in enumerate(self.sizes[encoding])]
        planned = plan(
            results, token_budget=token_budget, byte_budget=byte_budget, bounding=Bounding(), encoding=encoding
        )
        assert planned is not None
        assert planned.fits
        assert len(planned.offsets) == RESULTS
        return [s.text for s in shorten(self.long, planned.share, BoundingCut.HEAD, encoding)]

    def alone(self, token_budget: int | None, byte_budget: int | None) -> list[str]:
        """As ``BoundResults`` does, which has to count the tokens itself."""
        tokens = [0] * RESULTS
        if token_budget is not None:
            tokens = _core.tokens_within(self.texts, token_budget, smallest_share(Bounding()), ENCODING)
        sizes = [utf8_size(t) for t in self.texts]
        planned = plan(
            [BoundableResult(n, *size) for n, size in enumerate(zip(tokens, sizes, strict=True))],
            token_budget=token_budget, byte_budget=byte_budget, bounding=Bounding(), encoding=ENCODING,
        )  # fmt: skip
        assert planned is not None
        assert planned.fits
        assert len(planned.offsets) == RESULTS
        return [s.text for s in shorten_texts(self.long, planned.share, BoundingCut.HEAD, ENCODING)]


def run(rounds: int) -> dict[str, Any]:
    """Ratios of bounding over copying (goal 10), by kind of text, axis and caller."""
    found: dict[str, Any] = {"goal": 10.0, "seed": SEED}
    for kind, make in (("ascii", _ascii), ("han", _han)):
        case = _Case(make)
        ways: dict[str, Callable[[], list[str]]] = {
            "bytes_alone": lambda case=case: case.alone(None, BYTES),
            "bytes": lambda case=case: case.rows(None, BYTES, ""),
            "tokens_weighted": lambda case=case: case.rows(TOKENS, None, ""),
            "tokens_vocabulary": lambda case=case: case.rows(TOKENS, None, ENCODING),
            "tokens_vocabulary_alone": lambda case=case: case.alone(TOKENS, None),
        }  # fmt: skip
        found[kind] = {name: _ratio(case, way, rounds) for name, way in ways.items()}
    return found


def _ratio(case: _Case, bound: Callable[[], list[str]], rounds: int) -> dict[str, Any]:
    ratios, times, kept = [], [], [0] * RESULTS
    for number in range(rounds + 1):
        started = time.perf_counter()
        made = bound()
        took = time.perf_counter() - started
        kept = [t.rindex("\n[result of ") for t in made]
        started = time.perf_counter()
        copies = [t[:size] for t, size in zip(case.texts, kept, strict=True)]
        copied = time.perf_counter() - started
        assert copies
        if number:
            ratios.append(took / copied)
            times.append((took, copied))
    took, copied = sorted(times)[len(times) // 2]
    size = sum(utf8_size(t[:k]) for t, k in zip(case.texts, kept, strict=True))
    return {**spread(ratios), "kept_bytes": size, "milliseconds": {"bound": took * 1e3, "copy": copied * 1e3}}
