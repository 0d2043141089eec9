"""§5, 4.3, 4.4, X2, X3: every change of the cadence record."""

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import RefusalKind, SkipReason, Trigger, WarningCode
from foldline.domain.models import Usage
from foldline.domain.policy import Policy
from foldline.domain.rows import ModelRef
from foldline.domain.session import Anchor, Cadence, DidNotFit, Prepared, Reading, Spend
from foldline.engine import cadence, readings
from foldline.engine.readings import UsageVerdict
from hypothesis import given
from hypothesis import strategies as st

MODEL, OTHER = ModelRef("openai", "gpt-4o"), ModelRef("anthropic", "claude-sonnet-4-5")
NOW = 1_000_000.0
FULL = Cadence(
    boundaries=12, last_fold=4, last_attempt=5, count=Reading(700, MODEL), anchor=Anchor(700, 30, 650, MODEL),
    did_not_fit=DidNotFit("refused", 900), fit_attempts=1, left_tokens=300, left_threshold=800,
    summary_sizes=(10, 20, 30), cooldown_until=NOW + 5, restored_tokens=500, last_skip=SkipReason.CADENCE,
    paid_attempts=(NOW - 10,), spending=(Spend(277, 5, 0.1),), warned=("HISTORY_OVER_THRESHOLD",),
)  # fmt: skip
PREPARED = Prepared(
    prepare_id="p", run_id="r", revision=31, boundary=11, rewrites=2, rows=9, covered_tokens=640, request_tokens=660,
    request_bytes=3_000, bounded=False, model=MODEL, window=1_000,
)  # fmt: skip


def answered(
    record: Cadence, usage: Usage | None, prepared: Prepared = PREPARED, **more: object
) -> tuple[Cadence, UsageVerdict]:
    arguments: dict[str, object] = {"revisions_only_appends": True, "estimate": 660, **more}
    return readings.answered(record, prepared, usage, **arguments)  # type: ignore[arg-type]


def test_1_boundaries_count_from_the_number_before() -> None:
    assert cadence.count_boundary(Cadence(boundaries=7)).boundaries == 8


@pytest.mark.parametrize(
    ("trigger", "paid", "expected"),
    [
        (Trigger.AUTOMATIC, False, {"last_attempt": 11, "did_not_fit": None, "fit_attempts": 1}),
        (Trigger.MANUAL, False, {"last_attempt": 11, "did_not_fit": None, "fit_attempts": 1}),
        (Trigger.DID_NOT_FIT, False, {"last_attempt": 11, "did_not_fit": None, "fit_attempts": 2}),
        (Trigger.AUTOMATIC, True, {"last_attempt": 11, "paid_attempts": (NOW - 10, NOW)}),
        (
            Trigger.BACKGROUND, True,
            {"last_attempt": 5, "did_not_fit": FULL.did_not_fit, "paid_attempts": (NOW - 10, NOW)},
        ),
    ],
)  # fmt: skip
def test_c2_c6_4_4_a2_attempt_started(trigger: Trigger, paid: bool, expected: dict[str, object]) -> None:
    found = cadence.attempt_started(FULL, 11, trigger=trigger, paid=paid, now=NOW)
    assert {name: getattr(found, name) for name in expected} == expected


def test_c6_paid_attempts_older_than_an_hour_are_forgotten() -> None:
    old = Cadence(paid_attempts=(NOW - 3_600, NOW - 3_599))
    found = cadence.attempt_started(old, 1, trigger=Trigger.AUTOMATIC, paid=True, now=NOW)
    assert found.paid_attempts == (NOW - 3_599, NOW)


