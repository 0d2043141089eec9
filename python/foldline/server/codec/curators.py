"""What hosts that write summaries are told, and what they say (S6, F12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foldline.commands.curators import Answer
from foldline.domain.curators import Curated, CuratorRole, Handed, Registration
from foldline.domain.enums import FailureKind, Trigger
from foldline.domain.folding import Compacted, SummaryFailed
from foldline.domain.rows import CompactionSummaryRow, Row
from foldline.server.codec.basics import enum_map, model_ref, seconds, timestamp, usage_of, wire_model
from foldline.server.codec.rows import wire_row
from foldline.v1 import compaction_pb2, curator_pb2, row_pb2
from foldline.v1 import curator_service_pb2 as pb

ROLES = enum_map(curator_pb2.CuratorRole, CuratorRole, "CURATOR_ROLE")
TRIGGERS = enum_map(compaction_pb2.Trigger, Trigger, "TRIGGER")

CHUNK_BYTES = 1 << 20
"""Rows of one message: clients of gRPC take 4 MiB unless they are told otherwise."""
_ROW_OVERHEAD = 8


def registration_of(value: curator_pb2.CuratorRegister, tenant: str) -> Registration:
    return Registration(
        role=ROLES.domain(value.role), tenant=tenant, labels=dict(value.labels), name=value.name,
        max_tasks=value.max_tasks or 1, background=value.background,
    )  # fmt: skip


def wire_task(handed: Handed, most: int = CHUNK_BYTES) -> Iterator[pb.CurateResponse]:
    """A task, its rows in as many messages as they need: a row is never divided, and one that is over ``most`` is
    alone in its message."""
    work = handed.work
    task = curator_pb2.CuratorTask(
        task_id=handed.task_id, session_id=work.session_id, labels=work.labels, role=ROLES.wire(work.role),
        earlier_summary=_earlier(work.earlier), instructions=work.instructions, budget_tokens=work.budget,
        deadline=timestamp(handed.deadline), lease_expire_time=timestamp(handed.lease_expire),
        attempt=handed.attempt, trigger=TRIGGERS.wire(work.trigger), model=wire_model(work.model),
        units=[curator_pb2.CuratorUnit(offsets=unit) for unit in work.units],
    )  # fmt: skip
    chunks = _chunks(work.rows, most, task.ByteSize())
    task.rows.extend(next(chunks, ()))
    following = next(chunks, None)
    task.more_rows = following is not None
    yield pb.CurateResponse(task=task)
    while following is not None:
        rows, following = following, next(chunks, None)
        further = curator_pb2.CuratorRows(task_id=handed.task_id, rows=rows, more_rows=following is not None)
        yield pb.CurateResponse(rows=further)


def _chunks(rows: Sequence[Row], most: int, taken: int) -> Iterator[list[row_pb2.Row]]:
    """Rows by messages, of the first of which some bytes are taken."""
    chunk: list[row_pb2.Row] = []
    size = taken
    for row in rows:
        made = wire_row(row)
        own = made.ByteSize() + _ROW_OVERHEAD
        if size and size + own > most:
            yield chunk
            chunk, size = [], 0
        chunk.append(made)
        size += own
    if chunk:
        yield chunk


def _earlier(rows: Sequence[CompactionSummaryRow]) -> row_pb2.CompactionSummaryRow | None:
    """The summary that the new one replaces; several, which edits and runs can leave, in one text (F8).

    Without their ledgers: these end with their run (F3), and a curator folds no rows of an open one.
    """
    if not rows:
        return None
    made = wire_row(Row(0, rows[-1])).compaction_summary
    made.text = "\n\n".join(row.text for row in rows)
    return made


def answer_of(value: curator_pb2.CuratorResult) -> Answer:
    """A host's answer to a task."""
    kind = value.WhichOneof("kind")
    if kind == "summary":
        said = value.summary
        return Curated(said.text, model_ref(said.model), usage_of(said.usage) if said.HasField("usage") else None)
    if kind == "rewrite":
        made = value.rewrite
        usage = usage_of(made.usage) if made.HasField("usage") else None
        return Compacted(tuple(made.keep_offsets), made.text, model_ref(made.model), usage)
    failure = value.failure
    after = seconds(failure.retry_after) if failure.HasField("retry_after") else None
    return SummaryFailed(
        FailureKind.CURATOR_FAILED, failure.message or "the host gave no reason", retry_after=after
    )  # fmt: skip
