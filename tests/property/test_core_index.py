"""The fast index of memory against the slow obvious ones (M4)."""

import re
from collections import Counter

from foldline import _core
from foldline.memory.terms import general_terms, joined_terms, terms
from hypothesis import example, given
from hypothesis import strategies as st

WORDS = ("get", "User", "HTTP", "Server", "A", "b", "s", "S", "n", "r", "t", "x9", "42", "1234", "'s", "'S", "__", "(")
MARKS = (
    "=",
    "_",
    ".",
    "-",
    "/",
    "\\",
    ":",
    "@",
    "'",
    ",",
    '"',
    "\\n",
    "\\t",
    "::",
    "...",
    "----",
    " ",
    ", ",
    "\n",
    "\t",
)
PIECES = st.sampled_from([*WORDS, *MARKS, "\x1c", "Ab" * 40, "0123456789abcdef", "x" * 70])
ASCII = st.lists(PIECES, max_size=24).map("".join) | st.text(st.characters(max_codepoint=127), max_size=80)


@given(ASCII)
@example("")
@example("a''s b'")
@example("1,234,567 12,34 x,123 1,2345 9,123_4")
def test_m4_terms_of_ascii_text_are_those_of_the_general_way(text: str) -> None:
    found = _core.ascii_terms(text)
    assert found is not None
    assert found.split() == general_terms(text)
    assert found == " ".join(general_terms(text))


@given(ASCII, st.integers(0, 12))
def test_m4_of_the_last_terms_no_more_than_asked_for(text: str, most: int) -> None:
    every = general_terms(text)
    assert _core.ascii_terms(text, most) == " ".join(every[max(0, len(every) - most) :])


@given(st.text(max_size=60), st.integers(0, 12))
def test_m4_texts_of_any_script_give_terms_between_spaces(text: str, most: int) -> None:
    if not text.isascii():
        assert _core.ascii_terms(text) is None
    every = terms(text)
    assert joined_terms(text) == " ".join(every)
    assert joined_terms(text, most) == " ".join(every[max(0, len(every) - most) :])


def test_m4_every_pair_and_triple_of_kinds_of_characters_is_cut_alike() -> None:
    """Runs are decided by neighbours: all short texts of one character of each kind."""
    kinds = "aZ9_.-/\\:@',ns \n("
    short = [a + b + c + d for a in kinds for b in kinds for c in kinds for d in kinds]
    for text in short:
        assert _core.ascii_terms(text) == " ".join(general_terms(text)), text
    for text in (f"x{a}{b}{c}{d}y12" for a, b, c, d in short[::7]):
        assert _core.ascii_terms(text) == " ".join(general_terms(text)), text


WORDS = st.sampled_from(["fold", "folds", "folding", "é", "漢字", "x" * 64, "a1"])
COLUMN = st.lists(WORDS, max_size=8).map(" ".join) | st.text(" ab\n\x1c\u3000", max_size=12)


def by_counting(columns: list[str], stem_of: dict[str, str]) -> dict[str, bytes]:
    """Postings, the obvious version: count each stem in each column."""
    found: dict[str, bytes] = {}
    for stem in sorted(set(stem_of.values())):
        postings = b""
        for entry in range(len(columns) // 2):
            own, context = (Counter(stem_of[w] for w in columns[2 * entry + c].split())[stem] for c in (0, 1))
            if own or context:
                length = len(columns[2 * entry].split()) + len(columns[2 * entry + 1].split())
                postings += entry.to_bytes(4, "little") + bytes([min(own, 255), min(context, 255)])
                postings += min(length, 65_535).to_bytes(2, "little")
        found[stem] = postings
    return found


@given(st.lists(st.tuples(COLUMN, COLUMN), max_size=6), st.integers(1, 4))
@example([("a " * 300, "a " * 70_000)], 1)
def test_m4_postings_are_what_counting_finds(entries: list[tuple[str, str]], letters: int) -> None:
    columns = [column for entry in entries for column in entry]
    words = _core.Words(columns)
    assert words.words() == list(dict.fromkeys(w for column in columns for w in column.split()))
    assert words.lengths() == [len(own.split()) + len(context.split()) for own, context in entries]
    stem_of = {word: word[:letters] for word in words.words()}
    found = words.postings([stem_of[word] for word in words.words()])
    assert dict(found) == by_counting(columns, stem_of)
    assert [stem for stem, _ in found] == sorted(set(stem_of.values()))


def test_m4_there_is_a_stem_for_each_word() -> None:
    words = _core.Words(["a b", "c"])
    for stems in (["a", "b"], ["a", "b", "c", "d"]):
        try:
            words.postings(stems)
        except _core.CoreError as error:
            assert error.reason == "LENGTH_MISMATCH"
            assert re.search("2|4", error.message)
        else:
            raise AssertionError("as many stems as words")
