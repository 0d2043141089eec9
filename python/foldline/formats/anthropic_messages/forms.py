"""Content blocks of the messages API as blocks of rows."""

from __future__ import annotations

import base64
import re
from functools import partial

from foldline.domain.enums import Format
from foldline.domain.errors import FoldlineError
from foldline.domain.rows import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    ServerToolBlock,
    TextBlock,
    ToolCallBlock,
)
from foldline.formats.codec import Codec, Form, Place
from foldline.formats.json_text import Json, loads, loads_or, text
from foldline.formats.media import WEB, WEB_IMAGES, document_text
from foldline.formats.naming import legal_name
from foldline.formats.notes import is_foreign

FORMAT = Format.ANTHROPIC_MESSAGES
LONGEST_NAME, LONGEST_ID = 128, 128
_PDF, _PLAIN = "application/pdf", "text/plain"
_SERVER_ID = re.compile(r"(srv|mcp)toolu_[a-zA-Z0-9_]+")
_RESULT_TYPE = re.compile(r"[a-z_]+_tool_result")
WRAPPED = "arguments"
"""Field that holds arguments which are no JSON object, since ``input`` must be one."""


def arguments_of(block: ToolCallBlock) -> tuple[dict[str, Json], str | None, int]:
    """(input, what was lost or None, lone surrogates replaced) of a call's arguments text."""
    if not block.arguments_json.strip():
        return {}, None, 0
    try:
        value, replaced = loads(block.arguments_json.encode())
    except FoldlineError:
        return {WRAPPED: block.arguments_json}, "arguments that are no JSON became a text field of the input", 0
    if isinstance(value, dict):
        return value, None, replaced
    return {WRAPPED: value}, "arguments that are no JSON object became a field of the input", replaced


def _strings(source: dict[str, Json], *keys: str) -> bool:
    return all(isinstance(source.get(key), str) for key in keys)


def _source(block: dict[str, Json]) -> dict[str, Json]:
    source = block.get("source")
    return source if isinstance(source, dict) else {}


def _read_image(block: dict[str, Json]) -> ImageBlock | None:
    source = _source(block)
    if source.get("type") == "base64" and _strings(source, "media_type", "data"):
        return ImageBlock(source["media_type"], source["data"])
    if source.get("type") == "url" and _strings(source, "url"):
        return ImageBlock(url=source["url"])
    return ImageBlock() if source else None


def _write_image(block: ImageBlock) -> dict[str, Json]:
    if block.data:
        return {"type": "image", "source": {"type": "base64", "media_type": block.mime_type, "data": block.data}}
    return {"type": "image", "source": {"type": "url", "url": block.url}}


def _read_document(block: dict[str, Json]) -> DocumentBlock | None:
    source, title = _source(block), block.get("title")
    name = title if isinstance(title, str) else ""
    if source.get("type") == "base64" and _strings(source, "media_type", "data"):
        return DocumentBlock(source["media_type"], source["data"], title=name)
    if source.get("type") == "text" and source.get("media_type") == _PLAIN and _strings(source, "data"):
        return DocumentBlock(_PLAIN, base64.b64encode(source["data"].encode()).decode(), title=name)
    if source.get("type") == "url" and _strings(source, "url"):
        return DocumentBlock(url=source["url"], title=name)
    # Content sources hold blocks of their own: kept whole, as any other block without a form.
    return DocumentBlock(title=name) if source.get("type") == "file" else None


def _write_document(block: DocumentBlock) -> dict[str, Json]:
    content = document_text(block) if block.mime_type == _PLAIN else None
    source: dict[str, Json]
    if content is not None:
        source = {"type": "text", "media_type": _PLAIN, "data": content}
    elif block.data:
        source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
    else:
        source = {"type": "url", "url": block.url}
    return {"type": "document", "source": source} | ({"title": block.title} if block.title else {})


def _read_text(block: dict[str, Json]) -> TextBlock | None:
    return TextBlock(block["text"]) if _strings(block, "text") else None


def _read_redacted(block: dict[str, Json]) -> ReasoningBlock | None:
    return ReasoningBlock(state=block["data"], redacted=True) if _strings(block, "data") else None


def _read_thinking(block: dict[str, Json]) -> ReasoningBlock | None:
    signature = block.get("signature", "")
    if not _strings(block, "thinking") or not isinstance(signature, str):
        return None
    return ReasoningBlock(block["thinking"], signature=signature)


