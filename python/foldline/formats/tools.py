"""Tool definitions in the shape each API takes them in (K5): an array that joins the host's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from foldline.domain.enums import Format
from foldline.domain.tools import AgentTool

_GOOGLE_KEYS = ("type", "description", "enum", "properties", "required", "items")
"""What every version of that API knows of a schema; it refuses a request that holds any other key."""


def _openai_chat(tools: Sequence[AgentTool]) -> list[Any]:
    made = ({"name": t.name, "description": t.description, "parameters": t.input_schema} for t in tools)
    return [{"type": "function", "function": function} for function in made]


def _openai_responses(tools: Sequence[AgentTool]) -> list[Any]:
    # Unless told otherwise that API is strict, and takes no schema with optional properties.
    return [
        {"type": "function", "name": t.name, "description": t.description, "parameters": t.input_schema,
         "strict": False}
        for t in tools
    ]  # fmt: skip


def _anthropic(tools: Sequence[AgentTool]) -> list[Any]:
    return [{"name": t.name, "description": t.description, "input_schema": t.input_schema} for t in tools]


def _google(tools: Sequence[AgentTool]) -> list[Any]:
    declarations = [
        {"name": t.name, "description": t.description, "parameters": _google_schema(t.input_schema)} for t in tools
    ]
    return [{"functionDeclarations": declarations}]


def _google_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = {key: schema[key] for key in _GOOGLE_KEYS if key in schema}
    made["type"] = made["type"].upper()
    if "properties" in made:
        made["properties"] = {name: _google_schema(inner) for name, inner in made["properties"].items()}
    if "items" in made:
        made["items"] = _google_schema(made["items"])
    return made


_SHAPES: dict[Format, Callable[[Sequence[AgentTool]], list[Any]]] = {
    Format.OPENAI_CHAT: _openai_chat,
    Format.OPENAI_RESPONSES: _openai_responses,
    Format.ANTHROPIC_MESSAGES: _anthropic,
    Format.GOOGLE_GENAI: _google,
    Format.CANONICAL: _anthropic,
}


def tools_json(fmt: Format, tools: Sequence[AgentTool]) -> bytes:
    """The ``tools`` array of a request; in our own format name, description and ``input_schema``."""
    return msgspec.json.encode(_SHAPES[fmt](tools))
