"""What the two endpoints answer 400 to, written from their documentation and the refusals their users report.

Each function lists every fault it finds as ``where: what``; an empty list is a request the endpoint takes. Both are
stricter than the endpoints where those only repair silently: roles alternate, unknown fields are faults.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

_OPENAI_FIELDS = {
    "system": {"content", "name"},
    "developer": {"content", "name"},
    "user": {"content", "name"},
    "assistant": {"content", "name", "refusal", "annotations", "audio", "tool_calls", "function_call"},
    "tool": {"content", "tool_call_id", "name"},
    "function": {"content", "name"},
}
_OPENAI_PARTS = {
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
    "function": set(),
}
_OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PARTICIPANT = re.compile(r"[^\s<|\\/>]{1,64}")
_DATA_IMAGE = re.compile(r"data:image/[a-z+.-]+;base64,.+", re.DOTALL)

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


def openai_chat_faults(messages: list[Message]) -> list[str]:
    """Faults of a messages array of chat completions."""
    faults = [f"messages: {what}" for what in _text_faults(messages)]
    if not messages:
        faults.append("messages: empty")
    waiting: list[str] = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if role not in _OPENAI_FIELDS:
            faults.append(f"{i}: role {role!r}")
            continue
        unknown = message.keys() - _OPENAI_FIELDS[role] - {"role"}
        faults += [f"{i}: unknown field {name}" for name in sorted(unknown)]
        faults += [f"{i}: {what}" for what in _openai_content(role, message)]
        if "name" in message and not _PARTICIPANT.fullmatch(str(message["name"])):
            faults.append(f"{i}: name {message['name']!r}")
        if role == "function" and not message.get("name"):
            faults.append(f"{i}: function message without a name")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id in waiting:
                waiting.remove(call_id)
            else:
                faults.append(f"{i}: result of {call_id!r} follows no such call")
            continue
        if waiting:
            faults.append(f"{i}: calls without results: {waiting}")
        waiting = []
        if role == "assistant":
            faults += [f"{i}: {what}" for what in _openai_calls(message)]
            waiting = [call.get("id") for call in message.get("tool_calls") or []]
    if waiting:
        faults.append(f"end: calls without results: {waiting}")
    return faults


def _openai_content(role: str, message: Message) -> Iterator[str]:
    content = message.get("content")
    if content is None:
        instead = ("tool_calls", "function_call", "audio", "refusal")
        if role == "function" or (role == "assistant" and any(message.get(name) for name in instead)):
            return
        yield f"{role} message without content"
    elif isinstance(content, str):
        if not content and role not in ("tool", "function") and not message.get("tool_calls"):
            yield f"empty {role} message"
    elif isinstance(content, list):
        if not content:
            yield "content is an empty array"
        for part in content:
            yield from _openai_part(role, part)
    else:
        yield f"content is a {type(content).__name__}"


def _openai_part(role: str, part: Message) -> Iterator[str]:
    kind = part.get("type")
    if kind not in _OPENAI_PARTS[role]:
        yield f"{kind} part in a {role} message"
        return
    inner = part.get(kind)
    if kind in ("text", "refusal"):
        if not isinstance(inner, str):
            yield f"{kind} part without {kind}"
        return
    if not isinstance(inner, dict):
        yield f"{kind} part without {kind}"
    elif kind == "image_url":
        url = str(inner.get("url"))
        if not (url.startswith(("http://", "https://")) or _DATA_IMAGE.fullmatch(url)):
            yield f"image url {url[:40]!r}"
        if inner.get("detail", "auto") not in ("auto", "low", "high"):
            yield f"image detail {inner['detail']!r}"
    elif kind == "input_audio" and not (inner.get("data") and inner.get("format") in ("wav", "mp3")):
        yield f"audio of format {inner.get('format')!r}"
    elif kind == "file" and not (inner.get("file_id") or (inner.get("file_data") and inner.get("filename"))):
        yield "file without an id or data and name"


def _openai_calls(message: Message) -> Iterator[str]:
    calls = message.get("tool_calls")
    if calls == []:
        yield "tool_calls is an empty array"
    ids = [call.get("id") for call in calls or []]
    if len(set(ids)) != len(ids):
        yield f"one call id twice: {ids}"
    for call in calls or []:
        call_id, kind = call.get("id"), call.get("type")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= 40:
            yield f"call id {call_id!r}"
        if kind not in ("function", "custom"):
            yield f"call of type {kind!r}"
            continue
        inner = call.get(kind) or {}
        if not _OPENAI_NAME.fullmatch(str(inner.get("name"))):
            yield f"function name {inner.get('name')!r}"
        if not isinstance(inner.get("arguments" if kind == "function" else "input"), str):
            yield f"arguments of {call_id} are no string"


def anthropic_faults(request: Message, *, alternating: bool = True) -> list[str]:
    """Faults of ``{system, messages}``; ``alternating`` off allows neighbours of one role, which the API joins."""
    faults = [f"request: {what}" for what in _text_faults(request)]
    faults += [f"request: unknown field {name}" for name in sorted(request.keys() - {"system", "messages"})]
    faults += [f"system: {what}" for what in _system_faults(request.get("system", ""))]
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*faults, "messages: empty"]
    if messages[0].get("role") != "user":
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
        elif alternating and role == before:
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
        yield from _base64_faults(source.get("data"))
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
        yield from _base64_faults(source.get("data"))
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


def _base64_faults(data: Any) -> Iterator[str]:
    try:
        if not isinstance(data, str) or not base64.b64decode(data, validate=True):
            yield "no base64 data"
    except binascii.Error:
        yield "data is no base64"


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


def _text_faults(value: Any) -> Iterator[str]:
    """Text that is no UTF-8, and numbers that are no JSON."""
    if isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            yield f"lone surrogate in {value[:20]!r}"
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            yield f"number {value}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _text_faults(key)
            yield from _text_faults(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _text_faults(inner)
