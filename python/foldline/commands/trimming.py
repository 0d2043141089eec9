"""Committing a trim (K2): the list without its oldest completed calls, their memory, and the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

from foldline import _core
from foldline.commands import ahead
from foldline.commands.draft import Draft, chained, commit, measured, media_tokens
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.commands.snapshots import facts_of_stored, snapshot_of
from foldline.domain.changes import replace
from foldline.domain.checkpoints import Checkpoint, TrimmedCall, TrimRecord
from foldline.domain.enums import CheckpointKind, EventKind, FailureKind, RevisionKind, Trigger
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event
from foldline.domain.folding import Snapshot, to_ranges
from foldline.domain.memory import MemoryEntry
from foldline.domain.ports import Batch, Rewrite, StoredRequest, StoredRow
from foldline.domain.rows import AssistantRow, Row, calls_of, identity_of
from foldline.domain.session import OpenRun, Session
from foldline.engine import cadence, ledger
from foldline.engine.structure import analyze
from foldline.engine.trim_checks import check_trim
from foldline.engine.trimming import TrimPlan, derive, plan_trim

log = structlog.get_logger(__name__)


def trim(
    services: Services, live: LiveSession, checkpoint_id: str, description: str, count: int,
    remembered: Callable[[Checkpoint], StoredRequest | None],
) -> Checkpoint:  # fmt: skip
    """Takes the ``count`` oldest completed calls out of the list. Under the session's lock, without a running fold.

    Args:
        remembered: what to write with it so that a repeat of its request finds it (W2).

    Raises:
        FoldlineError: TRIM_COUNT_TOO_LARGE, REWRITE_REJECTED naming the checks. The transcript is then as it was.
    """
    session = live.session
    stored = services.store.read_rows(session.key, live.offsets())
    rows = [to_row(r) for r in stored]
    before = snapshot_of(services, session, stored, rows)
    plan = plan_trim(before, analyze(before), session.calls, count)
    revision, policy = session.revision + 1, services.policy(session).policy
    taken = _without(session, rows, plan)
    new = measured(services, session, [row for row, _ in taken], revision, {})
    derived = {old: made for made, (_, old) in zip(new, taken, strict=True)}
    leaving = plan.results.union(plan.by_row)
    gone = [r for r in stored if r.offset in leaving]
    after = [derived.get(r.offset, r) for r in stored if r.offset in derived or r.offset not in leaving]
    record = TrimRecord(
        checkpoint_id,
        discarded=to_ranges(tuple(r.offset for r in gone)),
        digest=_core.digest_rows([r.offset for r in gone], [r.body for r in gone]).hex(),
        derived=tuple((made.offset, old) for made, (_, old) in zip(new, taken, strict=True)),
        calls=tuple(TrimmedCall(c.offset, c.call_id, c.history) for c in plan.calls),
        results_indexed=policy.memory.index_tool_results,
    )
    _prove(services, live, before, after, record, count)
    offsets = tuple(r.offset for r in after)
    active = to_ranges(offsets)
    digest = chained(
        session.digest, RevisionKind.TRIM, _core.digest_rows([r.offset for r in new], [r.body for r in new]),
        bytes.fromhex(record.digest), msgspec.json.encode(active),
    )  # fmt: skip
    now = services.clock()
    state = _state(session, rows, after, plan, revision, len(new))
    state = replace(state, update_time=now, digest=digest)
    checkpoint = Checkpoint(
        checkpoint_id, description, CheckpointKind.TRIM, now, session.revision, revision, trimmed_calls=count,
        discarded=record.discarded,
    )  # fmt: skip
    run = session.open_run
    event = Event(
        kind=EventKind.CHECKPOINT_SAVED, time=now, revision=revision, boundary=max(0, session.cadence.boundaries - 1),
        run_id=run.run_id if run else "", trigger=Trigger.CHECKPOINT, checkpoint=checkpoint,
    )  # fmt: skip
    batch = Batch(
        expected_revision=session.revision,
        session=state,
        rows=tuple(new),
        rewrite=Rewrite(revision, RevisionKind.TRIM, session.revision, active, digest, now, trim=record),
        events=(event,),
        publish=_entries(services, session, rows, gone),
        request=remembered(checkpoint),
        checkpoint=checkpoint,
    )
    commit(services, live, batch)
    live.session = state
    live.load((r.offset, r.kind, r.run_id, r.tokens, r.bytes) for r in after)
    services.memory.wake()
    # A3: what was written ahead of need covers rows that are gone.
    ahead.drop(services, live, f"revision {revision} trimmed calls")
    return checkpoint


def _without(session: Session, rows: Sequence[Row], plan: TrimPlan) -> list[tuple[Row, int]]:
    """(derived row, offset of the row whose place it takes), in list order; rows of which nothing is left go whole."""
    found: list[tuple[Row, int]] = []
    for row in rows:
        ids = plan.by_row.get(row.offset)
        if ids is None or not isinstance(row.body, AssistantRow):
            continue
        body = derive(row.body, identity_of(row), ids)
        if body is not None:
            found.append((Row(session.next_offset + len(found), body, row.run_id, row.pinned), row.offset))
    return found


def _prove(
    services: Services, live: LiveSession, before: Snapshot, after: Sequence[StoredRow], record: TrimRecord, count: int
) -> None:
    """V1-V7, K2.

    Raises:
        FoldlineError: REWRITE_REJECTED; the log names the checks, as of a fold (§7, §13).
    """
    session = live.session
    index = services.policy(session).policy.memory.index_tool_results
    facts = [facts_of_stored(r, to_row(r), session, index) for r in after]
    failures = check_trim(before, facts, record, count)
    if failures:
        detail = "; ".join(f"{f.rule}: {f.detail}" for f in failures)
        log.error("a trim does not hold", session=session.session_id, checks=detail)
        draft, run = Draft(services, live), session.open_run
        named = {"fold_id": record.checkpoint_id, "trigger": Trigger.CHECKPOINT, "run_id": run.run_id if run else ""}
        draft.event(EventKind.COMPACTION_STARTED, rows=len(before.rows), **named)
        draft.event(
            EventKind.COMPACTION_FAILED, failure=FailureKind.REWRITE_REJECTED, checks=tuple(failures), message=detail,
            **named,
        )  # fmt: skip
        draft.commit()
        raise FoldlineError(
            Reason.REWRITE_REJECTED, f"the trim failed: {detail}",
            checks=",".join(dict.fromkeys(f.rule for f in failures)),
        )  # fmt: skip


def _entries(
    services: Services, session: Session, rows: Sequence[Row], gone: Sequence[StoredRow]
) -> tuple[MemoryEntry, ...]:  # fmt: skip
    """V8: what memory holds of the rows that leave the list; those that are derived themselves it has already (K2)."""
    if session.memory_dropped:
        return ()
    memory, wanted = services.policy(session).policy.memory, {r.offset for r in gone}
    return services.memory.project(
        [r for r in rows if r.offset in wanted], rows, memory.chunk_tokens, memory.index_tool_results
    )


def _state(
    session: Session, rows: Sequence[Row], after: Sequence[StoredRow], plan: TrimPlan, revision: int, derived: int
) -> Session:  # fmt: skip
    """The session without the calls: count and anchor are void (4.3), the open run's ledger has its own (F3)."""
    trimmed = {(c.offset, c.call_id) for c in plan.calls}
    return replace(
        session,
        revision=revision,
        next_offset=session.next_offset + derived,
        rewrites=session.rewrites + 1,
        calls=tuple(c for c in session.calls if (c.offset, c.call_id) not in trimmed),
        cadence=cadence.trimmed(session.cadence),
        open_run=session.open_run and _with_ledger(session, session.open_run, rows, plan),
        media_tokens=media_tokens(to_row(r).body for r in after),
    )


def _with_ledger(session: Session, run: OpenRun, rows: Sequence[Row], plan: TrimPlan) -> OpenRun:
    own = {(c.offset, c.call_id) for c in plan.calls if not c.history}
    entries = ledger.calls_of_rounds(rows, session.calls)
    made = [
        entry
        for row in rows
        for call, entry in zip(calls_of(row.body), entries.get(row.offset, ()), strict=True)
        if (identity_of(row), call.call_id) in own
    ]
    return replace(run, ledger=ledger.merge(run.ledger, made)) if made else run
