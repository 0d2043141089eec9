"""Removing a session in transactions of bounded size: it is gone for every reader with the first of them."""

from __future__ import annotations

import sqlite3

from foldline.domain.ports import StoredRequest
from foldline.store.sqlite import memory, projections, segments, writes
from foldline.store.sqlite.sharing import give_up

CHUNK = 500
"""Rows of one transaction."""

_TABLES = {
    "rewrite": "id",
    "call": "session_key, call_id, offset",
    "closed_run": "session_key, run_id",
    "prepared": "id",
    "request": "id",
    "tools": "session_key, digest",
    "event": "id",
    "open_fold": "session_key, fold_id",
    "curator_lease": "task_id",
    "checkpoint": "id",
    "call_ledger": "session_key",
    **projections.TABLES,
}
"""What belongs to a session alone, and the key of each table."""


def mark(db: sqlite3.Connection, key: int, request: StoredRequest | None, now: float) -> bool:
    """Takes the session away from every reader; False if there was none."""
    found = db.execute("SELECT tenant FROM session WHERE key = ? AND deleting = 0", (key,)).fetchone()
    if found is None:
        return False
    db.execute("UPDATE session SET deleting = 1 WHERE key = ?", (key,))
    if request is not None:
        writes.insert_request(db, found[0], 0, request, now)
    return True


def marked(db: sqlite3.Connection) -> list[int]:
    """Sessions whose removal has begun."""
    return [key for (key,) in db.execute("SELECT key FROM session WHERE deleting = 1")]


def remove_chunk(db: sqlite3.Connection, key: int) -> bool:
    """Removes some of what a marked session has; False when all of it is gone, the session itself with it."""
    if memory.remove_entries(db, key, CHUNK) or segments.remove(db, key, CHUNK) or _remove_rows(db, key):
        return True
    for table, columns in _TABLES.items():
        removed = db.execute(
            f"DELETE FROM {table} WHERE ({columns}) IN (SELECT {columns} FROM {table} WHERE session_key = ? LIMIT ?)",
            (key, CHUNK),
        ).rowcount
        if removed:
            return True
    db.execute("DELETE FROM session WHERE key = ? AND deleting = 1", (key,))
    return False


def _remove_rows(db: sqlite3.Connection, key: int) -> bool:
    """Removes some rows of the archive; those that forks need go over to them (X3)."""
    ids = [row for (row,) in db.execute("SELECT id FROM archive_row WHERE session_key = ? LIMIT ?", (key, CHUNK))]
    gone = give_up(db, "archive_row", ids)
    db.executemany("DELETE FROM archive_row WHERE id = ?", [(row,) for row in gone])
    return bool(ids)


def purge_chunk(db: sqlite3.Connection, table: str, before: float) -> bool:
    """Removes records of ``request`` or ``prepared`` of before a time; False when the oldest left are younger."""
    oldest = db.execute(f"SELECT id, time FROM {table} ORDER BY id LIMIT ?", (CHUNK,)).fetchall()
    expired = [(record,) for record, time in oldest if time <= before]
    db.executemany(f"DELETE FROM {table} WHERE id = ?", expired)
    return len(expired) == CHUNK
