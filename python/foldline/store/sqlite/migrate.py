"""Numbered migrations: each in a transaction of its own, never changed once it was applied."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from foldline.domain.errors import FoldlineError, Reason

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; ``version`` counts from 1 without gap."""

    version: int
    name: str
    script: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.script.encode()).hexdigest()


def packaged_migrations() -> list[Migration]:
    """The migrations that this version of the package brings, in order."""
    found = []
    for item in files("foldline.store.migrations").joinpath("sqlite").iterdir():
        match = _NAME.fullmatch(item.name)
        if match:
            found.append(Migration(int(match[1]), match[2], item.read_text("utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration], now: float) -> int:
    """Brings the schema up to the last of ``migrations``; returns its version.

    Raises:
        FoldlineError: NOT_READY where the store is newer than this code, STORE_CORRUPT where it is no store or an
            applied migration was another one.
    """
    _claim(db)
    applied = db.execute("SELECT version, name, checksum FROM schema_version ORDER BY version").fetchall()
    newest = migrations[-1].version
    if applied and applied[-1][0] > newest:
        raise FoldlineError(
            Reason.NOT_READY,
            f"the store has schema {applied[-1][0]}, this version of foldline knows up to {newest}; use a newer one",
            schema=applied[-1][0], known=newest,
        )  # fmt: skip
    for (version, name, checksum), migration in zip(applied, migrations, strict=False):
        if (version, checksum) != (migration.version, migration.checksum):
            raise FoldlineError(
                Reason.STORE_CORRUPT,
                f"migration {version} ({name}) of the store is not the one this version of foldline knows",
                schema=version,
            )
    for migration in migrations[len(applied) :]:
        _apply(db, migration, now)
    return newest


def _claim(db: sqlite3.Connection) -> None:
    """Makes the version table in an empty file; a file with other tables is somebody else's."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if "schema_version" in tables:
        return
    if tables:
        raise FoldlineError(Reason.STORE_CORRUPT, "the file is a database, but no foldline store", tables=len(tables))
    db.execute(
        "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, "
        "applied REAL NOT NULL) STRICT"
    )


def _apply(db: sqlite3.Connection, migration: Migration, now: float) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in _statements(migration.script):
            db.execute(statement)
        db.execute(
            "INSERT INTO schema_version VALUES (?, ?, ?, ?)",
            (migration.version, migration.name, migration.checksum, now),
        )
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """Single statements, each with its semicolon: ``executescript`` would commit first and break up the transaction."""
    statement = ""
    for part in script.split(";")[:-1]:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
