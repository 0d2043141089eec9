"""Sessions: created, found, listed, removed, carried over."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, Ownership, RevisionKind, RunOutcome, SkipReason, SummarySourcePolicy
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import CallUpdate, Store, Tools
from foldline.domain.rows import ModelRef
from foldline.domain.session import (
    Cadence,
    CallState,
    ClosedRun,
    LedgerCall,
    OpenRun,
    Reading,
    Spend,
    SystemKey,
)

from tests.contract.store.conftest import Database
from tests.contract.store.records import MODEL, Scribe, entry, event, prepared, record, request, session

EVERYTHING = MemoryFilter()


def test_a_created_session_is_found_with_its_key(store: Store) -> None:
    created = store.create_session(session("s", digest="d0"), None)
    assert created.key > 0
    assert store.load_session("acme", "s") == created
    assert store.load_session("acme", "other") is None
    assert store.load_session("other", "s") is None


def test_the_creation_is_the_first_rewrite(store: Store) -> None:
    created = store.create_session(session("s", digest="d0"), None)
    (first,) = store.rewrites(created.key, -1, 10)
    assert (first.revision, first.kind, first.active, first.digest) == (0, RevisionKind.CREATED, (), "d0")


def test_every_field_of_the_state_comes_back(database: Database) -> None:
    full = session(
        "s",
        ownership=Ownership.HOST_OWNED,
        policy={
            "summary.source": SummarySourcePolicy.CURATOR, "summary.redact": ("a", "b"), "retention.turns": 2,
            "summary.fast_model": ModelRef("anthropic", "small"), "min_progress": 0.2, "auto_compact": False,
        },
        labels={"team": "blue"},
        digest="d",
        cadence=Cadence(
            boundaries=3, count=Reading(10, MODEL), last_skip=SkipReason.COOLDOWN, paid_attempts=(1.0, 2.0),
            spending=(Spend(7, 8, 0.5),), summary_sizes=(1, 2, 3),
        ),
        open_run=OpenRun("r", 1, 2, 3.5, request=(4, 5), ledger=(LedgerCall("grep", "{}", "ran", 3),)),
        calls=(CallState(4, "c", "grep", interim=True),),
        system_keys=(SystemKey("persona", 2, 9, 1),),
        last_prepared=prepared("p"),
    )  # fmt: skip
    created = database.open().create_session(full, None)
    loaded = database.reopen().load_session("acme", "s")
    assert loaded == replace(full, key=created.key)
    assert isinstance(loaded.policy["summary.source"], SummarySourcePolicy)
    assert isinstance(loaded.policy["summary.redact"], tuple)


def _run(*calls: str) -> OpenRun:
    return OpenRun("r", 1, 2, 3.5, ledger=tuple(LedgerCall(name, "{}", "ran") for name in calls))


def test_f3_the_ledger_is_the_last_that_was_written(database: Database) -> None:
    """A commit that says so leaves it as it is; any other writes what its state holds, nothing too (4.5)."""
    scribe = Scribe.create(database.open(), open_run=_run("a"))
    with_more = replace(scribe.session, revision=1, open_run=_run("a", "b"))
    scribe.commit(with_more)
    scribe.commit(replace(with_more, revision=2), ledger_stands=True)
    scribe.store = database.reopen()
    assert scribe.store.load_session("acme", "s") == scribe.session
    assert [s.open_run for s in scribe.store.list_sessions("acme", "", 9)] == [_run("a", "b")]
    assert scribe.store.export_session(scribe.key).session.open_run == _run("a", "b")
    scribe.commit(replace(scribe.session, revision=3, open_run=None))
    scribe.commit(replace(scribe.session, revision=4, open_run=_run()), ledger_stands=True)
    assert scribe.store.load_session("acme", "s") == scribe.session


def test_an_id_is_taken_once_a_tenant(store: Store) -> None:
    first = store.create_session(session("s", tenant="acme"), request("q", 1.0))
    with pytest.raises(FoldlineError) as refused:
        store.create_session(session("s", tenant="acme"), request("q2", 1.0))
    assert refused.value.reason == Reason.SESSION_EXISTS
    assert refused.value.metadata["session_id"] == "s"
    assert store.create_session(session("s", tenant="other"), None).key != first.key


def test_sessions_page_in_order_of_id_within_their_tenant(store: Store) -> None:
    for session_id in ("b", "a", "c10", "c9", "é"):
        store.create_session(session(session_id), None)
    store.create_session(session("aa", tenant="other"), None)
    found: list[str] = []
    while page := store.list_sessions("acme", found[-1] if found else "", 2):
        assert len(page) <= 2
        found += [each.session_id for each in page]
    assert found == ["a", "b", "c10", "c9", "é"]


def _filled(store: Store, session_id: str, rows: int = 3) -> Scribe:
    scribe = Scribe.create(store, session_id, open_run=_run("a"))
    scribe.append(rows, calls=(CallUpdate(1, "c"),), prepared=prepared("p"), request=request("q", store_time()))
    scribe.commit(closed_runs=(ClosedRun("r", RunOutcome.FAILED),), tools=Tools("t", 1, 2), events=(event(),))
    scribe.commit(events=(event(EventKind.COMPACTION_STARTED, "f"),))
    scribe.rewrite(
        [*range(3, rows + 1), rows + 1], RevisionKind.FOLD, rows=1, record=record("g", [1, 2], 2),
        publish=(entry(1), entry(2)),
    )  # fmt: skip
    (first, _) = store.memory_at(scribe.key, 1) + store.memory_at(scribe.key, 2)
    store.put_vectors("m", [(first.id, b"\0\0\0\0")])
    return scribe


def store_time() -> float:
    return 1_700_000_000.0


def test_delete_removes_everything_and_nothing_else(store: Store) -> None:
    gone, kept = _filled(store, "gone"), _filled(store, "kept")
    before = store.export_session(kept.key)
    store.delete_session(gone.key)

    key = gone.key
    assert store.load_session("acme", "gone") is None
    assert store.archive(key, 0, 10) == [] == store.rewrites(key, -1, 10) == store.events(key, 0, 10)
    assert store.find_calls(key, "c") == []
    assert store.find_run(key, "r") is store.find_prepared(key, "p") is store.find_tools(key, "t") is None
    assert store.find_request("acme", key, "q") is None
    assert store.memory_at(key, 1) == [] == store.memory_ids(key, EVERYTHING)
    assert store.search_lexical(key, ["entry"], EVERYTHING, 10) == []
    assert store.memory_vectors(key, "m") == []
    assert [session_id for _, session_id, _ in store.unfinished_folds()] == ["kept"]

    assert store.export_session(kept.key) == before
    assert len(store.search_lexical(kept.key, ["entry"], EVERYTHING, 10)) == 2


def test_a_deleted_session_takes_no_commit_and_its_key_never_comes_back(store: Store) -> None:
    gone = _filled(store, "s")
    store.delete_session(gone.key)
    with pytest.raises(FoldlineError) as refused:
        gone.append()
    assert refused.value.reason == Reason.SESSION_NOT_FOUND
    with pytest.raises(FoldlineError):
        store.active_offsets(gone.key)
    store.delete_session(gone.key)
    again = store.create_session(session("s"), None)
    assert again.key > gone.key
    assert store.active_offsets(again.key) == []


def test_delete_removes_more_rows_than_one_transaction_takes(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(1300)
    scribe.rewrite([1], publish=tuple(entry(offset) for offset in range(2, 1300)))
    store.delete_session(scribe.key)
    assert store.count_rows(scribe.key) == 0
    assert store.memory_count(scribe.key, "m") == (0, 0)


def test_an_export_imports_as_the_same_session(store: Store) -> None:
    original = _filled(store, "s", rows=5)
    original.commit(pins=((3, True),))
    original.rewrite([3, 4, 5], RevisionKind.RESTORE, parent=1, visible=((2, 2),), note="back")
    archive = store.export_session(original.key)
    assert [visible for _, visible in archive.entries] == [False, True]

    # Its first event may be past its keeping; the others keep their numbers.
    moved = replace(archive, session=replace(archive.session, tenant="other"), events=archive.events[1:])
    imported = store.import_session(moved, request("import", store_time()))
    assert imported == replace(moved.session, key=imported.key)
    assert store.export_session(imported.key) == replace(moved, session=imported)
    for revision in range(1, imported.revision + 1):
        assert store.active_offsets(imported.key, revision) == store.active_offsets(original.key, revision)
    assert store.find_request("other", 0, "import") is not None
    assert [e.entry.offset for e in store.memory_entries(imported.key, store.memory_ids(imported.key, EVERYTHING))] == [
        2
    ]

    # Numbers go on where they ended.
    copy = Scribe(store, imported, store.active_offsets(imported.key))
    (following,) = copy.append(events=(event(),))
    assert following.seq == len(archive.events) + 1
    assert store.active_offsets(imported.key) == copy.active


def test_an_import_over_a_taken_id_writes_nothing(store: Store) -> None:
    original = _filled(store, "s")
    archive = store.export_session(original.key)
    with pytest.raises(FoldlineError) as refused:
        store.import_session(archive, request("import", store_time()))
    assert refused.value.reason == Reason.SESSION_EXISTS
    assert store.find_request("acme", 0, "import") is None


def test_an_import_with_rows_out_of_order_is_refused(store: Store) -> None:
    original = _filled(store, "s")
    archive = store.export_session(original.key)
    broken = replace(archive, session=replace(archive.session, session_id="t"), rows=archive.rows[::-1])
    with pytest.raises(FoldlineError):
        store.import_session(broken, None)
    assert store.load_session("acme", "t") is None
