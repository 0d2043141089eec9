"""4.1: every signal with value, limit, source, class and what ignores it."""

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import ReadingSource, SignalKind, Suppression, TriggerClass
from foldline.domain.models import Factor
from foldline.domain.pressure import Breakdown, Limits, PressureReport, Signal
from foldline.domain.rows import ModelRef
from foldline.domain.session import Anchor, Cadence, DidNotFit, Reading
from foldline.engine.pressure import Measurement, measure, over_hard_limit

MODEL, OTHER = ModelRef("openai", "gpt-4o"), ModelRef("anthropic", "claude-sonnet-4-5")
LIMITS = Limits(threshold=800, ceiling=1_000, input_budget=900, reserve=100, body_cap=5_000, byte_limit=4_000)
M = Measurement(model=MODEL, factor=Factor(MODEL), transcript_tokens=500, transcript_bytes=2_000)
ORDINARY, CAPACITY = TriggerClass.ORDINARY, TriggerClass.CAPACITY


def signal(report: PressureReport, kind: SignalKind) -> Signal:
    return next(s for s in report.signals if s.kind == kind)


def test_4_1_every_signal_is_listed_once_whatever_is_known() -> None:
    for m in (M, replace(M, transcript_tokens=0, transcript_bytes=0, manual=True)):
        assert [s.kind for s in measure(m, Cadence(), LIMITS).signals] == list(SignalKind)


def test_4_1_absent_readings_say_so_and_trip_nothing() -> None:
    report = measure(M, Cadence(), LIMITS)
    for kind in (
        SignalKind.PROVIDER_COUNT, SignalKind.PROJECTION, SignalKind.DID_NOT_FIT, SignalKind.MANUAL
    ):  # fmt: skip
        found = signal(report, kind)
        assert (found.source, found.value, found.tripped) == (ReadingSource.ABSENT, None, False)


@pytest.mark.parametrize(
    ("rule", "kind", "at", "under"),
    [
        (
            "P1", SignalKind.PROVIDER_COUNT,
            (M, Cadence(count=Reading(800, MODEL))), (M, Cadence(count=Reading(799, MODEL))),
        ),
        (
            "P2", SignalKind.PROJECTION,
            (M, Cadence(anchor=Anchor(700, 1, 400, MODEL))), (M, Cadence(anchor=Anchor(699, 1, 400, MODEL))),
        ),
        (
            "P3", SignalKind.HISTORY_ESTIMATE,
            (replace(M, transcript_tokens=800), Cadence()), (replace(M, transcript_tokens=799), Cadence()),
        ),
        (
            "P4 T", SignalKind.FORECAST_THRESHOLD,
            (replace(M, tools_tokens=300), Cadence()), (replace(M, tools_tokens=299), Cadence()),
        ),
        (
            "P4 W", SignalKind.FORECAST_WINDOW,
            (replace(M, transcript_tokens=900), Cadence()), (replace(M, transcript_tokens=899), Cadence()),
        ),
        (
            "P5", SignalKind.REQUEST_BYTES,
            (replace(M, tools_bytes=2_000), Cadence()), (replace(M, tools_bytes=1_999), Cadence()),
        ),
    ],
)  # fmt: skip
def test_4_1_a_signal_trips_at_its_limit_and_not_one_below(
    rule: str, kind: SignalKind, at: tuple[Measurement, Cadence], under: tuple[Measurement, Cadence]
) -> None:
    assert signal(measure(*at, LIMITS), kind).tripped
    assert not signal(measure(*under, LIMITS), kind).tripped


@pytest.mark.parametrize(
    ("rule", "cadence", "projection", "history"),
    [
        ("P2, P3: no fold yet counts as under", Cadence(), CAPACITY, CAPACITY),
        ("P2: an anchor at T is ordinary", Cadence(anchor=Anchor(800, 1, 500, MODEL)), ORDINARY, CAPACITY),
        ("the last fold left it under its T", Cadence(left_tokens=799, left_threshold=800), CAPACITY, CAPACITY),
        ("C3: the last fold left it at its T", Cadence(left_tokens=800, left_threshold=800), ORDINARY, ORDINARY),
        ("C3: judged by the T of then, not of now", Cadence(left_tokens=900, left_threshold=2_000), CAPACITY, CAPACITY),
        ("C3: a T raised since changes nothing", Cadence(left_tokens=500, left_threshold=400), ORDINARY, ORDINARY),
    ],
)
def test_p2_p3_c3_classes(rule: str, cadence: Cadence, projection: TriggerClass, history: TriggerClass) -> None:
    if cadence.anchor is None:
        cadence = replace(cadence, anchor=Anchor(799, 1, 500, MODEL))
    report = measure(M, cadence, LIMITS)
    assert signal(report, SignalKind.PROJECTION).trigger_class == projection
    assert signal(report, SignalKind.HISTORY_ESTIMATE).trigger_class == history


def test_p4_p5_p6_p7_classes() -> None:
    report = measure(M, Cadence(), LIMITS)
    classes = {s.kind: s.trigger_class for s in report.signals}
    assert classes[SignalKind.PROVIDER_COUNT] == ORDINARY
    assert classes[SignalKind.FORECAST_THRESHOLD] == ORDINARY
    assert classes[SignalKind.FORECAST_WINDOW] == classes[SignalKind.REQUEST_BYTES] == CAPACITY
    assert classes[SignalKind.DID_NOT_FIT] == TriggerClass.DID_NOT_FIT
    assert classes[SignalKind.MANUAL] == TriggerClass.MANUAL


