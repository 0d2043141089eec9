"""What the catalog says of a model, and usage as one shape for all providers."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.enums import ModelType
from foldline.domain.rows import ModelRef

DEFAULT_WINDOW = 256_000
COUNT_MAX = 2**53
"""Above every real count of tokens or bytes; what others state is held to it, so that its multiples fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens, in ``currency``."""

    input: float
    cached_input: float
    output: float
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A catalog entry (4.2); tokens and bytes. ``encoding`` is an embedded vocabulary or empty."""

    context_window: int = DEFAULT_WINDOW
    type: ModelType = ModelType.OPENAI
    input_ceiling: int | None = None
    max_output: int | None = None
    body_cap_bytes: int | None = None
    encoding: str = ""
    prices: Prices | None = None
    known: bool = True

    @property
    def ceiling(self) -> int:
        """W: the smaller of window and input ceiling (§1)."""
        return min(self.context_window, self.input_ceiling or self.context_window)


@dataclass(frozen=True, slots=True)
class Usage:
    """Normalised usage of one call (4.3): ``input_tokens`` counts everything that occupied the window.

    Attributes:
        cached_input_tokens, cache_write_tokens: parts of ``input_tokens``; ``reasoning_tokens`` of ``output_tokens``.
        aggregated: it sums several calls, so that it is no reading.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cost: float | None = None
    currency: str = ""
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    aggregated: bool = False

    def plus(self, other: Usage) -> Usage:
        """Both as a sum over several calls; a number that neither states stays unknown."""

        def added(one: int | None, two: int | None) -> int | None:
            return None if one is None and two is None else min((one or 0) + (two or 0), COUNT_MAX)

        return Usage(
            input_tokens=added(self.input_tokens, other.input_tokens),
            output_tokens=added(self.output_tokens, other.output_tokens),
            cached_input_tokens=added(self.cached_input_tokens, other.cached_input_tokens),
            cost=None if self.cost is None and other.cost is None else (self.cost or 0.0) + (other.cost or 0.0),
            currency=self.currency or other.currency,
            cache_write_tokens=added(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens=added(self.reasoning_tokens, other.reasoning_tokens),
            aggregated=True,
        )


@dataclass(frozen=True, slots=True)
class Factor:
    """Learned ratio of reported to estimated tokens for one model (4.5); ``error`` is its mean relative error."""

    model: ModelRef
    value: float = 1.0
    error: float | None = None
    readings: int = 0
