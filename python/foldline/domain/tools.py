"""Tools that the sidecar offers to an agent (K5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool as a model is told of it. ``input_schema`` is a JSON schema of an object, without ``$ref``."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool said, in words for the model."""

    text: str
    is_error: bool = False
