"""Random messages of any type of the contract: mostly plausible, now and then at a limit or beyond it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_EDGES = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
_TEXTS = (
    "", "a", "\x00", "é", "x" * 200, "a b", "*", "deploy", "call_1", "{}", "[]", "null", '{"a":1}', "(?P<", "[",
    "1e999",
    "x" * 5_000, '[{"role":"user","content":"hi"}]',
)  # fmt: skip
_BYTES = (
    b"", b"\xff", b"[]", b"{}", b"null", b"1", b'"x"', b'{"a":' * 3_000, b"x" * 2_000,
    b'[{"role":"user","content":"hi"}]', b'{"role":"tool","tool_call_id":"call_1","content":"x"}',
    b'[{"type":"user","content":[{"type":"text","text":"x"}]}]', b'[{"type":"system","key":"k","version":1e40}]',
    b'{"choices":[{"message":{"role":"assistant","content":"ok"}}],"usage":{"prompt_tokens":5}}',
)  # fmt: skip
_NAMES = (
    "session_id run_id kind rows input content body outcome model text query append answer user shape prepare_id "
    "call_id name raw format json policy provider"
)
_NEEDED = frozenset(_NAMES.split())
_DEPTH = 8


class Messages:
    """Fills messages; ids and tokens come from what the sessions under test hold."""

    def __init__(self, rng: random.Random, sessions: Sequence[str]) -> None:
        self.rng, self.sessions = rng, sessions
        self.prepared, self.tokens = ["p"], [""]

    def fill(self, message: Message, depth: int = 0) -> Message:
        kind = message.DESCRIPTOR.full_name
        if kind == "google.protobuf.FieldMask":
            message.paths.extend(self.rng.choice((["policy"], ["labels", "model"], ["policy.retention"], ["x"], [""])))  # type: ignore[attr-defined]
            return message
        if kind in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            message.seconds = self.rng.choice((0, 1, -1, 1_700_000_000, -62_135_596_801, 2**62))  # type: ignore[attr-defined]
            message.nanos = self.rng.choice((0, 0, 5, -1, 10**9))  # type: ignore[attr-defined]
            return message
        chosen = {o.name: self.rng.choice(o.fields) for o in message.DESCRIPTOR.oneofs}
        for field in message.DESCRIPTOR.fields:
            if field.containing_oneof is not None and chosen[field.containing_oneof.name] is not field:
                continue
            if self.rng.random() < (0.04 if field.name in _NEEDED else 0.72):
                continue
            self._field(message, field, depth)
        return message

    def _field(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        value: Any = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value[self.rng.choice(("a", "", "k" * 65))] = self.rng.choice(("b", "x" * 1_100))
        elif field.is_repeated:
            for _ in range(self.rng.choice((0, 1, 1, 2, 3))):
                if field.message_type is None:
                    value.append(self._scalar(field))
                elif depth < _DEPTH:
                    self.fill(value.add(), depth + 1)
        elif field.message_type is not None:
            if depth < _DEPTH:
                value.SetInParent()
                self.fill(value, depth + 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        rng, name = self.rng, field.name
        pools = {
            "session_id": (*self.sessions, "none"),
            "prepare_id": self.prepared,
            "page_token": self.tokens,
            "run_id": ("", "r1", "r2"),
            "provider": ("openai", "x"),
            "model": ("small", "x"),
            "request_id": ("", "", "same", f"q{rng.randrange(10**9)}"),
        }
        if name in pools:
            return rng.choice(pools[name])
        if field.enum_type is not None:
            return rng.choice([v.number for v in field.enum_type.values])
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            usual = rng.choice((0.5, 0.2, 0.999, 0.01))
            return usual if rng.random() < 0.9 else rng.choice((0.0, 1.0, -1.0, 1e308, float("nan"), float("inf")))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice(_BYTES)
        if field.type == FieldDescriptor.TYPE_STRING:
            return rng.choice(_TEXTS)
        low, high = _RANGES[field.cpp_type]
        return max(low, min(high, rng.choice(_EDGES) if rng.random() < 0.06 else rng.randrange(1, 30)))
