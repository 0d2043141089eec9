"""JSON in and out with nothing lost: numbers keep their digits, lone surrogates are repaired, the rest is refused."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from foldline.domain.errors import FoldlineError, Reason

Json = Any
"""None, bool, int, Decimal, str, list or dict; floats are Decimals, so that their text survives."""

_decoder = msgspec.json.Decoder(float_hook=Decimal)
_encoder = msgspec.json.Encoder(decimal_format="number")
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u([dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
_POSITION = re.compile(r"\(byte (\d+)\)")


def loads(data: bytes, what: str = "json") -> tuple[Json, int]:
    """Decodes JSON; also says how many lone surrogate escapes became U+FFFD (R2).

    Args:
        what: the name of the field, for the error.

    Raises:
        FoldlineError: FORMAT_INVALID with the byte position: not UTF-8, not JSON, or nested too deep.
    """
    try:
        return _decoder.decode(data), 0
    except (msgspec.DecodeError, RecursionError, InvalidOperation):
        repaired, count = repair(data, what)
    try:
        return _decoder.decode(repaired), count
    except msgspec.DecodeError as error:
        found = _POSITION.search(str(error))
        position = int(found.group(1)) if found else len(data)
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"{what} is malformed JSON at byte {position} of {len(data)}: {_fault(error)}",
            field=what, position=position,
        ) from None  # fmt: skip
    except RecursionError:
        raise FoldlineError(Reason.FORMAT_INVALID, f"{what} is nested too deep", field=what) from None
    except InvalidOperation:
        raise FoldlineError(Reason.FORMAT_INVALID, f"{what} holds a number out of range", field=what) from None


def _fault(error: msgspec.DecodeError) -> str:
    """What is wrong, without what the message around it says already."""
    return _POSITION.sub("", str(error)).removeprefix("JSON is malformed: ").strip()


def loads_or(given: str, default: Json) -> Json:
    """The value of JSON text that a row keeps, ``default`` where it is none."""
    try:
        return loads(given.encode())[0]
    except FoldlineError:
        return default


def repair(data: bytes, what: str = "json") -> tuple[bytes, int]:
    """Replaces escapes of lone surrogates by U+FFFD (XF5); returns the text and how many there were.

    Raises:
        FoldlineError: FORMAT_INVALID with the byte position of what is not UTF-8 (R2).
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"{what} is not valid UTF-8 at byte {error.start} of {len(data)}",
            field=what, position=error.start,
        ) from None  # fmt: skip
    count = 0

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match.group(1) is None:
            return match.group(0)
        count += 1
        return rb"\ufffd"

    return _ESCAPE.sub(replace, data), count


def dumps(value: Json) -> bytes:
    """Compact UTF-8 JSON."""
    return _encoder.encode(value)


def text(value: Json) -> str:
    return _encoder.encode(value).decode()


def same(a: Json, b: Json) -> bool:
    """Equality of JSON values: booleans are no numbers, and object fields have no order."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def plain(value: Json) -> Any:
    """The value with floats instead of Decimals, for readers that calculate."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value
