"""A1-A3: when summaries are written ahead of need; C6: what calls of sources cost."""

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import Trigger
from foldline.domain.models import Prices, Usage
from foldline.domain.policy import Background, Policy
from foldline.domain.session import Anchor, Cadence
from foldline.engine import cadence
from foldline.engine.pressure import measure
from foldline.engine.spending import priced
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engine.test_cadence_decide import CALM, LIMITS, MODEL, NOW

# T is 800, so that four fifths of it are 640.
NEAR = replace(CALM, transcript_tokens=640)
STARTED = Cadence(boundaries=6)
PAID = Cadence(boundaries=6, paid_attempts=(NOW - 1,))

TABLE = [
    ("A1: at the fraction", NEAR, STARTED, Policy(), False, True),
    ("A1: a token under it", replace(NEAR, transcript_tokens=639), STARTED, Policy(), False, False),
    ("A1: tools count", replace(CALM, transcript_tokens=600, tools_tokens=40), STARTED, Policy(), False, True),
    ("A1: the projection counts", CALM, replace(STARTED, anchor=Anchor(640, 1, 500, MODEL)), Policy(), False, True),
    ("A1: a later fraction", NEAR, STARTED, Policy(background=Background(fraction=0.9)), False, False),
    ("A1: not at boundary 0", NEAR, Cadence(boundaries=1), Policy(), False, False),
    ("A1: from boundary 1 on", NEAR, Cadence(boundaries=2), Policy(), False, True),
    ("A1: not where it has just folded", NEAR, replace(STARTED, last_fold=5, last_attempt=5), Policy(), False, False),
    ("A1: nor where that just failed", NEAR, replace(STARTED, last_attempt=5), Policy(), False, False),
    ("A1: but at the boundary after", NEAR, replace(STARTED, last_fold=4, last_attempt=4), Policy(), False, True),
    ("4.2: not with auto_compact off", NEAR, STARTED, Policy(auto_compact=False), False, False),
    ("C5: not while the source cools", NEAR, replace(STARTED, cooldown_until=NOW + 1), Policy(), False, False),
    ("C5: afterwards again", NEAR, replace(STARTED, cooldown_until=NOW), Policy(), False, True),
    ("C6: not beyond the budget", NEAR, PAID, Policy(max_paid_folds_per_hour=1), True, False),
    ("C6: whose limit is of paid sources", NEAR, PAID, Policy(max_paid_folds_per_hour=1), False, True),
    ("A3: after one drop", NEAR, replace(STARTED, ahead_drops=1), Policy(), False, True),
    ("A3: not after two", NEAR, replace(STARTED, ahead_drops=2), Policy(), False, False),
]


@pytest.mark.parametrize(("why", "m", "record", "policy", "paid", "due"), TABLE, ids=[row[0] for row in TABLE])
def test_ahead_due(why: str, m: object, record: Cadence, policy: Policy, paid: bool, due: bool) -> None:
    report = measure(m, record, LIMITS)  # type: ignore[arg-type]
    assert cadence.ahead_due(report, record, policy, now=NOW, paid=paid) is due


def test_a3_a_run_and_a_fold_begin_anew() -> None:
    dropped = cadence.ahead_dropped(cadence.ahead_dropped(STARTED))
    assert dropped.ahead_drops == 2
    assert cadence.run_opened(dropped).ahead_drops == 0
    assert cadence.fold_committed(dropped, boundary=6, left_tokens=1, threshold=2, summary_tokens=1).ahead_drops == 0
    assert cadence.run_opened(STARTED) is STARTED


def test_a2_its_call_counts_for_the_budget_and_for_nothing_else() -> None:
    after = cadence.attempt_started(STARTED, 5, trigger=Trigger.BACKGROUND, paid=True, now=NOW)
    assert after == replace(STARTED, paid_attempts=(NOW,))


@given(st.integers(0, 2_000), st.integers(0, 2_000), st.floats(0.01, 0.99), st.integers(0, 8))
def test_a1_what_is_due_stays_due_as_the_list_grows(tokens: int, more: int, fraction: float, boundaries: int) -> None:
    policy = Policy(background=Background(fraction=fraction))
    record = Cadence(boundaries=boundaries)

    def due(size: int) -> bool:
        report = measure(replace(CALM, transcript_tokens=size), record, LIMITS)
        return cadence.ahead_due(report, record, policy, now=NOW, paid=False)

    assert not due(tokens) or due(tokens + more)
    assert due(LIMITS.threshold) is (boundaries > 1)


PRICES = Prices(input=2.0, cached_input=0.5, output=8.0, currency="EUR")


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(1_000_000, 0), 2.0),
        (Usage(1_000_000, 1_000_000, 400_000), 0.6 * 2.0 + 0.4 * 0.5 + 8.0),
        (Usage(100, 10, 10**9), 100 * 0.5e-6 + 10 * 8e-6),
        (Usage(1_000, 10, cost=0.25), 0.25),
        (Usage(1_000, None), None),
        (Usage(None, 10), None),
    ],
    ids=["input", "cached is part of it", "never more cached than there is", "its own", "no output", "no input"],
)
def test_s5_the_cost_of_a_call(usage: Usage, cost: float | None) -> None:
    assert priced(usage, PRICES).cost == pytest.approx(cost)


def test_s5_without_prices_cost_is_unset_and_never_zero() -> None:
    assert priced(Usage(10, 10), None).cost is None


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_s5_cached_tokens_never_cost_more(tokens: int, cached: int, output: int) -> None:
    whole = priced(Usage(tokens, output), PRICES).cost or 0.0
    assert (priced(Usage(tokens, output, cached), PRICES).cost or 0.0) <= whole * (1 + 1e-12)
