"""The store of one data directory."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from foldline.domain.curators import Lease
from foldline.domain.enums import RevisionKind
from foldline.domain.events import Event
from foldline.domain.memory import MemoryReport
from foldline.domain.native import Capability, NativeRoute
from foldline.domain.ports import Archive, Batch, Fork, Rewrite, StoredRequest
from foldline.domain.session import Session
from foldline.store.codec import encode_session
from foldline.store.lexical import segment
from foldline.store.lock import DirectoryLock
from foldline.store.sqlite import checkpoints, deletion, forking, leases, memory, native, projections, segments, writes
from foldline.store.sqlite.checkpoint import Checkpointer, empty_log
from foldline.store.sqlite.connection import ReadPool, connect_writer
from foldline.store.sqlite.errors import published_errors, store_error
from foldline.store.sqlite.migrate import migrate, packaged_migrations
from foldline.store.sqlite.reads import SqliteReads
from foldline.store.sqlite.writer import Writer

T = TypeVar("T")

REPORTS = 200
"""Sessions told of their memory in one transaction."""


class SqliteSnapshot(SqliteReads):
    """Reads that all see the store as it was at one moment. For the thread that opened it."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with published_errors():
            yield self._connection

    def _snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._reading()


class SqliteStore(SqliteReads):
    """``domain.ports.Store`` in one SQLite file. Thread-safe; one process at a time.

    An acknowledged write survives a killed process always, and a lost machine with ``synchronous`` FULL.

    Args:
        path: the file; its directory is made, and locked, as the data directory.
        synchronous: FULL syncs the disk at every commit, NORMAL at checkpoints only.
        clock: seconds since the epoch; decides how old a request is (W2).

    Raises:
        StoreLocked: another server holds the directory.
        FoldlineError: STORE_CORRUPT, or NOT_READY where a newer version wrote the store.
    """

    def __init__(
        self,
        path: str | Path,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous is {synchronous}, allowed are FULL and NORMAL")
        self._path = Path(path).absolute()
        self._clock = clock
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(self._path.parent)
        self._closed = False
        try:
            with published_errors():
                self._open(synchronous)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, synchronous: str) -> None:
        self._connection = connect_writer(self._path, synchronous)
        try:
            migrate(self._connection, packaged_migrations(), self._clock())
            # What a crash left in it may be deleted by now.
            empty_log(self._connection)
            self._pool = ReadPool(self._path)
            self._writer = Writer(self._connection, self._committed)
            self._checkpointer = Checkpointer(self._path, self._writer.submit_alone)
        except BaseException:
            self._connection.close()
            raise
        for key in deletion.marked(self._connection):
            self._remove(key)

    # Writing

    def create_session(self, session: Session, request: StoredRequest | None) -> Session:
        """Writes a new session and its CREATED rewrite; returns it with its key.

        Raises:
            FoldlineError: SESSION_EXISTS.
        """
        now = self._clock()
        created = Rewrite(session.revision, RevisionKind.CREATED, session.revision, (), session.digest, now)

        def write(db: sqlite3.Connection) -> Session:
            stored = writes.insert_session(db, session)
            writes.insert_rewrites(db, stored.key, (created,))
            if request:
                writes.insert_request(db, session.tenant, 0, request, now)
            return stored

        return self._write(write)

    def import_session(self, archive: Archive, request: StoredRequest | None) -> Session:
        """Writes a whole exported session in one transaction; returns its state with its new key.

        Raises:
            FoldlineError: SESSION_EXISTS; INTERNAL where rows are out of order.
        """
        now = self._clock()
        session = archive.session
        writes.check_rows(archive.rows, -1, session)
        published = [
            (revision, entries, segment([entry for entry, _ in entries]))
            for revision, entries in forking.by_fold(archive)
        ]

        def write(db: sqlite3.Connection) -> Session:
            stored = writes.insert_session(db, session)
            key = stored.key
            writes.insert_rows(db, key, archive.rows)
            writes.insert_rewrites(db, key, archive.rewrites)
            writes.put_calls(db, key, archive.calls)
            writes.put_closed_runs(db, key, archive.closed_runs)
            writes.import_events(db, key, archive.events)
            checkpoints.insert(db, key, archive.checkpoints)
            projections.import_session(db, key, archive)
            for revision, entries, index in published:
                memory.insert_entries(db, key, entries, index, revision)
            if request:
                writes.insert_request(db, session.tenant, 0, request, now)
            return stored

        return self._write(write)

    def fork_session(self, fork: Fork, request: StoredRequest | None) -> Session:
        """Writes a fork in one transaction, sharing what is large with its source (X3); returns its state with its key.

        Raises:
            FoldlineError: SESSION_EXISTS; SESSION_NOT_FOUND where the source is gone.
        """
        now = self._clock()

        def write(db: sqlite3.Connection) -> Session:
            stored = forking.write_fork(db, fork, now)
            if request:
                writes.insert_request(db, stored.tenant, 0, request, now)
            return stored

        return self._write(write)

    def commit(self, batch: Batch) -> tuple[Event, ...]:
        """Writes a batch durably; returns its events as stored, with their ``seq``.

        Raises:
            RevisionConflict: the stored revision is not ``expected_revision``; nothing was written.
            FoldlineError: SESSION_NOT_FOUND; REQUEST_ID_REUSED; INTERNAL where rows are out of order.
        """
        writes.check_rows(batch.rows, batch.expected_revision, batch.session)
        # Everything that needs no database happens before the writer is asked for.
        state, index, now = encode_session(batch.session), segment(batch.publish), self._clock()
        return self._write(lambda db: writes.write_batch(db, batch, state, index, now))

    def delete_session(self, key: int, request: StoredRequest | None = None) -> None:
        """Removes rows, archive, memory, events and requests of the session; a crash half-way is made good at start.

        Soon after, at the latest at a clean stop or the next start, no byte of them is in any file (M7). ``request`` is
        remembered in the tenant's own scope, with the first of the transactions.
        """
        if self._write(lambda db: deletion.mark(db, key, request, self._clock())):
            self._remove(key)

    def drop_scope(self, key: int, request: Callable[[int], StoredRequest | None] = lambda entries: None) -> int:
        """Removes a session's memory in one transaction and closes its scope for good (M7); returns how many entries.

        Its bytes leave the files as those of a deleted session do.

        Raises:
            FoldlineError: SESSION_NOT_FOUND.
        """
        now = self._clock()

        def write(db: sqlite3.Connection) -> int:
            entries = writes.drop_scope(db, key)
            remembered = request(entries)
            if remembered:
                writes.insert_request(db, "", key, remembered, now)
            return entries

        dropped = self._write(write)
        self._checkpointer.erase()
        return dropped

    def put_vectors(self, identity: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Stores vectors, float32 little-endian, by entry id. Ids that are gone are ignored; empty is quarantine."""
        self._write(lambda db: memory.put_vectors(db, identity, vectors))

    def merge_segments(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Merges small segments of the lexical index and removes what is left of earlier ones (M4).

        For one thread at a time. Each transaction is of a few rows, so that nobody waits long behind it.
        """
        while not stopping() and (self._sweep() or self._merge(stopping)):
            pass

    def _sweep(self) -> bool:
        with self._reading() as db:
            segment = segments.garbage(db)
        if segment is not None:
            self._write(lambda db: segments.sweep(db, segment))
        return segment is not None

    def _merge(self, stopping: Callable[[], bool]) -> bool:
        with self._snapshot() as db:
            merge = segments.due(db)
        if merge is None or len(merge.parts) < 2:
            return False
        number = self._write(lambda db: segments.begin(db, merge))
        for start in range(0, len(merge.postings), segments.ROWS):
            part = merge.postings[start : start + segments.ROWS]
            if stopping() or not self._write(lambda db, part=part: segments.write(db, number, part)):  # type: ignore[misc]
                return True
        self._write(lambda db: segments.finish(db, number, merge))
        return True

    def tell_memory(self, reports: Sequence[MemoryReport]) -> list[int]:
        """Writes a MEMORY_DEGRADED event for each session whose log says something else yet; returns their keys."""
        now, told = self._clock(), list[int]()
        for start in range(0, len(reports), REPORTS):
            part = reports[start : start + REPORTS]
            told += self._write(lambda db, part=part: [r.key for r in part if writes.tell_memory(db, r, now)])  # type: ignore[misc]
        return told

    def put_native_capability(self, route: NativeRoute, found: Capability) -> None:
        """Writes what is known of a model's own compaction (N3)."""
        self._write(lambda db: native.put(db, route, found))

    def put_lease(self, lease: Lease) -> bool:
        """Writes who works on a task, in place of who did before (S6); False where its session is gone."""
        return self._write(lambda db: leases.put(db, lease))

    def renew_leases(self, task_ids: Sequence[str], curator_id: str, expire: float) -> None:
        """Lets leases run on, held by ``curator_id``; those that have ended are left out."""
        self._write(lambda db: leases.renew(db, task_ids, curator_id, expire))

    def end_lease(self, task_id: str) -> None:
        self._write(lambda db: leases.end(db, task_id))

    def clear_leases(self) -> int:
        """Removes every lease; returns how many there were."""
        return self._write(leases.clear)

    def purge(self, now: float | None = None) -> None:
        """Forgets answers to requests, and prepared requests, older than 24 h (W2), in transactions of bounded size."""
        before = (self._clock() if now is None else now) - writes.REPEAT_SECONDS
        for table in ("request", "prepared"):
            while self._write(lambda db, table=table: deletion.purge_chunk(db, table, before)):  # type: ignore[misc]
                pass

    # Life

    @contextmanager
    def snapshot(self) -> Iterator[SqliteSnapshot]:
        """Reads that all see one state of the store. Keep it short: the log cannot start over meanwhile."""
        with self._snapshot() as connection:
            # A read transaction begins with its first read, not with its beginning.
            connection.execute("SELECT 1 FROM session LIMIT 1").fetchall()
            yield SqliteSnapshot(connection, self._clock)

    def ping(self) -> None:
        """Reads once.

        Raises:
            FoldlineError: NOT_READY, STORE_CORRUPT.
        """
        with self._reading() as db:
            db.execute("SELECT count(*) FROM schema_version").fetchone()

    def close(self) -> None:
        """Waits for writes under way, copies the log back and gives the directory free. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._checkpointer.stop()
        self._pool.close()
        self._writer.submit_alone(_closed)
        self._lock.release()

    def _committed(self, changes: int) -> None:
        self._checkpointer.committed(changes)

    def _write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._writer.submit(run)
        except (sqlite3.Error, OverflowError) as error:
            raise store_error(error) from error

    def _remove(self, key: int) -> None:
        while self._write(lambda db: deletion.remove_chunk(db, key)):
            pass
        self._checkpointer.erase()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with published_errors(), self._pool.connection() as connection:
            yield connection

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with published_errors(), self._pool.snapshot() as connection:
            yield connection


def _closed(db: sqlite3.Connection) -> None:
    """Closes the last connection, which removes the log; where a reader was left behind, it is empty at least."""
    empty_log(db)
    db.close()
