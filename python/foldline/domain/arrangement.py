"""A transcript in sending order, provider-neutral (R5): what ``engine.render`` makes and every format lowers.

An item is one message, or the results of one batch; a format that needs alternation merges neighbours itself. Items
carry the blocks to send, so that a format never decides *what* is sent, only how it is written. The row stands beside
them for its ``extra`` (R2) and its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from foldline.domain.enums import WarningCode
from foldline.domain.rows import ContentBlock, Row


class UserKind(StrEnum):
    """Where a user message comes from."""

    ROW = "ROW"
    SUMMARY = "SUMMARY"
    LATE_RESULT = "LATE_RESULT"
    PLACEHOLDER = "PLACEHOLDER"


class PlaceholderKind(StrEnum):
    """What stands in for a missing result; the values are those of ``CallState.placeholder``."""

    PENDING = "pending"
    NOT_COMPLETED = "not_completed"


@dataclass(frozen=True, slots=True)
class SystemItem:
    """A current system row, at its place in the list. Formats without system rows inside hoist it."""

    offsets: tuple[int, ...]
    row: Row
    content: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True)
class UserItem:
    """A user message.

    Attributes:
        content: the blocks to send: a row's own, a marked summary's text, or a late result led by a text that names
            its call.
        row: the row it was made from, None for the placeholder; its ``extra`` applies only where ``kind`` is ROW.
    """

    offsets: tuple[int, ...]
    kind: UserKind
    content: tuple[ContentBlock, ...]
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class CallName:
    """A call's id as the model gave it, and one that is unique in the arrangement; equal unless the id repeats (R3)."""

    call_id: str
    unique_id: str


@dataclass(frozen=True, slots=True)
class AssistantItem:
    """An assistant message.

    Attributes:
        content: blocks to send: the row's, less a server call that was never continued.
        calls: names of the host tool calls in ``content``, in order.
        continues: the item before it is the same message, paused for a server tool.
    """

    offsets: tuple[int, ...]
    row: Row
    content: tuple[ContentBlock, ...]
    calls: tuple[CallName, ...] = ()
    continues: bool = False


@dataclass(frozen=True, slots=True)
class CallResult:
    """What answers one call: a result row's blocks, or a placeholder text.

    Attributes:
        name: of the tool (Google names results by function).
        content: blocks to send: the row's, its shortened text, or the placeholder; a usage mark (K4) comes last.
        row: the result row, None for a placeholder.
        placeholder: which placeholder it is; to be recorded when the request goes out ("the text sent first stays").
        shortened: ``content`` is a bounded text (B2), no longer the row's own.
    """

    call: CallName
    name: str
    content: tuple[ContentBlock, ...]
    row: Row | None = None
    is_error: bool = False
    placeholder: PlaceholderKind | None = None
    shortened: bool = False


@dataclass(frozen=True, slots=True)
class ResultsItem:
    """The results of the assistant item before it, one a call, in call order. ``call_offset`` is that row's offset."""

    offsets: tuple[int, ...]
    call_offset: int
    results: tuple[CallResult, ...]


@dataclass(frozen=True, slots=True)
class NativeItem:
    """A provider's opaque compaction item (§12), for its own provider and model only."""

    offsets: tuple[int, ...]
    row: Row


Item = SystemItem | UserItem | AssistantItem | ResultsItem | NativeItem
"""``offsets`` of an item: the rows it was made from, in the order they are sent; empty for the placeholder message."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A transcript ready to be lowered.

    Attributes:
        items: in sending order. A UserItem of kind PLACEHOLDER precedes a first message that is not a user's; only a
            format that demands a user message first sends it.
        warnings: ENDS_ON_ASSISTANT.
    """

    items: tuple[Item, ...]
    warnings: tuple[WarningCode, ...] = ()

    @property
    def placeholders(self) -> tuple[tuple[int, str, PlaceholderKind], ...]:
        """(assistant offset, call id, kind) of every call that goes out unanswered."""
        return tuple(
            (item.call_offset, result.call.call_id, result.placeholder)
            for item in self.items
            if isinstance(item, ResultsItem)
            for result in item.results
            if result.placeholder is not None
        )
