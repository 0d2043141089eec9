"""Searches for texts whose chunks or terms break a rule (M2, M4)."""

from __future__ import annotations

from itertools import pairwise

from foldline.domain.rows import Row, TextBlock, UserRow
from foldline.memory.chunks import chunk
from foldline.memory.projection import project
from foldline.memory.terms import query_terms, terms
from foldline.memory.text import row_text
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.memory.scopes import words

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aB1 \n\n.,/_-'\0"), max_size=400)


@given(TEXT, st.integers(1, 40))
def test_chunks_fit_and_lose_only_white_space(text: str, limit: int) -> None:
    """M2: together they hold every character that is no white space, in order, each within the limit."""
    spans = chunk(text, limit, len)
    assert all(0 < end - start <= limit for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 40))
def test_byte_ranges_are_those_of_the_row_text(blocks: list[str], limit: int) -> None:
    """M6: an entry's text stands at its byte range in the row's text; chunks count up."""
    body = UserRow(tuple(TextBlock(text) for text in blocks))
    whole = row_text(body).encode()
    entries = project([Row(1, body)], (), limit, True, words)
    assert [whole[e.byte_start : e.byte_end].decode() for e in entries] == [e.text for e in entries]
    assert [e.chunk for e in entries] == list(range(len(entries)))


@given(TEXT)
def test_a_text_is_found_by_its_own_terms(text: str) -> None:
    """M4: what a query asks for is what the index holds, and nothing in a term is syntax."""
    held = set(terms(text))
    assert set(query_terms(text)) <= held
    assert all(term == term.lower() and not set(term) & set(" \t\n\0\"'*()^:-+/\\_") for term in held)


@given(st.lists(st.from_regex(r"[a-z]{2,8}", fullmatch=True), min_size=2, max_size=4))
def test_spellings_of_an_identifier_meet(parts: list[str]) -> None:
    """M4: snake, kebab, dotted and camel case of the same words share their whole."""
    spellings = ["_".join(parts), "-".join(parts), ".".join(parts), "".join(part.capitalize() for part in parts)]
    assert {terms(spelling)[0] for spelling in spellings} == {"".join(parts)[:64]}


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 40))
def test_a_row_has_entries_exactly_when_it_has_text(blocks: list[str], limit: int) -> None:
    """V8: no row with text is left out of memory."""
    body = UserRow(tuple(TextBlock(text) for text in blocks))
    assert bool(project([Row(1, body)], (), limit, True, words)) == bool(row_text(body).strip())
