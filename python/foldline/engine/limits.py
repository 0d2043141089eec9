"""Limits of one boundary (4.2)."""

from __future__ import annotations

from foldline.domain.enums import ModelType
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import ModelInfo
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits

DEFAULT_RESERVE = 8_192
BODY_CAPS = {ModelType.ANTHROPIC: 9_000_000, ModelType.OPENAI: 50_000_000, ModelType.GOOGLE: 20_000_000}


def limits(policy: Policy, info: ModelInfo, reserve: int | None = None) -> Limits:
    """T, W, the input budget and the byte limits of a request to a model.

    Args:
        reserve: the request's own maximum output in tokens, None when the host did not say.

    Raises:
        FoldlineError: FIELD_VALIDATION where T <= 0 or the reserve reaches W, with the numbers.
    """
    ceiling = info.ceiling
    threshold = policy.auto_compact_threshold
    if threshold is None:
        threshold = int(policy.threshold_fraction * ceiling)
    if threshold <= 0:
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            f"the threshold is {threshold} tokens ({policy.threshold_fraction} of {ceiling}), it must be over 0",
            field="policy.auto_compact_threshold", value=threshold, range="> 0", ceiling=ceiling,
        )  # fmt: skip
    kept_free = _reserve(policy, info, reserve)
    if kept_free >= ceiling:
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            f"an output reserve of {kept_free} tokens leaves no room for input under {ceiling}",
            field="policy.output_reserve_tokens", value=kept_free, range=f"< {ceiling}", ceiling=ceiling,
        )  # fmt: skip
    cap = policy.body_cap_bytes or info.body_cap_bytes or BODY_CAPS.get(info.type)
    return Limits(
        threshold=threshold,
        ceiling=ceiling,
        input_budget=min(info.context_window - kept_free, ceiling),
        reserve=kept_free,
        body_cap=cap,
        byte_limit=None if cap is None else min(int(policy.byte_fraction * cap), cap),
    )


def _reserve(policy: Policy, info: ModelInfo, requested: int | None) -> int:
    """The policy's value as it is; else the request's maximum output, never over W/4 or the model's own maximum."""
    if policy.output_reserve_tokens is not None:
        return policy.output_reserve_tokens
    wanted = DEFAULT_RESERVE if requested is None else requested
    return min(wanted, info.ceiling // 4, info.max_output or wanted)
