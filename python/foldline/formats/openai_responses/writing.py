"""A transcript as ``{instructions, input}`` (W4, R5).

System rows that lead the transcript are the instructions, others stand as messages where they are; those that came as
messages stay messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from foldline.domain.arrangement import (
    Arrangement,
    AssistantItem,
    CallResult,
    Item,
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
    ImageBlock,
    ProviderCompactionRow,
    ReasoningBlock,
    ServerToolBlock,
    StructuredBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
)
from foldline.formats.codec import Place
from foldline.formats.json_text import Json, dumps, loads_or
from foldline.formats.naming import short_name
from foldline.formats.notes import Notes, apply, read_notes
from foldline.formats.openai_responses.forms import (
    CALLS,
    FORMAT,
    FUNCTION,
    IMAGE_CALL,
    ITEM,
    LONGEST_ID,
    OUTPUTS,
    PARTS,
    REASONING,
    call_kind,
    legal_id,
    notes_of,
    write_call,
    write_image_call,
    write_reasoning,
    write_whole,
)
from foldline.formats.openai_responses.outputs import own_notes, write_output
from foldline.formats.ordering import as_they_came
from foldline.formats.results import Rendered
from foldline.formats.writing import EMPTY_TEXT, Writing

_OPENAI = frozenset({"openai", "azure"})
_SERVER_ITEMS = frozenset({
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
    "mcp_list_tools", "mcp_approval_request", "compaction", "item_reference",
})  # fmt: skip
_ALWAYS_CALLED = ("function_call", "custom_tool_call")
"""Calls whose outputs may be any text."""
_TRIGGER = "compaction_trigger"


def head_of(role: str) -> dict[str, Json]:
    """A message item's fields besides its content."""
    return {"role": role} | ({"type": "message"} if role == "assistant" else {})


def is_bare(content: Sequence[ContentBlock]) -> bool:
    """Whether a string says all of a message of the host's side."""
    return len(content) == 1 and PARTS.is_plain(content[0])


def render(arrangement: Arrangement) -> Rendered:
    """``{instructions, input}``. Every batch of calls is followed by its outputs, everything else keeps its place."""
    return _Writing().render(arrangement)


