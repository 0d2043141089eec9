"""What a call of a source cost (S5, C6)."""

from __future__ import annotations

from foldline.domain.changes import replace
from foldline.domain.models import Prices, Usage


def priced(usage: Usage, prices: Prices | None) -> Usage:
    """The usage with its cost by the catalog's prices; one that names its cost, or has no price, stays as it is."""
    if prices is None or usage.cost is not None or usage.input_tokens is None or usage.output_tokens is None:
        return usage
    cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
    millionths = (
        (usage.input_tokens - cached) * prices.input
        + cached * prices.cached_input
        + usage.output_tokens * prices.output
    )
    return replace(usage, cost=millionths / 1_000_000, currency=prices.currency)
