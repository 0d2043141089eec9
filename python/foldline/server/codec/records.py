"""Compaction records, plans, events and splices."""

from __future__ import annotations

from collections.abc import Iterable

from foldline.commands.check_pressure import Foreseen
from foldline.commands.reply import Splice
from foldline.domain.checkpoints import Checkpoint
from foldline.domain.enums import (
    CheckpointKind,
    EventKind,
    FailureKind,
    PromptCache,
    RefusalKind,
    SignalKind,
    SkipReason,
    SourceBoundKind,
    Trigger,
)
from foldline.domain.events import BoundedResult, Event, Warning_
from foldline.domain.folding import CheckFailure, CompactionRecord, FoldScope, OffsetRange, to_ranges
from foldline.domain.models import Usage
from foldline.server.codec.basics import duration, enum_map, timestamp, wire_model, wire_usage, wire_warnings
from foldline.server.codec.rows import SOURCES, wire_rows
from foldline.v1 import checkpoint_pb2, compaction_pb2, event_pb2, policy_pb2, pressure_pb2, row_pb2

TRIGGERS = enum_map(compaction_pb2.Trigger, Trigger, "TRIGGER")
SCOPES = enum_map(compaction_pb2.FoldScope, FoldScope, "FOLD_SCOPE")
SKIPS = enum_map(compaction_pb2.SkipReason, SkipReason, "SKIP_REASON")
FAILURES = enum_map(compaction_pb2.FailureKind, FailureKind, "FAILURE_KIND")
PROMPT_CACHES = enum_map(policy_pb2.PromptCache, PromptCache, "PROMPT_CACHE")
BOUNDS = enum_map(compaction_pb2.SourceBoundKind, SourceBoundKind, "SOURCE_BOUND_KIND")
REFUSALS = enum_map(compaction_pb2.RefusalKind, RefusalKind, "REFUSAL_KIND")
SIGNALS = enum_map(pressure_pb2.SignalKind, SignalKind, "SIGNAL_KIND")
CHECKPOINTS = enum_map(checkpoint_pb2.CheckpointKind, CheckpointKind, "CHECKPOINT_KIND")
EVENTS = enum_map(event_pb2.EventKind, EventKind, "EVENT_KIND")


def wire_ranges(ranges: Iterable[OffsetRange]) -> list[row_pb2.OffsetRange]:
    return [row_pb2.OffsetRange(first=first, last=last) for first, last in ranges]


def wire_record(record: CompactionRecord, *, brief: bool = False) -> compaction_pb2.CompactionRecord:
    """A record; ``brief`` leaves out ranges and summary text, as listings do."""
    bound, coverage = record.bound, record.coverage
    return compaction_pb2.CompactionRecord(
        fold_id=record.fold_id,
        trigger=TRIGGERS.wire(record.trigger),
        signals=[SIGNALS.wire(s) for s in record.signals],
        revision_before=record.revision_before,
        revision_after=record.revision_after,
        discarded=() if brief else wire_ranges(record.discarded),
        retained=() if brief else wire_ranges(record.retained),
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        bytes_before=record.bytes_before,
        bytes_after=record.bytes_after,
        summary_source=SOURCES.wire(record.summary_source),
        bound=compaction_pb2.SourceBound(
            kind=BOUNDS.wire(bound.kind),
            through=bound.through,
            chunks=bound.chunks,
            kept=bound.kept,
            of=bound.of,
            prompt_cache=PROMPT_CACHES.wire(bound.prompt_cache),
            separate_because=bound.separate_because,
        ),
        model=wire_model(record.model),
        usage=wire_usage(record.usage),
        duration=duration(record.duration),
        coverage=compaction_pb2.Coverage(
            summary=coverage.summary,
            with_appendix=coverage.with_appendix,
            identifiers=coverage.identifiers,
            memory=coverage.memory,
        ),
        digest=record.digest,
        summary_text="" if brief else record.summary_text,
        scope=SCOPES.wire(record.scope),
        summary_offset=record.summary_offset,
        rows_summarized=record.rows_summarized,
        boundary=record.boundary,
        memory_entries=record.memory_entries,
        memory_dropped=record.memory_dropped,
        create_time=timestamp(record.time or None),
    )


def wire_checkpoint(checkpoint: Checkpoint) -> checkpoint_pb2.Checkpoint:
    return checkpoint_pb2.Checkpoint(
        checkpoint_id=checkpoint.checkpoint_id,
        description=checkpoint.description,
        kind=CHECKPOINTS.wire(checkpoint.kind),
        create_time=timestamp(checkpoint.time),
        revision_before=checkpoint.revision_before,
        revision_after=checkpoint.revision_after,
        fold_id=checkpoint.fold_id,
        trimmed_calls=checkpoint.trimmed_calls,
        discarded=wire_ranges(checkpoint.discarded),
    )


