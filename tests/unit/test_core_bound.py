"""Bounding (B1, B2, B8) as Python calls it; the sharing and the cuts are searched in Rust too."""

import msgspec
import pytest
from foldline import _core


def test_b1_results_under_the_share_stay_whole() -> None:
    assert _core.water_fill([10, 1_000, 2_000, 3], 100, 5) == [10, 44, 43, 3]


def test_b8_none_if_a_share_is_under_the_minimum() -> None:
    assert _core.water_fill([1_000, 1_000], 99, 50) is None
    assert _core.water_fill([3, 1_000], 60, 50) == [3, 57]


def test_b1_sizes_and_budgets_of_a_terabyte() -> None:
    assert _core.water_fill([2**40, 2**40], 2**40 + 1, 512) == [2**39 + 1, 2**39]


MARKER = ("\n[kept ", "]")


def short(text: str, limits: tuple[int | None, int | None, int | None], encoding: str | None, head_tail: bool) -> str:
    ((found, kept, tokens, escaped),) = _core.shorten_many([(text, limits, *MARKER)], encoding, head_tail)
    assert tokens is None or encoding is None or tokens == _core.count_tokens(found, encoding)
    assert escaped >= len(found.encode())
    assert found.endswith(f"[kept {kept}]")
    return found


@pytest.mark.parametrize(
    ("text", "size", "head_tail", "expected"),
    [
        ("short", 100, False, "short\n[kept 5]"),
        ("first line\nsecond line\nthird", 24 + 10, False, "first line\nsecond line\n\n[kept 23]"),
        ("first line\nsecond line\nthird", 21 + 10, False, "first line\nsecond lin\n[kept 21]"),
        ("ééééé", 5 + 10, False, "éé\n[kept 4]"),
        ("abcdefghij" * 20, 56, True, "abcdefghij" * 2 + _core.OMISSION + "abcdefghij" * 2 + "\n[kept 40]"),
        ("anything", 0, True, "[kept 0]"),
    ],
)
def test_b2_cuts(text: str, size: int, head_tail: bool, expected: str) -> None:
    assert short(text, (None, size, None), None, head_tail) == expected


@pytest.mark.parametrize("head_tail", [False, True])
def test_b1_a_cut_sized_by_tokens_counts_no_more(head_tail: bool) -> None:
    text = "日志 entry: request finished in 12 ms, status=200\n" * 300
    assert 180 <= _core.count_tokens(short(text, (None, None, 200), "o200k_base", head_tail), "o200k_base") <= 200


def test_b2_bytes_inside_json_are_counted_as_json_escapes_them() -> None:
    found = short('"\\\n\x01' * 100, (200, None, None), None, False)
    assert 190 <= len(msgspec.json.encode(found)) - 2 <= 200


def test_texts_are_answered_in_order_each_by_its_own_limits() -> None:
    items = [("x" * 50, (None, size, None), f"\n[{size}: ", "]") for size in (20, 30, 40)]
    found = _core.shorten_many(items, None, False)
    assert [len(text) for text, *_ in found] == [20, 30, 40]
    assert [text.split("[")[1].split(":")[0] for text, *_ in found] == ["20", "30", "40"]
    assert _core.shorten_many([], None, False) == []
