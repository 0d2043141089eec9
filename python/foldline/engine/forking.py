"""The state that a fork starts with (X3): the source's at the fork point, less what is the source's alone.

The state of an earlier revision is not kept. It is derived from the list and the folds of then, and where these do not
tell, from what has become of it since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind, Trigger
from foldline.domain.models import Usage
from foldline.domain.policy import Policy
from foldline.domain.ports import CallUpdate, Rewrite
from foldline.domain.rows import Row
from foldline.domain.session import Cadence, CallState, Prepared, Session
from foldline.engine.cadence import transcript_grew
from foldline.engine.lineage import UNMOVED, CallPlaces
from foldline.engine.relisting import Sizes, relist

ASKED = (Trigger.MANUAL, Trigger.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Past:
    """A session at an earlier revision, as its archive tells of it.

    Attributes:
        digest: head of the digest chain at the revision.
        through: last offset that was given up to it.
        rows, sizes: the active rows, in list order.
        rewrites: up to it, by revision.
        folded: offsets that are folded in its lineage; ``places`` says where the calls of its trims stand.
        callers: the calls of folded rows that wait for a result, as new, by (offset, id).
        elsewhere: offsets of final results that are folded while their calls are not, by call (offset, id).
        answers: (offset, run) of every assistant row of the archive, also of later ones.
        closed: runs of calls without a result that are closed by now.
        summaries: tokens of the summaries of the last folds up to it, after the factor (C4).
    """

    revision: int
    digest: str
    through: int
    rows: Sequence[Row]
    sizes: Sizes
    rewrites: Sequence[Rewrite]
    folded: AbstractSet[int]
    callers: Mapping[tuple[int, str], CallState]
    elsewhere: Mapping[tuple[int, str], int]
    answers: Sequence[tuple[int, str]]
    closed: AbstractSet[str]
    summaries: tuple[int, ...]
    media_tokens: int
    places: CallPlaces = UNMOVED

    @property
    def folds(self) -> list[Rewrite]:
        return [r for r in self.rewrites if r.kind is RevisionKind.FOLD]


def forked(
    session: Session, *, session_id: str, tenant: str, create_time: str, labels: Mapping[str, str]
) -> Session:  # fmt: skip
    """A fork of a session at its revision (X3): its own id and totals, no count, anchor, fact or open run.

    A cooldown and what sources cost go by the clock, not by the list: they hold for the fork as they do here.
    """
    last = session.last_prepared
    return replace(
        session,
        key=0,
        tenant=tenant,
        session_id=session_id,
        create_time=create_time,
        update_time=0.0,
        labels=dict(labels),
        forked_from=session.session_id,
        open_run=None,
        staged="",
        answers=0,
        answer_usage=Usage(),
        summary_totals=(),
        cadence=replace(
            session.cadence, count=None, anchor=None, did_not_fit=None, fit_attempts=0, last_skip=None, warned=(),
            ahead_drops=0,
        ),
        # Providers still hold the prefix of that request; its answer is the source's.
        last_prepared=last and replace(last, prepare_id=""),
    )  # fmt: skip


def rewound(session: Session, past: Past, *, threshold: int, policy: Policy) -> tuple[Session, tuple[CallUpdate, ...]]:
    """The state of a session as of an earlier revision, and the calls whose newest record is of later.

    Args:
        threshold: T of now, where the T that a fold was judged by is no longer known (C3).
    """
    relisted = relist(
        replace(session, open_run=None), (), past.rows, past.folded, past.sizes, past.revision, past.callers,
        places=past.places, elsewhere=past.elsewhere,
    )  # fmt: skip
    carried = _carried(session, past)
    state = replace(
        relisted.session,
        open_run=None,
        revision=past.revision,
        digest=past.digest,
        next_offset=past.through + 1,
        folds=len(past.folds),
        calls=_calls(relisted.session.calls, past, carried),
        carried_through=carried,
        prepared_through=min(session.prepared_through, carried),
        last_prepared=_prepared(session, past),
        again=(),
        media_tokens=past.media_tokens,
    )
    gone = {s.offset for s in state.superseded}
    counted = {o: tokens for o, (tokens, _) in past.sizes.items() if o not in gone}
    record = _cadence(session, past, counted, threshold)
    return replace(state, cadence=transcript_grew(record, sum(counted.values()), policy)), relisted.calls


def removed_calls(
    recorded: Sequence[CallUpdate], past: Past, made: Mapping[int, int]
) -> tuple[CallUpdate, ...]:  # fmt: skip
    """Calls that were gone at an earlier revision and whose record says otherwise, and the other way round (R3).

    Args:
        made: revision that made each call's row, by offset.
    """
    active, places = {r.offset for r in past.rows}, past.places
    found = []
    for call in recorded:
        folded = places.is_folded(call.offset, call.call_id, past.folded)
        listed = places.in_rows(call.offset, call.call_id, active)
        if folded and not listed and call.removed_by is not None:
            if (call.offset, call.call_id) not in past.callers:
                found.append(CallUpdate(call.offset, call.call_id, call.result_offset))
            continue
        there = call.offset > past.through or listed or folded
        if there or (call.removed_by is not None and call.removed_by <= past.revision):
            continue
        result = call.result_offset if (call.result_offset or 0) <= past.through else None
        remover = _remover({call.offset, places.row_of(call.offset)}, past, made[call.offset])
        found.append(CallUpdate(call.offset, call.call_id, result, removed_by=remover))
    return tuple(found)


def _remover(offsets: AbstractSet[int], past: Past, made: int) -> int | None:
    """The first edit or restore since a row, or what trims left of it, was there last, in the list or folded."""
    remover = None
    for rewrite in reversed(past.rewrites):
        had = (*rewrite.active, *rewrite.discarded)
        if rewrite.revision < made or any(first <= o <= last for first, last in had for o in offsets):
            break
        remover = remover if rewrite.discarded else rewrite.revision
    return remover


def _carried(session: Session, past: Past) -> int:
    """What the newest answer tells: what came before it was in its request, or in an earlier one (§1 carried)."""
    newest = max((offset for offset, run_id in past.answers if run_id and offset <= past.through), default=1)
    return min(session.carried_through, newest - 1)


def _calls(calls: Sequence[CallState], past: Past, carried: int) -> tuple[CallState, ...]:
    """What was sent in place of results by then (R5), and which calls their run had left behind (R3)."""
    # A run that answered again was not closed yet.
    over = past.closed - {run_id for offset, run_id in past.answers if offset > past.through}
    found = []
    for call in calls:
        if not call.answered:
            call = replace(call, closed=call.run_id in over)
            sent = call.offset <= carried
            first = call.placeholder or ("not_completed" if call.closed else "pending")
            if not (call.folded or call.interim):
                call = replace(call, placeholder=first if sent else "")
        found.append(call)
    return tuple(found)


def _prepared(session: Session, past: Past) -> Prepared | None:
    """What the session's requests look like, where one was made by then; none of what it sent is known to be cached."""
    last = session.last_prepared
    if last is None or not any(run_id for offset, run_id in past.answers if offset <= past.through):
        return None
    return replace(last, revision=past.revision, rewrites=session.rewrites, rows=0, first_bounded=None, paused=None)


