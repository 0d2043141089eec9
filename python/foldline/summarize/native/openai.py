"""OpenAI's ``POST /v1/responses/compact`` (N1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from foldline.access import require_sdk, sdk
from foldline.config import Provider
from foldline.domain.enums import Format, ModelType
from foldline.domain.native import NativeRoute, NativeTask
from foldline.domain.rows import ModelRef
from foldline.summarize.native.api import NOT_SERVED, Incapable, Opened
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import (
    LONG,
    Answer,
    CallFailed,
    Ending,
    body_of,
    listed,
    refused_by_status,
    text_of,
)
from foldline.summarize.providers.openai import BASE_URL

PROTOCOL = "responses/compact"


class _Compacted(msgspec.Struct):
    """The part of a response that starts the next input, byte for byte."""

    output: msgspec.Raw


class OpenAICompaction:
    """One endpoint by OpenAI's SDK."""

    kind = ModelType.OPENAI
    beta = ""

    def __init__(self, name: str, settings: Provider) -> None:
        """Refuses a missing SDK.

        Raises:
            ConfigError: with the command that installs it.
        """
        require_sdk(f"providers.{name}", "openai", "openai")
        self._base_url = settings.base_url or BASE_URL

    def load(self) -> Any:
        """The SDK."""
        return sdk("openai")

    def route(self, model: ModelRef) -> NativeRoute:
        """What the host says in instructions is none of the call's: those of the live request are (XI8)."""
        return NativeRoute(model, self._base_url, PROTOCOL, Format.OPENAI_RESPONSES)

    def most(self, task: NativeTask) -> int:
        """The call takes no limit."""
        return 0

    def fields(self, task: NativeTask) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.json.decode(task.rendered)
        return fields

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Opened]:
        openai = self.load()
        client = openai.AsyncOpenAI(api_key=key, base_url=self._base_url, max_retries=0, timeout=LONG)
        async with client:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                try:
                    raw = await client.responses.with_raw_response.compact(model=model, **(ask.fields or {}))
                except openai.APIStatusError as error:
                    if error.status_code in NOT_SERVED:
                        raise Incapable(f"answered {error.status_code}") from None
                    response = error.response
                    raise refused_by_status(error.status_code, response.content, response.headers) from None
                except openai.APIConnectionError:
                    raise CallFailed("could not be reached, or broke off", again=True) from None
                return read_compacted(raw.http_response.content)

            yield Opened(call)

    def item(self, answer: Answer) -> str:
        """``output`` whole: all user messages and exactly one compaction item (XI1, XI4)."""
        items = listed(answer.body.get("output"))
        found = [i for i in items if i.get("type") == "compaction"]
        if len(found) != 1:
            what = text_of(answer.body.get("object")) or "no object"
            raise Incapable(f"gave {len(found)} compaction items among {len(items)}, as {what[:40]}", answer.body)
        if not text_of(found[0].get("encrypted_content")):
            raise Incapable("gave a compaction item without content", answer.body)
        return answer.text


def read_compacted(content: bytes) -> Answer:
    """Reads a response; its text is ``output`` as it came.

    Raises:
        CallFailed: no JSON object, as of a stream that was cut.
    """
    body = body_of(content)
    try:
        output = bytes(msgspec.json.decode(content, type=_Compacted).output).decode()
    except (msgspec.ValidationError, UnicodeDecodeError):
        output = ""
    return Answer(output, Ending.COMPLETE, body)
