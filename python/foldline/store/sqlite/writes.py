"""What a commit writes, statement by statement. Every function runs inside the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import TypeVar

from foldline.domain.changes import replace
from foldline.domain.enums import EventKind
from foldline.domain.errors import FoldlineError, Reason, RevisionConflict
from foldline.domain.events import Event
from foldline.domain.memory import MemoryReport
from foldline.domain.models import Factor
from foldline.domain.ports import Batch, CallUpdate, Rewrite, StoredRequest, StoredRow, Tools
from foldline.domain.session import ClosedRun, Prepared, Session
from foldline.store.codec import decode_session, encode, encode_session
from foldline.store.lexical import Segment
from foldline.store.sqlite import checkpoints, memory, projections

REPEAT_SECONDS = 24 * 3600.0
"""How long a request id is remembered (W2)."""

MOST_TOOLS = 4
"""Tools of a session whose JSON is kept: an agent with other tools in other phases sends few sets in turn."""

_TERMINAL = (EventKind.COMPACTION_COMPLETED, EventKind.COMPACTION_FAILED)

R = TypeVar("R", Rewrite, Event)


def insert_session(db: sqlite3.Connection, session: Session) -> Session:
    """Writes a new session's state; returns it with its key.

    Raises:
        FoldlineError: SESSION_EXISTS.
    """
    taken = db.execute(
        "SELECT 1 FROM session WHERE tenant = ? AND session_id = ? AND deleting = 0",
        (session.tenant, session.session_id),
    ).fetchone()
    if taken:
        raise FoldlineError(
            Reason.SESSION_EXISTS,
            f"session {session.session_id} exists already",
            session_id=session.session_id,
        )
    key = db.execute(
        "INSERT INTO session (tenant, session_id, memory_dropped, next_offset, revision, state) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (
            session.tenant, session.session_id, session.memory_dropped, session.next_offset, session.revision,
            encode_session(session),
        ),
    ).lastrowid  # fmt: skip
    assert key is not None
    put_ledger(db, key, session)
    return replace(session, key=key)


def put_ledger(db: sqlite3.Connection, key: int, session: Session) -> None:
    """Writes the open run's call ledger (F3), beside the state: no boundary writes it anew (4.5)."""
    if session.call_ledger:
        db.execute("INSERT OR REPLACE INTO call_ledger VALUES (?, ?)", (key, encode(session.call_ledger)))
    else:
        db.execute("DELETE FROM call_ledger WHERE session_key = ?", (key,))


def write_batch(db: sqlite3.Connection, batch: Batch, state: bytes, index: Segment, now: float) -> tuple[Event, ...]:
    """Writes a batch over the revision it expects (V10).

    Args:
        state: the batch's session, encoded, without its call ledger.
        index: of the entries it publishes.

    Raises:
        RevisionConflict: the store holds another revision.
        FoldlineError: SESSION_NOT_FOUND; INTERNAL where an offset is given already; REQUEST_ID_REUSED where another
            request has just been answered under the id.
    """
    session, key = batch.session, batch.session.key
    updated = db.execute(
        "UPDATE session SET revision = ?, state = ?, next_offset = ?, last_event = last_event + ?, "
        "memory_dropped = max(memory_dropped, ?) "
        "WHERE key = ? AND revision = ? AND next_offset <= ? AND deleting = 0 RETURNING last_event, memory_dropped",
        (
            session.revision, state, session.next_offset, len(batch.events), session.memory_dropped, key,
            batch.expected_revision, _first_offset(batch),
        ),
    ).fetchall()  # fmt: skip
    if not updated:
        raise _refused(db, batch)
    last_event, dropped = updated[0]
    if not batch.ledger_stands:
        put_ledger(db, key, session)
    if batch.settle:
        projections.settle(db, key, batch.settle, 0 if dropped else len(batch.publish))
    if batch.stage:
        projections.stage(db, key, *batch.stage, dropped)
    if batch.host_rows:
        projections.put_host_rows(db, key, batch.host_rows)
    if batch.rows:
        insert_rows(db, key, batch.rows)
    if batch.request:
        insert_request(db, "", key, batch.request, now)
    if batch.prepared:
        _put_prepared(db, key, batch.prepared, now)
    if batch.calls:
        put_calls(db, key, batch.calls)
    if batch.pins:
        db.executemany(
            "UPDATE archive_row SET pinned = ? WHERE session_key = ? AND offset = ?",
            [(pinned, key, offset) for offset, pinned in batch.pins],
        )
    if batch.closed_runs:
        put_closed_runs(db, key, batch.closed_runs)
    if batch.tools:
        _put_tools(db, key, batch.tools, batch.tools_json, session.revision)
    if batch.factor:
        _put_factor(db, session.tenant, batch.factor)
    rewrite, events = batch.rewrite, batch.events
    if dropped:
        # M7: a scope that was dropped while its fold was under way takes nothing in, and the fold's record says so.
        rewrite, events = rewrite and _without_memory(rewrite), tuple(_without_memory(e) for e in events)
    elif batch.publish:
        memory.publish(db, key, batch.publish, index, session.revision)
    if batch.visible is not None:
        memory.show_only(db, key, batch.visible)
    if rewrite:
        insert_rewrites(db, key, (rewrite,))
    if batch.checkpoint:
        checkpoints.insert(db, key, (batch.checkpoint,))
    return insert_events(db, key, events, last_event - len(events) + 1)


