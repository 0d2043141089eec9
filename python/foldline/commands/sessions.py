"""Creating, reading, listing, changing and deleting sessions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from foldline.commands.draft import Draft, chained, mismatch
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.ownership import writable
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.enums import Ownership, RevisionKind
from foldline.domain.errors import FoldlineError
from foldline.domain.policy import Resolved, check_layer, resolve
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
from foldline.engine import factor
from foldline.engine.limits import limits


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session with its totals and its effective policy."""

    session: Session
    policy: Resolved
    rows_total: int
    rows_active: int
    tokens: int
    bytes: int
    memory_entries: int
    memory_pending: int


@dataclass(frozen=True, slots=True)
class NewSession:
    session_id: str = ""
    model: ModelRef = ModelRef()
    policy: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    ownership: Ownership = Ownership.SIDECAR_OWNED
    request_id: str = ""


def create_session(services: Services, caller: Caller, new: NewSession) -> SessionView:
    """Creates a session at revision 0.

    Raises:
        FoldlineError: SESSION_EXISTS, FIELD_VALIDATION (policy out of range, T <= 0, reserve >= W).
    """
    found = repeated(services, caller, 0, new.request_id)
    if found is not None:
        return get_session(services, caller, answer_of(found, str))
    policy = dict(new.policy or {})
    _check_policy(services, policy, policy, new.model, new.ownership)
    session_id = new.session_id or f"s-{uuid.uuid4().hex}"
    session = Session(
        key=0,
        tenant=caller.tenant,
        session_id=session_id,
        create_time=datetime.fromtimestamp(services.clock(), UTC).isoformat(),
        model=new.model,
        ownership=new.ownership,
        policy=policy,
        labels=dict(new.labels or {}),
        digest=chained("", RevisionKind.CREATED),
    )
    try:
        services.store.create_session(session, remember(services, caller, new.request_id, session_id))
        services.sessions.forget(caller.tenant, session_id)
    except FoldlineError:
        # The same request may have come twice at once: the other one's answer is this one's too (W2).
        found = repeated(services, caller, 0, new.request_id)
        if found is None:
            raise
        session_id = answer_of(found, str)
    return get_session(services, caller, session_id)


def get_session(services: Services, caller: Caller, session_id: str) -> SessionView:
    """Reads a session.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        session = live.session
        tokens, size = live.transcript_size()
        entries, pending = services.memory.counts(session.key)
        return SessionView(
            session, services.policy(session), services.store.count_rows(session.key), len(live.ledger),
            factor.apply(services.factor_of(session, session.model), tokens), size, entries, pending,
        )  # fmt: skip


def revision_of(services: Services, caller: Caller, session_id: str) -> int:
    """The revision a session is at.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        return live.session.revision


def list_sessions(
    services: Services, caller: Caller, after: str, limit: int, labels: Mapping[str, str] | None = None
) -> tuple[list[Session], bool]:
    """Sessions of the tenant by id, after ``after``, that have all of ``labels``, and whether more follow."""
    wanted, found = (labels or {}).items(), list[Session]()
    while len(found) <= limit:
        page = services.store.list_sessions(caller.tenant, after, limit + 1)
        found += [s for s in page if wanted <= s.labels.items()]
        if len(page) <= limit:
            break
        after = page[-1].session_id
    return found[:limit], len(found) > limit


@dataclass(frozen=True, slots=True)
class SessionChange:
    """Fields to change; None leaves one as it is. A policy value of None in ``policy`` unsets that knob."""

    session_id: str
    model: ModelRef | None = None
    policy: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    expected_revision: int | None = None
    request_id: str = ""


def update_session(services: Services, caller: Caller, change: SessionChange) -> SessionView:
    """Changes model, policy or labels; applies from the next boundary on and makes no revision.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REVISION_MISMATCH, FIELD_VALIDATION.
    """
    with services.sessions.use(caller.tenant, change.session_id) as live, live.locked():
        if repeated(services, caller, live.session.key, change.request_id) is None:
            require_revision(live.session, change.expected_revision)
            draft = Draft(services, live)
            session = draft.session
            policy = session.policy
            if change.policy is not None:
                policy = {k: v for k, v in {**policy, **change.policy}.items() if v is not None}
            model = change.model or session.model
            _check_policy(services, policy, change.policy or {}, model, session.ownership)
            labels = dict(change.labels) if change.labels is not None else session.labels
            draft.session = replace(session, model=model, policy=policy, labels=labels)
            draft.commit(remember(services, caller, change.request_id, change.session_id))
    return get_session(services, caller, change.session_id)


def delete_session(services: Services, caller: Caller, session_id: str, request_id: str = "") -> None:
    """Removes rows, archive, memory and events; cancels a running fold (L2).

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    if repeated(services, caller, 0, request_id) is not None:
        return
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        if live.fold is not None:
            live.fold.cancelled = True
        if live.ahead is not None:
            live.ahead.fold.cancelled = True
        services.store.delete_session(live.session.key, remember(services, caller, request_id, session_id))
        live.stale = True
        live.lock.notify_all()
        services.bell.ring(live.session.key)
        services.memory.forget(live.session.key)


def require_revision(session: Session, expected: int | None) -> None:
    """W3.

    Raises:
        FoldlineError: REVISION_MISMATCH with both numbers.
    """
    if expected is not None and expected != session.revision:
        raise mismatch(expected, session.revision)


def _check_policy(
    services: Services, policy: Mapping[str, Any], changed: Mapping[str, Any], model: ModelRef, ownership: Ownership
) -> None:
    check_layer(policy)
    resolved = resolve({"config": services.config_policy, "session": policy})
    services.require_provider(changed, resolved.policy)
    writable(ownership, resolved.policy)
    limits(resolved.policy, services.model(model), None)
