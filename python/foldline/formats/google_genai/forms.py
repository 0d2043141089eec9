"""Parts of a content as blocks of rows, and back."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from foldline.domain.enums import Format
from foldline.domain.errors import FoldlineError
from foldline.domain.rows import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    ServerToolBlock,
    StructuredBlock,
    TextBlock,
    ToolCallBlock,
    VideoBlock,
)
from foldline.formats.codec import Place
from foldline.formats.json_text import Json, loads, loads_or, text
from foldline.formats.naming import legal_name
from foldline.formats.notes import Notes, apply, diff, read_notes, with_notes

FORMAT = Format.GOOGLE_GENAI
LONGEST_NAME = 64
WRAPPED = "arguments"
"""Field that holds arguments which are no JSON object, since ``args`` must be one."""
DATA = (
    "text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
)  # fmt: skip
"""Fields of a part of which it has one."""
_SERVER = {"executableCode": False, "codeExecutionResult": True, "toolCall": False, "toolResponse": True}
"""Parts of tools that the provider runs; whether they are results."""
_TOP = {
    "inline_data": "inlineData", "file_data": "fileData", "function_call": "functionCall",
    "function_response": "functionResponse", "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult", "tool_call": "toolCall", "tool_response": "toolResponse",
    "thought_signature": "thoughtSignature", "video_metadata": "videoMetadata",
    "media_resolution": "mediaResolution", "part_metadata": "partMetadata",
}  # fmt: skip
_BLOB = {"mime_type": "mimeType", "file_uri": "fileUri", "display_name": "displayName"}
_BLOBS = ("inlineData", "fileData")
_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
_INLINE: dict[type, frozenset[str]] = {
    ImageBlock: _IMAGES,
    AudioBlock: frozenset({
        "audio/wav", "audio/x-wav", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac",
    }),
    VideoBlock: frozenset({
        "video/mp4", "video/mpeg", "video/mov", "video/quicktime", "video/avi", "video/x-flv", "video/mpg",
        "video/webm", "video/wmv", "video/3gpp",
    }),
    DocumentBlock: frozenset({"application/pdf"}),
}  # fmt: skip
"""Media types the API takes; text documents go as text."""
_IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})
_FILES = ("https://", "http://", "gs://")


def notes_of(block: ContentBlock) -> Notes:
    return read_notes(block.extra, FORMAT)


def camel(part: dict[str, Json]) -> dict[str, Json]:
    """The part with its known fields in camelCase."""
    out = {_TOP.get(key, key): value for key, value in part.items()}
    for key in _BLOBS:
        if isinstance(out.get(key), dict):
            out[key] = {_BLOB.get(k, k): v for k, v in out[key].items()}
    return out


def snake(part: dict[str, Json]) -> dict[str, Json]:
    """Inverse of ``camel`` for a part that is wholly in snake_case."""
    names, inner = {v: k for k, v in _TOP.items()}, {v: k for k, v in _BLOB.items()}
    out = dict(part)
    for key in _BLOBS:
        if isinstance(out.get(key), dict):
            out[key] = {inner.get(k, k): v for k, v in out[key].items()}
    return {names.get(key, key): value for key, value in out.items()}


def spelled(part: dict[str, Json]) -> tuple[dict[str, Json], Notes]:
    """(the part in camelCase, notes that spell it as it came); a part of mixed spellings stays as it is."""
    normal = camel(part)
    if normal == part:
        return part, {}
    return (normal, {"snake": True}) if snake(normal) == part else (part, {})


def kind_of(part: dict[str, Json]) -> str:
    """The one data field of a part in camelCase; ``thought`` of one of the model's, ``""`` of any other."""
    if part.get("thought") is True and not any(key in part for key in DATA if key != "text"):
        return "thought"
    found = [key for key in DATA if key in part]
    return found[0] if len(found) == 1 else ""


def read_part(part: dict[str, Json], place: Place, number: int = 0) -> ContentBlock:
    """A part as a block, calls and responses of the host's functions apart. Unknown ones are kept verbatim.

    Args:
        number: of the part among the provider-run ones of its kind, which have no ids.
    """
    normal, notes = spelled(part)
    kind = kind_of(normal)
    block = _READERS[kind](normal) if kind in _READERS else None
    if block is None and kind in _SERVER:
        block = ServerToolBlock(f"{_PAIRS[kind]}_{number}", kind, text(normal[kind]), result=_SERVER[kind])
    if block is None:
        return with_notes(StructuredBlock(text(part)), FORMAT, {"as": VERBATIM})
    if _natural(block, place) != kind or kind == "thought" or kind in _SERVER:
        notes["as"] = kind
    return with_notes(block, FORMAT, notes | diff(_write(block, kind), normal))


