"""Policy messages as partial layers of dotted names, and effective policies back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from foldline.domain.enums import (
    BoundingCut,
    MemoryFusion,
    MemoryIndex,
    OnFailure,
    Oversize,
    PromptCache,
    SummarySourcePolicy,
)
from foldline.domain.policy import Policy, Resolved, field_names
from foldline.domain.rows import ModelRef
from foldline.server.codec.basics import EnumMap, duration, enum_map, model_ref, seconds, wire_model
from foldline.v1 import policy_pb2

_ENUMS: dict[str, EnumMap] = {
    "summary.source": enum_map(policy_pb2.SummarySourcePolicy, SummarySourcePolicy, "SUMMARY_SOURCE_POLICY"),
    "summary.on_failure": enum_map(policy_pb2.OnFailure, OnFailure, "ON_FAILURE"),
    "summary.oversize": enum_map(policy_pb2.Oversize, Oversize, "OVERSIZE"),
    "summary.prompt_cache": enum_map(policy_pb2.PromptCache, PromptCache, "PROMPT_CACHE"),
    "bounding.cut": enum_map(policy_pb2.BoundingCut, BoundingCut, "BOUNDING_CUT"),
    "memory.index": enum_map(policy_pb2.MemoryIndex, MemoryIndex, "MEMORY_INDEX"),
    "memory.fusion": enum_map(policy_pb2.MemoryFusion, MemoryFusion, "MEMORY_FUSION"),
}
_ORIGINS = {
    "built-in": policy_pb2.POLICY_LAYER_BUILT_IN,
    "config": policy_pb2.POLICY_LAYER_CONFIG,
    "tenant": policy_pb2.POLICY_LAYER_TENANT,
    "session": policy_pb2.POLICY_LAYER_SESSION,
    "request": policy_pb2.POLICY_LAYER_REQUEST,
}


def layer(message: policy_pb2.Policy) -> dict[str, Any]:
    """The fields that are set, by dotted name."""
    return dict(_set_fields(message, ""))


def _set_fields(message: Message, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for descriptor, value in message.ListFields():
        name = prefix + descriptor.name
        if isinstance(value, Duration):
            found.append((name, seconds(value)))
        elif name == "summary.fast_model":
            found.append((name, model_ref(value)))
        elif isinstance(value, policy_pb2.RedactPatterns):
            found.append((name, tuple(value.patterns)))
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            found += _set_fields(value, name + ".")
        else:
            found.append((name, _ENUMS[name].domain(value) if name in _ENUMS else value))
    return found


def policy_message(layer_: Mapping[str, Any]) -> policy_pb2.Policy:
    """A partial layer as a message; None values stay unset."""
    message = policy_pb2.Policy()
    for name, value in layer_.items():
        if value is None:
            continue
        *path, last = name.split(".")
        target: Any = message
        for part in path:
            target = getattr(target, part)
        _put(target, last, name, value)
    return message


def _put(target: Any, last: str, name: str, value: Any) -> None:
    kind = target.DESCRIPTOR.fields_by_name[last].message_type
    if name in _ENUMS:
        setattr(target, last, _ENUMS[name].wire(value))
    elif kind is not None and kind.full_name == "google.protobuf.Duration":
        getattr(target, last).CopyFrom(duration(float(value)))
    elif name == "summary.fast_model":
        ref = value if isinstance(value, ModelRef) else ModelRef(**value)
        getattr(target, last).CopyFrom(wire_model(ref))
    elif name == "summary.redact":
        target.redact.patterns.extend(value)
    else:
        setattr(target, last, value)


def effective(resolved: Resolved) -> policy_pb2.EffectivePolicy:
    """Every knob's effective value, and the layer it came from."""
    values = {name: _value(resolved.policy, name) for name in field_names()}
    return policy_pb2.EffectivePolicy(
        values=policy_message(values), origins={name: _ORIGINS[o] for name, o in resolved.origin.items()}
    )


def _value(policy: Policy, name: str) -> Any:
    node: Any = policy
    for part in name.split("."):
        node = getattr(node, part)
    return node
