"""EditRows, PinRows and RestoreRevision: the host changes the list itself (§16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from foldline import _core
from foldline.commands import ahead, usage_marks
from foldline.commands.draft import chained, commit, measured, media_tokens
from foldline.commands.folded_calls import folded_calls
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.inputs import RowsInput, read_input
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.ownership import sidecar_owned
from foldline.commands.services import ANSWER_SECONDS, Caller, Services
from foldline.commands.sessions import require_revision
from foldline.commands.snapshots import snapshot_of
from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind, RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.folding import to_ranges
from foldline.domain.ports import Batch, CallUpdate, Rewrite, StoredRequest, StoredRow
from foldline.domain.rows import CompactionSummaryRow, ProviderCompactionRow, Row, ToolResultRow, calls_of, identity_of
from foldline.domain.session import CallState, Session
from foldline.engine import appending, cadence
from foldline.engine.lineage import CallPlaces, call_places, folded_offsets, lineage, visible_ranges
from foldline.engine.relisting import check_edit, open_folded, relist
from foldline.engine.structure import analyze


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the active rows from ``first_offset`` to ``last_offset``, in list order, by ``rows``."""

    session_id: str
    first_offset: int
    last_offset: int
    rows: RowsInput | None = None
    request_id: str = ""
    expected_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Relisting:
    """The answer of an edit or restore; ``run_cancelled`` names a run that lost a row of its request (X2)."""

    revision: int
    rows_active: int
    first_offset: int = 0
    last_offset: int = 0
    run_cancelled: str = ""
    warnings: tuple[Warning_, ...] = ()


def edit_rows(services: Services, caller: Caller, edit: Edit) -> Relisting:
    """Replaces a span of the active list; the replaced rows stay in the archive.

    Raises:
        FoldlineError: EDIT_SPLITS_UNIT (X1), FIELD_VALIDATION for a span that is not in the list, FOLD_IN_PROGRESS
            (L2), REVISION_MISMATCH, SUMMARY_ROW_REFUSED for a span that holds a summary, and what an append refuses.
    """
    rows, warnings, _ = read_input(services, edit.rows)
    with services.sessions.use(caller.tenant, edit.session_id) as live, live.locked():
        sidecar_owned(live.session)
        found = answered_or_free(services, caller, live, edit.request_id)
        if found is not None:
            return answer_of(found, Relisting)
        require_revision(live.session, edit.expected_revision)
        session, offsets = live.session, live.offsets()
        first, last = _span(offsets, edit.first_offset, edit.last_offset)
        stored = services.store.read_rows(session.key, offsets)
        before = [to_row(r) for r in stored]
        if any(isinstance(r.body, CompactionSummaryRow | ProviderCompactionRow) for r in before[first : last + 1]):
            raise FoldlineError(
                Reason.SUMMARY_ROW_REFUSED,
                f"rows {edit.first_offset} to {edit.last_offset} hold a summary: only folds and restores move those",
                first_offset=edit.first_offset, last_offset=edit.last_offset,
            )  # fmt: skip
        removed = {identity_of(r) for r in before[first : last + 1]}
        # The rows take the place of others, in their run: they neither extend the open run's request nor its rounds.
        trimmed = replace(
            session, open_run=None, calls=tuple(c for c in session.calls if c.offset not in removed or c.folded)
        )
        ids = appending.unknown_call_ids(trimmed, rows)
        history = {i: services.store.find_calls(session.key, i) for i in ids}
        accepted = appending.accept(trimmed, rows, before[first].run_id, history)
        revision = session.revision + 1
        taken: Sequence[Row] = accepted.rows
        if usage_marks.enabled(services, session):
            taken = usage_marks.restated(taken, before[first : last + 1])
        new = measured(services, session, taken, revision, {})
        after = [*before[:first], *(to_row(r) for r in new), *before[last + 1 :]]
        units = [u.offsets for u in analyze(snapshot_of(services, session, stored, before)).units]
        after_stored = [*stored[:first], *new, *stored[last + 1 :]]
        whole = [u.offsets for u in analyze(snapshot_of(services, session, after_stored, after)).units]
        check_edit(before, after, units, whole, session)
        changed = replace(accepted.session, open_run=session.open_run, cadence=cadence.edited(session.cadence))
        return _commit(
            services, caller, live, changed, stored, after_stored, new, RevisionKind.EDIT,
            parent=session.revision, request_id=edit.request_id, warnings=(*warnings, *accepted.warnings),
        )  # fmt: skip


def _span(offsets: Sequence[int], first: int, last: int) -> tuple[int, int]:
    positions = {o: i for i, o in enumerate(offsets)}
    for name, offset in (("first_offset", first), ("last_offset", last)):
        if offset not in positions:
            raise FoldlineError(
                Reason.FIELD_VALIDATION, f"{name} {offset} is not in the active list", field=name, value=offset,
                range=f"{len(offsets)} active rows",
            )  # fmt: skip
    if positions[first] > positions[last]:
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"row {first} stands behind row {last} in the list", field="first_offset",
            value=first, range=f"at or before {last} in list order",
        )  # fmt: skip
    return positions[first], positions[last]


