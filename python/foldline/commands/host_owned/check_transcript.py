"""CheckPressure with a transcript: what CompactTranscript would measure and decide; nothing changes (H1)."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.commands.check_pressure import Pressure
from foldline.commands.host_owned.pressure import measured, plan_of, with_ledger
from foldline.commands.host_owned.views import Given, is_new_session, view_of
from foldline.commands.measuring import RequestShape
from foldline.commands.ownership import host_owned
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.enums import SkipReason
from foldline.domain.events import Warning_
from foldline.domain.policy import Layer
from foldline.domain.rows import AssistantRow


@dataclass(frozen=True, slots=True)
class CheckedTranscript:
    pressure: Pressure
    warnings: tuple[Warning_, ...]


def check_transcript(
    services: Services, caller: Caller, session_id: str, transcript: Given, shape: RequestShape,
    override: Layer | None = None,
) -> CheckedTranscript:  # fmt: skip
    """Measures a host's list, and foresees whether a fold that is due would be made (C4, F4).

    Raises:
        FoldlineError: SESSION_NOT_FOUND, TOOLS_UNKNOWN, FIELD_VALIDATION, SUMMARY_ROW_REFUSED and what an append
            refuses of the rows.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        session = live.session
        host_owned(session)
        view = with_ledger(services, session, view_of(services, live, transcript))
        boundary = session.cadence.boundaries
        if is_new_session(session):
            boundary = sum(1 for r in view.transcript.rows if isinstance(r.body, AssistantRow))
        found = measured(services, session, view, shape, override, boundary=boundary)
        decision = found.decision
        if decision.fold:
            planned = plan_of(
                services, replace(session, cadence=found.record), view, found, shape, services.clock()
            )  # fmt: skip
            skip = planned if isinstance(planned, SkipReason) else None
            decision = replace(decision, fold=skip is None, skip=skip)
        return CheckedTranscript(
            Pressure(session.revision, decision, found.policy, found.limits, found.tools), view.warnings
        )
