"""Who writes a summary: the configured source, and who may write in its place (S2, F5, F12, A4)."""

from __future__ import annotations

from foldline.commands.fold_parts import FoldRequest
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.curators import CuratorRole
from foldline.domain.enums import SummarySource, SummarySourcePolicy
from foldline.domain.folding import FoldScope, SummaryFailed
from foldline.domain.policy import Policy
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
from foldline.engine import cadence
from foldline.engine.pressure import over_hard_limit

EXTERNAL = frozenset({SummarySource.CURATOR, SummarySource.COMPACTOR})
"""Sources that are handed only the rows before the run (F5)."""
WHAT_CAME_BEFORE = EXTERNAL | {SummarySource.NATIVE}
"""Sources that write of these rows alone: no provider's item can carry the ledger of an open run (F3)."""
ROUNDS = (FoldScope.STAGE_2, FoldScope.COMBINED)
"""Folds of the open run's rounds, which are the sidecar's own to fold (F5)."""
PAID = EXTERNAL | {SummarySource.PROVIDER, SummarySource.NATIVE}
"""Sources whose calls cost money, or may: nobody tells what a curator or compactor does (C6)."""


def source_of(services: Services, policy: Policy) -> SummarySource:
    """Who writes summaries by configuration (S2); AUTO takes the compactor or provider that the server has."""
    asked = policy.summary.source
    if asked is not SummarySourcePolicy.AUTO:
        return SummarySource[asked.name]
    if services.sources.compactor is not None:
        return SummarySource.COMPACTOR
    return SummarySource.PROVIDER if services.sources.provider is not None else SummarySource.EXTRACTIVE


def is_external(services: Services, policy: Policy) -> bool:
    return source_of(services, policy) in EXTERNAL


def is_paid(services: Services, policy: Policy) -> bool:
    return source_of(services, policy) in PAID


def may_write_ahead(services: Services, policy: Policy, session: Session) -> bool:
    """A1, A4: whether summaries are written ahead of need; by default those that cost nothing."""
    source = source_of(services, policy)
    if source is SummarySource.NATIVE:
        return False  # An item that is ready could not be taken in as an earlier summary (A2).
    if source is SummarySource.COMPACTOR:
        opted = bool(getattr(services.sources.compactor, "background", False))
        return opted and bool(policy.background.enabled)
    if source is SummarySource.CURATOR and _connected(services, session, background=True) is None:
        return False
    enabled = policy.background.enabled
    return source not in PAID if enabled is None else enabled


def _connected(services: Services, session: Session, *, background: bool) -> CuratorRole | None:
    return services.curators.role_for(session.tenant, session.labels, background=background)


def awake(services: Services, policy: Policy, session: Session) -> Session:
    """C5: the session without the cooldown that began because no curator was there, once one is."""
    record = session.cadence
    if not record.cooldown_absent or source_of(services, policy) is not SummarySource.CURATOR:
        return session
    if _connected(services, session, background=False) is None:
        return session
    return replace(session, cadence=cadence.source_came(record))


def writer_of(
    services: Services, policy: Policy, scope: FoldScope, session: Session, *, background: bool = False
) -> SummarySource:
    """Who writes the summary of a plan: rounds of the open run are the sidecar's own to fold (F5).

    Where the policy says CURATOR, a compactor does that is connected while no curator is (S6, F12).
    """
    source = source_of(services, policy)
    if source in WHAT_CAME_BEFORE and scope in ROUNDS:
        return in_its_place(services)
    if source is SummarySource.CURATOR:
        compacts = _connected(services, session, background=background) is CuratorRole.COMPACTOR
        return SummarySource.COMPACTOR if compacts else source
    return source


def in_its_place(services: Services) -> SummarySource:
    """Who writes what a curator, compactor or provider's compaction does not (F5, N3, N4)."""
    return SummarySource.PROVIDER if services.sources.provider is not None else SummarySource.EXTRACTIVE


def is_compacted(services: Services, policy: Policy, session: Session) -> bool:
    """Whether a compactor folds what stands before the run (F12)."""
    return writer_of(services, policy, FoldScope.STAGE_1, session) is SummarySource.COMPACTOR


def order(services: Services, request: FoldRequest, source: SummarySource) -> list[SummarySource]:
    """The source, and after it who may write in its place (S2).

    Where a native item is to be restated (N4), preserving it would not serve: the request cannot carry it.
    """
    over = over_hard_limit(request.decision.report)
    followed = source in (SummarySource.PROVIDER, SummarySource.NATIVE)
    if followed and (request.decision.restates or cadence.successor_may_write(request.policy, over)):
        return list(dict.fromkeys((source, in_its_place(services), SummarySource.EXTRACTIVE)))
    return [source]


def handoff_follows(source: SummarySource, failure: SummaryFailed) -> bool:
    """S7: whether a failure of the provider's call is of the kind that the mechanical handoff is for."""
    return source is SummarySource.PROVIDER and failure.context_exceeded


def summary_model(request: FoldRequest, session: Session) -> ModelRef:
    """S2: the fast model, else that of the current request, else of the last answer, else the session's."""
    last = session.last_prepared.model if session.last_prepared else ModelRef()
    candidates = (request.policy.summary.fast_model or ModelRef(), request.model, last)
    return next((m for m in candidates if m.model), session.model)
