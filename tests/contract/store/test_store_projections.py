"""Projections in the store: staged whole, settled once, and what is left of them (H2, H3, M7, V10)."""

from __future__ import annotations

from typing import Any

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, Ownership, RevisionKind, RowKind, SummarySource
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import CallUpdate, Rewrite, Store
from foldline.domain.projections import HostRow, Projection, ProjectionState, Settled, StagedFold
from foldline.domain.rows import CompactionSummaryRow, encode_body

from tests.contract.store.conftest import NOON, Database
from tests.contract.store.records import Scribe, entry, event, record, row

ALL = MemoryFilter()


def hosted(store: Store, session_id: str = "s") -> Scribe:
    return Scribe.create(store, session_id, ownership=Ownership.HOST_OWNED, digest="created")


def projection(fold_id: str, **fields: Any) -> Projection:
    values: dict[str, Any] = {
        "expire": NOON + 60, "digest": f"digest {fold_id}", "text_digest": f"text {fold_id}", "summary_offset": 0,
    }  # fmt: skip
    return Projection(f"pr-{fold_id}", fold_id, ProjectionState.STAGED, **(values | fields))


def fold(fold_id: str, offsets: list[int], revision: int = 1) -> StagedFold:
    """Rows of the offsets given, the last of them the summary."""
    summary = encode_body(CompactionSummaryRow("what was done", fold_id, SummarySource.EXTRACTIVE, digest="d"))
    rows = [row(o, revision, kind=RowKind.USER) for o in offsets[:-1]]
    rows.append(row(offsets[-1], revision, kind=RowKind.COMPACTION_SUMMARY, body=summary))
    kept = record(fold_id, offsets[:-1], revision)
    return StagedFold(
        record=replace(kept, summary_offset=offsets[-1]), rows=tuple(rows),
        entries=tuple(entry(o, 0, f"walnut {o}") for o in offsets[:-1]),
        calls=(CallUpdate(offsets[0], "a"),), host_rows=tuple(HostRow(f"m{o}", 0, o) for o in offsets[:-1]),
        discarded=tuple(f"m{o}" for o in offsets[:-1]), before="", list_rows=9, list_digest="list", threshold=100,
        summary_tokens=5,
    )  # fmt: skip


def stage(scribe: Scribe, fold_id: str, offsets: list[int], **fields: Any) -> StagedFold:
    made = fold(fold_id, offsets, scribe.session.revision + 1)
    after = replace(scribe.session, next_offset=offsets[-1] + 1, staged=f"pr-{fold_id}")
    scribe.commit(
        after, stage=(projection(fold_id, summary_offset=offsets[-1], **fields), made),
        events=(event(EventKind.COMPACTION_STARTED, fold_id),),
    )  # fmt: skip
    return made


def publish(scribe: Scribe, made: StagedFold) -> None:
    fold_id, revision = made.record.fold_id, scribe.session.revision + 1
    scribe.commit(
        replace(scribe.session, revision=revision, folds=scribe.session.folds + 1, staged=""), rows=made.rows,
        calls=made.calls, publish=made.entries, host_rows=made.host_rows,
        settle=Settled(f"pr-{fold_id}", ProjectionState.COMMITTED),
        rewrite=Rewrite(revision, RevisionKind.FOLD, revision - 1, (), f"digest {revision}", 2.5, made.record),
        events=(event(EventKind.COMPACTION_COMPLETED, fold_id, record=made.record),),
    )  # fmt: skip


def test_h3_what_is_staged_is_read_as_it_was_written(store: Store) -> None:
    scribe = hosted(store)
    made = stage(scribe, "f1", [1, 2, 5])
    found = store.staged_projection(scribe.key)
    assert found is not None
    assert found == (projection("f1", summary_offset=5, entries=2), made)
    assert store.find_projection(scribe.key, "pr-f1") == found[0]
    assert store.find_projection(scribe.key, "pr-f2") is None


def test_h3_nothing_of_it_is_to_be_seen(store: Store) -> None:
    scribe = hosted(store)
    stage(scribe, "f1", [1, 2, 5])
    assert store.count_rows(scribe.key) == 0
    assert store.memory_ids(scribe.key, ALL) == []
    assert store.pending_vectors("m", 9) == []
    assert store.host_rows(scribe.key, ["m1", "m2"]) == []
    assert store.rewrites(scribe.key, 0, 9) == []


def test_h3_a_commit_publishes_all_of_it(store: Store) -> None:
    scribe = hosted(store)
    publish(scribe, stage(scribe, "f1", [1, 2, 5]))
    assert [r.offset for r in store.read_rows(scribe.key, [1, 2, 5])] == [1, 2, 5]
    assert store.visible_offsets(scribe.key) == {1, 2}
    assert store.host_rows(scribe.key, ["m2", "m9"]) == [HostRow("m2", 0, 2)]
    assert store.active_offsets(scribe.key) == [], "the host keeps the list"
    assert store.staged_projection(scribe.key) is None
    kept = store.find_projection(scribe.key, "pr-f1")
    assert kept is not None
    assert (kept.state, kept.entries) == (ProjectionState.COMMITTED, 2)


