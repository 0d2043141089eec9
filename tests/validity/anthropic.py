"""What the messages API answers 400 to."""

import re
from collections.abc import Iterator
from typing import Any

from tests.validity.common import Message, base64_faults, text_faults

_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_SERVER_ID = re.compile(r"(srv|mcp)toolu_[a-zA-Z0-9_]+")
_CACHED = {"cache_control"}
_ANTHROPIC_BLOCKS: dict[str, dict[str, set[str]]] = {
    "user": {
        "text": {"text", "citations"} | _CACHED,
        "image": {"source"} | _CACHED,
        "document": {"source", "title", "context", "citations"} | _CACHED,
        "search_result": {"source", "title", "content", "citations"} | _CACHED,
        "tool_result": {"tool_use_id", "content", "is_error"} | _CACHED,
        "container_upload": {"file_id"} | _CACHED,
    },
    "assistant": {
        "text": {"text", "citations"} | _CACHED,
        "thinking": {"thinking", "signature"},
        "redacted_thinking": {"data"},
        "tool_use": {"id", "name", "input", "caller"} | _CACHED,
        "server_tool_use": {"id", "name", "input", "caller"} | _CACHED,
        "mcp_tool_use": {"id", "name", "input", "server_name"} | _CACHED,
        "container_upload": {"file_id"} | _CACHED,
        "compaction": {"content", "signature", "encrypted_content", "tool_changes"} | _CACHED,
    },
    "system": {"text": {"text", "citations"} | _CACHED},
    "result": {
        "text": {"text", "citations"} | _CACHED,
        "image": {"source"} | _CACHED,
        "document": {"source", "title", "context", "citations"} | _CACHED,
        "search_result": {"source", "title", "content", "citations"} | _CACHED,
    },
}
_SERVER_RESULT = {"tool_use_id", "content", "is_error"} | _CACHED
_CACHE_MARKS = 4


def anthropic_faults(request: Message, *, alternating: bool = True) -> list[str]:
    """Faults of ``{system, messages}``; ``alternating`` off allows neighbours of one role, which the API joins."""
    faults = [f"request: {what}" for what in text_faults(request)]
    known = {"system", "messages", "context_management"}
    faults += [f"request: unknown field {name}" for name in sorted(request.keys() - known)]
    faults += [f"system: {what}" for what in _system_faults(request.get("system", ""))]
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*faults, "messages: empty"]
    faults += _compaction_faults(request, messages)
    if messages[0].get("role") != "user" and not _compacted(messages[0]):
        faults.append(f"0: first message is of role {messages[0].get('role')!r}")
    used: set[str] = set()
    waiting: list[str] = []
    for i, message in enumerate(messages):
        role, content = message.get("role"), _blocks(message.get("content"))
        if role not in ("user", "assistant", "system"):
            faults.append(f"{i}: role {role!r}")
            continue
        faults += [f"{i}: unknown field {name}" for name in sorted(message.keys() - {"role", "content"})]
        before = messages[i - 1].get("role") if i else None
        if role == "system":
            after = messages[i + 1].get("role") if i + 1 < len(messages) else None
            if before != "user" or after not in ("assistant", None):
                faults.append(f"{i}: system message between {before} and {after}")
        elif alternating and role == before and not (i == 1 and _compacted(messages[0])):
            faults.append(f"{i}: second {role} message in a row")
        if not content:
            faults.append(f"{i}: no content")
        for block in content:
            faults += [f"{i}: {what}" for what in _block_faults(str(role), block)]
        faults += [f"{i}: {what}" for what in _pairing(str(role), content, waiting)]
        waiting = [b.get("id") for b in content if b.get("type") == "tool_use"] if role == "assistant" else []
        for call_id in waiting:
            if call_id in used:
                faults.append(f"{i}: call id {call_id} twice")
            used.add(call_id)
        if role == "assistant":
            last_answer = i == len(messages) - 1 or messages[i + 1].get("role") == "assistant"
            faults += [f"{i}: {what}" for what in _answer_faults(content, open_end=last_answer)]
    last = messages[-1]
    if last.get("role") == "assistant":
        text = (_blocks(last.get("content")) or [{}])[-1].get("text", "")
        if text != text.rstrip():
            faults.append("end: final assistant content ends in white space")
    if waiting:
        faults.append(f"end: calls without results: {waiting}")
    marks = sum(1 for _ in _cache_marks(request))
    if marks > _CACHE_MARKS:
        faults.append(f"request: {marks} cache marks, at most {_CACHE_MARKS}")
    return faults


def _blocks(content: Any) -> list[Message]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _compacted(message: Message) -> list[Message]:
    return [b for b in _blocks(message.get("content")) if b.get("type") == "compaction"]


def _compaction_faults(request: Message, messages: list[Message]) -> Iterator[str]:
    """A block leads the request, by itself or first in its message; the edit goes with an unsigned one, and only so."""
    blocks = [(i, b) for i, message in enumerate(messages) for b in _compacted(message)]
    edits = [e.get("type") for e in request.get("context_management", {}).get("edits", ())]
    if len(blocks) > 1:
        yield f"{len(blocks)} compaction blocks"
    for i, block in blocks:
        if i or _blocks(messages[0]["content"])[0] is not block:
            yield f"{i}: a compaction block that does not come first"
        if not block.get("content"):
            yield f"{i}: a compaction block without content"
        if edits != ([] if block.get("signature") else ["compact_20260112"]):
            yield f"request: edits {edits} beside the compaction block"
    if edits and not blocks:
        yield "request: an edit beside no compaction block"


