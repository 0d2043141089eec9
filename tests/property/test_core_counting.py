"""Searches for a text that the core counts unlike the reference tokenizer (4.5)."""

from foldline import _core
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_oracle import reference_count

BRANCHES = [
    *("a", "Z", "é", "É", "日", "ǅ", "ʰ", "\u0301", "1", "²", "٣", " ", "  ", "\t", "\n", "\r", "\u3000", "\u0085"),
    *("!", "/", "_", "'", "'s", "'LL", "'ſ", "<|endoftext|>", "😀", "\0", "the", " The", "    ", "----", "\u200d"),
]
TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(BRANCHES), max_size=40).map("".join),
    st.text("abAB", max_size=400),
    st.text("的一是不了人我在有他这中大来上国", max_size=120),
    st.lists(st.tuples(st.sampled_from("=-#/* \n"), st.integers(1, 90)), max_size=8).map(
        lambda runs: "".join(char * many for char, many in runs)
    ),
)
ENCODINGS = st.sampled_from(["cl100k_base", "o200k_base"])


@given(TEXTS, ENCODINGS)
def test_a_count_is_the_references(text: str, encoding: str) -> None:
    assert _core.count_tokens(text, encoding) == reference_count(text, encoding)


@given(TEXTS, TEXTS)
def test_weighted_bytes_grow_with_the_text(text: str, more: str) -> None:
    """More text is never less than it by more than the token that joining two words saves."""
    assert _core.weighted_tokens(text + "\n\n" + more) + 1 >= _core.weighted_tokens(text)
    assert (_core.weighted_tokens(text) == 0) == (text == "")
