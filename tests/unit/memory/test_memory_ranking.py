"""How two rankings become one score on a fixed scale (M4)."""

from __future__ import annotations

import numpy as np
import pytest
from foldline.domain.enums import MemoryFusion
from foldline.memory.ranking import LEXICAL_SHARE, SPEAKER_SHARE, fuse, lexical_part

ALL = np.array([True, True, True])


def scores(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_best_match_of_every_term_is_one() -> None:
    assert lexical_part(scores(0, 8, 0), 1.0, ~ALL)[1] == pytest.approx(1)
    assert lexical_part(scores(0, 8, 0), 0.25, ~ALL)[1] == pytest.approx(0.25)


def test_entries_near_a_match_gain_and_never_pass_it() -> None:
    part = lexical_part(scores(0, 0, 8, 0, 0, 0, 0, 0), 1.0, np.zeros(8, np.bool_))
    assert part.argmax() == 2
    assert part[1] == part[3] > 0
    assert part[7] == 0


def test_no_match_is_zero_everywhere() -> None:
    assert not lexical_part(scores(0, 0, 0), 1.0, ~ALL).any()
    assert lexical_part(scores(), 1.0, ALL[:0]).shape == (0,)


def test_who_is_named_as_a_speaker_holds_a_share() -> None:
    part = lexical_part(scores(8, 8, 0), 1.0, np.array([False, True, True]))
    assert part[1] == pytest.approx(1)
    assert part[0] == pytest.approx(1 - SPEAKER_SHARE)
    assert part[2] > 0


def test_min_max_is_the_weighted_sum() -> None:
    fused = fuse(scores(1, 0, 0.5), scores(0, 1, 0.5), ALL, MemoryFusion.MIN_MAX)
    assert fused == pytest.approx([LEXICAL_SHARE, 1 - LEXICAL_SHARE, 0.5])


def test_reciprocal_ranks_give_one_to_the_first_of_both() -> None:
    fused = fuse(scores(1, 0.5, 0), scores(0.9, 0.1, 0), ALL, MemoryFusion.RRF)
    assert fused[0] == pytest.approx(1)
    assert fused[0] > fused[1] > fused[2] == 0


@pytest.mark.parametrize("fusion", list(MemoryFusion))
def test_an_entry_without_a_vector_is_ranked_as_its_words_suggest(fusion: MemoryFusion) -> None:
    """M8: being pending neither hides a good match nor lifts a bad one."""
    embedded = np.array([True, False, True])
    fused = fuse(scores(0.2, 1, 0.1), scores(0.3, 0, 0.6), embedded, fusion)
    assert fused.argmax() == 1
    fused = fuse(scores(1, 0.1, 0.9), scores(0.6, 0, 0.5), embedded, fusion)
    assert fused.argmin() == 1
