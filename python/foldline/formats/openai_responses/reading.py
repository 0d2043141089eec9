"""Input items and whole responses of the Responses API as rows (W4, R2, R4)."""

from __future__ import annotations

from typing import TypeVar

from foldline.domain.enums import StopReason, WarningCode
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    StructuredBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    UserRow,
)
from foldline.formats.codec import Place, expect_object, expect_text, invalid
from foldline.formats.json_text import Json, text
from foldline.formats.notes import Notes, diff, read_notes, shape_of, with_notes
from foldline.formats.openai_responses.forms import (
    CALLS,
    FORMAT,
    IMAGE_CALL,
    ITEM,
    OUTPUTS,
    PARTS,
    is_run_by_provider,
    read_call,
    read_image_call,
    read_reasoning,
    whole_item,
)
from foldline.formats.openai_responses.outputs import read_output
from foldline.formats.openai_responses.writing import head_of, is_bare
from foldline.formats.reading import Reading
from foldline.formats.results import Parsed, ParsedResponse
from foldline.formats.stops import stop_reason

_Body = TypeVar("_Body", bound=SystemRow | UserRow)
_REQUEST = {"instructions", "input"}
FROM_HOST = ("mcp_approval_response", "compaction_trigger")
"""Items of the host's side that are no messages and no outputs."""


def parse(data: bytes) -> Parsed:
    """Rows of ``{instructions, input}``, of an input, or of one item.

    Raises:
        FoldlineError: FORMAT_INVALID with the path of what is not as the API takes it.
    """
    reading = Reading()
    value = reading.load(data, "json")
    root = "$"
    if isinstance(value, dict) and not value.keys() & {"type", "role"} and value.keys() & _REQUEST:
        if ignored := sorted(value.keys() - _REQUEST):
            reading.warn(WarningCode.FORMAT_LOSS, f"{', '.join(ignored)} of the request are no part of the transcript")
        if (instructions := value.get("instructions")) is not None:
            reading.take(_read_instructions(instructions))
        root, value = "$.input", value.get("input")
    if isinstance(value, str):
        reading.message = 0
        reading.take(with_notes(UserRow((TextBlock(value),) if value else ()), FORMAT, {"bare": True}))
        return reading.parsed()
    items = _Items(reading, frozenset())
    for item, path in reading.messages(value, root):
        items.take(item, path)
    items.close()
    return reading.parsed()


def parse_response(body: bytes) -> ParsedResponse:
    """A whole response: its output items as one row.

    Raises:
        FoldlineError: FORMAT_INVALID: neither a response nor an error.
    """
    reading = Reading()
    response = expect_object(reading.load(body, "response_json"), "$")
    model = response["model"] if isinstance(response.get("model"), str) else ""
    output = response.get("output")
    if output is None and response.get("error") is not None:
        reading.warn(WarningCode.MESSAGE_DROPPED, "the response is an error and holds no answer")
        return ParsedResponse((), tuple(reading.warnings), model, StopReason.ERROR)
    if not isinstance(output, list):
        raise invalid("$.output", "an array of items", output)
    made = [(expect_object(item, f"$.output[{i}]"), f"$.output[{i}]") for i, item in enumerate(output)]
    answered = frozenset(str(item.get("call_id")) for item, _ in made if item.get("type") in OUTPUTS)
    items = _Items(reading, answered)
    for item, path in made:
        items.take(item, path)
    stopped = _stop(response, items.blocks)
    items.close(stopped, "$.output")
    return ParsedResponse(tuple(reading.rows), tuple(reading.warnings), model, stopped)


def _stop(response: dict[str, Json], blocks: list[ContentBlock]) -> StopReason | None:
    status, details = response.get("status"), response.get("incomplete_details")
    if status in ("in_progress", "queued"):
        return None
    if status == "incomplete" and isinstance(details, dict) and details.get("reason"):
        return stop_reason(details["reason"])
    if status == "completed" and any(isinstance(b, ToolCallBlock) for b in blocks):
        return StopReason.TOOL_CALLS
    return stop_reason(status)


def _read_instructions(given: Json) -> SystemRow:
    if not isinstance(given, str):
        raise invalid("$.instructions", "a string", given)
    return with_notes(SystemRow((TextBlock(given),) if given else ()), FORMAT, {"instructions": True})


