"""Items and content parts of the Responses API as blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foldline.domain.enums import Format
from foldline.domain.rows import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    ServerToolBlock,
    TextBlock,
    ToolCallBlock,
)
from foldline.formats.codec import Codec, Form, Place, expect_text, invalid
from foldline.formats.json_text import Json, loads_or, text
from foldline.formats.media import WEB, WEB_IMAGES, data_uri, split_data_uri
from foldline.formats.naming import legal_name, short_name
from foldline.formats.notes import Notes, apply, diff, read_notes, with_notes

FORMAT = Format.OPENAI_RESPONSES
LONGEST_ID, LONGEST_NAME = 64, 64
_PDF = "application/pdf"
ITEM, REASONING, IMAGE_CALL = "item", "reasoning", "image_generation_call"
"""Notes ``as`` of blocks that are items of their own; calls of host tools are noted by their item's type."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The item of a call that the host runs.

    Attributes:
        output: type of the item that answers it.
        argument: field that holds the arguments: text where ``name`` is empty, else a JSON value.
        name: of a tool whose item names none.
        result: field of the output that holds the result.
    """

    output: str
    argument: str
    name: str = ""
    result: str = "output"


FUNCTION = "function_call"
CALLS: dict[str, CallForm] = {
    FUNCTION: CallForm("function_call_output", "arguments"),
    "custom_tool_call": CallForm("custom_tool_call_output", "input"),
    "computer_call": CallForm("computer_call_output", "action", "computer"),
    "local_shell_call": CallForm("local_shell_call_output", "action", "local_shell"),
    "shell_call": CallForm("shell_call_output", "action", "shell"),
    "apply_patch_call": CallForm("apply_patch_call_output", "operation", "apply_patch"),
    "tool_search_call": CallForm("tool_search_output", "arguments", "tool_search", "tools"),
}
OUTPUTS: dict[str, str] = {form.output: kind for kind, form in CALLS.items()}
"""Types of outputs to those of their calls."""


def _uri(block: ImageBlock) -> str:
    return data_uri(block.mime_type, block.data) if block.data else block.url


def _read_image(part: dict[str, Json]) -> ImageBlock | None:
    uri = part.get("image_url")
    if not isinstance(uri, str):
        return ImageBlock() if part.get("file_id") else None
    split = split_data_uri(uri)
    return ImageBlock(mime_type=split[0], data=split[1]) if split else ImageBlock(url=uri)


def _write_image(kind: str, block: ImageBlock) -> dict[str, Json]:
    return {"type": kind, "image_url": _uri(block)}


def _read_file(part: dict[str, Json]) -> DocumentBlock | None:
    data, url, name = (part.get(key, "") for key in ("file_data", "file_url", "filename"))
    if not all(isinstance(value, str) for value in (data, url, name)):
        return None
    if split := split_data_uri(data):
        return DocumentBlock(mime_type=split[0], data=split[1], title=name)
    return DocumentBlock(data=data, url=url, title=name)


def _write_file(block: DocumentBlock) -> dict[str, Json]:
    if not block.data:
        return {"type": "input_file", "file_url": block.url} | ({"filename": block.title} if block.title else {})
    data = data_uri(block.mime_type, block.data) if block.mime_type else block.data
    return {"type": "input_file", "filename": block.title or "document.pdf", "file_data": data}


def _read_text(part: dict[str, Json]) -> TextBlock | None:
    return TextBlock(part["text"]) if isinstance(part.get("text"), str) else None


def _read_refusal(part: dict[str, Json]) -> TextBlock | None:
    return TextBlock(part["refusal"]) if isinstance(part.get("refusal"), str) else None


def _natural(block: ContentBlock, place: Place) -> str | None:
    if isinstance(block, TextBlock):
        kind = "output_text" if place is Place.ASSISTANT else "input_text"
        return kind if block.text else None
    if place not in (Place.USER, Place.RESULT):
        return None
    if isinstance(block, ImageBlock):
        inline = block.data and block.mime_type in WEB_IMAGES
        return "input_image" if inline or (not block.data and block.url.startswith(WEB)) else None
    if isinstance(block, DocumentBlock):
        pdf = block.data and block.mime_type == _PDF
        return "input_file" if pdf or (not block.data and block.url.startswith(WEB)) else None
    return None


_FORMS: dict[str, Form] = {
    "input_text": Form(TextBlock, _read_text, lambda b: {"type": "input_text", "text": b.text}),
    "output_text": Form(TextBlock, _read_text, lambda b: {"type": "output_text", "text": b.text}),
    "refusal": Form(TextBlock, _read_refusal, lambda b: {"type": "refusal", "refusal": b.text}),
    "input_image": Form(ImageBlock, _read_image, lambda b: _write_image("input_image", b)),
    "computer_screenshot": Form(ImageBlock, _read_image, lambda b: _write_image("computer_screenshot", b)),
    "input_file": Form(DocumentBlock, _read_file, _write_file),
}
PARTS = Codec(FORMAT, _FORMS.get, _natural)


def notes_of(block: ContentBlock) -> Notes:
    return read_notes(block.extra, FORMAT)


def call_kind(block: ToolCallBlock) -> str:
    """The type of the item that a call came as; a function call's where it came by another format."""
    kind = str(notes_of(block).get("as", FUNCTION))
    return kind if kind in CALLS else FUNCTION


