"""What a query says beside its words, and what only a text tells, in a real store (M4); and M1 for all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from foldline.domain.memory import MemoryFilter, MemoryQuery
from foldline.domain.rows import RowBody
from foldline.domain.session import Session
from foldline.memory import MemoryService, ScopeCache
from foldline.memory.questions import read
from foldline.memory.ranking import REPEATED
from foldline.store import SqliteStore
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory.scopes import HashedWords, fold, new_session, result, says, texts, user, words


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


def folded(store: SqliteStore, memory: MemoryService, *rows: RowBody) -> Session:
    session = fold(store, memory, new_session(store), rows)
    memory.wake()
    assert memory.settle(10)
    return session


FILLER = [says(f"Remark {i} on the weather", f"2023-09-{i + 1:02}T10:00:00Z") for i in range(12)]


def test_the_day_that_a_query_names_decides_between_equals(store: SqliteStore, memory: MemoryService) -> None:
    """M4: also where the year is left out, and with the days around it next."""
    trips = [user(f"We went to the {place} together", f"2023-{day}T18:00:00Z") for place, day in (
        ("lake", "05-08"), ("coast", "06-20"), ("hills", "05-10"), ("woods", "07-01"))]  # fmt: skip
    session = folded(store, memory, *trips, *FILLER)
    for question in ("Where did we go on 8 May 2023?", "Where did we go on May 8th?", "where did we go on 2023-05-08"):
        found = [text.split()[4] for text in texts(memory, session, question, limit=20) if text.startswith("We went")]
        assert found[0] == "lake"
        assert found.index("hills") < min(found.index("coast"), found.index("woods"))


def test_a_day_in_iso_form_finds_what_was_said_on_it(store: SqliteStore, memory: MemoryService) -> None:
    """M4: entries hold their day as people write it; the numbers of an ISO date are those of much else."""
    rows = [
        user("The nightly job starts at 05:08 and 08:05 sharp", "2023-05-20T09:00:00Z"),
        user("We went to the lake together", "2023-05-08T09:00:00Z"),
        user("The build of 2023-06-11 is broken", "2023-06-20T09:00:00Z"),
    ]
    session = folded(store, memory, *rows, *FILLER)
    assert texts(memory, session, "2023-05-08", limit=1) == ["We went to the lake together"]
    assert texts(memory, session, "build of 2023-06-11", limit=1) == ["The build of 2023-06-11 is broken"]


def test_a_text_that_tells_of_the_day_is_found_from_another_day(store: SqliteStore, memory: MemoryService) -> None:
    """M4: ``yesterday`` is the day before the row."""
    rows = [
        user(f"The certificate expired again {when}", f"2023-05-{day}T09:00:00Z")
        for day, when in ((12, "today"), (21, "this morning"), (21, "yesterday"), (22, "yesterday"))
    ]
    session = folded(store, memory, *rows, *FILLER)
    answer = memory.search(session, MemoryQuery("Which certificate expired on 20 May 2023?", limit=3))
    assert answer.hits[0].entry.text == "The certificate expired again yesterday"
    assert answer.hits[0].entry.offset == 3


def test_who_asks_when_gets_what_tells_a_time(store: SqliteStore, memory: MemoryService) -> None:
    """M4"""
    rows = [user("The old parser was replaced"), user("The old parser was replaced last week"), *FILLER[:4]]
    session = folded(store, memory, *rows)
    assert texts(memory, session, "When was the old parser replaced?")[0] == "The old parser was replaced last week"
    assert texts(memory, session, "Was the old parser replaced?")[0] == "The old parser was replaced"


def test_an_answer_comes_before_the_question(store: SqliteStore, memory: MemoryService) -> None:
    """M4: the question asked then has more of the words that are asked for now."""
    rows = [user("Which port does the gateway listen on?"), says("The gateway listens on port 8443."), *FILLER]
    session = folded(store, memory, *rows)
    found = texts(memory, session, "port of the gateway")
    assert found[:2] == ["The gateway listens on port 8443.", "Which port does the gateway listen on?"]


def test_a_long_row_does_not_fill_the_answer(store: SqliteStore, memory: MemoryService) -> None:
    """M4: its chunks come one after another, each worth less than the better ones before it."""
    long = result("c1", "\n\n".join(f"error walnut walnut in shelf {i} {'x ' * 50}" for i in range(9)))
    session = folded(store, memory, long, *FILLER, says("The error: a walnut was stuck in the belt feeder"), *FILLER)
    answer = memory.search(session, MemoryQuery("walnut error", limit=20, max_tokens=100_000))
    offsets = [hit.entry.offset for hit in answer.hits]
    assert offsets.count(1) == 9
    assert offsets.index(14) < 9
    alone = MemoryQuery("walnut error", limit=20, max_tokens=100_000, filter=MemoryFilter(last_offset=1))
    scores = [hit.score for hit in memory.search(session, alone).hits]
    assert all(later <= earlier * REPEATED + 1e-6 for earlier, later in pairwise(scores))
    assert all(score > 0 for score in scores)


def test_the_names_of_speakers_leave_a_question(
    store: SqliteStore, memory: MemoryService, embedder: HashedWords
) -> None:
    """M4: who speaks is asked of the label; what is embedded is the rest of the question."""
    rows = [user(f"{name}: {i} small talk about the weather") for i in range(4) for name in ("Ann Lee", "Bob")]
    food = [user("Ann Lee: I live on plum cake"), user("Bob: I live on cherry cake")]
    session = folded(store, memory, *rows, *food)
    question = read(store, session.key, "What does Bob's cake look like, and who is Ann?")
    assert question.terms == ("cake", "look", "like")
    assert question.meaning == "What does cake look like, and who is ?"
    assert texts(memory, session, "What does Bob live on?")[0] == "Bob: I live on cherry cake"
    assert texts(memory, session, "What does Lee live on?")[0] == "Ann Lee: I live on plum cake"
    assert "What does Bob live on?" not in embedder.embedded
    assert texts(memory, session, "Bob", limit=1)[0].startswith("Bob: "), "a name alone is still a query"


def test_a_label_now_and_then_is_no_speaker(store: SqliteStore, memory: MemoryService) -> None:
    """M4: ``Note:`` stays a word of the question."""
    session = folded(store, memory, says("Note: the cache is cold"), says("Error: no cache"), *FILLER)
    question = read(store, session.key, "which note is about the cache")
    assert question.terms == ("note", "cache")
    assert question.meaning == "which note is about the cache"
    assert question.spoken is None


def test_a_scope_of_many_equal_texts_is_ranked_to_its_end(store: SqliteStore, memory: MemoryService) -> None:
    """M4: what stands behind hundreds of better entries, all of one text, is found in order."""
    rare = [says(f"walnut {'and more words ' * i}ending {i}") for i in range(1, 6)]
    session = folded(store, memory, *rare[:3], *(user("walnut walnut walnut") for _ in range(300)), *rare[3:])
    answer = memory.search(session, MemoryQuery("walnut", limit=20, max_tokens=100_000))
    assert len(answer.hits) == 6
    scores = [hit.score for hit in answer.hits]
    assert scores == sorted(scores, reverse=True)
    assert answer.hits[0].entry.text == "walnut walnut walnut"


@pytest.mark.parametrize(
    "text", ["on 31 February 2023", "0000-00-00", "May", "when?", "in 9999", "last week last week"]
)
def test_odd_days_fail_nothing(store: SqliteStore, memory: MemoryService, text: str) -> None:
    """M4: also in a scope without times, and in an empty one."""
    timeless = folded(store, memory, user("last week"), user("on 31 February 2023 in 9999"), user("when May comes"))
    assert all(0 < hit.score <= 1 for hit in memory.search(timeless, MemoryQuery(text)).hits)
    assert memory.search(new_session(store, "empty"), MemoryQuery(text)).hits == ()


_SAID = st.lists(
    st.tuples(
        st.sampled_from(["Ann: ", "Bob: ", ""]),
        st.lists(
            st.sampled_from(["walnut", "parrot", "E-12", "yesterday", "cake", "when", "port?"]), min_size=1, max_size=5
        ),
        st.integers(1, 28),
    ),
    min_size=1,
    max_size=8,
)
_QUESTIONS = st.sampled_from(
    ["when did Ann see the parrot", "walnut on 3 May 2023", "port E-12", "who is Bob", "cake in May", "when"]
)


def _rows(said: list[tuple[str, list[str], int]]) -> list[RowBody]:
    return [user(who + " ".join(spoken), f"2023-05-{day:02}T12:00:00Z") for who, spoken, day in said]


@settings(max_examples=15, deadline=None)
@given(own=_SAID, others=st.lists(_SAID, max_size=3), question=_QUESTIONS, vectors=st.booleans())
def test_scores_are_of_a_sessions_own_entries(
    tmp_path_factory: pytest.TempPathFactory,
    own: list[tuple[str, list[str], int]],
    others: list[list[tuple[str, list[str], int]]],
    question: str,
    vectors: bool,
) -> None:
    """M1, M4: texts, order and every part of a score are the same whatever other sessions of the store hold."""
    answers = []
    for crowd in ([], others):
        store = SqliteStore(tmp_path_factory.mktemp("m1") / "foldline.db", synchronous="NORMAL")
        memory = MemoryService(store, HashedWords if vectors else None, ScopeCache(1 << 20), words)
        memory.start()
        try:
            for i, said in enumerate(crowd):
                fold(store, memory, new_session(store, f"other{i}"), _rows(said))
            session = fold(store, memory, new_session(store), _rows(own))
            memory.wake()
            assert memory.settle(10)
            hits = memory.search(session, MemoryQuery(question, limit=20)).hits
            answers.append([(h.entry.text, h.entry.offset, h.score, h.lexical, h.semantic) for h in hits])
        finally:
            memory.stop()
            store.close()
    assert answers[0] == answers[1]
    scores = [score for _, _, score, _, _ in answers[0]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 + 1e-6 for score in scores)
    assert all(re.search(r"\w", text) for text, *_ in answers[0])


def test_m9_a_text_with_letters_that_look_like_ours_fails_no_search_for_a_day(store: SqliteStore) -> None:
    memory = MemoryService(store, None, ScopeCache(1 << 20), words)
    spoken = [
        user(f"We met laſt friday, or was it ſix days ago, on 3 Auguſt {n}?", "2023-08-05T10:00:00Z") for n in range(3)
    ]
    session = fold(store, memory, new_session(store, "long s"), spoken)
    assert len(memory.search(session, MemoryQuery("Where did we meet on 3 August 2023, or on 4 Auguſt?")).hits) == 3
