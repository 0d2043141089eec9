"""What is known of models: windows, ceilings, body caps, vocabularies, prices (4.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from foldline._core import encodings
from foldline.domain.changes import replace
from foldline.domain.enums import ModelType
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import COUNT_MAX, ModelInfo, Prices
from foldline.domain.rows import ModelRef

_SIZES = ("context_window", "input_ceiling", "max_output", "body_cap_bytes")
_PRICES = ("input", "cached_input", "output")
_FIELDS = {*_SIZES, "type", "encoding", "prices"}
CURRENCY_BYTES = 8
_TYPES = {t.value.lower(): t for t in ModelType}

_CL100K_FAMILY = re.compile(r"gpt-4(-|$)|gpt-3\.?5")
_O200K_FAMILY = re.compile(r"gpt-|chatgpt-|codex-|o\d(-|$)")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models by exact id, and what an unknown one is taken for."""

    models: Mapping[str, ModelInfo]
    default: ModelInfo = field(default_factory=ModelInfo)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Catalog:
        """Reads the shape of a catalog file: a model id, or ``default``, to its fields.

        Raises:
            FoldlineError: FIELD_VALIDATION, naming model, field and value.
        """
        if not isinstance(data, Mapping):
            _refuse("catalog", "", data, "an object of models")
        if "" in data:
            _refuse("catalog", "", "", "ids of models")
        models = {name: _read_model(name, entry) for name, entry in data.items()}
        default = models.pop("default", ModelInfo())
        return cls(models, default)

    def lookup(self, ref: ModelRef) -> ModelInfo:
        """The entry of exactly this id, else the default with ``known=False`` (4.2).

        Where an entry names no vocabulary, OpenAI's model families have theirs; all others have none embedded.
        """
        info = self.models.get(ref.model)
        if info is None:
            info = replace(self.default, known=False)
        return info if info.encoding else replace(info, encoding=_family_encoding(info.type, ref))

    def overlaid(self, other: Catalog) -> Catalog:
        """This catalog with the models and the default of ``other`` over it."""
        return Catalog({**self.models, **other.models}, other.default)


def _family_encoding(model_type: ModelType, ref: ModelRef) -> str:
    # Compatible servers carry models of any vocabulary under the type `openai`: only OpenAI's own names say which.
    if model_type != ModelType.OPENAI:
        return ""
    name = ref.model.lower().rsplit("/", 1)[-1].removeprefix("ft:")
    if _CL100K_FAMILY.match(name):
        return "cl100k_base"
    if _O200K_FAMILY.match(name) or ref.provider.lower() in ("openai", "azure"):
        return "o200k_base"
    return ""


def _read_model(name: str, entry: Any) -> ModelInfo:
    if not isinstance(entry, Mapping):
        _refuse(name, "", entry, "an object")
    for key, value in entry.items():
        if key not in _FIELDS:
            _refuse(name, key, value, f"one of {', '.join(sorted(_FIELDS))}")
        if key in _SIZES and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= COUNT_MAX):
            _refuse(name, key, value, f"a whole number from 1 to {COUNT_MAX}")
    model_type = entry.get("type", "openai")
    if not isinstance(model_type, str) or model_type not in _TYPES:
        _refuse(name, "type", model_type, f"one of {', '.join(sorted(_TYPES))}")
    encoding = entry.get("encoding", "")
    if not isinstance(encoding, str) or (encoding and encoding not in encodings()):
        _refuse(name, "encoding", encoding, f"one of {', '.join(sorted(encodings()))}")
    sizes = {key: entry[key] for key in _SIZES if key in entry}
    prices = _read_prices(name, entry.get("prices"))
    return ModelInfo(type=_TYPES[model_type], encoding=encoding, prices=prices, **sizes)


