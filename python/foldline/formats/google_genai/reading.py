"""Contents and whole responses of generateContent as rows (W4, R2, R4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from foldline.domain.enums import StopReason, WarningCode
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    RowBody,
    StructuredBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)
from foldline.formats.codec import Place, expect_object, expect_text, invalid
from foldline.formats.google_genai.forms import (
    FORMAT,
    LONGEST_NAME,
    VERBATIM,
    call_id_of,
    camel,
    kind_of,
    read_call,
    read_part,
    response_part,
    spelled,
)
from foldline.formats.json_text import Json, text
from foldline.formats.naming import legal_name
from foldline.formats.notes import Notes, diff, read_notes, with_notes
from foldline.formats.reading import Reading
from foldline.formats.results import Parsed, ParsedResponse
from foldline.formats.stops import stop_reason

_Body = TypeVar("_Body", bound=SystemRow | UserRow | AssistantRow | ToolResultRow)
_SYSTEM = ("systemInstruction", "system_instruction")
_TEXT_KEYS = ("output", "error", "result", "content")
"""Fields of a response that hold its text by custom, where it holds nothing else."""


def parse(data: bytes) -> Parsed:
    """Rows of ``{systemInstruction, contents}``, of an array of contents, or of one content.

    Raises:
        FoldlineError: FORMAT_INVALID with the path of what is not as the API takes it.
    """
    reading = Reading()
    value = reading.load(data, "json")
    root = "$"
    if isinstance(value, dict) and "parts" not in value and value.keys() & {"contents", *_SYSTEM}:
        if ignored := sorted(value.keys() - {"contents", *_SYSTEM}):
            reading.warn(WarningCode.FORMAT_LOSS, f"{', '.join(ignored)} of the request are no part of the transcript")
        if not isinstance(value.get("contents"), list):
            raise invalid("$.contents", "an array of contents", value.get("contents"))
        for name in _SYSTEM:
            if value.get(name) is not None:
                reading.take(_read_system(value[name], name))
        root, value = "$.contents", value["contents"]
    contents = _Contents(reading)
    for content, path in reading.messages(value, root):
        contents.take(content, path)
    return reading.parsed()


def parse_response(body: bytes) -> ParsedResponse:
    """A whole response: its first candidate.

    Raises:
        FoldlineError: FORMAT_INVALID: neither a response nor an error.
    """
    reading = Reading()
    response = expect_object(reading.load(body, "response_json"), "$")
    usage = _either(response, "usageMetadata", "usage_metadata")
    named = _either(response, "modelVersion", "model_version")
    model = named if isinstance(named, str) else ""
    candidates = response.get("candidates")
    if not candidates:
        feedback = _either(response, "promptFeedback", "prompt_feedback")
        if "error" not in response and not usage and feedback is None:
            raise invalid("$.candidates", "an array", candidates)
        reading.warn(WarningCode.MESSAGE_DROPPED, "the response holds no answer")
        blocked = isinstance(feedback, dict) and _either(feedback, "blockReason", "block_reason")
        stopped = StopReason.ERROR if "error" in response else StopReason.REFUSAL if blocked else None
        return ParsedResponse((), tuple(reading.warnings), model, stopped)
    if not isinstance(candidates, list):
        raise invalid("$.candidates", "an array", candidates)
    if len(candidates) > 1:
        said = f"the first of {len(candidates)} candidates is taken, the others are left out"
        reading.warn(WarningCode.FORMAT_LOSS, said)
    candidate = expect_object(candidates[0], "$.candidates[0]")
    path = "$.candidates[0].content"
    content = {"role": "model"} | expect_object(candidate.get("content") or {}, path)
    stopped = stop_reason(_either(candidate, "finishReason", "finish_reason"))
    contents = _Contents(reading)
    answer = contents.answer(content, path, split=False)
    # The API says STOP also where it waits for the results of calls.
    if stopped is StopReason.END_TURN and any(isinstance(b, ToolCallBlock) for b in answer.content):
        stopped = StopReason.TOOL_CALLS
    whole = AssistantRow(answer.content, stop_reason=stopped, extra=answer.extra)
    reading.take_assistant(whole, path)
    return ParsedResponse(tuple(reading.rows), tuple(reading.warnings), model, stopped)


def _either(fields: dict[str, Json], name: str, other: str) -> Json:
    return fields.get(name, fields.get(other))


def _read_system(system: Json, name: str) -> SystemRow:
    content = expect_object(system, f"$.{name}")
    blocks = [read_part(part, Place.SYSTEM) for part, _ in _parts(content, f"$.{name}")]
    notes: Notes = {} if name == _SYSTEM[0] else {"name": name}
    return _with_message(SystemRow(tuple(blocks)), content, notes, {})


class _Contents:
    """Reads contents one after the other; knows the calls that wait for their responses, which may have no ids."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.role = ""
        self.waiting: list[ToolCallBlock] = []
        self.answered: set[str] = set()
        self.numbers: Counter[str] = Counter()

    def take(self, content: dict[str, Json], path: str) -> None:
        role = content.get("role")
        if role == "model":
            body = self.answer(content, path, split=self.role == "model")
            if self.reading.take_assistant(body, path):
                self.role = "model"
        elif role in ("user", "function", "tool", None):
            for row in self._asked(content, path):
                self.reading.take(row)
            self.role = "user"
        else:
            raise invalid(f"{path}.role", "user or model", role)

    def answer(self, content: dict[str, Json], path: str, *, split: bool) -> AssistantRow:
        """The row of a model's content; it may come out without blocks."""
        numbers: Counter[str] = Counter()
        calls: list[ToolCallBlock] = []
        blocks: list[ContentBlock] = []
        for part, at in _parts(content, path):
            normal = camel(part)
            kind = kind_of(normal)
            if kind == "functionCall":
                calls.append(self._call(part, normal["functionCall"], [c.call_id for c in calls], numbers, at))
                blocks.append(calls[-1])
            else:
                blocks.append(read_part(part, Place.ASSISTANT, numbers[kind]))
                numbers[kind] += 1
        self.waiting, self.answered, self.numbers = calls, set(), Counter()
        return _with_message(AssistantRow(tuple(blocks)), content, {"split": True} if split else {}, {"role": "model"})

    def _call(
        self, part: dict[str, Json], call: Json, used: list[str], numbers: Counter[str], path: str
    ) -> ToolCallBlock:
        fields = expect_object(call, f"{path}.functionCall")
        name = expect_text(fields, "name", f"{path}.functionCall")
        given = fields.get("id")
        number = numbers[f"call {name}"]
        numbers[f"call {name}"] += 1
        if isinstance(given, str) and given and given not in used:
            return read_call(part, given)
        return read_call(part, call_id_of(name, number))

    def _asked(self, content: dict[str, Json], path: str) -> Iterator[RowBody]:
        """A row for each response and one for each stretch of other parts between them."""
        rows: list[UserRow | ToolResultRow] = []
        stretch: list[ContentBlock] = []
        for part, at in _parts(content, path):
            if kind_of(camel(part)) == "functionResponse":
                if stretch:
                    rows.append(UserRow(tuple(stretch)))
                    stretch = []
                rows.append(self._response(part, at))
            else:
                stretch.append(read_part(part, Place.USER))
        if stretch or not rows:
            rows.append(UserRow(tuple(stretch)))
        first = rows[0]
        notes = read_notes(first.extra, FORMAT)
        if isinstance(first, UserRow) and self.role in ("", "user"):
            notes = {"split": True}
        yield _with_message(first, content, notes, {"role": "user"})
        yield from rows[1:]

    def _response(self, part: dict[str, Json], path: str) -> ToolResultRow:
        normal, notes = spelled(part)
        at = f"{path}.functionResponse"
        fields = expect_object(normal["functionResponse"], at)
        name, given = expect_text(fields, "name", at), fields.get("id")
        content, is_error, key = _response_content(fields, at)
        if key is not None:
            notes["key"] = key
        call_id = self._answered(name, given if isinstance(given, str) else "")
        base = response_part(content, legal_name(name, LONGEST_NAME), _text(given), is_error, notes)
        body = ToolResultRow(call_id, content, is_error=is_error)
        return with_notes(body, FORMAT, notes | diff(base, normal))

    def _answered(self, name: str, given: str) -> str:
        """The id of the call that a response answers: its own, else that of the next one by name and order."""
        left = [c.call_id for c in self.waiting if c.name == name and c.call_id not in self.answered]
        if given and given not in self.answered:
            found = given
        else:
            found = left[0] if left else given or call_id_of(name, self.numbers[name])
        self.numbers[name] += 1
        self.answered.add(found)
        return found


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _response_content(fields: dict[str, Json], path: str) -> tuple[tuple[ContentBlock, ...], bool, str | None]:
    """(blocks, whether it is an error, the field that held its text where that is not the usual one)."""
    response, nested = fields.get("response"), fields.get("parts")
    if not isinstance(response, dict | None):
        raise invalid(f"{path}.response", "an object", response)
    if not isinstance(nested, list | None):
        raise invalid(f"{path}.parts", "an array of parts", nested)
    blocks: tuple[ContentBlock, ...] = ()
    is_error, key = False, None
    if response is not None:
        is_error = "error" in response and "output" not in response
        held = next(iter(response)) if len(response) == 1 else ""
        if held in _TEXT_KEYS and isinstance(response[held], str):
            blocks = (TextBlock(response[held]),) if response[held] else ()
            key = None if held in ("output", "error") else held
        else:
            blocks = (StructuredBlock(text(response)),)
    for index, part in enumerate(nested or ()):
        blocks += (_nested(expect_object(part, f"{path}.parts[{index}]")),)
    return blocks, is_error, key


def _nested(part: dict[str, Json]) -> ContentBlock:
    """A part inside a response; all but media are kept verbatim, since a response's text stands elsewhere."""
    if kind_of(camel(part)) in ("inlineData", "fileData"):
        return read_part(part, Place.RESULT)
    return with_notes(StructuredBlock(text(part)), FORMAT, {"as": VERBATIM})


def _parts(content: dict[str, Json], path: str) -> Iterator[tuple[dict[str, Json], str]]:
    parts = content.get("parts")
    if not isinstance(parts, list | None):
        raise invalid(f"{path}.parts", "an array of parts", parts)
    for index, part in enumerate(parts or ()):
        at = f"{path}.parts[{index}]"
        yield expect_object(part, at), at


def _with_message(body: _Body, content: dict[str, Json], notes: Notes, head: dict[str, Json]) -> _Body:
    """The row with notes on its content: fields that rows do not have, and parts that are missing altogether."""
    own = diff(head, {k: v for k, v in content.items() if k != "parts"})
    if not content.get("parts"):
        own["parts"] = "array" if content.get("parts") == [] else "null" if "parts" in content else "absent"
    return with_notes(body, FORMAT, notes | ({"message": own} if own else {}))
