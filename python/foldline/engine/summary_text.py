"""What the text of a summary may not be (V6, S5): blank, tool protocol, reasoning, without its headings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from foldline.domain.enums import SummarySource
from foldline.domain.markdown import title_of, unfenced, without_fenced

HEADING_WORDS = ("goals", "decisions", "actions", "errors", "open questions", "technical details")
"""What the six headings of S3 must name, in this order."""

_REASONING = re.compile(r"</?\s*(?:think|thinking|reasoning|scratchpad|analysis)\s*>", re.IGNORECASE)
_PROTOCOL = re.compile(
    r"</?\s*(?:\w+:)?(?:tool_?calls?|tool_?use|tool_?response|tool_?results?|function_?calls?|invoke)\b[^>\n]{0,512}>"
    r"|<[|｜][a-z_▁ ]{2,40}[|｜]>|\[/?(?:TOOL_CALLS|TOOL_RESULTS)\]|<function=",
    re.IGNORECASE,
)
_CODE = re.compile(r"``[^\n]+?``|`[^`\n]+`")
_CALL_KEYS = frozenset({"tool_calls", "tool_call", "function_call", "functionCall", "tool_use", "tool_uses"})
_CALL_TYPES = frozenset({"tool_use", "tool_call", "function_call", "function", "tool_result"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "input", "args", "tool_input", "action_input"})
_NAME_KEYS = frozenset({"name", "tool", "tool_name", "function", "action", "recipient_name"})


def text_faults(text: str, source: SummarySource) -> Iterator[str]:
    """What is wrong with the text; quoted code may show protocol, the summary itself may not speak it."""
    if not text.strip():
        yield "the summary is blank"
        return
    spoken = _CODE.sub(" ", without_fenced(text))
    if _REASONING.search(spoken):
        yield "the summary holds reasoning"
    if _PROTOCOL.search(spoken):
        yield "the summary holds tool protocol"
    if _is_call(text):
        yield "the summary is a tool call"
    if source is SummarySource.PROVIDER:
        missing = missing_headings(text)
        if missing:
            yield f"the summary lacks the headings: {', '.join(missing)}"


def missing_headings(text: str) -> tuple[str, ...]:
    """Which of the six headings (S3) do not stand in the text in their order."""
    titles = [title for line in text.splitlines() if (title := title_of(line))]
    missing: list[str] = []
    at = 0
    for word in HEADING_WORDS:
        found = next((i for i in range(at, len(titles)) if word in titles[i]), None)
        if found is None:
            missing.append(word)
        else:
            at = found + 1
    return tuple(missing)


def _is_call(text: str) -> bool:
    """Whether the whole text is the JSON of a tool call, bare or in one fence."""
    fenced = unfenced(text)
    inner = text.strip() if fenced is None else fenced
    if not inner.startswith(("{", "[")):
        return False
    try:
        value: Any = json.loads(inner)
    except (ValueError, RecursionError):
        return False
    values = value if isinstance(value, list) else [value]
    return any(isinstance(v, dict) and _looks_like_call(v) for v in values)


def _looks_like_call(value: dict[str, Any]) -> bool:
    keys = value.keys()
    if keys & _CALL_KEYS or value.get("type") in _CALL_TYPES:
        return True
    return bool(keys & _NAME_KEYS) and bool(keys & _ARGUMENT_KEYS)