def wire_plan(fold: Foreseen) -> compaction_pb2.CompactionPlan:
    plan, usage = fold.plan, fold.usage or Usage()
    return compaction_pb2.CompactionPlan(
        scope=SCOPES.wire(plan.scope),
        discarded=wire_ranges(to_ranges(plan.discard)),
        retained=wire_ranges(to_ranges(plan.retain)),
        rows_summarized=len(plan.source_rows),
        tokens_before=plan.transcript_tokens,
        tokens_after=max(0, plan.transcript_tokens - plan.predicted_saving),
        summary_budget_tokens=plan.budget,
        predicted_saving_tokens=plan.predicted_saving,
        summary_source=SOURCES.wire(fold.source),
        model=wire_model(fold.model) if fold.model.model else None,
        source_tokens=usage.input_tokens or 0,
        cost=usage.cost,
        currency=usage.currency,
        native_unavailable=fold.unavailable,
    )


def wire_bounded(results: Iterable[BoundedResult]) -> list[compaction_pb2.BoundedResult]:
    return [
        compaction_pb2.BoundedResult(
            offset=r.offset, call_id=r.call_id, kept_bytes=r.kept_bytes, whole_bytes=r.whole_bytes, text=r.text
        )
        for r in results
    ]


def wire_splices(splices: Iterable[Splice]) -> compaction_pb2.SpliceList:
    made = compaction_pb2.SpliceList()
    for splice in splices:
        one = made.splices.add(position=splice.position, delete_count=splice.delete_count)
        if splice.rows:
            one.rows.CopyFrom(wire_rows(splice.rows))
        elif splice.offsets:
            one.offsets.offsets.extend(splice.offsets)
    return made


def wire_event(event: Event, session_id: str) -> event_pb2.Event:
    made = event_pb2.Event(
        sequence=event.seq,
        session_id=session_id,
        kind=EVENTS.wire(event.kind),
        create_time=timestamp(event.time),
        run_id=event.run_id,
        revision=event.revision,
        boundary=event.boundary,
        fold_id=event.fold_id,
        trigger=TRIGGERS.wire(event.trigger),
        signals=[SIGNALS.wire(s) for s in event.signals],
    )
    _payload(made, event)
    return made


def _payload(made: event_pb2.Event, event: Event) -> None:
    match event.kind:
        case EventKind.COMPACTION_STARTED:
            made.compaction_started.CopyFrom(
                event_pb2.CompactionStarted(
                    summary_source=SOURCES.wire(event.source),
                    model=wire_model(event.model),
                    rows=event.rows,
                    tokens_before=event.tokens,
                    bytes_before=event.bytes,
                )
            )
        case EventKind.COMPACTION_COMPLETED if event.record is not None:
            made.compaction_completed.CopyFrom(
                event_pb2.CompactionCompleted(
                    record=wire_record(event.record), failure=FAILURES.wire(event.failure), message=event.message[:1024]
                )
            )
        case EventKind.COMPACTION_FAILED:
            made.compaction_failed.CopyFrom(
                event_pb2.CompactionFailed(
                    failure=FAILURES.wire(event.failure),
                    checks=[_check(c) for c in event.checks],
                    summary_source=SOURCES.wire(event.source),
                    model=wire_model(event.model),
                    usage=wire_usage(event.usage),
                    duration=duration(event.duration),
                    cooldown_until=timestamp(event.cooldown_until),
                    message=event.message[:1024],
                )
            )
        case EventKind.COMPACTION_SKIPPED:
            made.compaction_skipped.CopyFrom(
                event_pb2.CompactionSkipped(
                    reason=SKIPS.wire(event.skip),
                    tokens=event.tokens,
                    message=event.message,
                )
            )
        case EventKind.TOOL_RESULTS_BOUNDED_FOR_REQUEST:
            made.tool_results_bounded.CopyFrom(
                event_pb2.ToolResultsBounded(
                    results=wire_bounded(event.bounded), limit=event.limit or 0, limit_unit=event.cause
                )
            )
        case EventKind.DID_NOT_FIT_RECORDED:
            made.did_not_fit_recorded.CopyFrom(
                event_pb2.DidNotFitRecorded(
                    cause=event.cause,
                    refusal=REFUSALS.wire(event.refusal),
                    named_tokens=event.tokens or None if event.cause == "refused" else None,
                )
            )
        case EventKind.RUN_SUPERSEDED:
            made.run_superseded.CopyFrom(
                event_pb2.RunSuperseded(
                    closed_run_id=event.run_id,
                    opened_run_id=event.other_run_id,
                    expired=event.warning is not None and event.warning.name == "RUN_EXPIRED",
                )
            )
        case EventKind.MEMORY_DEGRADED:
            made.memory_degraded.CopyFrom(
                event_pb2.MemoryDegraded(
                    pending_entries=event.pending,
                    quarantined_entries=event.quarantined,
                    message=event.message,
                    recovered=not event.cause,
                )
            )
        case EventKind.CHECKPOINT_SAVED if event.checkpoint is not None:
            made.checkpoint_saved.checkpoint.CopyFrom(wire_checkpoint(event.checkpoint))
        case EventKind.WARNING if event.warning is not None:
            made.warning.CopyFrom(wire_warnings([Warning_(event.warning, event.message)])[0])


def _check(failure: CheckFailure) -> compaction_pb2.CheckFailure:
    return compaction_pb2.CheckFailure(rule=failure.rule, detail=failure.detail[:1024])
