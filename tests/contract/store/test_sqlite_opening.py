"""Opening a SQLite store: one server a directory, migrations, damage; and what a full disk leaves."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, Reason, StoreLocked
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import Batch, Fork
from foldline.domain.session import LedgerCall, OpenRun
from foldline.store import SqliteStore
from foldline.store.codec import encode
from foldline.store.lexical import segment
from foldline.store.sqlite.migrate import Migration, migrate, packaged_migrations

from tests.contract.store.records import Scribe, entry, record, row, session

HOLD = """
import sys
from foldline.store import SqliteStore
store = SqliteStore(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def _child(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["python", ".", os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foldline.db"
    with _child(HOLD, str(path)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=f"process {holder.pid}"):
            SqliteStore(path)
        with pytest.raises(StoreLocked):
            SqliteStore(tmp_path / "another.db")
        holder.kill()
    SqliteStore(path).close()


def test_a_second_store_in_the_same_process_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "foldline.db")
    with pytest.raises(StoreLocked):
        SqliteStore(tmp_path / "foldline.db")
    first.ping()
    first.close()
    first.close()
    SqliteStore(tmp_path / "foldline.db").close()


def test_a_failed_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / "foldline.db").write_bytes(b"no database at all" * 1000)
    for _ in range(2):
        with pytest.raises(FoldlineError) as refused:
            SqliteStore(tmp_path / "foldline.db")
        assert refused.value.reason == Reason.STORE_CORRUPT


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "foldline.db")
    scribe = Scribe.create(store)
    store.close()
    for use in (store.ping, scribe.append, lambda: store.load_session("acme", "s")):
        with pytest.raises(FoldlineError) as refused:
            use()
        assert refused.value.reason == Reason.NOT_READY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foldline.db", "foldline.lock"]


def test_the_directory_is_made(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a" / "b" / "foldline.db").close()


@pytest.mark.parametrize("synchronous", ["OFF", "full", ""])
def test_an_unknown_setting_is_refused(tmp_path: Path, synchronous: str) -> None:
    with pytest.raises(ValueError, match="FULL and NORMAL"):
        SqliteStore(tmp_path / "foldline.db", synchronous=synchronous)  # type: ignore[arg-type]


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "foldline.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(FoldlineError) as refused:
        SqliteStore(path)
    assert refused.value.reason == Reason.STORE_CORRUPT
    tables = sqlite3.connect(path).execute("SELECT name FROM sqlite_schema").fetchall()
    assert tables == [("theirs",)]


def test_damage_inside_the_file_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "foldline.db"
    store = SqliteStore(path)
    scribe = Scribe.create(store)
    scribe.append(500)
    store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))

    def read() -> None:
        store = SqliteStore(path)
        try:
            store.archive(scribe.key, 0, 1000)
        finally:
            store.close()

    with pytest.raises(FoldlineError) as refused:
        read()
    assert refused.value.reason == Reason.STORE_CORRUPT
    assert str(tmp_path) not in str(refused.value)


def test_a_state_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "foldline.db"
    store = SqliteStore(path)
    Scribe.create(store)
    store.close()
    db = sqlite3.connect(path)
    db.execute("UPDATE session SET state = CAST('{\"key\":' AS BLOB)")
    db.commit()
    db.close()
    store = SqliteStore(path)
    try:
        with pytest.raises(FoldlineError) as refused:
            store.load_session("acme", "s")
        assert refused.value.reason == Reason.STORE_CORRUPT
    finally:
        store.close()


