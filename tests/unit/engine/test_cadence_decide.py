"""§5: which tripped signals fold, and which skip says why they do not."""

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import (
    OnFailure,
    SignalKind,
    SkipReason,
    SummarySourcePolicy,
    Suppression,
    Trigger,
)
from foldline.domain.models import Factor
from foldline.domain.policy import Policy, Summary
from foldline.domain.pressure import Limits, PressureReport
from foldline.domain.rows import ModelRef
from foldline.domain.session import Anchor, Cadence, DidNotFit, Reading, Spend
from foldline.engine import cadence
from foldline.engine.cadence import Decision
from foldline.engine.pressure import Measurement, measure

MODEL = ModelRef("openai", "gpt-4o")
LIMITS = Limits(threshold=800, ceiling=1_000, input_budget=900, reserve=100, body_cap=5_000, byte_limit=4_000)
NOW = 1_000_000.0
CALM = Measurement(model=MODEL, factor=Factor(MODEL), transcript_tokens=500, transcript_bytes=1_000)

# Measurements by what trips; the history alone is under T in all but HISTORY.
P1 = CALM
P4_T = replace(CALM, tools_tokens=300)
P4_W = replace(CALM, tools_tokens=400)
P5 = replace(CALM, transcript_bytes=4_000)
HISTORY = replace(CALM, transcript_tokens=800)
COUNTED = Cadence(count=Reading(800, MODEL))


def decide(m: Measurement, record: Cadence, policy: Policy | None = None, **more: object) -> Decision:
    arguments: dict[str, object] = {"now": NOW, "boundary": 9, **more}
    return cadence.decide(measure(m, record, LIMITS), record, policy or Policy(), **arguments)  # type: ignore[arg-type]


def suppressions(report: PressureReport) -> dict[SignalKind, Suppression]:
    return {s.kind: s.suppressed_by for s in report.signals if s.suppressed_by is not None}


