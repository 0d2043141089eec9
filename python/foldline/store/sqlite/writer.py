"""One writer with group commit.

The thread that finds the writer free executes its own work at once, with no hand-over. Threads that come meanwhile
queue up; the next leader takes all of them into one transaction, so that they share one sync of the disk. A work of a
group that fails is undone alone, and only its caller hears of it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from foldline.domain.errors import FoldlineError, Reason

T = TypeVar("T")

MAX_GROUP = 256
"""Works of one transaction; bounds how long the first of them waits for the last."""


class _Work:
    __slots__ = ("alone", "done", "error", "leads", "result", "run", "wake")

    def __init__(self, run: Callable[[sqlite3.Connection], Any], alone: bool) -> None:
        self.run = run
        self.alone = alone
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.leads = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def fail(self, error: BaseException) -> None:
        self.error, self.done = error, True


def _interrupted() -> FoldlineError:
    return FoldlineError(Reason.NOT_READY, "the write was interrupted; nothing was written", component="store")


class Writer:
    """Runs work on the one connection that writes, a transaction around each group of it.

    Args:
        connection: autocommit connection that nobody else uses while the writer lives.
        committed: told after each commit how many rows changed.
    """

    def __init__(self, connection: sqlite3.Connection, committed: Callable[[int], None]) -> None:
        self._connection = connection
        self._committed = committed
        self._mutex = threading.Lock()
        self._queue: deque[_Work] = deque()
        self._busy = False

    def submit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``run`` in a transaction and returns its result once that is durable.

        ``run`` may be executed again after a rollback, so it changes nothing but the database. What it raises is
        raised here, and nothing of it was written.
        """
        with self._mutex:
            work = self._enqueue(run, alone=False) if self._busy else None
            self._busy = True
        return self._at_once(run) if work is None else cast(T, self._queued(work))

    def submit_alone(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``run`` between transactions, while nothing is written."""
        with self._mutex:
            work = self._enqueue(run, alone=True) if self._busy else None
            self._busy = True
        if work is not None:
            return cast(T, self._queued(work))
        try:
            return run(self._connection)
        finally:
            self._hand_over()

    def _at_once(self, run: Callable[[sqlite3.Connection], T]) -> T:
        db = self._connection
        before = db.total_changes
        try:
            db.execute("BEGIN IMMEDIATE")
            result = run(db)
            db.execute("COMMIT")
            self._committed(db.total_changes - before)
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        finally:
            self._hand_over()
        return result

    def _enqueue(self, run: Callable[[sqlite3.Connection], Any], alone: bool) -> _Work:
        work = _Work(run, alone)
        self._queue.append(work)
        return work

    def _queued(self, work: _Work) -> Any:
        self._wait(work)
        if not work.done:
            self._lead(work)
        if work.error is not None:
            raise work.error
        return work.result

    def _wait(self, work: _Work) -> None:
        try:
            work.wake.acquire()
        except BaseException:
            # Interrupted while waiting: the work is withdrawn if nobody took it, and leadership is passed on.
            with self._mutex:
                if work in self._queue:
                    self._queue.remove(work)
                leads = work.leads
            if leads:
                self._hand_over()
            raise

    def _lead(self, work: _Work) -> None:
        group = [work]
        try:
            if not work.alone:
                self._join(group)
                self._transact(group)
            else:
                self._run_alone(work)
        except BaseException as error:
            for each in group:
                if not each.done:
                    each.fail(error if each is work else _interrupted())
            raise
        finally:
            self._hand_over()
            for each in group:
                if each is not work:
                    each.wake.release()

    def _join(self, group: list[_Work]) -> None:
        """Takes what is queued into the group, up to the first work that wants to be alone."""
        if not self._queue:
            return
        with self._mutex:
            while self._queue and len(group) < MAX_GROUP and not self._queue[0].alone:
                group.append(self._queue.popleft())

    def _hand_over(self) -> None:
        with self._mutex:
            if self._queue:
                following = self._queue.popleft()
                following.leads = True
                following.wake.release()
            else:
                self._busy = False

    def _transact(self, group: list[_Work]) -> None:
        before = self._connection.total_changes
        if not self._run_all(group):
            while any(not work.done for work in group):
                self._run_each(group)
        self._committed(self._connection.total_changes - before)

    def _run_all(self, group: list[_Work]) -> bool:
        """Runs a group, and what queues up meanwhile, as if nothing could fail; False, with nothing written, if it did.

        Failures are rare, and savepoints would be half the statements of a small work.
        """
        db = self._connection
        executed = 0
        try:
            db.execute("BEGIN IMMEDIATE")
            while executed < len(group):
                for work in group[executed:]:
                    work.result = work.run(db)
                    executed += 1
                # Callers that came while these were executed wait for the same sync.
                self._join(group)
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if isinstance(error, Exception):
                return False
            raise
        for work in group:
            work.done = True
        return True

    def _run_each(self, group: list[_Work]) -> None:
        """Runs what is not done of a group, each work in a savepoint: one that fails is undone alone.

        Returns early after an error that ended the transaction, as SQLite does by itself where the disk is full or
        fails: the work that met the error is done with, the others are to be run again.
        """
        db = self._connection
        executed: list[_Work] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for work in [work for work in group if not work.done]:
                self._execute(work)
                if not work.done:
                    executed.append(work)
                elif not db.in_transaction:
                    return
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if not isinstance(error, Exception):
                raise
            for work in group:
                if not work.done:
                    work.fail(error)
            return
        for work in executed:
            work.done = True

    def _execute(self, work: _Work) -> None:
        """Runs one work; marks it done only when it failed."""
        db = self._connection
        db.execute("SAVEPOINT work")
        try:
            work.result = work.run(db)
        except Exception as error:
            work.fail(error)
            if db.in_transaction:
                db.execute("ROLLBACK TO work")
                db.execute("RELEASE work")
        else:
            db.execute("RELEASE work")

    def _run_alone(self, work: _Work) -> None:
        try:
            work.result = work.run(self._connection)
            work.done = True
        except Exception as error:
            work.fail(error)
