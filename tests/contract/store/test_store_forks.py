"""Forks of a session in the store: what they hold, what they share, and what is left when one of them goes (X3)."""

from __future__ import annotations

import itertools

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, RevisionKind, RunOutcome
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import to_ranges
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import Archive, CallUpdate, Fork, Store, Tools
from foldline.domain.session import ClosedRun, Session

from tests.contract.store.conftest import NOON, Database
from tests.contract.store.records import Scribe, entry, event, prepared, record, request, row

ALL = MemoryFilter()


def source(store: Store, session_id: str = "s") -> Scribe:
    """Revisions 1 (rows 1-6), 2 (fold of 1, 2 into 7), 3 (rows 8-9), 4 (fold of 3, 4, 7 into 10), 5 (row 11)."""
    scribe = Scribe.create(store, session_id, digest="created")
    scribe.append(6, calls=(CallUpdate(1, "a"), CallUpdate(5, "b")), request=request("q", NOON), prepared=prepared("p"))
    scribe.rewrite(
        [3, 4, 5, 6, 7], RevisionKind.FOLD, rows=1, record=record("f1", [1, 2], 2),
        publish=(entry(1, 0, "walnut one"), entry(1, 1, "walnut"), entry(2, 0, "parrot")),
        events=(event(EventKind.COMPACTION_STARTED, "f1"),),
    )  # fmt: skip
    scribe.append(2, calls=(CallUpdate(5, "b", result_offset=9),), tools=Tools("t", 1, 2))
    scribe.rewrite(
        [5, 6, 8, 9, 10], RevisionKind.FOLD, rows=1, record=record("f2", [3, 4, 7], 4),
        publish=(entry(3, 0, "walnut three"), entry(4, 0, "beetle")),
    )  # fmt: skip
    scribe.append(1)
    scribe.commit(pins=((3, True),))
    return scribe


def forked(store: Store, scribe: Scribe, name: str, revision: int | None = None, **fields: object) -> Scribe:
    """A fork of a scribe's session, with its own scribe."""
    at = scribe.session.revision if revision is None else revision
    active = store.active_offsets(scribe.key, at)
    through = store.last_offset(scribe.key, at)
    gone = set(range(1, through + 1)) - set(active)
    session = replace(scribe.session, key=0, session_id=name, revision=at, next_offset=through + 1)
    made = store.fork_session(
        Fork(scribe.key, session, visible=to_ranges(tuple(sorted(gone))), **fields),  # type: ignore[arg-type]
        None,
    )
    return Scribe(store, made, active)


def held(store: Store, scribe: Scribe) -> Archive:
    """Everything of a session but what tells it from another of the same content."""
    archive = store.export_session(scribe.key)
    return replace(archive, session=replace(archive.session, key=0, session_id=""), events=())


def found(store: Store, scribe: Scribe, *terms: str) -> list[tuple[int, float]]:
    """(offset, score) of what a search finds."""
    hits = store.search_lexical(scribe.key, terms, ALL, 100)
    offsets = [e.entry.offset for e in store.memory_entries(scribe.key, [entry_id for entry_id, _ in hits])]
    return list(zip(offsets, [score for _, score in hits], strict=True))


def test_x3_a_fork_holds_rows_lists_calls_runs_and_memory_of_its_source(store: Store) -> None:
    scribe = source(store)
    scribe.commit(closed_runs=(ClosedRun("r", RunOutcome.FAILED, (1, 8)),))
    fork = forked(store, scribe, "fork")
    one, two = store.export_session(scribe.key), store.export_session(fork.key)
    assert two.rows == one.rows
    assert two.rewrites[1:] == one.rewrites[1:]
    created = two.rewrites[0]
    assert (created.revision, created.kind, created.parent_revision) == (0, RevisionKind.FORK, 5)
    assert (created.digest, created.time) == ("created", NOON)
    assert (two.calls, two.entries) == (one.calls, one.entries)
    for revision in range(6):
        assert store.active_offsets(fork.key, revision) == store.active_offsets(scribe.key, revision)
    assert store.active_columns(fork.key) == store.active_columns(scribe.key)
    assert store.read_rows(fork.key, [11, 1, 99]) == store.read_rows(scribe.key, [11, 1, 99])
    assert store.find_tools(fork.key, "t") == Tools("t", 1, 2)
    assert two.closed_runs == (), "no row is of that run"
    assert (two.events, store.find_prepared(fork.key, "p"), store.find_request("acme", fork.key, "q")) == (
        (),
        None,
        None,
    )
    assert [session_id for _, session_id, _ in store.unfinished_folds()] == ["s"]
    assert store.load_session("acme", "fork") == fork.session


