"""Messages and whole responses of the messages API as rows (W4, R2, R4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from foldline.domain.enums import StopReason, WarningCode
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    RowBody,
    SystemRow,
    TextBlock,
    ToolResultRow,
    UserRow,
)
from foldline.formats.anthropic_messages.forms import BLOCKS, FORMAT
from foldline.formats.anthropic_messages.writing import result_block
from foldline.formats.codec import Place, expect_object, expect_text, invalid
from foldline.formats.json_text import Json
from foldline.formats.notes import Notes, diff, read_notes, shape_of, with_notes
from foldline.formats.reading import Reading
from foldline.formats.results import Parsed, ParsedResponse
from foldline.formats.stops import stop_reason

_Body = TypeVar("_Body", bound=SystemRow | UserRow | AssistantRow | ToolResultRow)
_ANSWER_FIELDS = ("role", "content")


def parse(data: bytes) -> Parsed:
    """Rows of ``{system, messages}``, of an array of messages, or of one message.

    Raises:
        FoldlineError: FORMAT_INVALID with the path of what is not as the API takes it.
    """
    reading = Reading()
    value = reading.load(data, "json")
    root, role = "$", ""
    if isinstance(value, dict) and "role" not in value:
        ignored = sorted(value.keys() - {"system", "messages"})
        if ignored:
            reading.warn(WarningCode.FORMAT_LOSS, f"{', '.join(ignored)} of the request are no part of the transcript")
        if not isinstance(value.get("messages"), list):
            raise invalid("$.messages", "an array of messages", value.get("messages"))
        if value.get("system") is not None:
            reading.take(_read_system(value["system"]))
            role = "system"
        root, value = "$.messages", value["messages"]
    for message, path in reading.messages(value, root):
        role = _read_message(reading, message, path, role)
    return reading.parsed()


def parse_response(body: bytes) -> ParsedResponse:
    """A whole response of the messages endpoint.

    Raises:
        FoldlineError: FORMAT_INVALID: neither a message nor an error.
    """
    reading = Reading()
    response = expect_object(reading.load(body, "response_json"), "$")
    if response.get("type") == "error" or "error" in response:
        reading.warn(WarningCode.MESSAGE_DROPPED, "the response is an error and holds no answer")
        return ParsedResponse((), tuple(reading.warnings), "", StopReason.ERROR)
    if response.get("role") != "assistant":
        raise invalid("$.role", '"assistant"', response.get("role"))
    stopped = stop_reason(response.get("stop_reason"))
    answer = {key: response[key] for key in _ANSWER_FIELDS if key in response}
    reading.take_assistant(_read_assistant(answer, "$", stopped, split=False), "$")
    model = response["model"] if isinstance(response.get("model"), str) else ""
    return ParsedResponse(tuple(reading.rows), tuple(reading.warnings), model, stopped)


def _read_message(reading: Reading, message: dict[str, Json], path: str, before: str) -> str:
    """Takes one message after one of role ``before``, empty where that is unknown; returns its role."""
    role = expect_text(message, "role", path)
    if role == "user":
        for body in _read_user(message, path, before):
            reading.take(body)
    elif role == "assistant":
        stopped = stop_reason(message.get("stop_reason"))
        # A response body among the messages: only its message can be sent again.
        sent = message
        if message.get("type") == "message":
            sent = {key: message[key] for key in _ANSWER_FIELDS if key in message}
        body = _read_assistant(sent, path, stopped, split=before == "assistant")
        taken = reading.take_assistant(body, path, message.get("usage"), message.get("model"))
        return role if taken else before
    elif role == "system":
        body = SystemRow(_content(message.get("content"), Place.SYSTEM, f"{path}.content"))
        reading.take(_with_message(body, message, {"inline": True}, "string"))
    else:
        raise invalid(f"{path}.role", "user, assistant or system", role)
    return role


def _read_system(system: Json) -> SystemRow:
    body = SystemRow(_content(system, Place.SYSTEM, "$.system"))
    shape = shape_of({"content": system})
    as_expected = shape == _canonical(body.content, "string")
    return with_notes(body, FORMAT, {} if as_expected else {"message": {"content": shape}})


def _read_assistant(message: dict[str, Json], path: str, stopped: StopReason | None, *, split: bool) -> AssistantRow:
    content = _content(message.get("content"), Place.ASSISTANT, f"{path}.content")
    if content and isinstance(content[-1], TextBlock) and content[-1].text != content[-1].text.rstrip():
        # Rendering strips what ends a request; the host's own text stays as it is.
        last = with_notes(content[-1], FORMAT, {"as": "text", **read_notes(content[-1].extra, FORMAT)})
        content = (*content[:-1], last)
    notes: Notes = {"split": True} if split else {}
    return _with_message(AssistantRow(content, stop_reason=stopped), message, notes, "array")


def _read_user(message: dict[str, Json], path: str, before: str) -> Iterator[RowBody]:
    """A row for each result and one for each stretch of other blocks between them."""
    rows: list[UserRow | ToolResultRow] = []
    stretch: list[ContentBlock] = []
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    for index, block in enumerate(blocks):
        at = f"{path}.content[{index}]"
        if expect_object(block, at).get("type") == "tool_result":
            if stretch:
                rows.append(UserRow(tuple(stretch)))
                stretch = []
            rows.append(_read_result(block, at))
        else:
            stretch.append(BLOCKS.read(block, Place.USER, at))
    if not isinstance(content, list):
        stretch += _content(content, Place.USER, f"{path}.content")
    if stretch or not rows:
        rows.append(UserRow(tuple(stretch)))
    first = rows[0]
    notes = read_notes(first.extra, FORMAT)
    if isinstance(first, UserRow) and before in ("", "user"):
        notes = {"split": True}
    alone = len(rows) == 1 and isinstance(first, UserRow)
    yield _with_message(first, message, notes, "string" if alone else "array")
    yield from rows[1:]


def _read_result(block: dict[str, Json], path: str) -> ToolResultRow:
    call_id = expect_text(block, "tool_use_id", path)
    content = _content(block.get("content"), Place.RESULT, f"{path}.content")
    body = ToolResultRow(call_id, content, is_error=block.get("is_error") is True)
    base = result_block(content, call_id, body.is_error, {})
    shape = shape_of(block)
    notes: Notes = {} if shape_of(base) == shape else {"content": shape}
    base.pop("content", None)
    return with_notes(body, FORMAT, notes | diff(base, {k: v for k, v in block.items() if k != "content"}))


def _content(content: Json, place: Place, path: str) -> tuple[ContentBlock, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextBlock(content),)
    if not isinstance(content, list):
        raise invalid(path, "a string or an array of blocks", content)
    return tuple(BLOCKS.read(block, place, f"{path}[{i}]") for i, block in enumerate(content))


def _canonical(content: tuple[ContentBlock, ...], bare: str) -> str:
    """The shape that content is written in without notes: ``bare`` where a string can say all of it."""
    return bare if not content or (len(content) == 1 and BLOCKS.is_plain(content[0])) else "array"


def _with_message(body: _Body, message: dict[str, Json], notes: Notes, bare: str) -> _Body:
    """The row with notes on its message: the content's shape, and fields that rows do not have."""
    shape = shape_of(message)
    own: Notes = {}
    if shape != (_canonical(body.content, bare) if not isinstance(body, ToolResultRow) else "array"):
        own["content"] = shape
    own |= diff({"role": message["role"]}, {k: v for k, v in message.items() if k != "content"})
    return with_notes(body, FORMAT, notes | ({"message": own} if own else {}))
