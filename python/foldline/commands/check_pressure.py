"""CheckPressure and PlanCompaction: what is, and what would happen; both change nothing."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.commands.draft import Draft
from foldline.commands.fold import FoldRequest, plan_inputs
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.measuring import RequestShape, measurement, tools_of
from foldline.commands.reply import Reply, host_exact
from foldline.commands.services import Caller, Services
from foldline.commands.snapshots import snapshot_of
from foldline.domain.enums import SkipReason
from foldline.domain.folding import FoldPlan
from foldline.domain.policy import Layer, Policy
from foldline.domain.ports import Tools
from foldline.domain.pressure import Limits, PressureReport
from foldline.engine import cadence, ledger
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
    """Measures the session as it is (§4).

    Args:
        known_revision: what the numbers of ``shape`` describe; None for the current list.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        return pressure_of(services, live, shape, override, known_revision=known_revision)


def pressure_of(
    services: Services, live: LiveSession, shape: RequestShape, override: Layer | None, *, manual: bool = False,
    known_revision: int | None = None,
) -> Pressure:  # fmt: skip
    """Measures under the session's lock; ``manual`` trips P7."""
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
        report, session.cadence, policy, now=services.clock(), boundary=session.cadence.boundaries
    )
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
            pressure = pressure_of(services, live, shape, override, manual=True)
            due = pressure_of(services, live, shape, override).decision
            session, offsets = live.session, live.offsets()
        stored = services.store.read_rows(session.key, offsets)
        rows = [to_row(r) for r in stored]
        snapshot = snapshot_of(services, session, stored, rows, pressure.report.factor)
        structure, calls = analyze(snapshot), ledger.calls_of_rounds(rows, session.calls)

        def planned(decision: Decision) -> FoldPlan | None:
            request = FoldRequest(
                decision=decision, policy=pressure.policy, limits=pressure.limits,
                tools_tokens=pressure.report.parts.tools, tools_bytes=shape.beside_bytes(pressure.tools),
            )  # fmt: skip
            return plan(snapshot, structure, plan_inputs(session, request), calls)

        manual, skip = planned(pressure.decision), due.skip
        if due.fold:
            automatic = planned(due)
            skip = SkipReason.NOTHING_TO_FOLD if automatic is None else cadence.veto(
                automatic, due, session.cadence, pressure.policy, pressure.limits,
                tools_tokens=pressure.report.parts.tools, now=services.clock(),
            )  # fmt: skip
        skip = SkipReason.NOTHING_TO_FOLD if manual is None else skip
        return PlannedFold(session.revision, pressure.report, manual, skip)
