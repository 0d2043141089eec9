"""What is known of models' own compaction (N3). The writing function runs inside the writer's transaction."""

from __future__ import annotations

import sqlite3

from foldline.domain.native import Capability, NativeRoute


def put(db: sqlite3.Connection, route: NativeRoute, found: Capability) -> None:
    """Writes what is known of a route, in place of what was."""
    db.execute(
        "INSERT OR REPLACE INTO native_capability (provider, endpoint, model, protocol, there, reason, time) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*_key(route), int(found.there), found.reason, found.time),
    )


def read(db: sqlite3.Connection, route: NativeRoute) -> Capability | None:
    row = db.execute(
        "SELECT there, reason, time FROM native_capability "
        "WHERE provider = ? AND endpoint = ? AND model = ? AND protocol = ?",
        _key(route),
    ).fetchone()
    return None if row is None else Capability(bool(row[0]), row[1], row[2])


def _key(route: NativeRoute) -> tuple[str, str, str, str]:
    return route.model.provider, route.endpoint, route.model.model, route.protocol
