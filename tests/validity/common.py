"""What every checker looks for."""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DATA_IMAGE = re.compile(r"data:image/[a-z+.-]+;base64,.+", re.DOTALL)


def base64_faults(data: Any) -> Iterator[str]:
    try:
        if not isinstance(data, str) or not base64.b64decode(data, validate=True):
            yield "no base64 data"
    except binascii.Error:
        yield "data is no base64"


def text_faults(value: Any) -> Iterator[str]:
    """Text that is no UTF-8, and numbers that are no JSON."""
    if isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            yield f"lone surrogate in {value[:20]!r}"
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            yield f"number {value}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from text_faults(key)
            yield from text_faults(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from text_faults(inner)
