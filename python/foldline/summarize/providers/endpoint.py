"""What the APIs of all providers have in common: one question, one answer, and how a call fails (S5)."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from foldline.domain.enums import Format, ModelType
from foldline.summarize.prompt import Ask

RETRY_MAX = 30 * 86_400.0
"""Seconds; a provider that asks for more is asked again all the same."""


class Ending(StrEnum):
    """How an answer ended; only a complete one can be a summary (S5)."""

    COMPLETE = "complete"
    LENGTH = "stopped at its length limit"
    WINDOW = "ran into the end of its context window"
    REFUSED = "refused"
    TOOLS = "asked for a tool instead of answering"
    UNFINISHED = "did not say that it was finished"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said: the text channel alone, without reasoning.

    Attributes:
        body: the whole response, for its usage.
        unsaid: the server has no word for an answer that was cut off, and calls it complete.
    """

    text: str
    ending: Ending
    body: Mapping[str, Any]
    reasoned: bool = False
    unsaid: bool = False


class CallFailed(Exception):
    """A call without an answer.

    Attributes:
        status: of HTTP; 0 where the connection failed.
        body: what the provider said, which may hold what it was sent: for classification and logs, never for clients.
        retry_after: seconds.
        again: whether the same call may succeed later.
    """

    def __init__(self, what: str, *, status: int = 0, body: bytes = b"", retry_after: float | None = None,
                 again: bool = False) -> None:  # fmt: skip
        super().__init__(what)
        self.what = what
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.again = again


Call = Callable[[str, Ask, int], Awaitable[Answer]]
"""Asks a model; the last argument is the most tokens that it may answer with.

Raises:
    CallFailed: no answer came, or none that could be read.
"""


class Endpoint(Protocol):
    """One provider's API as configured.

    Attributes:
        kind: how its usage is read (4.3).
        format: of the requests that it takes.
        reasoning: tokens to ask for beyond the summary's own, since its models may reason unasked.
    """

    kind: ModelType
    format: Format
    reasoning: int

    def load(self) -> object:
        """Imports the SDK, which takes a second or more once: before a summary's time counts."""

    def open(self, key: str) -> AbstractAsyncContextManager[Call]:
        """A client for the calls of one summary; nothing stays open after it."""


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Seconds of ``Retry-After``, whether it states them, milliseconds or a date; at most ``RETRY_MAX``."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") / unit
        except ValueError:
            continue
        return None if math.isnan(seconds) else min(max(0.0, seconds), RETRY_MAX)
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after") or "")
        return min(max(0.0, date.timestamp() - time.time()), RETRY_MAX)
    except (ValueError, OverflowError):
        return None


def body_of(content: bytes) -> dict[str, Any]:
    """The JSON object of a successful response.

    Raises:
        CallFailed: it is empty, or no object; servers of that kind answer so where the context overflowed.
    """
    try:
        body = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        body = None
    if isinstance(body, dict) and body:
        return body
    what = "an empty body" if not content.strip() else "no JSON object"
    raise CallFailed(f"answered 200 with {what}", status=200, body=content)


def refused_by_status(status: int, body: bytes, headers: Mapping[str, str]) -> CallFailed:
    """What an HTTP error says about trying again."""
    again = status in (408, 409, 429) or status >= 500
    return CallFailed(f"answered {status}", status=status, body=body, retry_after=retry_after_of(headers), again=again)


def listed(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, whatever else a server put there."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""
