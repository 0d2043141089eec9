"""What chat completions answers 400 to."""

import re
from collections.abc import Iterator

from tests.validity.common import DATA_IMAGE, OPENAI_NAME, Message, text_faults

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
_PARTICIPANT = re.compile(r"[^\s<|\\/>]{1,64}")


def openai_chat_faults(messages: list[Message]) -> list[str]:
    """Faults of a messages array of chat completions."""
    faults = [f"messages: {what}" for what in text_faults(messages)]
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
        if not (url.startswith(("http://", "https://")) or DATA_IMAGE.fullmatch(url)):
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
        if not OPENAI_NAME.fullmatch(str(inner.get("name"))):
            yield f"function name {inner.get('name')!r}"
        if not isinstance(inner.get("arguments" if kind == "function" else "input"), str):
            yield f"arguments of {call_id} are no string"
