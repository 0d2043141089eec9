"""Chat messages and chat completions as rows (W4, R2, R4)."""

from __future__ import annotations

from typing import TypeVar

from foldline.domain.enums import StopReason, WarningCode
from foldline.domain.rows import AssistantRow, ContentBlock, RowBody, SystemRow, ToolResultRow, UserRow
from foldline.formats.codec import Place, expect_object, expect_text, invalid
from foldline.formats.json_text import Json
from foldline.formats.notes import Notes, diff, shape_of, with_notes
from foldline.formats.openai_chat.forms import (
    CONTENT_FIELDS,
    FORMAT,
    PARTS,
    REASONING_FIELDS,
    TRANSCRIPT,
    Field,
    function_call_id,
    read_call,
)
from foldline.formats.openai_chat.writing import build, head_of
from foldline.formats.reading import Reading
from foldline.formats.results import Parsed, ParsedResponse
from foldline.formats.stops import stop_reason

_Body = TypeVar("_Body", bound=SystemRow | UserRow | AssistantRow | ToolResultRow)
_FINISH = ("finish_reason", "stop_reason")


def parse(data: bytes) -> Parsed:
    """An array of chat messages, or one, as one row each; assistant messages without content are dropped (R4).

    Raises:
        FoldlineError: FORMAT_INVALID with the path of what is not as the API takes it.
    """
    reading = Reading()
    for message, path in reading.messages(reading.load(data, "json")):
        body = read_message(message, path)
        if isinstance(body, AssistantRow):
            reading.take_assistant(body, path, message.get("usage"), message.get("model"))
        else:
            reading.take(body)
    return reading.parsed()


def parse_response(body: bytes) -> ParsedResponse:
    """A whole chat completion: its first choice.

    Raises:
        FoldlineError: FORMAT_INVALID: no chat completion, and no error of one either.
    """
    reading = Reading()
    response = expect_object(reading.load(body, "response_json"), "$")
    model = response["model"] if isinstance(response.get("model"), str) else ""
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        if "error" not in response and not isinstance(choices, list):
            raise invalid("$.choices", "an array", choices)
        reading.warn(WarningCode.MESSAGE_DROPPED, "the response holds no answer")
        stopped = StopReason.ERROR if "error" in response else None
        return ParsedResponse((), tuple(reading.warnings), model, stopped)
    if len(choices) > 1:
        reading.warn(WarningCode.FORMAT_LOSS, f"the first of {len(choices)} choices is taken, the others are left out")
    choice = expect_object(choices[0], "$.choices[0]")
    path = "$.choices[0].message"
    message = expect_object(choice.get("message"), path)
    stopped = stop_reason(choice.get("finish_reason"))
    row = read_message({"role": "assistant", **message}, path, stopped)
    if not isinstance(row, AssistantRow):
        raise invalid(f"{path}.role", '"assistant"', message.get("role"))
    reading.take_assistant(row, path)
    return ParsedResponse(tuple(reading.rows), tuple(reading.warnings), model, stopped)


def read_message(message: dict[str, Json], path: str, stopped: StopReason | None = None) -> RowBody:
    """One message as its row; an answer may come out without blocks.

    Raises:
        FoldlineError: FORMAT_INVALID with the path of what is not as the API takes it.
    """
    role = expect_text(message, "role", path)
    if role in ("system", "developer"):
        return _noted(SystemRow(_content(message, Place.SYSTEM, path)), message, Place.SYSTEM)
    if role == "user":
        return _noted(UserRow(_content(message, Place.USER, path)), message, Place.USER)
    if role == "tool":
        call_id = expect_text(message, "tool_call_id", path)
        return _noted(ToolResultRow(call_id, _content(message, Place.RESULT, path)), message, Place.RESULT)
    if role == "function":
        call_id = function_call_id(expect_text(message, "name", path))
        return _noted(ToolResultRow(call_id, _content(message, Place.RESULT, path)), message, Place.RESULT)
    if role == "assistant":
        return _read_assistant(message, path, stopped)
    raise invalid(f"{path}.role", "system, developer, user, assistant, tool or function", role)


def _content(message: dict[str, Json], place: Place, path: str) -> tuple[ContentBlock, ...]:
    content = message.get("content")
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (PARTS.read({"type": "text", "text": content}, place, f"{path}.content"),)
    if not isinstance(content, list):
        raise invalid(f"{path}.content", "a string or an array of parts", content)
    return tuple(PARTS.read(part, place, f"{path}.content[{i}]") for i, part in enumerate(content))


def _read_assistant(message: dict[str, Json], path: str, stopped: StopReason | None) -> AssistantRow:
    blocks: list[ContentBlock] = []
    blocks += _fields(REASONING_FIELDS, message)
    blocks += _content(message, Place.ASSISTANT, path)
    blocks += _fields(CONTENT_FIELDS, message)
    calls = message.get("tool_calls")
    if not isinstance(calls, list | None):
        raise invalid(f"{path}.tool_calls", "an array", calls)
    for index, call in enumerate(calls or ()):
        at = f"{path}.tool_calls[{index}]"
        blocks.append(read_call(expect_object(call, at), at))
    words = (stop_reason(message.get(name)) for name in _FINISH)
    stopped = stopped or next((word for word in words if word), None)
    return _noted(AssistantRow(tuple(blocks), stop_reason=stopped), message, Place.ASSISTANT)


def _fields(fields: dict[str, Field], message: dict[str, Json]) -> list[ContentBlock]:
    blocks: list[ContentBlock] = []
    for name, field in fields.items():
        value = message.get(name)
        block = field.read(value)
        if block is None:
            continue
        notes: Notes = {"as": f"message.{name}"}
        spoken = None
        if isinstance(value, dict):
            spoken = TRANSCRIPT.read(value.get("transcript")) if name == "audio" else None
            rest = {k: v for k, v in value.items() if not (spoken and k == "transcript")}
            notes |= diff(field.write(block), rest)
        blocks.append(with_notes(block, FORMAT, notes))
        if spoken:
            blocks.append(with_notes(spoken, FORMAT, {"as": "message.audio.transcript"}))
    return blocks


def _noted(body: _Body, message: dict[str, Json], place: Place) -> _Body:
    """The row with what its canonical message would not give back."""
    base = build(place, body.content, head_of(place, body.call_id if isinstance(body, ToolResultRow) else ""))
    shape = shape_of(message)
    said_nothing = not body.content and place in (Place.SYSTEM, Place.USER)
    notes: Notes = {"content": shape} if said_nothing or shape_of(base) != shape else {}
    base.pop("content", None)
    return with_notes(body, FORMAT, notes | diff(base, {k: v for k, v in message.items() if k != "content"}))
