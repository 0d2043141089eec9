"""The learned ratio of reported to estimated tokens (4.5).

Sessions of a tenant share it, and each bounds it by its own policy where it uses it: what one of them allows takes
nothing from what all have learned.
"""

from __future__ import annotations

import math

from foldline.domain.changes import replace
from foldline.domain.models import Factor
from foldline.domain.policy import Policy
from foldline.domain.session import Prepared

WEIGHT = 0.3
"""Weight of a new reading against all before it."""


def apply(factor: Factor, raw: int) -> int:
    """Estimate of ``raw`` tokens after the factor, rounded up."""
    return math.ceil(raw * factor.value)


def within(factor: Factor, policy: Policy) -> Factor:
    """The factor as a policy bounds it."""
    value = min(max(factor.value, policy.estimate.factor_min), policy.estimate.factor_max)
    return factor if value == factor.value else replace(factor, value=value)


def learn(factor: Factor, estimated_raw: int, reported: int) -> Factor:
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
    return replace(factor, value=value, error=error, readings=factor.readings + 1)


def learn_refusal(factor: Factor, prepared: Prepared, named_tokens: int | None, named_limit: int | None) -> Factor:
    """Raises the factor after a refusal (4.4): the request held the count it named, else at least W.

    A server may be run with less than the catalog says: a limit that is named is what the request did not fit. What no
    text of this size can hold, and requests that are bounded or mostly media, teach nothing (4.3).
    """
    raw, most = prepared.request_tokens, prepared.request_bytes + prepared.media_tokens
    window = prepared.ceiling or prepared.window
    at_least = named_tokens if named_tokens and named_tokens <= most else min(named_limit or window, window)
    says_little = prepared.bounded or prepared.media_tokens * 10 > raw or at_least > most
    if raw <= 0 or says_little or at_least <= factor.value * raw:
        return factor
    return replace(factor, value=at_least / raw, readings=factor.readings + 1)