@pytest.mark.parametrize(
    ("revision", "rows", "shown", "walnuts"),
    [
        (0, 0, set(), []),
        (1, 6, set(), []),
        (2, 7, {1, 2}, [1, 1]),
        (3, 9, {1, 2}, [1, 1]),
        (4, 10, {1, 2, 3, 4}, [1, 1, 3]),
    ],
)
def test_x3_a_fork_ends_at_its_revision(
    store: Store, revision: int, rows: int, shown: set[int], walnuts: list[int]
) -> None:
    scribe = source(store)
    fork = forked(store, scribe, "fork", revision)
    assert store.count_rows(fork.key) == rows == store.last_offset(fork.key, revision)
    assert [r.revision for r in store.rewrites(fork.key, -1, 9)] == [0, *(r for r in (2, 4) if r <= revision)]
    assert store.active_offsets(fork.key) == store.active_offsets(scribe.key, revision)
    assert store.visible_offsets(fork.key) == shown
    assert sorted(offset for offset, _ in found(store, fork, "walnut")) == walnuts
    assert store.memory_at(fork.key, 3) == (store.memory_at(scribe.key, 3) if revision >= 4 else [])
    assert [c.result_offset for c in store.find_calls(fork.key, "b")] == (
        [] if not revision else [9 if revision >= 3 else None]
    )
    with pytest.raises(FoldlineError) as refused:
        store.active_offsets(fork.key, revision + 1)
    assert refused.value.reason == Reason.REVISION_NOT_FOUND
    # Its own rows take the offsets that follow.
    fork.append(2)
    assert store.active_offsets(fork.key) == fork.active
    assert store.active_offsets(scribe.key) == scribe.active


def test_x3_a_run_comes_along_with_its_rows_and_without_what_joined_it_later(store: Store) -> None:
    scribe = Scribe.create(store)
    mine = row(1, 1, run_id="r1"), row(2, 1, run_id="r2")
    scribe.commit(replace(scribe.session, revision=1, next_offset=3), rows=mine)
    scribe.active = [1, 2]
    scribe.append(2, closed_runs=(ClosedRun("r1", RunOutcome.COMPLETED, (1, 2, 3)), ClosedRun("r4", RunOutcome.FAILED)))
    left_out = ClosedRun("r2", RunOutcome.CANCELLED, (2, 4)), ClosedRun("r3", RunOutcome.CANCELLED, (2,))
    fork = forked(store, scribe, "fork", 1, closed_runs=left_out)
    assert store.find_run(fork.key, "r1") == ClosedRun("r1", RunOutcome.COMPLETED, (1, 2))
    assert store.find_run(fork.key, "r2") == ClosedRun("r2", RunOutcome.CANCELLED, (2,))
    assert store.find_run(fork.key, "r3") is None is store.find_run(fork.key, "r4")
    assert store.find_run(scribe.key, "r2") is None


