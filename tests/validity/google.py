"""What generateContent answers 400 to."""

import re
from collections.abc import Iterator
from typing import Any

from tests.validity.common import Message, base64_faults, text_faults

_GOOGLE_DATA = (
    "text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
)  # fmt: skip
_GOOGLE_MORE = {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"}
_GOOGLE_SNAKE = re.compile(r"_([a-z])")
_GOOGLE_MIME = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|audio/(wav|x-wav|mp3|mpeg|aiff|aac|ogg|flac)|application/pdf|text/[a-z-]+|"
    r"video/(mp4|mpeg|mov|quicktime|avi|x-flv|mpg|webm|wmv|3gpp)"
)
_GOOGLE_RESULT_MIME = re.compile(r"image/(png|jpeg|webp)|application/pdf|text/plain")
_GOOGLE_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_BASE64ISH = re.compile(r"[a-zA-Z0-9+/_-]+={0,2}")


def google_faults(request: Message, *, alternating: bool = True, signed: bool = True) -> list[str]:
    """Faults of ``{systemInstruction, contents}``.

    Args:
        alternating: off allows neighbours of one role, which current models take.
        signed: off allows calls without a signature, which models before Gemini 3 make.
    """
    faults = [f"request: {what}" for what in text_faults(request)]
    known = {"systemInstruction", "system_instruction", "contents"}
    faults += [f"request: unknown field {name}" for name in sorted(request.keys() - known)]
    for name in ("systemInstruction", "system_instruction"):
        if name in request:
            faults += [f"system: {what}" for what in _google_system(request[name])]
    contents = request.get("contents")
    if not isinstance(contents, list) or not contents:
        return [*faults, "contents: empty"]
    if contents[0].get("role") == "model":
        faults.append("0: first content is the model's")
    waiting: list[Message] = []
    for i, content in enumerate(contents):
        role, parts = content.get("role", "user"), content.get("parts")
        before = contents[i - 1].get("role", "user") if i else None
        if role not in ("user", "model", "function"):
            faults.append(f"{i}: role {role!r}")
            continue
        faults += [f"{i}: unknown field {name}" for name in sorted(content.keys() - {"role", "parts"})]
        if alternating and role == before:
            faults.append(f"{i}: second {role} content in a row")
        if not isinstance(parts, list) or not parts:
            faults.append(f"{i}: no parts")
            continue
        camel = [_google_camel(part) for part in parts]
        faults += [f"{i}: {what}" for part in camel for what in _google_part(str(role), part)]
        responses = [p["functionResponse"] for p in camel if isinstance(p.get("functionResponse"), dict)]
        faults += [f"{i}: {what}" for what in _google_pairing(camel, responses, waiting)]
        calls = [p for p in camel if isinstance(p.get("functionCall"), dict)]
        if calls and role == before:
            faults.append(f"{i}: calls come after the model's own content")
        if signed and calls and not calls[0].get("thoughtSignature"):
            faults.append(f"{i}: the first call has no signature")
        waiting = [p["functionCall"] for p in calls]
        faults += [f"{i}: {what}" for what in _google_code(camel)]
    if waiting:
        faults.append(f"end: calls without responses: {[c.get('name') for c in waiting]}")
    return faults


def _google_camel(part: Message) -> Message:
    """The part with its own fields, and those of blobs, in camelCase."""
    out = {_GOOGLE_SNAKE.sub(lambda m: m.group(1).upper(), k): v for k, v in part.items()}
    for key in ("inlineData", "fileData"):
        if isinstance(out.get(key), dict):
            out[key] = {_GOOGLE_SNAKE.sub(lambda m: m.group(1).upper(), k): v for k, v in out[key].items()}
    return out


def _google_system(system: Any) -> Iterator[str]:
    parts = system.get("parts") if isinstance(system, dict) else None
    if not isinstance(parts, list) or not parts:
        yield "no parts"
        return
    for part in parts:
        if set(_google_camel(part)) & set(_GOOGLE_DATA) != {"text"}:
            yield "a part that is no text"


def _google_part(role: str, part: Message) -> Iterator[str]:
    data = [key for key in _GOOGLE_DATA if key in part]
    for name in sorted(part.keys() - set(_GOOGLE_DATA) - _GOOGLE_MORE):
        yield f"part with unknown field {name}"
    signature = part.get("thoughtSignature")
    if signature is not None and not (isinstance(signature, str) and _BASE64ISH.fullmatch(signature)):
        yield f"signature {signature!r}"
    if (part.get("thought") or signature is not None) and role != "model":
        yield f"thought in a {role} content"
    if len(data) != 1:
        yield f"part with the data {data}"
        return
    kind, value = data[0], part[data[0]]
    if kind == "text":
        if not isinstance(value, str) or not (value or signature):
            yield "empty text part"
    elif not isinstance(value, dict):
        yield f"{kind} is no object"
    elif kind in ("inlineData", "fileData"):
        yield from _google_blob(kind, value, _GOOGLE_MIME)
    elif kind == "functionCall":
        if role != "model":
            yield f"call in a {role} content"
        if not _GOOGLE_NAME.fullmatch(str(value.get("name"))):
            yield f"function name {value.get('name')!r}"
        if not isinstance(value.get("args", {}), dict):
            yield f"args of {value.get('name')} are no object"
    elif kind == "functionResponse":
        if role == "model":
            yield "response in a model content"
        if not isinstance(value.get("response"), dict):
            yield f"response of {value.get('name')} is no object"
        for inner in value.get("parts", []):
            for name in inner.keys() - {"inlineData"}:
                yield f"response with a part {name}"
            yield from _google_blob("inlineData", inner.get("inlineData", {}), _GOOGLE_RESULT_MIME)
    elif role != "model":
        yield f"{kind} in a {role} content"


def _google_blob(kind: str, blob: Message, allowed: re.Pattern[str]) -> Iterator[str]:
    mime = blob.get("mimeType")
    if kind == "inlineData":
        yield from base64_faults(blob.get("data"))
    elif not blob.get("fileUri"):
        yield "file without a uri"
    if not allowed.fullmatch(str(mime)) and not (kind == "fileData" and mime is None):
        yield f"media of type {mime!r}"


def _google_pairing(parts: list[Message], responses: list[Message], waiting: list[Message]) -> Iterator[str]:
    if len(responses) != len(waiting):
        yield f"{len(responses)} responses to {len(waiting)} calls"
        return
    # Without ids, responses are matched by name, in order.
    for name in {str(call.get("name")) for call in waiting}:
        calls = [call for call in waiting if call.get("name") == name]
        answers = [answer for answer in responses if answer.get("name") == name]
        if len(calls) != len(answers):
            yield f"{len(answers)} responses to {len(calls)} calls of {name}"
    asked, told = ([c["id"] for c in part if "id" in c] for part in (waiting, responses))
    if sorted(map(str, asked)) != sorted(map(str, told)):
        yield f"responses to the ids {told}, calls of {asked}"
    if any("functionResponse" not in part for part in parts[: len(responses)]):
        yield "responses do not come first"


def _google_code(parts: list[Message]) -> Iterator[str]:
    codes = [key for part in parts for key in ("executableCode", "codeExecutionResult") if key in part]
    if codes.count("codeExecutionResult") > codes.count("executableCode"):
        yield "results of code that nothing ran"
