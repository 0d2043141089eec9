"""Leases of tasks that hosts work on (S6). Every writing function runs inside the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from foldline.domain.curators import Lease

_COLUMNS = "task_id, session_key, fold_id, curator_id, curator, attempt, time, expire"


def put(db: sqlite3.Connection, lease: Lease) -> bool:
    """Writes a lease in place of the task's earlier one; False where its session is gone."""
    return bool(
        db.execute(
            f"INSERT OR REPLACE INTO curator_lease ({_COLUMNS}) "
            "SELECT ?, key, ?, ?, ?, ?, ?, ? FROM session WHERE key = ? AND deleting = 0",
            (
                lease.task_id, lease.fold_id, lease.curator_id, lease.curator, lease.attempt, lease.time, lease.expire,
                lease.session_key,
            ),
        ).rowcount
    )  # fmt: skip


def renew(db: sqlite3.Connection, task_ids: Sequence[str], curator_id: str, expire: float) -> None:
    """Leases of a host run on; those that it took over from a broken stream become its own."""
    db.executemany(
        "UPDATE curator_lease SET curator_id = ?, expire = ? WHERE task_id = ?",
        [(curator_id, expire, task_id) for task_id in task_ids],
    )


def end(db: sqlite3.Connection, task_id: str) -> None:
    db.execute("DELETE FROM curator_lease WHERE task_id = ?", (task_id,))


def clear(db: sqlite3.Connection) -> int:
    """Removes every lease; returns how many there were."""
    return db.execute("DELETE FROM curator_lease").rowcount


def every(db: sqlite3.Connection) -> list[Lease]:
    """Leases, oldest first."""
    return [Lease(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM curator_lease ORDER BY time, task_id")]
