"""4.1, 4.5: whatever the measures are."""

from foldline.domain.changes import replace
from foldline.domain.enums import ReadingSource, SignalKind, Suppression, TriggerClass
from foldline.domain.models import Factor, ModelInfo
from foldline.domain.policy import Policy
from foldline.domain.rows import ModelRef
from foldline.domain.session import Anchor, Cadence, DidNotFit, Prepared, Reading
from foldline.engine import factor as factors
from foldline.engine.limits import limits
from foldline.engine.pressure import Measurement, measure, over_hard_limit
from hypothesis import given
from hypothesis import strategies as st

MODELS = st.sampled_from([ModelRef("openai", "gpt-4o"), ModelRef("anthropic", "claude-opus-4-5")])
TOKENS = st.integers(0, 3_000)
WINDOWS = st.integers(100, 2_000)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    model = draw(MODELS)
    return Measurement(
        model=model,
        factor=Factor(model, draw(st.floats(0.5, 2.5))),
        transcript_tokens=draw(TOKENS),
        transcript_bytes=draw(TOKENS),
        tools_tokens=draw(TOKENS),
        tools_bytes=draw(TOKENS),
        exact_tokens=draw(st.none() | TOKENS),
        exact_bytes=draw(st.none() | TOKENS),
        overhead_tokens=draw(st.none() | TOKENS),
        in_run=draw(st.booleans()),
        first_check_of_continued_run=draw(st.booleans()),
        manual=draw(st.booleans()),
    )


@st.composite
def records(draw: st.DrawFn) -> Cadence:
    left = draw(st.none() | TOKENS)
    return Cadence(
        count=draw(st.none() | st.builds(Reading, TOKENS, MODELS)),
        anchor=draw(st.none() | st.builds(Anchor, TOKENS, st.just(1), TOKENS, MODELS)),
        did_not_fit=draw(st.none() | st.just(DidNotFit("refused"))),
        left_tokens=left,
        left_threshold=None if left is None else draw(WINDOWS),
    )


LIMITS = WINDOWS.map(lambda window: limits(Policy(body_cap_bytes=window), ModelInfo(context_window=window), None))


@given(measurements(), records(), LIMITS)
def test_4_1_every_comparison_is_at_least(m: Measurement, record: Cadence, bounds: object) -> None:
    for signal in measure(m, record, bounds).signals:  # type: ignore[arg-type]
        if signal.kind in (SignalKind.DID_NOT_FIT, SignalKind.MANUAL):
            continue
        compared = signal.value is not None and signal.limit is not None
        assert signal.tripped == (compared and signal.value >= signal.limit)  # type: ignore[operator]
        assert (signal.source == ReadingSource.ABSENT) == (signal.value is None)


@given(measurements(), records(), LIMITS)
def test_4_1_measuring_ignores_only_other_models_and_p6_inside_a_run(
    m: Measurement, record: Cadence, bounds: object
) -> None:
    for signal in measure(m, record, bounds).signals:  # type: ignore[arg-type]
        if signal.suppressed_by == Suppression.OTHER_MODEL:
            assert signal.kind in (SignalKind.PROVIDER_COUNT, SignalKind.PROJECTION)
        elif signal.suppressed_by is not None:
            assert (signal.kind, signal.suppressed_by) == (SignalKind.DID_NOT_FIT, Suppression.IN_RUN)
            assert m.in_run


@given(measurements(), records(), LIMITS)
def test_4_1_a_request_that_does_not_fit_trips_something(m: Measurement, record: Cadence, bounds: object) -> None:
    """§1 fits and the signals agree; what is over W or the byte limit trips a capacity signal (C7 rests on it)."""
    report = measure(m, record, bounds)  # type: ignore[arg-type]
    tripped = [s for s in report.signals if s.tripped]
    if not report.fits:
        assert tripped
    if over_hard_limit(report):
        assert any(
            s.trigger_class == TriggerClass.CAPACITY and s.suppressed_by is None
            for s in tripped
            if s.kind in (SignalKind.FORECAST_WINDOW, SignalKind.REQUEST_BYTES)
        )


@given(measurements(), records(), LIMITS, st.integers(1, 500))
def test_4_1_a_longer_transcript_trips_whatever_a_shorter_one_did(
    m: Measurement, record: Cadence, bounds: object, more: int
) -> None:
    longer = replace(m, transcript_tokens=m.transcript_tokens + more, transcript_bytes=m.transcript_bytes + more)
    before, after = measure(m, record, bounds), measure(longer, record, bounds)  # type: ignore[arg-type]
    for short, long in zip(before.signals, after.signals, strict=True):
        assert long.tripped >= short.tripped


@given(
    st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 400_000)), max_size=30),
    st.integers(1, 10_000),
    st.integers(1, 1_000_000),
)
def test_4_5_the_factor_stays_bounded_and_a_refusal_only_raises_it(
    readings: list[tuple[int, int]], raw: int, at_least: int
) -> None:
    policy = Policy()
    learned = Factor(ModelRef())
    for estimated, reported in readings:
        learned = factors.learn(learned, estimated, reported)
        used = factors.within(learned, policy)
        assert policy.estimate.factor_min <= used.value <= policy.estimate.factor_max
    prepared = Prepared(
        "p", "r", revision=1, boundary=0, rewrites=0, rows=1, covered_tokens=raw, request_tokens=raw,
        request_bytes=1_000_000, bounded=False, model=ModelRef(), window=1_000_000,
    )  # fmt: skip
    raised = factors.learn_refusal(learned, prepared, at_least, None)
    assert raised.value >= learned.value
    assert factors.apply(raised, raw) >= at_least
