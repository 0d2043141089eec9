"""Google's generateContent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from foldline.access import ASYNC_HTTP, sdk
from foldline.domain.enums import Format, ModelType
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import (
    Answer,
    Call,
    CallFailed,
    Ending,
    body_of,
    listed,
    refused_by_status,
    table,
    text_of,
)
from foldline.summarize.providers.sdks import GoogleSdk, failing

_ENDINGS = {"STOP": Ending.COMPLETE, "MAX_TOKENS": Ending.LENGTH}
_REFUSALS = ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
_TOOLS = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS")


class Google(GoogleSdk):
    """One endpoint."""

    kind = ModelType.GOOGLE
    format = Format.GOOGLE_GENAI
    reasoning = 8192

    def load(self) -> tuple[Any, Any, tuple[type[Exception], ...]]:
        """The SDK, its errors, and those of a connection."""
        return super().load(), sdk("google.genai.errors"), _connection_errors()

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Call]:
        """A client for the calls of one summary."""
        genai, errors, broken = self.load()
        options = {"base_url": self.base_url, "retry_options": {"attempts": 1}, "async_client_args": ASYNC_HTTP}
        client = genai.Client(api_key=key, vertexai=False, http_options=options)
        try:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                config: dict[str, Any] = {"max_output_tokens": most, "should_return_http_response": True}
                if ask.fields is None:
                    config["system_instruction"] = ask.system
                else:
                    # The SDK's own types would drop what the host's messages hold beyond them.
                    config["http_options"] = {"extra_body": dict(ask.fields)}
                with failing(errors.APIError, _refused, broken):
                    raw = await client.aio.models.generate_content(model=model, contents=ask.user, config=config)
                return read_content(body_of((raw.sdk_http_response.body or "").encode()))

            yield call
        finally:
            await client.aio.aclose()
            client.close()


def _connection_errors() -> tuple[type[Exception], ...]:
    """What the HTTP libraries that the SDK may have found raise."""
    found: list[type[Exception]] = [OSError]
    for module, name in (("httpx2", "HTTPError"), ("httpx", "HTTPError"), ("aiohttp", "ClientError")):
        try:
            found.append(getattr(sdk(module), name))
        except ImportError:
            continue
    return tuple(found)


def _refused(error: Any) -> CallFailed:
    details = error.details if isinstance(error.details, dict) else {"message": str(error.details)}
    return refused_by_status(int(error.code or 0), msgspec.json.encode(details), getattr(error.response, "headers", {}))


def read_content(body: Mapping[str, Any]) -> Answer:
    """Reads a generateContent response.

    Raises:
        CallFailed: it holds neither a candidate nor why there is none.
    """
    candidate = next(iter(listed(body.get("candidates"))), None)
    if candidate is None:
        if table(body.get("promptFeedback")).get("blockReason"):
            return Answer("", Ending.REFUSED, body)
        raise CallFailed("answered without a candidate", status=200, body=repr(body.get("error") or "").encode())
    parts = listed(table(candidate.get("content")).get("parts"))
    reason = text_of(candidate.get("finishReason"))
    ending = _ENDINGS.get(reason, Ending.UNFINISHED)
    if reason in _REFUSALS:
        ending = Ending.REFUSED
    elif reason in _TOOLS or (ending is Ending.COMPLETE and any("functionCall" in p for p in parts)):
        ending = Ending.TOOLS
    text = "".join(text_of(p.get("text")) for p in parts if not p.get("thought"))
    return Answer(text, ending, body, any(p.get("thought") for p in parts))
