"""The writer: groups share a transaction, failures stay alone, the log stays bounded."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError
from foldline.store import SqliteStore
from foldline.store.sqlite.writer import Writer

from tests.contract.store.records import Scribe, row


class Bench:
    """A writer on a table of numbers, and a way to let works queue up behind one that is under way."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("CREATE TABLE t (x UNIQUE, filler)")
        self.commits: list[int] = []
        self.writer = Writer(self.db, self.commits.append)
        self.pool = ThreadPoolExecutor(32)

    def insert(self, number: int, filler: int = 0) -> Callable[[sqlite3.Connection], int]:
        def run(db: sqlite3.Connection) -> int:
            db.execute("INSERT INTO t VALUES (?, ?)", (number, bytes(filler)))
            return number

        return run

    def queued(self, works: list[Callable[[sqlite3.Connection], int]]) -> list[Future[int]]:
        """Submits works in this order while the writer is busy, then lets it go on."""
        entered, release = threading.Event(), threading.Event()

        def hold(db: sqlite3.Connection) -> int:
            entered.set()
            release.wait()
            return -1

        holder = self.pool.submit(self.writer.submit_alone, hold)
        entered.wait()
        futures = []
        for index, work in enumerate(works, 1):
            futures.append(self.pool.submit(self.writer.submit, work))
            while len(self.writer._queue) < index:
                threading.Event().wait(0.001)
        release.set()
        holder.result()
        return futures

    def numbers(self) -> list[int]:
        return [x for (x,) in self.db.execute("SELECT x FROM t ORDER BY x")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "x.db")
    yield bench
    bench.pool.shutdown()
    bench.db.close()


def test_queued_works_share_one_commit(bench: Bench) -> None:
    futures = bench.queued([bench.insert(n) for n in range(20)])
    assert [future.result() for future in futures] == list(range(20))
    assert bench.numbers() == list(range(20))
    assert bench.commits == [20]


def test_a_work_alone_takes_no_queue(bench: Bench) -> None:
    assert bench.writer.submit(bench.insert(1)) == 1
    with pytest.raises(sqlite3.IntegrityError):
        bench.writer.submit(bench.insert(1))
    assert bench.writer.submit(bench.insert(2)) == 2
    assert bench.numbers() == [1, 2]
    assert bench.commits == [1, 1]


def test_a_failing_work_is_undone_alone(bench: Bench) -> None:
    def half(db: sqlite3.Connection) -> int:
        db.execute("INSERT INTO t VALUES (100, NULL)")
        raise LookupError("after half of it")

    futures = bench.queued([bench.insert(1), half, bench.insert(1), bench.insert(2)])
    assert futures[0].result() == 1
    with pytest.raises(LookupError):
        futures[1].result()
    with pytest.raises(sqlite3.IntegrityError):
        futures[2].result()
    assert futures[3].result() == 2
    assert bench.numbers() == [1, 2]


def test_an_error_that_ends_the_transaction_leaves_the_others_written(bench: Bench) -> None:
    """A full database rolls everything back by itself; the works that fit are run again."""
    (pages,) = bench.db.execute("PRAGMA page_count").fetchone()
    bench.db.execute(f"PRAGMA max_page_count = {pages + 50}")
    futures = bench.queued([bench.insert(1), bench.insert(2, filler=1 << 20), bench.insert(3), bench.insert(4)])
    assert [futures[index].result() for index in (0, 2, 3)] == [1, 3, 4]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        futures[1].result()
    assert bench.numbers() == [1, 3, 4]


def test_an_interrupt_in_one_caller_reaches_no_other(bench: Bench) -> None:
    def interrupted(db: sqlite3.Connection) -> int:
        db.execute("INSERT INTO t VALUES (100, NULL)")
        raise KeyboardInterrupt

    futures = bench.queued([interrupted, bench.insert(1)])
    with pytest.raises(KeyboardInterrupt):
        futures[0].result()
    with pytest.raises(FoldlineError):
        futures[1].result()
    assert bench.numbers() == []
    assert bench.writer.submit(bench.insert(2)) == 2


def test_a_caller_that_is_interrupted_while_it_waits_withdraws_its_work(bench: Bench) -> None:
    entered, release = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        entered.set()
        release.wait()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    holder = bench.pool.submit(bench.writer.submit_alone, hold)
    entered.wait()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            bench.writer.submit(bench.insert(1))
    finally:
        signal.signal(signal.SIGALRM, before)
    release.set()
    holder.result()
    assert bench.writer.submit(bench.insert(2)) == 2
    assert bench.numbers() == [2]


def test_work_between_commits_waits_its_turn(bench: Bench) -> None:
    inside: list[bool] = []

    def look(db: sqlite3.Connection) -> int:
        inside.append(db.in_transaction)
        return 0

    def submit(caller: int) -> None:
        for n in range(20):
            bench.writer.submit(bench.insert(caller * 1000 + n))
            bench.writer.submit_alone(look)

    for future in [bench.pool.submit(submit, caller) for caller in range(8)]:
        future.result()
    assert len(bench.numbers()) == 160
    assert inside == [False] * 160


def test_the_log_stays_bounded_under_many_commits(tmp_path: Path) -> None:
    """120 MB of rows go through a log that keeps under half of that, while readers come and go."""
    store = SqliteStore(tmp_path / "foldline.db", synchronous="NORMAL")
    scribe = Scribe.create(store)
    largest = 0
    for _ in range(2000):
        first = scribe.session.next_offset
        revision = scribe.session.revision + 1
        after = replace(scribe.session, revision=revision, next_offset=first + 4)
        scribe.commit(after, rows=tuple(row(first + i, revision, body=bytes(15_000)) for i in range(4)))
        store.count_rows(scribe.key)
        largest = max(largest, (tmp_path / "foldline.db-wal").stat().st_size)
    assert largest < 60 << 20
    store.close()
    assert (tmp_path / "foldline.db").stat().st_size > 120_000_000
    assert not (tmp_path / "foldline.db-wal").exists()
