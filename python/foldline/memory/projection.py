"""Turns folded rows into memory entries (M2). Pure: the fold's transaction publishes what this returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from foldline.domain.enums import EntryKind, EntryRole
from foldline.domain.memory import MemoryEntry
from foldline.domain.rows import AssistantRow, Row, ToolCallBlock, ToolResultRow, calls_of, identity_of
from foldline.memory.chunks import Count, chunk
from foldline.memory.terms import joined_terms, speaker_terms, terms, without_label
from foldline.memory.text import SEPARATOR, indexable, segments
from foldline.memory.times import normal_time, spoken_date

NEIGHBORS = 2
"""Entries before an entry whose terms are its context."""
NEIGHBOR_TERMS = 64
"""Of each, so that a long neighbour does not drown the entry; the end of a text stands nearest to what follows."""
CALL_TERMS = 32

_SPOKEN = (EntryKind.TEXT, EntryKind.TRANSCRIPT)
_SEPARATOR_BYTES = len(SEPARATOR.encode())


def project(
    rows: Sequence[Row], context: Sequence[Row], chunk_tokens: int, index_tool_results: bool, count: Count
) -> tuple[MemoryEntry, ...]:
    """Entries of ``rows``, in the order of the list they stand in.

    Args:
        context: that list, with or without ``rows``, which then follow it. Rows before one of ``rows`` lend it their
            terms, and calls say what a result answers.
    """
    wanted, listed = {row.offset for row in rows}, {row.offset for row in context}
    order = [*context, *(row for row in rows if row.offset not in listed)]
    calls = {(identity_of(row), call.call_id): call for row in order for call in calls_of(row.body)}
    before: deque[str] = deque(maxlen=NEIGHBORS)
    entries: list[MemoryEntry] = []
    for row in order:
        if not indexable(row.body, index_tool_results):
            continue
        if row.offset in wanted:
            entries += _entries(row, calls, before, chunk_tokens, count)
        else:
            before.extend(_lent(segment.text) for segment in segments(row.body)[-NEIGHBORS:])
    return tuple(entries)


def _lent(text: str) -> str:
    """The terms a text lends to the entries after it: what was said, not by whom."""
    return joined_terms(without_label(text)[-8 * NEIGHBOR_TERMS :], NEIGHBOR_TERMS)


def _entries(
    row: Row,
    calls: dict[tuple[int, str], ToolCallBlock],
    before: deque[str],
    chunk_tokens: int,
    count: Count,
) -> list[MemoryEntry]:
    body, create_time = row.body, row.body.create_time
    day = terms(spoken_date(create_time))
    call_terms: list[str] = []
    role = EntryRole.USER
    if isinstance(body, AssistantRow):
        role = EntryRole.ASSISTANT
    elif isinstance(body, ToolResultRow):
        role = EntryRole.TOOL
        call = calls.get((body.call_offset or 0, body.call_id))
        if call:
            call_terms = terms(f"{call.name} {call.arguments_json[: 8 * CALL_TERMS]}")[:CALL_TERMS]
    entries: list[MemoryEntry] = []
    position = 0
    for segment in segments(body):
        about = [*day, *call_terms, *(speaker_terms(segment.text) if segment.kind in _SPOKEN else ())]
        start_char = 0
        for start, end in chunk(segment.text, chunk_tokens, count):
            position += len(segment.text[start_char:start].encode())
            text = segment.text[start:end]
            size = len(text.encode())
            entries.append(
                MemoryEntry(
                    offset=row.offset,
                    chunk=len(entries),
                    kind=segment.kind,
                    role=EntryRole.TOOL if segment.kind == EntryKind.TOOL_RESULT else role,
                    text=text,
                    terms=joined_terms(text),
                    context=" ".join(filter(None, (*about, *before))),
                    byte_start=position,
                    byte_end=position + size,
                    call_id=segment.call_id,
                    create_time=normal_time(create_time),
                )
            )
            before.append(_lent(text))
            position, start_char = position + size, end
        position += len(segment.text[start_char:].encode()) + _SEPARATOR_BYTES
    return entries
