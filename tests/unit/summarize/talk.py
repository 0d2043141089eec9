"""Rows in few words, and summaries of them, for the tests of summarizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foldline._core import count_tokens
from foldline.domain.enums import SummarySource, TranscriptSource
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ContentBlock,
    Row,
    RowBody,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
)
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.summarize.packing import HEADINGS


def count(text: str) -> int:
    return count_tokens(text, "o200k_base")


def user(text: str) -> UserRow:
    return UserRow((TextBlock(text),))


def says(text: str, *blocks: ContentBlock) -> AssistantRow:
    return AssistantRow((TextBlock(text), *blocks) if text else blocks)


def call(call_id: str, name: str, **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, name, json.dumps(arguments))


def result(call_id: str, text: str, *, failed: bool = False) -> ToolResultRow:
    return ToolResultRow(call_id, (TextBlock(text),), is_error=failed)


def spoken(text: str) -> AssistantRow:
    return AssistantRow((TranscriptBlock(text, TranscriptSource.SPOKEN_UNMEASURED),))


def rows(*bodies: RowBody, first: int = 1) -> tuple[Row, ...]:
    return tuple(Row(offset, body) for offset, body in enumerate(bodies, first))


def filler(turns: int, subject: str = "parser") -> list[RowBody]:
    """A source long enough that a summary of it is shorter; says nothing that a test asks for."""
    bodies: list[RowBody] = []
    for n in range(turns):
        bodies.append(user(f"Please look at part {n} of the {subject} and tell what you see there."))
        bodies.append(says("", call(f"f{n}", "read_file", path=f"src/{subject}/part_{n}.py")))
        bodies.append(result(f"f{n}", f"class Part{n}:\n    value = {n * 31}\n" * 12))
        bodies.append(says(f"Part {n} of the {subject} reads its input in one pass and returns a list of entries."))
    return bodies


def summarize(
    source: Sequence[Row],
    *,
    earlier: Sequence[CompactionSummaryRow] = (),
    budget: int = 1024,
    appendix: int = 0,
    floor: float = 0.0,
    redact: Sequence[str] = (),
    instructions: str = "",
) -> SummaryResult:
    request = SummaryRequest(tuple(source), tuple(earlier), budget, appendix, floor, tuple(redact), instructions)
    return ExtractiveSummarizer(count).summarize(request)


def as_row(summary: SummaryResult, fold: int = 1) -> CompactionSummaryRow:
    return CompactionSummaryRow(summary.text, f"fold-{fold}", SummarySource.EXTRACTIVE, durable=summary.durable)


def headings(text: str) -> list[str]:
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def section(text: str, title: str) -> str:
    """The body of one section; AssertionError when the six do not stand in order."""
    assert headings(text) == list(HEADINGS)
    after = text.split(f"## {title}\n", 1)[1]
    return after.split("\n## ", 1)[0].strip()
