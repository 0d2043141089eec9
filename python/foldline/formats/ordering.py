"""The order of a batch's results."""

from __future__ import annotations

from collections.abc import Iterable

from foldline.domain.arrangement import CallResult


def as_they_came(results: Iterable[CallResult]) -> list[CallResult]:
    """Results in the order of their rows, placeholders last.

    Both APIs take the results of a batch in any order, and what a host sent comes back as it was (W4). The order does
    not change later: a result that comes after its call went out unanswered is late (R3) and stands elsewhere.
    """
    return sorted(results, key=lambda result: (result.row is None, result.row.offset if result.row else 0))
