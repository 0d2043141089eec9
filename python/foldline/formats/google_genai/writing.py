"""A transcript as ``{systemInstruction, contents}`` (W4, R5).

Choices: responses come before other parts of their content, each with its call's name; calls of one name that have no
ids are answered in their order. Media of results stand in their response. The first call of an answer of another model,
or of one whose signed call was trimmed (K2), carries the signature that the API documents for such calls, since newer
models refuse calls without one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

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
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    ReasoningBlock,
    ToolCallBlock,
)
from foldline.formats.codec import Place
from foldline.formats.google_genai.forms import (
    FORMAT,
    LONGEST_NAME,
    arguments_of,
    is_value,
    notes_of,
    response_part,
    snake,
    takes,
    write_call,
    write_part,
)
from foldline.formats.json_text import Json, dumps
from foldline.formats.naming import legal_name
from foldline.formats.notes import Notes, apply, read_notes, with_notes
from foldline.formats.ordering import as_they_came
from foldline.formats.results import Rendered
from foldline.formats.writing import EMPTY_TEXT, Writing

_GOOGLE = frozenset({"google", "vertex", "vertexai", "gemini"})
_SIGNATURE = re.compile(r"[a-zA-Z0-9+/_-]+={0,2}")
_SIGNATURE_FIELDS = frozenset({"thoughtSignature", "thought_signature"})
FOREIGN_SIGNATURE = "skip_thought_signature_validator"
"""What the API documents for calls of a model that signs none."""


@dataclass(slots=True)
class _Content:
    """A content in the making. ``tail`` is where its last parts come from; ``notes`` are its first row's."""

    role: str
    notes: Notes
    tail: UserKind = UserKind.ROW
    parts: list[dict[str, Json]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        head = apply({"role": self.role}, self.notes)
        return head | _parts_json(self.parts, self.notes)


def _parts_json(parts: list[dict[str, Json]], notes: Notes) -> dict[str, Json]:
    empty: dict[str, Json] = {"null": {"parts": None}, "absent": {}}
    return {"parts": parts} if parts else empty.get(str(notes.get("parts", "")), {"parts": []})


def render(arrangement: Arrangement) -> Rendered:
    """System rows hoisted, responses first, roles alternating but where the host's did not."""
    return _Writing().render(arrangement)


class _Writing(Writing):
    format = FORMAT

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[_Content] = []
        self.system_parts: list[dict[str, Json]] = []
        self.system_offsets: list[int] = []
        self.system_notes: Notes = {}
        self.system_name = "systemInstruction"
        self.calls: dict[str, tuple[str, str | None]] = {}

    def system(self, item: SystemItem) -> None:
        notes = read_notes(item.row.body.extra, FORMAT)
        if self.contents:
            self.losses.note("system rows inside the conversation are hoisted before it", *item.offsets)
        if not self.system_offsets:
            self.system_notes = _message_notes(notes)
            if notes.get("name") == "system_instruction":
                self.system_name = "system_instruction"
        self.system_parts += self._written(item.content, Place.SYSTEM, item.offsets)
        self.system_offsets += item.offsets

    def user(self, item: UserItem) -> None:
        notes = self.notes_of_user(item)
        parts = self._written(item.content, Place.USER, item.offsets)
        if not parts and "parts" not in _message_notes(notes):
            self.losses.note("user messages of nothing that can be carried say so", *item.offsets)
            parts = [{"text": EMPTY_TEXT}]
        content = self._open("user", notes, split=notes.get("split") is True)
        content.tail = item.kind
        self._put(content, parts, item.offsets)

    def assistant(self, item: AssistantItem) -> None:
        body = item.row.body
        provider = body.model.provider if isinstance(body, AssistantRow) else ""
        carried = self._carried(item.content, Place.ASSISTANT, item.offsets, provider)
        if not carried:
            self.nothing_said(item)
            return
        parts = self._answer(item, carried)
        if not self.contents:
            self._put(self._open("user", {}, split=True), [{"text": EMPTY_TEXT}], ())
        notes = read_notes(body.extra, FORMAT)
        self._put(self._open("model", notes, split=notes.get("split") is True), parts, item.offsets)

    def _answer(self, item: AssistantItem, carried: Sequence[ContentBlock]) -> list[dict[str, Json]]:
        parts: list[dict[str, Json]] = []
        names = iter(item.calls)
        foreign = not any(notes_of(b) for b in carried if isinstance(b, ToolCallBlock))
        derived = isinstance(item.row.body, AssistantRow) and item.row.body.derived_from is not None
        first = True
        for block in carried:
            if not isinstance(block, ToolCallBlock):
                written = write_part(block, Place.ASSISTANT)
                parts += [written] if written is not None else []
                continue
            name = next(names)
            call = write_call(block, name.unique_id)
            has_id = notes_of(block).get("id") is True
            self.calls[name.unique_id] = (_sent_name(block, call), name.unique_id if has_id else None)
            if has_id and name.unique_id != name.call_id:
                code = WarningCode.CALL_ID_RENAMED
                self.losses.note("call ids are renamed to be unique", *item.offsets, code=code)
            if first and (foreign or (derived and _SIGNATURE_FIELDS.isdisjoint(call))):
                call["thoughtSignature"] = FOREIGN_SIGNATURE
            first = False
            parts.append(call)
        return parts

    def results(self, item: ResultsItem) -> None:
        results = self._in_order(item.results)
        first = results[0].row if results else None
        content = self._open("user", read_notes(first.body.extra, FORMAT) if first else {}, split=False)
        for result in results:
            self._put(content, [self._result(result)], (result.row.offset,) if result.row else ())

    def _in_order(self, results: Sequence[CallResult]) -> list[CallResult]:
        """Results as they came, but those of one function in the order of its calls, where no ids match them."""
        names = {r.call.unique_id: self.calls[r.call.unique_id] for r in results}
        keys = {unique_id: name if call_id is None else f"id {call_id}" for unique_id, (name, call_id) in names.items()}
        waiting: dict[str, list[CallResult]] = {}
        for result in results:
            waiting.setdefault(keys[result.call.unique_id], []).append(result)
        return [waiting[keys[result.call.unique_id]].pop(0) for result in as_they_came(results)]

    def _result(self, result: CallResult) -> dict[str, Json]:
        offsets = (result.row.offset,) if result.row else ()
        notes = self.notes_of_result(result)
        name, call_id = self.calls[result.call.unique_id]
        content = self._carried(result.content, Place.RESULT, offsets)
        part = apply(response_part(content, name, call_id, result.is_error, notes), notes)
        # What a shortened text or another call's name replaces must not come back by the notes.
        fields = part.get("functionResponse")
        if isinstance(fields, dict):
            part["functionResponse"] = fields | {"name": name} | ({"id": call_id} if call_id is not None else {})
        return snake(part) if notes.get("snake") is True else part

    def native(self, item: NativeItem) -> None:
        self.losses.note("native compaction items are left out", *item.offsets)

    def _open(self, role: str, notes: Notes, *, split: bool) -> _Content:
        """The content that parts of ``role`` go into: the last one, or a new one whose first row has ``notes``."""
        last = self.contents[-1] if self.contents else None
        if last is not None and last.role == role and not (split and last.tail is UserKind.ROW):
            return last
        self.contents.append(_Content(role, _message_notes(notes)))
        return self.contents[-1]

    def _put(self, content: _Content, parts: list[dict[str, Json]], offsets: Sequence[int]) -> None:
        content.parts += parts
        content.offsets += offsets

    def _written(
        self, content: Sequence[ContentBlock], place: Place, offsets: tuple[int, ...]
    ) -> list[dict[str, Json]]:
        written = (write_part(block, place) for block in self._carried(content, place, offsets))
        return [part for part in written if part is not None]

    def _carried(
        self, content: Sequence[ContentBlock], place: Place, offsets: tuple[int, ...], provider: str = ""
    ) -> list[ContentBlock]:
        """The blocks that can stand in ``place``; others as text, or left out with a warning."""
        out: list[ContentBlock] = []
        for block in content:
            if isinstance(block, ToolCallBlock) and place is Place.ASSISTANT:
                out.append(block)
                self._check_arguments(block, offsets)
            elif takes(block, place) or (place is Place.RESULT and is_value(block)):
                out.append(block)
            elif isinstance(block, ReasoningBlock) and provider in _GOOGLE and _is_signed(block):
                out.append(with_notes(block, FORMAT, {"as": "thought"}))
            else:
                out += self.replacement(block, place, offsets)
        return out

    def _check_arguments(self, block: ToolCallBlock, offsets: tuple[int, ...]) -> None:
        _, lost, replaced = arguments_of(block)
        if lost and not notes_of(block):
            self.losses.note(lost, *offsets)
        if replaced:
            code = WarningCode.SURROGATE_REPLACED
            self.losses.note("lone surrogates in arguments became U+FFFD", *offsets, code=code)

    def finish(self) -> Rendered:
        out: dict[str, Json] = {}
        if self.system_offsets and (self.system_parts or self.system_notes):
            head = apply({}, self.system_notes)
            out[self.system_name] = head | _parts_json(self.system_parts, self.system_notes)
        out["contents"] = [content.to_json() for content in self.contents]
        spans = tuple(tuple(content.offsets) for content in self.contents)
        return Rendered(dumps(out), self.losses.warnings(), spans, tuple(self.system_offsets))


def _is_signed(block: ReasoningBlock) -> bool:
    """Whether a block that came as a typed row can be a thought of the API: its signature is base64."""
    return not block.extra and bool(_SIGNATURE.fullmatch(block.signature))


def _message_notes(notes: Notes) -> Notes:
    own = notes.get("message")
    return own if isinstance(own, dict) else {}


def _sent_name(block: ToolCallBlock, call: dict[str, Json]) -> str:
    """The name that a call is sent with, which its response has to repeat."""
    fields = call.get("functionCall", call.get("function_call"))
    name = fields.get("name") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else legal_name(block.name, LONGEST_NAME)
