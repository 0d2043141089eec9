"""What ``extra`` holds (R2): a format's notes on how a row or block differs from its canonical form there.

``extra`` is a JSON object with one field for the format the row came in, ``{"OPENAI_CHAT": notes}``. Notes are

- ``as``: which of the format's forms the block has, where the canonical one would be another;
- ``content``: the shape of a message's content (``string``, ``array``, ``null``, ``absent``) where it is not canonical;
- ``+``, ``-``, ``~``: fields to set, to leave out, and objects to change in turn, against the canonical JSON;
- what a format needs besides is listed in its package.

A row whose canonical form is what came in has no notes and no ``extra``. Another format reads only its own notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from foldline.domain.enums import Format
from foldline.domain.errors import FoldlineError
from foldline.formats.json_text import Json, loads, same, text

Notes = dict[str, Any]
_T = TypeVar("_T", bound=msgspec.Struct)


def read_notes(extra: str, fmt: Format) -> Notes:
    """The notes of ``fmt``; empty where there are none. A host's own ``extra`` of another shape is no error."""
    if not extra:
        return {}
    try:
        value, _ = loads(extra.encode())
    except (FoldlineError, UnicodeEncodeError):
        return {}
    found = value.get(fmt.value) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def is_foreign(extra: str, fmt: Format) -> bool:
    """Whether the row or block came in by another provider's format."""
    return bool(extra) and any(read_notes(extra, other) for other in Format if other is not fmt)


def with_notes(struct: _T, fmt: Format, notes: Notes) -> _T:
    """The row or block with ``notes`` as its ``extra``."""
    return msgspec.structs.replace(struct, extra=text({fmt.value: notes})) if notes else struct


def shape_of(fields: Mapping[str, Json]) -> str:
    """How ``content`` is written: ``string``, ``array``, ``null`` or ``absent``."""
    if "content" not in fields:
        return "absent"
    content = fields["content"]
    return "null" if content is None else "string" if isinstance(content, str) else "array"


def diff(base: Mapping[str, Json], target: Mapping[str, Json]) -> Notes:
    """Notes that turn ``base`` into ``target``; empty where they are the same."""
    changed = {k: v for k, v in target.items() if k not in base or not same(base[k], v)}
    nested = {k: v for k, v in changed.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    notes: Notes = {}
    if added := {k: v for k, v in changed.items() if k not in nested}:
        notes["+"] = added
    if removed := [k for k in base if k not in target]:
        notes["-"] = removed
    if nested:
        notes["~"] = {k: diff(base[k], v) for k, v in nested.items()}
    return notes


def apply(base: Mapping[str, Json], notes: Notes) -> dict[str, Json]:
    """Inverse of ``diff``. Notes of a wrong shape change nothing."""
    removed, nested, added = notes.get("-"), notes.get("~"), notes.get("+")
    out = {k: v for k, v in base.items() if not (isinstance(removed, list) and k in removed)}
    if isinstance(nested, dict):
        for key, inner in nested.items():
            if isinstance(out.get(key), dict) and isinstance(inner, dict):
                out[key] = apply(out[key], inner)
    if isinstance(added, dict):
        out.update(added)
    return out
