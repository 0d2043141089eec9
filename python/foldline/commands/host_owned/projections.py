"""CommitProjection and AbortProjection: what becomes of a staged fold (H3), and what time removes."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from foldline import _core
from foldline.commands.draft import Draft, chained, commit
from foldline.commands.host_owned.staging import settle, settle_expired
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.live import LiveSession
from foldline.commands.ownership import host_owned
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, RevisionKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event
from foldline.domain.folding import CompactionRecord, to_ranges
from foldline.domain.ports import Batch, Rewrite
from foldline.domain.projections import Projection, ProjectionState, Settled, StagedFold
from foldline.domain.session import Session, SourceTotals
from foldline.engine import cadence
from foldline.engine.lineage import expand

_ENDS = {
    ProjectionState.COMMITTED: "was committed",
    ProjectionState.ABORTED: "was aborted",
    ProjectionState.REPLACED: "gave way to a later one",
}


def commit_projection(services: Services, caller: Caller, session_id: str, projection_id: str, request_id: str) -> int:
    """Publishes a projection: archive, memory, record, cadence and event in one transaction (V10).

    Returns:
        Memory entries published; the same again for one that is committed already.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, FIELD_VALIDATION for a session that is not the host's, PROJECTION_NOT_FOUND,
            PROJECTION_EXPIRED, REQUEST_ID_REUSED.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        host_owned(live.session)
        found = repeated(services, caller, live.session.key, request_id)
        if found is not None:
            return answer_of(found, int)
        projection = _current(services, live, projection_id)
        if projection.state is ProjectionState.COMMITTED:
            return projection.entries
        if projection.state is ProjectionState.EXPIRED:
            raise _expired(projection)
        staged = services.store.staged_projection(live.session.key)
        if projection.state is not ProjectionState.STAGED or staged is None:
            raise _not_found(projection_id, projection.state)
        fold = _as_committed(services, live.session, staged[1])
        _commit(services, caller, live, projection, fold, request_id)
        services.memory.wake()
        return len(fold.entries)


