"""SQLite's errors as published reasons."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from foldline.domain.errors import FoldlineError, Reason

_REASONS = {
    sqlite3.SQLITE_CORRUPT: (Reason.STORE_CORRUPT, "the store's file is damaged"),
    sqlite3.SQLITE_NOTADB: (Reason.STORE_CORRUPT, "the store's file is no database"),
    sqlite3.SQLITE_BUSY: (Reason.OVERLOADED, "the store was locked for longer than it may be"),
    sqlite3.SQLITE_LOCKED: (Reason.OVERLOADED, "the store was locked for longer than it may be"),
    sqlite3.SQLITE_FULL: (Reason.NOT_READY, "the store has no room left; nothing was written"),
    sqlite3.SQLITE_IOERR: (Reason.NOT_READY, "the store's disk failed"),
    sqlite3.SQLITE_CANTOPEN: (Reason.NOT_READY, "the store's file cannot be opened"),
    sqlite3.SQLITE_READONLY: (Reason.NOT_READY, "the store's file cannot be written"),
    sqlite3.SQLITE_PERM: (Reason.NOT_READY, "the store's file may not be accessed"),
    sqlite3.SQLITE_TOOBIG: (Reason.MESSAGE_TOO_LARGE, "a value is larger than the store can hold"),
}


def store_error(error: Exception) -> FoldlineError:
    """The published form of an error of the ``sqlite3`` module. Details stay in ``__cause__`` for the log (W8)."""
    if isinstance(error, OverflowError):
        return FoldlineError(Reason.FIELD_VALIDATION, f"a number is over {2**63 - 1}", range=f"<= {2**63 - 1}")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        closed = isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)
        if closed:
            return FoldlineError(Reason.NOT_READY, "the store is closed", component="store")
        return FoldlineError(Reason.INTERNAL, "the store was used wrongly", cause=type(error).__name__)
    reason, message = _REASONS.get(code & 0xFF, (Reason.INTERNAL, "the store refused a statement"))
    return FoldlineError(reason, message, cause=getattr(error, "sqlite_errorname", "SQLITE_ERROR"))


@contextmanager
def published_errors() -> Iterator[None]:
    """Turns errors of the ``sqlite3`` module that leave the block into published ones."""
    try:
        yield
    except (sqlite3.Error, OverflowError) as error:
        raise store_error(error) from error
