"""What parsing and rendering give back (W4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foldline.domain.enums import StopReason
from foldline.domain.events import Warning_
from foldline.domain.rows import NewRow


@dataclass(frozen=True, slots=True)
class MessageUsage:
    """Usage that stood on a message. ``row`` is the index of its row, None where the message was dropped (R4)."""

    row: int | None
    usage: Mapping[str, Any]
    model: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Provider messages as rows, in order.

    Attributes:
        spans: of each row, the indices of the first and the last message it was made from, -1 for what stands beside
            the messages. One message may have become several rows, and several one.
        messages: how many there were, those that made no row included.
    """

    rows: tuple[NewRow, ...]
    warnings: tuple[Warning_, ...] = ()
    usages: tuple[MessageUsage, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    messages: int = 0


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A provider's whole response body.

    Attributes:
        rows: the assistant row; none where the answer was empty, an error, or aborted before its first block (R4).
        model: as the provider names it.
    """

    rows: tuple[NewRow, ...]
    warnings: tuple[Warning_, ...] = ()
    model: str = ""
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A request's messages as UTF-8 JSON.

    Attributes:
        spans: offsets of the rows each top-level message was made from; empty for a placeholder message.
        system: offsets of system rows that stand apart from the messages.
    """

    json: bytes
    warnings: tuple[Warning_, ...] = ()
    spans: tuple[tuple[int, ...], ...] = ()
    system: tuple[int, ...] = ()
