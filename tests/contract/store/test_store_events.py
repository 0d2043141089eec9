"""Events (§13): numbered without a gap, and every started fold with one end, also across a crash."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, SignalKind, Trigger
from foldline.domain.errors import RevisionConflict
from foldline.domain.events import BoundedResult, Event
from foldline.domain.folding import CheckFailure
from foldline.domain.models import Usage
from foldline.domain.ports import Batch, Store

from tests.contract.store.conftest import Database
from tests.contract.store.records import Scribe, event, record


def test_a_commit_answers_with_the_numbers_it_gave(store: Store) -> None:
    scribe, other = Scribe.create(store, "a"), Scribe.create(store, "b")
    assert [e.seq for e in scribe.append(1, events=(event(), event()))] == [1, 2]
    assert [e.seq for e in other.append(1, events=(event(),))] == [1]
    assert scribe.append(1) == ()
    assert [e.seq for e in scribe.commit(events=(event(), event(), event()))] == [3, 4, 5]
    assert [e.seq for e in store.events(scribe.key, 0, 100)] == [1, 2, 3, 4, 5]


def test_a_refused_commit_takes_no_number(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(1, events=(event(),))
    with pytest.raises(RevisionConflict):
        store.commit(Batch(0, replace(scribe.session, revision=1), events=(event(), event())))
    assert [e.seq for e in scribe.append(1, events=(event(),))] == [2]


def test_events_page_by_number(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.commit(events=tuple(event(message=str(i)) for i in range(1, 8)))
    assert [e.message for e in store.events(scribe.key, 2, 3)] == ["3", "4", "5"]
    assert store.events(scribe.key, 7, 10) == []


def test_every_field_of_an_event_comes_back(database: Database) -> None:
    full = Event(
        kind=EventKind.COMPACTION_FAILED, time=1.25, revision=3, boundary=4, run_id="r", fold_id="f",
        trigger=Trigger.DID_NOT_FIT, signals=(SignalKind.DID_NOT_FIT,), record=record("f", [1, 2, 5], 3),
        failure=FailureKind.NOT_SMALLER, checks=(CheckFailure("V6", "larger"),), usage=Usage(1, 2, None, 0.5, "USD"),
        bounded=(BoundedResult(4, "c", 10, 20, "text"),), limit=9, message="é",
    )  # fmt: skip
    scribe = Scribe.create(database.open())
    scribe.commit(events=(full,))
    assert database.reopen().events(scribe.key, 0, 1) == [replace(full, seq=1)]


def test_v10_a_fold_without_an_end_is_found_after_a_restart(database: Database) -> None:
    store = database.open()
    scribe, other = Scribe.create(store, "a"), Scribe.create(store, "b", tenant="other")
    scribe.commit(events=(event(EventKind.COMPACTION_STARTED, "f1"),))
    scribe.commit(events=(event(EventKind.COMPACTION_COMPLETED, "f1"),))
    scribe.commit(events=(event(EventKind.COMPACTION_STARTED, "f2"), event(EventKind.COMPACTION_SKIPPED)))
    (started,) = other.commit(events=(event(EventKind.COMPACTION_STARTED, "f2"),))
    store = database.reopen()
    assert [(t, s, e.fold_id, e.seq) for t, s, e in store.unfinished_folds()] == [
        ("acme", "a", "f2", 3), ("other", "b", "f2", 1),
    ]  # fmt: skip
    assert store.unfinished_folds()[1][2] == started

    scribe.store = other.store = store
    scribe.commit(events=(event(EventKind.COMPACTION_FAILED, "f2", failure=FailureKind.INTERRUPTED),))
    assert [s for _, s, _ in store.unfinished_folds()] == ["b"]


def test_a_fold_that_starts_and_ends_in_one_commit_is_finished(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.commit(events=(event(EventKind.COMPACTION_STARTED, "f"), event(EventKind.COMPACTION_COMPLETED, "f")))
    assert store.unfinished_folds() == []
