"""Outputs of calls: result rows as items, and back."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.domain.rows import ContentBlock, StructuredBlock, TextBlock, ToolResultRow
from foldline.formats.codec import Place, invalid
from foldline.formats.json_text import Json, loads_or, text
from foldline.formats.notes import Notes, apply, diff, read_notes, with_notes
from foldline.formats.openai_responses.forms import CALLS, FORMAT, FUNCTION, OUTPUTS, PARTS, named_by

_EMPTY: dict[str, Json] = {"string": "", "array": [], "null": None}


def read_output(item: dict[str, Json], call_id: str, path: str) -> ToolResultRow:
    """The row of what answers a call.

    Raises:
        FoldlineError: FORMAT_INVALID: a function's output is neither text nor parts.
    """
    kind = OUTPUTS[item["type"]]
    field = CALLS[kind].result
    given = item.get(field)
    shape, content = _content(given, kind, f"{path}.{field}")
    if field not in item:
        shape = "absent"
    failed = kind == "apply_patch_call" and item.get("status") == "failed"
    body = ToolResultRow(call_id, content, is_error=failed)
    base = _item(kind, body.is_error) | {"call_id": call_id}
    notes: Notes = {} if kind == FUNCTION else {"as": item["type"]}
    if shape != ("string" if is_text(content) else "array"):
        notes["content"] = shape
    return with_notes(body, FORMAT, notes | diff(base, {k: v for k, v in item.items() if k != field}))


def _content(given: Json, kind: str, path: str) -> tuple[str, tuple[ContentBlock, ...]]:
    """(shape, blocks) of a result."""
    if given is None:
        return "null", ()
    if isinstance(given, str):
        return "string", (TextBlock(given),) if given else ()
    called = kind in (FUNCTION, "custom_tool_call")
    if called and isinstance(given, list):
        return "array", tuple(PARTS.read(part, Place.RESULT, f"{path}[{i}]") for i, part in enumerate(given))
    if called:
        raise invalid(path, "a string or an array of parts", given)
    if isinstance(given, dict) and isinstance(given.get("type"), str):
        return "part", (PARTS.read(given, Place.RESULT, path),)
    return "value", (StructuredBlock(text(given)),)


def is_text(content: Sequence[ContentBlock]) -> bool:
    """Whether a result is written as a string; several texts are joined, since many servers take only strings."""
    return all(isinstance(b, TextBlock) and PARTS.is_plain(b) for b in content)


def write_output(kind: str, call_id: str, content: Sequence[ContentBlock], is_error: bool, notes: Notes) -> Json:
    """The item that answers a call of ``kind``; ``notes`` are the row's, where it came as this item."""
    item = apply(_item(kind, is_error) | {"call_id": call_id}, notes)
    item[named_by(item)] = call_id
    field = CALLS[kind].result
    shape = str(notes.get("content", ""))
    item.pop(field, None)
    if shape == "absent" and not content:
        return item
    return item | {field: _result(content, shape)}


def _result(content: Sequence[ContentBlock], shape: str) -> Json:
    if not content:
        return _EMPTY.get(shape, "")
    first = content[0]
    if shape == "value" and len(content) == 1 and isinstance(first, StructuredBlock):
        return loads_or(first.json, first.json)
    if shape == "part" and len(content) == 1:
        return PARTS.write(first, Place.RESULT)
    if shape != "array" and is_text(content):
        return "\n".join(b.text for b in content if isinstance(b, TextBlock))
    return [PARTS.write(b, Place.RESULT) for b in content]


def _item(kind: str, is_error: bool) -> dict[str, Json]:
    item: dict[str, Json] = {"type": CALLS[kind].output}
    if kind == "apply_patch_call":
        item["status"] = "failed" if is_error else "completed"
    return item


def own_notes(row_extra: str, kind: str) -> Notes | None:
    """The notes of a result row on the output of a call of ``kind``; None where it came as another one's."""
    notes = read_notes(row_extra, FORMAT)
    return notes if notes.get("as", CALLS[FUNCTION].output) == CALLS[kind].output else None