def _first_offset(batch: Batch) -> int:
    """The first offset that the batch gives. Those of a projection were given when it was staged."""
    return batch.rows[0].offset if batch.rows and batch.settle is None else batch.session.next_offset


def check_rows(rows: Sequence[StoredRow], after: int, session: Session) -> None:
    """Offsets ascend and stay under the session's next one; revisions lie in ``(after, session.revision]``, in order.

    Raises:
        FoldlineError: INTERNAL; listing a past revision relies on this order.
    """
    offset, revision = 0, after + 1
    for row in rows:
        if (
            row.offset <= offset
            or not revision <= row.revision <= session.revision
            or row.offset >= session.next_offset
        ):
            raise FoldlineError(
                Reason.INTERNAL,
                f"row {row.offset} of revision {row.revision} is out of order: after offset {offset} and revision "
                f"{revision}, before offset {session.next_offset}, up to revision {session.revision}",
                offset=row.offset, revision=row.revision,
            )  # fmt: skip
        offset, revision = row.offset, row.revision


def _refused(db: sqlite3.Connection, batch: Batch) -> Exception:
    key = batch.session.key
    found = db.execute("SELECT revision, next_offset FROM session WHERE key = ? AND deleting = 0", (key,)).fetchone()
    if found is None:
        session_id = batch.session.session_id
        return FoldlineError(Reason.SESSION_NOT_FOUND, f"no session {session_id}", session_id=session_id)
    revision, next_offset = found
    if revision != batch.expected_revision:
        return RevisionConflict(batch.expected_revision, revision)
    return FoldlineError(
        Reason.INTERNAL,
        f"offsets under {next_offset} are given and are never given again",
        next_offset=next_offset,
    )


def _without_memory(item: R) -> R:
    if item.record is None:
        return item
    return replace(item, record=replace(item.record, memory_entries=0, memory_dropped=True))


def insert_rows(db: sqlite3.Connection, key: int, rows: Iterable[StoredRow]) -> None:
    db.executemany(
        "INSERT INTO archive_row (session_key, offset, kind, run_id, pinned, tokens, bytes, revision, place, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (key, r.offset, int(r.kind), r.run_id, r.pinned, r.tokens, r.bytes, r.revision, r.place, r.body)
            for r in rows
        ],
    )


def insert_rewrites(db: sqlite3.Connection, key: int, rewrites: Iterable[Rewrite]) -> None:
    db.executemany(
        "INSERT INTO rewrite (session_key, revision, kind, parent_revision, digest, time, note, active, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                key, r.revision, r.kind.value, r.parent_revision, r.digest, r.time, r.note, encode(r.active),
                encode(r.record or r.trim) if r.record or r.trim else None,
            )
            for r in rewrites
        ],
    )  # fmt: skip


def put_calls(db: sqlite3.Connection, key: int, calls: Iterable[CallUpdate]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO call (session_key, call_id, offset, result_offset, removed_by) VALUES (?, ?, ?, ?, ?)",
        [(key, c.call_id, c.offset, c.result_offset, c.removed_by) for c in calls],
    )


def put_closed_runs(db: sqlite3.Connection, key: int, runs: Iterable[ClosedRun]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO closed_run (session_key, run_id, body) VALUES (?, ?, ?)",
        [(key, run.run_id, encode(run)) for run in runs],
    )