def test_p2_only_the_rows_appended_since_are_estimated() -> None:
    m = replace(M, factor=Factor(MODEL, 1.5), transcript_tokens=500)
    report = measure(m, Cadence(anchor=Anchor(600, 1, 460, MODEL)), LIMITS)
    found = signal(report, SignalKind.PROJECTION)
    assert (found.value, found.source) == (600 + 60, ReadingSource.ANCHORED)
    assert signal(report, SignalKind.HISTORY_ESTIMATE).value == 750


def test_p2_the_answers_own_rows_are_what_the_provider_counted() -> None:
    m = replace(M, factor=Factor(MODEL, 1.5), transcript_tokens=500)
    anchor = Anchor(600, 1, 400, MODEL, output_tokens=75, output_covered=60)
    assert signal(measure(m, Cadence(anchor=anchor), LIMITS), SignalKind.PROJECTION).value == 600 + 75 + 60


@pytest.mark.parametrize("kind", [SignalKind.PROVIDER_COUNT, SignalKind.PROJECTION])
def test_4_3_readings_of_another_model_are_ignored(kind: SignalKind) -> None:
    cadence = Cadence(count=Reading(900, OTHER), anchor=Anchor(900, 1, 0, OTHER))
    found = signal(measure(M, cadence, LIMITS), kind)
    assert (found.tripped, found.suppressed_by) == (True, Suppression.OTHER_MODEL)
    same = Cadence(count=Reading(900, MODEL), anchor=Anchor(900, 1, 0, MODEL))
    assert signal(measure(M, same, LIMITS), kind).suppressed_by is None


def test_4_1_an_exact_count_replaces_the_estimate_in_p4_alone() -> None:
    m = replace(M, transcript_tokens=790, exact_tokens=400, tools_tokens=50)
    report = measure(m, Cadence(), LIMITS)
    forecast = signal(report, SignalKind.FORECAST_THRESHOLD)
    assert (forecast.value, forecast.source, forecast.tripped) == (400, ReadingSource.EXACT, False)
    assert signal(report, SignalKind.FORECAST_WINDOW).value == 500
    assert signal(report, SignalKind.HISTORY_ESTIMATE).value == 790
    assert (report.forecast_tokens, report.transcript_tokens) == (400, 790)


def test_4_1_an_exact_count_after_a_fold_is_anchored() -> None:
    m = replace(
        M, exact_tokens=400, exact_bytes=10, exact_source=ReadingSource.ANCHORED,
        exact_bytes_source=ReadingSource.ANCHORED,
    )  # fmt: skip
    report = measure(m, Cadence(), LIMITS)
    assert report.forecast_source == report.bytes_source == ReadingSource.ANCHORED


def test_4_1_overhead_stands_for_everything_but_rows() -> None:
    m = replace(M, tools_tokens=50, tools_bytes=90, overhead_tokens=120, overhead_bytes=700, factor=Factor(MODEL, 2.0))
    report = measure(m, Cadence(), LIMITS)
    assert report.forecast_tokens == 1_000 + 120  # stated, so no factor on it
    assert report.body_bytes == 2_700
    assert report.parts.tools == 120
    assert report.forecast_source == report.bytes_source == ReadingSource.ESTIMATED


def test_p5_without_a_cap_has_a_value_and_no_limit() -> None:
    found = signal(measure(M, Cadence(), replace(LIMITS, body_cap=None, byte_limit=None)), SignalKind.REQUEST_BYTES)
    assert (found.value, found.limit, found.tripped) == (2_000, None, False)


@pytest.mark.parametrize(
    ("in_run", "first_of_continued", "suppressed"),
    [(False, False, None), (False, True, None), (True, True, None), (True, False, Suppression.IN_RUN)],
)
def test_p6_counts_on_whole_checks_and_on_the_first_of_a_continued_run(
    in_run: bool, first_of_continued: bool, suppressed: Suppression | None
) -> None:
    m = replace(M, in_run=in_run, first_check_of_continued_run=first_of_continued)
    found = signal(measure(m, Cadence(did_not_fit=DidNotFit("refused")), LIMITS), SignalKind.DID_NOT_FIT)
    assert (found.tripped, found.suppressed_by) == (True, suppressed)


def test_p7_a_manual_request_always_trips() -> None:
    assert signal(measure(replace(M, manual=True), Cadence(), LIMITS), SignalKind.MANUAL).tripped


def test_4_5_parts_and_estimates_are_after_the_factor_and_name_their_error() -> None:
    m = replace(
        M, factor=Factor(MODEL, 1.1, 0.03, 9), parts=Breakdown(system=10, tools=20, history=490), estimator="o200k_base"
    )
    report = measure(m, Cadence(), LIMITS)
    assert report.parts == Breakdown(system=11, tools=22, history=539)
    assert (report.estimator, report.estimator_error, report.factor) == ("o200k_base", 0.03, 1.1)


@pytest.mark.parametrize(
    ("tokens", "size", "fits", "over"),
    [
        (799, 3_999, True, False),
        (800, 0, False, False),
        (899, 0, False, False),
        (900, 0, False, True),
        (0, 4_000, False, True),
    ],
)
def test_1_fits_and_c7_over(tokens: int, size: int, fits: bool, over: bool) -> None:
    report = measure(replace(M, transcript_tokens=tokens, transcript_bytes=size), Cadence(), LIMITS)
    assert (report.fits, over_hard_limit(report)) == (fits, over)