class _Writing(Writing):
    format = FORMAT

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Json]] = []
        self.spans: list[tuple[int, ...]] = []
        self.instructions: list[str] = []
        self.system_offsets: list[int] = []
        self.bare: str | None = None
        self.calls: dict[str, tuple[str, str]] = {}
        self.call_ids: set[str] = set()
        self.item_ids: set[str] = set()
        self.twice: set[str] = set()
        self.derived = False

    def system(self, item: SystemItem) -> None:
        notes = read_notes(item.row.body.extra, FORMAT)
        if self.items or notes.get("inline") is True:
            self._message("system", Place.SYSTEM, item.content, item.offsets, notes)
            return
        blocks = self._lower(item.content, Place.SYSTEM, item.offsets)
        self.instructions += [b.text for b in blocks if isinstance(b, TextBlock)]
        self.system_offsets += item.offsets

    def user(self, item: UserItem) -> None:
        if item.kind is UserKind.PLACEHOLDER:
            return
        notes = self.notes_of_user(item)
        only = item.content[0] if len(item.content) == 1 else None
        if notes.get("as") == ITEM and isinstance(only, StructuredBlock) and (whole := write_whole(only.json)):
            self._append(whole, item.offsets)
            return
        self._message("user", Place.USER, item.content, item.offsets, notes)
        if notes.get("bare") is True and len(self.items) == 1 and is_bare(item.content):
            self.bare = str(self.items[0]["content"])

    def _message(
        self, role: str, place: Place, content: Sequence[ContentBlock], offsets: tuple[int, ...], notes: Notes
    ) -> None:
        blocks = self._lower(content, place, offsets)
        shape = str(notes.get("content", ""))
        item = apply(head_of(role), notes)
        item.pop("content", None)
        # A host's own empty message is its own business; any other is refused.
        if not blocks and shape:
            empty: dict[str, Json] = {"array": [], "string": "", "null": None}
            self._append(item | ({"content": empty[shape]} if shape in empty else {}), offsets)
            return
        if not blocks:
            self.losses.note(f"{place} messages of nothing that can be carried", *offsets)
            blocks = [TextBlock(EMPTY_TEXT)]
        first = blocks[0]
        if shape != "array" and is_bare(blocks) and isinstance(first, TextBlock):
            self._append(item | {"content": first.text}, offsets)
        else:
            self._append(item | {"content": [PARTS.write(b, place) for b in blocks]}, offsets)

    def assistant(self, item: AssistantItem) -> None:
        body = item.row.body
        provider = body.model.provider if isinstance(body, AssistantRow) else ""
        self.derived = isinstance(body, AssistantRow) and body.derived_from is not None
        kinds = _kinds(item, self.following)
        names = iter(item.calls)
        message: dict[str, Json] | None = None
        before = len(self.items)
        for block in self._lower(item.content, Place.ASSISTANT, item.offsets, provider):
            if isinstance(block, ToolCallBlock):
                name = next(names)
                call_id = self._call_id(name.unique_id, name.call_id, item.offsets)
                kind = kinds[name.unique_id]
                self.calls[name.unique_id] = (call_id, kind)
                self._append(write_call(block, kind, call_id), item.offsets)
                message = None
            elif (whole := _whole(block)) is not None:
                if not self._is_there(whole, item.offsets):
                    self._append(whole, item.offsets)
                message = None
            else:
                message = self._say(message, block, item.offsets)
        self.derived = False
        if len(self.items) == before:
            self.nothing_said(item)

    def _is_there(self, whole: dict[str, Json], offsets: tuple[int, ...]) -> bool:
        """Whether an item is of a provider's call whose id another call has: it goes, with its output."""
        kind, call_id = whole.get("type"), whole.get("call_id")
        if not isinstance(call_id, str) or kind not in (*CALLS, *OUTPUTS):
            return False
        if kind in CALLS and call_id not in self.call_ids:
            self.call_ids.add(call_id)
        elif kind in CALLS:
            self.twice.add(call_id)
            self.losses.note("items that are there already are left out", *offsets)
        return call_id in self.twice

    def _say(
        self, message: dict[str, Json] | None, block: ContentBlock, offsets: tuple[int, ...]
    ) -> dict[str, Json] | None:
        """Puts a part into the message that is open, or into a new one; returns the one that is open then."""
        starts = notes_of(block).get(ITEM)
        head: Notes = starts if isinstance(starts, dict) else {}
        if message is not None and not isinstance(starts, dict):
            message["content"].append(PARTS.write(block, Place.ASSISTANT))
            return message
        made = apply(head_of("assistant"), head)
        if head.get("content") == "string" and isinstance(block, TextBlock) and notes_of(block).keys() == {ITEM}:
            self._append(made | {"content": block.text}, offsets)
            return None
        made["content"] = [PARTS.write(block, Place.ASSISTANT)]
        self._append(made, offsets)
        return made

    def _call_id(self, unique_id: str, call_id: str, offsets: tuple[int, ...]) -> str:
        wanted = legal_id(unique_id)
        unused, number = wanted, 1
        while unused in self.call_ids:
            number += 1
            unused = short_name(f"{wanted}_{number}", LONGEST_ID)
        self.call_ids.add(unused)
        if unused != call_id:
            code = WarningCode.CALL_ID_RENAMED
            self.losses.note("call ids are renamed to be unique and short enough", *offsets, code=code)
        return unused

    def results(self, item: ResultsItem) -> None:
        for result in as_they_came(item.results):
            self._result(result)

    def _result(self, result: CallResult) -> None:
        offsets = (result.row.offset,) if result.row else ()
        call_id, kind = self.calls[result.call.unique_id]
        notes = own_notes(result.row.body.extra, kind) if result.row else None
        content = result.content
        if kind in _ALWAYS_CALLED:
            content = tuple(self._lower(content, Place.RESULT, offsets))
        if result.is_error and kind != "apply_patch_call":
            self.losses.note("results cannot be marked as errors: their text has to say so", *offsets)
        self._append(write_output(kind, call_id, content, result.is_error, notes or {}), offsets)

    def native(self, item: NativeItem) -> None:
        """``output`` of a compaction, unpruned (N2)."""
        body = item.row.body
        own = loads_or(body.item_json, None) if isinstance(body, ProviderCompactionRow) and not body.beta else None
        items = [i for i in (own if isinstance(own, list) else [own]) if isinstance(i, dict)]
        if any(i.get("type") == "compaction" for i in items):
            for each in items:
                self._append(each, item.offsets)
        else:
            self.losses.note("native compaction items of another provider are left out", *item.offsets)

    def _append(self, item: dict[str, Json], offsets: tuple[int, ...]) -> None:
        """Adds an item. The API refuses an item id that comes twice, or whose reasoning was trimmed (K2)."""
        if self.derived and item.get("type") != "reasoning" and not _needs_id(item):
            item.pop("id", None)
        # A local shell's output has its call's id as its own.
        item_id = item.get("id") if item.get("type") != "local_shell_call_output" else None
        if isinstance(item_id, str) and item_id in self.item_ids:
            if _needs_id(item):
                self.losses.note("items that are there already are left out", *offsets)
                return
            self.losses.note("item ids that are there already are left out", *offsets)
            del item["id"]
        elif isinstance(item_id, str):
            self.item_ids.add(item_id)
        self.items.append(item)
        self.spans.append(offsets)

    def _lower(
        self, content: Sequence[ContentBlock], place: Place, offsets: tuple[int, ...], provider: str = ""
    ) -> list[ContentBlock]:
        """The blocks that can stand in ``place``; others as text, or left out with a warning."""
        out: list[ContentBlock] = []
        for block in content:
            if place is Place.ASSISTANT and (isinstance(block, ToolCallBlock) or _is_item(block, provider)):
                out.append(block)
                continue
            if PARTS.takes(block, place):
                out.append(block)
                continue
            out += self.replacement(block, place, offsets)
        return out

    def finish(self) -> Rendered:
        self._drop_ends()
        out: dict[str, Json] = {}
        if self.system_offsets:
            out["instructions"] = "\n\n".join(self.instructions)
        alone = self.bare is not None and len(self.items) == 1
        out["input"] = self.bare if alone else self.items
        return Rendered(dumps(out), self.losses.warnings(), tuple(self.spans), tuple(self.system_offsets))

    def _drop_ends(self) -> None:
        """Leaves out what the API refuses by its place: reasoning that nothing follows, triggers that are not last."""
        for index in reversed(range(len(self.items))):
            kind = self.items[index].get("type")
            following = self.items[index + 1] if index + 1 < len(self.items) else None
            if kind == "reasoning" and not _is_of_model(following):
                self.losses.note("reasoning that no item of its answer follows is left out", *self.spans[index])
            elif kind == _TRIGGER and following is not None:
                self.losses.note("compaction triggers that are not last are left out", *self.spans[index])
            else:
                continue
            del self.items[index], self.spans[index]


