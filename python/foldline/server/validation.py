"""The contract's rules (``buf.validate``), held against every request before a use case sees it."""

from __future__ import annotations

from typing import Any

import protovalidate
from google.protobuf.message import DecodeError, Message

from foldline.domain.errors import FoldlineError, Reason
from foldline.server.errors import InvalidRequest
from foldline.v1 import memory_service_pb2
from foldline.v1._third_party.buf.validate import validate_pb2

_VALIDATOR = protovalidate.Validator()
_collect = _VALIDATOR.collect_violations

_LIMITED = {memory_service_pb2.SearchMemoryRequest, memory_service_pb2.EnumerateScopeRequest}
"""Requests whose ``limit`` out of range has a reason of its own (M5, M7)."""


def compile_rules(kind: type[Message]) -> None:
    """Compiles a message's rules, which its first validation would do on the request path."""
    _collect(kind())


def decoded(decode: Any, data: bytes) -> Any:
    """The request in ``data``.

    Raises:
        InvalidRequest: it is no message of the kind; text in it may not be UTF-8 (R2).
    """
    try:
        return decode(data)
    except DecodeError:
        text = "the request is no message of this method, or text in it is not UTF-8"
        raise InvalidRequest(
            text, [("", text)], field="", value=f"{len(data)} bytes", range="a valid message"
        ) from None


def validate(request: Message, prefix: str = "") -> None:
    """Holds a request, or a part of one that is found at ``prefix``, against the contract.

    Raises:
        FoldlineError: FIELD_VALIDATION, naming every field, the first one with value and rule; MEMORY_LIMIT_EXCEEDED.
    """
    violations = _collect(request)
    if violations:
        raise _refusal(request, violations, prefix)


def _refusal(request: Message, violations: list[protovalidate.Violation], prefix: str) -> FoldlineError:
    found = [(f"{prefix}{_path(v.proto.field)}", v.proto.message) for v in violations]
    if type(request) in _LIMITED and any(path == "limit" for path, _ in found):
        return _limit_exceeded(request)
    path, rule = found[0]
    value = _shown(violations[0].field_value)
    return InvalidRequest(f"{path or 'the request'}: {rule}", found, field=path, value=value, range=rule)


def _limit_exceeded(request: Any) -> FoldlineError:
    rules = request.DESCRIPTOR.fields_by_name["limit"].GetOptions().Extensions[validate_pb2.field].int32
    return FoldlineError(
        Reason.MEMORY_LIMIT_EXCEEDED,
        f"limit is {request.limit}, allowed is {rules.gte}-{rules.lte}",
        limit=request.limit,
        minimum=rules.gte,
        maximum=rules.lte,
    )


def _path(field: Any) -> str:
    """``input.rows.rows[3].user``; empty for a rule of the whole message."""
    if field is None:
        return ""
    parts: list[str] = []
    for element in field.elements:
        subscript = element.subscript
        parts.append(element.field_name if subscript is None else f"{element.field_name}[{subscript.value}]")
    return ".".join(parts)


def _shown(value: Any) -> str:
    """A value as metadata show it: numbers whole, texts by their beginning, the rest by its size or kind."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return value if len(value) <= 64 else f"{value[:64]}… ({len(value)} characters)"
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else str(value)
    try:
        return f"{len(value)} items"
    except TypeError:
        return type(value).__name__
