"""Plain text of rows for a summary: reasoning stripped, media named, protocol marks defused (S4, V6)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from foldline.domain.enums import TranscriptSource
from foldline.domain.rows import (
    MEDIA,
    CompactionSummaryRow,
    ContentBlock,
    DocumentBlock,
    Row,
    ServerToolBlock,
    StructuredBlock,
    TextBlock,
    TranscriptBlock,
)

ELLIPSIS = " […] "

_INLINE_REASONING = re.compile(
    r"<(think|thinking|reasoning|scratchpad)\b[^<>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL
)
_PROTOCOL_TAG = re.compile(
    r"<(?=/?\s*(?:\w+:)?(?:tool_?calls?|tool_?use|tool_?results?|tool_?response|function_?calls?|function_?results?|function|"
    r"invoke|parameter|think|thinking|reasoning|scratchpad|analysis|system-reminder)\b|[|\uff5c])",
    re.IGNORECASE,
)
_PROTOCOL_WORD = re.compile(r"\[(?=/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|INST)\])")
_PROTOCOL_KEY = re.compile(
    r'"(?=(?:tool_calls?|tool_use|tool_use_id|tool_call_id|function_call|functionCall|tool_result)"\s*:)'
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]|\x1b\[[0-9;?]*[A-Za-z]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HEADING = re.compile(r"^([ \t]*)(#{1,6}\s)", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"')\]”’*_`]{0,3}\s+(?=[\"'(\[“‘*_`]{0,3}\w)|(?<=[。！？])|\n\s*\n|\n(?=\s*(?:[-*•+]|\d{1,3}[.)])\s)"
    r"|\n(?=#{1,6}\s|\||>)|(?<=[:|>])\n"
)
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|cf|approx|fig|dr|mr|mrs|ms|st|bzw|z\.B|u\.a)\.$", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*•+>]|\d{1,3}[.)]|#{1,6})\s+")


def placeholder(block: ContentBlock) -> str:
    """What stands for a media block in a summary's source (S4)."""
    kind = type(block).__name__.removesuffix("Block").lower()
    mime = getattr(block, "mime_type", "") or "unknown type"
    title = f" {block.title}" if isinstance(block, DocumentBlock) and block.title else ""
    return f"[{kind} {mime}{title}]"


def plain(content: Iterable[ContentBlock]) -> str:
    """Readable text of blocks. Reasoning and calls are left out; unmeasured speech is handled apart (S8)."""
    parts: list[str] = []
    for block in content:
        if isinstance(block, TextBlock):
            parts.append(block.text)
        elif isinstance(block, TranscriptBlock):
            if block.source != TranscriptSource.SPOKEN_UNMEASURED:
                parts.append(block.text)
        elif isinstance(block, StructuredBlock):
            parts.append(block.json)
        elif isinstance(block, MEDIA):
            parts.append(placeholder(block))
        elif isinstance(block, ServerToolBlock) and not block.result and block.name:
            parts.append(f"[{block.name} run by the provider]")
    return "\n".join(p for p in parts if p)


def without_reasoning(text: str) -> str:
    """Drops reasoning that a model wrote into its text channel."""
    return _INLINE_REASONING.sub("", text) if "<" in text else text


def defuse(text: str) -> str:
    """Makes text safe to quote: no control characters, no tool protocol (V6)."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = _CONTROL.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
    if "<" in text:
        text = _PROTOCOL_TAG.sub("‹", text)
    if "[" in text:
        text = _PROTOCOL_WORD.sub("‹", text)
    if '"' in text:
        text = _PROTOCOL_KEY.sub("'", text)
    return text


def quote(text: str) -> str:
    """Text between quotation marks, with its lines; a line that would read as a heading is escaped (V6)."""
    if "\n" not in text:
        return f'"{text}"'
    return '"""\n' + _HEADING.sub(r"\1\\\2", text) + '\n"""'


def has_protocol(text: str) -> bool:
    """Whether text holds what V6 takes for tool protocol or reasoning."""
    return bool(_PROTOCOL_TAG.search(text) or _PROTOCOL_WORD.search(text) or _PROTOCOL_KEY.search(text))


def source_text(row: Row) -> str:
    """All text of a row, reasoning and calls included: what its summary may not be longer than."""
    body = row.body
    if isinstance(body, CompactionSummaryRow):
        return body.text
    parts: list[str] = []
    for block in getattr(body, "content", ()):
        for name in ("text", "json", "name", "arguments_json", "state"):
            parts.append(getattr(block, name, ""))
    return "\n".join(p for p in parts if p)


def one_line(text: str) -> str:
    return " ".join(text.split())


def clip(text: str, limit: int) -> str:
    """The text in at most about ``limit`` characters, cut at a word, with a mark where it was cut."""
    if len(text) <= limit:
        return text
    head = text[:limit]
    space = head.rfind(" ")
    return (head[:space] if space > limit * 0.6 else head).rstrip() + " …"


def clip_middle(text: str, limit: int) -> str:
    """Head and tail of the text, cut at line or word borders; the head gets two thirds."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit * 2 // 3], text[len(text) - limit // 3 :]
    cut = max(head.rfind("\n"), head.rfind(". ") + 1, head.rfind(" "))
    head = head[:cut] if cut > len(head) // 2 else head
    starts = [i for i in (tail.find("\n"), tail.find(" ")) if 0 <= i < len(tail) // 2]
    tail = tail[min(starts) :] if starts else tail
    return head.rstrip() + ELLIPSIS + tail.lstrip()


def sentences(text: str) -> list[str]:
    """Sentences of prose in any language, one line each; code blocks and table rules are left out."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(_FENCE.sub("\n\n", text)):
        if not piece:
            continue
        sentence = one_line(_BULLET.sub("", piece))
        if found and _ABBREVIATION.search(found[-1]):
            found[-1] += " " + sentence
        elif sentence:
            found.append(sentence)
    return found
