"""SQLite under readers and writers, our own and others'."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from foldline.store.sqlite import connection
from foldline.v1 import session_service_pb2

from tests.integration.host import Host
from tests.support.requests import append, create, user
from tests.support.server import Client, refusal_of, refused, running_server, until


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Another process, a backup say, holds the right to write."""
    other = sqlite3.connect(folder / "data" / "foldline.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def rows(client: Client, session_id: str) -> int:
    request = session_service_pb2.GetSessionRequest(session_id=session_id)
    return int(client.session.GetSession(request).totals.rows_total)


def acknowledged(client: Client, request: session_service_pb2.AppendRowsRequest) -> bool:
    try:
        client.session.AppendRows(request)
    except grpc.RpcError as error:
        assert refusal_of(error).reason == "OVERLOADED"
        return False
    return True


def test_xm1_readers_and_writers_never_lock_each_other_out(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        host = Host(client, "s", auto_compact=False)

        def write(number: int) -> None:
            for n in range(20):
                host.append(user(f"walnut {number} {n}"))

        def read(_: int) -> None:
            for _ in range(40):
                host.search("walnut")
                host.archive()

        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(write if n % 2 else read, n) for n in range(8)]
            for each in work:
                each.result()
        assert rows(client, "s") == 80
        assert host.verify().ok
        with sqlite3.connect(tmp_path / "data" / "foldline.db") as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.BUSY_SECONDS >= 1


def test_xm1_a_lock_of_another_process_is_waited_for(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        client.session.CreateSession(create("s"))
        client.session.CreateSession(create("other"))
        with ThreadPoolExecutor(1) as pool:
            with locked(tmp_path):
                waiting = pool.submit(client.session.AppendRows, append("s", user("x")))
                assert rows(client, "other") == 0, "who reads does not wait"
                time.sleep(0.3)
                assert not waiting.done(), waiting.exception()
            assert waiting.result().revision == 1
        assert rows(client, "s") == 1


def test_xm2_a_lock_that_stays_is_said_and_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing turns read-only in silence: each write that cannot be is refused, and may be sent again."""
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.2)
    with running_server(tmp_path) as client:
        client.session.CreateSession(create("s"))
        with locked(tmp_path):
            refusal = refused(client.session.AppendRows, append("s", user("x"), request_id="1"))
            assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
            assert refusal.retry_seconds
            assert rows(client, "s") == 0
        assert client.session.AppendRows(append("s", user("x"), request_id="1")).revision == 1
        assert rows(client, "s") == 1
        assert until(lambda: client.serving() == "SERVING")


def test_xm3_no_write_is_dropped_while_locks_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every append that was acknowledged is there, every other one was refused; sent again, each is there once."""
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    with running_server(tmp_path) as client:
        client.session.CreateSession(create("s"))
        done = threading.Event()

        def disturb() -> None:
            while not done.is_set():
                with locked(tmp_path):
                    done.wait(0.08)
                done.wait(0.03)

        def write(number: int) -> None:
            for n in range(10):
                request = append("s", user(f"{number} {n}"), request_id=f"{number}-{n}")
                while not acknowledged(client, request):
                    pass

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(write, range(4)))
        finally:
            done.set()
            disturber.join()
        assert rows(client, "s") == 40
