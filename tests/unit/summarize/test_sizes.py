"""S4: what a model was seen to count and to take, and how long that holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from foldline.domain.rows import ModelRef
from foldline.summarize.providers.sizes import LEAST, MOST, REFUSAL_SECONDS, UNKNOWN, Sizes
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

M, OTHER = ModelRef("p", "m"), ModelRef("p", "other")
READINGS = st.lists(
    st.tuples(st.integers(0, 100_000), st.integers(0, 300_000), st.none() | st.integers(0, 200_000), st.booleans()),
    max_size=12,
)


@dataclass
class Clock:
    now: float = 0.0
    sizes: Sizes = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = Sizes(lambda: self.now)

    def scale(self) -> float:
        return self.sizes.of(M, UNKNOWN).scale

    def answer(self, counted: int, reported: int) -> None:
        self.sizes.answered(M, self.sizes.of(M, UNKNOWN), counted, reported)

    def refuse(self, counted: int, window: int, tokens: int | None = None, limit: int | None = None) -> None:
        self.sizes.refused(M, self.sizes.of(M, UNKNOWN), counted, window, tokens, limit)


def test_s4_a_scale_rises_at_once_and_falls_slowly() -> None:
    clock = Clock()
    clock.answer(1000, 1600)
    assert clock.scale() == 1.6
    clock.answer(1000, 1200)
    assert clock.scale() == pytest.approx(1.56)
    assert clock.sizes.of(OTHER, 1.0).scale == 1.0


@pytest.mark.parametrize(
    ("refusal", "scale", "limit"),
    [
        ({"tokens": 9000, "limit": 8192}, 1.5, None),
        ({"tokens": 9000, "limit": 4096}, 1.5, 4096),
        ({"limit": 4096}, UNKNOWN, 4096),
        ({}, 8192 / 6000, None),
        ({"tokens": 90_000}, UNKNOWN, None),
        ({"tokens": 7000, "limit": 3}, UNKNOWN, None),
    ],
    ids=["counts", "counts-and-a-smaller-window", "a-smaller-window", "nothing", "an-absurd-count", "an-absurd-limit"],
)
def test_s4_a_refusal_teaches_what_it_names(refusal: dict[str, int], scale: float, limit: int | None) -> None:
    clock = Clock()
    clock.refuse(6000, 8192, **refusal)
    assert clock.scale() == pytest.approx(max(scale, UNKNOWN))
    assert clock.sizes.of(M, UNKNOWN).limit == limit


def test_s4_what_refusals_taught_is_forgotten_after_an_hour() -> None:
    """A server may have been started anew with a larger window, which nobody would say."""
    clock = Clock()
    clock.refuse(1000, 8192, tokens=2400, limit=2048)
    clock.now = REFUSAL_SECONDS - 1
    clock.answer(1000, 2400)
    assert clock.sizes.of(M, UNKNOWN).limit == 2048
    clock.now = REFUSAL_SECONDS
    assert clock.sizes.of(M, UNKNOWN).limit is None
    assert clock.scale() == UNKNOWN


def test_s4_a_smaller_window_is_told_once_with_both_numbers() -> None:
    """Not for each of the calls that were made side by side; again where it is learned anew."""
    clock = Clock()
    known = clock.sizes.of(M, UNKNOWN)
    told = {
        "event": "a model takes less than was known", "log_level": "warning", "provider": "p", "model": "m",
        "window": 8192, "takes": 4096,
    }  # fmt: skip
    with capture_logs() as logs:
        clock.refuse(6000, 8192)
        clock.refuse(6000, 8192, limit=8192)
        assert logs == []
        for _ in range(4):
            clock.sizes.refused(M, known, 6000, 8192, 9000, 4096)
        clock.refuse(3000, 4096, limit=4096)
        assert logs == [told]
        clock.now += REFUSAL_SECONDS
        clock.refuse(6000, 8192, limit=4096)
        assert logs == [told, told]


@given(READINGS, st.floats(0, 10))
def test_s4_a_scale_stays_within_its_bounds_and_above_what_was_just_said(
    readings: list[tuple[int, int, int | None, bool]], prior: float
) -> None:
    sizes = Sizes()
    for counted, tokens, limit, refused in readings:
        before = sizes.of(M, prior)
        if refused:
            sizes.refused(M, before, counted, 8192, tokens or None, limit)
        else:
            sizes.answered(M, before, counted, tokens)
        after = sizes.of(M, prior)
        assert LEAST <= after.scale <= MOST
        assert math.isfinite(after.scale)
        assert after.limit is None or 512 <= after.limit < 8192
        if refused and counted and tokens <= MOST * counted:
            assert after.scale * counted >= tokens * (1 - 1e-9)


def test_models_are_forgotten_before_they_fill_the_memory() -> None:
    sizes = Sizes()
    for n in range(3000):
        sizes.answered(ModelRef("p", str(n)), sizes.of(M, 1.0), 100, 200)
    assert sizes.of(ModelRef("p", "2999"), 1.0).scale == 2.0
    assert sizes.of(ModelRef("p", "0"), 1.0).scale == 1.0
