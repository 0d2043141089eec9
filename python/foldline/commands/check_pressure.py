"""CheckPressure and PlanCompaction: what is, and what would happen; both change nothing."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.commands.attempts import plan_inputs
from foldline.commands.draft import Draft
from foldline.commands.fold_parts import FoldRequest
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.measuring import RequestShape, measurement, tools_of
from foldline.commands.ownership import sidecar_owned
from foldline.commands.reply import Reply, host_exact
from foldline.commands.services import Caller, Services
from foldline.commands.snapshots import snapshot_of
from foldline.commands.sources import EXTERNAL, PAID, is_external, is_paid, writer_of
from foldline.domain.changes import replace
from foldline.domain.enums import SkipReason, Trigger
from foldline.domain.folding import FoldPlan
from foldline.domain.policy import Layer, Policy
from foldline.domain.ports import Tools
from foldline.domain.pressure import Limits, PressureReport
from foldline.domain.session import Session
from foldline.engine import cadence, factor, ledger
from foldline.engine.cadence import Decision
from foldline.engine.limits import limits as limits_of
from foldline.engine.planning import plan
from foldline.engine.pressure import measure
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
    """Measures the session as it is (§4), and foresees whether a fold that is due would be made (C4, F4).

    Args:
        known_revision: what the numbers of ``shape`` describe; None for the current list.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            sidecar_owned(live.session)
            pressure = pressure_of(services, live, shape, override, known_revision=known_revision)
            session, offsets = live.session, live.offsets()
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


@dataclass(frozen=True, slots=True)
class PlannedFold:
    """What a manual fold would do now, and why an automatic one that is due would not be made."""

    revision: int
    report: PressureReport
    plan: FoldPlan | None
    skip: SkipReason | None


def plan_compaction(
    services: Services, caller: Caller, session_id: str, shape: RequestShape, override: Layer | None = None
) -> PlannedFold:
    """Plans a manual fold without a model call and without changing anything.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            sidecar_owned(live.session)
            shape = shape_of_last(services, live.session, shape)
            pressure = pressure_of(services, live, shape, override, manual=True)
            due = pressure_of(services, live, shape, override).decision
            session, offsets = live.session, live.offsets()
        planner = _Planner(services, session, offsets, pressure, shape)
        manual = planner.plan(pressure.decision)
        skip = planner.skip(due) if due.fold else due.skip
        skip = SkipReason.NOTHING_TO_FOLD if manual is None else skip
        return PlannedFold(session.revision, pressure.report, manual, skip)


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
        self.snapshot = snapshot_of(services, session, stored, rows, pressure.report.factor)
        self.structure, self.calls = analyze(self.snapshot), ledger.calls_of_rounds(rows, session.calls)

    def plan(self, decision: Decision) -> FoldPlan | None:
        request = FoldRequest(
            decision=decision, policy=self.pressure.policy, limits=self.pressure.limits,
            tools_tokens=self.pressure.report.parts.tools, tools_bytes=self.shape.beside_bytes(self.pressure.tools),
        )  # fmt: skip
        return plan(self.snapshot, self.structure, plan_inputs(self.services, self.session, request), self.calls)

    def skip(self, due: Decision) -> SkipReason | None:
        """Why a due fold would not be made after all; None where it would."""
        planned = self.plan(due)
        if planned is None:
            return SkipReason.NOTHING_TO_FOLD
        source = writer_of(self.services, self.pressure.policy, planned.scope, self.session)
        return cadence.veto(
            planned, due, self.session.cadence, self.pressure.policy, self.pressure.limits,
            tools_tokens=self.pressure.report.parts.tools, now=self.services.clock(), paid=source in PAID,
            external=source in EXTERNAL,
        )  # fmt: skip