def _kinds(item: AssistantItem, following: Item | None) -> dict[str, str]:
    """The item type of each call, by unique id.

    A built-in tool's call keeps its form where its output came in the form that belongs to it, and is sent whole; else
    both are those of a function, which take any text.
    """
    results = {r.call.unique_id: r for r in following.results} if isinstance(following, ResultsItem) else {}
    calls = (b for b in item.content if isinstance(b, ToolCallBlock))
    kinds: dict[str, str] = {}
    for name, call in zip(item.calls, calls, strict=True):
        kind, result = call_kind(call), results.get(name.unique_id)
        row = result.row.body if result is not None and result.row is not None else None
        kept = kind in _ALWAYS_CALLED or (
            isinstance(row, ToolResultRow)
            and result is not None
            and own_notes(row.extra, kind) is not None
            and result.content == row.content
        )
        kinds[name.unique_id] = kind if kept else FUNCTION
    return kinds


def _is_item(block: ContentBlock, provider: str) -> bool:
    """Whether a block of an answer is an item of its own here."""
    noted = notes_of(block).get("as")
    if isinstance(block, ReasoningBlock):
        ours = provider in _OPENAI and bool(block.state) and not block.redacted
        return noted == REASONING or (ours and not block.extra)
    if isinstance(block, ServerToolBlock):
        whole = write_whole(block.json)
        return whole is not None and (noted == ITEM or whole.get("type") == block.name in _SERVER_ITEMS)
    return isinstance(block, ImageBlock) and noted == IMAGE_CALL


def _whole(block: ContentBlock) -> dict[str, Json] | None:
    if isinstance(block, ReasoningBlock):
        return write_reasoning(block)
    if isinstance(block, ServerToolBlock):
        return write_whole(block.json)
    if isinstance(block, ImageBlock) and notes_of(block).get("as") == IMAGE_CALL:
        return write_image_call(block)
    return None


def _needs_id(item: dict[str, Json]) -> bool:
    kind = item.get("type", "message" if "role" in item else "item_reference")
    return kind not in ("message", "reasoning", *CALLS, *OUTPUTS)


def _is_of_model(item: dict[str, Json] | None) -> bool:
    if item is None:
        return False
    kind = item.get("type", "message")
    if kind == "message":
        return item.get("role") == "assistant" or "role" not in item
    return kind not in (*OUTPUTS, "compaction", _TRIGGER, "mcp_approval_response")
