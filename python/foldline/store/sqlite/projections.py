"""Projections in SQLite (H3): staged whole, settled once, then remembered. All of its SQL stands here."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from foldline.domain.changes import replace
from foldline.domain.enums import Ownership, RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryEntry
from foldline.domain.ports import Archive
from foldline.domain.projections import (
    HostRow,
    Projection,
    ProjectionState,
    Settled,
    StagedFold,
    digest_of_text,
    projection_name,
    summary_text,
)
from foldline.domain.rows import CompactionSummaryRow, decode_body

TABLES = {"projection": "id", "host_row": "session_key, row_id, part"}
"""What goes with a session, and the key of each table."""

IS_STAGED = (
    "EXISTS (SELECT 1 FROM projection p WHERE p.session_key = f.session_key AND p.fold_id = f.fold_id "
    "AND p.state = 'STAGED')"
)
"""Of an ``open_fold`` f: it waits for its host, across a restart too, and is no fold that a crash cut off."""

_COLUMNS = "projection_id, fold_id, state, expire, digest, text_digest, summary_offset, entries"

# Bodies of rows are bytes, which JSON would carry as base64.
_encode = msgspec.msgpack.Encoder().encode
_memory: msgspec.msgpack.Decoder[tuple[MemoryEntry, ...]] = msgspec.msgpack.Decoder(tuple[MemoryEntry, ...])
_staged = msgspec.msgpack.Decoder(StagedFold)


def stage(db: sqlite3.Connection, key: int, projection: Projection, fold: StagedFold, dropped: bool) -> None:
    """Stages a projection; of a dropped scope without its memory (M7)."""
    entries = () if dropped else fold.entries
    db.execute(
        f"INSERT INTO projection (session_key, {_COLUMNS}, memory, staged) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key, projection.projection_id, projection.fold_id, ProjectionState.STAGED.value, projection.expire,
            projection.digest, projection.text_digest, projection.summary_offset, len(entries), _encode(entries),
            _encode(replace(fold, entries=())),
        ),
    )  # fmt: skip


def settle(db: sqlite3.Connection, key: int, settled: Settled, entries: int) -> None:
    """Ends a staged projection and lets go of what it held.

    Args:
        entries: memory entries that its commit published.

    Raises:
        FoldlineError: PROJECTION_NOT_FOUND where it is staged no more.
    """
    ended = db.execute(
        "UPDATE projection SET state = ?, entries = ?, memory = NULL, staged = NULL "
        "WHERE session_key = ? AND projection_id = ? AND state = 'STAGED'",
        (settled.state.value, entries, key, settled.projection_id),
    ).rowcount
    if not ended:
        raise FoldlineError(
            Reason.PROJECTION_NOT_FOUND, f"projection {settled.projection_id} is staged no more",
            projection_id=settled.projection_id,
        )  # fmt: skip


def find(db: sqlite3.Connection, key: int, projection_id: str) -> Projection | None:
    found = db.execute(
        f"SELECT {_COLUMNS} FROM projection WHERE session_key = ? AND projection_id = ?", (key, projection_id)
    ).fetchone()
    return _projection(found) if found else None


def staged(db: sqlite3.Connection, key: int) -> tuple[Projection, StagedFold] | None:
    """The session's staged projection with all that it holds."""
    found = db.execute(
        f"SELECT {_COLUMNS}, memory, staged FROM projection WHERE session_key = ? AND state = 'STAGED'", (key,)
    ).fetchone()
    if found is None:
        return None
    *columns, memory, fold = found
    try:
        return _projection(columns), replace(_staged.decode(fold), entries=_memory.decode(memory))
    except msgspec.MsgspecError as error:
        raise FoldlineError(
            Reason.STORE_CORRUPT, f"the staged projection {columns[0]} cannot be read", record="StagedFold"
        ) from error