def test_a_newer_store_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "foldline.db"
    SqliteStore(path).close()
    db = sqlite3.connect(path)
    db.execute("INSERT INTO schema_version VALUES (9999, 'later', 'x', 0.0)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(FoldlineError) as refused:
        SqliteStore(path)
    assert refused.value.reason == Reason.NOT_READY
    assert refused.value.metadata["schema"] == "9999"
    assert path.read_bytes() == before


def test_a_store_whose_migration_was_another_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foldline.db"
    SqliteStore(path).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE schema_version SET checksum = 'other' WHERE version = 1")
    db.commit()
    db.close()
    with pytest.raises(FoldlineError) as refused:
        SqliteStore(path)
    assert refused.value.reason == Reason.STORE_CORRUPT
    assert refused.value.metadata["schema"] == "1"


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [m.version for m in packaged_migrations()] == list(range(1, len(packaged_migrations()) + 1))


def test_each_migration_is_applied_once_and_a_failing_one_leaves_nothing(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    first = Migration(
        1, "first", "CREATE TABLE a (x); -- a remark; with a semicolon\nINSERT INTO a VALUES ('one;two');"
    )
    broken = Migration(2, "second", "CREATE TABLE b (x); INSERT INTO b VALUES (1); INSERT INTO missing VALUES (1);")
    with pytest.raises(sqlite3.OperationalError):
        migrate(db, [first, broken], 1.0)
    assert db.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
    assert db.execute("SELECT name FROM sqlite_schema WHERE name = 'b'").fetchall() == []

    mended = Migration(2, "second", "CREATE TABLE b (x); INSERT INTO b VALUES (1);")
    for _ in range(2):
        assert migrate(db, [first, mended], 2.0) == 2
    assert db.execute("SELECT x FROM a").fetchall() == [("one;two",)]
    assert db.execute("SELECT x FROM b").fetchall() == [(1,)]


FILL = """
import resource, signal, sys
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError
from foldline.store import SqliteStore
from tests.contract.store.records import Scribe, row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(sys.argv[1])
scribe = Scribe.create(store)
scribe.append(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))
try:
    scribe.commit(replace(scribe.session, revision=2, next_offset=4), rows=(row(3, 2, body=bytes(40 << 20)),))
except FoldlineError as error:
    print(error.reason, flush=True)
print(store.active_offsets(scribe.key), store.load_session("acme", "s") == scribe.session, flush=True)
scribe.append(1)
print(store.active_offsets(scribe.key), flush=True)
"""


def test_a_disk_without_room_leaves_the_old_state_and_goes_on(tmp_path: Path) -> None:
    """The file may not grow to what the batch needs; the same kernel error as of a full disk."""
    with _child(FILL, str(tmp_path / "foldline.db")) as child:
        assert child.stdout is not None
        assert child.stdout.read().splitlines() == ["NOT_READY", "[1, 2] True", "[1, 2, 3]"]


def test_a_copy_of_the_files_taken_while_open_is_a_store(tmp_path: Path) -> None:
    """What a killed process leaves: the file and its log."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    store = SqliteStore(live / "foldline.db")
    scribe = Scribe.create(store)
    for _ in range(20):
        scribe.append(3)
    shutil.copytree(live, copy)
    scribe.append(1)
    store.close()
    found = SqliteStore(copy / "foldline.db")
    try:
        assert found.active_offsets(scribe.key) == list(range(1, 61))
        Scribe(found, found.load_session("acme", "s"), found.active_offsets(scribe.key)).append(1)
        assert found.count_rows(scribe.key) == 61
    finally:
        found.close()


def test_a_store_of_before_forks_goes_on_and_its_sessions_fork(tmp_path: Path) -> None:
    """What the first schema held is found as before, and each segment belongs to the fold that published it."""
    path = tmp_path / "foldline.db"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, packaged_migrations()[:1], 0.0)
    state = session("s", revision=3, next_offset=5)
    db.execute(
        "INSERT INTO session (key, tenant, session_id, next_offset, revision, state) VALUES (1, 'acme', 's', 5, 3, ?)",
        (encode(state),),
    )
    for each in (row(1, 1), row(2, 1), row(3, 2), row(4, 3)):
        db.execute(
            "INSERT INTO archive_row (session_key, offset, kind, run_id, pinned, tokens, bytes, revision, body) "
            "VALUES (1, ?, 3, '', 0, 10, 100, ?, ?)",
            (each.offset, each.revision, each.body),
        )
    rewrites = [
        (0, "CREATED", (), None),
        (2, "FOLD", ((2, 2),), record("f1", [1], 2)),
        (3, "FOLD", (), record("f2", [2, 3], 3)),
    ]
    for revision, kind, active, fold in rewrites:
        db.execute(
            "INSERT INTO rewrite (session_key, revision, kind, parent_revision, digest, time, note, active, record) "
            "VALUES (1, ?, ?, 0, 'd', 0.0, '', ?, ?)",
            (revision, kind, encode(active), fold and encode(fold)),
        )
    for number, each in enumerate((entry(1, 0, "walnut"), entry(2, 0, "walnut parrot")), 1):
        db.execute(
            "INSERT INTO memory_entry (id, session_key, offset, chunk, visible, kind, role, byte_start, byte_end, "
            "length, call_id, create_time) VALUES (?, 1, ?, 0, 1, ?, ?, 0, 9, 1, '', '')",
            (number, each.offset, each.kind.value, each.role.value),
        )
        db.execute("INSERT INTO memory_text VALUES (?, ?, '', ?)", (number, each.terms, each.text))
        index = segment([each])
        db.execute("INSERT INTO memory_segment VALUES (1, ?, 1, ?)", (number, sum(index.lengths)))
        for stem, postings in index.postings.items():
            db.execute("INSERT INTO memory_posting VALUES (1, ?, ?, ?)", (number, stem, postings))
    db.close()

    store = SqliteStore(path)
    try:
        assert [r.body for r in store.archive(1, 0, 9)] == [row(o, 1).body for o in (1, 2, 3, 4)]
        hits = store.search_lexical(1, ["walnut"], MemoryFilter(), 9)
        assert sorted(e.entry.offset for e in store.memory_entries(1, [i for i, _ in hits])) == [1, 2]
        past = store.fork_session(Fork(1, replace(state, session_id="f", revision=2, next_offset=4)), None)
        assert store.count_rows(past.key) == 3
        assert [store.memory_at(past.key, o) for o in (1, 2)] == [store.memory_at(1, 1), []]
        store.delete_session(1)
        assert [r.offset for r in store.archive(past.key, 0, 9)] == [1, 2, 3]
        assert [len(store.memory_at(past.key, o)) for o in (1, 2)] == [1, 0]
    finally:
        store.close()


@pytest.mark.parametrize(
    "calls", [(), (LedgerCall("grep", '{"p": "Zürich \\u0000"}', "ran", 2), LedgerCall("ls", "{}", "failed"))]
)
def test_f3_a_store_of_before_has_its_ledgers_kept_apart(tmp_path: Path, calls: tuple[LedgerCall, ...]) -> None:
    """Ledgers that stood in the state stand beside it; a state that cannot be read keeps no other from that."""
    path = tmp_path / "foldline.db"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, packaged_migrations()[:8], 0.0)
    state = session("s", revision=3, next_offset=5, open_run=OpenRun("r", 1, 2, 3.25, ledger=calls))
    for key, name, data in ((1, "s", encode(state)), (2, "broken", b"{")):
        db.execute(
            "INSERT INTO session (key, tenant, session_id, next_offset, revision, state) "
            "VALUES (?, 'acme', ?, 5, 3, ?)",
            (key, name, data),
        )
    db.close()

    store = SqliteStore(path)
    try:
        found = store.load_session("acme", "s")
        assert found == replace(state, key=1)
        after = replace(found, labels={"team": "blue"})
        store.commit(Batch(3, after, ledger_stands=True))
        assert store.load_session("acme", "s") == after
    finally:
        store.close()
