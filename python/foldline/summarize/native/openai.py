"""OpenAI's ``POST /v1/responses/compact`` (N1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from foldline.domain.enums import Format, ModelType
from foldline.domain.native import NativeRoute, NativeTask
from foldline.domain.rows import ModelRef
from foldline.summarize.native.api import NOT_SERVED, Incapable, Opened
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import Answer, Ending, body_of, listed, text_of
from foldline.summarize.providers.sdks import OpenAISdk, refused

PROTOCOL = "responses/compact"
_OBJECTS = ("response.compaction", "response", "chat.completion")
"""What may be repeated: whatever else a gateway says is for nobody's eyes (W8)."""
_ROLES = ("user", "assistant", "system", "developer")
_OUTPUTS = {
    "function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output", "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}  # fmt: skip
"""Calls whose output the host gives: the API takes neither without the other."""


class _Compacted(msgspec.Struct):
    """The part of a response that starts the next input, byte for byte."""

    output: msgspec.Raw


class OpenAICompaction(OpenAISdk):
    """One endpoint."""

    kind = ModelType.OPENAI
    beta = ""

    def route(self, model: ModelRef) -> NativeRoute:
        """What the host says in instructions is none of the call's: those of the live request are (XI8)."""
        return NativeRoute(model, self.base_url, PROTOCOL, Format.OPENAI_RESPONSES)

    def most(self, task: NativeTask) -> int:
        """The call takes no limit."""
        return 0

    def fields(self, task: NativeTask) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.json.decode(task.rendered)
        return fields

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Opened]:
        async with self.connected(key) as client:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                with self.failing(_failure):
                    raw = await client.responses.with_raw_response.compact(model=model, **(ask.fields or {}))
                return read_compacted(raw.http_response.content)

            yield Opened(call)

    def item(self, answer: Answer) -> str:
        """``output`` whole: all user messages and exactly one compaction item (XI1, XI4)."""
        output = answer.body.get("output")
        items = listed(output)
        if isinstance(output, list) and len(items) != len(output):
            raise Incapable("gave items that are no objects, which no request could carry", answer.body)
        found = [i for i in items if i.get("type") == "compaction"]
        if len(found) != 1:
            what = text_of(answer.body.get("object"))
            kind = what if what in _OBJECTS else "an object of another kind"
            raise Incapable(f"gave {len(found)} compaction items among {len(items)}, as {kind}", answer.body)
        if not text_of(found[0].get("encrypted_content")):
            raise Incapable("gave a compaction item without content", answer.body)
        if why := _not_carried(items):
            raise Incapable(f"gave {why}, which no request could carry", answer.body)
        return answer.text


def _failure(error: Any) -> Exception:
    """What an HTTP error says: of the call, or of an API that is not there (N3)."""
    return Incapable(f"answered {error.status_code}") if error.status_code in NOT_SERVED else refused(error)


def _not_carried(items: Sequence[Mapping[str, Any]]) -> str:
    """What the API would refuse among the items of a request, as far as they can be told; empty where it is nothing.

    The documented output is user messages and the compaction item; clients report messages of the developer and of the
    assistant too, which are sent on like them. Items of a kind that is not known are the provider's own matter.
    """
    open_calls: set[tuple[str, str]] = set()
    for item, following in zip(items, [*items[1:], {}], strict=True):
        kind = text_of(item.get("type")) or "message"
        if kind == "message" and (item.get("role") not in _ROLES or not isinstance(item.get("content"), str | list)):
            return "a message without role or content"
        if kind in _ROLES:
            return "an item whose kind is a role"
        if kind == "reasoning" and not (text_of(item.get("encrypted_content")) and _of_model(following)):
            return "reasoning without its content, or without what it led to"
        call = _OUTPUTS.get(kind, kind), text_of(item.get("call_id"))
        if kind in _OUTPUTS:
            if call in open_calls:
                return "a call twice"
            open_calls.add(call)
        elif kind in _OUTPUTS.values():
            if call not in open_calls:
                return "an output without its call"
            open_calls.remove(call)
    return "a call without its output" if open_calls else ""


def _of_model(item: Mapping[str, Any]) -> bool:
    kind = text_of(item.get("type"))
    if kind in ("", "message"):
        return item.get("role") == "assistant"
    return kind != "compaction" and kind not in _OUTPUTS.values()


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
