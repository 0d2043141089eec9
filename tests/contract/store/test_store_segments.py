"""The lexical index stays small however many folds publish to it, and nobody sees it change (M4, M1, M7, X3)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind
from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import Fork
from foldline.store import SqliteStore
from foldline.store.sqlite import segments
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.store.records import Scribe, entry

ALL = MemoryFilter()
WORDS = ["walnut", "parrot", "beetle", "zebra", "window", "garden"]


class Zoo:
    """A store, and the same done to another that never merges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.merging, self.plain = (SqliteStore(folder / name / "s.db", synchronous="NORMAL") for name in ("m", "p"))
        self.stores = (self.merging, self.plain)
        self.sessions: dict[str, tuple[Scribe, Scribe]] = {}
        self.folds: dict[str, list[int]] = {}

    def create(self, name: str) -> None:
        a, b = (Scribe.create(store, name) for store in self.stores)
        self.sessions[name], self.folds[name] = (a, b), []

    def fold(self, name: str, texts: list[str]) -> None:
        for scribe in self.sessions[name]:
            first = scribe.session.next_offset
            scribe.append(len(texts) + 1)
            published = tuple(entry(first + n, 0, text) for n, text in enumerate(texts))
            scribe.rewrite([first + len(texts)], RevisionKind.FOLD, publish=published)
        self.folds[name].append(self.sessions[name][0].session.revision)

    def hide(self, name: str, last: int) -> None:
        for scribe in self.sessions[name]:
            scribe.rewrite(scribe.active, RevisionKind.RESTORE, visible=((1, last),) if last else ())

    def fork(self, name: str, child: str, revision: int) -> None:
        pair = []
        for store, scribe in zip(self.stores, self.sessions[name], strict=True):
            state = replace(scribe.session, key=0, session_id=child, revision=revision)
            last = store.last_offset(scribe.key, revision)
            fork = Fork(scribe.key, replace(state, next_offset=last + 1), visible=((1, 10_000),))
            pair.append(Scribe(store, store.fork_session(fork, None), [last]))
        self.sessions[child] = (pair[0], pair[1])
        self.folds[child] = [r for r in self.folds[name] if r <= revision]

    def remove(self, name: str, *, drop: bool) -> None:
        for store, scribe in zip(self.stores, self.sessions[name], strict=True):
            store.drop_scope(scribe.key) if drop else store.delete_session(scribe.key)
        if not drop:
            del self.sessions[name]

    def merge(self) -> None:
        self.merging.merge_segments()

    def compare(self) -> None:
        for scribe, other in self.sessions.values():
            for terms in (*([word] for word in WORDS), WORDS, WORDS[2:5]):
                found = self.merging.search_lexical(scribe.key, terms, ALL, 1000)
                wanted = self.plain.search_lexical(other.key, terms, ALL, 1000)
                assert dict(found) == pytest.approx(dict(wanted))
                scores = [score for _, score in found]
                assert scores == sorted(scores, reverse=True)

    def count(self, sql: str) -> int:
        with sqlite3.connect(self.folder / "m" / "s.db") as db:
            return int(db.execute(sql).fetchone()[0])

    def close(self) -> None:
        for store in self.stores:
            store.close()


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Zoo:
    monkeypatch.setattr(segments, "MOST_SMALL", 3)
    monkeypatch.setattr(segments, "ROWS", 4)
    zoo = Zoo(tmp_path)
    zoo.create("s")
    yield zoo
    zoo.close()


def many(zoo: Zoo, name: str = "s", folds: int = 20) -> None:
    for n in range(folds):
        zoo.fold(name, [f"{WORDS[n % 6]} number {n}", f"{WORDS[(n * 5 + 1) % 6]} and {WORDS[n % 3]}"])


def test_m4_a_search_does_not_grow_with_the_number_of_folds(zoo: Zoo) -> None:
    many(zoo, folds=40)
    zoo.create("other")
    many(zoo, "other", 10)
    assert zoo.count("SELECT count(*) FROM memory_segment") == 50
    zoo.merge()
    assert zoo.count("SELECT count(*) FROM memory_segment") == 2
    assert zoo.count("SELECT count(*) FROM memory_posting WHERE stem = 'walnut'") == 2
    assert zoo.count("SELECT count(*) FROM memory_garbage") == 0
    assert zoo.count("SELECT count(DISTINCT segment) FROM memory_posting") == 2
    zoo.compare()


def test_m4_large_segments_are_left_alone(zoo: Zoo) -> None:
    zoo.fold("s", [f"{WORDS[n % 6]} {n}" for n in range(1100)])
    many(zoo, folds=8)
    zoo.fold("s", [f"{WORDS[n % 6]} {n}" for n in range(600)])
    zoo.fold("s", [f"{WORDS[n % 6]} {n}" for n in range(600)])
    many(zoo, folds=8)
    zoo.merge()
    sizes = zoo.count("SELECT count(*) FROM memory_segment"), zoo.count("SELECT max(entries) FROM memory_segment")
    assert sizes[0] <= 4
    assert sizes[1] < 2 * segments.SMALL
    zoo.compare()