def abort_projection(services: Services, caller: Caller, session_id: str, projection_id: str, request_id: str) -> None:
    """Removes a projection; one that is gone already stays gone.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, FIELD_VALIDATION for a session that is not the host's, PROJECTION_NOT_FOUND,
            also for one that was committed, REQUEST_ID_REUSED.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        host_owned(live.session)
        if repeated(services, caller, live.session.key, request_id) is not None:
            return
        projection = _current(services, live, projection_id)
        if projection.state is ProjectionState.COMMITTED:
            raise _not_found(projection_id, projection.state)
        draft = Draft(services, live)
        if projection.state is ProjectionState.STAGED:
            settle(services, draft, ProjectionState.ABORTED, "the host aborted the projection")
        draft.commit(remember(services, caller, request_id, None))


def expire_projections(services: Services) -> int:
    """Removes staged projections whose time is over, at start and in upkeep; returns how many there were."""
    found = services.store.expired_projections()
    for tenant, session_id, _ in found:
        try:
            with services.sessions.use(tenant, session_id) as live, live.locked():
                _expire(services, live)
        except FoldlineError as error:
            if error.reason is not Reason.SESSION_NOT_FOUND:
                raise
    return len(found)


def _expire(services: Services, live: LiveSession) -> None:
    draft = Draft(services, live)
    if settle_expired(services, draft):
        draft.commit()


def _current(services: Services, live: LiveSession, projection_id: str) -> Projection:
    """The projection as it is now, after what is due has expired.

    Raises:
        FoldlineError: PROJECTION_NOT_FOUND.
    """
    _expire(services, live)
    found = services.store.find_projection(live.session.key, projection_id)
    if found is None:
        raise _not_found(projection_id, None)
    return found


def _not_found(projection_id: str, state: ProjectionState | None) -> FoldlineError:
    why = f"projection {projection_id} {_ENDS[state]}" if state in _ENDS else f"no projection {projection_id}"
    return FoldlineError(Reason.PROJECTION_NOT_FOUND, why, projection_id=projection_id)


def _expired(projection: Projection) -> FoldlineError:
    at = datetime.fromtimestamp(projection.expire, UTC).isoformat().replace("+00:00", "Z")
    return FoldlineError(
        Reason.PROJECTION_EXPIRED, f"projection {projection.projection_id} was removed at {at}, uncommitted",
        projection_id=projection.projection_id, expire_time=at,
    )  # fmt: skip


def _as_committed(services: Services, session: Session, fold: StagedFold) -> StagedFold:
    """The fold with what is only known now: its time, and that its scope was dropped meanwhile (M7)."""
    entries = () if session.memory_dropped else fold.entries
    coverage = replace(fold.record.coverage, memory=fold.record.coverage.memory if entries else None)
    record = replace(
        fold.record, memory_entries=len(entries), memory_dropped=session.memory_dropped, coverage=coverage,
        time=services.clock(),
    )  # fmt: skip
    return replace(fold, record=record, entries=entries)


def _commit(
    services: Services, caller: Caller, live: LiveSession, projection: Projection, fold: StagedFold, request_id: str
) -> None:
    session, record, now = live.session, fold.record, services.clock()
    state = replace(_folded(session, fold), update_time=now)
    # The host keeps the list: a rewrite here has none.
    rewrite = Rewrite(state.revision, RevisionKind.FOLD, session.revision, (), state.digest, now, record)
    event = Event(
        kind=EventKind.COMPACTION_COMPLETED, time=now, revision=state.revision, boundary=record.boundary,
        run_id=fold.run_id, fold_id=record.fold_id, trigger=record.trigger, signals=record.signals, record=record,
        source=record.summary_source, usage=record.usage,
    )  # fmt: skip
    batch = Batch(
        expected_revision=session.revision, session=state, rows=fold.rows, calls=fold.calls, rewrite=rewrite,
        events=(event,), publish=fold.entries, host_rows=fold.host_rows,
        settle=Settled(projection.projection_id, ProjectionState.COMMITTED),
        request=remember(services, caller, request_id, len(fold.entries)),
    )  # fmt: skip
    commit(services, live, batch)
    live.session = state


def _folded(session: Session, fold: StagedFold) -> Session:
    record, summary = fold.record, fold.rows[-1]
    digest = fold_digest(session.digest, summary.offset, summary.body, record)
    discarded = set(expand(record.discarded))
    # C5: a fold that was staged before the attempt that failed says nothing of its source since.
    failed_since = (session.cadence.last_attempt or 0) > record.boundary
    again = tuple(o for o in expand(session.again) if o not in discarded)
    return replace(
        session,
        revision=record.revision_after,
        digest=digest,
        folds=session.folds + 1,
        staged="",
        again=to_ranges(again),
        summary_totals=_counted(session.summary_totals, record),
        cadence=cadence.fold_committed(
            session.cadence, boundary=record.boundary, left_tokens=record.tokens_after, threshold=fold.threshold,
            summary_tokens=fold.summary_tokens, barred=fold.barred or failed_since,
        ),
    )  # fmt: skip


def fold_digest(parent: str, summary_offset: int, summary: bytes, record: CompactionRecord) -> str:
    """Head of the digest chain after a fold of a host's list: over the summary and what it stands for."""
    return chained(
        parent, RevisionKind.FOLD, _core.digest_rows([summary_offset], [summary]), bytes.fromhex(record.digest),
        msgspec.json.encode(()),
    )  # fmt: skip


def _counted(totals: tuple[SourceTotals, ...], record: CompactionRecord) -> tuple[SourceTotals, ...]:
    """What the source used was counted when it was asked (S5); here its fold is."""
    return tuple(replace(t, folds=t.folds + 1) if t.source is record.summary_source else t for t in totals)