def insert_request(db: sqlite3.Connection, tenant: str, key: int, request: StoredRequest, now: float) -> None:
    """Keeps a first answer (W2); ``key`` 0 is the tenant's own scope.

    The same request of a session may answer again: what was remembered before its fold, or of one to be measured again,
    is replaced. What a tenant's own request made, it makes once.

    Raises:
        FoldlineError: REQUEST_ID_REUSED where another answer is still remembered under the id.
    """
    record = (key, tenant, request.request_id, request.method, request.time, request.payload, request.answer)
    insert = (
        "INSERT INTO request (session_key, tenant, request_id, method, time, payload, answer) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    )
    if db.execute(insert, record).rowcount:
        return
    # Deleted, not updated: ids of rows ascend with time, which is what purging goes by.
    replaced = db.execute(
        "DELETE FROM request WHERE session_key = ? AND tenant = ? AND request_id = ? "
        "AND (time <= ? OR (session_key <> 0 AND method = ? AND payload = ?))",
        (key, tenant, request.request_id, now - REPEAT_SECONDS, request.method, request.payload),
    ).rowcount
    if not replaced:
        raise FoldlineError(
            Reason.REQUEST_ID_REUSED, f"request id {request.request_id} has just been answered",
            request_id=request.request_id, method=request.method,
        )  # fmt: skip
    db.execute(insert, record)


def insert_events(db: sqlite3.Connection, key: int, events: Sequence[Event], first: int) -> tuple[Event, ...]:
    """Writes events numbered from ``first``, and keeps which folds have no end yet."""
    numbered = tuple(replace(event, seq=first + index) for index, event in enumerate(events))
    for event in numbered:
        db.execute("INSERT INTO event (session_key, seq, body) VALUES (?, ?, ?)", (key, event.seq, encode(event)))
        if event.kind is EventKind.COMPACTION_STARTED:
            db.execute("INSERT OR REPLACE INTO open_fold VALUES (?, ?, ?)", (key, event.fold_id, event.seq))
        elif event.kind in _TERMINAL:
            db.execute("DELETE FROM open_fold WHERE session_key = ? AND fold_id = ?", (key, event.fold_id))
    return numbered


def import_events(db: sqlite3.Connection, key: int, events: Sequence[Event]) -> None:
    """Writes the events of an imported session under the numbers they have; its next one follows the last."""
    for event in events:
        insert_events(db, key, (event,), event.seq)
    db.execute("UPDATE session SET last_event = ? WHERE key = ?", (events[-1].seq if events else 0, key))


def drop_scope(db: sqlite3.Connection, key: int) -> int:
    """M7: removes the memory of a session and closes its scope for good; returns how many entries it had.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    closed = "UPDATE session SET memory_dropped = 1, memory_told = '' WHERE key = ? AND deleting = 0"
    if not db.execute(closed, (key,)).rowcount:
        raise FoldlineError(Reason.SESSION_NOT_FOUND, "the session is no longer there")
    projections.forget_memory(db, key)
    return memory.drop(db, key)


def tell_memory(db: sqlite3.Connection, report: MemoryReport, now: float) -> bool:
    """Writes what a session's event log says of its memory from now on; False where it says so already, or it is gone.

    Only the event log and its own column change: the session in memory stays right.
    """
    found = db.execute(
        "UPDATE session SET memory_told = ?1, last_event = last_event + 1 "
        "WHERE key = ?2 AND memory_told <> ?1 AND deleting = 0 AND memory_dropped = 0 RETURNING state, last_event",
        (report.state, report.key),
    ).fetchall()
    if not found:
        return False
    ((state, seq),) = found
    session = decode_session(state, report.key, memory_dropped=False)
    event = Event(
        kind=EventKind.MEMORY_DEGRADED, time=now, revision=session.revision,
        boundary=max(0, session.cadence.boundaries - 1), message=report.message, pending=report.pending,
        quarantined=report.quarantined, cause=report.state,
    )  # fmt: skip
    insert_events(db, report.key, (event,), seq)
    return True


def _put_prepared(db: sqlite3.Connection, key: int, prepared: Prepared, now: float) -> None:
    db.execute(
        "INSERT INTO prepared (session_key, prepare_id, time, body) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET body = excluded.body",
        (key, prepared.prepare_id, now, encode(prepared)),
    )


def _put_tools(db: sqlite3.Connection, key: int, tools: Tools, json: bytes | None, revision: int) -> None:
    """Writes tools, and their JSON in place of the oldest that is kept (S3)."""
    db.execute(
        "INSERT INTO tools (session_key, digest, tokens, bytes) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (key, tools.digest, tools.tokens, tools.bytes),
    )
    if json is None:
        return
    db.execute(
        "UPDATE tools SET json = ?, kept = ? WHERE session_key = ? AND digest = ?", (json, revision, key, tools.digest)
    )
    db.execute(
        "UPDATE tools SET json = NULL, kept = NULL WHERE session_key = ?1 AND digest IN ("
        "SELECT digest FROM tools WHERE session_key = ?1 AND kept IS NOT NULL "
        "ORDER BY digest = ?2 DESC, kept DESC LIMIT -1 OFFSET ?3)",
        (key, tools.digest, MOST_TOOLS),
    )


def _put_factor(db: sqlite3.Connection, tenant: str, factor: Factor) -> None:
    db.execute(
        "INSERT OR REPLACE INTO factor VALUES (?, ?, ?, ?)",
        (tenant, factor.model.provider, factor.model.model, encode(factor)),
    )
