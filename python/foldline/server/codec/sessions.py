"""Sessions, totals, revisions and outcomes."""

from __future__ import annotations

from foldline.commands.inputs import RawMessages
from foldline.commands.record_answer import Answer, Outcome, Recorded, Refusal
from foldline.commands.sessions import SessionView
from foldline.commands.verify_session import VerifyFault
from foldline.domain.enums import Ownership, RevisionKind, RunOutcome
from foldline.domain.ports import Rewrite
from foldline.domain.rows import ModelRef
from foldline.domain.session import Cadence, Session, SourceTotals
from foldline.server.codec.basics import (
    enum_map,
    model_ref,
    timestamp,
    timestamp_of,
    usage_of,
    wire_model,
    wire_usage,
)
from foldline.server.codec.policy import policy_message
from foldline.server.codec.records import REFUSALS, SKIPS, wire_record
from foldline.server.codec.rows import FORMATS, rows_input
from foldline.v1 import compaction_pb2, compaction_service_pb2, model_pb2, session_pb2

OWNERSHIP = enum_map(session_pb2.Ownership, Ownership, "OWNERSHIP")
REVISIONS = enum_map(session_pb2.RevisionKind, RevisionKind, "REVISION_KIND")
OUTCOMES = enum_map(compaction_pb2.RunOutcome, RunOutcome, "RUN_OUTCOME")


def wire_session(session: Session) -> session_pb2.Session:
    return session_pb2.Session(
        session_id=session.session_id,
        model=wire_model(session.model),
        policy=policy_message(session.policy),
        labels=session.labels,
        ownership=OWNERSHIP.wire(session.ownership),
        revision=session.revision,
        digest=session.digest,
        open_run_id=session.open_run.run_id if session.open_run else "",
        create_time=timestamp_of(session.create_time),
        update_time=timestamp(session.update_time or None) or timestamp_of(session.create_time),
        memory_dropped=session.memory_dropped,
        forked_from=session.forked_from,
    )


def wire_totals(view: SessionView) -> session_pb2.SessionTotals:
    session = view.session
    return session_pb2.SessionTotals(
        rows_total=view.rows_total,
        rows_active=view.rows_active,
        rows_archived=view.rows_total - view.rows_active,
        folds=session.folds,
        tokens_active=view.tokens,
        bytes_active=view.bytes,
        boundaries=session.cadence.boundaries,
        usage=[
            session_pb2.SourceUsage(
                source=session_pb2.USAGE_SOURCE_HOST, calls=session.answers, usage=wire_usage(session.answer_usage)
            ),
            *(_source(t) for t in session.summary_totals),
        ],
        memory_entries=view.memory_entries,
        memory_pending=view.memory_pending,
    )


def _source(totals: SourceTotals) -> session_pb2.SourceUsage:
    usage = model_pb2.Usage(input_tokens=totals.input_tokens, output_tokens=totals.output_tokens, cost=totals.cost)
    return session_pb2.SourceUsage(
        source=session_pb2.UsageSource.Value(f"USAGE_SOURCE_{totals.source}"),
        calls=totals.attempts,
        folds=totals.folds,
        usage=usage,
    )


def wire_cadence(cadence: Cadence) -> session_pb2.CadenceState:
    return session_pb2.CadenceState(
        boundaries=cadence.boundaries,
        last_fold_boundary=cadence.last_fold,
        last_attempt_boundary=cadence.last_attempt,
        count_tokens=cadence.count.input_tokens if cadence.count else None,
        anchor_tokens=cadence.anchor.input_tokens if cadence.anchor else None,
        anchor_revision=cadence.anchor.revision if cadence.anchor else 0,
        did_not_fit=cadence.did_not_fit.cause if cadence.did_not_fit else "",
        left_tokens=cadence.left_tokens,
        left_threshold_tokens=cadence.left_threshold,
        cooldown_until=timestamp(cadence.cooldown_until),
        last_skip=SKIPS.wire(cadence.last_skip),
    )


def wire_revision(rewrite: Rewrite) -> session_pb2.Revision:
    return session_pb2.Revision(
        revision=rewrite.revision,
        parent_revision=rewrite.parent_revision,
        kind=REVISIONS.wire(rewrite.kind),
        digest=rewrite.digest,
        create_time=timestamp(rewrite.time),
        rows_active=sum(last - first + 1 for first, last in rewrite.active),
        fold=wire_record(rewrite.record, brief=True) if rewrite.record else None,
        checkpoint_id=rewrite.trim.checkpoint_id if rewrite.trim else "",
    )


def wire_fault(fault: VerifyFault) -> session_pb2.VerifyFault:
    return session_pb2.VerifyFault(
        rule=fault.rule, detail=fault.detail[:1024], revision=fault.revision, offset=fault.offset
    )


def outcome_of(value: compaction_service_pb2.Outcome, field: str) -> Outcome:
    kind = value.WhichOneof("kind")
    return Outcome(
        prepare_id=value.prepare_id,
        answer=_answer(value.answer, f"{field}.answer") if kind == "answer" else None,
        refusal=_refusal(value.refusal) if kind == "refusal" else None,
        finish=OUTCOMES.domain(value.finish),
    )


def _answer(value: compaction_service_pb2.Answer, field: str) -> Answer:
    content, usage = value.WhichOneof("content"), value.WhichOneof("usage_kind")
    return Answer(
        rows=rows_input(value.input, f"{field}.input") if content == "input" else None,
        response=(
            RawMessages(FORMATS.domain(value.response.format), value.response.response_json)
            if content == "response"
            else None
        ),
        usage=usage_of(value.usage) if usage == "usage" else None,
        usage_json=value.usage_json if usage == "usage_json" else b"",
        model=model_ref(value.model) if value.HasField("model") else ModelRef(),
        partial=value.partial,
    )


def _refusal(value: compaction_service_pb2.Refusal) -> Refusal:
    return Refusal(value.http_status, value.raw_body, REFUSALS.domain(value.kind))


def wire_recorded(recorded: Recorded) -> model_pb2.UsageReading | None:
    if recorded.usage is None:
        return None
    return model_pb2.UsageReading(usage=wire_usage(recorded.usage), counted=recorded.counted)
