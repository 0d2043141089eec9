"""Many callers at once: every acknowledged write is there, whole, and nobody's failure is another's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, RevisionConflict
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import Batch, Store

from tests.contract.store.conftest import Database
from tests.contract.store.records import Scribe, entry, event, request, row

T = TypeVar("T")
CALLERS = 64


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CALLERS) as pool:
        yield pool


def together(pool: ThreadPoolExecutor, calls: list[Callable[[], T]]) -> list[T]:
    """Runs calls at the same time, each in its own thread; raises what the first of them raised."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    return [future.result() for future in [pool.submit(run, call) for call in calls]]


def test_sixty_four_callers_append_to_their_own_sessions(database: Database, callers: ThreadPoolExecutor) -> None:
    store = database.open()
    scribes = [Scribe.create(store, f"s{i}") for i in range(CALLERS)]

    def work(scribe: Scribe) -> None:
        for step in range(15):
            scribe.append(1 + step % 2, events=(event(),), request=request(f"q{step}", database.clock.now))

    together(callers, [lambda s=scribe: work(s) for scribe in scribes])
    store = database.reopen()
    for scribe in scribes:
        assert store.load_session("acme", scribe.session.session_id) == scribe.session
        assert store.active_offsets(scribe.key) == scribe.active == list(range(1, 23))
        assert [e.seq for e in store.events(scribe.key, 0, 100)] == list(range(1, 16))
        assert all(store.find_request("acme", scribe.key, f"q{step}") for step in range(15))


def test_callers_that_race_for_one_session_each_win_once_a_revision(store: Store, callers: ThreadPoolExecutor) -> None:
    first = Scribe.create(store).session
    won: list[int] = []
    lost: list[tuple[int, RevisionConflict]] = []

    def work(caller: int) -> None:
        for _ in range(5):
            while True:
                session = store.load_session("acme", "s")
                assert session is not None
                offset, revision = session.next_offset, session.revision + 1
                after = replace(session, revision=revision, next_offset=offset + 1)
                new = row(offset, revision, run_id=f"r{caller}")
                try:
                    store.commit(Batch(session.revision, after, rows=(new,), events=(event(),)))
                except RevisionConflict as conflict:
                    lost.append((session.revision, conflict))
                else:
                    won.append(revision)
                    break

    together(callers, [lambda c=caller: work(c) for caller in range(8)])
    assert sorted(won) == list(range(1, 41))
    assert all(conflict.expected == revision < conflict.actual for revision, conflict in lost)
    rows = store.archive(first.key, 0, 100)
    assert [r.revision for r in rows] == list(range(1, 41))
    assert [r.offset for r in rows] == list(range(1, 41))
    assert [e.seq for e in store.events(first.key, 0, 100)] == list(range(1, 41))


def test_a_failing_batch_fails_alone(store: Store, callers: ThreadPoolExecutor) -> None:
    """Every third caller commits over a wrong revision, every third takes a session id that is taken."""
    scribes = [Scribe.create(store, f"s{i}") for i in range(60)]

    def work(index: int, scribe: Scribe) -> str:
        if index % 3 == 0:
            scribe.append(1)
            return "written"
        if index % 3 == 1:
            after = replace(scribe.session, revision=8, next_offset=2)
            with pytest.raises(RevisionConflict):
                store.commit(Batch(7, after, rows=(row(1, 8),)))
            return "stale"
        with pytest.raises(FoldlineError):
            Scribe.create(store, "s0")
        return "taken"

    for _ in range(5):
        together(callers, [lambda i=i, s=scribe: work(i, s) for i, scribe in enumerate(scribes)])
    assert [store.count_rows(scribe.key) for scribe in scribes] == [5, 0, 0] * 20
    assert len(store.list_sessions("acme", "", 100)) == 60


def test_a_reader_sees_a_commit_whole_or_not_at_all(store: Store, callers: ThreadPoolExecutor) -> None:
    scribe = Scribe.create(store)
    done = threading.Event()

    def read() -> int:
        looked = 0
        while not done.is_set() or not looked:
            with store.snapshot() as reads:
                session = reads.load_session("acme", "s")
                assert session is not None
                rows = reads.archive(scribe.key, 0, 10_000)
                assert len(rows) == session.next_offset - 1 == 7 * session.revision
                assert reads.active_offsets(scribe.key) == [r.offset for r in rows]
                assert len(reads.memory_ids(scribe.key, MemoryFilter())) == session.revision
                assert len(reads.events(scribe.key, 0, 10_000)) == session.revision
            looked += 1
        return looked

    readers = [callers.submit(read) for _ in range(8)]
    for step in range(1, 60):
        scribe.append(7, publish=(entry(step),), events=(event(),))
    done.set()
    assert all(reader.result() > 0 for reader in readers)


def test_a_snapshot_does_not_move(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(2)
    with store.snapshot() as reads:
        scribe.append(3)
        assert reads.count_rows(scribe.key) == 2
        assert reads.active_offsets(scribe.key) == [1, 2]
        assert [r.offset for r in reads.read_rows(scribe.key, [5, 2])] == [2]
        assert store.count_rows(scribe.key) == 5
    assert store.active_offsets(scribe.key) == [1, 2, 3, 4, 5]


def test_readers_do_not_wait_for_a_long_write(store: Store, callers: ThreadPoolExecutor) -> None:
    """Reads go on while a commit of many entries is under way: some of them end before it does."""
    scribe = Scribe.create(store)
    scribe.append(3)
    entries = tuple(entry(offset, 0, f"word{offset} common text") for offset in range(1, 6000))
    writing = callers.submit(scribe.commit, publish=entries)
    during = 0
    while not writing.done():
        assert store.count_rows(scribe.key) == 3
        assert store.memory_count(scribe.key, "m")[0] in (0, len(entries))
        during += not writing.done()
    writing.result()
    assert during > 0
    assert store.memory_count(scribe.key, "m")[0] == len(entries)


def test_more_readers_than_connections_are_served(store: Store, callers: ThreadPoolExecutor) -> None:
    scribe = Scribe.create(store)
    scribe.append(50)
    start = threading.Barrier(40)

    def read() -> int:
        with store.snapshot() as reads:
            start.wait()
            return len(reads.active_offsets(scribe.key))

    assert {future.result() for future in [callers.submit(read) for _ in range(40)]} == {50}


def test_deleting_goes_on_beside_writes(store: Store, callers: ThreadPoolExecutor) -> None:
    doomed = [Scribe.create(store, f"d{i}") for i in range(4)]
    for scribe in doomed:
        scribe.append(1500)
    kept = Scribe.create(store, "kept")
    deleting = [callers.submit(store.delete_session, scribe.key) for scribe in doomed]
    for _ in range(30):
        kept.append(1)
    for future in deleting:
        future.result()
    assert [s.session_id for s in store.list_sessions("acme", "", 10)] == ["kept"]
    assert store.active_offsets(kept.key) == list(range(1, 31))
    assert [store.count_rows(scribe.key) for scribe in doomed] == [0] * 4
