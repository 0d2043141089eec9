"""C4 and C7: whether a planned fold is worth its source."""

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import SkipReason, Trigger
from foldline.domain.folding import FoldPlan, FoldScope
from foldline.domain.models import Factor
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import ModelRef
from foldline.domain.session import Cadence, DidNotFit
from foldline.engine import cadence
from foldline.engine.pressure import Measurement, measure

MODEL = ModelRef("openai", "gpt-4o")
LIMITS = Limits(threshold=800, ceiling=1_000, input_budget=900, reserve=100, body_cap=5_000, byte_limit=4_000)
NOW = 1_000_000.0
CALM = Measurement(model=MODEL, factor=Factor(MODEL), transcript_tokens=800, transcript_bytes=1_000)
REFUSED = Cadence(did_not_fit=DidNotFit("refused"))


def plan(saving: int, transcript: int = 800, discarded_bytes: int = 0, discarded: int | None = None) -> FoldPlan:
    return FoldPlan(
        scope=FoldScope.WHOLE, discard=(1, 2), retain=(3,), insert_before=3, source_rows=(1, 2), earlier=(), ledger=(),
        covers_run="", budget=200, discarded_tokens=saving if discarded is None else discarded,
        retained_tokens=transcript - saving, predicted_saving=saving, transcript_tokens=transcript,
        discarded_bytes=discarded_bytes,
    )  # fmt: skip


def veto(
    m: Measurement, found: FoldPlan, record: Cadence | None = None, policy: Policy | None = None, paid: bool = False
) -> SkipReason | None:
    record, policy = record or Cadence(), policy or Policy()
    decision = cadence.decide(measure(m, record, LIMITS), record, policy, now=NOW, boundary=9, paid=paid)
    return cadence.veto(found, decision, record, policy, LIMITS, tools_tokens=m.tools_tokens, now=NOW, paid=paid)


@pytest.mark.parametrize(
    ("rule", "saving", "min_progress", "skip"),
    [
        ("at min_progress", 80, 0.1, None),
        ("under it", 79, 0.1, SkipReason.NO_PROGRESS),
        ("nothing", 0, 0.1, SkipReason.NO_PROGRESS),
        ("a fraction that floats above", 56, 0.07, None),
        ("0 asks only that it does not grow", 0, 0.0, None),
        ("a fold that grows", -1, 0.0, SkipReason.NO_PROGRESS),
    ],
)
def test_c4_predicted_saving(rule: str, saving: int, min_progress: float, skip: SkipReason | None) -> None:
    assert veto(CALM, plan(saving), policy=Policy(min_progress=min_progress)) == skip


@pytest.mark.parametrize(
    ("rule", "m", "record", "skip"),
    [
        ("P7 is exempt", replace(CALM, manual=True), Cadence(), None),
        ("P6 is exempt", CALM, REFUSED, None),
        ("P6 after one attempt", CALM, replace(REFUSED, fit_attempts=1), None),
        ("P6 after two obeys", CALM, replace(REFUSED, fit_attempts=2), SkipReason.NO_PROGRESS),
    ],
)
def test_c4_exemptions(rule: str, m: Measurement, record: Cadence, skip: SkipReason | None) -> None:
    assert veto(m, plan(1), record) == skip


@pytest.mark.parametrize(
    ("rule", "transcript", "saving", "skip"),
    [
        # W is 1000 with a reserve of 100: 900 is over, 899 is under.
        ("from W to one below", 900, 1, None),
        ("from over W to W", 901, 1, SkipReason.NO_PROGRESS),
        ("from over W to one below", 901, 2, None),
        ("between T and W C4 holds", 899, 80, SkipReason.NO_PROGRESS),
    ],
)
def test_c7_no_c4_for_a_fold_that_brings_the_request_under_w(
    rule: str, transcript: int, saving: int, skip: SkipReason | None
) -> None:
    m = replace(CALM, transcript_tokens=transcript)
    assert veto(m, plan(saving, transcript)) == skip


@pytest.mark.parametrize(
    ("rule", "size", "discarded_bytes", "skip"),
    [
        ("from the byte limit to under it", 4_000, 100, None),
        ("not enough bytes", 4_200, 200, SkipReason.NO_PROGRESS),
        ("the summary's own bytes count", 4_000, 20, SkipReason.NO_PROGRESS),
        ("under it before", 3_999, 1_000, SkipReason.NO_PROGRESS),
    ],
)
def test_c7_bytes(rule: str, size: int, discarded_bytes: int, skip: SkipReason | None) -> None:
    """A plan that discards 15 tokens for a summary of 5."""
    m = replace(CALM, transcript_bytes=size)
    assert veto(m, plan(10, discarded=15, discarded_bytes=discarded_bytes)) == skip


def test_c7_under_one_limit_and_over_the_other_is_no_cure() -> None:
    m = replace(CALM, transcript_tokens=905, transcript_bytes=4_500)
    assert veto(m, plan(10, 905, discarded_bytes=100, discarded=10)) == SkipReason.NO_PROGRESS
    assert veto(m, plan(10, 905, discarded_bytes=600, discarded=10)) is None


def test_c7_measures_with_the_exact_count_where_there_is_one() -> None:
    m = replace(CALM, exact_tokens=905)
    assert veto(m, plan(10)) is None
    assert veto(replace(CALM, exact_tokens=700), plan(10)) == SkipReason.NO_PROGRESS


def test_c7_the_second_fold_of_f3_is_measured_by_its_own_plan() -> None:
    """The report describes the transcript before the first fold; the second starts at 850 + 60 of tools."""
    m = replace(CALM, transcript_tokens=980, tools_tokens=60)
    assert veto(m, plan(20, 850)) is None
    assert veto(m, plan(20, 830)) == SkipReason.NO_PROGRESS


def test_c5_c6_are_read_again_before_the_second_fold() -> None:
    report = measure(replace(CALM, transcript_tokens=980), Cadence(), LIMITS)
    decision = cadence.decide(report, Cadence(), Policy(max_paid_folds_per_hour=1), now=NOW, boundary=9, paid=True)
    first = cadence.attempt_started(Cadence(), 9, trigger=Trigger.AUTOMATIC, paid=True, now=NOW)
    arguments = {"tools_tokens": 0, "now": NOW, "paid": True}
    policy = Policy(max_paid_folds_per_hour=1)
    assert cadence.veto(plan(400, 980), decision, Cadence(), policy, LIMITS, **arguments) is None  # type: ignore[arg-type]
    assert cadence.veto(plan(400, 980), decision, first, policy, LIMITS, **arguments) == SkipReason.BUDGET  # type: ignore[arg-type]
    failed = cadence.attempt_failed(Cadence(), now=NOW, policy=policy, trigger=Trigger.AUTOMATIC)
    assert cadence.veto(plan(400, 980), decision, failed, policy, LIMITS, **arguments) == SkipReason.COOLDOWN  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "budget", "usual"),
    [((), 1_000, 500), ((), 1, 0), ((300,), 1_000, 300), ((300, 600, 900), 1_000, 600), ((3_000,), 1_000, 1_000)],
)
def test_c4_usual_summary_size(sizes: tuple[int, ...], budget: int, usual: int) -> None:
    assert cadence.summary_size(Cadence(summary_sizes=sizes), budget) == usual
