"""Memory entries in SQLite: what is shown (M2), the lexical index, vectors. All of its SQL stands here.

What filters and counts need, text, vector and index stand in tables of their own, so that each read touches only what
it is about.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from foldline.domain.enums import EntryKind, EntryRole
from foldline.domain.folding import OffsetRange
from foldline.domain.memory import MemoryEntry, MemoryFilter, MemoryHealth, StoredEntry
from foldline.store.lexical import Segment, segment, stems
from foldline.store.sqlite import segments
from foldline.store.sqlite.sharing import give_up

_NUMBER = "coalesce(e.origin, e.id)"
"""What an entry is known by: its own id, or that of the entry it shares text, vector and postings with (X3)."""

_ENTRY = (
    f"{_NUMBER}, coalesce((SELECT identity FROM embedder m WHERE m.id = e.embedder), ''), e.offset, e.chunk, e.kind, "
    "e.role, t.text, t.terms, t.context, e.byte_start, e.byte_end, e.call_id, e.create_time"
)
_FROM = f"memory_entry e JOIN memory_text t ON t.entry_id = {_NUMBER}"

_WANTED = (
    "SELECT w.value FROM json_each(?1) w UNION ALL "
    "SELECT o.id FROM json_each(?1) w CROSS JOIN memory_entry o ON o.origin = w.value AND o.session_key = ?2"
)
"""Ids of the rows that may hold the entries of a list of numbers (1) in a session (2)."""


def publish(db: sqlite3.Connection, key: int, entries: Sequence[MemoryEntry], index: Segment, revision: int) -> None:
    """Makes entries visible (M2); ``index`` is theirs, ``revision`` what publishes them.

    A row that was folded before has its entries already and shows these again, also where today's chunks would be cut
    elsewhere: an entry is never doubled.
    """
    known = {
        offset
        for offset in {entry.offset for entry in entries}
        if db.execute(
            "UPDATE memory_entry SET visible = 1 WHERE session_key = ? AND offset = ?", (key, offset)
        ).rowcount
    }
    new = [entry for entry in entries if entry.offset not in known]
    insert_entries(db, key, [(entry, True) for entry in new], segment(new) if known else index, revision)


def insert_entries(
    db: sqlite3.Connection, key: int, entries: Sequence[tuple[MemoryEntry, bool]], index: Segment, revision: int
) -> None:
    """Writes new entries, each visible or not, and their index, as one segment of a revision."""
    if not entries:
        return
    # Ids are never given again, also after the newest entries are gone: caches know entries by them.
    given = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'memory_entry'").fetchone()
    first = given[0] + 1 if given else 1
    db.executemany(
        "INSERT INTO memory_entry (id, session_key, offset, chunk, visible, kind, role, byte_start, byte_end, length, "
        "call_id, create_time, revision) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                entry_id, key, e.offset, e.chunk, visible, e.kind.value, e.role.value, e.byte_start, e.byte_end, length,
                e.call_id, e.create_time, revision,
            )
            for entry_id, ((e, visible), length) in enumerate(zip(entries, index.lengths, strict=True), first)
        ],
    )  # fmt: skip
    db.executemany(
        "INSERT INTO memory_text (entry_id, terms, context, text) VALUES (?, ?, ?, ?)",
        [(entry_id, e.terms, e.context, e.text) for entry_id, (e, _) in enumerate(entries, first)],
    )
    segments.insert(db, key, segments.Part(first, first, len(entries), sum(index.lengths), revision, revision))
    db.executemany(
        "INSERT INTO memory_posting (segment, stem, postings) VALUES (?, ?, ?)",
        [(first, stem, postings) for stem, postings in index.postings.items()],
    )


def share(db: sqlite3.Connection, source: int, key: int, revision: int) -> None:
    """Gives a fork the entries that were published up to a revision, visible or not (X3)."""
    segments.share(db, source, key, revision)
    db.execute(
        "INSERT INTO memory_entry (session_key, offset, chunk, visible, embedder, kind, role, byte_start, byte_end, "
        "length, call_id, create_time, revision, origin) "
        "SELECT ?, e.offset, e.chunk, e.visible, e.embedder, e.kind, e.role, e.byte_start, e.byte_end, "
        f"e.length, e.call_id, e.create_time, e.revision, {_NUMBER} FROM memory_entry e "
        "WHERE e.session_key = ? AND e.revision <= ?",
        (key, source, revision),
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


def drop(db: sqlite3.Connection, key: int) -> int:
    """Removes all memory of a session: entries with their text and vectors, and the index; returns how many entries."""
    entries = remove_entries(db, key, -1)
    segments.remove(db, key, -1)
    return entries


def remove_entries(db: sqlite3.Connection, key: int, limit: int) -> int:
    """Removes at most ``limit`` entries of a session, all if it is negative, but not their index; returns how many."""
    rows = db.execute("SELECT id FROM memory_entry WHERE session_key = ? LIMIT ?", (key, limit))
    ids = [entry_id for (entry_id,) in rows]
    gone = [(entry_id,) for entry_id in give_up(db, "memory_entry", ids)]
    for table, column in (("memory_vector", "entry_id"), ("memory_text", "entry_id"), ("memory_entry", "id")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", gone)
    return len(ids)


def put_vectors(db: sqlite3.Connection, identity: str, vectors: Sequence[tuple[int, bytes]]) -> None:
    """Stores vectors of entries that are still there, for all who share them; an empty one is quarantine (M9)."""
    db.execute("INSERT OR IGNORE INTO embedder (identity) VALUES (?)", (identity,))
    (embedder,) = db.execute("SELECT id FROM embedder WHERE identity = ?", (identity,)).fetchone()
    for entry_id, vector in vectors:
        if db.execute(
            "UPDATE memory_entry SET embedder = ?1 WHERE id = ?2 OR origin = ?2", (embedder, entry_id)
        ).rowcount:
            db.execute("INSERT OR REPLACE INTO memory_vector (entry_id, vector) VALUES (?, ?)", (entry_id, vector))


def search(
    db: sqlite3.Connection, key: int, terms: Sequence[str], where: MemoryFilter, limit: int
) -> list[tuple[int, float]]:
    """(entry id, BM25 score) of visible entries, best first, ties by id (M4)."""
    import numpy as np

    from foldline.store.bm25 import ScopeSize, rank

    entries, length = db.execute(
        "SELECT coalesce(sum(entries), 0), coalesce(sum(length), 0) FROM memory_segment WHERE session_key = ?", (key,)
    ).fetchone()
    hidden = db.execute(
        f"SELECT {_NUMBER}, e.length FROM memory_entry e WHERE e.session_key = ? AND e.visible = 0", (key,)
    ).fetchall()
    rows = db.execute(
        "SELECT s.first, p.stem, p.postings "
        "FROM memory_segment s CROSS JOIN json_each(?) q CROSS JOIN memory_posting p "
        "ON p.segment = s.segment AND p.stem = q.value WHERE s.session_key = ?",
        (json.dumps(stems(terms)), key),
    )
    found, scores = rank(
        rows,
        np.array([entry_id for entry_id, _ in hidden], np.int64),
        ScopeSize(entries - len(hidden), length - sum(length for _, length in hidden)),
    )
    if where != MemoryFilter():
        passing = np.isin(found, np.array(ids(db, key, where), np.int64))
        found, scores = found[passing], scores[passing]
    best = np.lexsort((found, -scores))[:limit]
    return list(zip(found[best].tolist(), scores[best].tolist(), strict=True))


def entries_by_id(db: sqlite3.Connection, key: int, ids: Sequence[int]) -> list[StoredEntry]:
    """Visible entries in the order asked for; others are left out."""
    found = {
        stored.id: stored
        for stored in _stored(
            db.execute(
                # CROSS JOIN: from the few wanted to their rows, not over all that the session shows.
                f"SELECT {_ENTRY} FROM ({_WANTED}) w CROSS JOIN memory_entry e ON e.id = w.value "
                f"AND e.session_key = ?2 AND e.visible = 1 JOIN memory_text t ON t.entry_id = {_NUMBER}",
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
        f"SELECT {_NUMBER} FROM memory_entry e WHERE e.session_key = ? AND e.visible = 1{condition} "
        "ORDER BY e.offset, e.chunk",
        (key, *values),
    )
    return [entry_id for (entry_id,) in rows]


def visible_offsets(db: sqlite3.Connection, key: int) -> set[int]:
    """Offsets whose entries the scope shows."""
    rows = db.execute("SELECT DISTINCT offset FROM memory_entry WHERE session_key = ? AND visible = 1", (key,))
    return {offset for (offset,) in rows}


def vectors(db: sqlite3.Connection, key: int, identity: str, wanted: Sequence[int] | None) -> list[tuple[int, bytes]]:
    """(entry id, vector) of visible entries whose vector is of ``identity``."""
    shown = "e.session_key = ?2 AND e.visible = 1 AND e.embedder = ?3"
    entries = f"memory_entry e JOIN memory_vector v ON v.entry_id = {_NUMBER} WHERE {shown}"
    if wanted is not None:
        # CROSS JOIN: from the few wanted to their rows, not over all that the session shows.
        entries = (
            f"({_WANTED}) w CROSS JOIN memory_entry e ON e.id = w.value AND {shown} "
            f"CROSS JOIN memory_vector v ON v.entry_id = {_NUMBER}"
        )
    return db.execute(
        f"SELECT v.entry_id, v.vector FROM {entries}",
        ("" if wanted is None else json.dumps(list(wanted)), key, _embedder(db, identity)),
    ).fetchall()


def count(db: sqlite3.Connection, key: int, identity: str) -> tuple[int, int]:
    """(visible entries, of these without a vector of ``identity``, or without any where that is empty)."""
    entries, pending = db.execute(
        "SELECT count(*), coalesce(sum(embedder < ?1 OR embedder > ?2), 0) FROM memory_entry "
        "INDEXED BY memory_entry_visible WHERE session_key = ?3 AND visible = 1",
        (*_but(db, identity), key),
    ).fetchone()
    return entries, pending


def health(db: sqlite3.Connection, identity: str, every: bool) -> list[MemoryHealth]:
    """Sessions of which there is something to tell, or every one with visible entries (M8, M9)."""
    pending = " UNION ALL ".join(
        f"SELECT session_key, embedder FROM memory_entry INDEXED BY memory_entry_by_embedder "
        f"WHERE embedder {compared} AND visible = 1"
        for compared in ("< ?1", "> ?2")
    )
    quarantined = " UNION ALL ".join(
        f"SELECT e.session_key, e.embedder FROM memory_vector v JOIN memory_entry e ON e.{column} = v.entry_id "
        "WHERE length(v.vector) = 0 AND e.visible = 1 AND e.embedder BETWEEN ?1 AND ?2"
        for column in ("id", "origin")
    )
    rows = db.execute(
        "SELECT s.key, s.memory_told, coalesce(p.waiting, 0), coalesce(p.stale, 0), coalesce(q.bad, 0) FROM session s "
        "LEFT JOIN (SELECT session_key, count(*) waiting, sum(embedder > 0) stale "
        f"FROM ({pending}) GROUP BY session_key) p ON p.session_key = s.key "
        f"LEFT JOIN (SELECT session_key, count(*) bad FROM ({quarantined}) GROUP BY session_key) q "
        "ON q.session_key = s.key WHERE s.deleting = 0 AND s.memory_dropped = 0 "
        "AND (s.memory_told <> '' OR p.waiting > 0 OR q.bad > 0 OR ?3 AND EXISTS "
        "(SELECT 1 FROM memory_entry e WHERE e.session_key = s.key AND e.visible = 1)) ORDER BY s.key",
        (*_but(db, identity), every),
    )
    return [MemoryHealth(*row) for row in rows]


def told(db: sqlite3.Connection) -> bool:
    """Whether some session's event log says that its memory does less than it should."""
    return db.execute("SELECT 1 FROM session WHERE memory_told <> '' LIMIT 1").fetchone() is not None


def pending(db: sqlite3.Connection, identity: str, limit: int) -> list[tuple[int, StoredEntry]]:
    """(session key, entry) of entries without a vector of ``identity``, those without any first, shared ones once."""
    embedder = _embedder(db, identity)
    found: list[tuple[int, StoredEntry]] = []
    for compared in ("<", ">"):
        rows = db.execute(
            f"SELECT e.session_key, {_ENTRY} FROM {_FROM} WHERE e.embedder {compared} ? AND e.origin IS NULL "
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


def _but(db: sqlite3.Connection, identity: str) -> tuple[int, int]:
    """Bounds of the embedder numbers whose vectors will do: one that is known, or any at all."""
    if not identity:
        return 1, 1 << 62
    embedder = _embedder(db, identity)
    return embedder, embedder


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
    for entry_id, embedder, offset, chunk, kind, role, *rest in rows:
        entry = MemoryEntry(offset, chunk, EntryKind(kind), EntryRole(role), *rest)  # type: ignore[arg-type]
        yield StoredEntry(entry_id, entry, embedder)  # type: ignore[arg-type]
