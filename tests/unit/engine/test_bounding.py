"""§9: shares, steps, what does not fit, and the shortened text."""

import pytest
from foldline._core import OMISSION, count_tokens, measure_rows, weighted_tokens
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Bounding
from foldline.domain.rows import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    StructuredBlock,
    TextBlock,
    ToolResultRow,
    TranscriptBlock,
    VideoBlock,
    encode_body,
)
from foldline.domain.session import Share
from foldline.engine.bounding import (
    BoundableResult,
    LongResult,
    Shortened,
    plan,
    shorten,
    shorten_texts,
    text_of,
    whole_size,
)

BOUNDING = Bounding()
OWN = {"bounding": BOUNDING, "encoding": "o200k_base"}


def results(*sizes: tuple[int, int]) -> list[BoundableResult]:
    return [BoundableResult(offset, tokens, size) for offset, (tokens, size) in enumerate(sizes, 1)]


def test_9_nothing_over_a_limit_is_sent_whole() -> None:
    assert plan(results((4_000, 20_000), (4_000, 19_000)), token_budget=8_000, byte_budget=39_000, **OWN) is None
    assert plan(results((10**9, 10**9)), token_budget=None, byte_budget=None, **OWN) is None
    assert plan([], token_budget=0, byte_budget=0, **OWN) is None


def test_b1_results_under_the_share_stay_whole_and_the_rest_get_equal_ones() -> None:
    found = plan(results((500, 2_000), (6_000, 9_000), (7_000, 9_000)), token_budget=6_000, byte_budget=40_000, **OWN)
    assert found is not None
    assert found.share == Share(tokens=2_750)  # (6000 - 500) / 2
    assert (found.offsets, found.fits, found.by_bytes) == ((2, 3), True, False)


def test_b1_one_token_over_the_budget_is_bounded() -> None:
    assert plan(results((6_001, 10)), token_budget=6_000, byte_budget=None, **OWN) is not None
    assert plan(results((6_000, 10)), token_budget=6_000, byte_budget=None, **OWN) is None


def test_b1_bytes_are_an_axis_of_their_own() -> None:
    found = plan(results((10, 30_000), (10, 5_000)), token_budget=9_000, byte_budget=25_000, **OWN)
    assert found is not None
    assert (found.share, found.offsets, found.by_bytes) == (Share(bytes=20_000), (1,), True)


def test_b1_both_axes_bind() -> None:
    found = plan(results((8_000, 30_000), (100, 30_000)), token_budget=5_000, byte_budget=40_000, **OWN)
    assert found is not None
    assert found.share == Share(bytes=20_000, tokens=4_900)
    assert (found.offsets, found.by_bytes) == ((1, 2), True)


def test_b3_the_limit_named_is_the_one_that_was_exceeded() -> None:
    found = plan(results((8_000, 30_000)), token_budget=5_000, byte_budget=30_000, **OWN)
    assert found is not None
    assert (found.by_bytes, found.share.bytes) == (False, None)


def test_b1_a_result_of_exactly_its_share_stays_whole() -> None:
    found = plan(results((2_750, 9), (6_000, 9)), token_budget=5_500, byte_budget=None, **OWN)
    assert found is not None
    assert (found.share.tokens, found.offsets) == (2_750, (2,))


def test_b1_the_token_axis_is_in_raw_tokens() -> None:
    found = plan(results((4_000, 10), (4_000, 10)), token_budget=6_000, byte_budget=None, factor=1.5, **OWN)
    assert found is not None
    assert found.share.tokens == 2_000  # 6000 / 1.5 / 2


def test_b1_without_an_embedded_vocabulary_a_token_counts_as_two_bytes() -> None:
    found = plan(results((8_000, 10)), token_budget=6_000, byte_budget=None, bounding=BOUNDING, factor=1.5)
    assert found is not None
    assert (found.share.tokens, found.share.head_bytes) == (4_000, 12_000)


def test_b8_less_than_the_minimum_a_result_does_not_fit() -> None:
    arguments = {"token_budget": 9_000, "bounding": Bounding(min_bytes=1_000), "encoding": "o200k_base"}
    enough = plan(results((1, 9_000), (1, 9_000)), byte_budget=2_000, **arguments)
    assert enough is not None
    assert (enough.fits, enough.share.bytes) == (True, 1_000)
    short = plan(results((1, 9_000), (1, 9_000)), byte_budget=1_999, **arguments)
    assert short is not None
    assert (short.fits, short.share.bytes, short.offsets) == (False, 1_000, (1, 2))


