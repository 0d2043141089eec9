"""Times of rows, as memory compares and indexes them."""

from __future__ import annotations

from datetime import UTC, datetime

from foldline.domain.errors import FoldlineError, Reason

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def _parse(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _format(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def normal_time(text: str) -> str:
    """RFC 3339 UTC in one width, so that text order is time order; empty for what is no time."""
    time = _parse(text)
    return _format(time) if time else ""


def time_bound(name: str, text: str) -> str:
    """A filter's bound as ``normal_time`` writes it; empty stays empty.

    Raises:
        FoldlineError: FIELD_VALIDATION.
    """
    time = _parse(text)
    if text and time is None:
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"filter.{name} is no RFC 3339 time", field=f"filter.{name}", value=text[:64],
            range="RFC 3339",
        )  # fmt: skip
    return _format(time) if time else ""


def spoken_date(text: str) -> str:
    """A time as people write its day, for search: ``8 May 2023``; empty for what is no time."""
    time = _parse(text)
    return f"{time.day} {_MONTHS[time.month - 1]} {time.year}" if time else ""