VERBATIM = "verbatim"
_PAIRS = {"executableCode": "code", "codeExecutionResult": "code", "toolCall": "tool", "toolResponse": "tool"}


def write_part(block: ContentBlock, place: Place) -> dict[str, Json] | None:
    """A block as a part; None where there is no form for it in this place."""
    notes = notes_of(block)
    kind = _form(block, place, notes)
    if kind is None:
        return None
    if kind == VERBATIM and isinstance(block, StructuredBlock):
        value = loads_or(block.json, None)
        return value if isinstance(value, dict) else None
    part = apply(_write(block, kind), notes)
    return snake(part) if notes.get("snake") is True else part


def takes(block: ContentBlock, place: Place) -> bool:
    return write_part(block, place) is not None


def _form(block: ContentBlock, place: Place, notes: Notes) -> str | None:
    noted = str(notes.get("as", ""))
    return noted if _fits(noted, block) else _natural(block, place)


def _fits(kind: str, block: ContentBlock) -> bool:
    """Whether a block can be written as ``kind``, whatever its notes say."""
    if kind in _SERVER:
        return isinstance(block, ServerToolBlock)
    if kind in _BLOBS:
        return isinstance(block, ImageBlock | AudioBlock | VideoBlock | DocumentBlock)
    types: dict[str, type] = {"text": TextBlock, "thought": ReasoningBlock, VERBATIM: StructuredBlock}
    return kind in types and isinstance(block, types[kind])


def _read_text(part: dict[str, Json]) -> TextBlock | None:
    return TextBlock(part["text"]) if isinstance(part["text"], str) else None


def _read_thought(part: dict[str, Json]) -> ReasoningBlock | None:
    said, signature = part.get("text", ""), part.get("thoughtSignature", "")
    whole = isinstance(said, str) and isinstance(signature, str)
    return ReasoningBlock(said, signature=signature) if whole else None


def _media(mime: str) -> type[ImageBlock] | type[AudioBlock] | type[VideoBlock] | type[DocumentBlock]:
    kinds: dict[str, Any] = {"image": ImageBlock, "audio": AudioBlock, "video": VideoBlock}
    return kinds.get(mime.partition("/")[0], DocumentBlock)  # type: ignore[no-any-return]


def _read_inline(part: dict[str, Json]) -> ContentBlock | None:
    blob = part["inlineData"]
    if not isinstance(blob, dict) or not _strings(blob, "mimeType", "data"):
        return None
    return _media(blob["mimeType"])(mime_type=blob["mimeType"], data=blob["data"])


def _read_file(part: dict[str, Json]) -> ContentBlock | None:
    blob = part["fileData"]
    if not isinstance(blob, dict) or not _strings(blob, "fileUri") or not isinstance(blob.get("mimeType", ""), str):
        return None
    mime = blob.get("mimeType", "")
    return _media(mime)(mime_type=mime, url=blob["fileUri"])


_READERS: dict[str, Callable[[dict[str, Json]], ContentBlock | None]] = {
    "text": _read_text,
    "thought": _read_thought,
    "inlineData": _read_inline,
    "fileData": _read_file,
}


def _write(block: Any, kind: str) -> dict[str, Json]:
    if kind == "text":
        return {"text": block.text}
    if kind == "thought":
        signed = {"thoughtSignature": block.signature} if block.signature else {}
        return {"text": block.text, "thought": True} | signed
    if kind == "inlineData":
        return {"inlineData": {"mimeType": block.mime_type, "data": block.data}}
    if kind == "fileData":
        mime = block.mime_type or _guessed(block.url)
        return {"fileData": ({"mimeType": mime} if mime else {}) | {"fileUri": block.url}}
    return {kind: loads_or(block.json, {})}


def _natural(block: ContentBlock, place: Place) -> str | None:
    if isinstance(block, TextBlock):
        return "text" if block.text else None
    for kind, types in _INLINE.items():
        if isinstance(block, kind):
            assert isinstance(block, ImageBlock | AudioBlock | VideoBlock | DocumentBlock)
            return _natural_media(block, types, place)
    return None


