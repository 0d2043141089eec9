"""Days that questions and texts name (M4)."""

from __future__ import annotations

from datetime import date

import pytest
from foldline.memory.days import MOST_DAYS, asks_when, distance, in_words, named_days, tells_when, told_days, widened
from hypothesis import given
from hypothesis import strategies as st

TODAY = date(2023, 5, 10)
"""A Wednesday."""


def one(day: date) -> tuple[date, date]:
    return day, day


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("What happened on 8 May 2023?", one(date(2023, 5, 8))),
        ("what did Ann say on the 8th of May, 2023", one(date(2023, 5, 8))),
        ("on May 8th, 2023", one(date(2023, 5, 8))),
        ("Dec. 31 2022", one(date(2022, 12, 31))),
        ("the log of 2023-05-08", one(date(2023, 5, 8))),
        ("in February 2024", (date(2024, 2, 1), date(2024, 2, 29))),
        ("2024-02", (date(2024, 2, 1), date(2024, 2, 29))),
        ("what was built in 2022?", (date(2022, 1, 1), date(2022, 12, 31))),
        ("december 9999", (date(9999, 12, 1), date(9999, 12, 31))),
    ],
)
def test_days_are_read_as_people_write_them(text: str, days: tuple[date, date]) -> None:
    """M4"""
    assert named_days(text, lambda: ()) == (days,)


def test_a_day_without_its_year_is_of_every_year_it_may_be() -> None:
    """M4"""
    days = named_days("what did we decide on 29 February?", lambda: (2023, 2024, 2025))
    assert days == (one(date(2024, 2, 29)),)
    assert named_days("and in June?", lambda: (2023, 2024)) == (
        (date(2023, 6, 1), date(2023, 6, 30)),
        (date(2024, 6, 1), date(2024, 6, 30)),
    )


@pytest.mark.parametrize(
    "text",
    [
        "step 5 may fail",
        "they march 3 miles",
        "on 31 February 2023",
        "on 0 May 2023",
        "2023-13-40",
        "version 1.2023.05",
        "error 2023 of 4096",
        "maybe 5",
        "",
    ],
)
def test_what_is_no_day_names_none(text: str) -> None:
    """M4: words and numbers that look like one, and days that no calendar has."""
    assert named_days(text, lambda: (2023,)) == ()


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("I saw it yesterday", one(date(2023, 5, 9))),
        ("Tomorrow we ship", one(date(2023, 5, 11))),
        ("we met last Friday", one(date(2023, 5, 5))),
        ("last wednesday", one(date(2023, 5, 3))),
        ("next Monday", one(date(2023, 5, 15))),
        ("last week", (date(2023, 5, 1), date(2023, 5, 7))),
        ("this weekend", (date(2023, 5, 13), date(2023, 5, 14))),
        ("last month", (date(2023, 4, 1), date(2023, 4, 30))),
        ("next year", (date(2024, 1, 1), date(2024, 12, 31))),
        ("two days ago", one(date(2023, 5, 8))),
        ("a couple of weeks ago", (date(2023, 4, 23), date(2023, 4, 29))),
        ("on 3 May", one(date(2023, 5, 3))),
    ],
)
def test_a_text_tells_days_from_where_it_stands(text: str, days: tuple[date, date]) -> None:
    """M4"""
    assert told_days(text, TODAY) == (days,)


@pytest.mark.parametrize("today", [date.min, date.max, date(2024, 1, 1), date(2023, 12, 31)])
def test_the_ends_of_the_calendar_and_of_a_year_are_no_error(today: date) -> None:
    """M4"""
    for text in ("yesterday", "tomorrow", "last month", "next month", "last year", "next year", "999 years ago"):
        assert all(first <= last for first, last in told_days(text, today))


def test_distance_is_that_of_the_nearest_spans() -> None:
    """M4"""
    may = (date(2023, 5, 1), date(2023, 5, 31))
    assert distance([may], [one(date(2023, 5, 8))]) == 0
    assert distance([one(date(2023, 6, 3)), one(date(2022, 1, 1))], [may]) == 3
    assert distance([], [may]) is None
    assert distance([may], []) is None