def test_b8_a_result_under_the_minimum_is_no_reason_to_refuse() -> None:
    """Only what must be cut needs the minimum; a small result beside it stays whole."""
    found = plan(
        results((1, 300), (1, 9_000)), token_budget=None, byte_budget=1_300, bounding=Bounding(min_bytes=1_000)
    )
    assert found is not None
    assert (found.fits, found.share.bytes, found.offsets) == (True, 1_000, (2,))


def test_b8_the_minimum_holds_the_marker_whatever_the_policy_says() -> None:
    found = plan(results((1, 9_000)), token_budget=None, byte_budget=100, bounding=Bounding(min_bytes=0))
    assert found is not None
    assert (found.fits, found.share.bytes) == (False, 256)


def test_b8_on_the_token_axis_the_minimum_counts_two_bytes_a_token() -> None:
    enough = plan(results((9_000, 1)), token_budget=256, byte_budget=None, **OWN)
    assert enough is not None
    assert (enough.fits, enough.share.tokens) == (True, 256)
    short = plan(results((9_000, 1)), token_budget=255, byte_budget=None, **OWN)
    assert short is not None
    assert (short.fits, short.share.tokens) == (False, 256)


@pytest.mark.parametrize("left", [-1, -10_000])
def test_b8_a_rest_that_is_too_large_alone_leaves_nothing(left: int) -> None:
    for budgets in ({"token_budget": left, "byte_budget": None}, {"token_budget": None, "byte_budget": left}):
        found = plan(results((8_000, 9_000), (5, 100)), **budgets, **OWN)
        assert found is not None
        assert (found.fits, found.offsets) == (False, (1,))
        alone = plan([], **budgets, **OWN)
        assert alone is not None
        assert (alone.fits, alone.offsets) == (False, ())


def test_b9_a_share_stays_as_long_as_it_fits() -> None:
    before = Share(tokens=2_000)
    found = plan(results((6_000, 9), (6_000, 9)), token_budget=8_000, byte_budget=None, previous=before, **OWN)
    assert found is not None
    assert (found.share, found.offsets) == (before, (1, 2))


def test_b9_a_share_shrinks_in_steps() -> None:
    before = Share(tokens=2_000)
    more = results((6_000, 9), (6_000, 9), (6_000, 9), (6_000, 9))
    found = plan(more, token_budget=7_200, byte_budget=None, previous=before, **OWN)
    assert found is not None
    assert found.share == Share(tokens=1_500)  # 1800 is needed
    exactly = plan(more, token_budget=6_000, byte_budget=None, previous=before, **OWN)
    assert exactly is not None
    assert exactly.share == Share(tokens=1_500)  # and not a step below
    less = plan(more, token_budget=5_200, byte_budget=None, previous=found.share, **OWN)
    assert less is not None
    assert less.share == Share(tokens=1_125)  # 1300 is needed


def test_b9_the_first_share_is_taken_whole() -> None:
    """No step below what is needed: nothing was sent before it."""
    found = plan(results((6_000, 9), (6_000, 9)), token_budget=7_998, byte_budget=None, **OWN)
    assert found is not None
    assert found.share == Share(tokens=3_999)


def test_b9_a_step_ends_at_the_minimum() -> None:
    before = Share(bytes=600)
    found = plan(results((1, 9_000), (1, 9_000)), token_budget=None, byte_budget=1_024, previous=before, **OWN)
    assert found is not None
    assert (found.fits, found.share.bytes) == (True, 512)


def test_b9_an_axis_that_binds_later_leaves_the_other_as_it_is() -> None:
    before = Share(tokens=2_000)
    found = plan(results((6_000, 30_000), (6_000, 9)), token_budget=8_000, byte_budget=20_000, previous=before, **OWN)
    assert found is not None
    assert found.share == Share(bytes=19_991, tokens=2_000)


def test_b9_a_share_stays_though_everything_would_fit_whole_again() -> None:
    before = Share(tokens=2_000)
    found = plan(results((6_000, 9)), token_budget=9_000, byte_budget=None, previous=before, **OWN)
    assert found is not None
    assert found.offsets == (1,)
    assert plan(results((1_000, 9)), token_budget=9_000, byte_budget=None, previous=before, **OWN) is None


