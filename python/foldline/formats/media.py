"""Media between formats: data URIs, placeholders, and text for what has no form of its own."""

from __future__ import annotations

import base64
import binascii
import re

from foldline.domain.rows import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    StructuredBlock,
    TextBlock,
    TranscriptBlock,
    VideoBlock,
)

WEB = ("http://", "https://")
WEB_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What both APIs take inline."""
_DATA_URI = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
_NAMES: dict[type, str] = {
    ImageBlock: "image", VideoBlock: "video", AudioBlock: "audio", DocumentBlock: "document",
}  # fmt: skip


def split_data_uri(uri: str) -> tuple[str, str] | None:
    """(mime type, base64 data) of a data URI that ``data_uri`` gives back letter by letter; else None."""
    found = _DATA_URI.fullmatch(uri)
    return (found.group(1), found.group(2)) if found else None


def data_uri(mime_type: str, data: str) -> str:
    return f"data:{mime_type};base64,{data}"


def placeholder(block: ImageBlock | VideoBlock | AudioBlock | DocumentBlock) -> str:
    """Text in place of media a format cannot carry; names the mime type and, where there is one, the URL."""
    name = _NAMES[type(block)]
    title = f" {block.title}" if isinstance(block, DocumentBlock) and block.title else ""
    where = f", {block.url}" if block.url and not block.url.startswith("data:") else ""
    return f"[{name}{title} not shown: {block.mime_type or f'{name} of unknown type'}{where}]"


def document_text(block: DocumentBlock) -> str | None:
    """The text of an inline text document, None for any other."""
    if not block.data or not block.mime_type.startswith("text/"):
        return None
    try:
        return base64.b64decode(block.data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def as_text(block: ContentBlock) -> tuple[str | None, str | None]:
    """How a block reads as text where it cannot stand as it is: (text, what was lost).

    No text means that the block has to be left out; no loss means that the text says all of it.
    """
    if isinstance(block, TextBlock | TranscriptBlock):
        return block.text, None
    if isinstance(block, StructuredBlock):
        return block.json, None
    if isinstance(block, DocumentBlock) and (content := document_text(block)) is not None:
        return f"{block.title}\n{content}" if block.title else content, None
    if isinstance(block, ImageBlock | VideoBlock | AudioBlock | DocumentBlock):
        return placeholder(block), f"{_NAMES[type(block)]} content became a placeholder"
    return None, None