def issued(db: sqlite3.Connection, key: int, digests: Sequence[str], texts: Sequence[str]) -> list[Projection]:
    """Staged and committed projections by the digest of what they discarded or of their text (H2), newest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM projection WHERE session_key = ?1 AND state IN ('STAGED', 'COMMITTED') "
        "AND (digest IN (SELECT value FROM json_each(?2)) OR text_digest IN (SELECT value FROM json_each(?3))) "
        "ORDER BY id DESC",
        (key, json.dumps(list(digests)), json.dumps(list(texts))),
    )
    return [_projection(row) for row in rows]


def expired(db: sqlite3.Connection, now: float) -> list[tuple[str, str, str]]:
    """(tenant, session id, projection id) of staged projections that ran out."""
    return db.execute(
        "SELECT s.tenant, s.session_id, p.projection_id FROM projection p "
        "JOIN session s ON s.key = p.session_key AND s.deleting = 0 WHERE p.state = 'STAGED' AND p.expire <= ?",
        (now,),
    ).fetchall()


def forget_memory(db: sqlite3.Connection, key: int) -> None:
    """M7: a dropped scope takes nothing of what is staged."""
    db.execute(
        "UPDATE projection SET memory = ?, entries = 0 WHERE session_key = ? AND state = 'STAGED'", (_encode(()), key)
    )


def put_host_rows(db: sqlite3.Connection, key: int, rows: Iterable[HostRow]) -> None:
    db.executemany(
        "INSERT INTO host_row (session_key, row_id, part, offset) VALUES (?, ?, ?, ?)",
        [(key, row.row_id, row.part, row.offset) for row in rows],
    )


def host_rows(db: sqlite3.Connection, key: int, row_ids: Sequence[str] | None) -> list[HostRow]:
    """Rows of the archive by the host's ids, all of them without ``row_ids``."""
    condition = "" if row_ids is None else " AND row_id IN (SELECT value FROM json_each(?))"
    rows = db.execute(
        f"SELECT row_id, part, offset FROM host_row WHERE session_key = ?{condition} ORDER BY offset",
        (key,) if row_ids is None else (key, json.dumps(list(row_ids))),
    )
    return [HostRow(*row) for row in rows]


def share(db: sqlite3.Connection, source: int, key: int, through: int) -> None:
    """Gives a fork what its source knows of its host's rows and of its own summaries, up to an offset (X3).

    What is staged waits for the source's host, and stays there.
    """
    db.execute(
        "INSERT INTO host_row (session_key, row_id, part, offset) "
        "SELECT ?, row_id, part, offset FROM host_row WHERE session_key = ? AND offset <= ?",
        (key, source, through),
    )
    db.execute(
        f"INSERT INTO projection (session_key, {_COLUMNS}) SELECT ?, {_COLUMNS} FROM projection "
        "WHERE session_key = ? AND state = 'COMMITTED' AND summary_offset <= ? ORDER BY id",
        (key, source, through),
    )


def import_session(db: sqlite3.Connection, key: int, archive: Archive) -> None:
    """Writes what an imported session knows of its host's rows and of the summaries that it issued."""
    put_host_rows(db, key, archive.host_rows)
    if archive.session.ownership is not Ownership.HOST_OWNED:
        return
    summaries = {r.offset: decode_body(r.body) for r in archive.rows if r.kind == RowKind.COMPACTION_SUMMARY}
    for record in (r.record for r in archive.rewrites):
        body = summaries.get(record.summary_offset) if record else None
        if record is None or not isinstance(body, CompactionSummaryRow):
            continue
        db.execute(
            f"INSERT INTO projection (session_key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key, projection_name(record.fold_id), record.fold_id, ProjectionState.COMMITTED.value, 0.0,
                record.digest, digest_of_text(summary_text(body)), record.summary_offset, record.memory_entries,
            ),
        )  # fmt: skip


def _projection(columns: Sequence[Any]) -> Projection:
    name, fold_id, state, *rest = columns
    return Projection(name, fold_id, ProjectionState(state), *rest)
