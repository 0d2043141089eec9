"""Enums, times, models, usage and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.models import COUNT_MAX, ModelInfo, Prices, Usage
from foldline.domain.rows import ModelRef
from foldline.v1 import model_pb2, warning_pb2

E = TypeVar("E", bound=StrEnum)


class EnumMap:
    """One contract enum and its domain twin, matched by name less the prefix; 0 is None both ways."""

    def __init__(self, wire: Any, domain: type[StrEnum], prefix: str) -> None:
        names: Mapping[str, int] = dict(wire.items())
        self._to_wire = {m: names[f"{prefix}_{m.name}"] for m in domain if f"{prefix}_{m.name}" in names}
        self._to_domain = {number: member for member, number in self._to_wire.items()}

    def wire(self, member: StrEnum | None) -> Any:
        return 0 if member is None else self._to_wire[member]

    def domain(self, number: int) -> Any:
        return self._to_domain.get(number)


@cache
def enum_map(wire: Any, domain: type[StrEnum], prefix: str) -> EnumMap:
    return EnumMap(wire, domain, prefix)


def timestamp(seconds: float | None) -> Timestamp | None:
    if seconds is None:
        return None
    whole = int(seconds // 1)
    return Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


def timestamp_of(text: str) -> Timestamp | None:
    """A stored RFC 3339 time; None where there is none or it cannot be read."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    made = Timestamp()
    made.FromDatetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return made


def time_text(value: Timestamp, field: str) -> str:
    """RFC 3339 in UTC with microseconds, as rows keep it.

    Raises:
        FoldlineError: FIELD_VALIDATION for a time outside of the years 1 to 9999.
    """
    try:
        return value.ToDatetime(tzinfo=UTC).isoformat().replace("+00:00", "Z")
    except ValueError as error:
        given = f"{value.seconds} s, {value.nanos} ns"
        raise invalid(field, given, "years 1 to 9999, 0 to 999999999 ns", f"{field} is no time: {given}") from error


def seconds(value: Duration) -> float:
    return float(value.seconds) + float(value.nanos) / 1e9


def duration(value: float | None) -> Duration | None:
    if value is None:
        return None
    whole = int(value)
    return Duration(seconds=whole, nanos=round((value - whole) * 1e9))


def model_ref(value: model_pb2.ModelRef) -> ModelRef:
    return ModelRef(value.provider, value.model)


def wire_model(value: ModelRef) -> model_pb2.ModelRef | None:
    return model_pb2.ModelRef(provider=value.provider, model=value.model) if value.model else None


def count_of(message: Any, name: str) -> int | None:
    """An optional count of a host, held to 64 bits; None where it was not given."""
    return min(getattr(message, name), COUNT_MAX) if message.HasField(name) else None


def usage_of(value: model_pb2.Usage) -> Usage:
    def given(name: str) -> int | None:
        return count_of(value, name)

    cost = min(value.cost, float(COUNT_MAX)) if value.HasField("cost") else None  # So that sums are finite too.
    return Usage(
        given("input_tokens"), given("output_tokens"), given("cached_input_tokens"), cost, value.currency,
        given("cache_write_tokens"), given("reasoning_tokens"), value.aggregated,
    )  # fmt: skip


def wire_usage(value: Usage | None) -> model_pb2.Usage | None:
    if value is None:
        return None
    return model_pb2.Usage(
        input_tokens=value.input_tokens,
        output_tokens=value.output_tokens,
        cached_input_tokens=value.cached_input_tokens,
        cache_write_tokens=value.cache_write_tokens,
        reasoning_tokens=value.reasoning_tokens,
        aggregated=value.aggregated,
        cost=value.cost,
        currency=value.currency,
    )


def wire_warnings(values: Iterable[Warning_]) -> list[warning_pb2.Warning]:
    return [
        warning_pb2.Warning(code=warning_pb2.WarningCode.Value(f"WARNING_CODE_{w.code}"), message=w.message)
        for w in values
    ]


def wire_model_info(ref: ModelRef, info: ModelInfo) -> model_pb2.ModelInfo:
    return model_pb2.ModelInfo(
        model=model_pb2.ModelRef(provider=ref.provider, model=ref.model),
        context_window=info.context_window,
        input_ceiling=info.input_ceiling,
        max_output=info.max_output,
        body_cap_bytes=info.body_cap_bytes,
        encoding=info.encoding,
        type=model_pb2.ModelType.Value(f"MODEL_TYPE_{info.type}"),
        prices=_prices(info.prices),
    )


def _prices(prices: Prices | None) -> model_pb2.Prices | None:
    if prices is None:
        return None
    return model_pb2.Prices(
        input=prices.input, cached_input=prices.cached_input, output=prices.output, currency=prices.currency
    )


def invalid(field: str, value: object, allowed: str, message: str) -> FoldlineError:
    return FoldlineError(Reason.FIELD_VALIDATION, message, field=field, value=value, range=allowed)
