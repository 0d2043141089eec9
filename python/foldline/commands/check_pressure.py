"""CheckPressure and PlanCompaction: what is, and what would happen; both change nothing."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.commands.attempts import plan_inputs, plan_of_restating, who_writes, writing_model
from foldline.commands.draft import Draft
from foldline.commands.fold_parts import FoldRequest
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.measuring import RequestShape, measurement, tools_of
from foldline.commands.native import behind, call_tokens, is_moved, items_of
from foldline.commands.ownership import sidecar_owned
from foldline.commands.reply import Reply, host_exact
from foldline.commands.services import Caller, Services
from foldline.commands.snapshots import snapshot_of
from foldline.commands.sources import EXTERNAL, PAID, ROUNDS, awake, is_external, is_paid, source_of
from foldline.domain.changes import replace
from foldline.domain.enums import SkipReason, SummarySource, Trigger
from foldline.domain.folding import FoldPlan
from foldline.domain.models import Usage
from foldline.domain.policy import Layer, Policy
from foldline.domain.ports import Tools
from foldline.domain.pressure import Limits, PressureReport
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
from foldline.engine import cadence, factor, ledger
from foldline.engine.cadence import Decision
from foldline.engine.limits import limits as limits_of
from foldline.engine.planning import plan
from foldline.engine.pressure import measure, over_hard_limit
from foldline.engine.spending import priced
from foldline.engine.structure import analyze


@dataclass(frozen=True, slots=True)
class Pressure:
    """What the next boundary would measure and decide."""

    revision: int
    decision: Decision
    policy: Policy
    limits: Limits
    tools: Tools

    @property
    def report(self) -> PressureReport:
        return self.decision.report


def check_pressure(
    services: Services, caller: Caller, session_id: str, shape: RequestShape, override: Layer | None = None,
    known_revision: int | None = None,
) -> Pressure:  # fmt: skip
    """Measures the session as it is (§4), and foresees whether a fold that is due would be made (C4, F4, N4).

    Args:
        known_revision: what the numbers of ``shape`` describe; None for the current list.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            sidecar_owned(live.session)
            pressure = pressure_of(services, live, shape, override, known_revision=known_revision)
            session, offsets = awake(services, pressure.policy, live.session), live.offsets()
            restates = _restates(services, live, shape)
        if restates:
            return replace(pressure, decision=cadence.restating(pressure.decision))
        if not pressure.decision.fold:
            return pressure
        planner = _Planner(services, session, offsets, pressure, shape)
        skip = planner.skip(pressure.decision)
        return replace(pressure, decision=replace(pressure.decision, fold=skip is None, skip=skip))


def pressure_of(
    services: Services, live: LiveSession, shape: RequestShape, override: Layer | None, *, manual: bool = False,
    known_revision: int | None = None, manual_trigger: Trigger = Trigger.MANUAL,
) -> Pressure:  # fmt: skip
    """Measures under the session's lock; ``manual`` trips P7, which stands for ``manual_trigger``."""
    draft = Draft(services, live)
    session = live.session
    info = services.model(shape.model if shape.model.model else session.model)
    policy = services.policy(session, override).policy
    session = awake(services, policy, session)
    limits = limits_of(policy, info, shape.output_reserve_tokens)
    tools, _ = tools_of(services, session, shape)
    exact = host_exact(services, live, Reply(known_revision=known_revision), shape)
    measured = measurement(services, draft, shape, tools, exact, manual=manual)
    report = measure(measured, session.cadence, limits)
    decision = cadence.decide(
        report, session.cadence, policy, now=services.clock(), boundary=session.cadence.boundaries,
        paid=is_paid(services, policy), external=is_external(services, policy),
        manual_trigger=manual_trigger,
    )  # fmt: skip
    return Pressure(session.revision, decision, policy, limits, tools)


def _restates(services: Services, live: LiveSession, shape: RequestShape) -> bool:
    """N4: whether a request is preceded by a fold because it cannot carry what another model compacted."""
    wire = live.session.wire
    model = shape.model if shape.model.model else live.session.model
    return is_moved(services, live, model, wire.format if wire is not None and wire.model == model else None)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A plan, and who would write its summary.

    Attributes:
        unavailable: why not the provider itself, where policy asks for that (N3).
        model: that would be called; empty for none.
        usage: what that call would use and cost; None where none is made of ours.
    """

    plan: FoldPlan
    source: SummarySource
    unavailable: str = ""
    model: ModelRef = ModelRef()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class PlannedFold:
    """What a fold would do now, and why an automatic one that is due would not be made.

    Attributes:
        fold: a manual one; where that finds nothing, the one that a request would be preceded by (N4).
    """

    revision: int
    report: PressureReport
    fold: Foreseen | None
    skip: SkipReason | None


def plan_compaction(
    services: Services, caller: Caller, session_id: str, shape: RequestShape, override: Layer | None = None
) -> PlannedFold:
    """Plans a manual fold, and foresees who would write it (S2, N1-N4), without a model call or any change.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            sidecar_owned(live.session)
            shape = shape_of_last(services, live.session, shape)
            pressure = pressure_of(services, live, shape, override, manual=True)
            due = pressure_of(services, live, shape, override).decision
            session, offsets = awake(services, pressure.policy, live.session), live.offsets()
            restates = _restates(services, live, shape)
        planner = _Planner(services, session, offsets, pressure, shape)
        fold = planner.foreseen(pressure.decision)
        if restates:
            fold = fold or planner.foreseen(cadence.restating(due))
            return PlannedFold(session.revision, pressure.report, fold, None)
        skip = planner.skip(due) if due.fold else due.skip
        skip = SkipReason.NOTHING_TO_FOLD if fold is None else skip
        return PlannedFold(session.revision, pressure.report, fold, skip)


