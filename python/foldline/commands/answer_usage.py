"""The usage of answers: what a host states, what a provider's JSON holds, and a session's totals (4.3, R4, S5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from foldline.commands.draft import Draft
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import COUNT_MAX, ModelInfo, Usage
from foldline.domain.ports import MessageUsage
from foldline.domain.rows import ModelRef
from foldline.engine.usage import from_response, normalize


def decoded(usage_json: bytes) -> Mapping[str, Any]:
    """A JSON object that a host passed on as it came.

    Raises:
        FoldlineError: FORMAT_INVALID.
    """
    try:
        return msgspec.json.decode(usage_json, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"usage_json is no JSON object: {error}", field="usage_json"
        ) from error


def of_body(body: bytes, info: ModelInfo) -> Usage | None:
    """The usage in a whole response that its format has read already."""
    try:
        response = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return from_response(info.type, response, info.prices) if isinstance(response, Mapping) else None


def of_messages(services: Services, model: ModelRef, usages: Sequence[MessageUsage]) -> Usage | None:
    """The usage that stands on raw messages, those that were dropped included (R4); of several it is a sum (XE3)."""
    total: Usage | None = None
    for message in usages:
        info = services.model(replace(model, model=message.model) if message.model else model)
        one = normalize(info.type, message.usage, info.prices)
        total = one if total is None else replace(plus(total, one), aggregated=True)
    return total


def keep(draft: Draft, usages: Sequence[MessageUsage]) -> None:
    """Adds the usage that came on appended messages to the session's totals (R4): they are calls the host has made."""
    if not usages:
        return
    total = of_messages(draft.services, draft.session.model, usages) or Usage()
    draft.session = replace(
        draft.session,
        answers=draft.session.answers + len(usages),
        answer_usage=plus(draft.session.answer_usage, total),
    )


def plus(total: Usage, one: Usage) -> Usage:
    """Two usages added up; a number that neither states stays unknown."""

    def added(a: int | None, b: int | None) -> int | None:
        return None if a is None and b is None else min((a or 0) + (b or 0), COUNT_MAX)

    cost = None if total.cost is None and one.cost is None else (total.cost or 0.0) + (one.cost or 0.0)
    return Usage(
        added(total.input_tokens, one.input_tokens),
        added(total.output_tokens, one.output_tokens),
        added(total.cached_input_tokens, one.cached_input_tokens),
        cost,
        total.currency or one.currency,
        added(total.cache_write_tokens, one.cache_write_tokens),
        added(total.reasoning_tokens, one.reasoning_tokens),
    )
