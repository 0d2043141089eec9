"""Memory entries in SQLite: what is shown (M2), the lexical index, vectors. All of its SQL stands here.

An entry is four rows: what filters and counts need, its text, its lexical row, its vector. Search finds a session's
entries by a token of their own, which every lexical row carries in ``scope``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from foldline.domain.enums import EntryKind, EntryRole
from foldline.domain.folding import OffsetRange
from foldline.domain.memory import MemoryEntry, MemoryFilter, StoredEntry

OWN_WEIGHT, CONTEXT_WEIGHT = 4.0, 1.0

_ENTRY = (
    "e.id, e.offset, e.chunk, e.kind, e.role, t.text, t.terms, t.context, e.byte_start, e.byte_end, e.call_id, "
    "e.create_time"
)
_FROM = "memory_entry e JOIN memory_text t ON t.entry_id = e.id"


def publish(db: sqlite3.Connection, key: int, entries: Iterable[MemoryEntry]) -> None:
    """Makes entries visible (M2).

    A row that was folded before has its entries already and shows these again, also where today's chunks would be cut
    elsewhere: an entry is never doubled.
    """
    ordered = sorted(entries, key=lambda entry: (entry.offset, entry.chunk))
    for offset, chunks in groupby(ordered, key=lambda entry: entry.offset):
        shown = db.execute(
            "UPDATE memory_entry SET visible = 1 WHERE session_key = ? AND offset = ?", (key, offset)
        ).rowcount
        if not shown:
            for entry in chunks:
                insert_entry(db, key, entry, visible=True)


def insert_entry(db: sqlite3.Connection, key: int, entry: MemoryEntry, visible: bool) -> None:
    entry_id = db.execute(
        "INSERT INTO memory_entry "
        "(session_key, offset, chunk, visible, kind, role, byte_start, byte_end, call_id, create_time) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key, entry.offset, entry.chunk, visible, entry.kind.value, entry.role.value,
            entry.byte_start, entry.byte_end, entry.call_id, entry.create_time,
        ),
    ).lastrowid  # fmt: skip
    db.execute(
        "INSERT INTO memory_text (entry_id, terms, context, text) VALUES (?, ?, ?, ?)",
        (entry_id, entry.terms, entry.context, entry.text),
    )
    db.execute(
        "INSERT INTO memory_search (rowid, terms, context, scope) VALUES (?, ?, ?, ?)",
        (entry_id, entry.terms, entry.context, _scope(key)),
    )


def show_only(db: sqlite3.Connection, key: int, ranges: Sequence[OffsetRange]) -> None:
    """Shows the entries of exactly these offsets; writes only where that changes something."""
    entries = db.execute("SELECT id, offset, visible FROM memory_entry WHERE session_key = ?", (key,)).fetchall()
    shown = _Ranges(ranges)
    changes = [
        (int(not visible), entry_id) for entry_id, offset, visible in entries if bool(visible) != (offset in shown)
    ]
    db.executemany("UPDATE memory_entry SET visible = ? WHERE id = ?", changes)


class _Ranges:
    """Membership in ranges of offsets, for offsets in any order."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._offsets = {offset for first, last in ranges for offset in range(first, last + 1)}

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets


