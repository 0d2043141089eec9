"""Recall on real talk and real work by words alone, which needs no model (M4); ``bench/g10_recall.py`` has it all."""

from __future__ import annotations

from pathlib import Path

import pytest
from foldline.domain.memory import MemoryQuery
from foldline.memory import MemoryService, ScopeCache
from foldline.store import SqliteStore

from bench import _recall
from bench._recall import Talk
from tests.unit.memory.scopes import fold, new_session, words


def hits(folder: Path, talk: Talk, limit: int) -> list[tuple[frozenset[int], list[int]]]:
    """(offsets of the answer, offsets found) of every question."""
    store = SqliteStore(folder / "foldline.db", synchronous="NORMAL")
    memory = MemoryService(store, None, ScopeCache(1 << 20), words)
    try:
        session = fold(store, memory, new_session(store), [row.body for row in talk.rows], chunk_tokens=256)
        return [
            (question.evidence, [hit.entry.offset for hit in memory.search(session, query).hits])
            for question in talk.questions
            for query in [MemoryQuery(question.text, limit=limit, max_tokens=1_000_000)]
        ]
    finally:
        store.close()


@pytest.mark.skipif(not _recall.LOCOMO.exists(), reason="the dialogues are not there")
def test_evidence_of_a_long_dialogue_is_found(tmp_path: Path) -> None:
    """M4: in a dialogue that the weights were chosen on, three quarters of the evidence are among ten hits."""
    found = hits(tmp_path, _recall.dialogues()[0], 10)
    shares = [len(evidence & set(offsets)) / len(evidence) for evidence, offsets in found]
    assert sum(shares) / len(shares) > 0.75


@pytest.mark.skipif(not _recall.CODING.exists(), reason="the coding session is not there")
def test_identifiers_decisions_and_error_causes_are_found(tmp_path: Path) -> None:
    """M4: four fifths of the questions about a coding session have an answer among the five default hits."""
    found = hits(tmp_path, _recall.coding(), 5)
    assert len(found) == 40
    assert sum(not evidence.isdisjoint(offsets) for evidence, offsets in found) >= 32


def test_every_question_names_rows_that_are_there() -> None:
    """The questions can be checked against the recording: each has a kind, a text and rows of it."""
    if not _recall.CODING.exists():
        pytest.skip("the coding session is not there")
    talk = _recall.coding()
    assert {question.kind for question in talk.questions} == {"identifier", "decision", "error"}
    assert len({question.text for question in talk.questions}) == 40
    assert all(question.evidence <= {row.offset for row in talk.rows} for question in talk.questions)
    assert all(1 <= len(question.evidence) <= 4 for question in talk.questions)