def test_c6_spending_is_summed_by_the_hour_and_kept_for_a_day() -> None:
    record = Cadence()
    for hours, tokens, cost in ((0, 100, 0.5), (0, 50, None), (10, 7, 0.25), (24, 1, 1.0)):
        record = cadence.spent(record, now=NOW + hours * 3_600, tokens=tokens, cost=cost)
    hour = int(NOW // 3_600)
    assert record.spending == (Spend(hour + 10, 7, 0.25), Spend(hour + 24, 1, 1.0))
    assert cadence.spent(Cadence(), now=NOW, tokens=5, cost=None).spending == (Spend(hour, 5, 0.0),)


def test_5_a_committed_fold() -> None:
    found = cadence.fold_committed(FULL, boundary=11, left_tokens=250, threshold=800, summary_tokens=40)
    assert found == replace(
        FULL, last_fold=11, count=None, anchor=None, did_not_fit=None, left_tokens=250, left_threshold=800,
        summary_sizes=(20, 30, 40), cooldown_until=None, restored_tokens=None, last_skip=None,
    )  # fmt: skip


def test_s2_a_fold_written_by_a_successor_leaves_the_cooldown() -> None:
    found = cadence.fold_committed(FULL, boundary=11, left_tokens=1, threshold=8, summary_tokens=1, barred=True)
    assert found.cooldown_until == NOW + 5


@pytest.mark.parametrize(
    ("rule", "trigger", "retry_after", "only_not_smaller", "until"),
    [
        ("automatic", Trigger.AUTOMATIC, None, False, NOW + 600),
        ("a short Retry-After", Trigger.AUTOMATIC, 30.0, False, NOW + 600),
        ("a longer one", Trigger.AUTOMATIC, 900.0, False, NOW + 900),
        ("P6", Trigger.DID_NOT_FIT, None, False, NOW + 600),
        ("ahead of need", Trigger.BACKGROUND, None, False, NOW + 600),
        ("manual", Trigger.MANUAL, None, False, None),
        ("checkpoint", Trigger.CHECKPOINT, 900.0, False, None),
        ("P6, only not smaller", Trigger.DID_NOT_FIT, None, True, None),
        ("P7, only not smaller", Trigger.MANUAL, None, True, None),
        ("automatic, only not smaller", Trigger.AUTOMATIC, None, True, NOW + 600),
    ],
)
def test_c5_a_failed_attempt(
    rule: str, trigger: Trigger, retry_after: float | None, only_not_smaller: bool, until: float | None
) -> None:
    found = cadence.attempt_failed(
        Cadence(), now=NOW, policy=Policy(), trigger=trigger, retry_after=retry_after, only_not_smaller=only_not_smaller
    )
    assert found.cooldown_until == until


def test_c5_a_cooldown_is_never_shortened() -> None:
    found = cadence.attempt_failed(
        Cadence(cooldown_until=NOW + 5_000), now=NOW, policy=Policy(), trigger=Trigger.AUTOMATIC
    )
    assert found.cooldown_until == NOW + 5_000


def test_c5_a_clock_that_is_set_back_ends_a_cooldown() -> None:
    failed = cadence.attempt_failed(Cadence(), now=NOW, policy=Policy(), trigger=Trigger.AUTOMATIC)
    again = cadence.attempt_failed(failed, now=NOW - 86_400, policy=Policy(), trigger=Trigger.AUTOMATIC)
    assert again.cooldown_until == NOW - 86_400 + Policy().cooldown


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.booleans(), st.sampled_from([Trigger.AUTOMATIC, Trigger.MANUAL])), max_size=8
    )
)
def test_c5_a_source_that_comes_ends_no_other_cooldown_than_of_its_absence(
    attempts: list[tuple[int, bool, Trigger]],
) -> None:
    """C6 too: what was asked of nobody was not paid for. ``known`` is the cooldown of attempts that asked somebody."""
    record, now, known, paid = Cadence(), NOW, 0.0, 0
    for wait, absent, trigger in attempts:
        now += wait
        record = cadence.attempt_started(record, 1, trigger=trigger, paid=True, now=now)
        record = cadence.attempt_failed(record, now=now, policy=Policy(), trigger=trigger, absent=absent)
        paid += not absent
        if not absent and trigger is Trigger.AUTOMATIC:
            known = max(known, now + Policy().cooldown)
        came = cadence.source_came(record)
        assert cadence.cools(came, now) or known <= now
        assert cadence.source_came(came) == came
    assert len(record.paid_attempts) <= paid
    if not any(absent for _, absent, _ in attempts):
        assert cadence.source_came(record) == record


def test_c8_a_skip_is_an_event_when_its_reason_changes() -> None:
    first, is_new = cadence.skipped(Cadence(), SkipReason.CADENCE)
    assert is_new
    again, is_new = cadence.skipped(first, SkipReason.CADENCE)
    assert (again, is_new) == (first, False)
    assert cadence.skipped(again, SkipReason.COOLDOWN)[1]


def test_c8_a_skip_changes_nothing_else() -> None:
    """§1: a skip moves no cadence."""
    found, _ = cadence.skipped(FULL, SkipReason.COOLDOWN)
    assert replace(found, last_skip=FULL.last_skip) == FULL


def test_4_4_finding_nothing_to_fold_clears_the_fact_and_nothing_else() -> None:
    assert cadence.nothing_to_fold(FULL) == replace(FULL, did_not_fit=None)


# --- answers


