"""The segments of the lexical index (M4): shared by forks, merged as they become many, removed.

A search reads one row of postings for each of its terms from each segment, so that small segments are merged: it costs
what its scope holds, not how many folds that came in. Postings are never changed. A merged segment is written beside
its parts, a few rows at a time, and takes their place in one step; what a crash leaves behind is garbage, as the parts
are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy is a good part of a server's start, and merging the first that needs it
    import numpy as np
    import numpy.typing as npt

SMALL = 1024
"""Entries below which a segment is to be merged; the schema has an index of these."""
MOST_SMALL = 16
"""Small segments that a scope may have."""
ROWS = 500
"""Postings of one transaction."""
_FARTHEST = 1 << 32

_HELD_BY_OTHERS = "SELECT 1 FROM memory_segment o WHERE o.segment = s.segment AND o.session_key <> s.session_key"


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of a session; ``first`` is what its postings count from."""

    segment: int
    first: int
    entries: int
    length: int
    since: int
    revision: int


_COLUMNS = "segment, first, entries, length, since, revision"


@dataclass(frozen=True, slots=True)
class Merge:
    """Parts of a session and the postings of what they make, by stem."""

    key: int
    parts: tuple[Part, ...]
    postings: tuple[tuple[str, bytes], ...]


def insert(db: sqlite3.Connection, key: int, part: Part) -> None:
    """Makes a segment one of a session's."""
    db.execute(
        f"INSERT INTO memory_segment (session_key, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, part.segment, part.first, part.entries, part.length, part.since, part.revision),
    )


def share(db: sqlite3.Connection, source: int, key: int, revision: int) -> None:
    """Gives a fork the segments that were published up to a revision; of one that goes on after it a copy, cut (X3)."""
    db.execute(
        f"INSERT INTO memory_segment (session_key, {_COLUMNS}) SELECT ?, {_COLUMNS} FROM memory_segment "
        "WHERE session_key = ? AND revision <= ?",
        (key, source, revision),
    )
    spanning = db.execute(
        f"SELECT {_COLUMNS} FROM memory_segment WHERE session_key = ?1 AND since <= ?2 AND revision > ?2",
        (source, revision),
    ).fetchall()
    for columns in spanning:
        _cut(db, source, key, Part(*columns), revision)


def _cut(db: sqlite3.Connection, source: int, key: int, part: Part, revision: int) -> None:
    import numpy as np

    from foldline.store.bm25 import POSTING

    # Every fold publishes one segment: those of its entries that have no other are in this one.
    entries = db.execute(
        "SELECT coalesce(origin, id), length FROM memory_entry WHERE session_key = ?1 AND revision BETWEEN ?2 AND ?3 "
        "AND revision NOT IN (SELECT revision FROM memory_segment WHERE session_key = ?1 AND since = revision)",
        (source, part.since, revision),
    ).fetchall()
    kept = np.array([number for number, _ in entries], np.int64) - part.first
    rows = db.execute("SELECT stem, postings FROM memory_posting WHERE segment = ?", (part.segment,)).fetchall()
    held, starts = _joined([postings for _, postings in rows])
    inside = np.isin(held["entry"], kept)
    data = held[inside].tobytes()
    ends = np.concatenate(([0], np.cumsum(inside)))[starts] * POSTING.itemsize
    cut = Part(_number(db), part.first, len(entries), sum(n for _, n in entries), part.since, revision)
    insert(db, key, cut)
    db.executemany(
        "INSERT INTO memory_posting (segment, stem, postings) VALUES (?, ?, ?)",
        [
            (cut.segment, stem, data[start:end])
            for (stem, _), start, end in zip(rows, ends[:-1].tolist(), ends[1:].tolist(), strict=True)
            if end > start
        ],
    )


def _joined(postings: Sequence[bytes]) -> tuple[npt.NDArray[np.void], npt.NDArray[np.intp]]:
    """Postings of several stems as one array, and where each begins, and the end."""
    import numpy as np

    from foldline.store.bm25 import POSTING

    sizes = [len(data) // POSTING.itemsize for data in postings]
    return np.frombuffer(b"".join(postings), POSTING), np.cumsum([0, *sizes])


def due(db: sqlite3.Connection) -> Merge | None:
    """What is to be merged next, read and put together; None when no scope has too many small segments."""
    found = db.execute(
        f"SELECT session_key FROM memory_segment INDEXED BY memory_segment_small WHERE entries < {SMALL} "
        "GROUP BY session_key HAVING count(*) > ? LIMIT 1",
        (MOST_SMALL,),
    ).fetchone()
    if found is None:
        return None
    (key,) = found
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM memory_segment WHERE session_key = ? AND entries < {SMALL} ORDER BY since, segment",
        (key,),
    )
    parts = tuple(_together(Part(*row) for row in rows))
    return Merge(key, parts, tuple(_merged(db, parts)))


def _together(small: Iterator[Part]) -> Iterator[Part]:
    """The oldest, until what they make is small no more."""
    entries, lowest, highest = 0, None, 0
    for part in small:
        lowest, highest = part.first if lowest is None else min(lowest, part.first), max(highest, part.first)
        if highest - lowest >= _FARTHEST // 2:
            return
        yield part
        entries += part.entries
        if entries >= SMALL:
            return


