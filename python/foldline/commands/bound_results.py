"""BoundResults: §9 for the texts of no session."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from foldline import _core
from foldline.commands.services import Services
from foldline.domain.events import BoundedResult
from foldline.domain.policy import Layer, resolve
from foldline.domain.rows import ModelRef
from foldline.engine import bounding
from foldline.engine.bounding import BYTES_A_TOKEN, BoundableResult, LongResult


@dataclass(frozen=True, slots=True)
class BoundTexts:
    """Results to shorten, as (call id, text), and what all texts together may take; None for no limit.

    Attributes:
        model: whose vocabulary sizes the tokens; without one, or where it is not embedded, a token is two bytes (B1).
        override: the ``bounding`` fields of a policy.
    """

    results: Sequence[tuple[str, str]]
    model: ModelRef = ModelRef()
    limit_bytes: int | None = None
    limit_tokens: int | None = None
    override: Layer | None = None


@dataclass(frozen=True, slots=True)
class BoundedTexts:
    """The shortened results, ``offset`` being their place in the request, from 1.

    Attributes:
        too_large: even the least share a result does not fit; results over it are shortened to it all the same (B8).
    """

    results: tuple[BoundedResult, ...] = ()
    too_large: bool = False


def bound_results(services: Services, request: BoundTexts) -> BoundedTexts:
    """Shortens what is over its share of the limits (B1, B2, B8); keeps nothing.

    Raises:
        FoldlineError: FIELD_VALIDATION.
    """
    policy = resolve({"config": services.config_policy, "request": request.override or {}}).policy
    encoding = services.encoding(request.model) if request.model.model else None
    token_budget, byte_budget = request.limit_tokens, request.limit_bytes
    if encoding is None and token_budget is not None:
        limits = (BYTES_A_TOKEN * token_budget, sys.maxsize if byte_budget is None else byte_budget)
        token_budget, byte_budget = None, min(limits)
    texts = [text for _, text in request.results]
    tokens = [0] * len(texts)
    if encoding is not None and token_budget is not None:
        tokens = _core.tokens_within(texts, token_budget, bounding.smallest_share(policy.bounding), encoding)
    sizes = [bounding.utf8_size(text) for text in texts]
    planned = bounding.plan(
        [BoundableResult(place, *size) for place, size in enumerate(zip(tokens, sizes, strict=True), 1)],
        token_budget=token_budget, byte_budget=byte_budget, bounding=policy.bounding, encoding=encoding or "",
    )  # fmt: skip
    if planned is None:
        return BoundedTexts()
    long = [LongResult(texts[p - 1], sizes[p - 1], request.results[p - 1][0]) for p in planned.offsets]
    short = bounding.shorten_texts(long, planned.share, policy.bounding.cut, encoding)
    return BoundedTexts(
        tuple(
            BoundedResult(place, r.call_id, s.kept_bytes, r.whole_bytes, s.text)
            for place, r, s in zip(planned.offsets, long, short, strict=True)
        ),
        too_large=not planned.fits,
    )
