"""OpenAI's Chat Completions, also of compatible servers, and Responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from foldline.config import Provider
from foldline.domain.enums import Format, ModelType
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import Answer, Call, CallFailed, Ending, body_of, listed, table, text_of
from foldline.summarize.providers.sdks import OpenAISdk

_CHAT_ENDINGS = {
    "stop": Ending.COMPLETE,
    "length": Ending.LENGTH,
    "content_filter": Ending.REFUSED,
    "tool_calls": Ending.TOOLS,
    "function_call": Ending.TOOLS,
}
_CALL_ITEMS = ("function_call", "custom_tool_call", "mcp_call", "computer_call", "local_shell_call")


class OpenAI(OpenAISdk):
    """One endpoint; its type chooses the API."""

    kind = ModelType.OPENAI
    reasoning = 8192

    def __init__(self, name: str, settings: Provider) -> None:
        super().__init__(name, settings)
        self._responses = settings.type == "openai_responses"
        self.format = Format.OPENAI_RESPONSES if self._responses else Format.OPENAI_CHAT
        # OpenAI's reasoning models refuse the older name, most compatible servers know no other.
        self._limit = "max_tokens" if settings.base_url else "max_completion_tokens"

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Call]:
        """A client for the calls of one summary."""
        async with self.connected(key) as client:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                with self.failing():
                    if self._responses:
                        return read_responses(await self._respond(client, model, ask, most))
                    return read_chat(await self._chat(client, model, ask, most))

            yield call

    async def _respond(self, client: Any, model: str, ask: Ask, most: int) -> dict[str, Any]:
        fields = ask.fields or {"instructions": ask.system, "input": ask.user}
        raw = await client.responses.with_raw_response.create(
            model=model, max_output_tokens=most, store=False, **fields
        )
        return body_of(raw.http_response.content)

    async def _chat(self, client: Any, model: str, ask: Ask, most: int) -> dict[str, Any]:
        alone = [{"role": "system", "content": ask.system}, {"role": "user", "content": ask.user}]
        fields = ask.fields or {"messages": alone}
        create = client.chat.completions.with_raw_response.create
        try:
            raw = await create(model=model, **fields, **{self._limit: most})
        except self.load().BadRequestError as error:
            if error.code != "unsupported_parameter" or error.param != self._limit:
                raise
            self._limit = "max_completion_tokens" if self._limit == "max_tokens" else "max_tokens"
            raw = await create(model=model, **fields, **{self._limit: most})
        return body_of(raw.http_response.content)


def read_chat(body: Mapping[str, Any]) -> Answer:
    """Reads a Chat Completions response.

    Raises:
        CallFailed: it holds an error, or no choice.
    """
    choice = next(iter(listed(body.get("choices"))), None)
    if choice is None:
        raise CallFailed("answered without a choice", status=200, body=repr(body.get("error") or "").encode())
    message = table(choice.get("message"))
    ending = _CHAT_ENDINGS.get(text_of(choice.get("finish_reason")), Ending.UNFINISHED)
    if ending is Ending.COMPLETE and (message.get("tool_calls") or message.get("function_call")):
        ending = Ending.TOOLS
    if ending is Ending.COMPLETE and message.get("refusal"):
        ending = Ending.REFUSED
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(text_of(p.get("text")) for p in listed(content))
    reasoned = bool(message.get("reasoning_content") or message.get("reasoning"))
    return Answer(text, ending, body, reasoned)


def read_responses(body: Mapping[str, Any]) -> Answer:
    """Reads a Responses response.

    Raises:
        CallFailed: it failed on the provider's side.
    """
    status = body.get("status")
    if status == "failed" or body.get("error"):
        raise CallFailed("failed to answer", status=200, body=repr(body.get("error") or "").encode())
    items = listed(body.get("output"))
    parts = [p for item in items if item.get("type") == "message" for p in listed(item.get("content"))]
    text = "".join(text_of(p.get("text")) for p in parts if p.get("type") == "output_text")
    ending = Ending.COMPLETE if status == "completed" else Ending.UNFINISHED
    if status == "incomplete":
        reason = table(body.get("incomplete_details")).get("reason")
        ending = {"max_output_tokens": Ending.LENGTH, "content_filter": Ending.REFUSED}.get(
            text_of(reason), Ending.UNFINISHED
        )
    elif any(item.get("type") in _CALL_ITEMS for item in items):
        ending = Ending.TOOLS
    elif any(p.get("type") == "refusal" for p in parts):
        ending = Ending.REFUSED
    reasoned = any(item.get("type") == "reasoning" for item in items)
    # The API's own responses always hold it, null or not; llama.cpp's never do.
    return Answer(text, ending, body, reasoned, unsaid="incomplete_details" not in body)