def test_m4_what_comes_after_a_merge_is_merged_with_it(zoo: Zoo) -> None:
    for _ in range(6):
        many(zoo, folds=5)
        zoo.merge()
        zoo.compare()
    assert zoo.count("SELECT count(*) FROM memory_segment") <= 4


@pytest.mark.parametrize("back", [0, 1, 5, 11, 19])
def test_x3_a_fork_of_the_past_has_the_index_of_then(zoo: Zoo, back: int) -> None:
    many(zoo)
    zoo.merge()
    zoo.fork("s", "f", zoo.folds["s"][-1 - back])
    zoo.compare()
    many(zoo, "f", 5)
    many(zoo, folds=5)
    zoo.merge()
    zoo.compare()
    zoo.remove("s", drop=False)
    zoo.compare()
    zoo.fork("f", "g", zoo.folds["f"][3])
    zoo.compare()
    for name in ("g", "f"):
        zoo.remove(name, drop=False)
    assert zoo.count("SELECT count(*) FROM memory_posting") == 0
    assert zoo.count("SELECT count(*) FROM memory_segment") == 0


def test_x3_what_forks_are_searched_by_stays_when_its_session_merges(zoo: Zoo) -> None:
    many(zoo)
    zoo.fork("s", "f", zoo.folds["s"][-1])
    zoo.merge()
    zoo.compare()
    zoo.remove("s", drop=False)
    zoo.merge()
    zoo.compare()
    assert zoo.count("SELECT count(*) FROM memory_garbage") == 0


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 9, 15])
def test_m7_a_drop_while_a_merge_is_under_way_leaves_no_word(zoo: Zoo, steps: int, drop: bool) -> None:
    """XL6, XL10: neither of what was merged, nor of what was being made."""
    many(zoo)
    left = iter(range(steps))
    zoo.merging.merge_segments(lambda: next(left, None) is None)
    zoo.remove("s", drop=drop)
    assert zoo.count("SELECT count(*) FROM memory_posting") == 0
    assert zoo.count("SELECT count(*) FROM memory_garbage") == 0
    zoo.merge()
    zoo.compare()


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_v10_a_stop_in_the_middle_of_a_merge_loses_nothing(zoo: Zoo, steps: int) -> None:
    many(zoo)
    left = iter(range(steps))
    zoo.merging.merge_segments(lambda: next(left, None) is None)
    zoo.compare()
    zoo.merging.close()
    zoo.merging = SqliteStore(zoo.folder / "m" / "s.db", synchronous="NORMAL")
    zoo.stores = (zoo.merging, zoo.plain)
    for scribe, _ in zoo.sessions.values():
        scribe.store = zoo.merging
    zoo.compare()
    many(zoo, folds=2)
    zoo.merge()
    zoo.compare()
    assert zoo.count("SELECT count(*) FROM memory_segment") <= 3
    assert zoo.count("SELECT count(*) FROM memory_garbage") == 0


def test_m4_a_merge_that_loses_its_session_half_way_gives_up(zoo: Zoo) -> None:
    many(zoo)
    with zoo.merging._snapshot() as db:
        merge = segments.due(db)
    assert merge is not None
    number = zoo.merging._write(lambda db: segments.begin(db, merge))
    zoo.merging.drop_scope(zoo.sessions["s"][0].key)
    assert not zoo.merging._write(lambda db: segments.write(db, number, merge.postings))
    zoo.merging._write(lambda db: segments.finish(db, number, merge))
    assert zoo.count("SELECT count(*) FROM memory_posting") == 0
    assert zoo.count("SELECT count(*) FROM memory_segment") == 0


@settings(max_examples=25)
@given(data=st.data())
def test_m1_no_history_shows_that_segments_were_merged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Folds, restores, forks of any revision, drops and deletions, with merges anywhere between: the same scores."""
    before = segments.MOST_SMALL, segments.ROWS
    segments.MOST_SMALL, segments.ROWS = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    zoo = Zoo(tmp_path_factory.mktemp("zoo"))
    try:
        zoo.create("s0")
        for _ in range(data.draw(st.integers(4, 25))):
            what = data.draw(st.sampled_from(["fold"] * 6 + ["merge", "merge", "hide", "fork", "drop", "delete"]))
            name = data.draw(st.sampled_from(sorted(zoo.sessions)))
            if what == "fold":
                text = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
                zoo.fold(name, data.draw(st.lists(text, max_size=3)))
            elif what == "merge":
                zoo.merge()
                zoo.compare()
            elif what == "hide":
                zoo.hide(name, data.draw(st.integers(0, 20)))
            elif what == "fork" and zoo.folds[name]:
                revision = data.draw(st.sampled_from(zoo.folds[name]))
                copy = f"s{data.draw(st.integers(10, 10**9))}"
                if copy not in zoo.sessions:
                    zoo.fork(name, copy, revision)
            elif what in ("drop", "delete") and len(zoo.sessions) > 1:
                zoo.remove(name, drop=what == "drop")
        zoo.merge()
        zoo.compare()
    finally:
        segments.MOST_SMALL, segments.ROWS = before
        zoo.close()