def test_b9_a_moving_factor_changes_no_text_that_was_sent() -> None:
    many = results((6_000, 9), (6_000, 9))
    first = plan(many, token_budget=8_000, byte_budget=None, bounding=BOUNDING, factor=1.0)
    assert first is not None
    for factor in (0.7, 0.9, 1.0):
        again = plan(many, token_budget=8_000, byte_budget=None, bounding=BOUNDING, factor=factor, previous=first.share)
        assert again is not None
        assert again.share == first.share


# --- B2

TEXT = "".join(f"line {n}: the quick brown fox jumps over the lazy dog\n" for n in range(2_000))
MARKER = "[result of read_file (call call_7) shortened:"


def short(
    text: str, share: Share, *, cut: BoundingCut = BoundingCut.HEAD, encoding: str = "", call_id: str = "call_7",
    name: str = "read_file", whole_bytes: int | None = None,
) -> Shortened:  # fmt: skip
    whole = len(text.encode()) if whole_bytes is None else whole_bytes
    (found,) = shorten([LongResult(text, whole, call_id, name)], share, cut, encoding)
    return found


def test_b2_the_head_ends_at_a_line_and_the_marker_names_call_sizes_and_the_way_to_the_rest() -> None:
    found = short(TEXT, Share(bytes=4_000))
    kept = found.kept_bytes
    head, marker = found.text.split(MARKER)
    assert TEXT.startswith(head.rstrip("\n"))
    assert TEXT[:kept].endswith("\n")
    assert kept <= 4_000 < kept + 600
    assert f"{kept} of {len(TEXT)} bytes kept" in marker
    assert "read_result" in marker


def test_b2_head_and_tail() -> None:
    found = short(TEXT, Share(bytes=4_000), cut=BoundingCut.HEAD_TAIL)
    head, tail = found.text.split(MARKER)[0].split(OMISSION)
    assert TEXT.startswith(head)
    assert TEXT.rstrip("\n").endswith(tail.rstrip("\n"))
    assert found.kept_bytes == len(head) + len(tail.removesuffix("\n"))


def test_b2_a_text_within_its_share_keeps_everything_where_only_media_go() -> None:
    for cut in BoundingCut:
        found = short("short", Share(bytes=4_000), cut=cut, whole_bytes=2_000_000)
        assert (found.kept_bytes, found.text.startswith("short\n[result of")) == (5, True)
        assert "5 of 2000000 bytes kept" in found.text


def test_b2_where_only_the_marker_fits_it_stands_alone() -> None:
    for share in (Share(bytes=256), Share(tokens=20)):
        found = short(TEXT, share, name="n" * 40, call_id="c" * 90, encoding="o200k_base")
        assert found.kept_bytes == 0
        assert found.text.startswith("[result of ")
        assert f"0 of {len(TEXT)} bytes kept" in found.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code", "if (a[i]->b != NULL) { return f(x, \"y\\n\"); }\n" * 2_000),
        ("chinese", "汉字数据处理系统的设计与实现。" * 3_000),
        ("emoji", "🧑‍💻🎉" * 5_000),
        ("json", '{"id":90125,"ok":true,"tags":["a","b"],"at":"2024-05-06T07:08:09Z"},' * 1_200),
        ("base64", "aGVsbG8gd29ybGQhIQ9xZ7" * 4_000),
        ("control characters", "\x00\x1b[0m" * 8_000),
        ("one long line", "x" * 90_000),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("share", "encoding"),
    [
        (Share(bytes=2_000), ""),
        (Share(tokens=900), "o200k_base"),
        (Share(tokens=900), "cl100k_base"),
        (Share(tokens=900, head_bytes=1_800), ""),
        (Share(bytes=1_500, tokens=900), "o200k_base"),
    ],
)
def test_b1_b2_dense_text_stays_within_every_limit(name: str, text: str, share: Share, encoding: str) -> None:
    shortened = short(text, share, encoding=encoding)
    found = shortened.text
    assert shortened.kept_bytes > 0
    ((row_tokens, row_bytes),) = measure_rows(
        [encode_body(ToolResultRow("call_7", (TextBlock(found),)))], encoding or None
    )
    assert (shortened.tokens, shortened.bytes) == (row_tokens, row_bytes)
    if share.bytes is not None:
        assert row_bytes <= share.bytes
    if share.tokens is not None:
        assert (count_tokens(found, encoding) if encoding else weighted_tokens(found)) <= share.tokens - 4
    if share.head_bytes is not None:
        assert len(found.encode()) <= share.head_bytes


