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
from foldline.domain.models import ModelInfo, Usage
from foldline.domain.ports import MessageUsage
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
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
        total = one if total is None else total.plus(one)
    return total


def keep(draft: Draft, usages: Sequence[MessageUsage]) -> None:
    """Adds the usage that came on appended messages to the session's totals (R4): they are calls the host has made."""
    if usages:
        total = of_messages(draft.services, draft.session.model, usages)
        draft.session = counted(draft.session, total, calls=len(usages))


def counted(session: Session, usage: Usage | None, *, calls: int) -> Session:
    """The session's totals of its host's own calls with some more."""
    total = session.answer_usage if usage is None else replace(session.answer_usage.plus(usage), aggregated=False)
    return replace(session, answers=session.answers + calls, answer_usage=total)
