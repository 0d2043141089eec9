"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from foldline.access import require_sdk, sdk
from foldline.config import Provider
from foldline.domain.enums import Format, ModelType
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import (
    LONG,
    Answer,
    Call,
    CallFailed,
    Ending,
    body_of,
    listed,
    refused_by_status,
    text_of,
)

BASE_URL = "https://api.anthropic.com"
_ENDINGS = {
    "end_turn": Ending.COMPLETE,
    "stop_sequence": Ending.COMPLETE,
    "max_tokens": Ending.LENGTH,
    "model_context_window_exceeded": Ending.WINDOW,
    "refusal": Ending.REFUSED,
    "tool_use": Ending.TOOLS,
}


class Anthropic:
    """One endpoint by Anthropic's SDK."""

    kind = ModelType.ANTHROPIC
    format = Format.ANTHROPIC_MESSAGES
    reasoning = 0

    def __init__(self, name: str, settings: Provider) -> None:
        """Refuses a missing SDK.

        Raises:
            ConfigError: with the command that installs it.
        """
        require_sdk(f"providers.{name}", "anthropic", "anthropic")
        self._base_url = settings.base_url or BASE_URL

    def load(self) -> Any:
        """The SDK."""
        return sdk("anthropic")

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Call]:
        """A client for the calls of one summary."""
        anthropic = self.load()
        client = anthropic.AsyncAnthropic(api_key=key, base_url=self._base_url, max_retries=0, timeout=LONG)
        async with client:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                fields = ask.fields or {"system": ask.system, "messages": [{"role": "user", "content": ask.user}]}
                try:
                    raw = await client.messages.with_raw_response.create(model=model, max_tokens=most, **fields)
                except anthropic.APIStatusError as error:
                    response = error.response
                    raise refused_by_status(error.status_code, response.content, response.headers) from None
                except anthropic.APIConnectionError:
                    raise CallFailed("could not be reached, or broke off", again=True) from None
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
