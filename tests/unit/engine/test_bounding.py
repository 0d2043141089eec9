"""§9: shares, steps, what does not fit, and the shortened text."""

import pytest
from foldline._core import OMISSION, count_tokens, measure_rows, weighted_tokens
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Bounding, Policy
from foldline.domain.pressure import Limits
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
from foldline.engine.bounding import BoundableResult, plan, shorten, text_of

POLICY = Policy()
LIMITS = Limits(threshold=8_000, ceiling=10_000, input_budget=9_000, reserve=1_000, body_cap=40_000, byte_limit=32_000)
ARGUMENTS = {"limits": LIMITS, "policy": POLICY, "encoding": "o200k_base"}


def results(*sizes: tuple[int, int]) -> list[BoundableResult]:
    return [BoundableResult(offset, tokens, size) for offset, (tokens, size) in enumerate(sizes, 1)]


def test_9_nothing_over_a_limit_is_sent_whole() -> None:
    assert plan(results((4_000, 20_000), (4_000, 19_000)), rest_tokens=1_000, rest_bytes=1_000, **ARGUMENTS) is None
    assert plan([], rest_tokens=9_000, rest_bytes=40_000, **ARGUMENTS) is None


def test_b1_results_under_the_share_stay_whole_and_the_rest_get_equal_ones() -> None:
    found = plan(results((500, 2_000), (6_000, 9_000), (7_000, 9_000)), rest_tokens=3_000, rest_bytes=0, **ARGUMENTS)
    assert found is not None
    assert found.share == Share(tokens=2_750)  # (9000 - 3000 - 500) / 2
    assert found.offsets == (2, 3)
    assert (found.fits, found.limit, found.by_bytes, found.sent_tokens) == (True, 9_000, False, 9_000)


def test_b1_one_token_over_the_budget_is_bounded() -> None:
    assert plan(results((6_001, 10)), rest_tokens=3_000, rest_bytes=0, **ARGUMENTS) is not None
    assert plan(results((6_000, 10)), rest_tokens=3_000, rest_bytes=0, **ARGUMENTS) is None


def test_b1_bytes_are_an_axis_of_their_own() -> None:
    found = plan(results((10, 30_000), (10, 5_000)), rest_tokens=0, rest_bytes=15_000, **ARGUMENTS)
    assert found is not None
    assert (found.share, found.offsets) == (Share(bytes=20_000), (1,))
    assert (found.limit, found.by_bytes, found.sent_bytes) == (40_000, True, 40_000)


def test_b1_both_axes_bind() -> None:
    found = plan(results((8_000, 30_000), (100, 30_000)), rest_tokens=4_000, rest_bytes=0, **ARGUMENTS)
    assert found is not None
    assert found.share == Share(bytes=20_000, tokens=4_900)
    assert found.offsets == (1, 2)
    assert (found.limit, found.by_bytes) == (40_000, True)


def test_b3_the_limit_named_is_the_one_that_was_exceeded() -> None:
    found = plan(results((8_000, 30_000)), rest_tokens=4_000, rest_bytes=10_000, **ARGUMENTS)
    assert found is not None
    assert (found.limit, found.by_bytes, found.share.bytes) == (9_000, False, None)


def test_b1_a_result_of_exactly_its_share_stays_whole() -> None:
    found = plan(results((2_750, 9), (6_000, 9)), rest_tokens=3_500, rest_bytes=0, **ARGUMENTS)
    assert found is not None
    assert (found.share.tokens, found.offsets) == (2_750, (2,))


def test_b1_the_token_axis_is_in_raw_tokens() -> None:
    found = plan(
        results((4_000, 10), (4_000, 10)), rest_tokens=3_000, rest_bytes=0, limits=LIMITS, policy=POLICY,
        encoding="o200k_base", factor=1.5,
    )  # fmt: skip
    assert found is not None
    assert found.share.tokens == 2_000  # 6000 / 1.5 / 2
    assert found.sent_tokens == 9_000


def test_b1_without_an_embedded_vocabulary_a_token_counts_as_two_bytes() -> None:
    found = plan(results((8_000, 10)), rest_tokens=3_000, rest_bytes=0, limits=LIMITS, policy=POLICY, factor=1.5)
    assert found is not None
    assert (found.share.tokens, found.share.head_bytes) == (4_000, 12_000)


def test_b1_a_provider_without_a_cap_has_one_axis() -> None:
    limits = Limits(8_000, 10_000, 9_000, 1_000, None, None)
    assert plan(results((10, 10**9)), rest_tokens=0, rest_bytes=0, limits=limits, policy=POLICY) is None


def test_b8_less_than_the_minimum_a_result_does_not_fit() -> None:
    policy = Policy(bounding=Bounding(min_bytes=1_000))
    arguments = {"rest_tokens": 0, "limits": LIMITS, "policy": policy, "encoding": "o200k_base"}
    enough = plan(results((1, 9_000), (1, 9_000)), rest_bytes=38_000, **arguments)
    assert enough is not None
    assert (enough.fits, enough.share.bytes) == (True, 1_000)
    short = plan(results((1, 9_000), (1, 9_000)), rest_bytes=38_001, **arguments)
    assert short is not None
    assert (short.fits, short.share.bytes, short.offsets) == (False, 1_000, (1, 2))