def _read_prices(name: str, entry: Any) -> Prices | None:
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        _refuse(name, "prices", entry, "an object of input, cached_input, output and currency")
    for key, value in entry.items():
        if key not in (*_PRICES, "currency"):
            _refuse(name, f"prices.{key}", value, "one of input, cached_input, output, currency")
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX
        if key in _PRICES and not number:
            _refuse(name, f"prices.{key}", value, f"a number from 0 to {COUNT_MAX}")
    for key in ("input", "output"):
        if key not in entry:
            _refuse(name, f"prices.{key}", None, f"a number from 0 to {COUNT_MAX}")
    currency = entry.get("currency", "USD")
    if not isinstance(currency, str) or not 0 < len(currency.encode()) <= CURRENCY_BYTES:
        _refuse(name, "prices.currency", currency, f"a currency code of at most {CURRENCY_BYTES} bytes")
    return Prices(
        input=float(entry["input"]),
        cached_input=float(entry.get("cached_input", entry["input"])),
        output=float(entry["output"]),
        currency=currency,
    )


def _refuse(model: str, key: str, value: Any, allowed: str) -> NoReturn:
    place = f"{model}.{key}" if key else model
    raise FoldlineError(
        Reason.FIELD_VALIDATION,
        f"model catalog: {place} is {value!r}, allowed is {allowed}",
        field=place, value=value, range=allowed,
    )  # fmt: skip


def _openai(window: int, max_output: int, ceiling: int | None = None) -> ModelInfo:
    return ModelInfo(context_window=window, max_output=max_output, input_ceiling=ceiling)


def _anthropic(window: int, max_output: int) -> ModelInfo:
    return ModelInfo(context_window=window, max_output=max_output, type=ModelType.ANTHROPIC)


def _google(input_limit: int, max_output: int) -> ModelInfo:
    # Google states the input limit and takes the output from elsewhere; counting the reserve against it errs low.
    return ModelInfo(context_window=input_limit, max_output=max_output, type=ModelType.GOOGLE)


DEFAULT_CATALOG = Catalog(
    {
        **dict.fromkeys(("gpt-3.5-turbo", "gpt-3.5-turbo-0125"), _openai(16_385, 4_096)),
        **dict.fromkeys(("gpt-4", "gpt-4-0613"), _openai(8_192, 8_192)),
        **dict.fromkeys(("gpt-4-turbo", "gpt-4-turbo-2024-04-09"), _openai(128_000, 4_096)),
        **dict.fromkeys(
            ("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20", "gpt-4o-mini", "gpt-4o-mini-2024-07-18"),
            _openai(128_000, 16_384),
        ),
        **dict.fromkeys(("gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano"), _openai(1_047_576, 32_768)),
        **dict.fromkeys(("o1", "o3", "o3-mini", "o4-mini"), _openai(200_000, 100_000)),
        **dict.fromkeys(
            ("gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5-codex", "gpt-5.1", "gpt-5.2"),
            _openai(400_000, 128_000, 272_000),
        ),
        "gpt-5.4": _openai(1_050_000, 128_000, 922_000),
        **dict.fromkeys(("claude-3-5-sonnet-20241022", "claude-3-5-haiku-20241022"), _anthropic(200_000, 8_192)),
        **dict.fromkeys(
            ("claude-opus-4-20250514", "claude-opus-4-0", "claude-opus-4-1-20250805", "claude-opus-4-1"),
            _anthropic(200_000, 32_000),
        ),
        **dict.fromkeys(
            (
                "claude-3-7-sonnet-20250219", "claude-sonnet-4-20250514", "claude-sonnet-4-0",
                "claude-sonnet-4-5-20250929", "claude-sonnet-4-5", "claude-haiku-4-5-20251001", "claude-haiku-4-5",
                "claude-opus-4-5-20251101", "claude-opus-4-5",
            ),
            _anthropic(200_000, 64_000),
        ),
        **dict.fromkeys(
            ("claude-opus-4-6", "claude-opus-5", "claude-opus-5-5", "claude-sonnet-5", "claude-sonnet-5-5"),
            _anthropic(1_000_000, 128_000),
        ),
        **dict.fromkeys(("gemini-2.0-flash", "gemini-2.0-flash-lite"), _google(1_048_576, 8_192)),
        **dict.fromkeys(
            (
                "gemini-2.5-pro", "gemini-2.5-flash", "gemini-2.5-flash-lite", "gemini-3-pro-preview",
                "gemini-3-flash-preview", "gemini-3.5-flash",
            ),
            _google(1_048_576, 65_536),
        ),
    }
)  # fmt: skip
"""Sizes as the providers publish them; no prices, which change more often than releases of this package."""
