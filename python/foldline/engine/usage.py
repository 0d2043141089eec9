"""Usage of every provider as one shape (4.3): ``input_tokens`` is everything that occupied the window of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foldline.domain.enums import Format, ModelType
from foldline.domain.models import Prices, Usage


@dataclass(frozen=True, slots=True)
class NormalizedUsage:
    """Usage and what is to be said of it.

    Attributes:
        aggregated: it sums several calls, so that it is no reading.
        missing: it names no input count, or zero, which is unknown.
    """

    usage: Usage
    aggregated: bool = False
    missing: bool = False


def normalize(model_type: ModelType, usage: Mapping[str, Any], prices: Prices | None = None) -> NormalizedUsage:
    """Reads a provider's usage object by its own field names; ``model_type`` settles where conventions conflict."""
    raise NotImplementedError


def from_response(
    format: Format, body: Mapping[str, Any], model_type: ModelType, prices: Prices | None = None
) -> NormalizedUsage | None:
    """The usage in a provider's whole response body; None where it carries none."""
    raise NotImplementedError
