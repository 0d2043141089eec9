"""The searchable text of a row, in one place: entries, byte ranges and ``ReadRow`` all cut this text (M2, M6)."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.enums import EntryKind
from foldline.domain.native import placeholder
from foldline.domain.rows import (
    MEDIA,
    AssistantRow,
    CompactionSummaryRow,
    ContentBlock,
    DocumentBlock,
    ProviderCompactionRow,
    RowBody,
    ServerToolBlock,
    StructuredBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
)

SEPARATOR = "\n\n"
"""Stands between the segments of a row's text."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Text of one content block; ``call_id`` is set for calls and results."""

    kind: EntryKind
    text: str
    call_id: str = ""


def _segment(block: ContentBlock) -> Segment | None:
    """A block's text; None for reasoning and for blocks without any."""
    match block:
        case TextBlock():
            return Segment(EntryKind.TEXT, block.text)
        case TranscriptBlock():
            return Segment(EntryKind.TRANSCRIPT, block.text)
        case StructuredBlock():
            return Segment(EntryKind.TEXT, block.json)
        case ToolCallBlock():
            return Segment(EntryKind.TOOL_CALL, f"{block.name} {block.arguments_json}", block.call_id)
        case ServerToolBlock():
            kind = EntryKind.TOOL_RESULT if block.result else EntryKind.TOOL_CALL
            return Segment(kind, f"{block.name} {block.json}", block.call_id)
        case _ if isinstance(block, MEDIA):
            title = block.title if isinstance(block, DocumentBlock) else ""
            kind_name = type(block).__name__.removesuffix("Block").lower()
            return Segment(EntryKind.TEXT, f"[{' '.join(filter(None, (kind_name, title, block.mime_type)))}]")
    return None


def segments(body: RowBody) -> tuple[Segment, ...]:
    """The texts a row is made of, in order; blank ones are left out."""
    if isinstance(body, CompactionSummaryRow):
        found: list[Segment | None] = [Segment(EntryKind.TEXT, body.text)]
    elif isinstance(body, ProviderCompactionRow):
        found = [Segment(EntryKind.TEXT, placeholder(body))]
    else:
        found = [_segment(block) for block in body.content]
    if isinstance(body, ToolResultRow):
        found = [Segment(EntryKind.TOOL_RESULT, s.text, body.call_id) if s else None for s in found]
    return tuple(s for s in found if s and s.text.strip())


def row_text(body: RowBody) -> str:
    """The text that byte ranges of entries and of ``ReadRow`` refer to, as UTF-8."""
    return SEPARATOR.join(segment.text for segment in segments(body))


def indexable(body: RowBody, index_tool_results: bool) -> bool:
    """Whether memory holds this row once it folds (§2, K2)."""
    if isinstance(body, ToolResultRow):
        return index_tool_results
    return isinstance(body, UserRow) or (isinstance(body, AssistantRow) and body.derived_from is None)
