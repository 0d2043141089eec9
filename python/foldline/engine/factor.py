"""The learned ratio of reported to estimated tokens (4.5)."""

from __future__ import annotations

import math

from foldline.domain.changes import replace
from foldline.domain.models import Factor
from foldline.domain.policy import Policy

WEIGHT = 0.3
"""Weight of a new reading against all before it."""


def apply(factor: Factor, raw: int) -> int:
    """Estimate of ``raw`` tokens after the factor, rounded up."""
    return math.ceil(raw * factor.value)


def within(factor: Factor, policy: Policy) -> Factor:
    """The factor as a policy bounds it."""
    value = _bounded(factor.value, policy)
    return factor if value == factor.value else replace(factor, value=value)


def learn(factor: Factor, estimated_raw: int, reported: int, policy: Policy) -> Factor:
    """Moves the factor towards a provider's count of a request.

    Args:
        estimated_raw: raw estimate of the whole request, tools included, before any factor.
        reported: input tokens the provider counted; must be no outlier (4.3).
    """
    if estimated_raw <= 0 or reported <= 0:
        return factor
    ratio = reported / estimated_raw
    missed = abs(factor.value * estimated_raw - reported) / reported
    first = factor.readings == 0
    value = ratio if first else factor.value + WEIGHT * (ratio - factor.value)
    error = missed if factor.error is None else factor.error + WEIGHT * (missed - factor.error)
    return replace(factor, value=_bounded(value, policy), error=error, readings=factor.readings + 1)


def learn_refusal(factor: Factor, estimated_raw: int, at_least: int, policy: Policy) -> Factor:
    """Raises the factor after a refusal (4.4): the request held the count it named, else at least W."""
    if estimated_raw <= 0 or at_least <= factor.value * estimated_raw:
        return factor
    return replace(factor, value=_bounded(at_least / estimated_raw, policy), readings=factor.readings + 1)


def _bounded(value: float, policy: Policy) -> float:
    return min(max(value, policy.estimate.factor_min), policy.estimate.factor_max)