def drop_entries(db: sqlite3.Connection, key: int, limit: int | None = None) -> int:
    """Removes entries of a session with their text, vectors and lexical rows; at most ``limit``; returns how many."""
    found = db.execute(
        "SELECT t.entry_id, t.terms, t.context FROM memory_entry e JOIN memory_text t ON t.entry_id = e.id "
        "WHERE e.session_key = ? LIMIT ?",
        (key, -1 if limit is None else limit),
    ).fetchall()
    # A contentless index forgets a row only when it is told what the row held.
    db.executemany(
        "INSERT INTO memory_search (memory_search, rowid, terms, context, scope) VALUES ('delete', ?, ?, ?, ?)",
        [(entry_id, terms, context, _scope(key)) for entry_id, terms, context in found],
    )
    ids = [(entry_id,) for entry_id, _, _ in found]
    for table, column in (("memory_vector", "entry_id"), ("memory_text", "entry_id"), ("memory_entry", "id")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", ids)
    return len(found)


def put_vectors(db: sqlite3.Connection, identity: str, vectors: Sequence[tuple[int, bytes]]) -> None:
    """Stores vectors of entries that are still there; an empty one marks a quarantined entry (M9)."""
    db.execute("INSERT OR IGNORE INTO embedder (identity) VALUES (?)", (identity,))
    (embedder,) = db.execute("SELECT id FROM embedder WHERE identity = ?", (identity,)).fetchone()
    for entry_id, vector in vectors:
        if db.execute("UPDATE memory_entry SET embedder = ? WHERE id = ?", (embedder, entry_id)).rowcount:
            db.execute("INSERT OR REPLACE INTO memory_vector (entry_id, vector) VALUES (?, ?)", (entry_id, vector))


def search(
    db: sqlite3.Connection, key: int, terms: Sequence[str], where: MemoryFilter, limit: int
) -> list[tuple[int, float]]:
    """(entry id, BM25 score) of visible entries, best first, ties by id (M4)."""
    quoted = " OR ".join('"' + term.replace('"', '""') + '"' for term in terms if term)
    if not quoted:
        return []
    condition, values = _condition(where)
    return db.execute(
        f"SELECT e.id, -bm25(memory_search, {OWN_WEIGHT}, {CONTEXT_WEIGHT}, 0.0) AS score "
        "FROM memory_search JOIN memory_entry e ON e.id = memory_search.rowid "
        f"WHERE memory_search MATCH ? AND e.session_key = ? AND e.visible = 1{condition} "
        "ORDER BY score DESC, e.id LIMIT ?",
        (f"scope : {_scope(key)} AND {{terms context}} : ({quoted})", key, *values, limit),
    ).fetchall()


def entries_by_id(db: sqlite3.Connection, key: int, ids: Sequence[int]) -> list[StoredEntry]:
    """Visible entries in the order asked for; others are left out."""
    found = {
        stored.id: stored
        for stored in _stored(
            db.execute(
                f"SELECT {_ENTRY} FROM {_FROM} WHERE e.id IN (SELECT value FROM json_each(?)) "
                "AND e.session_key = ? AND e.visible = 1",
                (json.dumps(list(ids)), key),
            )
        )
    }
    return [found[entry_id] for entry_id in ids if entry_id in found]


def entries_at(db: sqlite3.Connection, key: int, offset: int) -> list[StoredEntry]:
    """Entries of one offset, visible or not, by chunk."""
    return list(
        _stored(
            db.execute(
                f"SELECT {_ENTRY} FROM {_FROM} WHERE e.session_key = ? AND e.offset = ? ORDER BY e.chunk",
                (key, offset),
            )
        )
    )


def enumerate_entries(
    db: sqlite3.Connection, key: int, where: MemoryFilter, after: tuple[int, int], limit: int
) -> list[StoredEntry]:
    """Visible entries that pass ``where``, by (offset, chunk), after ``after`` (M7)."""
    condition, values = _condition(where)
    return list(
        _stored(
            db.execute(
                f"SELECT {_ENTRY} FROM {_FROM} WHERE e.session_key = ? AND e.visible = 1 "
                f"AND (e.offset, e.chunk) > (?, ?){condition} ORDER BY e.offset, e.chunk LIMIT ?",
                (key, *after, *values, limit),
            )
        )
    )


def all_entries(db: sqlite3.Connection, key: int) -> Iterator[tuple[MemoryEntry, bool]]:
    """Every entry of a session and whether it is visible, by (offset, chunk)."""
    rows = db.execute(
        f"SELECT e.visible, {_ENTRY} FROM {_FROM} WHERE e.session_key = ? ORDER BY e.offset, e.chunk", (key,)
    )
    for visible, *columns in rows:
        (stored,) = _stored([tuple(columns)])
        yield stored.entry, bool(visible)


def ids(db: sqlite3.Connection, key: int, where: MemoryFilter) -> list[int]:
    """Ids of visible entries that pass ``where``, by (offset, chunk)."""
    condition, values = _condition(where)
    rows = db.execute(
        f"SELECT e.id FROM memory_entry e WHERE e.session_key = ? AND e.visible = 1{condition} "
        "ORDER BY e.offset, e.chunk",
        (key, *values),
    )
    return [entry_id for (entry_id,) in rows]


def visible_offsets(db: sqlite3.Connection, key: int) -> set[int]:
    """Offsets whose entries the scope shows."""
    rows = db.execute("SELECT DISTINCT offset FROM memory_entry WHERE session_key = ? AND visible = 1", (key,))
    return {offset for (offset,) in rows}


def vectors(db: sqlite3.Connection, key: int, identity: str, wanted: Sequence[int] | None) -> list[tuple[int, bytes]]:
    """(entry id, vector) of visible entries whose vector is of ``identity``, by id."""
    condition, values = "", []
    if wanted is not None:
        condition, values = " AND e.id IN (SELECT value FROM json_each(?))", [json.dumps(list(wanted))]
    return db.execute(
        "SELECT v.entry_id, v.vector FROM memory_entry e JOIN memory_vector v ON v.entry_id = e.id "
        f"WHERE e.session_key = ? AND e.visible = 1 AND e.embedder = ?{condition} ORDER BY v.entry_id",
        (key, _embedder(db, identity), *values),
    ).fetchall()


def count(db: sqlite3.Connection, key: int, identity: str) -> tuple[int, int]:
    """(visible entries, of these without a vector of ``identity``)."""
    entries, pending = db.execute(
        "SELECT count(*), coalesce(sum(embedder <> ?), 0) FROM memory_entry INDEXED BY memory_entry_visible "
        "WHERE session_key = ? AND visible = 1",
        (_embedder(db, identity), key),
    ).fetchone()
    return entries, pending


def pending(db: sqlite3.Connection, identity: str, limit: int) -> list[tuple[int, StoredEntry]]:
    """(session key, entry) of entries without a vector of ``identity``, those without any first."""
    embedder = _embedder(db, identity)
    found: list[tuple[int, StoredEntry]] = []
    for compared in ("<", ">"):
        rows = db.execute(
            f"SELECT e.session_key, {_ENTRY} FROM {_FROM} WHERE e.embedder {compared} ? "
            "ORDER BY e.embedder, e.id LIMIT ?",
            (embedder, limit - len(found)),
        )
        for key, *columns in rows:
            (stored,) = _stored([tuple(columns)])
            found.append((key, stored))
    return found


def _embedder(db: sqlite3.Connection, identity: str) -> int:
    """Number of an embedder; -1, which no entry has, for one that never stored a vector."""
    found = db.execute("SELECT id FROM embedder WHERE identity = ?", (identity,)).fetchone()
    return found[0] if found else -1


def _scope(key: int) -> str:
    return f"s{key}"


def _condition(where: MemoryFilter) -> tuple[str, list[str | int]]:
    """A filter as SQL on ``e``, led by AND, and its values."""
    parts: list[str] = []
    values: list[str | int] = []

    def restrict(sql: str, *given: str | int) -> None:
        parts.append(f" AND {sql}")
        values.extend(given)

    if where.roles:
        restrict(f"e.role IN ({', '.join('?' * len(where.roles))})", *(role.value for role in where.roles))
    if where.kinds:
        restrict(f"e.kind IN ({', '.join('?' * len(where.kinds))})", *(kind.value for kind in where.kinds))
    if where.first_offset is not None:
        restrict("e.offset >= ?", where.first_offset)
    if where.last_offset is not None:
        restrict("e.offset <= ?", where.last_offset)
    if where.after_time:
        restrict("e.create_time >= ?", where.after_time)
    if where.before_time:
        restrict("e.create_time <= ? AND e.create_time <> ''", where.before_time)
    return "".join(parts), values


def _stored(rows: Iterable[tuple[object, ...]]) -> Iterator[StoredEntry]:
    """Entries of rows of ``_ENTRY``."""
    for entry_id, offset, chunk, kind, role, *rest in rows:
        entry = MemoryEntry(offset, chunk, EntryKind(kind), EntryRole(role), *rest)  # type: ignore[arg-type]
        yield StoredEntry(entry_id, entry)  # type: ignore[arg-type]
