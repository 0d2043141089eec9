"""A transcript as the messages array of chat completions (W4, R5)."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.domain.arrangement import (
    Arrangement,
    AssistantItem,
    CallResult,
    NativeItem,
    ResultsItem,
    SystemItem,
    UserItem,
    UserKind,
)
from foldline.domain.enums import WarningCode
from foldline.domain.rows import ContentBlock, TextBlock, ToolCallBlock
from foldline.formats.codec import Place
from foldline.formats.json_text import Json, dumps
from foldline.formats.notes import Notes, apply, read_notes
from foldline.formats.openai_chat.forms import (
    CONTENT_FIELDS,
    FORMAT,
    PARTS,
    REASONING_FIELDS,
    TRANSCRIPT,
    Field,
    write_call,
)
from foldline.formats.ordering import as_they_came
from foldline.formats.results import Rendered
from foldline.formats.writing import EMPTY_TEXT, Writing

_FIELDS: dict[str, Field] = REASONING_FIELDS | CONTENT_FIELDS
_ROLES = {Place.SYSTEM: "system", Place.USER: "user", Place.ASSISTANT: "assistant", Place.RESULT: "tool"}
_EMPTY_SHAPES: dict[str, Json] = {"array": [], "string": ""}


def head_of(place: Place, call_id: str = "") -> dict[str, Json]:
    """A message's fields besides its content and calls."""
    return {"role": _ROLES[place]} | ({"tool_call_id": call_id} if place is Place.RESULT else {})


def build(
    place: Place, content: Sequence[ContentBlock], head: dict[str, Json], notes: Notes | None = None
) -> dict[str, Json]:
    """One message of blocks that can stand in ``place``. ``notes`` are the row's; blocks hold their own."""
    message = apply(head, notes or {})
    shape = str((notes or {}).get("content", ""))
    parts: list[ContentBlock] = []
    calls: list[Json] = []
    fields: dict[str, Json] = {}
    for block in content:
        field = _field_of(block)
        if field is not None:
            _write_field(fields, field, block)
        elif isinstance(block, ToolCallBlock):
            calls.append(write_call(block))
        else:
            parts.append(block)
    message.pop("content", None)
    if parts or shape != "absent":
        message["content"] = _content(parts, place, shape)
    message |= fields
    if calls:
        message["tool_calls"] = calls
    return message


def _content(parts: list[ContentBlock], place: Place, shape: str) -> Json:
    if not parts:
        return _EMPTY_SHAPES.get(shape or ("null" if place is Place.ASSISTANT else "string"))
    texts = [b.text for b in parts if isinstance(b, TextBlock) and PARTS.is_plain(b)]
    # Several texts of one result become one: many compatible servers take only strings there.
    if shape != "array" and len(texts) == len(parts) and (len(parts) == 1 or place is Place.RESULT):
        return "\n".join(texts)
    return [PARTS.write(b, place) for b in parts]


def _field_of(block: ContentBlock) -> str | None:
    name = str(PARTS.notes(block).get("as", ""))
    if not name.startswith("message."):
        return None
    name = name.removeprefix("message.")
    field = TRANSCRIPT if name == "audio.transcript" else _FIELDS.get(name)
    return name if field is not None and isinstance(block, field.block) else None


def _write_field(fields: dict[str, Json], name: str, block: ContentBlock) -> None:
    if name == "audio.transcript":
        fields.setdefault("audio", {})["transcript"] = TRANSCRIPT.write(block)
        return
    value = _FIELDS[name].write(block)
    fields[name] = apply(value, PARTS.notes(block)) if isinstance(value, dict) else value


def render(arrangement: Arrangement) -> Rendered:
    """The messages array. Every call is followed by its result, everything else keeps its place."""
    return _Writing().render(arrangement)


class _Writing(Writing):
    format = FORMAT

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[dict[str, Json]] = []
        self.spans: list[tuple[int, ...]] = []
        self.heads: dict[str, dict[str, Json]] = {}

    def finish(self) -> Rendered:
        return Rendered(dumps(self.messages), self.losses.warnings(), tuple(self.spans))

    def system(self, item: SystemItem) -> None:
        self._add(Place.SYSTEM, item.content, item.offsets, item.row.body.extra)

    def user(self, item: UserItem) -> None:
        if item.kind is UserKind.PLACEHOLDER:
            return
        extra = item.row.body.extra if item.kind is UserKind.ROW and item.row else ""
        self._add(Place.USER, item.content, item.offsets, extra)

    def assistant(self, item: AssistantItem) -> None:
        blocks = self._lower(item.content, Place.ASSISTANT, item.offsets)
        if not blocks:
            self.nothing_said(item)
            return
        calls = (b for b in blocks if isinstance(b, ToolCallBlock))
        self.heads = {name.unique_id: self._head(call, item) for name, call in zip(item.calls, calls, strict=True)}
        notes = read_notes(item.row.body.extra, FORMAT)
        self._append(build(Place.ASSISTANT, blocks, head_of(Place.ASSISTANT), notes), item.offsets)

    def _head(self, call: ToolCallBlock, item: AssistantItem) -> dict[str, Json]:
        """The head of the message that answers ``call``."""
        if _field_of(call) == "function_call":
            return {"role": "function", "name": call.name}
        call_id = str(write_call(call)["id"])
        if call_id != call.call_id:
            code = WarningCode.CALL_ID_RENAMED
            self.losses.note("call ids too long for the API are shortened", *item.offsets, code=code)
        return head_of(Place.RESULT, call_id)

    def results(self, item: ResultsItem) -> None:
        for result in as_they_came(item.results):
            self._result(result)

    def _result(self, result: CallResult) -> None:
        offsets = (result.row.offset,) if result.row else ()
        notes = self.notes_of_result(result)
        blocks = self._lower(result.content, Place.RESULT, offsets)
        if result.is_error:
            self.losses.note("results cannot be marked as errors: their text has to say so", *offsets)
        self._append(build(Place.RESULT, blocks, self.heads[result.call.unique_id], notes), offsets)

    def native(self, item: NativeItem) -> None:
        self.losses.note("native compaction items have no form in chat completions and are left out", *item.offsets)

    def _add(self, place: Place, content: Sequence[ContentBlock], offsets: tuple[int, ...], extra: str) -> None:
        blocks, notes = self._lower(content, place, offsets), read_notes(extra, FORMAT)
        # A host's own empty message is its own business; any other is refused.
        if not blocks and "content" not in notes:
            self.losses.note(f"{place} messages of nothing that can be carried", *offsets)
            blocks = [TextBlock(EMPTY_TEXT)]
        self._append(build(place, blocks, head_of(place), notes), offsets)

    def _append(self, message: dict[str, Json], offsets: tuple[int, ...]) -> None:
        self.messages.append(message)
        self.spans.append(offsets)

    def _lower(self, content: Sequence[ContentBlock], place: Place, offsets: tuple[int, ...]) -> list[ContentBlock]:
        """The blocks that can stand in ``place``; others as text, or left out with a warning."""
        out: list[ContentBlock] = []
        for block in content:
            if isinstance(block, ToolCallBlock) or _field_of(block) or PARTS.takes(block, place):
                out.append(block)
                continue
            out += self.replacement(block, place, offsets)
        return out
