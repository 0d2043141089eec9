"""ForkSession: a new session that holds another up to a revision (X3)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby

from foldline import _core
from foldline.commands.draft import chained, media_tokens
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.relist import callers_waiting, folded_results, wait_for_barrier
from foldline.commands.services import Caller, Services
from foldline.commands.sessions import SessionView, get_session
from foldline.domain.enums import RevisionKind, RunOutcome
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.ports import CallUpdate, Fork, Rewrite
from foldline.domain.rows import Row, ToolResultRow, calls_of, identity_of
from foldline.domain.session import ClosedRun, Session
from foldline.engine.forking import Past, forked, removed_calls, rewound
from foldline.engine.limits import limits
from foldline.engine.lineage import call_places, expand, folded_offsets, visible_ranges

PAGE = 2000
SUMMARIES = 3
"""Summaries that tell the usual size of one (C4)."""


@dataclass(frozen=True, slots=True)
class NewFork:
    """What to fork and where: a revision, an offset, or neither for the newest revision.

    Attributes:
        offset: stands for the last revision at which no row behind it existed.
    """

    session_id: str
    fork_session_id: str = ""
    revision: int | None = None
    offset: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""


def fork_session(services: Services, caller: Caller, new: NewFork) -> SessionView:
    """Forks a session; the source is not changed.

    A fork of the newest revision waits for a running fold (L2). One of an earlier revision does not: a fold only adds
    to what came after, and nothing that the fork takes is changed by it.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, SESSION_EXISTS, REVISION_NOT_FOUND with the newest, FIELD_VALIDATION for an
            offset that no row has, FOLD_IN_PROGRESS, REQUEST_ID_REUSED.
    """
    found = repeated(services, caller, 0, new.request_id)
    if found is not None:
        return get_session(services, caller, answer_of(found, str))
    session_id = new.fork_session_id or f"s-{uuid.uuid4().hex}"
    try:
        with services.sessions.use(caller.tenant, new.session_id) as live, live.locked():
            revision = _fork_point(services, live, caller, new)
            session, calls = live.session, tuple[CallUpdate, ...]()
            rewrites = [r for r in services.rewrites(session.key) if r.revision <= revision]
            folded = folded_offsets(rewrites, revision)
            offsets = live.offsets()
            if revision != session.revision:
                offsets = services.store.active_offsets(session.key, revision)
                session, calls = _rewound(services, session, revision, rewrites, folded, offsets)
            state = forked(
                session, session_id=session_id, tenant=caller.tenant, labels=new.labels,
                create_time=datetime.fromtimestamp(services.clock(), UTC).isoformat(),
            )  # fmt: skip
            run = live.session.open_run
            fork = Fork(
                live.session.key, state, calls,
                closed_runs=(ClosedRun(run.run_id, RunOutcome.CANCELLED, run.asked),) if run else (),
                visible=visible_ranges(folded, (*offsets, *expand(session.again))),
            )  # fmt: skip
            services.store.fork_session(fork, remember(services, caller, new.request_id, session_id))
        services.sessions.forget(caller.tenant, session_id)
    except FoldlineError:
        # As for a session created twice at once (W2).
        found = repeated(services, caller, 0, new.request_id)
        if found is None:
            raise
        session_id = answer_of(found, str)
    return get_session(services, caller, session_id)


def _fork_point(services: Services, live: LiveSession, caller: Caller, new: NewFork) -> int:
    """The revision to fork at, once nothing is under way that the fork would have to wait for (L2)."""
    asked = _asked(services, live.session, new)
    if asked is None or asked == live.session.revision:
        wait_for_barrier(live, caller)
    return live.session.revision if asked is None else asked


def _asked(services: Services, session: Session, new: NewFork) -> int | None:
    if new.revision is not None and new.revision > session.revision:
        raise FoldlineError(
            Reason.REVISION_NOT_FOUND, f"no revision {new.revision}; the newest is {session.revision}",
            revision=new.revision, newest=session.revision,
        )  # fmt: skip
    if new.offset is None:
        return new.revision
    if new.offset >= session.next_offset:
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"the archive holds offsets 1 to {session.next_offset - 1}, not {new.offset}",
            field="offset", value=new.offset, range=f"0-{session.next_offset - 1}",
        )  # fmt: skip
    later = services.store.archive(session.key, new.offset, 1)
    return later[0].revision - 1 if later else session.revision


def _rewound(
    services: Services, session: Session, revision: int, rewrites: Sequence[Rewrite], folded: set[int],
    offsets: Sequence[int],
) -> tuple[Session, tuple[CallUpdate, ...]]:  # fmt: skip
    """The state of an earlier revision, and its calls where they differ from what is recorded of them."""
    store, policy = services.store, services.policy(session).policy
    stored = store.read_rows(session.key, offsets)
    rows = [to_row(r) for r in stored]
    factor = services.factor_of(session, session.model).value
    recorded = store.calls(session.key)
    records = [r.record for r in rewrites if r.record is not None]
    places = call_places(rewrites, revision)
    derived = {new for r in services.rewrites(session.key) if r.trim for new, _ in r.trim.derived}
    summaries = store.read_rows(session.key, [r.summary_offset for r in records[-SUMMARIES:]])
    past = Past(
        revision=revision,
        digest=_digest(services, session, revision, rewrites[-1]),
        through=store.last_offset(session.key, revision),
        rows=rows,
        sizes={r.offset: (r.tokens, r.bytes) for r in stored},
        rewrites=rewrites,
        folded=folded,
        callers=callers_waiting(services, session, recorded, rows, folded, places),
        elsewhere=folded_results(services, session, rows, folded),
        # What trims left of an answer is no other answer.
        answers=[(offset, run_id) for offset, run_id in store.answers(session.key) if offset not in derived],
        closed={r for r in _waiting_runs(rows) if store.find_run(session.key, r) is not None},
        summaries=tuple(int(r.tokens * factor) for r in summaries),
        media_tokens=media_tokens(r.body for r in rows),
        places=places,
    )
    state, calls = rewound(
        session, past, policy=policy, threshold=limits(policy, services.model(session.model)).threshold
    )
    gone = sorted({c.offset for c in recorded}.difference(offsets, folded))
    made = {r.offset: r.revision for r in store.read_rows(session.key, gone)}
    return state, (*calls, *removed_calls(recorded, past, made))


def _waiting_runs(rows: Sequence[Row]) -> set[str]:
    """Runs with a call that has no result among the rows."""
    results = [r.body for r in rows if isinstance(r.body, ToolResultRow)]
    answered = {(b.call_offset, b.call_id) for b in results if not b.interim}
    return {
        r.run_id for r in rows for c in calls_of(r.body) if r.run_id and (identity_of(r), c.call_id) not in answered
    }


def _digest(services: Services, session: Session, revision: int, rewrite: Rewrite) -> str:
    """Head of the digest chain at a revision: that of the newest rewrite up to it, and the appends since."""
    store, digest = services.store, rewrite.digest
    after, through = (store.last_offset(session.key, at) for at in (rewrite.revision, revision))
    appended = []
    while page := store.archive(session.key, after, PAGE, through):
        appended += [(r.revision, r.offset, r.body) for r in page]
        after = page[-1].offset
    for _, rows in groupby(appended, key=lambda r: r[0]):
        made = list(rows)
        digest = chained(digest, RevisionKind.APPEND, _core.digest_rows([r[1] for r in made], [r[2] for r in made]))
    return digest