def test_h3_it_is_settled_once(store: Store) -> None:
    scribe = hosted(store)
    made = stage(scribe, "f1", [1, 2, 5])
    scribe.commit(settle=Settled("pr-f1", ProjectionState.ABORTED), events=(event(EventKind.COMPACTION_FAILED, "f1"),))
    before = scribe.session
    with pytest.raises(FoldlineError) as caught:
        publish(scribe, made)
    assert caught.value.reason is Reason.PROJECTION_NOT_FOUND
    assert store.count_rows(scribe.key) == 0, "V10: nothing of the commit was written"
    assert store.load_session("acme", "s") == before
    assert store.staged_projection(scribe.key) is None


def test_h3_one_takes_the_place_of_another_in_one_commit(store: Store) -> None:
    scribe = hosted(store)
    stage(scribe, "f1", [1, 2, 5])
    made = fold("f2", [6, 7, 9])
    scribe.commit(
        replace(scribe.session, next_offset=10), settle=Settled("pr-f1", ProjectionState.REPLACED),
        stage=(projection("f2"), made),
    )  # fmt: skip
    found = store.staged_projection(scribe.key)
    assert found is not None
    assert found[1] == made
    publish(scribe, made)
    assert [r.offset for r in store.archive(scribe.key, 0, 9)] == [6, 7, 9]


def test_h2_summaries_are_known_by_their_digest_or_text(store: Store) -> None:
    scribe, other = hosted(store), hosted(store, "other")
    publish(scribe, stage(scribe, "f1", [1, 2, 5]))
    stage(scribe, "f2", [6, 7])
    stage(other, "f3", [1, 2])
    names = ["digest f1", "digest f2", "digest f3"]
    assert [p.fold_id for p in store.issued_projections(scribe.key, names, [])] == ["f2", "f1"]
    assert [p.fold_id for p in store.issued_projections(scribe.key, [], ["text f1", "text f3"])] == ["f1"]
    scribe.commit(settle=Settled("pr-f2", ProjectionState.ABORTED))
    assert [p.fold_id for p in store.issued_projections(scribe.key, names, [])] == ["f1"]


def test_13_a_fold_that_is_staged_is_not_cut_off_by_a_restart(database: Database) -> None:
    store = database.open()
    scribe = hosted(store)
    made = stage(scribe, "f1", [1, 2, 5])
    scribe.commit(events=(event(EventKind.COMPACTION_STARTED, "f9"),))
    store = database.reopen()
    assert [e.fold_id for _, _, e in store.unfinished_folds()] == ["f9"]
    scribe.store = store
    found = store.staged_projection(scribe.key)
    assert found is not None
    assert found[1] == made
    publish(scribe, made)
    assert [e.fold_id for _, _, e in store.unfinished_folds()] == ["f9"]


def test_h3_time_runs_out(database: Database) -> None:
    store = database.open()
    scribe = hosted(store)
    stage(scribe, "f1", [1, 2, 5])
    database.clock.now = NOON + 59
    assert store.expired_projections() == []
    database.clock.now = NOON + 60
    assert store.expired_projections() == [("acme", "s", "pr-f1")]
    scribe.commit(settle=Settled("pr-f1", ProjectionState.EXPIRED))
    assert store.expired_projections() == []


def test_m7_a_dropped_scope_takes_no_memory_of_what_was_staged(store: Store) -> None:
    scribe = hosted(store)
    stage(scribe, "f1", [1, 2, 5])
    store.drop_scope(scribe.key)
    found = store.staged_projection(scribe.key)
    assert found is not None
    assert (found[0].entries, found[1].entries) == (0, ())
    publish(scribe, found[1])
    assert store.memory_ids(scribe.key, ALL) == []
    assert store.count_rows(scribe.key) == 3


def test_m7_nor_of_what_is_staged_later(store: Store) -> None:
    scribe = hosted(store)
    store.drop_scope(scribe.key)
    stage(scribe, "f1", [1, 2, 5])
    found = store.staged_projection(scribe.key)
    assert found is not None
    assert (found[0].entries, found[1].entries) == (0, ())


def test_delete_takes_projections_and_ids_along(database: Database) -> None:
    store = database.open()
    scribe, other = hosted(store), hosted(store, "other")
    publish(scribe, stage(scribe, "f1", [1, 2, 5]))
    stage(scribe, "f2", [6, 7])
    publish(other, stage(other, "f3", [1, 2]))
    store.delete_session(scribe.key)
    assert store.find_projection(scribe.key, "pr-f2") is None
    assert store.host_rows(scribe.key, ["m1"]) == []
    assert store.issued_projections(scribe.key, ["digest f1"], []) == []
    assert store.host_rows(other.key, ["m1"]) == [HostRow("m1", 0, 1)]


def test_an_import_knows_what_the_export_knew(store: Store) -> None:
    scribe = hosted(store)
    publish(scribe, stage(scribe, "f1", [1, 2, 5]))
    archive = store.export_session(scribe.key)
    assert archive.host_rows == (HostRow("m1", 0, 1), HostRow("m2", 0, 2))
    copy = store.import_session(replace(archive, session=replace(archive.session, key=0, session_id="copy")), None)
    assert store.host_rows(copy.key, ["m1", "m2"]) == list(archive.host_rows)
    found = store.find_projection(copy.key, "pr-f1")
    assert found is not None
    assert (found.state, found.summary_offset) == (ProjectionState.COMMITTED, 5)
    assert [p.fold_id for p in store.issued_projections(copy.key, ["d"], [])] == ["f1"]
