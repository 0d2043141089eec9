"""Projection of folded rows into entries (M2)."""

from __future__ import annotations

import pytest
from foldline.domain.enums import EntryKind, EntryRole, TranscriptSource
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    DocumentBlock,
    ImageBlock,
    InjectedContextRow,
    NoticeRow,
    ReasoningBlock,
    Row,
    RowBody,
    StructuredBlock,
    SummarySource,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
)
from foldline.memory.chunks import chunk
from foldline.memory.projection import project
from foldline.memory.text import row_text
from foldline.memory.times import normal_time

from tests.unit.memory.scopes import calls, result, says, user, words


def entries(*bodies: RowBody, chunk_tokens: int = 64, results: bool = True):
    rows = [Row(i, body) for i, body in enumerate(bodies, 1)]
    return project(rows, (), chunk_tokens, results, words)


def test_every_kind_of_text_is_held_under_its_role() -> None:
    spoken = AssistantRow((
        ReasoningBlock(text="hidden thought"),
        TextBlock("Let me look."),
        TranscriptBlock("as I said aloud", TranscriptSource.SPOKEN),
        ToolCallBlock("c1", "read_file", '{"path":"src/a.py"}'),
    ))  # fmt: skip
    found = entries(user("Where is it?"), spoken, result("c1", "line one", 2))
    assert [(e.offset, e.chunk, e.kind, e.role, e.text, e.call_id) for e in found] == [
        (1, 0, EntryKind.TEXT, EntryRole.USER, "Where is it?", ""),
        (2, 0, EntryKind.TEXT, EntryRole.ASSISTANT, "Let me look.", ""),
        (2, 1, EntryKind.TRANSCRIPT, EntryRole.ASSISTANT, "as I said aloud", ""),
        (2, 2, EntryKind.TOOL_CALL, EntryRole.ASSISTANT, 'read_file {"path":"src/a.py"}', "c1"),
        (3, 0, EntryKind.TOOL_RESULT, EntryRole.TOOL, "line one", "c1"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        SystemRow((TextBlock("rules"),)),
        NoticeRow((TextBlock("a peer wrote"),)),
        InjectedContextRow((TextBlock("memory file"),)),
        CompactionSummaryRow("earlier work", "f1", SummarySource.EXTRACTIVE),
        AssistantRow((TextBlock("half"),), derived_from=7),
        UserRow((TextBlock("  \n "),)),
    ],
)
def test_what_is_not_indexed_gives_no_entry(body: RowBody) -> None:
    assert entries(body) == ()


def test_tool_results_are_left_out_by_policy() -> None:
    assert [e.kind for e in entries(calls("c", "ls", "{}"), result("c", "a b"), results=False)] == [EntryKind.TOOL_CALL]


def test_media_are_named_and_structured_content_is_text() -> None:
    body = UserRow((
        ImageBlock("image/png", data="aGk="),
        DocumentBlock("application/pdf", title="report.pdf"),
        StructuredBlock('{"order":17}'),
    ))  # fmt: skip
    assert row_text(body) == '[image image/png]\n\n[document report.pdf application/pdf]\n\n{"order":17}'


def test_byte_ranges_cut_the_text_of_the_row() -> None:
    body = UserRow((TextBlock("  Grüße, 東京! \n\nSecond paragraph. " * 6), TextBlock("tail — end ")))
    whole = row_text(body).encode()
    found = entries(body, chunk_tokens=5)
    assert len(found) > 10
    assert [whole[e.byte_start : e.byte_end].decode() for e in found] == [e.text for e in found]


def test_context_holds_neighbours_call_and_day_and_is_apart_from_the_text() -> None:
    found = entries(
        user("We talked about zebras", "2023-05-08T13:56:00Z"),
        calls("c1", "grep", '{"pattern":"giraffe"}'),
        result("c1", "no match", 2),
    )
    assert "giraffe" in found[2].context.split()
    assert "zebras" in found[2].context.split()
    assert {"8", "may", "2023"} <= set(found[0].context.split())
    assert found[2].text == "no match"
    assert found[2].terms.split() == ["no", "match"]


def test_a_label_says_who_speaks_and_lends_no_word_to_what_follows() -> None:
    found = entries(user("Ann Lee: I like zebras"), says("Noted."))
    assert {"speaker0ann", "speaker0lee"} <= set(found[0].context.split())
    assert found[0].text == "Ann Lee: I like zebras"
    assert "zebras" in found[1].context.split()
    assert not {"ann", "lee", "speaker0ann"} & set(found[1].context.split())


def test_rows_before_the_fold_are_context_of_its_first_row() -> None:
    (entry,) = project([Row(9, says("Yes."))], [Row(8, user("Do you like walnuts?"))], 64, True, words)
    assert "walnuts" in entry.context.split()


def test_only_what_stands_before_a_row_is_its_context() -> None:
    """The list holds the rows themselves and what stays after them, as a fold hands it over."""
    order = [Row(1, user("apples")), Row(2, says("pears")), Row(3, user("plums")), Row(4, says("cherries"))]
    first, second = project([order[0], order[2]], order, 64, True, words)
    assert first.context == ""
    assert second.context.split() == ["apples", "pears"]


def test_a_second_projection_is_the_same() -> None:
    body = user("one two three four five. " * 30)
    assert entries(body, chunk_tokens=10) == entries(body, chunk_tokens=10)


def test_chunks_break_where_the_text_does() -> None:
    text = "First paragraph is here.\n\nSecond one. It has two sentences.\n\nThird."
    assert [text[a:b] for a, b in chunk(text, 9, words)] == [
        "First paragraph is here.", "Second one. It has two sentences.", "Third.",
    ]  # fmt: skip


def test_chunks_of_unbroken_text_fit_and_are_alike() -> None:
    text = "x" * 10_000
    spans = chunk(text, 64, len)
    sizes = [end - start for start, end in spans]
    assert max(sizes) <= 64
    assert min(sizes) >= 60
    assert sum(sizes) == 10_000


def test_no_chunk_is_a_mere_rest() -> None:
    text = " ".join(["word"] * 65)
    assert [words(text[a:b]) for a, b in chunk(text, 64, words)] == [33, 32]


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("2023-05-08T13:56:00Z", "2023-05-08T13:56:00.000000Z"),
        ("2023-05-08T13:56:00.5Z", "2023-05-08T13:56:00.500000Z"),
        ("2023-05-08T15:56:00+02:00", "2023-05-08T13:56:00.000000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ("0001-01-01T00:00:00+10:00", ""),
        ("yesterday", ""),
        ("", ""),
    ],
)
def test_times_are_of_one_width(given: str, normal: str) -> None:
    assert normal_time(given) == normal


def test_a_result_row_is_a_tools() -> None:
    (entry,) = entries(ToolResultRow("c", (ImageBlock("image/png"),)))
    assert (entry.kind, entry.role, entry.call_id) == (EntryKind.TOOL_RESULT, EntryRole.TOOL, "c")
