"""Content parts of a provider format as blocks, and back, without loss (R2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foldline.domain.enums import Format
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import ContentBlock, StructuredBlock, TextBlock
from foldline.formats.json_text import Json, loads_or, text
from foldline.formats.notes import Notes, apply, diff, read_notes, with_notes


class Place(StrEnum):
    """Where in a request content stands; each format allows other blocks in each."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Form:
    """One way a block stands in a message.

    Attributes:
        read: the block of a part, without ``extra``; None where the part is not of the form's published shape.
        write: the canonical part of a block; what it does not give back is noted.
    """

    block: type
    read: Callable[[dict[str, Json]], ContentBlock | None]
    write: Callable[[Any], dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Codec:
    """The parts of one format.

    Attributes:
        form_of: the form of a part's ``type``, None for a type without one.
        natural: the form that a block without notes takes in a place, None where it cannot stand there.
    """

    format: Format
    form_of: Callable[[str], Form | None]
    natural: Callable[[ContentBlock, Place], str | None]

    def read(self, part: Json, place: Place, path: str) -> ContentBlock:
        """A part as a block. Parts of unknown types are kept verbatim as structured blocks.

        Raises:
            FoldlineError: FORMAT_INVALID: the part is no object, names no type, or is a text without one.
        """
        fields = expect_object(part, path)
        name = expect_text(fields, "type", path)
        form = self.form_of(name)
        block = form.read(fields) if form else None
        if form is None or block is None:
            if name == "text":
                raise invalid(f"{path}.text", "a string", fields.get("text"))
            name, form, block = VERBATIM, _VERBATIM, StructuredBlock(text(fields))
        notes: Notes = {} if self.natural(block, place) == name else {"as": name}
        return with_notes(block, self.format, notes | diff(form.write(block), fields))

    def write(self, block: ContentBlock, place: Place) -> dict[str, Json] | None:
        """A block as a part; None where the format has no form for it in this place."""
        notes = self.notes(block)
        form = self._form_in(block, place, notes)
        return apply(form.write(block), notes) if form else None

    def takes(self, block: ContentBlock, place: Place) -> bool:
        """Whether the format has a form for the block in this place."""
        return self._form_in(block, place, self.notes(block)) is not None

    def _form_in(self, block: ContentBlock, place: Place, notes: Notes) -> Form | None:
        return self._form(str(notes.get("as")), block) or self._form(self.natural(block, place), block)

    def _form(self, name: str | None, block: ContentBlock) -> Form | None:
        form = _VERBATIM if name == VERBATIM else self.form_of(name or "")
        if form is None or not isinstance(block, form.block):
            return None
        return None if form is _VERBATIM and not _is_object(block) else form

    def notes(self, block: ContentBlock) -> Notes:
        return read_notes(block.extra, self.format)

    def is_plain(self, block: ContentBlock) -> bool:
        """Whether the block is text that a bare string says wholly."""
        return isinstance(block, TextBlock) and not self.notes(block)


VERBATIM = "verbatim"


def _is_object(block: ContentBlock) -> bool:
    """Whether a block that is noted as a part can be one: notes may be a host's own."""
    return isinstance(block, StructuredBlock) and isinstance(loads_or(block.json, None), dict)


_VERBATIM = Form(StructuredBlock, lambda part: StructuredBlock(text(part)), lambda block: loads_or(block.json, {}))


def invalid(path: str, expected: str, value: Json) -> FoldlineError:
    """A message that is not of its format's shape; ``path`` is a JSONPath from the top of what was sent."""
    found = "nothing" if value is None else f"{type(value).__name__} {text(value)[:60]}"
    return FoldlineError(Reason.FORMAT_INVALID, f"{path} must be {expected}, is {found}", path=path, expected=expected)


def expect_object(value: Json, path: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise invalid(path, "an object", value)
    return value


def expect_text(fields: Mapping[str, Json], key: str, path: str, *, filled: bool = True) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or (filled and not value):
        raise invalid(f"{path}.{key}", "a non-empty string" if filled else "a string", value)
    return value
