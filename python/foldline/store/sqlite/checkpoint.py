"""Keeps the write-ahead log bounded without a commit waiting for it, and empties it of what was deleted (M7).

A checkpoint copies pages and syncs twice, so it runs on a connection of its own beside the writer. The log starts over
only when every page is copied at one moment; commits that come meanwhile prevent that, so the few pages they added are
copied once more between two commits. A log that starts over still holds the old pages until they are overwritten: after
a deletion it is cut to nothing.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from foldline.store.sqlite.connection import READER_CACHE_KIB, connect

CHECKPOINT_ROWS = 1_000
"""Changed rows after which the log is copied back: roughly 8 MB of log when each commit changes few rows."""

WAL_READY_BYTES = 16 << 20
"""Size the log is given soon after a start. A sync after writing into blocks that exist costs half of one
after growing the file."""
_PIECE = 1 << 20
"""Of it, what is written between two commits."""

ERASE_SECONDS = 1.0
"""Between two emptyings: many sessions that are deleted one after the other share one."""
RETRY_SECONDS = 0.1
"""Wait after a reader kept the log from being emptied."""
_BUSY_MS = 20
"""What commits wait at most for such a reader."""


def empty_log(connection: sqlite3.Connection) -> bool:
    """Copies the log back and cuts it to nothing; False where somebody still reads from it, or the disk fails."""
    try:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not busy


def lengthen_log(path: Path) -> bool:
    """Fills the log up by a piece of zeros, which no reader takes for pages: their checksums do not match.

    Returns:
        Whether more is to be filled up. Where there is no room commits work all the same, only slower.
    """
    try:
        with log_of(path).open("r+b") as file:
            missing = WAL_READY_BYTES - file.seek(0, os.SEEK_END)
            file.write(bytes(max(0, min(missing, _PIECE))))
    except OSError:
        return False
    return missing > _PIECE


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


class Checkpointer:
    """A thread that copies the log back into the file when enough was written.

    Args:
        between_commits: runs a function on the writer's connection while nothing is written.
    """

    def __init__(self, path: Path, between_commits: Callable[[Callable[[sqlite3.Connection], None]], None]) -> None:
        self._path = path
        self._between_commits = between_commits
        self._changes = 0
        self._due = threading.Event()
        self._erasing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="foldline-checkpoint", daemon=True)
        self._thread.start()

    def committed(self, changes: int) -> None:
        """Counts changed rows; called by the writer after each commit."""
        self._changes += changes
        if self._changes >= CHECKPOINT_ROWS:
            self._changes = 0
            self._due.set()

    def erase(self) -> None:
        """Has the log emptied of what was committed before, soon: deleted text must not stay readable in it (M7)."""
        self._erasing = True
        self._due.set()

    def stop(self) -> None:
        """Ends the thread, after the checkpoint it may be in."""
        self._stopped = True
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        connection = connect(self._path, READER_CACHE_KIB)
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        emptied = float("-inf")
        try:
            self._lengthen()
            while True:
                rest = emptied + ERASE_SECONDS - time.monotonic()
                self._due.wait(max(rest, RETRY_SECONDS) if self._erasing else None)
                self._due.clear()
                if self._stopped:
                    return
                try:
                    _copy(connection)
                    if self._erasing and time.monotonic() >= emptied + ERASE_SECONDS:
                        self._erasing = False
                        self._between_commits(lambda _: self._empty(connection))
                        if not self._erasing:
                            emptied = time.monotonic()
                            self._lengthen()
                    else:
                        self._between_commits(_copy)
                except Exception:
                    # A busy or failing disk: the log stays and the next round tries again. Commits have errors of their
                    # own.
                    continue
        finally:
            connection.close()

    def _empty(self, connection: sqlite3.Connection) -> None:
        if not empty_log(connection):
            self._erasing = True

    def _lengthen(self) -> None:
        """Gives the log its size, a piece between two commits at a time, so that none waits long."""
        more = True

        def lengthen(_: sqlite3.Connection) -> None:
            nonlocal more
            more = lengthen_log(self._path)

        while more and not self._stopped:
            self._between_commits(lengthen)
        with suppress(OSError), log_of(self._path).open("r+b") as file:
            os.fsync(file.fileno())


def _copy(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