LAST = Cadence(last_fold=7, last_attempt=7)
TABLE: list[tuple[str, Measurement, Cadence, int, Trigger | None, SkipReason | None]] = [
    ("nothing trips", CALM, Cadence(), 9, None, None),
    ("P1 folds", P1, COUNTED, 9, Trigger.AUTOMATIC, None),
    ("P4 T folds", P4_T, Cadence(), 9, Trigger.AUTOMATIC, None),
    ("P3 folds", HISTORY, Cadence(), 9, Trigger.AUTOMATIC, None),
    ("C1: ordinary at boundary 0", P1, COUNTED, 0, None, SkipReason.FIRST_BOUNDARY),
    ("C1: P4 T is ordinary", P4_T, Cadence(), 0, None, SkipReason.FIRST_BOUNDARY),
    ("C1 lets capacity pass: P3", HISTORY, Cadence(), 0, Trigger.AUTOMATIC, None),
    ("C1 lets capacity pass: P4 W", P4_W, Cadence(), 0, Trigger.AUTOMATIC, None),
    ("C1 lets P5 pass", P5, Cadence(), 0, Trigger.AUTOMATIC, None),
    ("C2: two boundaries after", P4_T, LAST, 9, None, SkipReason.CADENCE),
    ("C2: three boundaries after", P4_T, LAST, 10, Trigger.AUTOMATIC, None),
    ("C2: the later of fold and attempt counts", P4_T, Cadence(last_fold=3, last_attempt=8), 10, None,
     SkipReason.CADENCE),
    ("C2: an attempt alone counts", P4_T, Cadence(last_attempt=8), 10, None, SkipReason.CADENCE),
    ("C2 never vetoes capacity: P3", HISTORY, LAST, 8, Trigger.AUTOMATIC, None),
    ("C2 never vetoes capacity: P2", CALM, replace(LAST, anchor=Anchor(799, 1, 400, MODEL)), 8, Trigger.AUTOMATIC,
     None),
    ("C2 never vetoes capacity: P4 W", P4_W, LAST, 8, Trigger.AUTOMATIC, None),
    ("C2 never vetoes P5", P5, LAST, 8, Trigger.AUTOMATIC, None),
    ("C2 never vetoes P6", CALM, replace(LAST, did_not_fit=DidNotFit("refused")), 8, Trigger.DID_NOT_FIT, None),
    ("C2 never vetoes P7", replace(CALM, manual=True), LAST, 8, Trigger.MANUAL, None),
    ("C3: history the last fold left at T is ordinary", HISTORY,
     replace(LAST, left_tokens=800, left_threshold=800), 8, None, SkipReason.CADENCE),
    ("C3: so is the projection", CALM,
     replace(LAST, left_tokens=800, left_threshold=800, anchor=Anchor(790, 1, 400, MODEL)), 8, None,
     SkipReason.CADENCE),
    ("P2: an anchor at T is ordinary", CALM, replace(LAST, anchor=Anchor(800, 1, 500, MODEL)), 8, None,
     SkipReason.CADENCE),
    ("P6 in a run waits", replace(CALM, in_run=True), Cadence(did_not_fit=DidNotFit("bounded")), 9, None, None),
    ("P6 on the first check of a continued run folds",
     replace(CALM, in_run=True, first_check_of_continued_run=True), Cadence(did_not_fit=DidNotFit("refused")), 9,
     Trigger.DID_NOT_FIT, None),
    ("X2: capacity under W waits", HISTORY, Cadence(restored_tokens=790, last_attempt=8), 9, None,
     SkipReason.AFTER_RESTORE),
    ("X2: over W folds", P4_W, Cadence(restored_tokens=490, last_attempt=8), 9, Trigger.AUTOMATIC, None),
    ("X2: over the byte limit folds", P5, Cadence(restored_tokens=490, last_attempt=8), 9, Trigger.AUTOMATIC, None),
    ("X2: ordinary trips apply as ever", P4_T, Cadence(restored_tokens=490, last_attempt=6), 9, Trigger.AUTOMATIC,
     None),
    ("X2: a refusal since folds", CALM, Cadence(restored_tokens=490, did_not_fit=DidNotFit("refused")), 9,
     Trigger.DID_NOT_FIT, None),
    ("4.3: another model's count is ignored", CALM, Cadence(count=Reading(900, ModelRef("x", "y"))), 9, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "m", "record", "boundary", "trigger", "skip"), TABLE, ids=[row[0] for row in TABLE])
def test_5_decision_table(
    rule: str, m: Measurement, record: Cadence, boundary: int, trigger: Trigger | None, skip: SkipReason | None
) -> None:
    found = decide(m, record, boundary=boundary)
    assert (found.fold, found.skip) == (trigger is not None, skip)
    if trigger is not None:
        assert found.trigger == trigger
    assert bool(found.signals) == (trigger is not None or skip is not None)


@pytest.mark.parametrize(
    ("rule", "m", "record", "boundary", "by"),
    [
        ("C1", P4_T, Cadence(), 0, {SignalKind.FORECAST_THRESHOLD: Suppression.FIRST_BOUNDARY}),
        ("C2", P4_T, LAST, 8, {SignalKind.FORECAST_THRESHOLD: Suppression.CADENCE}),
        (
            "X2", HISTORY, Cadence(restored_tokens=790, last_attempt=8), 9,
            {
                SignalKind.HISTORY_ESTIMATE: Suppression.AFTER_RESTORE,
                SignalKind.FORECAST_THRESHOLD: Suppression.CADENCE,
            },
        ),
        (
            "C5", HISTORY, Cadence(cooldown_until=NOW + 1), 9,
            {
                SignalKind.HISTORY_ESTIMATE: Suppression.COOLDOWN,
                SignalKind.FORECAST_THRESHOLD: Suppression.COOLDOWN,
            },
        ),
    ],
)  # fmt: skip
def test_c8_the_report_names_what_suppressed_each_signal(
    rule: str, m: Measurement, record: Cadence, boundary: int, by: dict[SignalKind, Suppression]
) -> None:
    assert suppressions(decide(m, record, boundary=boundary).report) == by


