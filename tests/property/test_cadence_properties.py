"""§5: what no measure, record or policy can bring about."""

from foldline.domain.changes import replace
from foldline.domain.enums import RefusalKind, SignalKind, SkipReason, Suppression, Trigger, TriggerClass
from foldline.domain.folding import FoldPlan, FoldScope
from foldline.domain.models import Factor, Usage
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import ModelRef
from foldline.domain.session import Anchor, Cadence, DidNotFit, Prepared, Reading
from foldline.engine import cadence, readings
from foldline.engine.pressure import Measurement, measure, over_hard_limit
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

MODEL = ModelRef("openai", "gpt-4o")
LIMITS = Limits(threshold=800, ceiling=1_000, input_budget=900, reserve=100, body_cap=5_000, byte_limit=4_000)
NOW = 1_000_000.0
TOKENS = st.integers(0, 1_200)
BOUNDARIES = st.integers(0, 12)

measurements = st.builds(
    Measurement, model=st.just(MODEL), factor=st.just(Factor(MODEL)), transcript_tokens=TOKENS,
    transcript_bytes=st.integers(0, 5_000), tools_tokens=st.integers(0, 300), exact_tokens=st.none() | TOKENS,
    in_run=st.booleans(), manual=st.booleans(),
)  # fmt: skip
calm_records = st.builds(
    Cadence, last_fold=st.none() | BOUNDARIES, last_attempt=st.none() | BOUNDARIES,
    count=st.none() | st.builds(Reading, TOKENS, st.just(MODEL)),
    anchor=st.none() | st.builds(Anchor, TOKENS, st.just(1), TOKENS, st.just(MODEL)),
    did_not_fit=st.none() | st.just(DidNotFit("refused")), fit_attempts=st.integers(0, 3),
    left_tokens=st.none() | TOKENS, left_threshold=st.just(800), restored_tokens=st.none() | TOKENS,
)  # fmt: skip
"""Records with neither cooldown nor paid attempts."""
policies = st.builds(Policy, min_boundaries_between=st.integers(0, 5), min_progress=st.sampled_from([0.0, 0.1, 0.5]))


@given(measurements, calm_records, policies, BOUNDARIES)
def test_c1_c2_x2_never_touch_p5_p6_p7_nor_what_reaches_w(
    m: Measurement, record: Cadence, policy: Policy, boundary: int
) -> None:
    found = cadence.decide(measure(m, record, LIMITS), record, policy, now=NOW, boundary=boundary)
    untouchable = {SignalKind.REQUEST_BYTES, SignalKind.FORECAST_WINDOW, SignalKind.MANUAL}
    for signal in found.report.signals:
        if signal.kind in untouchable:
            assert signal.suppressed_by is None
        if signal.kind == SignalKind.DID_NOT_FIT:
            assert signal.suppressed_by in (None, Suppression.IN_RUN)
        if signal.trigger_class == TriggerClass.CAPACITY:
            assert signal.suppressed_by in (None, Suppression.AFTER_RESTORE)
    if any(s.tripped and s.kind in untouchable for s in found.report.signals):
        assert found.fold
    if over_hard_limit(found.report):
        assert found.fold
        assert found.skip is None


@given(measurements, calm_records, policies, BOUNDARIES)
def test_c8_a_decision_folds_or_says_why_not_or_nothing_is_due(
    m: Measurement, record: Cadence, policy: Policy, boundary: int
) -> None:
    found = cadence.decide(measure(m, record, LIMITS), record, policy, now=NOW, boundary=boundary)
    live = [s for s in found.report.signals if s.tripped and s.suppressed_by is None]
    assert found.fold == bool(live)
    assert not (found.fold and found.skip)
    if found.skip is not None:
        assert found.signals
        assert found.trigger == Trigger.AUTOMATIC
    assert found.forced == (found.trigger == Trigger.DID_NOT_FIT)


