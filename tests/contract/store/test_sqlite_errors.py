"""Errors of SQLite itself, made for real, come out as published reasons without a path in them (W8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from foldline.domain.errors import FoldlineError, Reason
from foldline.store.sqlite.errors import published_errors


def _busy(path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    sqlite3.connect(path, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")


def _read_only(path: Path) -> None:
    sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("INSERT INTO t VALUES (1)")


def _no_database(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    sqlite3.connect(path).execute("SELECT * FROM t")


def _damaged(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3996)
    sqlite3.connect(path).execute("SELECT * FROM t")


def _full(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA max_page_count = 2")
    db.execute("INSERT INTO t VALUES (zeroblob(100000))")


def _not_there(path: Path) -> None:
    sqlite3.connect(path / "below" / "a" / "file")


def _too_big(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT zeroblob(2000000000)")


def _wrong_statement(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT nothing FROM nowhere")


def _wrong_use(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT ?", (1, 2))


def _closed(path: Path) -> None:
    db = sqlite3.connect(path)
    db.close()
    db.execute("SELECT 1")


def _number(path: Path) -> None:
    sqlite3.connect(path).execute("SELECT ?", (2**63,))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (_busy, Reason.OVERLOADED),
        (_read_only, Reason.NOT_READY),
        (_no_database, Reason.STORE_CORRUPT),
        (_damaged, Reason.STORE_CORRUPT),
        (_full, Reason.NOT_READY),
        (_not_there, Reason.NOT_READY),
        (_too_big, Reason.MESSAGE_TOO_LARGE),
        (_wrong_statement, Reason.INTERNAL),
        (_wrong_use, Reason.INTERNAL),
        (_closed, Reason.NOT_READY),
        (_number, Reason.FIELD_VALIDATION),
    ],
)
def test_each_error_has_its_reason(tmp_path: Path, fail: Callable[[Path], None], reason: Reason) -> None:
    path = tmp_path / "x.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(FoldlineError) as raised, published_errors():
        fail(path)
    assert raised.value.reason == reason
    assert str(tmp_path) not in f"{raised.value} {raised.value.metadata}"
    assert raised.value.__cause__ is not None
