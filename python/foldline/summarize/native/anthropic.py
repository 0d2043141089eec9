"""Anthropic's compaction (N1): a parameter of a request of its own, or an edit with a trigger; an endpoint has one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from foldline.config import Provider
from foldline.domain.enums import Format, ModelType
from foldline.domain.native import EDIT, NativeRoute, NativeTask
from foldline.domain.rows import ModelRef
from foldline.summarize.native.api import NOT_SERVED, Incapable, NotCompacted, Opened
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import Answer, CallFailed, Ending, body_of, listed, table, text_of
from foldline.summarize.providers.sdks import AnthropicSdk, refused

LEAST_TRIGGER = 50_000
"""Input tokens under which the edit cannot be triggered."""
_MOST = 16_384
"""Tokens that a call may think and write; what it does not need costs nothing."""
_GO_ON = "(Go on.)"
_OUR_PROMPT = (
    "Write a summary of the conversation so far, from which the work can go on without it: goals and constraints in "
    "the user's words, decisions and why, what was done and with what result, errors and how they were resolved, open "
    "questions and next steps, and paths, identifiers, commands and numbers exactly as written. Do not call tools; "
    "answer with the text of the summary only, inside <summary></summary>. Heed this too:\n\n"
)
"""Instructions replace the provider's own prompt, so that a host's come with one (S3)."""
_NOT_TAKEN = re.compile(
    r"extra inputs are not permitted|unexpected value|not (?:a )?(?:supported|recognized|valid)|unknown", re.I
)
_OF_COMPACTION = re.compile(r"\bcompact(?:ion)?\b|compact[_-]20|context_management|anthropic-beta", re.I)
_ENDINGS = {
    "max_tokens": "the summary was cut off at its length limit",
    "refusal": "it refused",
    "tool_use": "it called a tool instead",
}


class AnthropicCompaction(AnthropicSdk):
    """One endpoint; ``beta`` is the one that its settings choose."""

    kind = ModelType.ANTHROPIC

    def __init__(self, name: str, settings: Provider) -> None:
        super().__init__(name, settings)
        self._most = settings.max_output
        self.beta: str = settings.compaction
        self._edits = self.beta == EDIT

    def route(self, model: ModelRef) -> NativeRoute:
        least = LEAST_TRIGGER if self._edits else 0
        return NativeRoute(
            model, self.base_url, self.beta, Format.ANTHROPIC_MESSAGES, takes_instructions=True, takes_tools=True,
            least_tokens=least,
        )  # fmt: skip

    def most(self, task: NativeTask) -> int:
        return self._most or _MOST

    def fields(self, task: NativeTask) -> dict[str, Any]:
        """The live request up to the last row that folds, less what only a request that carries an item needs."""
        fields: dict[str, Any] = msgspec.json.decode(task.rendered)
        fields.pop("context_management", None)
        if task.tools:
            fields["tools"] = msgspec.json.decode(task.tools)
        asked = {"instructions": _OUR_PROMPT + task.instructions} if task.instructions else {}
        if not self._edits:
            return fields | {"compaction": {"type": "summarize"} | asked}
        trigger = {"type": "input_tokens", "value": LEAST_TRIGGER}
        edit = {"type": "compact_20260112", "trigger": trigger, "pause_after_compaction": True}
        # The edit is of an ordinary request, which may not end on an answer.
        if fields["messages"][-1]["role"] == "assistant":
            fields["messages"].append({"role": "user", "content": _GO_ON})
        return fields | {"context_management": {"edits": [edit | asked]}}

    @asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Opened]:
        async with self.connected(key) as client:

            async def call(model: str, ask: Ask, most: int) -> Answer:
                create = client.beta.messages.with_raw_response.create
                with self.failing(_failure):
                    raw = await create(model=model, max_tokens=most, betas=[self.beta], **(ask.fields or {}))
                return read_compacted(raw.http_response.content)

            yield _Opened(call, client, self)

    def item(self, answer: Answer) -> str:
        """The one block. One of null or empty content may not be sent back as a summary (XI5)."""
        body = answer.body
        blocks = listed(body.get("content"))
        found = [b for b in blocks if b.get("type") == "compaction"]
        steps = [text_of(step.get("type")) for step in listed(body.get("steps"))]
        if self._edits and steps and "compaction" not in steps:
            raise NotCompacted("the input is under its trigger", unfit=True)
        if not blocks and "compaction" in steps:
            reason = text_of(body.get("stop_reason"))
            if reason == "model_context_window_exceeded":
                raise NotCompacted("its window has no room for a summary", unfit=True)
            raise NotCompacted(_ENDINGS.get(reason, "it wrote no summary"))
        if len(found) != 1 or (len(blocks) > 1 and not self._edits):
            raise Incapable(f"gave {len(found)} compaction blocks among {len(blocks)}", body)
        block = found[0]
        content = block.get("content")
        if content is None:
            raise NotCompacted("its summary failed")
        if not isinstance(content, str):
            raise Incapable("gave a compaction block of another shape", body)
        if not content.strip():
            raise NotCompacted("its summary is empty")
        if not self._edits and not text_of(block.get("signature")):
            raise Incapable("gave a compaction block without a signature", body)
        return answer.text


@dataclass(frozen=True, slots=True)
class _Opened(Opened):
    """The Models API says for nothing what a model is capable of (XI7)."""

    client: Any
    api: AnthropicCompaction

    async def probe(self, model: str) -> None:
        beta = self.api.beta
        with self.api.failing(_failure):
            raw = await self.client.beta.models.with_raw_response.retrieve(model, betas=[beta])
        able = table(body_of(raw.http_response.content).get("capabilities"))
        if beta == EDIT:
            found = table(table(able.get("context_management")).get("compact_20260112"))
        else:
            found = table(table(able.get("compaction")).get("summarize"))
        if found.get("supported") is not True:
            raise Incapable(f"does not say that this model has {beta}")


def _failure(error: Any) -> Exception:
    """What an HTTP error says: of a typed one the request was at fault, of others perhaps the capability."""
    if error.status_code in NOT_SERVED:
        return Incapable(f"answered {error.status_code}")
    said = table(table(error.body).get("error"))
    message = text_of(said.get("message"))
    typed = text_of(table(said.get("details")).get("error_code")).startswith("compaction_")
    if error.status_code == 400 and not typed and _NOT_TAKEN.search(message) and _OF_COMPACTION.search(message):
        return Incapable("does not take the parameter")
    return refused(error)


class _Message(msgspec.Struct):
    """The blocks of a response, byte for byte."""

    content: list[msgspec.Raw]


class _Block(msgspec.Struct):
    type: str


def read_compacted(content: bytes) -> Answer:
    """Reads a response; its text is the first compaction block as it came, its usage that of all its ``steps``.

    Raises:
        CallFailed: no JSON object, as of a stream that was cut, or an error in place of a message.
    """
    body = body_of(content)
    if body.get("type") == "error":
        raise CallFailed("failed to answer", status=200, body=repr(body.get("error") or "").encode())
    try:
        blocks = [bytes(raw) for raw in msgspec.json.decode(content, type=_Message).content]
        block = next((b for b in blocks if msgspec.json.decode(b, type=_Block).type == "compaction"), b"").decode()
    except (msgspec.ValidationError, UnicodeDecodeError):
        block = ""
    return Answer(block, Ending.COMPLETE, _with_all_usage(body))


def _with_all_usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """The response with what all of its steps used: the top level leaves compaction out, which is paid for."""
    usage = table(body.get("usage"))
    steps = listed(usage.get("iterations"))
    if not steps:
        return dict(body)
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    total = {n: sum(v for s in steps if isinstance(v := s.get(n), int) and v > 0) for n in names}
    rest = {k: v for k, v in usage.items() if k != "iterations"}
    return dict(body) | {"usage": rest | total, "steps": steps}