@given(measurements, calm_records, policies, BOUNDARIES, st.booleans())
def test_c5_a_cooldown_stops_every_automatic_attempt_and_no_manual_one(
    m: Measurement, record: Cadence, policy: Policy, boundary: int, paid: bool
) -> None:
    cooling = replace(record, cooldown_until=NOW + 1)
    found = cadence.decide(measure(m, cooling, LIMITS), cooling, policy, now=NOW, boundary=boundary, paid=paid)
    assert found.fold == m.manual
    calm = cadence.decide(measure(m, record, LIMITS), record, policy, now=NOW, boundary=boundary, paid=paid)
    if calm.fold and not m.manual:
        assert found.skip == SkipReason.COOLDOWN


@given(measurements, calm_records, BOUNDARIES)
def test_4_1_off_does_nothing_by_itself(m: Measurement, record: Cadence, boundary: int) -> None:
    found = cadence.decide(measure(m, record, LIMITS), record, Policy(auto_compact=False), now=NOW, boundary=boundary)
    assert (found.fold, found.skip) == (m.manual, None)


plans = st.tuples(st.integers(1, 1_200), st.integers(0, 1_200), st.integers(0, 400), st.integers(0, 5_000)).map(
    lambda n: FoldPlan(
        scope=FoldScope.WHOLE, discard=(1,), retain=(2,), insert_before=2, source_rows=(1,), earlier=(), ledger=(),
        covers_run="", budget=300, discarded_tokens=min(n[0], n[1]), retained_tokens=n[0] - min(n[0], n[1]),
        predicted_saving=min(n[0], n[1]) - n[2], transcript_tokens=n[0], discarded_bytes=n[3],
    )
)  # fmt: skip


@given(measurements, calm_records, policies, plans)
def test_c7_exactly(m: Measurement, record: Cadence, policy: Policy, plan: FoldPlan) -> None:
    m = replace(m, transcript_tokens=plan.transcript_tokens)
    report = measure(m, record, LIMITS)
    decision = cadence.decide(report, record, policy, now=NOW, boundary=9)
    if not decision.fold:
        return
    vetoed = cadence.veto(plan, decision, record, policy, LIMITS, tools_tokens=m.tools_tokens, now=NOW)
    after = report.forecast_tokens - plan.predicted_saving
    size_after = report.body_bytes - plan.discarded_bytes + 4 * (plan.discarded_tokens - plan.predicted_saving)
    brings_under = over_hard_limit(report) and after + 100 < 1_000 and size_after < 4_000
    exempt = m.manual or (decision.trigger == Trigger.DID_NOT_FIT and record.fit_attempts < 2)
    too_little = plan.predicted_saving < policy.min_progress * plan.transcript_tokens - 1e-6
    assert vetoed == (SkipReason.NO_PROGRESS if too_little and not exempt and not brings_under else None)


@given(
    calm_records, st.none() | st.builds(Usage, input_tokens=st.none() | TOKENS), st.booleans(), st.booleans(), TOKENS
)
def test_4_3_a_reading_never_survives_a_rewrite_and_a_bounded_answer_never_anchors(
    record: Cadence, usage: Usage | None, appends: bool, bounded: bool, estimate: int
) -> None:
    prepared = Prepared("p", "r", 5, 3, 0, 4, 400, 410, 2_000, bounded, MODEL, 1_000)
    found, verdict = readings.answered(record, prepared, usage, revisions_only_appends=appends, estimate=estimate)
    if not appends or bounded:
        assert found.anchor == record.anchor
        assert not verdict.anchored
    if not appends:
        assert found.count == record.count
    if not bounded:
        assert found.did_not_fit is None
    assert verdict.anchored <= verdict.counted