def _natural_media(
    block: ImageBlock | AudioBlock | VideoBlock | DocumentBlock, types: frozenset[str], place: Place
) -> str | None:
    if place is Place.RESULT:
        return "inlineData" if block.data and block.mime_type in types & _IN_RESULTS else None
    if place is Place.ASSISTANT and not isinstance(block, ImageBlock):
        return None
    if block.data:
        return "inlineData" if block.mime_type in types and place is not Place.SYSTEM else None
    known = (block.mime_type or _guessed(block.url)) in types
    return "fileData" if known and place is Place.USER and block.url.startswith(_FILES) else None


def _guessed(url: str) -> str:
    return (mimetypes.guess_type(url.partition("?")[0])[0] or "") if url.startswith(_FILES) else ""


def _strings(blob: dict[str, Json], *keys: str) -> bool:
    return all(isinstance(blob.get(key), str) for key in keys)


def call_id_of(name: str, number: int) -> str:
    """The id of a call that came without one: the ``number``-th of its function's calls in its content (R3)."""
    return f"call_{name}_{number}"


def read_call(part: dict[str, Json], call_id: str) -> ToolCallBlock:
    """A ``functionCall`` part; ``call_id`` is its own id, or one made for it."""
    normal, notes = spelled(part)
    call = normal["functionCall"]
    block = ToolCallBlock(call_id, call["name"], text({} if call.get("args") is None else call["args"]))
    notes["id"] = call.get("id") == call_id
    return with_notes(block, FORMAT, notes | diff(_call(block, has_id=notes["id"]), normal))


def write_call(block: ToolCallBlock, call_id: str) -> dict[str, Json]:
    """A ``functionCall`` part, with ``call_id`` where the call came with an id."""
    notes = notes_of(block)
    part = apply(_call(block, has_id=False), notes)
    call = part.get("functionCall")
    if notes.get("id") is True and isinstance(call, dict):
        part["functionCall"] = call | {"id": call_id}
    return snake(part) if notes.get("snake") is True else part


def _call(block: ToolCallBlock, *, has_id: bool) -> dict[str, Json]:
    call = {"name": legal_name(block.name, LONGEST_NAME), "args": arguments_of(block)[0]}
    return {"functionCall": ({"id": block.call_id} if has_id else {}) | call}


def arguments_of(block: ToolCallBlock) -> tuple[dict[str, Json], str | None, int]:
    """(args, what was lost or None, lone surrogates replaced) of a call's arguments text."""
    if not block.arguments_json.strip():
        return {}, None, 0
    try:
        value, replaced = loads(block.arguments_json.encode())
    except FoldlineError:
        return {WRAPPED: block.arguments_json}, "arguments that are no JSON became a text field of the args", 0
    if isinstance(value, dict):
        return value, None, replaced
    return {WRAPPED: value}, "arguments that are no JSON object became a field of the args", replaced


def response_part(
    content: Sequence[ContentBlock], name: str, call_id: str | None, is_error: bool, notes: Notes
) -> dict[str, Json]:
    """A ``functionResponse`` part in camelCase, less its own notes; ``content`` holds what can stand in a result."""
    values = [b for b in content if is_value(b)]
    texts = [b.text for b in content if isinstance(b, TextBlock)]
    key = notes.get("key")
    field = key if isinstance(key, str) and key else "error" if is_error else "output"
    alone = loads_or(values[0].json, None) if len(values) == 1 and not texts else None
    said = (b.text if isinstance(b, TextBlock) else b.json for b in content if isinstance(b, TextBlock) or is_value(b))
    response: Json = alone if isinstance(alone, dict) else {field: "\n".join(said)}
    out: dict[str, Json] = ({"id": call_id} if call_id is not None else {}) | {"name": name, "response": response}
    rest = (b for b in content if not isinstance(b, TextBlock) and not is_value(b))
    parts = [part for part in (write_part(b, Place.RESULT) for b in rest) if part is not None]
    return {"functionResponse": out | ({"parts": parts} if parts else {})}


def is_value(block: ContentBlock) -> TypeGuard[StructuredBlock]:
    """Whether a block of a result is a JSON value, no part that is kept verbatim."""
    return isinstance(block, StructuredBlock) and notes_of(block).get("as") != VERBATIM
