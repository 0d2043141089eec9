"""Search over folded rows in a real store (§10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import EntryKind, EntryRole, MemoryFusion
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter, MemoryQuery
from foldline.domain.ports import Batch
from foldline.memory import MemoryService, ScopeCache, row_text
from foldline.store import SqliteStore

from tests.unit.memory.scopes import (
    HashedWords,
    calls,
    fold,
    new_session,
    result,
    says,
    show_only,
    texts,
    user,
    words,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "foldline.db", synchronous="NORMAL")
    yield store
    store.close()


@pytest.fixture
def embedder() -> HashedWords:
    return HashedWords()


@pytest.fixture(params=["words alone", "with an embedder"])
def memory(request: pytest.FixtureRequest, store: SqliteStore, embedder: HashedWords) -> Iterator[MemoryService]:
    memory = MemoryService(
        store, (lambda: embedder) if "embedder" in request.param else None, ScopeCache(1 << 20), words
    )
    memory.start()
    yield memory
    memory.stop()


TALK = [
    user("The parrot is called Hugo and likes walnuts."),
    says("Noted, I shall remember walnuts."),
    user("Our release is on the fourteenth of March."),
    calls("c1", "read_file", '{"path":"src/app/main_loop.py"}'),
    result("c1", "def run_main_loop(config): raise ConfigError('E-1234')", 4),
    says("The function raises when the configuration is missing."),
]


def test_a_folded_row_is_found_and_points_back_to_its_bytes(store: SqliteStore, memory: MemoryService) -> None:
    session = fold(store, memory, new_session(store), TALK)
    hit = memory.search(session, MemoryQuery("which nuts does the parrot like?")).hits[0]
    assert (hit.entry.offset, hit.entry.role) == (1, EntryRole.USER)
    assert row_text(TALK[0]).encode()[hit.entry.byte_start : hit.entry.byte_end].decode() == hit.entry.text
    assert 0 < hit.score <= 1
    assert 0 < hit.lexical <= 1


@pytest.mark.parametrize("question", ["src/app/main_loop.py", "main_loop.py", "mainLoop", "app/main_loop", "read_file"])
def test_identifiers_are_found_whole_and_in_parts(store: SqliteStore, memory: MemoryService, question: str) -> None:
    """M4"""
    session = fold(store, memory, new_session(store), [*TALK, *(user(f"Small talk number {i}") for i in range(20))])
    assert any("main_loop" in text for text in texts(memory, session, question, limit=2))


def test_an_error_code_is_found(store: SqliteStore, memory: MemoryService) -> None:
    session = fold(store, memory, new_session(store), TALK)
    assert "E-1234" in texts(memory, session, "what was E-1234 about")[0]


def test_search_never_leaves_its_session(store: SqliteStore, memory: MemoryService) -> None:
    """M1: not even with the same id under another tenant."""
    mine = fold(store, memory, new_session(store, "s", "a"), [user("my secret is a purple whale")])
    other = fold(store, memory, new_session(store, "s", "b"), [user("the weather is fine")])
    empty = new_session(store, "s2", "a")
    memory.settle(10)
    assert texts(memory, mine, "purple whale") == ["my secret is a purple whale"]
    assert "my secret is a purple whale" not in texts(memory, other, "purple whale", limit=20)
    assert texts(memory, empty, "purple whale") == []


def test_restored_rows_leave_memory_and_come_back_once(store: SqliteStore, memory: MemoryService) -> None:
    """M2"""
    session = fold(store, memory, new_session(store), TALK)
    memory.wake()
    assert memory.settle(10)
    assert len(texts(memory, session, "parrot walnuts", limit=20)) > 0
    session = show_only(store, session, ((3, 3),))
    assert texts(memory, session, "parrot walnuts Hugo release", limit=20) == [row_text(TALK[2])]
    session = show_only(store, session, ())
    assert texts(memory, session, "parrot walnuts Hugo release", limit=20) == []
    session = show_only(store, session, ((1, 6),))
    found = texts(memory, session, "parrot walnuts Hugo release", limit=20)
    assert len(found) == len(set(found))
    assert row_text(TALK[0]) in found


def test_what_a_later_fold_publishes_joins_the_scope(store: SqliteStore, memory: MemoryService) -> None:
    session = fold(store, memory, new_session(store), TALK)
    memory.settle(10)
    texts(memory, session, "parrot")
    session = fold(store, memory, session, [user("The hamster is called Ida.")])
    memory.wake()
    memory.settle(10)
    assert texts(memory, session, "what is the hamster called", limit=1) == ["The hamster is called Ida."]
    assert row_text(TALK[0]) in texts(memory, session, "parrot", limit=1)


def test_who_is_asked_about_comes_first(store: SqliteStore, memory: MemoryService) -> None:
    """M4: of two rows that say the same, the one of the speaker whom the query names."""
    rows = [user("Ann: My favourite food is plum cake"), user("Bob: My favourite food is cherry cake")]
    session = fold(store, memory, new_session(store), [*rows, *(says(f"Small talk {i}") for i in range(9))])
    memory.settle(10)
    assert texts(memory, session, "What food does Ann like?")[0] == row_text(rows[0])
    assert texts(memory, session, "What food does Bob like?")[0] == row_text(rows[1])


@pytest.mark.parametrize("limit", [0, -1, 21, 1000])
def test_limits_out_of_range_name_the_range(store: SqliteStore, memory: MemoryService, limit: int) -> None:
    """M5"""
    with pytest.raises(FoldlineError) as caught:
        memory.search(new_session(store), MemoryQuery("x", limit=limit))
    assert caught.value.reason == Reason.MEMORY_LIMIT_EXCEEDED
    assert "1-20" in caught.value.message
    assert caught.value.metadata == {"limit": str(limit), "minimum": "1", "maximum": "20"}


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_query_is_an_error(store: SqliteStore, memory: MemoryService, text: str) -> None:
    """M5"""
    with pytest.raises(FoldlineError) as caught:
        memory.search(new_session(store), MemoryQuery(text))
    assert caught.value.reason == Reason.EMPTY_QUERY


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (MemoryQuery("x", min_score=1.5), "min_score"),
        (MemoryQuery("x", min_score=float("nan")), "min_score"),
        (MemoryQuery("x", max_tokens=0), "max_tokens"),
        (MemoryQuery("x", filter=MemoryFilter(after_time="yesterday")), "filter.after_time"),
    ],
)
def test_values_out_of_range_are_named(
    store: SqliteStore, memory: MemoryService, query: MemoryQuery, field: str
) -> None:
    with pytest.raises(FoldlineError) as caught:
        memory.search(new_session(store), query)
    assert caught.value.reason == Reason.FIELD_VALIDATION
    assert caught.value.metadata["field"] == field


def test_the_default_limit_is_five(store: SqliteStore, memory: MemoryService) -> None:
    """M5"""
    session = fold(store, memory, new_session(store), [user(f"walnut {i}") for i in range(30)])
    assert len(texts(memory, session, "walnut")) == 5
    assert len(texts(memory, session, "walnut", limit=20)) == 20


HOSTILE = [
    '"', "'", '"unbalanced', "a AND", "OR", "NOT x", "NEAR(a b)", "terms: x", "scope : s1", "{terms} : walnut",
    "^walnut", "walnut*", "a - b", "(((", ";DROP TABLE memory_entry;--", "\0", "wal\0nut", "😀",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u202e", "ａｂｃ", "\ufeff", "é" * 1000, "walnut " * 15_000,
    "x" * 100_000, "\n" * 100_000 + "walnut", "%s %d {} \\", "\ud7ff\U0010ffff",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=[ascii(text[:12]) for text in HOSTILE])
def test_no_query_text_is_syntax_or_fails(store: SqliteStore, memory: MemoryService, text: str) -> None:
    session = fold(store, memory, new_session(store), TALK)
    other = fold(store, memory, new_session(store, "other"), [user("walnut s1")])
    memory.settle(10)
    hits = memory.search(session, MemoryQuery(text, limit=20)).hits
    assert all(hit.entry.text in {row_text(body) for body in TALK} for hit in hits)
    if "walnut" in text.split():
        assert hits
        assert memory.search(other, MemoryQuery(text)).hits[0].entry.text == "walnut s1"


def test_filters_restrict_every_ranking(store: SqliteStore, memory: MemoryService) -> None:
    """M4"""
    rows = [
        user("walnut one", "2025-01-01T10:00:00Z"),
        says("walnut two", "2025-01-02T10:00:00.5Z"),
        calls("c", "walnut", "{}"),
        result("c", "walnut four"),
    ]
    session = fold(store, memory, new_session(store), rows)
    memory.settle(10)

    def found(**restrictions: object) -> list[int]:
        answer = memory.search(session, MemoryQuery("walnut", filter=MemoryFilter(**restrictions)))  # type: ignore[arg-type]
        return sorted(hit.entry.offset for hit in answer.hits)

    assert found() == [1, 2, 3, 4]
    assert found(roles=(EntryRole.USER, EntryRole.TOOL)) == [1, 4]
    assert found(kinds=(EntryKind.TOOL_CALL,)) == [3]
    assert found(first_offset=2, last_offset=3) == [2, 3]
    assert found(after_time="2025-01-02T11:00:00.5+01:00") == [2]
    assert found(before_time="2025-01-01T10:00:00Z") == [1]
    assert found(roles=(EntryRole.ASSISTANT,), first_offset=3) == [3]


def test_equal_texts_are_one_hit(store: SqliteStore, memory: MemoryService) -> None:
    """M4: a file that was read three times does not crowd out the rest."""
    rows = [*(result(f"c{i}", "walnut  config\nfile") for i in range(3)), user("the walnut question")]
    session = fold(store, memory, new_session(store), rows)
    memory.settle(10)
    found = texts(memory, session, "walnut config file", limit=20)
    assert found == ["walnut  config\nfile", "the walnut question"]


def test_the_score_floor_cuts_the_weak(store: SqliteStore, memory: MemoryService) -> None:
    """M4: the score of what the query barely touches is low however good it is among its like."""
    session = fold(store, memory, new_session(store), TALK)
    memory.settle(10)
    assert texts(memory, session, "parrot Hugo walnuts", min_score=0.45)[0] == row_text(TALK[0])
    assert texts(memory, session, "quantum chromodynamics walnuts lattice", min_score=0.45) == []
    scores = [hit.score for hit in memory.search(session, MemoryQuery("parrot walnuts release", limit=20)).hits]
    assert scores == sorted(scores, reverse=True)


def test_the_token_budget_bounds_the_answer(store: SqliteStore, memory: MemoryService) -> None:
    """M4: hits while they fit; one that alone exceeds the budget is cut, its byte range with it."""
    body = user("walnut " + "filler " * 40)
    session = fold(store, memory, new_session(store), [body, *(user(f"walnut cake {i}") for i in range(9))])
    memory.settle(10)
    hits = memory.search(session, MemoryQuery("walnut cake", limit=20, max_tokens=20)).hits
    assert len(hits) == 6
    (hit,) = memory.search(session, MemoryQuery("filler", max_tokens=10)).hits
    assert words(hit.entry.text) == 10
    cut = row_text(body).encode()[hit.entry.byte_start : hit.entry.byte_end].decode()
    assert cut == hit.entry.text


def test_neighbours_come_on_request_and_within_the_budget(store: SqliteStore, memory: MemoryService) -> None:
    """M6"""
    session = fold(store, memory, new_session(store), [user("alpha before"), user("walnut"), user("omega after")])
    memory.settle(10)

    def hit(**options: object):
        return memory.search(session, MemoryQuery("walnut", limit=1, **options)).hits[0]  # type: ignore[arg-type]

    assert (hit().before, hit().after) == ("", "")
    found = hit(include_neighbors=True)
    assert (found.before, found.entry.text, found.after) == ("alpha before", "walnut", "omega after")
    tight = hit(include_neighbors=True, max_tokens=3)
    assert (tight.before, tight.after) == ("alpha before", "")


def test_a_dropped_scope_says_so(store: SqliteStore, memory: MemoryService) -> None:
    """M7"""
    session = fold(store, memory, new_session(store), TALK)
    memory.settle(10)
    texts(memory, session, "parrot")
    store.drop_scope(session.key)
    dropped = store.load_session(session.tenant, session.session_id)
    assert dropped is not None
    answer = memory.search(dropped, MemoryQuery("parrot"))
    assert (answer.hits, answer.scope_dropped) == ((), True)
    assert texts(memory, session, "parrot") == [], "a search that loaded its session before the drop finds nothing"


def test_both_fusions_answer(store: SqliteStore, memory: MemoryService) -> None:
    session = fold(store, memory, new_session(store), TALK)
    memory.settle(10)
    for fusion in MemoryFusion:
        answer = memory.search(session, MemoryQuery("parrot Hugo", fusion=fusion))
        assert answer.hits[0].entry.text == row_text(TALK[0])
        assert all(0 < hit.score <= 1 for hit in answer.hits)


def test_a_session_loaded_before_a_fold_still_answers(store: SqliteStore, memory: MemoryService) -> None:
    before = fold(store, memory, new_session(store), [user("walnut")])
    fold(store, memory, before, [user("walnut cake")])
    memory.settle(10)
    assert set(texts(memory, replace(before), "walnut")) == {"walnut", "walnut cake"}


def test_m2_a_search_that_a_change_overtook_leaves_nothing_stale_behind(
    store: SqliteStore, memory: MemoryService
) -> None:
    """A host's list takes rows back and lets go of them again: the session is as it was, not what was read between."""
    before = fold(store, memory, new_session(store), TALK)
    everything = set(texts(memory, before, "parrot release function", limit=20))
    memory.forget(before.key)
    between = replace(before, again=((1, 2),))
    store.commit(Batch(before.revision, between, visible=((3, 6),)))
    assert len(texts(memory, before, "parrot release function", limit=20)) < len(everything)
    store.commit(Batch(between.revision, before, visible=((1, 6),)))
    assert set(texts(memory, before, "parrot release function", limit=20)) == everything