def _merged(db: sqlite3.Connection, parts: Sequence[Part]) -> Iterator[tuple[str, bytes]]:
    first = min(part.first for part in parts)
    by_stem: dict[str, list[bytes]] = {}
    for part in parts:
        rows = db.execute("SELECT stem, postings FROM memory_posting WHERE segment = ?", (part.segment,)).fetchall()
        held, starts = _joined([postings for _, postings in rows])
        moved = held.copy()
        moved["entry"] += part.first - first
        data, ends = moved.tobytes(), (starts * moved.itemsize).tolist()
        for (stem, _), start, end in zip(rows, ends[:-1], ends[1:], strict=True):
            by_stem.setdefault(stem, []).append(data[start:end])
    for stem in sorted(by_stem):
        yield stem, b"".join(by_stem[stem])


def _number(db: sqlite3.Connection) -> int:
    """A number that no segment has."""
    (lowest,) = db.execute(
        "SELECT min((SELECT coalesce(min(segment), 0) FROM memory_segment), "
        "(SELECT coalesce(min(segment), 0) FROM memory_garbage), 0)"
    ).fetchone()
    return int(lowest) - 1


def begin(db: sqlite3.Connection, merge: Merge) -> int:
    """Gives the merged segment its number; until it takes the place of its parts it is garbage."""
    number = _number(db)
    db.execute("INSERT INTO memory_garbage (segment, session_key) VALUES (?, ?)", (number, merge.key))
    return number


def write(db: sqlite3.Connection, number: int, postings: Sequence[tuple[str, bytes]]) -> bool:
    """Writes some postings of a merged segment; False where its session is gone, or its memory."""
    if not db.execute("SELECT 1 FROM memory_garbage WHERE segment = ?", (number,)).fetchone():
        return False
    db.executemany(
        "INSERT INTO memory_posting (segment, stem, postings) VALUES (?, ?, ?)",
        [(number, stem, data) for stem, data in postings],
    )
    return True


def finish(db: sqlite3.Connection, number: int, merge: Merge) -> None:
    """Puts a merged segment in the place of its parts; what no fork is searched by becomes garbage."""
    key, parts = merge.key, merge.parts
    held = db.execute("SELECT 1 FROM memory_garbage WHERE segment = ?", (number,)).fetchone()
    if not held or any(
        not db.execute(
            "SELECT 1 FROM memory_segment WHERE session_key = ? AND segment = ?", (key, part.segment)
        ).fetchone()
        for part in parts
    ):
        return
    db.execute("DELETE FROM memory_garbage WHERE segment = ?", (number,))
    for part in parts:
        db.execute(
            "INSERT INTO memory_garbage (segment, session_key) SELECT s.segment, s.session_key FROM memory_segment s "
            f"WHERE s.session_key = ? AND s.segment = ? AND NOT EXISTS ({_HELD_BY_OTHERS})",
            (key, part.segment),
        )
        db.execute("DELETE FROM memory_segment WHERE session_key = ? AND segment = ?", (key, part.segment))
    insert(
        db,
        key,
        Part(
            number,
            min(p.first for p in parts),
            sum(p.entries for p in parts),
            sum(p.length for p in parts),
            min(p.since for p in parts),
            max(p.revision for p in parts),
        ),
    )


def garbage(db: sqlite3.Connection) -> int | None:
    """A segment whose postings are to go."""
    found = db.execute("SELECT segment FROM memory_garbage LIMIT 1").fetchone()
    return found[0] if found else None


def sweep(db: sqlite3.Connection, segment: int, limit: int = ROWS) -> None:
    """Removes at most ``limit`` postings of a segment that is garbage, all if it is negative, and it with the last."""
    if not db.execute("SELECT 1 FROM memory_garbage WHERE segment = ?", (segment,)).fetchone():
        return
    removed = db.execute(
        "DELETE FROM memory_posting WHERE (segment, stem) IN "
        "(SELECT segment, stem FROM memory_posting WHERE segment = ? LIMIT ?)",
        (segment, limit),
    ).rowcount
    if limit < 0 or removed < limit:
        db.execute("DELETE FROM memory_garbage WHERE segment = ?", (segment,))


def remove(db: sqlite3.Connection, key: int, limit: int) -> bool:
    """Removes at most ``limit`` rows of a session's index, all if it is negative; False when nothing is left.

    Postings go with the last session that has their segment.
    """
    left = limit
    while left:
        found = db.execute(
            f"SELECT s.segment, NOT EXISTS ({_HELD_BY_OTHERS}) FROM memory_segment s WHERE s.session_key = ?1 "
            "UNION ALL SELECT segment, 2 FROM memory_garbage WHERE session_key = ?1 LIMIT 1",
            (key,),
        ).fetchone()
        if found is None:
            return left != limit
        segment, last = found
        if last:
            left -= db.execute(
                "DELETE FROM memory_posting WHERE (segment, stem) IN "
                "(SELECT segment, stem FROM memory_posting WHERE segment = ? LIMIT ?)",
                (segment, left),
            ).rowcount
        if left:
            table = "memory_garbage" if last == 2 else "memory_segment"
            left -= db.execute(f"DELETE FROM {table} WHERE session_key = ? AND segment = ?", (key, segment)).rowcount
    return True
