"""A transcript as ``{system, messages}`` (W4, R5)."""

from __future__ import annotations

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
from foldline.domain.native import EDIT, NEVER_TRIGGERED
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    ProviderCompactionRow,
    ReasoningBlock,
    ServerToolBlock,
    TextBlock,
    ToolCallBlock,
)
from foldline.formats.anthropic_messages.forms import BLOCKS, FORMAT, LONGEST_ID, arguments_of
from foldline.formats.codec import Place
from foldline.formats.json_text import Json, dumps, loads_or
from foldline.formats.media import as_text
from foldline.formats.naming import legal_name
from foldline.formats.notes import Notes, apply, read_notes
from foldline.formats.ordering import as_they_came
from foldline.formats.results import Rendered
from foldline.formats.writing import EMPTY_TEXT, Writing

_CACHE_MARKS = 4
_SYSTEM_MARKS = 2
_OTHER_PROVIDERS = frozenset({"openai", "azure", "google"})


def result_block(content: Sequence[ContentBlock], call_id: str, is_error: bool, notes: Notes) -> dict[str, Json]:
    """A ``tool_result`` block; ``notes`` are the row's."""
    block = apply({"type": "tool_result", "tool_use_id": call_id} | ({"is_error": True} if is_error else {}), notes)
    shape = str(notes.get("content", ""))
    block |= {"tool_use_id": call_id}
    block.pop("content", None)
    if not content:
        empty: dict[str, Json] = {"string": "", "array": [], "null": None}
        return block | ({"content": empty[shape]} if shape in empty else {})
    if shape != "array" and len(content) == 1 and isinstance(content[0], TextBlock) and BLOCKS.is_plain(content[0]):
        return block | {"content": content[0].text}
    return block | {"content": [BLOCKS.write(b, Place.RESULT) for b in content]}


