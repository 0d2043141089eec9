"""Searches for a share or a cut that breaks B1 or B2."""

from foldline import _core
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.one_of(
    st.text(max_size=200),
    st.text("ab \n", max_size=400),
    st.text("日本語\n", max_size=100),
    st.text("=-", max_size=300),
)


def largest_level(sizes: list[int], budget: int) -> int:
    """The highest share at which everybody's part still fits the budget; the obvious version, unit by unit."""
    level = 0
    while level < max(sizes, default=0) and sum(min(size, level + 1) for size in sizes) <= budget:
        level += 1
    return level


@given(st.lists(st.integers(0, 200), max_size=10), st.integers(0, 1_500), st.integers(0, 60))
def test_b1_shares_are_the_highest_equal_level(sizes: list[int], budget: int, minimum: int) -> None:
    level = largest_level(sizes, budget)
    cut = [size for size in sizes if size > level]
    shares = _core.water_fill(sizes, budget, minimum)
    if cut and level < minimum:
        assert shares is None
        return
    assert shares is not None
    assert sum(shares) == min(budget, sum(sizes))
    for size, share in zip(sizes, shares, strict=True):
        assert share == size if size <= level else level <= share <= level + 1


def kept_parts(kept: str, text: str) -> tuple[str, str]:
    """Head and tail of a cut; of several omission marks, the first between parts of the text."""
    places = [at for at in range(len(kept)) if kept.startswith(_core.OMISSION, at)]
    for at in places:
        head, tail = kept[:at], kept[at + len(_core.OMISSION) :]
        if text.startswith(head) and text.endswith(tail):
            return head, tail
    return kept, ""


@given(TEXTS, st.integers(0, 300), st.booleans())
def test_b2_a_cut_is_a_head_and_a_tail_within_the_size(text: str, size: int, head_tail: bool) -> None:
    kept, kept_bytes = _core.cut_text(text, size, head_tail)
    assert len(kept.encode()) <= size
    if len(text.encode()) <= size:
        assert (kept, kept_bytes) == (text, len(text.encode()))
        return
    head, tail = kept_parts(kept, text)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert kept_bytes == len(head.encode()) + len(tail.encode()) < len(text.encode())
    assert len(kept.encode()) >= size - size // 10 - 8


@given(TEXTS, st.integers(0, 80), st.sampled_from(["cl100k_base", "o200k_base"]), st.booleans())
def test_b1_a_token_cut_never_counts_more(text: str, size: int, encoding: str, head_tail: bool) -> None:
    kept, kept_bytes = _core.cut_tokens(text, size, encoding, head_tail)
    assert _core.count_tokens(kept, encoding) <= size
    assert kept_bytes <= len(text.encode())
    if _core.count_tokens(text, encoding) <= size:
        assert kept == text