def test_spans_widen_up_to_the_ends_of_the_calendar() -> None:
    """M4"""
    assert widened(one(TODAY), 3) == (date(2023, 5, 7), date(2023, 5, 13))
    assert widened((date.min, date.max), 3) == (date.min, date.max)


@pytest.mark.parametrize("text", ["When did it break?", "what year was that", "How long does it take?"])
def test_questions_for_a_time_are_told_from_others(text: str) -> None:
    """M4"""
    assert asks_when(text)
    assert not asks_when("What breaks whenever it rains?")


@pytest.mark.parametrize(
    "text", ["since Tuesday", "for five years", "in June", "last night", "back in 1999", "on Friday"]
)
def test_texts_that_tell_a_time_are_told_from_others(text: str) -> None:
    """M4"""
    assert tells_when(text)
    assert not tells_when("the parser fails on an empty file")


_WORDS = "8 31 2023 0000 9999 May may february Dec. of in the last next week monday 999 two years ago 2023-02-30 é"
_TEXTS = st.lists(st.sampled_from(_WORDS.split())).map(" ".join)


@given(text=_TEXTS | st.text(max_size=60), other=_TEXTS, today=st.dates())
def test_no_text_fails_and_every_span_is_one(text: str, other: str, today: date) -> None:
    """M4: spans are in order and on the calendar; a distance is the same from both ends and 0 to itself."""
    days = told_days(text, today)
    assert all(first <= last for first, last in days)
    assert set(named_days(text, lambda: (today.year,))) <= set(days)
    others = told_days(other, today)
    assert distance(days, others) == distance(others, days)
    assert distance(days, days) == (0 if days else None)
    if days:
        assert tells_when(text)


@pytest.mark.parametrize(
    ("text", "worded"),
    [
        ("the log of 2023-05-08", "the log of 8 May 2023"),
        ("2023-12 and 2024-01-31", "December 2023 and 31 January 2024"),
        ("2023-13-40 and 2023-02-30", "2023-13-40 and 2023-02-30"),
        ("0000-01-01 and 2023-00", "0000-01-01 and 2023-00"),
        ("on 8 May 2023", "on 8 May 2023"),
        ("", ""),
    ],
)
def test_iso_dates_are_put_in_words(text: str, worded: str) -> None:
    """M4"""
    assert in_words(text) == worded


@given(st.dates())
def test_a_day_in_words_is_the_same_day(day: date) -> None:
    """M4"""
    assert named_days(in_words(day.isoformat()), lambda: ()) == ((day, day),)


@pytest.mark.parametrize(
    "text",
    [
        "12 Auguſt 2023",
        "in aprıl 2023",
        "AprİL 5",
        "laſt week",
        "last frıday",
        "thıs month",
        "ſix days ago",
        "next ſunday",
    ],
)
def test_m4_letters_that_only_look_like_ours_name_no_day_and_fail_nothing(text: str) -> None:
    """Upper and lower case reach beyond ASCII: ``ſ`` is an ``s``, ``ı`` and ``İ`` are an ``i`` to such a match."""
    assert told_days(text, date(2023, 5, 8)) == ()
    assert named_days(text, lambda: (2023,)) == ()
    assert in_words(text) == text


@given(st.text("ſıİK yesterdaylnxthigok0123456789", max_size=40), st.dates())
def test_m4_no_text_fails_to_be_looked_through_for_days(text: str, today: date) -> None:
    for words in (text, f"last {text}", f"3 {text} ago", f"5 {text} 2023", f"in {text}"):
        assert all(first <= last for first, last in told_days(words, today))


def test_m4_a_text_names_no_more_days_than_a_search_can_look_for() -> None:
    """A page of days without years, in a scope with a row of the first year, stands for millions of spans."""
    text = "parrot " + "1 May, 2 May, June, " * 500
    asked = named_days(text, lambda: range(2026, 0, -1))
    assert len(asked) == len(set(asked)) == MOST_DAYS
    assert named_days("in June or June or in June", lambda: (2023, 2022)) == (
        (date(2023, 6, 1), date(2023, 6, 30)),
        (date(2022, 6, 1), date(2022, 6, 30)),
    )
