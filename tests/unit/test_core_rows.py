"""Sizes of rows (4.5), from the bodies that the domain encodes."""

import pytest
from foldline import _core
from foldline.domain.enums import SummarySource, TranscriptSource
from foldline.domain.rows import (
    AssistantRow,
    AudioBlock,
    CompactionSummaryRow,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InjectedContextRow,
    ModelRef,
    NoticeRow,
    ProviderCompactionRow,
    ReasoningBlock,
    RowBody,
    ServerToolBlock,
    StructuredBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    VideoBlock,
    encode_body,
)

TEXT = 'He said "hello",\nthen 你好 and <|endoftext|>.'


def size(body: RowBody, encoding: str | None = "o200k_base") -> tuple[int, int]:
    (measured,) = _core.measure_rows([encode_body(body)], encoding)
    return measured


def block_tokens(block: ContentBlock, encoding: str | None = "o200k_base") -> int:
    return size(UserRow(content=(block,)), encoding)[0] - _core.ROW_TOKENS


def text_tokens(encoding: str | None) -> int:
    return _core.weighted_tokens(TEXT) if encoding is None else _core.count_tokens(TEXT, encoding)


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", None])
@pytest.mark.parametrize(
    ("block", "times", "more"),
    [
        (TextBlock(TEXT), 1, 0),
        (StructuredBlock(TEXT), 1, 0),
        (TranscriptBlock(TEXT, TranscriptSource.SPOKEN_UNMEASURED), 1, 0),
        (ReasoningBlock(text=TEXT, state="s" * 400, signature="g" * 41), 1, 100 + 11),
        (ToolCallBlock(call_id="call_1", name=TEXT, arguments_json=TEXT), 2, 0),
        (ServerToolBlock(call_id="call_1", name=TEXT, json=TEXT), 2, 0),
        (DocumentBlock(data="A" * 4_000, title=TEXT), 1, 1_000),
    ],
)
def test_texts_are_counted_and_opaque_state_is_a_quarter(
    block: ContentBlock, times: int, more: int, encoding: str | None
) -> None:
    assert block_tokens(block, encoding) == times * text_tokens(encoding) + more


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        (ImageBlock(mime_type="image/png", data="A" * 1_000_000), 1_600),
        (ImageBlock(url="https://example.com/i.png", tokens_hint=2_500), 2_500),
        (ImageBlock(url="https://example.com/i.png", tokens_hint=85), 1_600),
        (VideoBlock(data="A" * 400_000), 100_000),
        (VideoBlock(data="A" * 400_000, duration_seconds=400), 120_000),
        (AudioBlock(data="A" * 400_001), 100_001),
        (DocumentBlock(data="A" * 400_000), 100_000),
        (AudioBlock(url="https://example.com/a.mp3"), 1),
        (TextBlock(""), 0),
    ],
)
def test_media_count_by_their_rule_not_as_text(block: ContentBlock, tokens: int) -> None:
    assert block_tokens(block) == tokens
    assert block_tokens(block, None) == tokens


def test_base64_in_a_text_block_is_the_text_it_is() -> None:
    data = "iVBORw0KGgoAAAANSUhEUgAAAAUA" * 100
    assert block_tokens(TextBlock(data)) == _core.count_tokens(data, "o200k_base")


ROWS: list[RowBody] = [
    SystemRow(content=(TextBlock(TEXT),), key="k", version=2),
    NoticeRow(content=(TextBlock(TEXT),), kind="peer"),
    UserRow(content=(TextBlock(TEXT),)),
    InjectedContextRow(content=(TextBlock(TEXT),)),
    AssistantRow(content=(TextBlock(TEXT),), model=ModelRef("openai", "m"), derived_from=3),
    ToolResultRow(call_id="call_1", content=(TextBlock(TEXT),), call_offset=7, is_error=True),
    CompactionSummaryRow(text=TEXT, fold_id="f", source=SummarySource.EXTRACTIVE, durable=("a", "b")),
]


@pytest.mark.parametrize("body", ROWS, ids=lambda body: type(body).__name__)
def test_a_row_is_its_content_and_four_tokens(body: RowBody) -> None:
    assert size(body)[0] == _core.ROW_TOKENS + text_tokens("o200k_base")


def test_the_parts_of_summaries_results_and_native_items_that_are_sent_count() -> None:
    summary = CompactionSummaryRow(text="", fold_id="f", source=SummarySource.PROVIDER, ledger=TEXT)
    assert size(summary)[0] == _core.ROW_TOKENS + text_tokens("o200k_base")
    marked = ToolResultRow(call_id="c", usage_mark=TEXT)
    assert size(marked)[0] == _core.ROW_TOKENS + text_tokens("o200k_base")
    native = ProviderCompactionRow(item_json="x" * 100, model=ModelRef("openai", "m"))
    assert size(native)[0] == _core.ROW_TOKENS + 25


def test_bytes_are_the_escaped_strings_and_a_fixed_overhead() -> None:
    empty = _core.ROW_OVERHEAD + _core.BLOCK_OVERHEAD
    assert size(UserRow(content=(TextBlock(""),)))[1] == empty
    assert size(UserRow(content=(TextBlock('"\\\n\t\x01é你'),)))[1] == empty + 2 + 2 + 2 + 2 + 6 + 2 + 3
    image = ImageBlock(mime_type="image/png", data="A" * 1_000)
    assert size(UserRow(content=(image,)))[1] == empty + 9 + 1_000


def test_rows_of_one_call_are_measured_in_order() -> None:
    bodies = [encode_body(body) for body in ROWS]
    assert _core.measure_rows(bodies, None) == [_core.measure_rows([body], None)[0] for body in bodies]
    assert _core.measure_rows([], "o200k_base") == []


@pytest.mark.parametrize(
    "bad",
    [b"", b"{", b"null", b"[]", b"{}", b'{"type":"robot"}', b'{"type":"user","content":[{"type":"robot"}]}', b"\xff"],
)
def test_a_malformed_row_is_an_error_that_names_it(bad: bytes) -> None:
    with pytest.raises(_core.CoreError, match="row 1 ") as raised:
        _core.measure_rows([encode_body(ROWS[0]), bad], None)
    assert raised.value.reason == "ROW_INVALID"