def read_call(item: dict[str, Json], kind: str, call_id: str, path: str) -> ToolCallBlock:
    """A call that the host runs.

    Raises:
        FoldlineError: FORMAT_INVALID: a function or custom tool without a name, or arguments of another type.
    """
    form = CALLS[kind]
    given = item.get(form.argument)
    if form.name:
        block = ToolCallBlock(call_id, form.name, "{}" if given is None else text(given))
    else:
        if not isinstance(given, str | dict | None):
            raise invalid(f"{path}.{form.argument}", "a string", given)
        arguments = text(given) if isinstance(given, dict) else given or ""
        block = ToolCallBlock(call_id, expect_text(item, "name", path), arguments)
    notes: Notes = {} if kind == FUNCTION else {"as": kind}
    return with_notes(block, FORMAT, notes | diff(_call(block, kind), item))


def _call(block: ToolCallBlock, kind: str) -> dict[str, Json]:
    form = CALLS[kind]
    if form.name:
        return {"type": kind, "call_id": block.call_id, form.argument: loads_or(block.arguments_json, {})}
    name = legal_name(block.name, LONGEST_NAME)
    return {"type": kind, "call_id": block.call_id, "name": name, form.argument: block.arguments_json}


def write_call(block: ToolCallBlock, kind: str, call_id: str) -> dict[str, Json]:
    """The item of a call. A ``kind`` that it did not come as takes nothing over from the item that it came as."""
    notes = notes_of(block) if call_kind(block) == kind else {}
    item = apply(_call(block, kind), notes)
    return item | {named_by(item): call_id}


def named_by(item: Mapping[str, Json]) -> str:
    """The field that names a call in its item or output: a local shell's may have nothing but an id."""
    return "id" if "call_id" not in item and "id" in item else "call_id"


def legal_id(call_id: str) -> str:
    return short_name(call_id, LONGEST_ID)


def read_reasoning(item: dict[str, Json]) -> ReasoningBlock:
    """A reasoning item: its summary, else its text; ``signature`` is the item's id, ``state`` the encrypted content."""
    said = _texts(item.get("summary")) or _texts(item.get("content"))
    state, item_id = item.get("encrypted_content"), item.get("id")
    block = ReasoningBlock(
        "\n\n".join(said),
        state=state if isinstance(state, str) else "",
        signature=item_id if isinstance(item_id, str) else "",
    )
    return with_notes(block, FORMAT, {"as": REASONING} | diff(_reasoning(block), item))


def write_reasoning(block: ReasoningBlock) -> dict[str, Json]:
    return apply(_reasoning(block), notes_of(block))


def _reasoning(block: ReasoningBlock) -> dict[str, Json]:
    said = [{"type": "summary_text", "text": block.text}] if block.text else []
    item: dict[str, Json] = {"type": "reasoning", "summary": said}
    if block.signature.startswith("rs_") and len(block.signature) <= LONGEST_ID:
        item["id"] = block.signature
    if block.state:
        item["encrypted_content"] = block.state
    return item


def _texts(parts: Json) -> list[str]:
    found = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return [said for said in found if isinstance(said, str) and said]


def read_image_call(item: dict[str, Json]) -> ImageBlock | None:
    """An image that the model made, None while there is none."""
    data, fmt = item.get("result"), item.get("output_format")
    if not isinstance(data, str) or not data:
        return None
    block = ImageBlock(f"image/{fmt}" if isinstance(fmt, str) and fmt else "image/png", data)
    return with_notes(block, FORMAT, {"as": IMAGE_CALL} | diff(_image_call(block), item))


def write_image_call(block: ImageBlock) -> dict[str, Json]:
    return apply(_image_call(block), notes_of(block))


def _image_call(block: ImageBlock) -> dict[str, Json]:
    return {"type": IMAGE_CALL, "status": "completed", "result": block.data}


def whole_item(item: dict[str, Json]) -> ServerToolBlock:
    """An item that is kept as it came: of a tool that the provider ran, or of a type unknown here.

    It is complete, so it never waits for a continuation (§1).
    """
    ids = (item.get("call_id"), item.get("id"))
    call_id = next((i for i in ids if isinstance(i, str)), "")
    block = ServerToolBlock(call_id, str(item.get("type", "item_reference")), text(item), result=True)
    return with_notes(block, FORMAT, {"as": ITEM})


def write_whole(json: str) -> dict[str, Json] | None:
    item = loads_or(json, None)
    return item if isinstance(item, dict) and item else None


def is_run_by_provider(item: Mapping[str, Json]) -> bool:
    """Whether a shell or tool search call ran where the model did, so that the host answers nothing."""
    place = item.get("environment")
    hosted = isinstance(place, dict) and str(place.get("type", "")).startswith("container")
    return hosted or item.get("execution") == "server"