def test_4_1_auto_compact_off_reports_and_does_nothing() -> None:
    off = Policy(auto_compact=False)
    everything = replace(HISTORY, tools_tokens=300, transcript_bytes=9_000)
    found = decide(everything, Cadence(did_not_fit=DidNotFit("refused")), off)
    assert (found.fold, found.skip, found.trigger) == (False, None, None)
    assert set(suppressions(found.report).values()) == {Suppression.AUTO_COMPACT_OFF}
    assert decide(replace(everything, manual=True), Cadence(), off).trigger == Trigger.MANUAL


def test_p6_is_forced_and_a_manual_fold_keeps_its_tail() -> None:
    fact = Cadence(did_not_fit=DidNotFit("refused"))
    assert decide(CALM, fact).forced
    both = decide(replace(CALM, manual=True), fact)
    assert (both.trigger, both.forced) == (Trigger.MANUAL, False)
    assert not decide(HISTORY, Cadence()).forced
    assert decide(replace(CALM, manual=True), fact, manual_trigger=Trigger.CHECKPOINT).trigger == Trigger.CHECKPOINT


def test_5_the_boundary_is_the_one_counted_last() -> None:
    record = replace(COUNTED, boundaries=0)
    assert decide(P1, cadence.count_boundary(record), boundary=None).skip == SkipReason.FIRST_BOUNDARY
    assert decide(P1, cadence.count_boundary(replace(record, boundaries=1)), boundary=None).fold


@pytest.mark.parametrize(
    ("rule", "m", "record", "skip"),
    [
        ("C5 ordinary", P4_T, Cadence(), SkipReason.COOLDOWN),
        ("C5 capacity", HISTORY, Cadence(), SkipReason.COOLDOWN),
        ("C5 P5", P5, Cadence(), SkipReason.COOLDOWN),
        ("C5 P6", CALM, Cadence(did_not_fit=DidNotFit("refused")), SkipReason.COOLDOWN),
        ("C5 a manual fold ignores it", replace(CALM, manual=True), Cadence(), None),
        ("nothing due is no skip", CALM, Cadence(), None),
    ],
)
def test_c5_cooldown(rule: str, m: Measurement, record: Cadence, skip: SkipReason | None) -> None:
    cooling = replace(record, cooldown_until=NOW + 0.1)
    assert cadence.why_gated(SkipReason.COOLDOWN, cooling, Policy(), now=NOW) == (
        "after a failure no source is asked for another 1 s"
    )
    assert decide(m, cooling).skip == skip
    over = replace(record, cooldown_until=NOW)
    assert decide(m, over).skip is None


