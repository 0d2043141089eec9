"""What a session's state becomes when an edit or a restore puts another list in place (X1, X2, R3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import RunOutcome
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.ports import CallUpdate
from foldline.domain.rows import AssistantRow, Row, SystemRow, ToolResultRow, calls_of, identity_of
from foldline.domain.session import CallState, ClosedRun, Session, SupersededRow, SystemKey
from foldline.engine.appending import close_run_calls
from foldline.engine.lineage import UNMOVED, CallPlaces

Sizes = Mapping[int, tuple[int, int]]
"""(raw tokens, bytes) of rows by offset."""
NONE_FOLDED: Mapping[tuple[int, str], int] = {}


@dataclass(frozen=True, slots=True)
class Relisted:
    """``closed`` is the open run, cancelled because a row of its request went (X2)."""

    session: Session
    calls: tuple[CallUpdate, ...]
    closed: ClosedRun | None


def open_folded(
    recorded: Sequence[CallUpdate], after: Sequence[Row], folded: AbstractSet[int], places: CallPlaces = UNMOVED
) -> tuple[CallUpdate, ...]:
    """Calls of folded rows that have no result once ``after`` is the list: one may still come, late (R3)."""
    active = {r.offset for r in after}
    answered = {(b.call_offset, b.call_id) for r in after if isinstance(b := r.body, ToolResultRow) and not b.interim}
    return tuple(
        c
        for c in recorded
        if places.is_folded(c.offset, c.call_id, folded)
        and not places.in_rows(c.offset, c.call_id, active)
        and c.result_offset not in folded
        and (c.offset, c.call_id) not in answered
    )


def relist(
    session: Session,
    before: Sequence[Row],
    after: Sequence[Row],
    folded: AbstractSet[int],
    sizes: Sizes,
    revision: int,
    callers: Mapping[tuple[int, str], CallState],
    recorded: Sequence[CallUpdate] = (),
    places: CallPlaces = UNMOVED,
    elsewhere: Mapping[tuple[int, str], int] = NONE_FOLDED,
) -> Relisted:
    """Derives keys, calls, run and pins from the list ``after``.

    Args:
        session: the state before, with ``revision`` still the old one.
        before, after: the active rows before and after, in list order.
        folded: offsets that are folded in the lineage of the new revision.
        revision: the revision that the edit or restore makes; it is what removed calls name (R3).
        callers: the calls of ``open_folded``, as new, by (offset, id).
        recorded: every call that the store has; those that are neither in the list nor folded are removed by it.
        places: where calls stand that trims moved, in the lineage of the new revision.
        elsewhere: offsets of final results that are folded, by the call (offset, id) that may stand in the list: late
            ones, which fold alone (R3).
    """
    keys, gone = _system(after, sizes)
    calls = _calls(session, after, callers, elsewhere)
    updates = (
        *_updates(recorded, after, folded, revision, callers, places, elsewhere),
        *(CallUpdate(*name) for name in callers),
    )
    pinned = sum(sizes[r.offset][0] for r in after if r.pinned)
    changed = replace(session, system_keys=keys, superseded=gone, calls=calls, pinned_tokens=pinned)
    run, active = session.open_run, {r.offset for r in after}
    if run is None:
        return Relisted(changed, updates, None)
    if not active.issuperset(run.request):
        closed = ClosedRun(run.run_id, RunOutcome.CANCELLED, run.asked)
        return Relisted(replace(close_run_calls(changed, run), open_run=None), updates, closed)
    rounds = sum(1 for r in after if isinstance(r.body, AssistantRow) and r.run_id == run.run_id)
    folded_rounds = run.rounds - sum(1 for r in before if isinstance(r.body, AssistantRow) and r.run_id == run.run_id)
    paused = run.paused if run.paused in active else 0
    run = replace(run, rounds=rounds + max(0, folded_rounds), paused=paused)
    return Relisted(replace(changed, open_run=run), updates, None)


def _system(after: Sequence[Row], sizes: Sizes) -> tuple[tuple[SystemKey, ...], tuple[SupersededRow, ...]]:
    keys: dict[str, SystemKey] = {}
    gone: list[SupersededRow] = []
    for row in after:
        if not isinstance(row.body, SystemRow) or not row.body.key:
            continue
        known = keys.get(row.body.key)
        place = known.place if known else row.offset
        newest = known is None or row.body.version > known.version
        old = known.offset if known and newest else (None if newest else row.offset)
        if old is not None:
            gone.append(SupersededRow(old, *sizes[old]))
        if newest:
            keys[row.body.key] = SystemKey(row.body.key, row.body.version, row.offset, place)
    return tuple(keys.values()), tuple(gone)


def _calls(
    session: Session, after: Sequence[Row], callers: Mapping[tuple[int, str], CallState],
    elsewhere: Mapping[tuple[int, str], int],
) -> tuple[CallState, ...]:  # fmt: skip
    known = {(c.offset, c.call_id): c for c in session.calls}
    results = [r.body for r in after if isinstance(r.body, ToolResultRow)]
    final = dict.fromkeys(elsewhere, True) | {(b.call_offset or 0, b.call_id): b.late for b in results if not b.interim}
    interim = {(b.call_offset, b.call_id) for b in results if b.interim}
    calls = [
        replace(known.get(name, new), folded=True, answered=False, interim=name in interim)
        for name, new in callers.items()
    ]
    for row in after:
        for call in calls_of(row.body):
            name = (identity_of(row), call.call_id)
            state = known.get(name) or CallState(*name, call.name, row.run_id)
            state = replace(state, folded=False, answered=name in final, interim=name in interim)
            if not state.answered or final[name] or state.interim:
                # A late result stands beside the placeholder that was sent before it.
                late = state.answered and final[name] and not state.interim
                calls.append(replace(state, placeholder=state.placeholder or ("pending" if late else "")))
    return tuple(sorted(calls, key=lambda c: c.offset))


def _updates(
    recorded: Sequence[CallUpdate], after: Sequence[Row], folded: AbstractSet[int], revision: int,
    waiting: AbstractSet[tuple[int, str]] | Mapping[tuple[int, str], CallState], places: CallPlaces,
    elsewhere: Mapping[tuple[int, str], int],
) -> tuple[CallUpdate, ...]:  # fmt: skip
    active = {r.offset for r in after}
    final = dict(elsewhere) | {
        (b.call_offset or 0, b.call_id): r.offset
        for r in after
        if isinstance(b := r.body, ToolResultRow) and not b.interim
    }
    updates = [
        CallUpdate(c.offset, c.call_id, c.result_offset, removed_by=revision)
        for c in recorded
        if c.removed_by is None
        and not places.in_rows(c.offset, c.call_id, active)
        and not places.is_folded(c.offset, c.call_id, folded)
    ]
    # A restore may bring back a fold that an earlier one took away, with its calls and their results.
    updates += [
        CallUpdate(c.offset, c.call_id, c.result_offset)
        for c in recorded
        if c.removed_by is not None
        and places.is_folded(c.offset, c.call_id, folded)
        and not places.in_rows(c.offset, c.call_id, active)
        and (c.offset, c.call_id) not in waiting
    ]
    updates += [
        CallUpdate(identity_of(r), c.call_id, result_offset=final.get((identity_of(r), c.call_id)))
        for r in after
        for c in calls_of(r.body)
    ]
    return tuple(updates)


def check_edit(
    before: Sequence[Row], after: Sequence[Row], units: Sequence[Sequence[int]], whole: Sequence[Sequence[int]],
    session: Session,
) -> None:  # fmt: skip
    """X1: no key without its current row, no result without its call, no half unit, none with rows put between it.

    Args:
        units, whole: the units of the list before and after, as offsets.

    Raises:
        FoldlineError: EDIT_SPLITS_UNIT, naming the rows.
    """
    active = {r.offset for r in after}
    for unit in units:
        left = [o for o in unit if o in active]
        if left and len(left) != len(unit):
            raise _splits(f"rows {_names(unit)} move as one, the edit keeps only {_names(left)}", unit)
    place = {offset: index for index, unit in enumerate(whole) for offset in unit}
    for unit in units:
        if unit[0] in active and len({place[o] for o in unit}) > 1:
            raise _splits(f"rows {_names(unit)} move as one, the edit would put a row between them", unit)
    for key in session.system_keys:
        versions = [r.offset for r in after if isinstance(r.body, SystemRow) and r.body.key == key.key]
        newest = max(
            (r.body.version for r in after if isinstance(r.body, SystemRow) and r.body.key == key.key), default=-1
        )
        if newest < key.version:
            raise _splits(
                f"system row {key.key} would lose its current version {key.version}", versions or [key.offset]
            )
    made = {(identity_of(r), c.call_id) for r in after for c in calls_of(r.body)}
    for row in after:
        body = row.body
        in_time = isinstance(body, ToolResultRow) and not body.late
        if in_time and isinstance(body, ToolResultRow) and (body.call_offset, body.call_id) not in made:
            raise _splits(f"result {row.offset} would lose its call {body.call_id}", [row.offset])


def _names(offsets: Sequence[int]) -> str:
    return ", ".join(map(str, offsets))


def _splits(message: str, offsets: Sequence[int]) -> FoldlineError:
    return FoldlineError(Reason.EDIT_SPLITS_UNIT, message, offsets=",".join(map(str, offsets)))