@pytest.mark.parametrize("call_id", ["c", "call_" + "7" * 60])
def test_b1_a_share_of_bytes_is_used_up(call_id: str) -> None:
    """Less would waste room, more would not fit: the row's envelope and its call id are in the share."""
    text = short("x" * 90_000, Share(bytes=3_000), call_id=call_id, name="").text
    ((_, size),) = measure_rows([encode_body(ToolResultRow(call_id, (TextBlock(text),)))], None)
    assert 2_990 <= size <= 3_000


def test_b2_media_are_named_by_type() -> None:
    content = (
        TextBlock("before"),
        ImageBlock(mime_type="image/png", data="AAAA"),
        VideoBlock(mime_type="video/mp4", url="https://example.com/v"),
        AudioBlock(data="AAAAAAAA"),
        DocumentBlock(mime_type="application/pdf", data="AA=="),
        StructuredBlock('{"a":1}'),
        TranscriptBlock("after"),
    )
    assert text_of(content).split("\n") == [
        "before",
        "[image/png left out, 4 bytes of base64]",
        "[video/mp4 left out]",
        "[audio left out, 8 bytes of base64]",
        "[application/pdf left out, 4 bytes of base64]",
        '{"a":1}',
        "after",
    ]


def test_b2_a_hostile_name_does_not_break_the_marker() -> None:
    text = short(TEXT, Share(bytes=600), call_id="c" * 900 + "\n]", name='a"\\\n' * 300).text
    assert text.count("[result of") == 1
    assert not set('"\\\n') & set(text.split("[result of")[1])
    assert text.endswith("read_result reads the rest]")


def test_b2_a_usage_mark_behind_the_text_is_part_of_the_share() -> None:
    """K4: the mark is sent whole, so the text gives way to it."""
    mark = "[input tokens of the request before: 123456]"
    for share, encoding in ((Share(bytes=1_000), ""), (Share(tokens=300), "o200k_base")):
        (found,) = shorten([LongResult(TEXT, len(TEXT), "call_7", "ls", mark)], share, BoundingCut.HEAD, encoding)
        body = ToolResultRow("call_7", (TextBlock(found.text),), usage_mark=mark)
        ((tokens, size),) = measure_rows([encode_body(body)], encoding or None)
        assert (found.tokens, found.bytes) == (tokens, size)
        assert share.bytes is None or size <= share.bytes
        assert share.tokens is None or tokens <= share.tokens


def test_b6_the_whole_size_of_images_and_inline_video_is_their_base64() -> None:
    content = (
        TextBlock("é"),
        ImageBlock(mime_type="image/png", data="A" * 4_000),
        VideoBlock(mime_type="video/mp4", data="B" * 8_000),
        VideoBlock(mime_type="video/mp4", url="https://example.com/v"),
    )
    assert whole_size(content) == 2 + 4_000 + 8_000 + len("[video/mp4 left out]") + 3


@pytest.mark.parametrize("share", range(256, 300))
@pytest.mark.parametrize("cut", BoundingCut)
def test_b2_no_emoji_is_cut_in_two(share: int, cut: BoundingCut) -> None:
    """XF1, XF2: whatever the share, what is kept is characters of the text."""
    text = "🧑‍💻🎉é漢" * 400
    raw = text.encode()
    (found,) = shorten_texts([LongResult(text, len(raw), "c")], Share(bytes=share), cut)
    kept = found.text.encode().split(b"\n[result of")[0]
    head, _, tail = kept.partition(OMISSION.encode())
    assert raw.startswith(head)
    assert raw.endswith(tail)
    assert found.kept_bytes == len(head) + len(tail)
    assert 0 < found.kept_bytes <= share - 80
    assert len(found.text.encode()) <= share


def test_b1_texts_alone_take_their_whole_share() -> None:
    """Without a row there is no envelope, and UTF-8 is counted, not what JSON makes of it."""
    text = 'a"' * 5_000
    (found,) = shorten_texts([LongResult(text, len(text), "c")], Share(bytes=1_000), BoundingCut.HEAD)
    assert 995 <= len(found.text) <= 1_000
    (found,) = shorten_texts([LongResult(text, len(text), "c")], Share(tokens=500), BoundingCut.HEAD, "o200k_base")
    assert 490 <= count_tokens(found.text, "o200k_base") <= 500
