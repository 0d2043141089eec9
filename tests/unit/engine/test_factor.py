"""4.5: the learned factor."""

import pytest
from foldline.domain.changes import replace
from foldline.domain.models import Factor
from foldline.domain.policy import Estimate, Policy
from foldline.domain.rows import ModelRef
from foldline.domain.session import Prepared
from foldline.engine import factor

MODEL = ModelRef("anthropic", "claude-sonnet-4-5")
REFUSED = Prepared(
    prepare_id="p", run_id="r", revision=1, boundary=0, rewrites=0, rows=1, covered_tokens=100_000,
    request_tokens=100_000, request_bytes=400_000, bounded=False, model=MODEL, window=200_000, ceiling=180_000,
)  # fmt: skip


def test_4_5_the_first_reading_is_taken_as_it_is() -> None:
    learned = factor.learn(Factor(MODEL), 1_000, 1_300)
    assert (learned.value, learned.readings, learned.model) == (1.3, 1, MODEL)
    assert factor.apply(learned, 1_000) == 1_300


def test_4_5_later_readings_move_it_towards_them() -> None:
    start = Factor(MODEL, 1.0, 0.0, 5)
    once = factor.learn(start, 1_000, 1_500)
    twice = factor.learn(once, 1_000, 1_500)
    assert 1.0 < once.value < twice.value < 1.5


def test_4_5_its_error_is_of_the_estimates_it_gave() -> None:
    perfect = factor.learn(Factor(MODEL, 1.25, 0.0, 3), 1_000, 1_250)
    assert perfect.error == 0.0
    off = factor.learn(Factor(MODEL, 1.25, 0.0, 3), 1_000, 2_500)
    assert off.error is not None
    assert 0.0 < off.error < 0.5
    # A perfect estimate brings a bad average down, by the same weight.
    better = factor.learn(Factor(MODEL, 1.25, 0.5, 3), 1_000, 1_250)
    assert better.error is not None
    assert off.error < better.error < 0.5


def test_4_5_it_is_used_within_the_bounds_of_each_policy_and_kept_without() -> None:
    policy = Policy(estimate=Estimate(factor_min=0.8, factor_max=1.2))
    high, low = factor.learn(Factor(MODEL), 1_000, 9_000), factor.learn(Factor(MODEL), 1_000, 10)
    assert (factor.within(high, policy).value, factor.within(low, policy).value) == (1.2, 0.8)
    assert (factor.within(high, Policy()).value, factor.within(low, Policy()).value) == (2.5, 0.5)
    assert (high.value, low.value) == (9.0, 0.01)
    inside = factor.learn(Factor(MODEL), 1_000, 1_100)
    assert factor.within(inside, policy) is inside


def test_4_5_nothing_is_learned_from_nothing() -> None:
    start = Factor(MODEL, 1.1, 0.1, 4)
    assert factor.learn(start, 0, 500) == start
    assert factor.learn(start, 500, 0) == start
    assert factor.learn_refusal(start, replace(REFUSED, request_tokens=0), 500, None) == start


def test_4_4_a_refusal_raises_it_to_what_the_request_held_and_never_lowers_it() -> None:
    raised = factor.learn_refusal(Factor(MODEL, 1.0, 0.1, 4), REFUSED, 131_000, None)
    assert factor.apply(raised, 100_000) >= 131_000
    assert raised.readings == 5
    start = Factor(MODEL, 1.5, 0.1, 4)
    assert factor.learn_refusal(start, REFUSED, 131_000, None) == start


@pytest.mark.parametrize(
    ("case", "refused", "tokens", "limit", "value"),
    [
        ("no count: at least W", REFUSED, None, None, 1.8),
        ("no count: at least the limit named, where the server has less (XB10, XB16)", REFUSED, None, 120_000, 1.2),
        ("a limit over W says nothing more", REFUSED, None, 1_000_000, 1.8),
        ("a count beats a limit", REFUSED, 130_000, 120_000, 1.3),
        ("a count of more than a token a byte is none", REFUSED, 400_001, None, 1.8),
        ("a count of a token a byte is one", REFUSED, 400_000, None, 4.0),
        ("zero is unknown", REFUSED, 0, None, 1.8),
        ("W is not reached by a text of so few bytes", replace(REFUSED, request_bytes=170_000), None, None, 1.0),
        ("media are allowed for", replace(REFUSED, request_bytes=175_000, media_tokens=9_000), None, None, 1.8),
        ("mostly media", replace(REFUSED, media_tokens=10_001), 190_000, None, 1.0),
        ("a bounded request", replace(REFUSED, bounded=True), 190_000, None, 1.0),
        ("prepared by an older server, without W", replace(REFUSED, ceiling=0), None, None, 2.0),
    ],
)
def test_4_4_what_a_refusal_is_a_reading_of(
    case: str, refused: Prepared, tokens: int | None, limit: int | None, value: float
) -> None:
    assert factor.learn_refusal(Factor(MODEL), refused, tokens, limit).value == pytest.approx(value)


def test_4_5_estimates_round_up() -> None:
    assert factor.apply(Factor(MODEL, 1.01), 10) == 11
    assert factor.apply(Factor(MODEL), 10) == 10
    assert factor.apply(Factor(MODEL, 0.5), 0) == 0
