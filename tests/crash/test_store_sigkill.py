"""SIGKILL at random moments: every acknowledged commit is there whole, and nothing half (V10)."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from foldline.domain.memory import MemoryFilter
from foldline.store import SqliteStore
from foldline.store.sqlite.migrate import migrate

from tests.contract.store.records import Scribe
from tests.crash.migration_steps import steps

SEED = 20260727

COMMIT = """
import sys, threading
from foldline.store import SqliteStore
from foldline.domain.session import ClosedRun
from foldline.domain.enums import RunOutcome
from tests.contract.store.records import Scribe, entry, event, prepared, request
store = SqliteStore(sys.argv[1])
lock = threading.Lock()

def work(name):
    session = store.load_session("acme", name)
    scribe = Scribe(store, session, store.active_offsets(session.key)) if session else Scribe.create(store, name)
    while True:
        at = scribe.session.revision + 1
        if at % 4:
            scribe.append(
                3, events=(event(), event()), request=request(f"q{at}", 1e18), prepared=prepared(f"p{at}", at),
                closed_runs=(ClosedRun(f"r{at}", RunOutcome.COMPLETED),),
            )
        else:
            first = scribe.active[0]
            scribe.rewrite(
                scribe.active[1:], publish=(entry(first),), events=(event(), event()), request=request(f"q{at}", 1e18),
                prepared=prepared(f"p{at}", at), closed_runs=(ClosedRun(f"r{at}", RunOutcome.COMPLETED),),
            )
        with lock:
            print(name, at, flush=True)

for index in range(4):
    threading.Thread(target=work, args=(f"s{index}",)).start()
"""


def _kill_after(script: str, path: Path, seconds: float) -> list[str]:
    """Runs a script on the store until its first line, and ``seconds`` more; returns its whole lines."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["python", ".", os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    return (first + rest[: rest.rfind("\n") + 1]).splitlines()


def _check_whole(store: SqliteStore, name: str) -> int:
    """Everything that each revision's batch wrote is there, and nothing of a later one; returns the revision."""
    session = store.load_session("acme", name)
    if session is None:
        return 0
    newest, key = session.revision, session.key
    folds = newest // 4
    rows = store.archive(key, 0, 10**6)
    assert [r.offset for r in rows] == list(range(1, 3 * (newest - folds) + 1))
    assert session.next_offset == len(rows) + 1
    assert {r.revision for r in rows} == {at for at in range(1, newest + 1) if at % 4}
    assert [r.revision for r in store.rewrites(key, 0, 10**6)] == [at for at in range(1, newest + 1) if at % 4 == 0]
    assert store.active_offsets(key) == list(range(folds + 1, len(rows) + 1))
    assert len(store.memory_ids(key, MemoryFilter())) == folds
    assert len(store.search_lexical(key, ["entry"], MemoryFilter(), 10**6)) == folds
    assert [e.seq for e in store.events(key, 0, 10**6)] == list(range(1, 2 * newest + 1))
    for at in range(1, newest + 2):
        found = (
            store.find_request("acme", key, f"q{at}"),
            store.find_prepared(key, f"p{at}"),
            store.find_run(key, f"r{at}"),
        )
        assert [item is not None for item in found] == [at <= newest] * 3
    return newest


def test_every_acknowledged_commit_survives(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    path = tmp_path / "foldline.db"
    acknowledged: dict[str, int] = {}
    for _ in range(10):
        for line in _kill_after(COMMIT, path, moments.uniform(0, 0.25)):
            name, revision = line.split()
            acknowledged[name] = int(revision)
        store = SqliteStore(path)
        try:
            for name, revision in acknowledged.items():
                assert _check_whole(store, name) >= revision
        finally:
            store.close()
    assert min(acknowledged.values()) > 12


DELETE = """
import sys
from foldline.store import SqliteStore
store = SqliteStore(sys.argv[1])
session = store.load_session("acme", "doomed")
print("deleting", flush=True)
store.delete_session(session.key)
while True:
    pass
"""


def test_a_deletion_that_was_cut_short_is_finished_at_start(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    path = tmp_path / "foldline.db"
    store = SqliteStore(path, synchronous="NORMAL")
    Scribe.create(store, "kept").append(10)
    store.close()
    outcomes: set[bool] = set()
    for _ in range(5):
        store = SqliteStore(path, synchronous="NORMAL")
        if store.load_session("acme", "doomed") is None:
            doomed = Scribe.create(store, "doomed")
            doomed.append(6000)
        store.close()
        _kill_after(DELETE, path, moments.uniform(0, 0.02))
        store = SqliteStore(path, synchronous="NORMAL")
        try:
            there = store.load_session("acme", "doomed") is not None
            assert store.count_rows(doomed.key) == (6000 if there else 0)
            assert [s.session_id for s in store.list_sessions("acme", "", 9)] == ["doomed", "kept"][not there :]
            outcomes.add(there)
        finally:
            store.close()
    assert False in outcomes


MIGRATE = """
import sqlite3, sys
from foldline.store.sqlite.migrate import migrate
from tests.crash.migration_steps import steps
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
print("migrating", flush=True)
migrate(db, steps(), 0.0)
while True:
    pass
"""


def test_a_migration_is_applied_whole_or_not_at_all(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    reached: set[int] = set()
    for attempt in range(6):
        path = tmp_path / f"{attempt}.db"
        _kill_after(MIGRATE, path, moments.uniform(0, 0.06))
        db = sqlite3.connect(path, isolation_level=None)
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        version = 0
        if "schema_version" in tables:
            version = db.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()[0]
        assert tables - {"schema_version"} == ({f"t{version}"} if version else set())
        reached.add(version)
        migrate(db, steps(), 1.0)
        assert db.execute("SELECT count(*), min(x) FROM t30").fetchone() == (2000, 30)
        db.close()
    if reached == {30}:
        pytest.fail("no migration was interrupted; shorten the moments")
