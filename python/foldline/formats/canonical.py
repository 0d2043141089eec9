"""Foldline's own rows as JSON: an array of bodies, or one, tagged by ``type`` as in ``domain.rows``."""

from __future__ import annotations

import re

import msgspec

from foldline.domain.arrangement import Arrangement, ResultsItem, UserItem, UserKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import AssistantRow, Row, RowBody, ToolResultRow, decode_body, encode_body
from foldline.formats.codec import invalid
from foldline.formats.json_text import Json, dumps
from foldline.formats.ordering import as_they_came
from foldline.formats.reading import Reading
from foldline.formats.results import Parsed, ParsedResponse, Rendered

_AT = re.compile(r" - at `\$(.*)`$")


def parse(data: bytes) -> Parsed:
    """Rows as they are, less what only the sidecar sets (``call_offset``, ``late``, ``usage_mark``, ``derived_from``).

    Raises:
        FoldlineError: FORMAT_INVALID with the path, also for a field that rows do not have.
    """
    return _parse(data, "json").parsed()


def parse_response(body: bytes) -> ParsedResponse:
    """An answer that the host already turned into rows; it carries no usage."""
    reading = _parse(body, "response_json")
    answer = next((r.body for r in reading.rows if isinstance(r.body, AssistantRow)), None)
    model = answer.model.model if answer else ""
    return ParsedResponse(tuple(reading.rows), tuple(reading.warnings), model, answer.stop_reason if answer else None)


def render(arrangement: Arrangement) -> Rendered:
    """Every row of the arrangement once, in sending order; placeholders and bounded texts are no rows."""
    rows: list[Row] = []
    for item in arrangement.items:
        if isinstance(item, ResultsItem):
            rows += [result.row for result in as_they_came(item.results) if result.row is not None]
        elif not isinstance(item, UserItem) or item.kind is not UserKind.PLACEHOLDER:
            rows += [item.row] if item.row is not None else []
    bodies = [msgspec.Raw(encode_body(_sent(row.body))) for row in rows]
    return Rendered(dumps(bodies), spans=tuple((row.offset,) for row in rows))


def _sent(body: RowBody) -> RowBody:
    if isinstance(body, ToolResultRow) and (body.late or body.call_offset is not None):
        return msgspec.structs.replace(body, late=False, call_offset=None)
    return body


def _parse(data: bytes, what: str) -> Reading:
    reading = Reading()
    for value, path in reading.messages(reading.load(data, what)):
        reading.take(_given(_body(value, path)))
    return reading


def _given(body: RowBody) -> RowBody:
    if isinstance(body, ToolResultRow):
        return msgspec.structs.replace(body, late=False, call_offset=None, usage_mark="")
    if isinstance(body, AssistantRow):
        return msgspec.structs.replace(body, derived_from=None)
    return body


def _body(value: dict[str, Json], path: str) -> RowBody:
    try:
        body = decode_body(dumps(value))
    except msgspec.ValidationError as error:
        found = _AT.search(str(error))
        at = path + (found.group(1) if found else "")
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"{at} is no row: {_AT.sub('', str(error))}", path=at
        ) from None  # fmt: skip
    _refuse_unknown(value, body, path)
    return body


def _refuse_unknown(value: dict[str, Json], struct: msgspec.Struct, path: str) -> None:
    """Rows have ``extra`` for what they have no field for; a misspelt field must not vanish (R2)."""
    known = {"type", *struct.__struct_fields__}
    for key, given in value.items():
        if key not in known:
            raise invalid(f"{path}.{key}", "left out: rows have no such field", given)
        inner = getattr(struct, key, None)
        if isinstance(inner, msgspec.Struct) and isinstance(given, dict):
            _refuse_unknown(given, inner, f"{path}.{key}")
        elif isinstance(inner, tuple):
            for index, (one, block) in enumerate(zip(given, inner, strict=True)):
                if isinstance(block, msgspec.Struct):
                    _refuse_unknown(one, block, f"{path}.{key}[{index}]")
