"""Requests as an endpoint sees them, piece by piece, for the prefix that must not change (R5)."""

from __future__ import annotations

import json
from typing import Any

from foldline.v1 import row_pb2

from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

FORMATS = (row_pb2.FORMAT_OPENAI_CHAT, row_pb2.FORMAT_ANTHROPIC_MESSAGES)
"""Those whose prefix is held from request to request."""
EVERY_FORMAT = (*FORMATS, row_pb2.FORMAT_OPENAI_RESPONSES, row_pb2.FORMAT_GOOGLE_GENAI)


def faults(fmt: int, value: Any) -> list[str]:
    if fmt == row_pb2.FORMAT_OPENAI_CHAT:
        return openai_chat_faults(value)
    if fmt == row_pb2.FORMAT_OPENAI_RESPONSES:
        return openai_responses_faults(value)
    if fmt == row_pb2.FORMAT_GOOGLE_GENAI:
        return google_faults(value, alternating=False, signed=False)
    # Two messages that a host sent as two are rendered as two (W4); the API joins them.
    return anthropic_faults(value, alternating=False)


def pieces(fmt: int, value: Any) -> list[object]:
    """The request as a flat sequence of (role, block); hoisted instructions stand apart and are left out."""
    messages = value if fmt == row_pb2.FORMAT_OPENAI_CHAT else value["messages"]
    found: list[object] = []
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [content]
        rest = {k: v for k, v in message.items() if k not in ("role", "content")}
        found += [
            (message["role"], json.dumps(_plain(b), sort_keys=True), json.dumps(rest, sort_keys=True)) for b in blocks
        ]
    return found


def _plain(block: Any) -> Any:
    """One spelling of a block. White space at the end of a text is no part of it: a final answer may not end in any."""
    if isinstance(block, str):
        return {"type": "text", "text": block.rstrip()}
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        return block | {"text": block["text"].rstrip()}
    return block


def texts(row: row_pb2.Row) -> str:
    """All text of a row, block after block."""
    if row.HasField("compaction_summary"):
        return row.compaction_summary.text
    body = getattr(row, str(row.WhichOneof("body")))
    return "".join(b.text.text for b in body.content if b.HasField("text"))