def _read_tool_use(block: dict[str, Json]) -> ToolCallBlock | None:
    if not _strings(block, "id", "name") or not block["id"] or not block["name"]:
        return None
    return ToolCallBlock(block["id"], block["name"], text(block.get("input", {})))


def _write_tool_use(block: ToolCallBlock) -> dict[str, Json]:
    return {
        "type": "tool_use",
        "id": legal_name(block.call_id, LONGEST_ID),
        "name": legal_name(block.name, LONGEST_NAME),
        "input": arguments_of(block)[0],
    }


def _read_server_use(block: dict[str, Json]) -> ServerToolBlock | None:
    if not _strings(block, "id", "name"):
        return None
    return ServerToolBlock(block["id"], block["name"], text(block.get("input", {})))


def _write_server_use(kind: str, block: ServerToolBlock) -> dict[str, Json]:
    return {"type": kind, "id": block.call_id, "name": block.name, "input": loads_or(block.json, {})}


def _read_server_result(block: dict[str, Json]) -> ServerToolBlock | None:
    """A provider-run tool's result, of whichever tool; its name is the block's type."""
    if not _strings(block, "tool_use_id"):
        return None
    return ServerToolBlock(block["tool_use_id"], block["type"], text(block.get("content")), result=True)


def _write_server_result(block: ServerToolBlock) -> dict[str, Json]:
    return {"type": block.name, "tool_use_id": block.call_id, "content": loads_or(block.json, {})}


def _natural(block: ContentBlock, place: Place) -> str | None:
    if isinstance(block, TextBlock):
        return "text"
    if isinstance(block, ToolCallBlock):
        return "tool_use" if place is Place.ASSISTANT else None
    if isinstance(block, ReasoningBlock | ServerToolBlock):
        return _natural_state(block) if place is Place.ASSISTANT and not is_foreign(block.extra, FORMAT) else None
    if place not in (Place.USER, Place.RESULT):
        return None
    if isinstance(block, ImageBlock):
        web = block.url.startswith(WEB)
        return "image" if web or (block.data and block.mime_type in WEB_IMAGES) else None
    if isinstance(block, DocumentBlock):
        text_document = block.mime_type == _PLAIN and bool((document_text(block) or "").strip())
        pdf = bool(block.data) and block.mime_type == _PDF
        return "document" if text_document or pdf or block.url.startswith(WEB) else None
    return None


def _natural_state(block: ReasoningBlock | ServerToolBlock) -> str | None:
    if isinstance(block, ServerToolBlock):
        if not _SERVER_ID.fullmatch(block.call_id):
            return None
        if not block.result:
            if legal_name(block.name, LONGEST_NAME) != block.name or not isinstance(loads_or(block.json, None), dict):
                return None
            return "server_tool_use" if block.call_id.startswith("srv") else "mcp_tool_use"
        return block.name if _RESULT_TYPE.fullmatch(block.name) else None
    if block.redacted:
        return "redacted_thinking" if block.state else None
    # Without its signature thinking is refused.
    return "thinking" if block.signature else None


_FORMS: dict[str, Form] = {
    "text": Form(TextBlock, _read_text, lambda b: {"type": "text", "text": b.text}),
    "image": Form(ImageBlock, _read_image, _write_image),
    "document": Form(DocumentBlock, _read_document, _write_document),
    "thinking": Form(
        ReasoningBlock, _read_thinking, lambda b: {"type": "thinking", "thinking": b.text, "signature": b.signature}
    ),
    "redacted_thinking": Form(ReasoningBlock, _read_redacted, lambda b: {"type": "redacted_thinking", "data": b.state}),
    "tool_use": Form(ToolCallBlock, _read_tool_use, _write_tool_use),
    "server_tool_use": Form(ServerToolBlock, _read_server_use, partial(_write_server_use, "server_tool_use")),
    "mcp_tool_use": Form(ServerToolBlock, _read_server_use, partial(_write_server_use, "mcp_tool_use")),
}
_SERVER_RESULT = Form(ServerToolBlock, _read_server_result, _write_server_result)


def _form_of(name: str) -> Form | None:
    return _FORMS.get(name) or (_SERVER_RESULT if _RESULT_TYPE.fullmatch(name) else None)


BLOCKS = Codec(FORMAT, _form_of, _natural)