class CadenceMachine(RuleBasedStateMachine):
    """A session's life against the promises that span its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.record = Cadence()
        self.policy = Policy()
        self.now = NOW
        self.raw = 100
        self.asks: list[int] = []

    @property
    def boundary(self) -> int:
        return max(0, self.record.boundaries - 1)

    @rule(grown=st.integers(0, 300), tools=st.integers(0, 200), progress=st.booleans(), fails=st.booleans())
    def boundary_passes(self, grown: int, tools: int, progress: bool, fails: bool) -> None:
        self.raw += grown
        self.now += 1
        self.record = cadence.transcript_grew(cadence.count_boundary(self.record), self.raw, self.policy)
        m = Measurement(
            model=MODEL, factor=Factor(MODEL), transcript_tokens=self.raw, transcript_bytes=self.raw, tools_tokens=tools
        )
        before = self.record
        found = cadence.decide(measure(m, self.record, LIMITS), self.record, self.policy, now=self.now)
        if not found.fold:
            if found.skip is not None:
                self.record, _ = cadence.skipped(self.record, found.skip)
                assert replace(self.record, last_skip=before.last_skip) == before  # a skip moves no cadence
            return
        live = [s for s in found.report.signals if s.tripped and s.suppressed_by is None]
        if all(s.trigger_class == TriggerClass.ORDINARY for s in live):
            recent = [b for b in self.asks if self.boundary - b < self.policy.min_boundaries_between]
            assert not recent, "C2"
            assert self.boundary > 0, "C1"
        self.asks.append(self.boundary)
        assert found.trigger is not None
        self.record = cadence.attempt_started(
            self.record, self.boundary, trigger=found.trigger, paid=False, now=self.now
        )
        assert self.record.did_not_fit is None  # 4.4: an attempt ends the fact
        if fails:
            self.record = cadence.attempt_failed(self.record, now=self.now, policy=self.policy, trigger=found.trigger)
            return
        self.raw = self.raw // 4 if progress else self.raw - 1
        self.record = cadence.fold_committed(
            self.record, boundary=self.boundary, left_tokens=self.raw, threshold=800, summary_tokens=20
        )

    @precondition(lambda self: self.record.boundaries > 0)
    @rule(bounded=st.booleans(), count=st.integers(1, 1_000), rewritten=st.booleans())
    def answer_comes(self, bounded: bool, count: int, rewritten: bool) -> None:
        before = self.record
        prepared = Prepared(
            "p", "r", self.record.boundaries, self.boundary, 0, 3, self.raw, self.raw, 50_000, bounded, MODEL, 1_000
        )
        self.record, verdict = readings.answered(
            self.record, prepared, Usage(input_tokens=count), revisions_only_appends=not rewritten, estimate=self.raw
        )
        assert self.record.fit_attempts == 0
        if verdict.anchored:
            assert not rewritten
            assert not bounded
        else:
            assert self.record.anchor == before.anchor

    @rule(cause=st.sampled_from(["refused", "bounded", "too_large"]))
    def request_does_not_fit(self, cause: str) -> None:
        if cause == "refused":
            self.record = cadence.refused(self.record, RefusalKind.CONTEXT_EXCEEDED, None)
        else:
            self.record = cadence.did_not_fit(self.record, cause)

    @rule(change=st.sampled_from([cadence.edited, cadence.system_changed]))
    def list_changes(self, change: object) -> None:
        self.record = change(self.record)  # type: ignore[operator]
        assert self.record.anchor is None
        assert self.record.count is None

    @rule(tokens=st.integers(0, 900))
    def restored(self, tokens: int) -> None:
        self.raw = tokens
        self.record = cadence.restored(self.record, boundary=self.boundary, tokens=tokens)
        self.asks.append(self.boundary)
        assert self.record.anchor is None
        assert self.record.did_not_fit is None

    @rule(seconds=st.integers(0, 900))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def the_record_stays_small_and_in_order(self) -> None:
        record = self.record
        assert len(record.summary_sizes) <= 3
        for boundary in (record.last_fold, record.last_attempt):
            assert boundary is None or boundary <= max(0, record.boundaries - 1)


TestCadenceMachine = CadenceMachine.TestCase