def _system_faults(system: Any) -> Iterator[str]:
    if isinstance(system, str):
        return
    for block in system:
        yield from _block_faults("system", block)


def _block_faults(place: str, block: Message) -> Iterator[str]:
    kind = str(block.get("type"))
    known = _ANTHROPIC_BLOCKS[place].get(kind)
    if known is None and place == "assistant" and kind.endswith("_tool_result"):
        known = _SERVER_RESULT
    if known is None:
        yield f"{kind} block in {place} content"
        return
    for name in sorted(block.keys() - known - {"type"}):
        yield f"{kind} block with unknown field {name}"
    if kind == "text" and not (isinstance(block.get("text"), str) and block["text"].strip()):
        yield "blank text block"
    elif kind == "image":
        yield from _image_faults(block.get("source") or {})
    elif kind == "document":
        yield from _document_faults(block.get("source") or {})
    elif kind == "thinking" and not (isinstance(block.get("thinking"), str) and block.get("signature")):
        yield "thinking without its signature"
    elif kind == "redacted_thinking" and not block.get("data"):
        yield "redacted thinking without data"
    elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
        pattern = _ANTHROPIC_ID if kind == "tool_use" else _SERVER_ID
        if not pattern.fullmatch(str(block.get("id"))):
            yield f"{kind} id {block.get('id')!r}"
        if not _ANTHROPIC_NAME.fullmatch(str(block.get("name"))):
            yield f"tool name {block.get('name')!r}"
        if not isinstance(block.get("input"), dict):
            yield f"input of {block.get('id')} is no object"
    elif kind == "tool_result":
        yield from _result_faults(block)


def _result_faults(block: Message) -> Iterator[str]:
    content = block.get("content")
    if not isinstance(block.get("is_error", False), bool):
        yield "is_error is no boolean"
    if block.get("is_error") and not content:
        yield "error result without content"
    if isinstance(content, list):
        for inner in content:
            yield from _block_faults("result", inner)
    elif not isinstance(content, str | None):
        yield f"result content is a {type(content).__name__}"


def _image_faults(source: Message) -> Iterator[str]:
    kind = source.get("type")
    if kind == "base64":
        if source.get("media_type") not in _IMAGES:
            yield f"image of type {source.get('media_type')!r}"
        yield from base64_faults(source.get("data"))
    elif kind == "url":
        if not str(source.get("url")).startswith(("http://", "https://")):
            yield f"image url {str(source.get('url'))[:40]!r}"
    elif kind != "file" or not source.get("file_id"):
        yield f"image source {kind!r}"


def _document_faults(source: Message) -> Iterator[str]:
    kind = source.get("type")
    if kind == "base64":
        if source.get("media_type") != "application/pdf":
            yield f"document of type {source.get('media_type')!r}"
        yield from base64_faults(source.get("data"))
    elif kind == "text":
        if source.get("media_type") != "text/plain" or not str(source.get("data", "")).strip():
            yield f"text document of type {source.get('media_type')!r}, or blank"
    elif kind == "url":
        if not str(source.get("url")).startswith(("http://", "https://")):
            yield f"document url {str(source.get('url'))[:40]!r}"
    elif kind == "content":
        if not source.get("content"):
            yield "document without content"
    elif kind != "file" or not source.get("file_id"):
        yield f"document source {kind!r}"


def _pairing(role: str, content: list[Message], waiting: list[str]) -> Iterator[str]:
    results = [b.get("tool_use_id") for b in content if b.get("type") == "tool_result"] if role == "user" else []
    if len(set(results)) != len(results):
        yield f"two results of one call: {results}"
    if missing := [call_id for call_id in waiting if call_id not in results]:
        yield f"calls without results: {missing}"
    if orphans := [call_id for call_id in results if call_id not in waiting]:
        yield f"results without calls: {orphans}"
    if any(b.get("type") != "tool_result" for b in content[: len(results)]):
        yield "results do not come first"


def _answer_faults(content: list[Message], *, open_end: bool) -> Iterator[str]:
    if content and content[-1].get("type") in ("thinking", "redacted_thinking"):
        yield "the final block is thinking"
    made = [b.get("id") for b in content if b.get("type") in ("server_tool_use", "mcp_tool_use")]
    done = [b.get("tool_use_id") for b in content if str(b.get("type")).endswith("_tool_result")]
    if orphans := [call_id for call_id in done if call_id not in made]:
        yield f"server results without calls: {orphans}"
    if not open_end and (missing := [call_id for call_id in made if call_id not in done]):
        yield f"server calls without results: {missing}"


def _cache_marks(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if value.get("cache_control"):
            yield value
        for key, inner in value.items():
            if key != "input":
                yield from _cache_marks(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _cache_marks(inner)
