"""Checkpoints in the store (K3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from foldline.domain.checkpoints import Checkpoint
from foldline.store.codec import decode, encode


def insert(db: sqlite3.Connection, key: int, checkpoints: Iterable[Checkpoint]) -> None:
    """Writes checkpoints, the oldest first."""
    db.executemany(
        "INSERT INTO checkpoint (session_key, checkpoint_id, revision, body) VALUES (?, ?, ?, ?)",
        [(key, c.checkpoint_id, c.revision_after, encode(c)) for c in checkpoints],
    )


def newest(db: sqlite3.Connection, key: int, before: int | None, limit: int) -> list[tuple[int, Checkpoint]]:
    """(number, checkpoint), newest first, of numbers below ``before``; a ``limit`` of -1 is none."""
    rows = db.execute(
        "SELECT id, body FROM checkpoint WHERE session_key = ? AND id < ? ORDER BY id DESC LIMIT ?",
        (key, 2**63 - 1 if before is None else before, limit),
    )
    return [(number, decode(body, Checkpoint)) for number, body in rows]


def find(db: sqlite3.Connection, key: int, checkpoint_id: str) -> Checkpoint | None:
    found = db.execute(
        "SELECT body FROM checkpoint WHERE session_key = ? AND checkpoint_id = ?", (key, checkpoint_id)
    ).fetchone()
    return decode(found[0], Checkpoint) if found else None


def share(db: sqlite3.Connection, source: int, key: int, revision: int) -> None:
    """Gives a fork the checkpoints up to its revision (X3)."""
    db.execute(
        "INSERT INTO checkpoint (session_key, checkpoint_id, revision, body) "
        "SELECT ?, checkpoint_id, revision, body FROM checkpoint WHERE session_key = ? AND revision <= ? ORDER BY id",
        (key, source, revision),
    )
