"""Connections: how each is set up, and a pool of those that read."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUSY_SECONDS = 5.0
WRITER_CACHE_KIB = 16_384
READER_CACHE_KIB = 4_096
IDLE_READERS = 8
WAL_KEEP_BYTES = 64 << 20

WAL_LAST_RESORT_PAGES = 8_000
"""Pages of log, 32 MB, from which on a commit copies them back itself: the checkpointer did not keep up."""

_CACHED_STATEMENTS = 256


def connect(path: Path, cache_kib: int) -> sqlite3.Connection:
    """A connection without implicit transactions; callers see to it that one thread at a time uses it."""
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    return connection


def connect_writer(path: Path, synchronous: str) -> sqlite3.Connection:
    """The one connection that writes; it also creates the file."""
    connection = connect(path, WRITER_CACHE_KIB)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # Deleted text must not stay readable in the file (M7).
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEEP_BYTES}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_LAST_RESORT_PAGES}")
    return connection


class ReadPool:
    """Connections that only read. Never waits: under more readers than it keeps it opens some and closes them after."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of the caller's own for the block."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        try:
            yield connection
        finally:
            if self._closed or len(self._idle) >= IDLE_READERS:
                connection.close()
            else:
                self._idle.append(connection)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """The same, where every statement of the block sees one state of the store."""
        with self.connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """Closes idle connections; those in use close when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise sqlite3.ProgrammingError("the pool is closed")
        connection = connect(self._path, READER_CACHE_KIB)
        connection.execute("PRAGMA query_only = ON")
        return connection