class _Items:
    """Gathers the items of one answer, which is one row, and takes what stands between answers."""

    def __init__(self, reading: Reading, answered: frozenset[str]) -> None:
        self.reading = reading
        self.answered = set(answered)
        self.blocks: list[ContentBlock] = []
        self.path = ""
        self.span = (0, 0)
        self.in_message = False

    def take(self, item: dict[str, Json], path: str) -> None:
        kind = _type_of(item, path)
        if kind == "message":
            self._message(item, path)
        elif kind in FROM_HOST:
            self.close()
            self.reading.take(with_notes(UserRow((StructuredBlock(text(item)),)), FORMAT, {"as": ITEM}))
        elif kind in OUTPUTS:
            self._output(item, path)
        else:
            self._made(item, kind, path)

    def close(self, stopped: StopReason | None = None, path: str = "") -> None:
        """Ends the answer that is open; ``path`` is of one that is taken even where it is empty (R4)."""
        if self.blocks or path:
            body = AssistantRow(tuple(self.blocks), stop_reason=stopped)
            if self.reading.take_assistant(body, self.path or path):
                self.reading.spans[-1] = self.span
        self.blocks, self.path, self.in_message = [], "", False

    def _message(self, item: dict[str, Json], path: str) -> None:
        role = expect_text(item, "role", path)
        if role == "assistant":
            self._said(item, path)
            return
        self.close()
        if role == "user":
            self.reading.take(_noted(UserRow(_content(item, Place.USER, path)), item, role))
        elif role in ("system", "developer"):
            self.reading.take(_noted(SystemRow(_content(item, Place.SYSTEM, path)), item, "system"))
        else:
            raise invalid(f"{path}.role", "user, assistant, system or developer", role)

    def _said(self, item: dict[str, Json], path: str) -> None:
        blocks = list(_content(item, Place.ASSISTANT, path))
        if not blocks:
            why = f"the assistant message at {path} is dropped: it has no content"
            self.reading.warn(WarningCode.MESSAGE_DROPPED, why)
            return
        head: Notes = diff(head_of("assistant"), {k: v for k, v in item.items() if k != "content"})
        if (shape := shape_of(item)) != "array":
            head["content"] = shape
        if head or self.in_message:
            blocks[0] = with_notes(blocks[0], FORMAT, read_notes(blocks[0].extra, FORMAT) | {ITEM: head})
        self._add(blocks, path, in_message=True)

    def _output(self, item: dict[str, Json], path: str) -> None:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str) or not call_id or call_id in self.answered or is_run_by_provider(item):
            self._add([whole_item(item)], path)
            return
        self.close()
        self.reading.take(read_output(item, call_id, path))

    def _made(self, item: dict[str, Json], kind: str, path: str) -> None:
        """An item that the model made, besides messages."""
        call_id = item.get("call_id") or (item.get("id") if kind == "local_shell_call" else None)
        if kind in CALLS and (kind in ("function_call", "custom_tool_call") or isinstance(call_id, str)):
            named = expect_text(item, "call_id", path) if not isinstance(call_id, str) or not call_id else call_id
            if named not in self.answered and not is_run_by_provider(item):
                self._add([read_call(item, kind, named, path)], path)
                return
            self.answered.add(named)
        elif kind == "reasoning":
            self._add([read_reasoning(item)], path)
            return
        image = read_image_call(item) if kind == IMAGE_CALL else None
        self._add([image or whole_item(item)], path)

    def _add(self, blocks: list[ContentBlock], path: str, *, in_message: bool = False) -> None:
        if not self.blocks:
            self.path, self.span = path, (self.reading.message, self.reading.message)
        self.span = (self.span[0], self.reading.message)
        self.blocks += blocks
        self.in_message = in_message


def _type_of(item: dict[str, Json], path: str) -> str:
    """An item's type; messages and references may leave it out."""
    if "type" not in item and "role" in item:
        return "message"
    if item.get("type") is None and isinstance(item.get("id"), str):
        return "item_reference"
    return expect_text(item, "type", path)


def _content(item: dict[str, Json], place: Place, path: str) -> tuple[ContentBlock, ...]:
    content = item.get("content")
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextBlock(content),)
    if not isinstance(content, list):
        raise invalid(f"{path}.content", "a string or an array of parts", content)
    return tuple(PARTS.read(part, place, f"{path}.content[{i}]") for i, part in enumerate(content))


def _noted(body: _Body, item: dict[str, Json], role: str) -> _Body:
    """The row with what its canonical message would not give back."""
    shape = shape_of(item)
    notes: Notes = {"inline": True} if isinstance(body, SystemRow) else {}
    if not body.content or shape != ("string" if is_bare(body.content) else "array"):
        notes["content"] = shape
    return with_notes(body, FORMAT, notes | diff(head_of(role), {k: v for k, v in item.items() if k != "content"}))