def test_l1_an_answer_sets_count_and_anchor() -> None:
    found, verdict = answered(FULL, Usage(input_tokens=680))
    assert found == replace(
        FULL, count=Reading(680, MODEL, 31), anchor=Anchor(680, 31, 640, MODEL), did_not_fit=None, fit_attempts=0
    )
    assert verdict == UsageVerdict(680, counted=True, anchored=True, learn=True)


def test_l1_not_after_a_rewrite() -> None:
    found, verdict = answered(FULL, Usage(input_tokens=680), revisions_only_appends=False)
    assert (found.count, found.anchor) == (FULL.count, FULL.anchor)
    assert (verdict.counted, verdict.anchored, verdict.learn) == (False, False, True)
    assert found.did_not_fit is None  # it was answered all the same


def test_4_3_a_bounded_answer_anchors_nothing_and_keeps_the_fact() -> None:
    """B4: the older anchor stays; what the provider counted is still the last count."""
    found, verdict = answered(FULL, Usage(input_tokens=680), replace(PREPARED, bounded=True))
    assert (found.anchor, found.did_not_fit) == (FULL.anchor, FULL.did_not_fit)
    assert (found.count, found.fit_attempts) == (Reading(680, MODEL, 31), 0)
    assert verdict == UsageVerdict(680, counted=True)


@pytest.mark.parametrize(
    ("usage", "verdict"),
    [
        (None, UsageVerdict()),
        (Usage(), UsageVerdict(warning=WarningCode.USAGE_MISSING)),
        (Usage(input_tokens=0), UsageVerdict(warning=WarningCode.USAGE_MISSING)),
        (Usage(input_tokens=680, aggregated=True), UsageVerdict(680, warning=WarningCode.USAGE_AGGREGATED)),
        (Usage(input_tokens=1_001), UsageVerdict(1_001, warning=WarningCode.USAGE_OUTLIER)),
    ],
)
def test_4_3_usage_that_is_no_reading_leaves_count_and_anchor(usage: Usage | None, verdict: UsageVerdict) -> None:
    found, given = answered(FULL, usage)
    assert given == verdict
    assert (found.count, found.anchor) == (FULL.count, FULL.anchor)
    assert (found.did_not_fit, found.fit_attempts) == (None, 0)


@pytest.mark.parametrize(
    ("rule", "count", "size", "estimate", "media", "outlier"),
    [
        ("the window of a call that succeeded", 1_000, 9_000, 660, 0, False),
        ("above it", 1_001, 9_000, 660, 0, True),
        ("a token a byte", 600, 600, 660, 0, False),
        ("more than a token a byte", 601, 600, 660, 0, True),
        ("the media allowance", 700, 600, 660, 100, False),
        ("above it too", 701, 600, 660, 100, True),
        ("a quarter of the estimate", 165, 9_000, 660, 0, False),
        ("under a quarter", 164, 9_000, 660, 0, True),
        ("media are an upper bound, so they are no part of the quarter", 60, 9_000, 660, 420, False),
        ("under a quarter of the text", 59, 9_000, 660, 420, True),
    ],
)
def test_4_3_outliers(rule: str, count: int, size: int, estimate: int, media: int, outlier: bool) -> None:
    prepared = replace(PREPARED, request_bytes=size)
    assert readings.is_outlier(count, prepared, estimate, media) == outlier
    _, verdict = answered(Cadence(), Usage(input_tokens=count), prepared, estimate=estimate, media_tokens=media)
    assert verdict.counted != outlier


def test_4_5_mostly_media_teaches_nothing_about_text() -> None:
    assert not answered(Cadence(), Usage(input_tokens=500), media_tokens=67)[1].learn
    assert answered(Cadence(), Usage(input_tokens=500), media_tokens=66)[1].learn


def test_l1_late_usage_of_an_older_request_does_not_displace_a_newer_reading() -> None:
    older = replace(PREPARED, revision=20, boundary=9)
    found, verdict = answered(FULL, Usage(input_tokens=400), older)
    assert found == FULL
    assert (verdict.counted, verdict.anchored) == (False, False)


def test_l1_late_usage_of_the_last_request_counts() -> None:
    without, _ = answered(replace(FULL, count=None, anchor=None), None)
    found, _ = answered(without, Usage(input_tokens=680))
    assert found.anchor == Anchor(680, 31, 640, MODEL)


