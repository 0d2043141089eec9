"""SIGKILL while forks come and go: each is there whole or not at all, and nobody loses what is shared (X3, V10)."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import Fork
from foldline.domain.session import Session
from foldline.store import SqliteStore

from tests.contract.store.records import Scribe, entry, record
from tests.crash.test_store_sigkill import _kill_after

SEED = 20260727
ROWS, FOLDED = 1100, 600

FORK = """
import itertools, sys
from foldline.store import SqliteStore
from tests.crash.test_fork_sigkill import fork
store = SqliteStore(sys.argv[1], synchronous="NORMAL")
print("forking", flush=True)
for number in itertools.count(len(store.list_sessions("acme", "f", 1000))):
    fork(store, f"f{number:03}")
"""

DELETE = """
import sys
from foldline.store import SqliteStore
store = SqliteStore(sys.argv[1], synchronous="NORMAL")
print("deleting", flush=True)
for name in ("a", "c"):
    store.delete_session(store.load_session("acme", name).key)
while True:
    pass
"""


def fork(store: SqliteStore, name: str, source: str = "a") -> Session:
    session = store.load_session("acme", source)
    assert session is not None
    made = Fork(session.key, replace(session, key=0, session_id=name), visible=((1, FOLDED),))
    return store.fork_session(made, None)


def _filled(path: Path) -> None:
    """A session ``a`` of rows that have half folded."""
    store = SqliteStore(path, synchronous="NORMAL")
    scribe = Scribe.create(store, "a")
    scribe.append(ROWS)
    scribe.rewrite(
        range(FOLDED + 1, ROWS + 1), RevisionKind.FOLD, record=record("f", range(1, FOLDED + 1), 2),
        publish=tuple(entry(o, text=f"entry {o} walnut") for o in range(1, FOLDED + 1)),
    )  # fmt: skip
    store.close()


def _whole(store: SqliteStore, name: str) -> None:
    session = store.load_session("acme", name)
    assert session is not None
    rows = store.archive(session.key, 0, 10**6)
    assert [r.offset for r in rows] == list(range(1, ROWS + 1))
    assert all(b'"row %d"' % r.offset in r.body for r in rows)
    assert store.active_offsets(session.key) == list(range(FOLDED + 1, ROWS + 1))
    ids = store.memory_ids(session.key, MemoryFilter())
    assert [e.entry.text for e in store.memory_entries(session.key, ids)] == [
        f"entry {o} walnut" for o in range(1, FOLDED + 1)
    ]
    assert len(store.search_lexical(session.key, ["walnut"], MemoryFilter(), 10**6)) == FOLDED


def _nothing_is_left_over(path: Path, sessions: int) -> None:
    """No row of a fork without its origin, no text, vector or posting that nobody has."""
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert db.execute("SELECT count(*) FROM session").fetchone() == (sessions,)
    bodies = db.execute("SELECT count(*) FROM archive_row WHERE length(body) > 0").fetchone()[0]
    assert bodies == (ROWS if sessions else 0)
    assert db.execute("SELECT count(*) FROM memory_text").fetchone()[0] == (FOLDED if sessions else 0)
    unused = "SELECT count(*) FROM memory_posting WHERE segment NOT IN (SELECT segment FROM memory_segment)"
    assert db.execute(unused).fetchone() == (0,)
    db.close()


def test_a_fork_that_was_cut_short_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    path = tmp_path / "foldline.db"
    _filled(path)
    forks: list[str] = []
    for _ in range(4):
        _kill_after(FORK, path, moments.uniform(0.01, 0.12))
        store = SqliteStore(path, synchronous="NORMAL")
        names = [s.session_id for s in store.list_sessions("acme", "", 1000)]
        assert names[: len(forks) + 1] == ["a", *forks], "what was there stays"
        for name in {"a", *names[-2:]}:
            _whole(store, name)
        store.close()
        _nothing_is_left_over(path, len(names))
        forks = names[1:]
    assert forks


def test_a_deletion_that_was_cut_short_leaves_the_forks_whole(tmp_path: Path) -> None:
    """The source, and then a fork of its fork; the fork between them and the last one stay."""
    moments = random.Random(SEED)
    cut = 0
    for attempt in range(4):
        path = tmp_path / str(attempt) / "foldline.db"
        _filled(path)
        store = SqliteStore(path, synchronous="NORMAL")
        for name, source in (("b", "a"), ("c", "b"), ("d", "c")):
            fork(store, name, source)
        store.close()
        _kill_after(DELETE, path, moments.uniform(0, 0.05))
        db = sqlite3.connect(path)
        cut += db.execute("SELECT count(*) FROM session WHERE deleting = 1").fetchone()[0]
        db.close()
        # The start goes on with what had begun.
        store = SqliteStore(path, synchronous="NORMAL")
        names = [s.session_id for s in store.list_sessions("acme", "", 9)]
        assert set(names) in ({"a", "b", "c", "d"}, {"b", "c", "d"}, {"b", "d"})
        for name in names:
            _whole(store, name)
        _nothing_is_left_over(path, len(names))
        for number, name in enumerate(names, 1):
            session = store.load_session("acme", name)
            assert session is not None
            store.delete_session(session.key)
            for left in names[number:]:
                _whole(store, left)
        store.close()
        _nothing_is_left_over(path, 0)
    assert cut, "no deletion was interrupted; change the moments"
