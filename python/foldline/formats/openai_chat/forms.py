"""Parts, tool calls and message fields of chat completions as blocks.

Besides content parts, an assistant message carries content in fields of its own. Blocks made of those are noted
``as`` the field, so that they come back there: ``refusal``, ``audio``, ``function_call`` and the reasoning fields of
compatible servers. In notes they are called ``message.`` and the field's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foldline.domain.enums import Format
from foldline.domain.rows import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    TranscriptBlock,
    VideoBlock,
)
from foldline.formats.codec import Codec, Form, Place, expect_object, expect_text, invalid
from foldline.formats.json_text import Json, loads_or, text
from foldline.formats.media import WEB, WEB_IMAGES, data_uri, split_data_uri
from foldline.formats.naming import legal_name, short_name
from foldline.formats.notes import Notes, apply, diff, read_notes, with_notes

FORMAT = Format.OPENAI_CHAT
_AUDIO_MIME = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_AUDIO_FORMAT = {mime: name for name, mime in _AUDIO_MIME.items()}
_PDF = "application/pdf"
LONGEST_ID, LONGEST_NAME = 40, 64


def _object(part: dict[str, Json], key: str) -> dict[str, Json]:
    value = part.get(key)
    return value if isinstance(value, dict) else {}


def _media(uri: Json, block: type[ImageBlock] | type[VideoBlock]) -> ImageBlock | VideoBlock | None:
    if not isinstance(uri, str):
        return None
    split = split_data_uri(uri)
    return block(mime_type=split[0], data=split[1]) if split else block(url=uri)


def _uri(block: ImageBlock | VideoBlock) -> str:
    return data_uri(block.mime_type, block.data) if block.data else block.url


def _read_text(part: dict[str, Json]) -> TextBlock | None:
    return TextBlock(part["text"]) if isinstance(part.get("text"), str) else None


def _read_refusal(part: dict[str, Json]) -> TextBlock | None:
    return TextBlock(part["refusal"]) if isinstance(part.get("refusal"), str) else None


def _read_audio(part: dict[str, Json]) -> AudioBlock | None:
    audio = _object(part, "input_audio")
    name, data = audio.get("format"), audio.get("data")
    if not isinstance(name, str) or not isinstance(data, str):
        return None
    return AudioBlock(mime_type=_AUDIO_MIME.get(name, f"audio/{name}"), data=data)


def _write_audio(block: AudioBlock) -> dict[str, Json]:
    name = _AUDIO_FORMAT.get(block.mime_type, block.mime_type.removeprefix("audio/"))
    return {"type": "input_audio", "input_audio": {"data": block.data, "format": name}}


def _read_file(part: dict[str, Json]) -> DocumentBlock | None:
    file = _object(part, "file")
    data, name = file.get("file_data", ""), file.get("filename", "")
    if not file or not isinstance(data, str) or not isinstance(name, str):
        return None
    split = split_data_uri(data)
    if split:
        return DocumentBlock(mime_type=split[0], data=split[1], title=name)
    return DocumentBlock(data=data, title=name)


def _write_file(block: DocumentBlock) -> dict[str, Json]:
    data = data_uri(block.mime_type, block.data) if block.mime_type else block.data
    file = {"filename": block.title or "document.pdf", "file_data": data}
    return {"type": "file", "file": file}


def _natural(block: ContentBlock, place: Place) -> str | None:
    if isinstance(block, TextBlock):
        return "text" if block.text else None
    if place is not Place.USER:
        return None
    if isinstance(block, ImageBlock):
        inline = block.data and block.mime_type in WEB_IMAGES
        return "image_url" if inline or (not block.data and block.url.startswith(WEB)) else None
    if isinstance(block, AudioBlock) and block.data and block.mime_type in _AUDIO_FORMAT:
        return "input_audio"
    # Only PDFs are taken as files.
    if isinstance(block, DocumentBlock) and block.data and block.mime_type == _PDF:
        return "file"
    return None


_FORMS: dict[str, Form] = {
    "text": Form(TextBlock, _read_text, lambda b: {"type": "text", "text": b.text}),
    "refusal": Form(TextBlock, _read_refusal, lambda b: {"type": "refusal", "refusal": b.text}),
    "image_url": Form(
        ImageBlock,
        lambda p: _media(_object(p, "image_url").get("url"), ImageBlock),
        lambda b: {"type": "image_url", "image_url": {"url": _uri(b)}},
    ),
    "video_url": Form(
        VideoBlock,
        lambda p: _media(_object(p, "video_url").get("url"), VideoBlock),
        lambda b: {"type": "video_url", "video_url": {"url": _uri(b)}},
    ),
    "input_audio": Form(AudioBlock, _read_audio, _write_audio),
    "file": Form(DocumentBlock, _read_file, _write_file),
}
PARTS = Codec(FORMAT, _FORMS.get, _natural)


def read_call(call: dict[str, Json], path: str) -> ToolCallBlock:
    """An entry of ``tool_calls``. Custom tools' input is no JSON; compatible servers send arguments as an object.

    Raises:
        FoldlineError: FORMAT_INVALID: no id, no function or custom tool, or one without a name.
    """
    call_id = expect_text(call, "id", path)
    key, content = ("custom", "input") if "custom" in call else ("function", "arguments")
    inner = expect_object(call.get(key), f"{path}.{key}")
    name, given = expect_text(inner, "name", f"{path}.{key}"), inner.get(content)
    if not isinstance(given, str | dict | list | None):
        raise invalid(f"{path}.{key}.{content}", "a string", given)
    form, arguments = (key, given or "") if isinstance(given, str | None) else ("object", text(given))
    block = ToolCallBlock(call_id, name, arguments)
    notes: Notes = {} if form == "function" else {"as": form}
    return with_notes(block, FORMAT, notes | diff(_call(block, form), call))


def _call(block: ToolCallBlock, form: str) -> dict[str, Json]:
    kind, content = ("custom", "input") if form == "custom" else ("function", "arguments")
    given = block.arguments_json
    arguments = loads_or(given, given) if form == "object" else given
    return {
        "id": short_name(block.call_id, LONGEST_ID),
        "type": kind,
        kind: {"name": legal_name(block.name, LONGEST_NAME), content: arguments},
    }


def write_call(block: ToolCallBlock) -> dict[str, Json]:
    notes = read_notes(block.extra, FORMAT)
    return apply(_call(block, str(notes.get("as", "function"))), notes)


def function_call_id(name: str) -> str:
    """The id of a legacy function call, which has none: calls and results of one function name meet (R3)."""
    return f"function_{name}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an assistant message that holds one block; ``read`` gives None where it holds nothing to say."""

    block: type
    read: Callable[[Json], ContentBlock | None]
    write: Callable[[Any], Json]