def test_b8_with_nothing_to_shorten_it_says_that_it_does_not_fit() -> None:
    found = plan([], rest_tokens=9_001, rest_bytes=0, **ARGUMENTS)
    assert found is not None
    assert (found.fits, found.offsets, found.limit) == (False, (), 9_000)


def test_b9_a_share_stays_as_long_as_it_fits() -> None:
    before = Share(tokens=2_000)
    found = plan(results((6_000, 9), (6_000, 9)), rest_tokens=1_000, rest_bytes=0, previous=before, **ARGUMENTS)
    assert found is not None
    assert (found.share, found.sent_tokens) == (before, 5_000)


def test_b9_a_share_shrinks_in_steps() -> None:
    before = Share(tokens=2_000)
    more = results((6_000, 9), (6_000, 9), (6_000, 9), (6_000, 9))
    found = plan(more, rest_tokens=1_800, rest_bytes=0, previous=before, **ARGUMENTS)
    assert found is not None
    assert found.share == Share(tokens=1_500)  # 1800 is needed
    exactly = plan(more, rest_tokens=3_000, rest_bytes=0, previous=before, **ARGUMENTS)
    assert exactly is not None
    assert exactly.share == Share(tokens=1_500)  # and not a step below
    less = plan(more, rest_tokens=3_800, rest_bytes=0, previous=found.share, **ARGUMENTS)
    assert less is not None
    assert less.share == Share(tokens=1_125)  # 1300 is needed


def test_b9_a_share_stays_though_everything_would_fit_whole_again() -> None:
    found = plan(results((6_000, 9)), rest_tokens=0, rest_bytes=0, previous=Share(tokens=2_000), **ARGUMENTS)
    assert found is not None
    assert found.offsets == (1,)
    assert plan(results((1_000, 9)), rest_tokens=0, rest_bytes=0, previous=Share(tokens=2_000), **ARGUMENTS) is None


def test_b9_a_moving_factor_changes_no_text_that_was_sent() -> None:
    many = results((6_000, 9), (6_000, 9))
    first = plan(many, rest_tokens=1_000, rest_bytes=0, limits=LIMITS, policy=POLICY, factor=1.0)
    assert first is not None
    for factor in (0.7, 0.9, 1.0):
        again = plan(
            many, rest_tokens=1_000, rest_bytes=0, limits=LIMITS, policy=POLICY, factor=factor, previous=first.share
        )
        assert again is not None
        assert again.share == first.share


# --- B2

TEXT = "".join(f"line {n}: the quick brown fox jumps over the lazy dog\n" for n in range(2_000))
NAMES = {"call_id": "call_7", "name": "read_file", "policy": POLICY}
MARKER = "[result of read_file (call call_7) shortened:"


def test_b2_the_head_ends_at_a_line_and_the_marker_names_call_sizes_and_the_way_to_the_rest() -> None:
    text, kept = shorten(TEXT, Share(bytes=4_000), **NAMES)
    head, marker = text.split(MARKER)
    assert TEXT.startswith(head.rstrip("\n"))
    assert TEXT[:kept].endswith("\n")
    assert kept <= 4_000 < kept + 600
    assert f"{kept} of {len(TEXT)} bytes kept" in marker
    assert "read_result" in marker


def test_b2_head_and_tail() -> None:
    policy = Policy(bounding=Bounding(cut=BoundingCut.HEAD_TAIL))
    text, kept = shorten(TEXT, Share(bytes=4_000), call_id="call_7", name="read_file", policy=policy)
    head, tail = text.split(MARKER)[0].split(OMISSION)
    assert TEXT.startswith(head)
    assert TEXT.rstrip("\n").endswith(tail.rstrip("\n"))
    assert kept == len(head) + len(tail.removesuffix("\n"))


def test_b2_a_text_within_its_share_keeps_everything_where_only_media_go() -> None:
    text, kept = shorten("short", Share(bytes=4_000), whole_bytes=2_000_000, **NAMES)
    assert (kept, text.startswith("short\n[result of")) == (5, True)
    assert "5 of 2000000 bytes kept" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code", "if (a[i]->b != NULL) { return f(x, \"y\\n\"); }\n" * 2_000),
        ("chinese", "汉字数据处理系统的设计与实现。" * 3_000),
        ("emoji", "🧑‍💻🎉" * 5_000),
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
    found, kept = shorten(text, share, encoding=encoding, **NAMES)
    assert kept > 0
    if share.bytes is not None:
        assert len(TextBlock(found).text.encode()) <= share.bytes
    if share.tokens is not None:
        assert (count_tokens(found, encoding) if encoding else weighted_tokens(found)) <= share.tokens - 4
    if share.head_bytes is not None:
        assert len(found.encode()) <= share.head_bytes


@pytest.mark.parametrize("call_id", ["c", "call_" + "7" * 60])
def test_b1_a_share_of_bytes_is_used_up(call_id: str) -> None:
    """Less would waste room, more would not fit: the row's envelope and its call id are in the share."""
    text, _ = shorten("x" * 90_000, Share(bytes=3_000), call_id=call_id, name="", policy=POLICY)
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
    text, _ = shorten(TEXT, Share(bytes=600), call_id="c" * 900 + "\n]", name='a"\\\n' * 300, policy=POLICY)
    assert text.count("[result of") == 1
    assert not set('"\\\n') & set(text.split("[result of")[1])
    assert text.endswith("read_result reads the rest]")