@dataclass(slots=True)
class _Message:
    """A message in the making. ``tail`` is where its last blocks come from; ``notes`` are its first row's.

    One that is ``sealed`` takes no more blocks.
    """

    role: str
    notes: Notes
    bare: bool
    tail: UserKind = UserKind.ROW
    blocks: list[dict[str, Json]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    parts: int = 0
    strippable: bool = False
    sealed: bool = False

    def to_json(self) -> dict[str, Json]:
        content: Json = self.blocks
        shape = self.notes.get("content", "string" if self.bare else "array")
        if self.parts == 1 and shape == "string" and _is_bare(self.blocks):
            content = self.blocks[0]["text"]
        return apply({"role": self.role}, self.notes) | {"content": content}


def render(arrangement: Arrangement) -> Rendered:
    """``{system, messages}``: system rows hoisted, results first, roles alternating but where the host's did not.

    With a compaction block of the edit (§12) also ``context_management``.
    """
    return _Writing().render(arrangement)


class _Writing(Writing):
    format = FORMAT

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[_Message] = []
        self.system_blocks: list[dict[str, Json]] = []
        self.system_offsets: list[int] = []
        self.system_shape = "string"
        self.ids: dict[str, str] = {}
        self.used: set[str] = set()
        self.edits = False

    def system(self, item: SystemItem) -> None:
        notes = read_notes(item.row.body.extra, FORMAT)
        blocks = self._lower(item.content, Place.SYSTEM, item.offsets)
        if notes.get("inline") is True and blocks and self._takes_system():
            message = self._open("system", notes, split=True, bare=True)
            self._put(message, blocks, item.offsets)
            return
        if self.messages:
            self.losses.note("system rows inside the conversation are hoisted before it", *item.offsets)
        own = notes.get("message")
        if self.system_offsets or (isinstance(own, dict) and own.get("content") == "array"):
            self.system_shape = "array"
        self.system_blocks += blocks
        self.system_offsets += item.offsets

    def _takes_system(self) -> bool:
        """Whether the API takes a system message here: after a user turn, before an answer or at the end."""
        following = self.following
        after_user = bool(self.messages) and self.messages[-1].role == "user"
        return after_user and (following is None or (isinstance(following, AssistantItem) and _speaks(following)))

    def user(self, item: UserItem) -> None:
        notes = self.notes_of_user(item)
        blocks = self._lower(item.content, Place.USER, item.offsets)
        if not blocks:
            self.losses.note("user messages of nothing that can be carried say so", *item.offsets)
            blocks = [{"type": "text", "text": EMPTY_TEXT}]
        message = self._open("user", notes, split=notes.get("split") is True, bare=True)
        message.tail = item.kind
        self._put(message, blocks, item.offsets)

    def assistant(self, item: AssistantItem) -> None:
        body = item.row.body
        foreign = isinstance(body, AssistantRow) and body.model.provider in _OTHER_PROVIDERS
        carried = self._carried(item.content, Place.ASSISTANT, item.offsets, foreign=foreign)
        continued = isinstance(self.following, AssistantItem) and self.following.continues
        while carried and isinstance(carried[-1], ReasoningBlock) and not continued:
            carried.pop()
            self.losses.note("thinking that ends a message is left out", *item.offsets)
        blocks = self._written(carried, Place.ASSISTANT)
        if not blocks:
            self.nothing_said(item)
            return
        calls = [b for b in blocks if b["type"] == "tool_use"]
        for name, call in zip(item.calls, calls, strict=True):
            wanted = call["id"] if name.unique_id == name.call_id else legal_name(name.unique_id, LONGEST_ID)
            call["id"] = self.ids[name.unique_id] = self._unused(wanted)
            if call["id"] != name.call_id:
                code = WarningCode.CALL_ID_RENAMED
                self.losses.note("call ids are renamed to be unique and legal", *item.offsets, code=code)
        notes = read_notes(body.extra, FORMAT)
        if not self.messages:
            self._put(self._open("user", {}, split=True, bare=True), [{"type": "text", "text": EMPTY_TEXT}], ())
        message = self._open("assistant", notes, split=notes.get("split") is True, bare=False)
        message.strippable = isinstance(carried[-1], TextBlock) and BLOCKS.is_plain(carried[-1])
        self._put(message, blocks, item.offsets)

    def _unused(self, call_id: str) -> str:
        unused, number = call_id, 1
        while unused in self.used:
            number += 1
            unused = f"{call_id}_{number}"
        self.used.add(unused)
        return unused

    def results(self, item: ResultsItem) -> None:
        results = as_they_came(item.results)
        first = results[0].row if results else None
        notes = read_notes(first.body.extra, FORMAT) if first else {}
        message = self._open("user", notes, split=False, bare=False)
        for result in results:
            self._put(message, [self._result(result)], (result.row.offset,) if result.row else ())

    def _result(self, result: CallResult) -> dict[str, Json]:
        offsets = (result.row.offset,) if result.row else ()
        notes = self.notes_of_result(result)
        content = self._carried(result.content, Place.RESULT, offsets)
        if result.is_error and not content:
            # An error without content is refused.
            content = [TextBlock(EMPTY_TEXT)]
        return result_block(content, self.ids[result.call.unique_id], result.is_error, notes)

    def native(self, item: NativeItem) -> None:
        """A compaction block: alone in a message that comes first (N2). One of no content may not be sent (XI5)."""
        body = item.row.body
        block = loads_or(body.item_json, None) if isinstance(body, ProviderCompactionRow) and body.beta else None
        if not isinstance(block, dict) or block.get("type") != "compaction" or not block.get("content"):
            self.losses.note("native compaction items of another provider are left out", *item.offsets)
            return
        if self.messages:
            self.losses.note("native compaction items that do not come first are left out", *item.offsets)
            return
        message = self._open("assistant", {}, split=True, bare=False)
        message.sealed = True
        self._put(message, [block], item.offsets)
        assert isinstance(body, ProviderCompactionRow)
        self.edits = body.beta == EDIT

    def _open(self, role: str, notes: Notes, *, split: bool, bare: bool) -> _Message:
        """The message that blocks of ``role`` go into: the last one, or a new one whose first row has ``notes``."""
        last = self.messages[-1] if self.messages else None
        joins = last is not None and last.role == role and not last.sealed
        if last is not None and joins and not (split and last.tail is UserKind.ROW):
            return last
        own = notes.get("message")
        self.messages.append(_Message(role, own if isinstance(own, dict) else {}, bare))
        return self.messages[-1]

    def _put(self, message: _Message, blocks: list[dict[str, Json]], offsets: Sequence[int]) -> None:
        message.blocks += blocks
        message.offsets += offsets
        message.parts += 1

    def _lower(self, content: Sequence[ContentBlock], place: Place, offsets: tuple[int, ...]) -> list[dict[str, Json]]:
        return self._written(self._carried(content, place, offsets), place)

    def _written(self, carried: Sequence[ContentBlock], place: Place) -> list[dict[str, Json]]:
        written = (BLOCKS.write(block, place) for block in carried)
        return [block for block in written if block is not None]

    def _carried(
        self, content: Sequence[ContentBlock], place: Place, offsets: tuple[int, ...], *, foreign: bool = False
    ) -> list[ContentBlock]:
        """The blocks that can stand in ``place``; others as text, or left out with a warning."""
        out: list[ContentBlock] = []
        for block in content:
            state = isinstance(block, ReasoningBlock | ServerToolBlock)
            if isinstance(block, TextBlock):
                out.append(block)
            elif BLOCKS.takes(block, place) and not (foreign and state and not BLOCKS.notes(block)):
                out.append(block)
                self._check_arguments(block, offsets)
            else:
                out += self.replacement(block, place, offsets)
        texts = [b for b in out if not isinstance(b, TextBlock) or b.text.strip()]
        if len(texts) < len(out):
            self.losses.note("blank texts are left out", *offsets)
        return texts

    def _check_arguments(self, block: ContentBlock, offsets: tuple[int, ...]) -> None:
        if isinstance(block, ToolCallBlock):
            _, lost, replaced = arguments_of(block)
            if lost:
                self.losses.note(lost, *offsets)
            if replaced:
                code = WarningCode.SURROGATE_REPLACED
                self.losses.note("lone surrogates in arguments became U+FFFD", *offsets, code=code)

    def finish(self) -> Rendered:
        self._strip_end()
        self._cap_cache_marks()
        out: dict[str, Json] = {}
        if self.system_offsets:
            out["system"] = self._system_json()
        out["messages"] = [message.to_json() for message in self.messages]
        if self.edits:
            # The API takes the block only beside the edit; the sidecar alone decides when to fold again.
            trigger: dict[str, Json] = {"type": "input_tokens", "value": NEVER_TRIGGERED}
            out["context_management"] = {"edits": [{"type": "compact_20260112", "trigger": trigger}]}
        spans = tuple(tuple(message.offsets) for message in self.messages)
        return Rendered(dumps(out), self.losses.warnings(), spans, tuple(self.system_offsets))

    def _system_json(self) -> Json:
        blocks = self.system_blocks
        if self.system_shape == "string":
            if not blocks:
                return ""
            if _is_bare(blocks):
                return blocks[0]["text"]
        return blocks

    def _strip_end(self) -> None:
        """The API refuses a request whose last text is the assistant's and ends in white space."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or not last.strippable:
            return
        block = last.blocks[-1]
        if block["text"] != block["text"].rstrip():
            self.losses.note("white space at the end of the last message is left out", *last.offsets)
            block["text"] = block["text"].rstrip()

    def _cap_cache_marks(self) -> None:
        """Rows keep every cache mark a host ever set, a request may carry four: the system's, then the newest."""
        system = [b for b in self.system_blocks if b.get("cache_control")]
        inside = [b for message in self.messages for block in message.blocks for b in _marked(block)]
        surplus = len(system) + len(inside) - _CACHE_MARKS
        if surplus <= 0:
            return
        kept = system[-_SYSTEM_MARKS:]
        kept += inside[-(_CACHE_MARKS - len(kept)) :]
        for block in system + inside:
            if not any(block is one for one in kept):
                del block["cache_control"]
        self.losses.note(f"a request carries {_CACHE_MARKS} cache marks at most: {surplus} older ones are left out")


def _speaks(item: AssistantItem) -> bool:
    """Whether an answer is surely sent: it holds a call, or words."""
    return any(isinstance(b, ToolCallBlock) or (as_text(b)[0] or "").strip() for b in item.content)


def _is_bare(blocks: list[dict[str, Json]]) -> bool:
    """Whether a string says all of the content."""
    return len(blocks) == 1 and blocks[0].keys() == {"type", "text"}


def _marked(block: dict[str, Json]) -> list[dict[str, Json]]:
    nested = block.get("content")
    inner = [b for b in nested if isinstance(b, dict) and b.get("cache_control")] if isinstance(nested, list) else []
    return inner + ([block] if block.get("cache_control") else [])