def test_x3_calls_are_as_the_fork_says_they_were(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(3, calls=(CallUpdate(1, "a"), CallUpdate(2, "b", result_offset=3)))
    scribe.append(1, calls=(CallUpdate(1, "a", result_offset=4), CallUpdate(2, "b", removed_by=2)))
    fork = forked(store, scribe, "fork", 1, calls=(CallUpdate(2, "b", result_offset=3),))
    assert store.calls(fork.key) == [CallUpdate(1, "a"), CallUpdate(2, "b", result_offset=3)]
    assert store.calls(scribe.key) == [CallUpdate(1, "a", result_offset=4), CallUpdate(2, "b", removed_by=2)]


def test_x3_an_id_that_is_taken_and_a_source_that_is_gone_write_nothing(store: Store) -> None:
    scribe = source(store)
    for name, expected in (("s", Reason.SESSION_EXISTS), ("fork", Reason.SESSION_NOT_FOUND)):
        if name == "fork":
            store.delete_session(scribe.key)
        with pytest.raises(FoldlineError) as refused:
            store.fork_session(Fork(scribe.key, replace(scribe.session, key=0, session_id=name)), request("f", NOON))
        assert refused.value.reason == expected
    assert store.find_request("acme", 0, "f") is None
    assert store.list_sessions("acme", "", 9) == []


def test_w2_the_request_of_a_fork_is_kept_for_the_tenant(store: Store) -> None:
    scribe = source(store)
    store.fork_session(Fork(scribe.key, replace(scribe.session, key=0, session_id="fork")), request("f", NOON))
    assert store.find_request("acme", 0, "f") is not None


def test_r6_pins_are_each_sessions_own(store: Store) -> None:
    scribe = source(store)
    fork = forked(store, scribe, "fork")
    fork.commit(pins=((3, False), (5, True)))
    assert [r.pinned for r in store.read_rows(scribe.key, [3, 5])] == [True, False]
    assert [r.pinned for r in store.read_rows(fork.key, [3, 5])] == [False, True]
    store.delete_session(scribe.key)
    assert [r.pinned for r in store.read_rows(fork.key, [3, 5])] == [False, True]


FAMILY = ("s", "near", "far", "child")
"""A source, a fork of all of it, a fork of its first fold, and a fork of the first fork."""


def family(store: Store) -> dict[str, Scribe]:
    scribe = source(store)
    near, far = forked(store, scribe, "near"), forked(store, scribe, "far", 3)
    (some, *_) = store.memory_ids(scribe.key, ALL)
    store.put_vectors("m", [(some, b"\0\0\0\0")])
    near.append(2)
    child = forked(store, near, "child")
    return {"s": scribe, "near": near, "far": far, "child": child}


def content(store: Store, scribe: Scribe) -> tuple[object, ...]:
    vectors = store.memory_vectors(scribe.key, "m")
    searched = [found(store, scribe, word) for word in ("walnut", "parrot", "beetle", "entry")]
    return held(store, scribe), vectors, searched, store.memory_count(scribe.key, "m"), store.active_columns(scribe.key)


@pytest.mark.parametrize("order", list(itertools.permutations(FAMILY)), ids="-".join)
def test_x3_whoever_goes_first_the_others_are_whole(store: Store, order: tuple[str, ...]) -> None:
    scribes = family(store)
    before = {name: content(store, scribe) for name, scribe in scribes.items()}
    for number, name in enumerate(order):
        store.delete_session(scribes[name].key)
        for left in order[number + 1 :]:
            assert content(store, scribes[left]) == before[left], f"{left} without {name}"
    # Nothing is left of what they shared.
    assert store.pending_vectors("other", 10) == []


@pytest.mark.parametrize("order", list(itertools.permutations(FAMILY)), ids="-".join)
def test_m7_a_dropped_scope_takes_no_other_ones_memory(store: Store, order: tuple[str, ...]) -> None:
    scribes = family(store)
    before = {name: content(store, scribe) for name, scribe in scribes.items()}
    for number, name in enumerate(order):
        entries = len(held(store, scribes[name]).entries)
        assert store.drop_scope(scribes[name].key) == entries
        assert store.memory_ids(scribes[name].key, ALL) == [] == found(store, scribes[name], "walnut")
        assert store.memory_vectors(scribes[name].key, "m") == []
        for left in order[number + 1 :]:
            assert content(store, scribes[left]) == before[left], f"{left} without {name}"
        assert store.archive(scribes[name].key, 0, 99) == list(before[name][0].rows)  # type: ignore[attr-defined]
    assert store.pending_vectors("other", 10) == []


def test_m7_a_fork_of_a_dropped_scope_is_closed_too(store: Store) -> None:
    scribe = source(store)
    store.drop_scope(scribe.key)
    fork = forked(store, scribe, "fork")
    assert fork.session.memory_dropped
    assert store.load_session("acme", "fork") == fork.session
    fork.rewrite([11], RevisionKind.FOLD, publish=(entry(5),))
    assert store.memory_ids(fork.key, ALL) == []


def test_m2_each_side_shows_its_own(store: Store) -> None:
    scribe = source(store)
    fork = forked(store, scribe, "fork", 3)
    scribe.rewrite(scribe.active, RevisionKind.RESTORE, visible=((2, 2),))
    assert store.visible_offsets(fork.key) == {1, 2}
    fork.rewrite([5, 6, 7, 8, 9], RevisionKind.FOLD, publish=(entry(3, 0, "other text"), entry(4)))
    assert store.visible_offsets(scribe.key) == {2}
    assert [e.entry.text for e in store.memory_at(fork.key, 3)] == ["other text"]
    assert [e.entry.text for e in store.memory_at(scribe.key, 3)] == ["walnut three"]
    fork.rewrite(fork.active, RevisionKind.RESTORE, visible=())
    fork.rewrite([9], RevisionKind.FOLD, publish=(entry(1, 0, "cut otherwise"),))
    assert [e.entry.text for e in store.memory_at(fork.key, 1)] == ["walnut one", "walnut"]
    assert store.visible_offsets(fork.key) == {1}


def test_m1_scores_are_of_what_the_fork_holds(store: Store) -> None:
    """As of a session that was written the same way up to there, whatever the source folds after."""
    scribe = source(store)
    fork = forked(store, scribe, "fork", 2)
    lone = Scribe.create(store, "lone")
    lone.append(6)
    lone.rewrite(
        [3, 4, 5, 6, 7], RevisionKind.FOLD, rows=1,
        publish=(entry(1, 0, "walnut one"), entry(1, 1, "walnut"), entry(2, 0, "parrot")),
    )  # fmt: skip
    for word in ("walnut", "parrot", "three"):
        assert found(store, fork, word) == found(store, lone, word)


def test_m8_a_shared_entry_is_embedded_once_for_all(store: Store) -> None:
    scribe = source(store)
    near, far = forked(store, scribe, "near"), forked(store, scribe, "far", 3)
    pending = store.pending_vectors("m", 100)
    assert len(pending) == 5
    store.put_vectors("m", [(e.id, b"vec%d" % number) for number, (_, e) in enumerate(pending)])
    assert store.pending_vectors("m", 100) == []
    for each, count in ((scribe, 5), (near, 5), (far, 3)):
        assert store.memory_count(each.key, "m") == (count, 0)
        ids = store.memory_ids(each.key, ALL)
        vectors = store.memory_vectors(each.key, "m")
        assert [i for i, _ in vectors] == sorted(ids)
        assert vectors == store.memory_vectors(each.key, "m", ids) == store.memory_vectors(scribe.key, "m", ids)
        assert store.memory_vectors(each.key, "m", ids[:1]) == [v for v in vectors if v[0] == ids[0]]
    # What a fork publishes later is its own.
    far.rewrite([9], RevisionKind.FOLD, publish=(entry(5),))
    assert [key for key, _ in store.pending_vectors("m", 100)] == [far.key]


def test_m8_what_is_embedded_after_its_session_went_reaches_the_forks(store: Store) -> None:
    scribe = source(store)
    fork = forked(store, scribe, "fork")
    pending = store.pending_vectors("m", 100)
    store.delete_session(scribe.key)
    store.put_vectors("m", [(e.id, b"\0\0\0\0") for _, e in pending])
    assert store.memory_count(fork.key, "m") == (5, 0)


def test_x3_a_fork_exports_and_imports_as_a_whole_session(store: Store) -> None:
    scribe = source(store)
    fork = forked(store, scribe, "fork", 3)
    archive = store.export_session(fork.key)
    imported = store.import_session(replace(archive, session=replace(archive.session, tenant="other")), None)
    copy = Scribe(store, imported, fork.active)
    store.delete_session(scribe.key)
    store.delete_session(fork.key)
    assert replace(held(store, copy), session=archive.session) == archive
    # And forks again, at any of its folds.
    again = forked(store, copy, "again", 1)
    assert (store.count_rows(again.key), store.memory_count(again.key, "m")) == (6, (0, 0))


def test_x3_an_imported_session_forks_at_each_of_its_folds(store: Store) -> None:
    archive = store.export_session(source(store).key)
    imported = store.import_session(replace(archive, session=replace(archive.session, session_id="i")), None)
    copy = Scribe(store, imported, store.active_offsets(imported.key))
    assert store.visible_offsets(forked(store, copy, "i1", 1).key) == set()
    assert store.visible_offsets(forked(store, copy, "i3", 3).key) == {1, 2}
    assert store.visible_offsets(forked(store, copy, "i5", 5).key) == {1, 2, 3, 4}


def test_x3_forks_outlive_a_restart(database: Database) -> None:
    scribes = family(database.open())
    store = scribes["s"].store
    before = {name: content(store, scribe) for name, scribe in scribes.items()}
    store.delete_session(scribes["s"].key)
    store = database.reopen()
    for name in FAMILY[1:]:
        assert content(store, scribes[name]) == before[name]
    loaded: Session | None = store.load_session("acme", "child")
    assert loaded == scribes["child"].session
