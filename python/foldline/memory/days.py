"""Days that a question or a text names, in English or as ISO dates (M4). Pure; what is no date is no error.

A text names days as its calendar does (``8 May 2023``) or from where it stands (``last Friday``), a question mostly as
the calendar does. Months and weekdays are English, as the stop words are: another language finds its dates by words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta

Days = tuple[date, date]
"""First and last day of a span, both in it."""
MOST_DAYS = 16
"""Spans that a text is taken to name: who names more, or a day of more years, is not asking for one."""

_MONTH_NAMES = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = {name: number for number, full in enumerate(_MONTH_NAMES, 1) for name in (full, full[:3])} | {"sept": 9}
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "couple": 2, "few": 3,
}  # fmt: skip
_UNIT_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_UNIT_SLACK = {"day": 0, "week": 3, "month": 10, "year": 120}
"""Days to each side that such a distance is meant to within."""

# The names of two months are words of their own: these count with a capital only.
_NAMED = "|".join(sorted((name for name in _MONTHS if name not in ("march", "may", "mar")), key=len, reverse=True))
# ASCII: else a letter of another alphabet passes for one of ours (``ſ``, ``ı``), and the name is in no table.
_MONTH = rf"(?P<month>(?ai:{_NAMED})|March|MARCH|Mar|May|MAY)\b\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})\b"
_ISO = re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{2})(?:-(?P<day>\d{2}))?\b")
_CALENDAR = (
    _ISO,
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?"),
    re.compile(rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\b(?:,?\s+{_YEAR})?"),
    re.compile(rf"\b{_MONTH},?\s+(?:of\s+)?{_YEAR}"),
    re.compile(rf"(?i:\b(?:in|of|during|since|until|by|last|this|early|late|mid))[\s-]+{_MONTH}"),
    re.compile(r"(?i:\b(?:in|of|during|since|until|by))\s+(?P<year>(?:19|20)\d\d)\b"),
)
_AGO = "|".join(_NUMBERS)
_TOLD = re.compile(
    r"\b(?:(?P<shift>yesterday|last night|today|tonight|this morning|tomorrow)"
    rf"|(?P<which>last|next|this) (?:(?P<unit>week|weekend|month|year)|(?P<weekday>{'|'.join(_WEEKDAYS)}))"
    rf"|(?:a )?(?P<count>\d{{1,3}}|{_AGO})(?: of)? (?P<units>day|week|month|year)s? ago)\b",
    re.IGNORECASE | re.ASCII,
)
_SHIFTS = {"yesterday": -1, "last night": -1, "tomorrow": 1}
_VAGUE = re.compile(
    rf"\b(?:just|recently|since|the other day|(?:last|this|next) (?:spring|summer|autumn|fall|winter)|(?:19|20)\d\d"
    rf"|(?:\d{{1,3}}|{_AGO}) (?:day|week|month|year)s?|on (?:{'|'.join(_WEEKDAYS)}))\b",
    re.IGNORECASE,
)
"""Says when or how long, but no day that could be reckoned."""
_LETTERS, _YEAR_LIKE = re.compile(r"[a-z]+"), re.compile(r"\d{4}")
_CLUES = frozenset(
    (*_MONTHS, *_WEEKDAYS, *(f"{unit}{end}" for unit in _UNIT_DAYS for end in ("", "s")),
     "yesterday", "night", "today", "tonight", "morning", "tomorrow", "weekend", "just", "recently", "since",
     "spring", "summer", "autumn", "fall", "winter")
)  # fmt: skip
"""One of these, or a number like a year, is in every text that the patterns find something in."""
_WHEN = re.compile(r"\b(?:when|how long|(?:what|which) (?:year|month|date|day|time|week))\b", re.IGNORECASE)


def asks_when(question: str) -> bool:
    """Whether a question is for a time."""
    return bool(_WHEN.search(question))


def tells_when(text: str) -> bool:
    """Whether a text says when something is or was."""
    # Looked for first, since it takes a fraction of the time and most texts have none.
    if _CLUES.isdisjoint(_LETTERS.findall(text.lower())) and not _YEAR_LIKE.search(text):
        return False
    return bool(_TOLD.search(text) or _VAGUE.search(text) or any(pattern.search(text) for pattern in _CALENDAR))


def named_days(text: str, years: Callable[[], Sequence[int]]) -> tuple[Days, ...]:
    """Spans of days that a text names by the calendar, each once, the first ``MOST_DAYS`` of them.

    Args:
        years: those that a day or month without one may be of; asked for when there is such a one.
    """
    found = dict[Days, None]()
    for days in _calendar(text, years):
        found[days] = None
        if len(found) == MOST_DAYS:
            break
    return tuple(found)


def in_words(text: str) -> str:
    """A text with its ISO dates as people write them, which is how entries hold the day of their row."""

    def spoken(match: re.Match[str]) -> str:
        year, month, day = int(match["year"]), int(match["month"]), int(match["day"] or 1)
        if _span(year, month, day) is None:
            return match[0]
        named = f"{_MONTH_NAMES[month - 1].capitalize()} {match['year']}"
        return f"{day} {named}" if match["day"] else named

    return _ISO.sub(spoken, text)


def told_days(text: str, today: date) -> tuple[Days, ...]:
    """Spans of days that a text of ``today`` names by the calendar or from where it stands."""
    return (*named_days(text, lambda: (today.year,)), *(days for days in _from(text, today) if days))


def distance(days: Iterable[Days], others: Iterable[Days]) -> int | None:
    """Days between the nearest of two sets of spans, 0 where they meet; None if one is empty."""
    others = tuple(others)
    return min(
        (max((first - b).days, (a - last).days, 0) for first, last in days for a, b in others),
        default=None,
    )


def widened(days: Days, by: int) -> Days:
    """A span with ``by`` more days to each side, as far as the calendar goes."""
    first, last = days
    return _day(first, -by) or date.min, _day(last, by) or date.max


def _calendar(text: str, years: Callable[[], Sequence[int]]) -> Iterator[Days]:
    for pattern in _CALENDAR:
        for match in pattern.finditer(text):
            found = match.groupdict()
            month = found.get("month")
            number = None if month is None else int(month) if month.isdigit() else _MONTHS[month.lower()]
            day = found.get("day")
            for year in [int(found["year"])] if found.get("year") else years():
                span = _span(year, number, int(day) if day else None)
                if span:
                    yield span
        text = pattern.sub(" ", text)


def _span(year: int, month: int | None, day: int | None) -> Days | None:
    try:
        if month is None:
            return date(year, 1, 1), date(year, 12, 31)
        if day is not None:
            return date(year, month, day), date(year, month, day)
        after = date(year + month // 12, month % 12 + 1, 1) if (year, month) != (9999, 12) else None
        return date(year, month, 1), after - timedelta(1) if after else date.max
    except ValueError:
        return None


def _from(text: str, today: date) -> Iterator[Days | None]:
    for match in _TOLD.finditer(text):
        found = {name: value.lower() for name, value in match.groupdict().items() if value}
        if "shift" in found:
            yield _between(today, _SHIFTS.get(found["shift"], 0), _SHIFTS.get(found["shift"], 0))
        elif "weekday" in found:
            ahead = (_WEEKDAYS.index(found["weekday"]) - today.weekday()) % 7
            at = ahead - 7 if found["which"] == "last" else ahead or 7
            yield _between(today, at, at)
        elif "unit" in found:
            yield _unit(today, found["which"], found["unit"])
        else:
            count = int(found["count"]) if found["count"].isdigit() else _NUMBERS[found["count"]]
            at, slack = -count * _UNIT_DAYS[found["units"]], _UNIT_SLACK[found["units"]]
            yield _between(today, at - slack, at + slack)


def _unit(today: date, which: str, unit: str) -> Days | None:
    way = {"last": -1, "this": 0, "next": 1}[which]
    if unit == "year":
        return _span(today.year + way, None, None)
    if unit == "month":
        month = today.month - 1 + way
        return _span(today.year + month // 12, month % 12 + 1, None)
    monday = -today.weekday() + 7 * way
    return _between(today, monday + 5 if unit == "weekend" else monday, monday + 6)


def _between(today: date, first: int, last: int) -> Days | None:
    start, end = _day(today, first), _day(today, last)
    return (start, end) if start and end else None


def _day(today: date, shift: int) -> date | None:
    try:
        return today + timedelta(shift)
    except OverflowError:
        return None
