"""Parsed messages as a transcript: offsets given and results paired as an append does, then arranged for sending."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
from foldline import formats
from foldline.domain.arrangement import Arrangement
from foldline.domain.enums import Format
from foldline.domain.rows import ModelRef, NewRow, Row
from foldline.domain.session import CallState, Session
from foldline.engine.appending import accept
from foldline.engine.render import arrange

FIXTURES = Path(__file__).resolve().parents[2] / "data" / "formats"
REAL = Path(__file__).resolve().parents[3].parent / "shared" / "data"
_ENCODER = msgspec.json.Encoder(decimal_format="number")
NEW_SESSION = Session(key=1, tenant="t", session_id="s", create_time="", model=ModelRef())


def arranged(rows: Sequence[NewRow], calls: Sequence[CallState] = ()) -> Arrangement:
    accepted = accept(NEW_SESSION, rows, "", {})
    return arrange(accepted.rows, open_run=None, calls=calls or accepted.session.calls)


def stored(rows: Sequence[NewRow]) -> list[Row]:
    return list(accept(NEW_SESSION, rows, "", {}).rows)


def through(
    given: object, source: Format, target: Format | None = None
) -> tuple[object, formats.Parsed, formats.Rendered]:
    """What a host gets that sends ``given`` in one format and asks for another: (JSON, parsed, rendered)."""
    parsed = formats.parse(source, dump(given))
    rendered = formats.render(target or source, arranged(parsed.rows))
    return load(rendered.json), parsed, rendered


def dump(value: object) -> bytes:
    return _ENCODER.encode(value)


def load(data: bytes) -> object:
    """JSON as the standard library reads it, every digit of a number kept."""
    return json.loads(data, parse_float=Decimal)


def canon(value: object) -> object:
    """A value that is equal for equal JSON values only: numbers by what they amount to, booleans apart from them."""
    if isinstance(value, dict):
        return {key: canon(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [canon(inner) for inner in value]
    return ("number", Decimal(value)) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value
