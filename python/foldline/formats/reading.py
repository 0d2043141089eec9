"""What every format does with messages on their way in: paths, drops (R4), usage, repaired text (R2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from foldline.domain.enums import StopReason, WarningCode
from foldline.domain.errors import FoldlineError
from foldline.domain.events import Warning_
from foldline.domain.rows import AssistantRow, NewRow, RowBody, ToolCallBlock
from foldline.formats.codec import invalid
from foldline.formats.json_text import Json, loads, plain
from foldline.formats.results import MessageUsage, Parsed
from foldline.formats.stops import FAILED


class Reading:
    """Gathers the rows of one parse, and what could not be taken as it was.

    Attributes:
        message: index of the message that is read; -1 before the first.
    """

    def __init__(self) -> None:
        self.rows: list[NewRow] = []
        self.spans: list[tuple[int, int]] = []
        self.message = -1
        self.warnings: list[Warning_] = []
        self.usages: list[MessageUsage] = []

    def load(self, data: bytes, what: str) -> Json:
        value, replaced = loads(data, what)
        self.replaced(replaced, what)
        return value

    def replaced(self, count: int, what: str) -> None:
        if count:
            self.warn(WarningCode.SURROGATE_REPLACED, f"{count} lone surrogates in {what} became U+FFFD")

    def warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(Warning_(code, message))

    def messages(self, value: Json, root: str = "$") -> Iterator[tuple[dict[str, Json], str]]:
        """The messages of an array, or the one message that was sent, each with its path from ``root``.

        Raises:
            FoldlineError: FORMAT_INVALID with the path of what is no message.
        """
        for self.message, found in enumerate(messages_of(value, root)):
            yield found

    def take(self, body: RowBody, since: int | None = None) -> None:
        """Takes a row of the message that is read, or of all from ``since`` to it."""
        self.rows.append(NewRow(body))
        self.spans.append((self.message if since is None else since, self.message))

    def take_assistant(self, body: AssistantRow, path: str, usage: Json = None, model: Json = None) -> bool:
        """Takes an answer, less what an error or abort cut off; drops it where nothing is left (R4, L1).

        Returns:
            Whether there is a row of it.
        """
        if body.stop_reason in FAILED:
            body = self._without_cut_calls(body, path)
        taken = bool(body.content)
        if taken:
            self.take(body)
        else:
            why = body.stop_reason if body.stop_reason in FAILED else "is empty"
            self.warn(WarningCode.MESSAGE_DROPPED, f"the assistant message at {path} is dropped: {_WHY.get(why, why)}")
        if isinstance(usage, Mapping):
            row = len(self.rows) - 1 if taken else None
            self.usages.append(MessageUsage(row, plain(usage), model if isinstance(model, str) else ""))
        return taken

    def _without_cut_calls(self, body: AssistantRow, path: str) -> AssistantRow:
        whole = tuple(b for b in body.content if not isinstance(b, ToolCallBlock) or is_json(b.arguments_json))
        if len(whole) == len(body.content):
            return body
        lost = [b.call_id for b in body.content if isinstance(b, ToolCallBlock) and b not in whole]
        self.warn(
            WarningCode.PARTIAL_CALLS_DROPPED,
            f"calls {', '.join(lost)} of the {body.stop_reason} message at {path} have no complete arguments",
        )
        return msgspec.structs.replace(body, content=whole)

    def parsed(self) -> Parsed:
        return Parsed(tuple(self.rows), tuple(self.warnings), tuple(self.usages), tuple(self.spans), self.message + 1)


_WHY = {
    "is empty": "it has no content and no calls",
    StopReason.ERROR: "an error ended it before its first block",
    StopReason.ABORTED: "it was aborted before its first block",
}


def is_json(arguments: str) -> bool:
    try:
        loads(arguments.encode())
    except FoldlineError:
        return False
    return True


def messages_of(value: Json, root: str = "$") -> list[tuple[dict[str, Json], str]]:
    """The messages of an array, or the one message that was sent, each with its path from ``root``.

    Raises:
        FoldlineError: FORMAT_INVALID with the path of what is no message.
    """
    if isinstance(value, dict):
        return [(value, root)]
    if not isinstance(value, list):
        raise invalid(root, "an array of messages, or one message", value)
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise invalid(f"{root}[{index}]", "a message object", message)
    return [(message, f"{root}[{index}]") for index, message in enumerate(value)]


def usage_of(value: Any) -> Mapping[str, Any] | None:
    found = plain(value)
    return found if isinstance(found, Mapping) and found else None
