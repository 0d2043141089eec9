"""Terms: one place for index and query (M4)."""

from __future__ import annotations

import pytest
from foldline.memory.terms import (
    MAX_QUERY_TERMS,
    MAX_TERM,
    coverage,
    query_terms,
    speaker_terms,
    terms,
    without_label,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("src/app/main_loop.py", {"srcappmainlooppy", "src", "app", "mainlooppy", "main", "loop", "py"}),
        ("getUserName", {"getusername", "get", "user", "name"}),
        ("HTTPServerError", {"httpservererror", "http", "server", "error"}),
        ("os.path.join", {"ospathjoin", "os", "path", "join"}),
        ("E-1234", {"e1234", "1234"}),
        (r"C:\Users\x\notes.txt", {"users", "notestxt", "notes", "txt"}),
        ("foo::bar", {"foobar", "foo", "bar"}),
        ("2023-05-08", {"20230508", "2023", "05", "08"}),
        ("1,237,145 tokens", {"1237145", "tokens"}),
        ("it's Caroline's, don't", {"it", "caroline", "dont"}),
        ("Über naïve café", {"uber", "naive", "cafe"}),
        (r'{"text":"first\nsecond_line\\tthird"}', {"first", "secondline", "second", "line", "third"}),
        ("C", {"c"}),
    ],
)
def test_identifiers_give_whole_and_parts(text: str, expected: set[str]) -> None:
    assert expected <= set(terms(text))


@pytest.mark.parametrize("spelling", ["get_user_name", "getUserName", "get-user-name", "GetUserName", "get.user.name"])
def test_spellings_of_one_identifier_meet(spelling: str) -> None:
    assert terms(spelling)[0] == "getusername"


def test_json_keys_and_values_stay_apart() -> None:
    found = terms('{"path":"src/a.py","count":3}')
    assert "srcapy" in found
    assert "pathsrcapy" not in found


def test_a_hash_gives_itself_and_no_noise() -> None:
    assert terms("a1b2c3d4e5f6a7b8") == ["a1b2c3d4e5f6a7b8"]


def test_long_runs_are_cut() -> None:
    assert all(len(term) <= MAX_TERM for term in terms("x" * 100_000 + " " + "Ab" * 5_000))


def test_scripts_without_spaces_give_pairs() -> None:
    assert terms("東京都") == ["東京", "京都"]
    assert set(query_terms("京都")) <= set(terms("東京都へ行く"))


def test_vowel_signs_stay_in_their_word() -> None:
    assert terms("हिन्दी भाषा") == ["हिन्दी", "भाषा"]


def test_question_words_leave_the_query_unless_nothing_else_is_there() -> None:
    assert query_terms("When did Caroline go to the support group?") == ["caroline", "go", "support", "group"]
    assert query_terms("what is it") == ["what", "is", "it"]


def test_punctuation_alone_gives_no_terms() -> None:
    assert query_terms("?!… \0 \"' OR *") == ["or"]
    assert query_terms("?! -- ''") == []


def test_queries_are_bounded() -> None:
    assert len(query_terms(" ".join(f"word{i}" for i in range(10_000)))) == MAX_QUERY_TERMS


def test_coverage_counts_stems() -> None:
    assert coverage(["painting", "lake"], ["painted", "lake"]) == 1
    assert coverage(["painting", "lake"], ["lake"]) == 0.5
    assert coverage(["cat"], ["catalog"]) == 0
    assert coverage([], ["lake"]) == 0


def test_m4_a_number_before_a_colon_is_no_name() -> None:
    """What numbers a text tells it apart, and must be found."""
    assert speaker_terms("Question 13: what about the queue?") == []
    assert "13" in terms(without_label("Question 13: what about the queue?"))
    assert speaker_terms("Ann: what about the queue?") != []