HOUR = int(NOW // 3_600)
REFUSED = Cadence(did_not_fit=DidNotFit("refused"))
FULL_HOUR = Cadence(paid_attempts=tuple(NOW - 3_599 for _ in range(60)))


@pytest.mark.parametrize(
    ("rule", "m", "record", "policy", "paid", "skip"),
    [
        ("60 in the last hour", HISTORY, FULL_HOUR, Policy(), True, SkipReason.BUDGET),
        ("C6 counts paid sources alone", HISTORY, FULL_HOUR, Policy(), False, None),
        ("an hour ago is past", HISTORY, Cadence(paid_attempts=(NOW - 3_600,) * 60), Policy(), True, None),
        ("59 in the last hour", HISTORY, Cadence(paid_attempts=FULL_HOUR.paid_attempts[1:]), Policy(), True, None),
        ("none allowed", HISTORY, Cadence(), Policy(max_paid_folds_per_hour=0), True, SkipReason.BUDGET),
        (
            "P6 passes twice", CALM, replace(REFUSED, fit_attempts=1, paid_attempts=FULL_HOUR.paid_attempts), Policy(),
            True, None,
        ),
        (
            "then it obeys", CALM, replace(REFUSED, fit_attempts=2, paid_attempts=FULL_HOUR.paid_attempts), Policy(),
            True, SkipReason.BUDGET,
        ),
        ("C6 names no exemption for P7", replace(CALM, manual=True), FULL_HOUR, Policy(), True, SkipReason.BUDGET),
        (
            "a day's tokens", HISTORY, Cadence(spending=(Spend(HOUR - 23, 900), Spend(HOUR, 100))),
            Policy(max_tokens_per_day=1_000), True, SkipReason.BUDGET,
        ),
        (
            "a day ago is past", HISTORY, Cadence(spending=(Spend(HOUR - 24, 900), Spend(HOUR, 100))),
            Policy(max_tokens_per_day=1_000), True, None,
        ),
        (
            "a day's cost", HISTORY, Cadence(spending=(Spend(HOUR, 0, 2.5),)),
            Policy(max_cost_per_day=2.5), True, SkipReason.BUDGET,
        ),
    ],
)  # fmt: skip
def test_c6_spend_guards(
    rule: str, m: Measurement, record: Cadence, policy: Policy, paid: bool, skip: SkipReason | None
) -> None:
    assert decide(m, record, policy, paid=paid).skip == skip


@pytest.mark.parametrize(
    ("on_failure", "source", "m", "barred"),
    [
        (OnFailure.PRESERVE, SummarySourcePolicy.AUTO, P4_W, None),
        (OnFailure.NEXT, SummarySourcePolicy.AUTO, HISTORY, SkipReason.COOLDOWN),
        (OnFailure.NEXT, SummarySourcePolicy.PROVIDER, P4_W, SkipReason.COOLDOWN),
        (OnFailure.RESCUE, SummarySourcePolicy.AUTO, HISTORY, None),
        (OnFailure.RESCUE, SummarySourcePolicy.AUTO, P4_W, SkipReason.COOLDOWN),
        (OnFailure.RESCUE, SummarySourcePolicy.AUTO, P5, SkipReason.COOLDOWN),
        (OnFailure.NEXT, SummarySourcePolicy.CURATOR, P4_W, None),
        (OnFailure.NEXT, SummarySourcePolicy.EXTRACTIVE, P4_W, None),
    ],
)
def test_s2_a_cooling_source_gives_way_only_where_the_host_chose_so(
    on_failure: OnFailure, source: SummarySourcePolicy, m: Measurement, barred: SkipReason | None
) -> None:
    policy = Policy(summary=Summary(source=source, on_failure=on_failure))
    found = decide(m, Cadence(cooldown_until=NOW + 60), policy, paid=True)
    assert (found.fold, found.barred) == (barred is not None, barred)
    assert found.skip == (None if barred else SkipReason.COOLDOWN)


@pytest.mark.parametrize(
    ("m", "left", "skip"),
    [
        (P4_W, 0.0, SkipReason.DEADLINE),
        (P4_W, cadence.START_SECONDS, None),
        (P4_W, None, None),
        (replace(CALM, manual=True), 0.0, None),
        (CALM, 0.0, None),
    ],
)
def test_w9_too_little_time_is_a_skip(m: Measurement, left: float | None, skip: SkipReason | None) -> None:
    assert decide(m, Cadence(), deadline_left=left).skip == skip


def test_c5_a_clock_that_was_set_back_does_not_keep_a_session_from_folding() -> None:
    cooling = Cadence(cooldown_until=NOW + 86_400, cooldown_from=NOW + 85_800)
    assert decide(HISTORY, cooling).fold
    assert not decide(HISTORY, cooling, now=NOW + 85_800).fold


def test_c6_attempts_and_spending_of_a_later_time_count_nothing() -> None:
    ahead = Cadence(paid_attempts=(NOW + 7_200,), spending=(Spend(int(NOW // 3_600) + 2, 500, 1.0),))
    policy = replace(Policy(), max_paid_folds_per_hour=1, max_tokens_per_day=1)
    assert decide(HISTORY, ahead, policy, paid=True).fold
