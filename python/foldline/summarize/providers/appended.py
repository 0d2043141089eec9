"""The instruction behind the live request (S3, APPEND): the same system rows, tools and messages, and one more."""

from __future__ import annotations

from typing import Any

import msgspec

from foldline.domain.enums import Format
from foldline.domain.folding import ASKED_HERE, LiveRequest


class NotAppendable(Exception):
    """The request cannot be continued by one message; its text says why."""


def appended(live: LiveRequest, text: str) -> dict[str, Any]:
    """The fields of a request of the format, as its API names them. No cache marks but the host's own are in it (XJ4).

    Raises:
        NotAppendable: the tools are no list of definitions.
    """
    before, _, after = live.rendered.rpartition(msgspec.json.encode(ASKED_HERE))
    rendered = msgspec.json.decode(before + msgspec.json.encode(text) + after)
    fields = {"messages": rendered} if live.format is Format.OPENAI_CHAT else rendered
    tools = _tools(live)
    return fields | {"tools": tools} if tools else fields


def _tools(live: LiveRequest) -> list[Any]:
    try:
        tools = msgspec.json.decode(live.tools) if live.tools.strip() else []
    except (msgspec.DecodeError, RecursionError):
        tools = None
    if not isinstance(tools, list):
        raise NotAppendable("the tools are no list of definitions")
    return tools
