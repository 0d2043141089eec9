"""Limits, signals and reports of pressure (§4)."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.enums import ReadingSource, SignalKind, Suppression, TriggerClass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one boundary in tokens and bytes (4.2).

    Attributes:
        threshold: T.
        ceiling: W.
        input_budget: min(window - reserve, ceiling).
        reserve: output reserve.
        body_cap: the provider's body cap, None where it has none.
        byte_limit: P5's limit, ``byte_fraction`` x cap.
    """

    threshold: int
    ceiling: int
    input_budget: int
    reserve: int
    body_cap: int | None
    byte_limit: int | None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Estimated tokens by part (L3); ``rounds`` includes ``results``, ``pinned`` overlaps the others."""

    system: int = 0
    tools: int = 0
    request: int = 0
    rounds: int = 0
    results: int = 0
    pinned: int = 0
    history: int = 0


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal: None values are absent readings."""

    kind: SignalKind
    value: int | None
    limit: int | None
    source: ReadingSource
    tripped: bool
    trigger_class: TriggerClass
    suppressed_by: Suppression | None = None


@dataclass(frozen=True, slots=True)
class PressureReport:
    """Everything a check measured (4.1). Tokens; ``transcript_tokens`` is the estimate after the learned factor."""

    limits: Limits
    signals: tuple[Signal, ...]
    parts: Breakdown
    transcript_tokens: int
    forecast_tokens: int
    forecast_source: ReadingSource
    body_bytes: int
    bytes_source: ReadingSource
    estimator: str
    estimator_error: float | None
    factor: float = 1.0

    @property
    def fits(self) -> bool:
        """§1 fits: transcript + tools < T, with reserve < W, body under the P5 limit."""
        limits = self.limits
        return (
            self.forecast_tokens < limits.threshold
            and self.forecast_tokens + limits.reserve < limits.ceiling
            and (limits.byte_limit is None or self.body_bytes < limits.byte_limit)
        )
