"""Bounding (B1, B2, B8) as Python calls it; the sharing and the cuts are searched in Rust too."""

import pytest
from foldline import _core


def test_b1_results_under_the_share_stay_whole() -> None:
    assert _core.water_fill([10, 1_000, 2_000, 3], 100, 5) == [10, 44, 43, 3]


def test_b8_none_if_a_share_is_under_the_minimum() -> None:
    assert _core.water_fill([1_000, 1_000], 99, 50) is None
    assert _core.water_fill([3, 1_000], 60, 50) == [3, 57]


def test_b1_sizes_and_budgets_of_a_terabyte() -> None:
    assert _core.water_fill([2**40, 2**40], 2**40 + 1, 512) == [2**39 + 1, 2**39]


@pytest.mark.parametrize(
    ("text", "size", "head_tail", "kept", "kept_bytes"),
    [
        ("short", 100, False, "short", 5),
        ("first line\nsecond line\nthird", 24, False, "first line\nsecond line\n", 23),
        ("first line\nsecond line\nthird", 21, False, "first line\nsecond lin", 21),
        ("ééééé", 5, False, "éé", 4),
        ("abcdefghij" * 20, 45, True, "abcdefghij" * 2 + _core.OMISSION + "abcdefghij" * 2, 40),
        ("abcdefghij" * 20, 6, True, "abcdef", 6),
        ("anything", 0, True, "", 0),
    ],
)
def test_b2_cuts(text: str, size: int, head_tail: bool, kept: str, kept_bytes: int) -> None:
    assert _core.cut_text(text, size, head_tail) == (kept, kept_bytes)
    assert _core.cut_text_many([text, text], [size, size], head_tail) == [(kept, kept_bytes)] * 2


def test_b1_a_cut_sized_by_tokens_counts_no_more() -> None:
    text = "日志 entry: request finished in 12 ms, status=200\n" * 300
    for head_tail in (False, True):
        kept, kept_bytes = _core.cut_tokens(text, 200, "o200k_base", head_tail)
        assert 180 <= _core.count_tokens(kept, "o200k_base") <= 200
        omitted = len(_core.OMISSION.encode()) if head_tail else 0
        assert kept_bytes == len(kept.encode()) - omitted
        assert _core.cut_tokens_many([text], [200], "o200k_base", head_tail) == [(kept, kept_bytes)]


def test_sizes_must_be_as_many_as_texts() -> None:
    with pytest.raises(_core.CoreError) as raised:
        _core.cut_text_many(["a", "b"], [1], False)
    assert raised.value.reason == "LENGTH_MISMATCH"
    with pytest.raises(_core.CoreError):
        _core.cut_tokens_many(["a"], [1, 2], "o200k_base", False)
