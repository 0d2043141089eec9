"""What was deleted is in no file of the data directory: not in the database, not in its log (M7)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from foldline.domain.changes import replace
from foldline.store import SqliteStore
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.store.records import Scribe, entry, row
from tests.support.server import until

ROW, TEXT, TERMS, VECTOR = b"xylophone-4711", b"marimba-4712", b"glockenspiel-4713", b"\x17vector-4714\x17"
MEMORY = (TEXT, TERMS, VECTOR)


def fill(store: SqliteStore, name: str = "s", copies: int = 500) -> Scribe:
    """A session with something to forget in its archive, in its memory's texts and terms, and in a vector."""
    scribe = Scribe.create(store, name)
    scribe.append(3)
    at = scribe.session.next_offset
    after = replace(scribe.session, revision=scribe.session.revision + 1, next_offset=at + 1)
    body = b'{"type":"user","content":[{"type":"text","text":"%s"}]}' % (ROW * copies)
    scribe.commit(after, rows=(row(at, after.revision, body=body),))
    scribe.rewrite(
        scribe.active[1:], publish=(entry(scribe.active[0], text=TEXT.decode() * copies, terms=TERMS.decode()),)
    )
    pending = store.pending_vectors("m", 100)
    store.put_vectors("m", [(stored.id, VECTOR) for _, stored in pending])
    return scribe


def found(folder: Path, secrets: tuple[bytes, ...] = (ROW, *MEMORY)) -> set[tuple[str, bytes]]:
    """(file, secret) of all that is readable."""
    return {
        (path.name, secret) for path in folder.iterdir() for secret in secrets if secret in path.read_bytes()
    }  # fmt: skip


FORGET: dict[str, tuple[Callable[[SqliteStore, int], object], tuple[bytes, ...]]] = {
    "drop": (SqliteStore.drop_scope, MEMORY),
    "delete": (SqliteStore.delete_session, (ROW, *MEMORY)),
}


@pytest.mark.parametrize("how", FORGET)
def test_m7_what_was_forgotten_soon_leaves_every_file(tmp_path: Path, how: str) -> None:
    """Without a stop, and again after the next time."""
    forget, secrets = FORGET[how]
    store = SqliteStore(tmp_path / "foldline.db")
    for name in ("s1", "s2"):
        scribe = fill(store, name)
        assert {secret for _, secret in found(tmp_path)} == {ROW, *MEMORY}
        forget(store, scribe.key)
        assert until(lambda: not found(tmp_path, secrets), 10)
        Scribe.create(store, f"{name}-other").append(2)
    store.close()


@pytest.mark.parametrize("how", FORGET)
def test_m7_a_reader_delays_it_but_no_writer(tmp_path: Path, how: str) -> None:
    """Whoever reads an older state keeps the log; once it is done, the log is emptied."""
    forget, secrets = FORGET[how]
    store = SqliteStore(tmp_path / "foldline.db")
    scribe, other = fill(store), Scribe.create(store, "other")
    with store.snapshot():
        forget(store, scribe.key)
        for _ in range(50):
            other.append(1)
        assert found(tmp_path, secrets)
    assert until(lambda: not found(tmp_path, secrets), 10)
    assert len(store.active_offsets(other.key)) == 50
    store.close()


@pytest.mark.parametrize("how", FORGET)
def test_m7_a_stop_does_not_wait_for_it_to_be_due(tmp_path: Path, how: str) -> None:
    forget, secrets = FORGET[how]
    store = SqliteStore(tmp_path / "foldline.db")
    scribe = fill(store)
    with store.snapshot():
        forget(store, scribe.key)
    store.close()
    assert not found(tmp_path, secrets)
    assert not (tmp_path / "foldline.db-wal").exists()


KILLED = """
import os, signal, sys
from foldline.store import SqliteStore
from tests.contract.store.test_sqlite_erasing import FORGET, fill
store = SqliteStore(sys.argv[1])
scribe = fill(store)
with store.snapshot():
    FORGET[sys.argv[2]][0](store, scribe.key)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", FORGET)
def test_m7_a_crash_leaves_it_to_the_next_start(tmp_path: Path, how: str) -> None:
    path = tmp_path / "data" / "foldline.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["python", "."])}
    subprocess.run([sys.executable, "-c", KILLED, str(path), how], env=environment, check=False)
    assert found(path.parent, FORGET[how][1]), "the log of the killed one holds it"
    store = SqliteStore(path)
    assert not found(path.parent, FORGET[how][1])
    store.close()


@settings(max_examples=15)
@given(sizes=st.lists(st.sampled_from([1, 20, 100, 250, 700, 5000]), min_size=2, max_size=12), seed=st.randoms())
def test_m7_no_page_keeps_a_piece_of_it(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed) -> None:  # type: ignore[no-untyped-def]
    """Whatever else stood on the same pages, in whatever order sessions of any size went."""
    folder = tmp_path_factory.mktemp("store")
    store = SqliteStore(folder / "foldline.db", synchronous="NORMAL")
    scribes = [fill(store, f"s{n}", size) for n, size in enumerate(sizes)]
    seed.shuffle(scribes)
    for scribe in scribes:
        store.delete_session(scribe.key)
        store.create_session(replace(scribe.session, session_id=f"{scribe.session.session_id}-next"), None)
    store.close()
    assert not found(folder)