def _cadence(session: Session, past: Past, counted: Mapping[int, int], threshold: int) -> Cadence:
    """The record of then: boundaries are those up to the newest fold, and one for each answer since."""
    record, folds = session.cadence, past.folds
    fold = folds[-1].record if folds else None
    since, counted_then = 0, 0
    if fold is not None:
        # The answer to the boundary at which a fold was due comes after it.
        since, counted_then = fold.summary_offset, fold.boundary + (fold.trigger in ASKED)
    # Rows of no run count up to the first answer of one (§1 boundary).
    first = next((offset for offset, run_id in past.answers if run_id), past.through + 1)
    answers = sum(1 for o, run_id in past.answers if since < o <= past.through and (run_id or o < first))
    last_fold = fold.boundary if fold else None
    boundaries = min(record.boundaries, max(counted_then + answers, 0 if last_fold is None else last_fold + 1))
    # Without a later fold the last attempt may be of then, too.
    last_attempt = record.last_attempt if len(folds) == session.folds else None
    if last_attempt is None or last_attempt >= boundaries:
        # One that was written ahead of need counts as a fold and as no attempt (A2).
        asked = [f.record.boundary for f in folds if f.record and f.record.trigger is not Trigger.BACKGROUND]
        last_attempt = asked[-1] if asked else None
    newest = next((r for r in reversed(past.rewrites) if r.kind in (RevisionKind.FOLD, RevisionKind.RESTORE)), None)
    left = newest.record.tokens_after if newest and newest.record else None
    guarded = None
    if newest is not None and newest.record is None:
        guarded = sum(
            tokens for o, tokens in counted.items() if any(first <= o <= last for first, last in newest.active)
        )
    known = left is not None and left == record.left_tokens
    return replace(
        record,
        boundaries=boundaries,
        last_fold=last_fold,
        last_attempt=last_attempt,
        left_tokens=left,
        left_threshold=None if left is None else record.left_threshold if known else threshold,
        summary_sizes=past.summaries,
        restored_tokens=guarded,
    )
