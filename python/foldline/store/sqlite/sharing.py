"""What a session and its forks share (X3): a fork's rows and memory entries stand without what is large.

That stays with their origin, the row or entry that they were taken from, also over forks of forks. Neither ever
changes, so what is shared is never written again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

_OWN = {"archive_row": "pinned", "memory_entry": "visible"}
"""Tables whose rows may have an origin, and what each session says for itself of such a row."""


def give_up(db: sqlite3.Connection, table: str, ids: Sequence[int]) -> list[int]:
    """Lets go of rows of a session: an origin that forks still need goes over to one of them, in place of its own row.

    Returns:
        The ids that nobody else needs, for the caller to delete.
    """
    heirs = db.execute(
        f"SELECT origin, min(id) FROM {table} WHERE origin IN (SELECT value FROM json_each(?)) GROUP BY origin",
        (json.dumps(ids),),
    ).fetchall()
    for origin, heir in heirs:
        said = db.execute(f"SELECT session_key, {_OWN[table]} FROM {table} WHERE id = ?", (heir,)).fetchone()
        db.execute(f"DELETE FROM {table} WHERE id = ?", (heir,))
        db.execute(f"UPDATE {table} SET session_key = ?, {_OWN[table]} = ? WHERE id = ?", (*said, origin))
    needed = {origin for origin, _ in heirs}
    return [each for each in ids if each not in needed]
