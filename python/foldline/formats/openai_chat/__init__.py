"""OpenAI chat completions: the messages array, and compatible servers' additions to it."""

from foldline.formats.openai_chat.reading import parse, parse_response, read_message
from foldline.formats.openai_chat.writing import render

__all__ = ["parse", "parse_response", "read_message", "render"]
