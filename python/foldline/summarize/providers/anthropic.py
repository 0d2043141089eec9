"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from foldline.domain.enums import Format, ModelType
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import Answer, Call, CallFailed, Ending, body_of, listed, text_of
from foldline.summarize.providers.sdks import AnthropicSdk

_ENDINGS = {
    "end_turn": Ending.COMPLETE,
    "stop_sequence": Ending.COMPLETE,
    "max_tokens": Ending.LENGTH,
    "model_context_window_exceeded": Ending.WINDOW,
    "refusal": Ending.REFUSED,
    "tool_use": Ending.TOOLS,
}


class Anthropic(AnthropicSdk):
    """One endpoint."""

    kind = ModelType.ANTHROPIC
    format = Format.ANTHROPIC_MESSAGES
    reasoning = 0

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Call]:
        """A client for the calls of one summary."""
        async with self.connected(key) as client:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                fields = ask.fields or {"system": ask.system, "messages": [{"role": "user", "content": ask.user}]}
                with self.failing():
                    raw = await client.messages.with_raw_response.create(model=model, max_tokens=most, **fields)
                return read_message(body_of(raw.http_response.content))

            yield call


def read_message(body: Mapping[str, Any]) -> Answer:
    """Reads a Messages response.

    Raises:
        CallFailed: it holds an error instead of a message.
    """
    if body.get("type") == "error":
        raise CallFailed("failed to answer", status=200, body=repr(body.get("error") or "").encode())
    blocks = listed(body.get("content"))
    ending = _ENDINGS.get(text_of(body.get("stop_reason")), Ending.UNFINISHED)
    if ending is Ending.COMPLETE and any(b.get("type") in ("tool_use", "server_tool_use") for b in blocks):
        ending = Ending.TOOLS
    text = "".join(text_of(b.get("text")) for b in blocks if b.get("type") == "text")
    return Answer(text, ending, body, any(b.get("type") in ("thinking", "redacted_thinking") for b in blocks))