def shape_of_last(services: Services, session: Session, shape: RequestShape) -> RequestShape:
    """``shape``, or where it says nothing, what the last prepared request carried beside the rows (F2)."""
    last = session.last_prepared
    if shape != RequestShape() or last is None:
        return shape
    tokens = factor.apply(services.factor_of(session, last.model), last.beside_tokens)
    return RequestShape(model=last.model, overhead_tokens=tokens, overhead_bytes=last.beside_bytes)


class _Planner:
    """Plans on a list as it was under the session's lock; what it says is what a fold of it would do."""

    def __init__(
        self, services: Services, session: Session, offsets: list[int], pressure: Pressure, shape: RequestShape
    ) -> None:
        self.services, self.session, self.pressure, self.shape = services, session, pressure, shape
        stored = services.store.read_rows(session.key, offsets)
        rows = [to_row(r) for r in stored]
        self.rows = {r.offset: r for r in rows}
        self.snapshot = snapshot_of(services, session, stored, rows, pressure.report.factor)
        self.structure, self.calls = analyze(self.snapshot), ledger.calls_of_rounds(rows, session.calls)

    def request(self, decision: Decision) -> FoldRequest:
        return FoldRequest(
            decision=decision, policy=self.pressure.policy, limits=self.pressure.limits,
            tools_tokens=self.pressure.report.parts.tools, tools_bytes=self.shape.beside_bytes(self.pressure.tools),
            model=self.shape.model,
        )  # fmt: skip

    def plan(self, request: FoldRequest) -> FoldPlan | None:
        inputs = plan_inputs(self.services, self.session, request)
        if request.decision.restates:
            return plan_of_restating(self.services, self.session, self.snapshot, list(self.rows.values()), inputs)
        return plan(self.snapshot, self.structure, inputs, self.calls)

    def writer(self, request: FoldRequest, planned: FoldPlan) -> tuple[SummarySource, str]:
        return who_writes(self.services, self.session, request, self.snapshot, planned, self.rows)

    def foreseen(self, decision: Decision) -> Foreseen | None:
        """What a fold would do; None where there is nothing to fold."""
        request = self.request(decision)
        planned = self.plan(request)
        if planned is None:
            return None
        source, unavailable = self.writer(request, planned)
        if source_of(self.services, self.pressure.policy) is SummarySource.NATIVE and planned.scope in ROUNDS:
            unavailable = "rounds of the open run fold, whose ledger no item carries"
        if self._is_barred(request, source):
            source = SummarySource.EXTRACTIVE
        tokens = self._source_tokens(request, planned, source)
        model = writing_model(self.services, request, self.session, source)
        if not model.model:
            return Foreseen(planned, source, unavailable)
        usage = Usage(
            input_tokens=tokens, output_tokens=max(0, planned.discarded_tokens - planned.predicted_saving)
        )  # fmt: skip
        return Foreseen(planned, source, unavailable, model, priced(usage, self.services.model(model).prices))

    def _is_barred(self, request: FoldRequest, source: SummarySource) -> bool:
        """Whether cooldown or budget give the word to the successor (S2)."""
        decision, policy, paid = request.decision, request.policy, source in PAID
        gate = cadence.barred_by(decision, self.session.cadence, policy, now=self.services.clock(), paid=paid)
        if gate is None or source in EXTERNAL or not paid:
            return False
        return decision.restates or cadence.successor_may_write(policy, over_hard_limit(decision.report))

    def _source_tokens(self, request: FoldRequest, planned: FoldPlan, source: SummarySource) -> int:
        """What the model would read; what a native item stands for in its place, except by who reads the item (N4)."""
        if source is SummarySource.NATIVE:
            return call_tokens(self.snapshot, planned, request)
        if planned.restated:
            return round(planned.restated_tokens * self.snapshot.factor)
        items = items_of(self.rows[o] for o in planned.earlier)
        hidden = behind(self.services, self.session, items).tokens
        offsets = {i.offset for i in items}
        own = sum(r.tokens for r in self.snapshot.rows if r.offset in offsets)
        return planned.discarded_tokens + round((hidden - own) * self.snapshot.factor)

    def skip(self, due: Decision) -> SkipReason | None:
        """Why a due fold would not be made after all; None where it would."""
        request = self.request(due)
        planned = self.plan(request)
        if planned is None:
            return SkipReason.NOTHING_TO_FOLD
        source, _ = self.writer(request, planned)
        return cadence.veto(
            planned, due, self.session.cadence, self.pressure.policy, self.pressure.limits,
            tools_tokens=self.pressure.report.parts.tools, now=self.services.clock(), paid=source in PAID,
            external=source in EXTERNAL,
        )  # fmt: skip
