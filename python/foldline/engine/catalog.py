"""What is known of models: windows, ceilings, body caps, vocabularies, prices (4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foldline.domain.models import ModelInfo
from foldline.domain.rows import ModelRef


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models by exact id, and what an unknown one is taken for."""

    models: Mapping[str, ModelInfo]
    default: ModelInfo

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Catalog:
        """Reads the catalog shape of the policy reference.

        Raises:
            FoldlineError: FIELD_VALIDATION, naming model, field and value.
        """
        raise NotImplementedError

    def lookup(self, ref: ModelRef) -> ModelInfo:
        """The entry of exactly this id, else the default with ``known=False`` (4.2)."""
        raise NotImplementedError

    def overlaid(self, other: Catalog) -> Catalog:
        """This catalog with ``other``'s models and default over it."""
        raise NotImplementedError