def _read_reasoning(value: Json) -> ReasoningBlock | None:
    return ReasoningBlock(value) if isinstance(value, str) and value else None


def _read_details(value: Json) -> ReasoningBlock | None:
    return ReasoningBlock(state=text(value)) if isinstance(value, list) and value else None


def _read_refusal_field(value: Json) -> TextBlock | None:
    return TextBlock(value) if isinstance(value, str) and value else None


def _read_message_audio(value: Json) -> AudioBlock | None:
    data = value.get("data", "") if isinstance(value, dict) else None
    return AudioBlock(data=data) if isinstance(data, str) else None


def _read_transcript(value: Json) -> TranscriptBlock | None:
    return TranscriptBlock(value) if isinstance(value, str) and value else None


def _read_function_call(value: Json) -> ToolCallBlock | None:
    if not isinstance(value, dict) or not value.get("name") or not isinstance(value["name"], str):
        return None
    name, arguments = value["name"], value.get("arguments", "")
    return ToolCallBlock(function_call_id(name), name, arguments) if isinstance(arguments, str) else None


REASONING_FIELDS: dict[str, Field] = {
    "reasoning_content": Field(ReasoningBlock, _read_reasoning, lambda b: b.text),
    "reasoning": Field(ReasoningBlock, _read_reasoning, lambda b: b.text),
    "reasoning_details": Field(ReasoningBlock, _read_details, lambda b: loads_or(b.state, [])),
}
"""Of compatible servers; their blocks come before the content."""

CONTENT_FIELDS: dict[str, Field] = {
    "refusal": Field(TextBlock, _read_refusal_field, lambda b: b.text),
    "audio": Field(AudioBlock, _read_message_audio, lambda b: {"data": b.data} if b.data else {}),
    "function_call": Field(
        ToolCallBlock, _read_function_call, lambda b: {"name": b.name, "arguments": b.arguments_json}
    ),
}
"""Their blocks come after the content."""

TRANSCRIPT = Field(TranscriptBlock, _read_transcript, lambda b: b.text)
"""``audio.transcript``: a block of its own behind the audio's, so that it can be read and searched."""
