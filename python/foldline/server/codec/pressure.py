"""Request shapes in, pressure reports out."""

from __future__ import annotations

from foldline.commands.measuring import RequestShape
from foldline.domain.enums import ReadingSource, SignalKind, Suppression, TriggerClass
from foldline.domain.pressure import PressureReport, Signal
from foldline.server.codec.basics import count_of, enum_map, model_ref
from foldline.v1 import compaction_service_pb2, pressure_pb2

SIGNALS = enum_map(pressure_pb2.SignalKind, SignalKind, "SIGNAL_KIND")
SOURCES = enum_map(pressure_pb2.Source, ReadingSource, "SOURCE")
CLASSES = enum_map(pressure_pb2.TriggerClass, TriggerClass, "TRIGGER_CLASS")
SUPPRESSIONS = enum_map(pressure_pb2.Suppression, Suppression, "SUPPRESSION")


def shape_of(value: compaction_service_pb2.RequestShape) -> RequestShape:
    def given(name: str) -> int | None:
        return count_of(value, name)

    tools = value.WhichOneof("tools")
    return RequestShape(
        model=model_ref(value.model),
        tools_json=value.tools_json if tools == "tools_json" else None,
        tools_digest=value.tools_digest if tools == "tools_digest" else "",
        output_reserve_tokens=given("output_reserve_tokens"),
        body_bytes=given("body_bytes"),
        input_tokens=given("input_tokens"),
        overhead_bytes=given("overhead_bytes"),
        overhead_tokens=given("overhead_tokens"),
    )


def wire_report(report: PressureReport) -> pressure_pb2.PressureReport:
    limits, parts = report.limits, report.parts
    return pressure_pb2.PressureReport(
        threshold_tokens=limits.threshold,
        signals=[_signal(s) for s in report.signals],
        parts=pressure_pb2.Breakdown(
            system=parts.system, tools=parts.tools, request=parts.request, rounds=parts.rounds, results=parts.results,
            pinned=parts.pinned, history=parts.history,
        ),
        estimator_name=report.estimator,
        estimator_error=report.estimator_error,
        estimator_factor=report.factor,
        window_tokens=limits.ceiling,
        input_budget_tokens=limits.input_budget,
        output_reserve_tokens=limits.reserve,
        body_cap_bytes=limits.body_cap,
        byte_limit=limits.byte_limit,
        transcript_tokens=report.transcript_tokens,
        forecast_tokens=report.forecast_tokens,
        forecast_source=SOURCES.wire(report.forecast_source),
        body_bytes=report.body_bytes,
        bytes_source=SOURCES.wire(report.bytes_source),
    )  # fmt: skip


def _signal(signal: Signal) -> pressure_pb2.Signal:
    return pressure_pb2.Signal(
        kind=SIGNALS.wire(signal.kind),
        value=signal.value,
        limit=signal.limit,
        source=SOURCES.wire(signal.source),
        tripped=signal.tripped,
        suppressed_by=SUPPRESSIONS.wire(signal.suppressed_by),
        **{"class": CLASSES.wire(signal.trigger_class)},
    )
