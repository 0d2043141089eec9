"""Accepting rows: which may enter, what the sidecar sets on them, and what they change (R1-R4, §2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.folding import facts_of
from foldline.domain.ports import CallUpdate
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    NewRow,
    ProviderCompactionRow,
    Row,
    SystemRow,
    ToolResultRow,
    calls_of,
    kind_of,
)
from foldline.domain.session import CallState, OpenRun, Session, SystemKey

REQUEST_KINDS = frozenset({RowKind.USER, RowKind.INJECTED_CONTEXT, RowKind.NOTICE})
"""Kinds that can be part of a run's request; late results join them (§1)."""

CallHistory = Mapping[str, Sequence[CallUpdate]]
"""Every stored call of the ids that an append answers and the state no longer knows."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """An append that passed: nothing is written yet.

    Attributes:
        rows: with offsets, run, and what the sidecar sets (``late``, ``call_offset``).
        places: offset of a keyed system row to the offset it stands behind (R5).
        superseded: offsets of system rows that a later version replaced.
        system_changed: a current system row was replaced, so count and anchor are void (4.3).
    """

    session: Session
    rows: tuple[Row, ...]
    calls: tuple[CallUpdate, ...]
    places: Mapping[int, int]
    superseded: tuple[int, ...]
    system_changed: bool
    warnings: tuple[Warning_, ...]


def unknown_call_ids(session: Session, rows: Sequence[NewRow]) -> tuple[str, ...]:
    """Call ids that ``accept`` needs the history of: answered here, but open neither in the state nor in ``rows``."""
    open_ids = {c.call_id for c in session.calls if not c.answered}
    missing: list[str] = []
    for row in rows:
        open_ids.update(c.call_id for c in calls_of(row.body))
        if isinstance(row.body, ToolResultRow) and row.body.call_id not in open_ids:
            missing.append(row.body.call_id)
    # A second result of one call in the same append finds its call answered: the history tells which.
    answered = Counter(r.body.call_id for r in rows if isinstance(r.body, ToolResultRow))
    missing += [call_id for call_id, times in answered.items() if times > 1]
    return tuple(dict.fromkeys(missing))


def accept(session: Session, rows: Sequence[NewRow], run_id: str, history: CallHistory) -> Accepted:
    """Gives ``rows`` their offsets and checks every one before any is taken (R1).

    Args:
        run_id: the run that rows without one belong to; empty for none.
        history: see ``unknown_call_ids``.

    Raises:
        FoldlineError: SUMMARY_ROW_REFUSED, EMPTY_ASSISTANT_ROW (R4), STALE_SYSTEM_VERSION (§2),
            UNKNOWN_TOOL_CALL, DUPLICATE_TOOL_RESULT (R3), FIELD_VALIDATION.
    """
    work = _Work(session, rows)
    for index, new in enumerate(rows):
        work.take(new, index, run_id, history)
    return Accepted(
        session=work.state(),
        rows=tuple(work.rows),
        calls=tuple(work.updates),
        places=work.places,
        superseded=tuple(work.superseded),
        system_changed=work.system_changed,
        warnings=tuple(work.warnings),
    )


class _Work:
    """The state while rows are taken: what each row changes is held so that thousands cost no more a row than one."""

    def __init__(self, session: Session, rows: Sequence[NewRow]) -> None:
        self.session = session
        self.next_offset = session.next_offset
        self.rows: list[Row] = []
        self.updates: list[CallUpdate] = []
        self.places: dict[int, int] = {}
        self.superseded: list[int] = []
        self.system_changed = False
        self.warnings: list[Warning_] = []
        self.keys = {k.key: k for k in session.system_keys}
        self.calls: list[CallState | None] = list(session.calls)
        wanted = {r.body.call_id for r in rows if isinstance(r.body, ToolResultRow)}
        self.unanswered: dict[str, list[int]] = {call_id: [] for call_id in wanted}
        """Places in ``calls`` by the ids that are answered here, the newest last."""
        if wanted:
            for place, call in enumerate(session.calls):
                if call.call_id in wanted and not call.answered:
                    self.unanswered[call.call_id].append(place)
        run = session.open_run
        self.run_id = run.run_id if run else ""
        self.steers = {"", run.run_id, run.continues} if run else set[str]()
        self.request: list[int] = []
        self.steering: list[int] = []
        self.rounds = run.rounds if run else 0
        self.paused = run.paused if run else 0

    def state(self) -> Session:
        run = self.session.open_run
        if run is not None:
            run = replace(
                run, request=(*run.request, *self.request), steering=(*run.steering, *self.steering),
                rounds=self.rounds, paused=self.paused,
            )  # fmt: skip
        calls = tuple(c for c in self.calls if c is not None)
        keys = tuple(self.keys.values())
        return replace(self.session, next_offset=self.next_offset, open_run=run, calls=calls, system_keys=keys)

    def take(self, new: NewRow, index: int, run_id: str, history: CallHistory) -> None:
        body, offset = new.body, self.next_offset
        row_run = new.run_id or run_id
        if isinstance(body, CompactionSummaryRow | ProviderCompactionRow):
            raise FoldlineError(
                Reason.SUMMARY_ROW_REFUSED,
                f"row {index} is a {kind_of(body).name.lower()}: only the sidecar writes those",
                row=index,
            )  # fmt: skip
        if isinstance(body, AssistantRow):
            row_run = row_run or self.run_id
            self._take_assistant(body, index, offset, row_run)
        elif isinstance(body, ToolResultRow):
            body, row_run = self._take_result(body, index, offset, row_run, history)
        elif isinstance(body, SystemRow):
            self._take_system(body, offset)
        self.rows.append(Row(offset, body, row_run, new.pinned))
        self.next_offset = offset + 1
        if self.session.open_run is not None:
            self._extend_run(self.rows[-1])

    def _take_assistant(self, body: AssistantRow, index: int, offset: int, run_id: str) -> None:
        if not body.content:
            raise FoldlineError(
                Reason.EMPTY_ASSISTANT_ROW, f"row {index} is an assistant row without blocks", row=index
            )
        ids = Counter(c.call_id for c in calls_of(body))
        if twice := sorted(i for i, times in ids.items() if times > 1):
            raise FoldlineError(
                Reason.FIELD_VALIDATION, f"row {index} uses the call ids {twice} twice in one assistant row",
                field="call_id", row=index, value=",".join(twice), range="unique within a row",
            )  # fmt: skip
        self.updates += [CallUpdate(offset, call_id) for call_id in ids]
        for call in calls_of(body):
            if call.call_id in self.unanswered:
                self.unanswered[call.call_id].append(len(self.calls))
            self.calls.append(CallState(offset, call.call_id, call.name, run_id))

    def _take_result(
        self, body: ToolResultRow, index: int, offset: int, run_id: str, history: CallHistory
    ) -> tuple[ToolResultRow, str]:
        standing = self.unanswered[body.call_id]
        call = self.calls[standing[-1]] if standing else None
        if call is None:
            raise self._unanswerable(body.call_id, index, history)
        late = bool(call.folded or call.closed or call.placeholder or call.interim)
        if late:
            self.warnings.append(
                Warning_(WarningCode.LATE_RESULT, f"result {offset} of call {call.call_id} (row {call.offset}) is late")
            )
        # What a closed call is sent as stays also where its late result comes before it was sent.
        left = "not_completed" if call.closed and not (call.folded or call.interim) else ""
        after = replace(
            call, interim=call.interim or body.interim, answered=not body.interim,
            placeholder=call.placeholder or left,
        )  # fmt: skip
        # An answered call is forgotten unless its placeholder text has to stay (R5).
        keeps = (
            not after.answered or (bool(after.placeholder) and not after.folded) or (after.interim and not after.folded)
        )
        self.calls[standing[-1]] = after if keeps else None
        if after.answered:
            standing.pop()
            self.updates.append(CallUpdate(call.offset, call.call_id, result_offset=offset))
        return msgspec.structs.replace(body, late=late, call_offset=call.offset), run_id or call.run_id

    def _unanswerable(self, call_id: str, index: int, history: CallHistory) -> FoldlineError:
        earlier = [r for r in self.rows if isinstance(r.body, ToolResultRow) and r.body.call_id == call_id]
        known = history.get(call_id, ())
        standing = [c for c in known if c.removed_by is None]
        if standing or earlier:
            result = earlier[-1].offset if earlier else standing[-1].result_offset
            return FoldlineError(
                Reason.DUPLICATE_TOOL_RESULT, f"row {index}: call {call_id} has its result already (row {result})",
                call_id=call_id, row=index, result_offset=result,
            )  # fmt: skip
        if known:
            return FoldlineError(
                Reason.UNKNOWN_TOOL_CALL, f"row {index}: call {call_id} was removed by revision {known[-1].removed_by}",
                call_id=call_id, row=index, removed_by=known[-1].removed_by,
            )  # fmt: skip
        return FoldlineError(
            Reason.UNKNOWN_TOOL_CALL, f"row {index}: no assistant row made a call {call_id}", call_id=call_id, row=index
        )

    def _take_system(self, body: SystemRow, offset: int) -> None:
        if not body.key:
            return
        current = self.keys.pop(body.key, None)
        if current is not None and body.version <= current.version:
            raise FoldlineError(
                Reason.STALE_SYSTEM_VERSION,
                f"system row {body.key} has version {current.version}, version {body.version} is not later",
                key=body.key, current=current.version, given=body.version,
            )  # fmt: skip
        place = current.place if current else offset
        self.keys[body.key] = SystemKey(body.key, body.version, offset, place)
        if current is not None:
            self.system_changed = True
            self.places[offset] = current.offset
            self.superseded.append(current.offset)

    def _extend_run(self, row: Row) -> None:
        facts = facts_of(row, 0, 0)
        if facts.kind == RowKind.ASSISTANT and row.run_id == self.run_id:
            self.rounds += 1
            self.paused = (self.paused or row.offset) if facts.paused else 0
        elif self.rounds == 0 and joins_request(facts.kind, facts.late):
            self.request.append(row.offset)
        elif facts.kind == RowKind.USER and row.run_id in self.steers:
            self.steering.append(row.offset)


def joins_request(kind: RowKind, late: bool) -> bool:
    """Whether a row before the run's first assistant row belongs to its request (§1 request)."""
    return kind in REQUEST_KINDS or (kind == RowKind.TOOL_RESULT and late)


def close_run_calls(session: Session, run: OpenRun) -> Session:
    """Closes the run's unanswered calls: their results will be late (R3)."""
    return replace(
        session,
        calls=tuple(replace(c, closed=True) if c.run_id == run.run_id and not c.answered else c for c in session.calls),
    )


def mark_sent(session: Session) -> Session:
    """What sending a request does: everything active is carried, unanswered calls got their placeholder (R5)."""
    calls = tuple(
        replace(c, placeholder="not_completed" if c.closed else "pending")
        if not (c.answered or c.folded or c.interim or c.placeholder)
        else c
        for c in session.calls
    )
    return replace(session, calls=calls, carried_through=session.next_offset - 1)
