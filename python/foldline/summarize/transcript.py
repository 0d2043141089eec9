"""Rows as the parts of a transcript that a model reads, each with the rank at which it gives way (S3, S4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from foldline.domain.enums import TranscriptSource
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ContentBlock,
    InjectedContextRow,
    NoticeRow,
    Row,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    identity_of,
)
from foldline.summarize.reading import arguments_text
from foldline.summarize.text import clip_middle, one_line, plain, without_reasoning

_NAME_CHARS = 80


class Rank(IntEnum):
    """What gives way when a transcript does not fit, the lowest first (S4); speech that nothing measured never does."""

    TOOL = 0
    CONTEXT = 1
    NOTICE = 2
    REQUEST = 3
    SPEECH = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that was said, done or come back.

    Attributes:
        offset: of its row; 0 for an earlier summary's.
        title: who spoke, or what was called.
        limit: characters of the text that are shown; None for all.
    """

    offset: int
    rank: Rank
    title: str
    text: str
    limit: int | None = None

    def render(self) -> str:
        text = self.text if self.limit is None else clip_middle(self.text, self.limit)
        return f"[#{self.offset}] {self.title}:\n{text}\n"


def parts_of(rows: Sequence[Row], clean: Callable[[str], str]) -> list[Part]:
    """The parts of rows in list order, without reasoning; ``clean`` masks secrets and defuses protocol."""
    names: dict[tuple[int | None, str], str] = {}
    newest: dict[str, str] = {}
    parts: list[Part] = []
    for row in rows:
        body, offset = row.body, identity_of(row)
        if isinstance(body, UserRow):
            parts.append(Part(offset, Rank.REQUEST, "user", clean(plain(body.content)).strip()))
        elif isinstance(body, NoticeRow):
            kind = one_line(clean(body.kind))[:_NAME_CHARS]
            parts.append(Part(offset, Rank.NOTICE, f"notice {kind}".strip(), clean(plain(body.content)).strip()))
        elif isinstance(body, InjectedContextRow):
            parts.append(Part(offset, Rank.CONTEXT, "context", clean(plain(body.content)).strip()))
        elif isinstance(body, CompactionSummaryRow):
            parts.append(Part(offset, Rank.CONTEXT, "earlier summary", clean(body.text).strip()))
        elif isinstance(body, AssistantRow):
            for part, block in _assistant(offset, body.content, clean):
                parts.append(part)
                if isinstance(block, ToolCallBlock):
                    names[(offset, block.call_id)] = newest[block.call_id] = part.title.removeprefix("assistant calls ")
        elif isinstance(body, ToolResultRow):
            name = names.get((body.call_offset, body.call_id)) or newest.get(body.call_id) or "an earlier call"
            state = " (failed)" if body.is_error else " (interim)" if body.interim else ""
            text = clean(plain(body.content)).strip()
            parts.append(Part(offset, Rank.TOOL, f"result of {name}{state}", text or "(empty)"))
    return [p for p in parts if p.text]


def _assistant(
    offset: int, content: Sequence[ContentBlock], clean: Callable[[str], str]
) -> Iterator[tuple[Part, ContentBlock | None]]:
    said = clean(without_reasoning(plain(content))).strip()
    if said:
        yield Part(offset, Rank.CONTEXT, "assistant", said), None
    for block in content:
        if isinstance(block, ToolCallBlock):
            name = one_line(clean(block.name))[:_NAME_CHARS] or "a tool"
            given = arguments_text(block.arguments_json, clean).strip() or "{}"
            yield Part(offset, Rank.TOOL, f"assistant calls {name}", given), block
        elif isinstance(block, TranscriptBlock) and block.source == TranscriptSource.SPOKEN_UNMEASURED:
            yield Part(offset, Rank.SPEECH, "assistant, spoken", clean(block.text).strip()), block
