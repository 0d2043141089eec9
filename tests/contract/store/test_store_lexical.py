"""Lexical scores (M4) are those of SQLite's FTS5 over a table that holds the scope's visible entries alone."""

from __future__ import annotations

import sqlite3

import pytest
from foldline.domain.folding import to_ranges
from foldline.domain.memory import MemoryFilter
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.store.conftest import FACTORIES, Clock
from tests.contract.store.records import Scribe, entry

WORDS = [
    "run",
    "running",
    "runs",
    "parse",
    "parser",
    "x86",
    "0f",
    "the",
    "getuser",
    "日本",
    "café",
    "relational",
    "skies",
]

texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
entries = st.lists(st.tuples(texts, texts), min_size=1, max_size=12)


def _oracle(rows: list[tuple[int, str, str]], terms: list[str]) -> dict[int, float]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5 (terms, context, tokenize = 'porter unicode61')")
    db.executemany("INSERT INTO t (rowid, terms, context) VALUES (?, ?, ?)", rows)
    match = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms))
    return dict(db.execute("SELECT rowid, -bm25(t, 4.0, 1.0) FROM t WHERE t MATCH ?", (match,)))


@pytest.mark.parametrize("factory", sorted(FACTORIES))
@given(
    folds=st.lists(entries, min_size=1, max_size=3),
    noise=entries,
    hidden=st.sets(st.integers(1, 36)),
    terms=st.lists(st.sampled_from([*WORDS, "absent"]), min_size=1, max_size=4, unique=True),
)
@settings(max_examples=50, deadline=None)
def test_m4_scores_are_those_of_fts5(
    factory: str,
    tmp_path_factory: pytest.TempPathFactory,
    folds: list[list[tuple[str, str]]],
    noise: list[tuple[str, str]],
    hidden: set[int],
    terms: list[str],
) -> None:
    store = FACTORIES[factory](tmp_path_factory.mktemp("store"))(Clock())
    try:
        scribe, other = Scribe.create(store, "s"), Scribe.create(store, "other")
        rows: list[tuple[int, str, str]] = []
        for fold in folds:
            batch = [(len(rows) + index, own, context) for index, (own, context) in enumerate(fold, 1)]
            scribe.commit(publish=tuple(entry(o, terms=own, context=context) for o, own, context in batch))
            other.commit(publish=tuple(entry(o, terms=own, context=context) for o, (own, context) in enumerate(noise)))
            rows += batch
        visible = [row for row in rows if row[0] not in hidden]
        scribe.commit(visible=to_ranges(tuple(offset for offset, _, _ in visible)))

        expected = _oracle(visible, terms)
        hits = store.search_lexical(scribe.key, terms, MemoryFilter(), 100)
        offsets = {e.id: e.entry.offset for e in store.memory_entries(scribe.key, [entry_id for entry_id, _ in hits])}
        # FTS5 adds up a query's words, the store their stems: words of one stem count once here.
        if len({_stem(term) for term in terms}) == len(terms):
            assert {offsets[entry_id]: score for entry_id, score in hits} == pytest.approx(expected)
        assert {offsets[entry_id] for entry_id, _ in hits} == set(expected)
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
    finally:
        store.close()


def _stem(word: str) -> str:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5 (w, tokenize = 'porter unicode61')")
    db.execute("CREATE VIRTUAL TABLE v USING fts5vocab (t, row)")
    db.execute("INSERT INTO t VALUES (?)", (word,))
    return str(db.execute("SELECT term FROM v").fetchone()[0])
