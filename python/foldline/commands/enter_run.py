"""The run that a boundary belongs to: opened, gone on with, or refused, with the rows that come (L4, L5)."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.commands.answer_usage import keep
from foldline.commands.append_rows import count_imported
from foldline.commands.draft import Draft
from foldline.commands.folded_calls import calls_taken_over
from foldline.commands.inputs import Input
from foldline.commands.list_rows import to_row
from foldline.commands.record_answer import finish
from foldline.commands.services import Services
from foldline.commands.snapshots import facts_of_stored
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, RowKind, RunOutcome, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import RowFacts
from foldline.domain.ports import StoredRow
from foldline.domain.session import OpenRun
from foldline.engine import cadence
from foldline.engine.appending import joins_request
from foldline.engine.runs import open_run, opening
from foldline.engine.units import SUMMARY_KINDS


def enter_run(services: Services, draft: Draft, appended: Input, run_id: str, *, supersede: bool, ttl: float) -> None:
    """Appends the rows within their run, which is opened if none is open.

    Args:
        supersede: an open run of another id is closed as failed, where it would be refused.
        ttl: seconds without a boundary after which an open run counts as expired.

    Raises:
        FoldlineError: RUN_ALREADY_OPEN, RUN_NOT_OPEN for the id of a closed run, and what an append refuses.
    """
    asked = opening(draft.session, run_id, supersede=supersede, now=draft.now, ttl=ttl)
    if asked.opens:
        _refuse_closed(services, draft, run_id)
    if asked.closes is not None:
        _supersede(draft, asked.closes, run_id, expired=asked.expired)
    draft.append(appended.rows, run_id)
    keep(draft, appended.usages)
    count_imported(draft)
    if asked.opens:
        _open(services, draft, run_id)
    run = draft.session.open_run
    assert run is not None
    draft.session = replace(draft.session, open_run=replace(run, last_active=draft.now))


def _refuse_closed(services: Services, draft: Draft, run_id: str) -> None:
    closed = services.store.find_run(draft.session.key, run_id)
    fresh = any(c.run_id == run_id for c in draft.closed)
    if closed is not None or fresh:
        raise FoldlineError(
            Reason.RUN_NOT_OPEN, f"run {run_id} is closed; a closed id is never opened again", run_id=run_id,
            open_run_id=draft.session.open_run.run_id if draft.session.open_run else "",
        )  # fmt: skip


def _supersede(draft: Draft, run: OpenRun, by: str, *, expired: bool) -> None:
    finish(draft, RunOutcome.FAILED)
    code = WarningCode.RUN_EXPIRED if expired else WarningCode.RUN_SUPERSEDED
    message = f"run {run.run_id} was open and is closed as failed"
    draft.warn(code, message)
    draft.event(EventKind.RUN_SUPERSEDED, run_id=run.run_id, other_run_id=by, warning=code, message=message)


def _open(services: Services, draft: Draft, run_id: str) -> None:
    """Opens the run on what the transcript ends on, the draft's rows included (§1 request)."""
    live, session = draft.live, draft.session
    tail = list(draft.rows)
    last_assistant = max((i for i, r in enumerate(tail) if r.kind == RowKind.ASSISTANT), default=None)
    stored: list[StoredRow] = tail if last_assistant is None else tail[last_assistant + 1 :]
    if last_assistant is None:
        stored = services.store.read_rows(session.key, live.trailing_offsets()) + stored
    facts = [facts_of_stored(r, to_row(r), session, True) for r in stored]
    trailing = _trailing(facts)
    last_run, last_request = _last_run(services, draft, run_id)
    opened = open_run(session, trailing, run_id, last_run_id=last_run, last_request=last_request, now=draft.now)
    run = opened.open_run
    assert run is not None
    tokens = draft.size_of(run.request)[0]
    ledger = calls_taken_over(services, live, run)
    draft.session = replace(
        opened, open_run=replace(run, request_tokens=tokens, ledger=ledger), cadence=cadence.run_opened(opened.cadence)
    )


def _trailing(facts: Sequence[RowFacts]) -> list[RowFacts]:
    """What waits at the end of the list; behind a summary, if anything does: rows before it are older than its own."""
    result = max((i for i, f in enumerate(facts) if f.kind == RowKind.TOOL_RESULT and not f.late), default=-1)
    summary = max((i for i, f in enumerate(facts) if f.kind in SUMMARY_KINDS), default=-1)
    waiting = [f for f in facts if joins_request(f.kind, f.late)]
    behind = {f.offset for f in facts[max(result, summary) + 1 :]}
    since = {f.offset for f in facts[result + 1 :]}
    return [f for f in waiting if f.offset in behind] or [f for f in waiting if f.offset in since]


def _last_run(services: Services, draft: Draft, run_id: str) -> tuple[str, tuple[int, ...]]:
    """The run of the last row that has one, and its request and user rows that are still active.

    Rows that come with the opening of ``run_id`` are its own: they answer what the run before them left.
    """
    live = draft.live
    fresh = [r.run_id for r in reversed(draft.rows) if r.run_id]
    last = next((r for r in fresh if r != run_id), "") or live.last_run() or next(iter(fresh), "")
    if not last:
        return "", ()
    closed = next((c for c in draft.closed if c.run_id == last), None) or services.store.find_run(
        draft.session.key, last
    )
    wanted = set(closed.request if closed else ())
    mine = [o for o, kind in live.offsets_of_run(last) if kind == RowKind.USER or o in wanted]
    mine += [r.offset for r in draft.rows if r.run_id == last and (r.kind == RowKind.USER or r.offset in wanted)]
    others = [o for o in closed.request if o not in mine and live.ledger.position(o) is not None] if closed else []
    return last, tuple(
        sorted({*mine, *others}, key=lambda o: (live.ledger.position(o) is None, live.ledger.position(o) or 0, o))
    )
