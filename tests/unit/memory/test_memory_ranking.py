"""How what is known of entries becomes one score on a fixed scale (M4)."""

from __future__ import annotations

import numpy as np
import pytest
from foldline.domain.enums import MemoryFusion
from foldline.memory.ranking import MEANING, Part, fuse, mean, words
from hypothesis import given
from hypothesis import strategies as st

ALL = np.array([True, True, True])


def scores(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_best_match_of_every_term_is_one() -> None:
    """M4"""
    assert words(scores(0, 8, 0), 1.0).scores[1] == pytest.approx(1)
    assert words(scores(0, 8, 0), 0.25).scores[1] == pytest.approx(0.25)


def test_entries_near_a_match_gain_and_never_pass_it() -> None:
    """M4"""
    part = words(scores(0, 0, 8, 0, 0, 0, 0, 0), 1.0).scores
    assert part.argmax() == 2
    assert part[1] == part[3] > 0
    assert part[7] == 0


def test_no_match_is_zero_everywhere() -> None:
    """M4"""
    assert not words(scores(0, 0, 0), 1.0).scores.any()
    assert words(scores(), 1.0).scores.shape == (0,)


def test_a_mean_weighs_its_parts_and_what_came_before() -> None:
    """M4: parts may be joined in steps; the last one weighs no more than it would at once."""
    parts = [Part(scores(1, 0, 0.5), 1), Part(scores(0, 1, 0.5), 0.5), Part(scores(0, 0, 1), 2)]
    at_once, in_steps = mean(parts), mean([mean(parts[:2]), parts[2]])
    assert at_once.scores == pytest.approx([1 / 3.5, 0.5 / 3.5, 2.75 / 3.5])
    assert in_steps.scores == pytest.approx(at_once.scores)
    assert in_steps.weight == at_once.weight == 3.5


def test_min_max_is_the_weighted_mean() -> None:
    """M4"""
    fused = fuse(Part(scores(1, 0, 0.5), 1), scores(0, 1, 0.5), ALL, MemoryFusion.MIN_MAX).scores
    assert fused == pytest.approx([1 / (1 + MEANING), MEANING / (1 + MEANING), 0.5])


def test_reciprocal_ranks_give_one_to_the_first_of_both() -> None:
    """M4"""
    fused = fuse(Part(scores(1, 0.5, 0), 1), scores(0.9, 0.1, 0), ALL, MemoryFusion.RRF).scores
    assert fused[0] == pytest.approx(1)
    assert fused[0] > fused[1] > fused[2] == 0


@pytest.mark.parametrize("fusion", list(MemoryFusion))
def test_an_entry_without_a_vector_is_ranked_as_its_words_suggest(fusion: MemoryFusion) -> None:
    """M8: being pending neither hides a good match nor lifts a bad one."""
    embedded = np.array([True, False, True])
    assert fuse(Part(scores(0.2, 1, 0.1), 1), scores(0.3, 0, 0.6), embedded, fusion).scores.argmax() == 1
    assert fuse(Part(scores(1, 0.1, 0.9), 1), scores(0.6, 0, 0.5), embedded, fusion).scores.argmin() == 1


def test_words_alone_stand_for_a_scope_without_any_vector() -> None:
    """M8: nothing is taken off a score for what no entry has yet."""
    lexical = Part(scores(1, 0.5, 0), 1)
    fused = fuse(lexical, scores(0, 0, 0), ~ALL, MemoryFusion.MIN_MAX)
    assert fused.scores == pytest.approx(lexical.scores)


_SCORES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30)


@given(lexical=_SCORES, coverage=st.floats(0, 1), hints=st.lists(st.floats(0, 2), max_size=3), data=st.data())
def test_every_score_is_on_the_scale(
    lexical: list[float], coverage: float, hints: list[float], data: st.DataObject
) -> None:
    """M4: whatever the parts, a score is in [0, 1], and an entry that is better in every part is not worse in all."""
    size = len(lexical)
    cosine = np.array(data.draw(st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size)), np.float32)
    part = words(np.array(lexical, np.float32) * 20, coverage)
    told = [Part(np.full(size, 1, np.float32), weight) for weight in hints]
    fused = fuse(mean([part, *told]), cosine, np.ones(size, np.bool_), MemoryFusion.MIN_MAX).scores
    assert (fused >= 0).all()
    assert (fused <= 1 + 1e-5).all()
    best = int(np.argmax(fused))
    assert not ((part.scores > part.scores[best]) & (cosine > cosine[best] + 1e-6)).any()
