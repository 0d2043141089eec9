"""The active list at every revision (§1), against a plain list."""

from __future__ import annotations

from pathlib import Path

import pytest
from foldline.domain.enums import RevisionKind, RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.ports import Store
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.store.conftest import FACTORIES, Clock
from tests.contract.store.records import Scribe, record


def test_a_new_session_lists_nothing(store: Store) -> None:
    scribe = Scribe.create(store)
    assert store.active_offsets(scribe.key) == []
    assert store.active_offsets(scribe.key, 0) == []


def test_r5_a_row_stands_directly_behind_the_row_it_is_placed_at(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(2)
    scribe.append(3, places=[1, None, 3])
    assert store.active_offsets(scribe.key) == [1, 3, 5, 2, 4]
    scribe.append(1, places=[1])
    assert store.active_offsets(scribe.key) == [1, 6, 3, 5, 2, 4]
    scribe.append(2, places=[4])
    assert store.active_offsets(scribe.key) == [1, 6, 3, 5, 2, 4, 7, 8]
    assert [store.active_offsets(scribe.key, r) for r in (1, 2)] == [[1, 2], [1, 3, 5, 2, 4]]


def test_rows_appended_under_a_fold_stand_where_its_list_puts_them(store: Store) -> None:
    """V9: rows that came between snapshot and commit follow at the end; rows after the fold follow these."""
    scribe = Scribe.create(store)
    scribe.append(4)
    scribe.append(1)
    scribe.rewrite([6, 4, 5], RevisionKind.FOLD, rows=1, record=record("f", [1, 2, 3], 3))
    scribe.append(2)
    assert store.active_offsets(scribe.key) == [6, 4, 5, 7, 8]
    assert store.active_offsets(scribe.key, 2) == [1, 2, 3, 4, 5]
    assert store.active_offsets(scribe.key, 3) == [6, 4, 5]


@pytest.mark.parametrize("revision", [-1, 4, 2**40])
def test_a_revision_that_is_not_there_is_named_with_the_newest(store: Store, revision: int) -> None:
    scribe = Scribe.create(store)
    for _ in range(3):
        scribe.append()
    with pytest.raises(FoldlineError) as refused:
        store.active_offsets(scribe.key, revision)
    assert refused.value.reason == Reason.REVISION_NOT_FOUND
    assert refused.value.metadata == {"revision": str(revision), "newest": "3"}


def test_columns_stand_in_list_order(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(3)
    scribe.rewrite([4, 1, 3], RevisionKind.FOLD, rows=1)
    scribe.append(1, places=[1])
    assert store.active_columns(scribe.key) == [(o, RowKind.USER, "", 10, 100) for o in (4, 1, 5, 3)]


def test_rewrites_come_back_whole_and_page_by_revision(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(3)
    made = record("f", [1, 2], 2)
    scribe.rewrite([4, 3], RevisionKind.FOLD, rows=1, record=made)
    scribe.rewrite([1, 2, 3], RevisionKind.RESTORE, parent=1, note="undone")
    created, fold, restore = store.rewrites(scribe.key, -1, 10)
    assert created.kind == RevisionKind.CREATED
    assert (fold.revision, fold.parent_revision, fold.active, fold.record) == (2, 1, ((4, 4), (3, 3)), made)
    assert (restore.kind, restore.parent_revision, restore.active) == (RevisionKind.RESTORE, 1, ((1, 3),))
    assert (restore.note, restore.digest, restore.time, restore.record) == ("undone", "digest 3", 2.5, None)
    assert store.rewrites(scribe.key, 0, 1) == [fold]
    assert store.rewrites(scribe.key, 2, 10) == [restore]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=4)),
        st.tuples(st.just("rewrite"), st.tuples(st.randoms(use_true_random=False), st.integers(0, 2))),
        st.tuples(st.just("restore"), st.integers(0, 50)),
    ),
    max_size=12,
)


@pytest.mark.parametrize("factory", sorted(FACTORIES))
@given(histories=st.lists(steps, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_every_revision_lists_what_a_plain_list_held(
    factory: str, tmp_path_factory: pytest.TempPathFactory, histories: list[list[tuple[str, object]]]
) -> None:
    """Any history of appends, edits and restores, in sessions that are written in turns."""
    directory: Path = tmp_path_factory.mktemp("store")
    store = FACTORIES[factory](directory)(Clock())
    try:
        scribes = [Scribe.create(store, f"s{i}") for i in range(len(histories))]
        lists: list[list[list[int]]] = [[[]] for _ in histories]
        for turn in range(max(map(len, histories))):
            for scribe, history, held in zip(scribes, histories, lists, strict=True):
                if turn < len(history):
                    _step(scribe, held, *history[turn])
                    held.append(list(scribe.active))
        for scribe, held in zip(scribes, lists, strict=True):
            assert [store.active_offsets(scribe.key, r) for r in range(len(held))] == held
            assert store.active_offsets(scribe.key) == held[-1]
            assert [c[0] for c in store.active_columns(scribe.key)] == held[-1]
    finally:
        store.close()


def _step(scribe: Scribe, held: list[list[int]], what: str, how: object) -> None:
    if what == "append":
        places = [scribe.active[p % len(scribe.active)] if p is not None and scribe.active else None for p in how]
        scribe.append(len(places), places=places)
    elif what == "rewrite":
        random, rows = how
        kept = [offset for offset in scribe.active if random.random() < 0.6]
        new = list(range(scribe.session.next_offset, scribe.session.next_offset + rows))
        for offset in new:
            kept.insert(random.randint(0, len(kept)), offset)
        scribe.rewrite(kept, rows=rows)
    else:
        scribe.rewrite(held[how % len(held)], RevisionKind.RESTORE, parent=how % len(held))
