"""Leases of tasks that hosts work on (S6): one a task, none of a session that is gone, none after a start."""

from __future__ import annotations

from dataclasses import replace

from foldline.domain.curators import Lease
from foldline.domain.ports import Store

from tests.contract.store.conftest import NOON, Database
from tests.contract.store.records import Scribe


def lease(scribe: Scribe, task_id: str, **fields: object) -> Lease:
    made = Lease(task_id, scribe.session.key, "f-1", "host-1", "night shift", 1, NOON, NOON + 15)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_s6_a_task_has_one_lease_which_is_that_of_its_last_attempt(store: Store) -> None:
    scribe = Scribe.create(store, "s")
    first = lease(scribe, "t-1")
    again = replace(first, curator_id="host-2", attempt=2, time=NOON + 20, expire=NOON + 35)
    assert store.put_lease(first)
    assert store.leases() == [first]
    assert store.put_lease(again)
    assert store.leases() == [again]
    store.end_lease("t-1")
    store.end_lease("t-1")
    assert store.leases() == []


def test_s6_heartbeats_keep_those_that_they_name(store: Store) -> None:
    scribe = Scribe.create(store, "s")
    held = [lease(scribe, f"t-{n}", time=NOON + n) for n in range(3)]
    for each in held:
        store.put_lease(each)
    store.renew_leases(["t-0", "t-2", "gone"], "host-9", NOON + 60)
    kept = {"curator_id": "host-9", "expire": NOON + 60}
    assert store.leases() == [replace(held[0], **kept), held[1], replace(held[2], **kept)]


def test_v10_none_outlives_its_process_and_a_start_says_how_many_there_were(database: Database) -> None:
    store = database.open()
    scribe = Scribe.create(store, "s")
    for n in range(3):
        store.put_lease(lease(scribe, f"t-{n}"))
    store = database.reopen()
    assert len(store.leases()) == 3
    assert (store.clear_leases(), store.clear_leases()) == (3, 0)
    assert store.leases() == []


def test_leases_go_with_their_session_and_none_is_written_after(store: Store) -> None:
    gone, other = Scribe.create(store, "s"), Scribe.create(store, "other")
    store.put_lease(lease(gone, "t-1"))
    kept = lease(other, "t-2")
    store.put_lease(kept)
    store.delete_session(gone.session.key)
    assert store.leases() == [kept]
    assert not store.put_lease(lease(gone, "t-3"))
    assert store.leases() == [kept]
