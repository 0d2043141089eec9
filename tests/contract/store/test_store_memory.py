"""Memory entries: shown as the lineage says (M2), searched (M4), embedded (M8, M9), dropped (M7)."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import EntryKind, EntryRole, EventKind, RevisionKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import to_ranges
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import Store
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.store.conftest import FACTORIES, Clock, Database
from tests.contract.store.records import Scribe, entry, event, record

ALL = MemoryFilter()


def shown(store: Store, key: int, where: MemoryFilter = ALL) -> list[tuple[int, int]]:
    """(offset, chunk) of the entries that pass."""
    entries = store.memory_entries(key, store.memory_ids(key, where))
    return [(e.entry.offset, e.entry.chunk) for e in entries]


def found(store: Store, key: int, *terms: str, where: MemoryFilter = ALL, limit: int = 100) -> list[int]:
    """Offsets a search finds, best first."""
    ids = [entry_id for entry_id, _ in store.search_lexical(key, terms, where, limit)]
    return [e.entry.offset for e in store.memory_entries(key, ids)]


def published(store: Store, session_id: str = "s", *entries: object, rows: int = 9) -> Scribe:
    scribe = Scribe.create(store, session_id)
    scribe.append(rows)
    scribe.rewrite([rows], RevisionKind.FOLD, publish=entries)
    return scribe


def test_every_field_of_an_entry_comes_back(database: Database) -> None:
    full = entry(
        3, 1, "Whole text", kind=EntryKind.TOOL_CALL, role=EntryRole.TOOL, terms="whole text", context="before after",
        byte_start=5, byte_end=15, call_id="c", create_time="2026-01-02T03:04:05.000Z",
    )  # fmt: skip
    scribe = published(database.open(), "s", full)
    store = database.reopen()
    (stored,) = store.memory_at(scribe.key, 3)
    assert stored.entry == full
    assert store.memory_entries(scribe.key, [stored.id]) == [stored]
    assert store.enumerate_memory(scribe.key, ALL, (0, 0), 10) == [stored]
    assert store.pending_vectors("m", 10) == [(scribe.key, stored)]


def test_m2_entries_show_with_the_commit_that_publishes_them(store: Store) -> None:
    scribe = published(store, "s", entry(2, 1), entry(2, 0), entry(1))
    assert shown(store, scribe.key) == [(1, 0), (2, 0), (2, 1)]
    assert store.visible_offsets(scribe.key) == {1, 2}
    assert store.memory_count(scribe.key, "m") == (3, 3)


def test_m2_a_restore_hides_and_a_later_fold_shows_again_without_doubling(store: Store) -> None:
    scribe = published(store, "s", entry(1, 0, "alpha"), entry(2, 0, "alpha"), entry(2, 1, "alpha"))
    ids = store.memory_ids(scribe.key, ALL)
    scribe.rewrite([1, 9], RevisionKind.RESTORE, visible=((2, 2),))
    assert shown(store, scribe.key) == [(2, 0), (2, 1)]
    assert found(store, scribe.key, "alpha") == [2, 2]
    assert store.memory_entries(scribe.key, ids) == [*store.memory_at(scribe.key, 2)]
    assert [e.entry.offset for e in store.memory_at(scribe.key, 1)] == [1]

    scribe.rewrite([9], RevisionKind.FOLD, publish=(entry(1, 0, "alpha"), entry(3, 0, "alpha")))
    assert shown(store, scribe.key) == [(1, 0), (2, 0), (2, 1), (3, 0)]
    assert store.memory_ids(scribe.key, ALL)[:3] == ids
    assert sorted(found(store, scribe.key, "alpha")) == [1, 2, 2, 3]


def test_m2_a_row_cut_otherwise_shows_the_entries_it_had(store: Store) -> None:
    scribe = published(store, "s", entry(1, 0, "one two"), entry(1, 1, "three"))
    scribe.rewrite(scribe.active, RevisionKind.RESTORE, visible=())
    assert shown(store, scribe.key) == []
    scribe.rewrite([9], RevisionKind.FOLD, publish=(entry(1, 0, "one two three"),))
    assert [e.entry.text for e in store.memory_at(scribe.key, 1)] == ["one two", "three"]
    assert shown(store, scribe.key) == [(1, 0), (1, 1)]


def test_m2_exactly_the_named_offsets_show(store: Store) -> None:
    scribe = published(store, "s", *(entry(o) for o in range(1, 9)))
    scribe.commit(visible=((7, 8), (2, 3)))
    assert store.visible_offsets(scribe.key) == {2, 3, 7, 8}
    scribe.commit(visible=((1, 1000),))
    assert store.visible_offsets(scribe.key) == set(range(1, 9))
    scribe.commit(visible=())
    assert store.visible_offsets(scribe.key) == set()


def test_m1_a_search_stays_in_its_session(store: Store) -> None:
    one = published(store, "one", entry(1, 0, "needle hay"))
    two = published(store, "two", entry(2, 0, "needle straw"))
    assert found(store, one.key, "needle") == [1]
    assert found(store, two.key, "needle") == [2]
    assert found(store, one.key, "straw") == []
    (theirs,) = store.memory_ids(two.key, ALL)
    assert store.memory_entries(one.key, [theirs]) == []
    store.put_vectors("m", [(theirs, b"\0" * 8)])
    assert store.memory_vectors(one.key, "m", [theirs]) == []


def test_m1_scores_do_not_depend_on_other_sessions(store: Store) -> None:
    one = published(store, "one", entry(1, 0, "common rare"), entry(2, 0, "common"), entry(3, 0, "other words"))
    before = store.search_lexical(one.key, ["common", "rare"], ALL, 10)
    published(store, "two", *(entry(o, 0, "rare " * o) for o in range(1, 9)))
    assert store.search_lexical(one.key, ["common", "rare"], ALL, 10) == before


def test_m4_terms_are_stemmed_and_ored_and_own_words_outweigh_context(store: Store) -> None:
    scribe = published(
        store, "s",
        entry(1, 0, "the parser was rewritten"),
        entry(2, 0, "unrelated matter here", context="the parser was rewritten"),
        *(entry(offset, 0, "nothing of the kind at all") for offset in (3, 4, 5, 6)),
    )  # fmt: skip
    assert found(store, scribe.key, "parsers") == [1, 2]
    assert found(store, scribe.key, "unrelated", "kinds") == [2, 3, 4, 5, 6]
    assert found(store, scribe.key, "rewritten", limit=1) == [1]
    assert found(store, scribe.key, "absent") == []
    assert found(store, scribe.key) == []
    scores = [score for _, score in store.search_lexical(scribe.key, ["parser"], ALL, 10)]
    assert scores[0] > scores[1] > 0


@pytest.mark.parametrize(
    "text",
    ['"', 'a" OR "b', "NEAR(a b)", "terms:x", "a*", "^a", "-a", "(", "", "   ", "'; --", "AND", "\x00", "😀", "{"],
)
def test_m4_no_text_is_query_syntax(store: Store, text: str) -> None:
    scribe = published(store, "s", entry(1, 0, "plain words"))
    assert found(store, scribe.key, text) == []
    assert found(store, scribe.key, text, "plain") == [1]


@pytest.mark.parametrize("term", ["getuser", "srcapppy", "x86", "हिन्दी", "ไทย", "日本", "café", "0x7f"])
def test_m4_a_term_is_matched_whole_in_every_script(store: Store, term: str) -> None:
    scribe = published(store, "s", entry(1, 0, f"before {term} after"), entry(2, 0, "before after"))
    assert found(store, scribe.key, term) == [1]


def test_m4_equal_scores_come_by_id(store: Store) -> None:
    scribe = published(store, "s", *(entry(o, 0, "same words") for o in (5, 3, 1, 2, 4)))
    hits = store.search_lexical(scribe.key, ["same"], ALL, 10)
    assert [entry_id for entry_id, _ in hits] == sorted(entry_id for entry_id, _ in hits)
    assert store.search_lexical(scribe.key, ["same"], ALL, 2) == hits[:2]


TIMES = ("2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z", "2026-01-03T00:00:00.000Z")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (MemoryFilter(), [1, 2, 3, 4]),
        (MemoryFilter(roles=(EntryRole.ASSISTANT,)), [2]),
        (MemoryFilter(roles=(EntryRole.ASSISTANT, EntryRole.TOOL)), [2, 3]),
        (MemoryFilter(kinds=(EntryKind.TOOL_RESULT,)), [3]),
        (MemoryFilter(first_offset=2, last_offset=3), [2, 3]),
        (MemoryFilter(first_offset=4), [4]),
        (MemoryFilter(last_offset=0), []),
        (MemoryFilter(after_time=TIMES[1]), [2, 3]),
        (MemoryFilter(before_time=TIMES[1]), [1, 2]),
        (MemoryFilter(after_time=TIMES[1], before_time=TIMES[1]), [2]),
        (MemoryFilter(roles=(EntryRole.USER,), after_time=TIMES[0]), [1]),
    ],
)
def test_m4_filters(store: Store, where: MemoryFilter, expected: list[int]) -> None:
    scribe = published(
        store, "s",
        entry(1, 0, "word", create_time=TIMES[0]),
        entry(2, 0, "word", create_time=TIMES[1], role=EntryRole.ASSISTANT),
        entry(3, 0, "word", create_time=TIMES[2], role=EntryRole.TOOL, kind=EntryKind.TOOL_RESULT),
        entry(4, 0, "word"),
    )  # fmt: skip
    assert [o for o, _ in shown(store, scribe.key, where)] == expected
    assert found(store, scribe.key, "word", where=where) == expected
    assert [e.entry.offset for e in store.enumerate_memory(scribe.key, where, (0, 0), 10)] == expected


def test_m7_enumeration_pages_by_offset_and_chunk_after_filtering(store: Store) -> None:
    entries = [entry(o, c, role=EntryRole.USER if o % 2 else EntryRole.TOOL) for o in range(1, 9) for c in range(3)]
    scribe = published(store, "s", *reversed(entries))
    users = MemoryFilter(roles=(EntryRole.USER,))
    pages: list[list[tuple[int, int]]] = []
    after = (0, 0)
    while page := store.enumerate_memory(scribe.key, users, after, 5):
        pages.append([(e.entry.offset, e.entry.chunk) for e in page])
        after = pages[-1][-1]
    assert [len(page) for page in pages] == [5, 5, 2]
    assert [each for page in pages for each in page] == [(o, c) for o in (1, 3, 5, 7) for c in range(3)]


def test_m8_entries_are_pending_until_their_vector_comes(store: Store) -> None:
    scribe, other = published(store, "s", entry(1), entry(2)), published(store, "t", entry(3))
    assert [(key, e.entry.offset) for key, e in store.pending_vectors("m", 10)] == [
        (scribe.key, 1), (scribe.key, 2), (other.key, 3),
    ]  # fmt: skip
    assert len(store.pending_vectors("m", 2)) == 2
    first, second = store.memory_ids(scribe.key, ALL)
    store.put_vectors("m", [(first, b"\1\2\3\4"), (10**9, b"\0\0\0\0")])
    assert store.memory_vectors(scribe.key, "m") == [(first, b"\1\2\3\4")]
    assert store.memory_vectors(scribe.key, "m", [second, first]) == [(first, b"\1\2\3\4")]
    assert store.memory_vectors(scribe.key, "m", [second]) == [] == store.memory_vectors(scribe.key, "unknown")
    assert store.memory_count(scribe.key, "m") == (2, 1)
    assert [e.entry.offset for _, e in store.pending_vectors("m", 10)] == [2, 3]


def test_m8_another_embedder_finds_everything_pending_and_the_old_vectors_still_there(store: Store) -> None:
    scribe = published(store, "s", entry(1), entry(2), entry(3))
    ids = store.memory_ids(scribe.key, ALL)
    store.put_vectors("old", [(ids[0], b"old0"), (ids[1], b"old1")])
    assert store.memory_count(scribe.key, "new") == (3, 3)
    assert [e.id for _, e in store.pending_vectors("new", 10)] == [ids[2], ids[0], ids[1]]
    assert [e.id for _, e in store.pending_vectors("new", 2)] == [ids[2], ids[0]]
    store.put_vectors("new", [(ids[1], b"new1")])
    assert store.memory_vectors(scribe.key, "old") == [(ids[0], b"old0")]
    assert store.memory_vectors(scribe.key, "new") == [(ids[1], b"new1")]
    assert store.memory_count(scribe.key, "new") == (3, 2)
    assert [e.id for _, e in store.pending_vectors("old", 10)] == [ids[2], ids[1]]


def test_m8_hidden_entries_are_embedded_too_but_not_counted(store: Store) -> None:
    scribe = published(store, "s", entry(1), entry(2))
    (first, second) = store.memory_ids(scribe.key, ALL)
    scribe.commit(visible=((2, 2),))
    assert [e.id for _, e in store.pending_vectors("m", 10)] == [first, second]
    assert store.memory_count(scribe.key, "m") == (1, 1)
    store.put_vectors("m", [(first, b"\0\0\0\0")])
    assert store.memory_vectors(scribe.key, "m") == [] == store.memory_vectors(scribe.key, "m", [first])
    assert store.memory_count(scribe.key, "m") == (1, 1)


def test_m9_a_quarantined_entry_is_no_longer_pending(store: Store) -> None:
    scribe = published(store, "s", entry(1, 0, "bad"))
    (only,) = store.memory_ids(scribe.key, ALL)
    store.put_vectors("m", [(only, b"")])
    assert store.memory_count(scribe.key, "m") == (1, 0)
    assert store.pending_vectors("m", 10) == []
    assert store.memory_vectors(scribe.key, "m") == [(only, b"")]
    assert found(store, scribe.key, "bad") == [1]


def test_m7_a_dropped_scope_is_empty_and_closed_for_good(database: Database) -> None:
    store = database.open()
    scribe, other = published(store, "s", entry(1, 0, "word")), published(store, "t", entry(1, 0, "word"))
    ids = store.memory_ids(scribe.key, ALL)
    store.put_vectors("m", [(ids[0], b"\0\0\0\0")])
    assert store.drop_scope(scribe.key) == 1
    assert store.load_session("acme", "s").memory_dropped

    # The fold raced the drop: its state does not know of it.
    assert not scribe.session.memory_dropped
    started = event(EventKind.COMPACTION_STARTED, "f")
    ended = event(EventKind.COMPACTION_COMPLETED, "f", record=record("f", [2], 3, memory_entries=1))
    told = scribe.rewrite(
        [9], RevisionKind.FOLD, record=ended.record, publish=(entry(2, 0, "word"),), events=(started, ended)
    )
    assert (told[1].record.memory_entries, told[1].record.memory_dropped) == (0, True)
    assert store.events(scribe.key, 0, 10) == list(told)
    assert store.rewrites(scribe.key, 2, 1)[0].record == told[1].record

    store = database.reopen()
    assert store.memory_ids(scribe.key, ALL) == [] == found(store, scribe.key, "word")
    assert store.memory_vectors(scribe.key, "m") == [] == store.memory_at(scribe.key, 1)
    assert store.memory_count(scribe.key, "m") == (0, 0)
    assert store.load_session("acme", "s").memory_dropped
    store.put_vectors("m", [(ids[0], b"\0\0\0\0")])
    assert [key for key, _ in store.pending_vectors("m", 10)] == [other.key]
    assert found(store, other.key, "word") == [1]
    assert not store.load_session("acme", "t").memory_dropped
    assert store.count_rows(scribe.key) == 9
    assert store.drop_scope(scribe.key) == 0


def test_m7_there_is_no_scope_without_a_session(store: Store) -> None:
    with pytest.raises(FoldlineError) as refused:
        store.drop_scope(4711)
    assert refused.value.reason == Reason.SESSION_NOT_FOUND


@pytest.mark.parametrize("factory", sorted(FACTORIES))
@given(steps=st.lists(st.tuples(st.booleans(), st.sets(st.integers(1, 12), max_size=12)), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_m2_what_shows_is_what_was_published_or_named_last(
    factory: str, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, set[int]]]
) -> None:
    """Any sequence of publishing and of naming what shows: entries, search and counts agree with two sets."""
    store = FACTORIES[factory](tmp_path_factory.mktemp("store"))(Clock())
    try:
        scribe = Scribe.create(store)
        scribe.append(12)
        known: set[int] = set()
        visible: set[int] = set()
        for publishes, offsets in steps:
            if publishes:
                scribe.commit(publish=tuple(entry(o, c, "word") for o in sorted(offsets) for c in (0, 1)))
                known |= offsets
                visible |= offsets
            else:
                scribe.commit(visible=to_ranges(tuple(sorted(offsets))))
                visible = known & offsets
            expected = [(o, c) for o in sorted(visible) for c in (0, 1)]
            assert shown(store, scribe.key) == expected
            assert sorted(found(store, scribe.key, "word")) == [o for o, _ in expected]
            assert store.memory_count(scribe.key, "m")[0] == len(expected)
            assert store.visible_offsets(scribe.key) == visible
            assert [len(store.memory_at(scribe.key, o)) for o in range(1, 13)] == [
                2 * (o in known) for o in range(1, 13)
            ]
    finally:
        store.close()


def test_an_entry_may_be_replaced_nowhere(store: Store) -> None:
    """An entry's text is its row's, and rows never change: publishing other text for a known offset shows the first."""
    scribe = published(store, "s", entry(1, 0, "first"))
    scribe.commit(publish=(replace(entry(1, 0, "second")),))
    assert [e.entry.text for e in store.memory_at(scribe.key, 1)] == ["first"]
    assert found(store, scribe.key, "second") == []