def restore_revision(
    services: Services, caller: Caller, session_id: str, revision: int, request_id: str, expected_revision: int | None
) -> Relisting:
    """Puts the list of an earlier revision in place, as a new revision (X2). Nothing that came since is lost.

    Raises:
        FoldlineError: REVISION_NOT_FOUND, FOLD_IN_PROGRESS (L2), REVISION_MISMATCH.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        sidecar_owned(live.session)
        found = answered_or_free(services, caller, live, request_id)
        if found is not None:
            return answer_of(found, Relisting)
        session = live.session
        require_revision(session, expected_revision)
        stored = services.store.read_rows(session.key, live.offsets())
        after = services.store.read_rows(session.key, services.store.active_offsets(session.key, revision))
        return _commit(
            services, caller, live, session, stored, after, [], RevisionKind.RESTORE, parent=revision,
            request_id=request_id, warnings=(),
        )  # fmt: skip


def _commit(
    services: Services, caller: Caller, live: LiveSession, changed: Session, before: Sequence[StoredRow],
    after: Sequence[StoredRow], new: Sequence[StoredRow], kind: RevisionKind, *, parent: int, request_id: str,
    warnings: Sequence[Warning_],
) -> Relisting:  # fmt: skip
    session = live.session
    revision, offsets = session.revision + 1, tuple(r.offset for r in after)
    rewrites = services.rewrites(session.key)
    at = parent if kind is RevisionKind.RESTORE else session.revision
    folded, places = folded_offsets(rewrites, at), call_places(rewrites, at)
    sizes = {r.offset: (r.tokens, r.bytes) for r in after}
    rows = [to_row(r) for r in after]
    recorded = services.store.calls(session.key)
    callers = callers_waiting(services, session, recorded, rows, folded, places)
    elsewhere = folded_results(services, session, rows, folded)
    relisted = relist(
        changed, [to_row(r) for r in before], rows, folded, sizes, revision, callers, recorded, places, elsewhere
    )
    active = to_ranges(offsets)
    payload = [msgspec.json.encode(active)]
    if kind is RevisionKind.EDIT:
        payload.insert(0, _core.digest_rows([r.offset for r in new], [r.body for r in new]))
    digest = chained(session.digest, kind, *payload)
    now = services.clock()
    state = replace(
        relisted.session,
        update_time=now,
        revision=revision,
        digest=digest,
        rewrites=session.rewrites + 1,
        media_tokens=media_tokens(r.body for r in rows),
    )
    if kind is RevisionKind.RESTORE:
        state = _restored(services, state, rows, lineage(rewrites, parent), sum(r.tokens for r in after))
    answer = Relisting(
        revision, len(offsets), new[0].offset if new else 0, new[-1].offset if new else 0,
        relisted.closed.run_id if relisted.closed else "", tuple(warnings),
    )  # fmt: skip
    batch = Batch(
        expected_revision=session.revision,
        session=state,
        rows=tuple(new),
        rewrite=Rewrite(revision, kind, parent, active, digest, now),
        calls=relisted.calls,
        closed_runs=(relisted.closed,) if relisted.closed else (),
        request=remember(services, caller, request_id, answer),
        visible=visible_ranges(folded, offsets) if kind is RevisionKind.RESTORE else None,
    )
    commit(services, live, batch)
    live.session = state
    live.load((r.offset, r.kind, r.run_id, r.tokens, r.bytes) for r in after)
    # A3, X2: what was written ahead of need covers another list.
    ahead.drop(services, live, f"revision {revision} changed the list")
    return answer


def callers_waiting(
    services: Services, session: Session, recorded: Sequence[CallUpdate], after: Sequence[Row], folded: set[int],
    places: CallPlaces,
) -> dict[tuple[int, str], CallState]:  # fmt: skip
    """The calls of folded rows that wait for a result once ``after`` is the list."""
    waiting = {(c.offset, c.call_id) for c in open_folded(recorded, after, folded, places)}
    # What is recorded is the newest result; where a restore took that away, an older one may be folded with its call.
    waiting -= _finals(services, session, {o for o in folded if waiting and o > min(waiting)[0]}).keys()
    rows = services.store.read_rows(session.key, sorted({offset for offset, _ in waiting}))
    return {
        (r.offset, call.call_id): CallState(r.offset, call.call_id, call.name, r.run_id)
        for r in rows
        for call in calls_of(to_row(r).body)
        if (r.offset, call.call_id) in waiting
    }


def folded_results(
    services: Services, session: Session, after: Sequence[Row], folded: set[int]
) -> dict[tuple[int, str], int]:
    """The final results that are folded while their calls stand in ``after``, by call: late ones fold alone (R3)."""
    bodies = [r.body for r in after if isinstance(r.body, ToolResultRow)]
    here = {(b.call_offset, b.call_id) for b in bodies if not b.interim}
    open_calls = {n for r in after for c in calls_of(r.body) if (n := (identity_of(r), c.call_id)) not in here}
    if not open_calls:
        return {}
    found = _finals(services, session, {o for o in folded if o > min(open_calls)[0]})
    return {name: offset for name, offset in found.items() if name in open_calls}


def _finals(services: Services, session: Session, offsets: set[int]) -> dict[tuple[int, str], int]:
    """Offsets of the final results among some rows, by call (offset, id)."""
    found = {}
    for row in services.store.read_rows(session.key, sorted(offsets)):
        body = to_row(row).body if row.kind == RowKind.TOOL_RESULT else None
        if isinstance(body, ToolResultRow) and body.call_offset is not None and not body.interim:
            found[body.call_offset, body.call_id] = row.offset
    return found


def _restored(
    services: Services, state: Session, rows: Sequence[Row], folds: Sequence[Rewrite], tokens: int
) -> Session:
    """The cadence record (X2), and the open run's ledger as of the folds that are in effect again (F3)."""
    record = cadence.restored(
        state.cadence, boundary=max(0, state.cadence.boundaries - 1),
        tokens=tokens - sum(r.tokens for r in state.superseded),
    )  # fmt: skip
    state, run = replace(state, cadence=record), state.open_run
    if run is None:
        return state
    return replace(state, open_run=replace(run, ledger=folded_calls(services, state, run, folds, rows)))


