"""The pressure check: every signal of 4.1, measured and compared; nothing here decides to fold."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from foldline.domain.enums import ReadingSource, SignalKind, Suppression, TriggerClass
from foldline.domain.models import Factor
from foldline.domain.pressure import Breakdown, Limits, PressureReport, Signal
from foldline.domain.rows import ModelRef
from foldline.domain.session import Cadence
from foldline.engine import factor as factors


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is known of a request before it is compared with anything. Tokens are raw, before the factor.

    Attributes:
        transcript_tokens, transcript_bytes: sums over the active rows, superseded system rows left out.
        tools_tokens, tools_bytes: of the tool definitions in sight.
        parts: raw tokens by part; the report's tools are ``overhead_tokens`` where the host states them.
        exact_tokens, exact_bytes: of the whole request, tools included, as the host counted or the renderer lowered it;
            their sources are ANCHORED once something was removed from or added to what they describe (4.1).
        overhead_tokens, overhead_bytes: everything but the rows, for hosts that lower last; they replace the tools'.
        in_run: the run has an assistant row; ``first_check_of_continued_run`` as it says (P6).
        manual: a manual or checkpoint request (P7).
        estimator: name of the counter, such as ``o200k_base``.
    """

    model: ModelRef
    factor: Factor
    transcript_tokens: int
    transcript_bytes: int
    tools_tokens: int = 0
    tools_bytes: int = 0
    parts: Breakdown = field(default_factory=Breakdown)
    exact_tokens: int | None = None
    exact_bytes: int | None = None
    exact_source: ReadingSource = ReadingSource.EXACT
    exact_bytes_source: ReadingSource = ReadingSource.EXACT
    overhead_tokens: int | None = None
    overhead_bytes: int | None = None
    in_run: bool = False
    first_check_of_continued_run: bool = False
    manual: bool = False
    estimator: str = ""


def measure(m: Measurement, cadence: Cadence, limits: Limits) -> PressureReport:
    """Compares a request with its limits (4.1, P1-P7): all signals are listed, absent ones too.

    Marks OTHER_MODEL and IN_RUN; what else keeps a tripped signal from folding is ``cadence.decide``'s.
    """
    transcript = factors.apply(m.factor, m.transcript_tokens)
    beside = factors.apply(m.factor, m.tools_tokens) if m.overhead_tokens is None else m.overhead_tokens
    forecast, forecast_source = transcript + beside, ReadingSource.ESTIMATED
    if m.exact_tokens is not None:
        forecast, forecast_source = m.exact_tokens, m.exact_source
    size = m.transcript_bytes + (m.tools_bytes if m.overhead_bytes is None else m.overhead_bytes)
    size_source = ReadingSource.ESTIMATED
    if m.exact_bytes is not None:
        size, size_source = m.exact_bytes, m.exact_bytes_source
    threshold = limits.threshold
    under = left_under_threshold(cadence)
    history_class = TriggerClass.CAPACITY if under else TriggerClass.ORDINARY
    signals = (
        _provider_count(m, cadence, threshold),
        _projection(m, cadence, threshold, under),
        _signal(SignalKind.HISTORY_ESTIMATE, transcript, threshold, ReadingSource.ESTIMATED, history_class),
        _signal(SignalKind.FORECAST_THRESHOLD, forecast, threshold, forecast_source, TriggerClass.ORDINARY),
        _signal(
            SignalKind.FORECAST_WINDOW,
            forecast + limits.reserve,
            limits.ceiling,
            forecast_source,
            TriggerClass.CAPACITY,
        ),
        _signal(SignalKind.REQUEST_BYTES, size, limits.byte_limit, size_source, TriggerClass.CAPACITY),
        _did_not_fit(m, cadence),
        _fact(SignalKind.MANUAL, m.manual, TriggerClass.MANUAL),
    )
    scaled = {f.name: factors.apply(m.factor, getattr(m.parts, f.name)) for f in fields(Breakdown)}
    if m.overhead_tokens is not None:
        scaled["tools"] = m.overhead_tokens
    return PressureReport(
        limits=limits,
        signals=signals,
        parts=Breakdown(**scaled),
        transcript_tokens=transcript,
        forecast_tokens=forecast,
        forecast_source=forecast_source,
        body_bytes=size,
        bytes_source=size_source,
        estimator=m.estimator,
        estimator_error=m.factor.error,
        factor=m.factor.value,
    )


def left_under_threshold(cadence: Cadence) -> bool:
    """Whether the last fold left the history under the T it was judged by; no fold yet counts as under (P2, P3, C3)."""
    if cadence.left_tokens is None or cadence.left_threshold is None:
        return True
    return cadence.left_tokens < cadence.left_threshold


def over_hard_limit(report: PressureReport) -> bool:
    """Whether the request is >= W with tools and reserve, or over the byte limit (C7, X2, S2 RESCUE)."""
    limits = report.limits
    over_window = report.forecast_tokens + limits.reserve >= limits.ceiling
    return over_window or (limits.byte_limit is not None and report.body_bytes >= limits.byte_limit)


def _signal(
    kind: SignalKind,
    value: int | None,
    limit: int | None,
    source: ReadingSource,
    trigger_class: TriggerClass,
    suppressed_by: Suppression | None = None,
) -> Signal:
    tripped = value is not None and limit is not None and value >= limit
    return Signal(kind, value, limit, source, tripped, trigger_class, suppressed_by)


def _fact(
    kind: SignalKind, holds: bool, trigger_class: TriggerClass, suppressed_by: Suppression | None = None
) -> Signal:
    source = ReadingSource.EXACT if holds else ReadingSource.ABSENT
    return Signal(kind, None, None, source, holds, trigger_class, suppressed_by if holds else None)


def _provider_count(m: Measurement, cadence: Cadence, threshold: int) -> Signal:
    """P1."""
    kind, count = SignalKind.PROVIDER_COUNT, cadence.count
    if count is None:
        return _signal(kind, None, threshold, ReadingSource.ABSENT, TriggerClass.ORDINARY)
    other = Suppression.OTHER_MODEL if count.model != m.model else None
    return _signal(kind, count.input_tokens, threshold, ReadingSource.EXACT, TriggerClass.ORDINARY, other)


def _projection(m: Measurement, cadence: Cadence, threshold: int, left_under: bool) -> Signal:
    """P2: only the rows appended since are estimated, the answer's own by the provider's count of them."""
    kind, anchor = SignalKind.PROJECTION, cadence.anchor
    if anchor is None:
        return _signal(kind, None, threshold, ReadingSource.ABSENT, TriggerClass.ORDINARY)
    since = max(0, m.transcript_tokens - anchor.covered_tokens - anchor.output_covered)
    grown = anchor.output_tokens + factors.apply(m.factor, since)
    capacity = anchor.input_tokens < threshold and left_under
    trigger_class = TriggerClass.CAPACITY if capacity else TriggerClass.ORDINARY
    other = Suppression.OTHER_MODEL if anchor.model != m.model else None
    return _signal(kind, anchor.input_tokens + grown, threshold, ReadingSource.ANCHORED, trigger_class, other)


def _did_not_fit(m: Measurement, cadence: Cadence) -> Signal:
    """P6 counts on whole checks, and on the first check of a continued run."""
    waits = m.in_run and not m.first_check_of_continued_run
    return _fact(
        SignalKind.DID_NOT_FIT,
        cadence.did_not_fit is not None,
        TriggerClass.DID_NOT_FIT,
        Suppression.IN_RUN if waits else None,
    )
