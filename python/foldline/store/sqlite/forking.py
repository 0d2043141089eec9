"""Writing a fork (X3): columns are copied, what is large is shared. Runs inside the writer's transaction."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right

from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryEntry
from foldline.domain.ports import Archive, Fork, Rewrite
from foldline.domain.session import ClosedRun, Session
from foldline.store.codec import decode
from foldline.store.sqlite import checkpoints, memory, projections, writes


def write_fork(db: sqlite3.Connection, fork: Fork, now: float) -> Session:
    """Writes a fork; returns its state with its key.

    Raises:
        FoldlineError: SESSION_EXISTS; SESSION_NOT_FOUND where the source is gone.
    """
    source, revision, through = fork.source, fork.session.revision, fork.session.next_offset - 1
    found = db.execute(
        "SELECT s.memory_dropped, r.digest FROM session s JOIN rewrite r ON r.session_key = s.key AND r.revision = 0 "
        "WHERE s.key = ? AND s.deleting = 0",
        (source,),
    ).fetchone()
    if found is None:
        raise FoldlineError(Reason.SESSION_NOT_FOUND, "the session to fork is no longer there")
    dropped, created = found
    session = writes.insert_session(db, replace(fork.session, memory_dropped=bool(dropped)))
    key = session.key
    db.execute(
        "INSERT INTO archive_row "
        "(session_key, offset, kind, run_id, pinned, tokens, bytes, revision, place, body, origin) "
        "SELECT ?, offset, kind, run_id, pinned, tokens, bytes, revision, place, x'', coalesce(origin, id) "
        "FROM archive_row WHERE session_key = ? AND offset <= ?",
        (key, source, through),
    )
    writes.insert_rewrites(db, key, (Rewrite(0, RevisionKind.FORK, revision, (), created, now),))
    db.execute(
        "INSERT INTO rewrite (session_key, revision, kind, parent_revision, digest, time, note, active, record) "
        "SELECT ?, revision, kind, parent_revision, digest, time, note, active, record "
        "FROM rewrite WHERE session_key = ? AND revision BETWEEN 1 AND ?",
        (key, source, revision),
    )
    db.execute(
        "INSERT INTO call (session_key, call_id, offset, result_offset, removed_by) "
        "SELECT ?1, call_id, offset, iif(result_offset <= ?3, result_offset, NULL), "
        "iif(removed_by <= ?4, removed_by, NULL) FROM call WHERE session_key = ?2 AND offset <= ?3",
        (key, source, through, revision),
    )
    writes.put_calls(db, key, fork.calls)
    writes.put_closed_runs(db, key, _runs(db, fork, key))
    db.execute(
        "INSERT INTO tools SELECT ?, digest, tokens, bytes, json, kept FROM tools WHERE session_key = ?",
        (key, source),
    )
    checkpoints.share(db, source, key, revision)
    projections.share(db, source, key, through)
    memory.share(db, source, key, revision)
    memory.show_only(db, key, fork.visible)
    return session


def _runs(db: sqlite3.Connection, fork: Fork, key: int) -> list[ClosedRun]:
    """The runs that the fork has rows of, without what joined their requests later: its own rows take these offsets."""
    stored = db.execute("SELECT body FROM closed_run WHERE session_key = ?", (fork.source,))
    runs = [decode(body, ClosedRun) for (body,) in stored]
    named = {run for (run,) in db.execute("SELECT DISTINCT run_id FROM archive_row WHERE session_key = ?", (key,))}
    return [
        replace(run, request=tuple(o for o in run.request if o < fork.session.next_offset))
        for run in (*runs, *fork.closed_runs)
        if run.run_id in named
    ]


def by_fold(archive: Archive) -> list[tuple[int, list[tuple[MemoryEntry, bool]]]]:
    """An archive's entries by the revision of the fold that published them: the first that discarded their row.

    What no fold discarded comes with the last revision, so that no fork of an earlier one takes it.
    """
    offsets = sorted({entry.offset for entry, _ in archive.entries})
    first: dict[int, int] = {}
    for rewrite in archive.rewrites:
        for low, high in rewrite.discarded:
            for offset in offsets[bisect_left(offsets, low) : bisect_right(offsets, high)]:
                first.setdefault(offset, rewrite.revision)
    found: dict[int, list[tuple[MemoryEntry, bool]]] = {}
    for entry, visible in archive.entries:
        found.setdefault(first.get(entry.offset, archive.session.revision), []).append((entry, visible))
    return sorted(found.items())