def answered_or_free(
    services: Services, caller: Caller, live: LiveSession, request_id: str
) -> StoredRequest | None:  # fmt: skip
    """The first answer of a repeat (W2), else None once no fold holds the list (L2).

    A call that comes twice while a fold runs waits twice, and is carried out by the first that goes on.

    Raises:
        FoldlineError: REQUEST_ID_REUSED, FOLD_IN_PROGRESS; what ``live.locked`` raises if it went stale meanwhile.
    """
    found = repeated(services, caller, live.session.key, request_id)
    if found is None and live.fold is not None:
        wait_for_barrier(live, caller)
        found = repeated(services, caller, live.session.key, request_id)
    return found


def wait_for_barrier(live: LiveSession, caller: Caller) -> None:
    """L2, W9: waits, at most until the host's deadline, for a fold to end. Holds the lock before and after.

    Raises:
        FoldlineError: FOLD_IN_PROGRESS with the fold's id; what ``live.locked`` raises if it went stale meanwhile.
    """
    while live.fold is not None:
        left = caller.left()
        if left is not None and left <= ANSWER_SECONDS:
            raise FoldlineError(
                Reason.FOLD_IN_PROGRESS, f"fold {live.fold.fold_id} holds the list until it commits",
                fold_id=live.fold.fold_id,
            )  # fmt: skip
        live.lock.wait(timeout=None if left is None else left - ANSWER_SECONDS)
    if live.stale:
        raise live.stale_reason


@dataclass(frozen=True, slots=True)
class Pinned:
    """The session's revision, and how many rows changed their pin."""

    revision: int
    changed: int


def pin_rows(
    services: Services, caller: Caller, session_id: str, offsets: Sequence[int], pinned: bool, request_id: str
) -> Pinned:
    """Sets or clears pins of active rows; makes no revision (R6).

    Raises:
        FoldlineError: FIELD_VALIDATION for rows that are not active, SUMMARY_ROW_REFUSED for a summary.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        sidecar_owned(live.session)
        found = repeated(services, caller, live.session.key, request_id)
        if found is not None:
            return answer_of(found, Pinned)
        session = live.session
        absent = [o for o in offsets if live.ledger.position(o) is None]
        if absent:
            raise FoldlineError(
                Reason.FIELD_VALIDATION, f"rows {absent} are not active", field="offsets",
                value=",".join(map(str, absent)), range="active offsets",
            )  # fmt: skip
        stored = services.store.read_rows(session.key, list(dict.fromkeys(offsets)))
        for row in stored:
            if isinstance(to_row(row).body, CompactionSummaryRow | ProviderCompactionRow):
                raise FoldlineError(
                    Reason.SUMMARY_ROW_REFUSED, f"row {row.offset} is a summary and cannot be pinned", offset=row.offset
                )
        changes = tuple((r.offset, pinned) for r in stored if r.pinned != pinned)
        change = sum(r.tokens for r in stored if r.pinned != pinned)
        state = replace(
            session,
            update_time=services.clock(),
            pinned_tokens=session.pinned_tokens + (change if pinned else -change),
        )
        answer = Pinned(session.revision, len(changes))
        batch = Batch(
            expected_revision=session.revision, session=state, pins=changes,
            request=remember(services, caller, request_id, answer),
        )  # fmt: skip
        commit(services, live, batch)
        live.session = state
        return answer
