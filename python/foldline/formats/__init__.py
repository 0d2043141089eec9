"""Provider message formats, both ways (W4).

Parsing and rendering in the same format give the same JSON values; to another format the result is valid for its
API, and what it cannot carry is a warning. One package a format; all speak ``domain.rows`` and
``domain.arrangement``.
"""

from __future__ import annotations

from typing import Protocol

from foldline.domain.arrangement import Arrangement
from foldline.domain.enums import Format
from foldline.formats import anthropic_messages, canonical, google_genai, openai_chat, openai_responses
from foldline.formats.results import MessageUsage, Parsed, ParsedResponse, Rendered
from foldline.formats.tools import tools_json


class _Format(Protocol):
    def parse(self, data: bytes) -> Parsed: ...
    def parse_response(self, body: bytes) -> ParsedResponse: ...
    def render(self, arrangement: Arrangement) -> Rendered: ...


_FORMATS: dict[Format, _Format] = {
    Format.OPENAI_CHAT: openai_chat,
    Format.OPENAI_RESPONSES: openai_responses,
    Format.ANTHROPIC_MESSAGES: anthropic_messages,
    Format.GOOGLE_GENAI: google_genai,
    Format.CANONICAL: canonical,
}


def parse(fmt: Format, data: bytes) -> Parsed:
    """Rows of an array of provider messages, or of one.

    Raises:
        FoldlineError: FORMAT_INVALID with the byte position or the path.
    """
    return _FORMATS[fmt].parse(data)


def parse_response(fmt: Format, body: bytes) -> ParsedResponse:
    """The answer in a provider's whole response body, with its usage.

    Raises:
        FoldlineError: FORMAT_INVALID with the byte position or the path.
    """
    return _FORMATS[fmt].parse_response(body)


def render(fmt: Format, arrangement: Arrangement) -> Rendered:
    """The arrangement as a request's messages."""
    return _FORMATS[fmt].render(arrangement)


__all__ = ["MessageUsage", "Parsed", "ParsedResponse", "Rendered", "parse", "parse_response", "render", "tools_json"]