def test_l1_usage_of_an_older_request_that_comes_late_is_not_the_last_count() -> None:
    """B4, P1: a bounded request anchors nothing, so that the older anchor may still come; its count is the newer."""
    bounded, _ = answered(Cadence(boundaries=12), Usage(input_tokens=600), replace(PREPARED, bounded=True))
    found, verdict = answered(bounded, Usage(input_tokens=500), replace(PREPARED, revision=25, boundary=10))
    assert found.count == Reading(600, MODEL, 31)
    assert found.anchor == Anchor(500, 25, 640, MODEL)
    assert (verdict.counted, verdict.anchored, verdict.learn) == (False, True, True)


def test_l1_usage_that_comes_again_corrects_itself() -> None:
    once, _ = answered(FULL, Usage(input_tokens=680))
    twice, _ = answered(once, Usage(input_tokens=690))
    assert (twice.count, twice.anchor) == (Reading(690, MODEL, 31), Anchor(690, 31, 640, MODEL))


def test_4_4_a_late_answer_does_not_clear_a_newer_fact() -> None:
    older = replace(PREPARED, boundary=10)
    found, _ = answered(cadence.did_not_fit(FULL, "bounded"), Usage(input_tokens=680), older)
    assert found.did_not_fit == DidNotFit("bounded")


@pytest.mark.parametrize(
    ("rule", "output", "rows", "kept"),
    [
        ("what the rows are worth", 120, 100, True),
        ("a quarter, where signatures of reasoning are estimated high", 25, 100, True),
        ("less than a quarter counts something else", 24, 100, False),
        ("the frames of calls", 2 * 100 + 50 + 256, 100, True),
        ("more is reasoning that does not come back", 2 * 100 + 51 + 256, 100, False),
        ("no rows came with it", 120, 0, False),
        ("no count", None, 100, False),
    ],
)
def test_p2_reported_output_stands_for_the_answers_rows(rule: str, output: int | None, rows: int, kept: bool) -> None:
    usage = Usage(input_tokens=680, output_tokens=output)
    found, _ = answered(Cadence(boundaries=12), usage, answer_tokens=rows)
    assert found.anchor is not None
    assert (found.anchor.output_tokens, found.anchor.output_covered) == ((output, rows) if kept else (0, 0))


def test_4_3_the_answering_model_is_kept_where_the_host_names_it() -> None:
    found, _ = answered(Cadence(boundaries=12), Usage(input_tokens=680), replace(PREPARED, model=OTHER))
    assert found.anchor is not None
    assert found.anchor.model == OTHER


# --- facts and rewrites


@pytest.mark.parametrize("kind", list(RefusalKind))
def test_4_4_only_a_refusal_for_size_sets_the_fact(kind: RefusalKind) -> None:
    found = cadence.refused(Cadence(), kind, 131_000)
    sized = kind in (RefusalKind.CONTEXT_EXCEEDED, RefusalKind.BODY_TOO_LARGE)
    assert found == (Cadence(did_not_fit=DidNotFit("refused", 131_000)) if sized else Cadence())


@pytest.mark.parametrize("cause", ["bounded", "too_large"])
def test_b4_l3_other_causes(cause: str) -> None:
    assert cadence.did_not_fit(Cadence(), cause).did_not_fit == DidNotFit(cause)


def test_4_3_4_4_x2_what_each_rewrite_drops() -> None:
    gone = {"count": None, "anchor": None}
    assert cadence.system_changed(FULL) == replace(FULL, **gone)
    assert cadence.edited(FULL) == replace(FULL, **gone, did_not_fit=None)
    assert cadence.restored(FULL, boundary=11, tokens=400) == replace(
        FULL, **gone, did_not_fit=None, left_tokens=None, left_threshold=None, last_attempt=11, restored_tokens=400,
        last_skip=None,
    )  # fmt: skip


@pytest.mark.parametrize(("tokens", "guarded"), [(400, True), (439, True), (440, False), (900, False), (100, True)])
def test_x2_the_guard_ends_once_the_transcript_grew_by_min_progress(tokens: int, guarded: bool) -> None:
    record = cadence.restored(Cadence(), boundary=3, tokens=400)
    found = cadence.transcript_grew(record, tokens, Policy(min_progress=0.1))
    assert (found.restored_tokens is not None) == guarded
    assert cadence.transcript_grew(Cadence(), tokens, Policy()) == Cadence()


def test_c3_a_warning_is_given_once() -> None:
    record, due = cadence.warn_once(Cadence(), WarningCode.HISTORY_OVER_THRESHOLD)
    assert due
    assert cadence.warn_once(record, WarningCode.HISTORY_OVER_THRESHOLD) == (record, False)
    assert cadence.warn_once(record, WarningCode.UNKNOWN_MODEL)[1]
