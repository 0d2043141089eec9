"""A transcript that the host keeps, as the rules see it (§14, H1, H2): nothing here knows the store.

A list is read by places, 1, 2, 3 …, and then numbered: rows that are in the archive have their offset there, the others
get the session's next ones, which only those that fold will keep. Who was sent what is read off the list: an assistant
row answers a request that carried every row before it. So results behind the last assistant row are not carried (F6),
and a result that an assistant row parts from its call is late (R3).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import msgspec

from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.folding import FoldPlan, Snapshot
from foldline.domain.ports import CallUpdate
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ModelRef,
    NewRow,
    Row,
    RowBody,
    ToolResultRow,
    calls_of,
)
from foldline.domain.session import CallState, LedgerCall, OpenRun, Session
from foldline.engine.appending import accept, mark_sent
from foldline.engine.planning import PlanInputs, plan
from foldline.engine.render import EARLIER_WORK, RUN_WORK
from foldline.engine.structure import analyze

TRIES = 4
"""Plans that may split messages before every message of several rows is held."""

NAMED = 8
"""Rows that a warning names."""

RowKey = tuple[str, int]
"""What a row is known by: the host's id of its first message, and which of that message's rows it is. The id is empty
for rows of no message, such as the system text beside them."""


@dataclass(frozen=True, slots=True)
class SentRow:
    """A row as it came: ``first`` and ``last`` are the positions of its messages in ``row_ids``, -1 for none."""

    new: NewRow
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HostList:
    """What a call carries (H1).

    Attributes:
        row_ids: the host's ids of its rows or raw messages, in order.
        open_run_start: id of the first row of the open run's request; empty where no run is open.
        run_id: of the open run; without one it is named by its start.
    """

    rows: tuple[SentRow, ...]
    row_ids: tuple[str, ...]
    open_run_start: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What the session holds of earlier folds.

    Attributes:
        summaries: issued summaries by position in the list; their bodies are the record's, not the host's (H2).
        calls: calls of archived rows that still wait for a result, as folded; their offsets are negative, so that none
            is mistaken for a place in the list.
        history: every archived call of the ids that the list answers without making them.
        carried: leading rows that an earlier answer of ours gave to be sent.
    """

    summaries: Mapping[int, CompactionSummaryRow]
    calls: tuple[CallState, ...] = ()
    history: Mapping[str, Sequence[CallUpdate]] = field(default_factory=dict)
    carried: int = 0


@dataclass(frozen=True, slots=True)
class Transcript:
    """The list as planning needs it.

    Attributes:
        keys: of each row, for identity.
        calls: call states at the end of the list (R3).
        superseded: offsets of system rows that a later version replaced.
        system_changed: place of the last system row that replaced one, 0 for none: what was counted of a shorter list
            is void (4.3).
        bound: groups of offsets that one message holds together.
        in_run: the open run has made a round, in the list or folded.
    """

    rows: tuple[Row, ...]
    keys: tuple[RowKey, ...]
    open_run: OpenRun | None
    calls: tuple[CallState, ...]
    superseded: frozenset[int]
    system_changed: int
    carried_through: int
    prepared_through: int
    bound: tuple[tuple[int, ...], ...]
    in_run: bool
    warnings: tuple[Warning_, ...]


def read(sent: HostList, known: Known, *, now: float) -> Transcript:
    """Reads a host's list by the rules of an append (R3, R4, §2), as if its rows had come one after the other.

    Raises:
        FoldlineError: what an append refuses, naming the row's id; FIELD_VALIDATION for an open run that starts at no
            row, or at no request (L5).
    """
    return _Reader(sent, known, now).read()


class _Reader:
    def __init__(self, sent: HostList, known: Known, now: float) -> None:
        self.sent, self.known, self.now = sent, known, now
        self.state = Session(key=0, tenant="", session_id="", create_time="", model=ModelRef())
        self.sent_calls: dict[str, list[CallState]] = {}
        """Calls that a request carried, by id, oldest first: beside the state, which is copied with each answer."""
        self._set_aside(known.calls)
        self.made: dict[str, dict[int, CallUpdate]] = {}
        """What became of the calls of the list, by id and offset."""
        self.rows: list[Row] = []
        self.superseded: set[int] = set()
        self.system_changed = 0
        self.summary_of_run = False

    def read(self) -> Transcript:
        start = _start(self.sent)
        chunk: list[NewRow] = []
        for position, sent in enumerate(self.sent.rows):
            summary = self.known.summaries.get(position)
            answers = isinstance(sent.new.body, AssistantRow)
            if position == start or answers or summary is not None:
                self._take(chunk)
                chunk = []
            if position == start:
                self._open(position)
            if answers:
                self.state = mark_sent(self.state)
                self._set_aside(self.state.calls)
                self.state = replace(self.state, calls=())
            if summary is not None:
                self._summary(summary, sent.new, position)
            else:
                chunk.append(sent.new)
        self._take(chunk)
        return self._made()

    def _set_aside(self, calls: Sequence[CallState]) -> None:
        for call in calls:
            self.sent_calls.setdefault(call.call_id, []).append(call)

    def _take(self, chunk: Sequence[NewRow]) -> None:
        if not chunk:
            return
        answered = dict.fromkeys(new.body.call_id for new in chunk if isinstance(new.body, ToolResultRow))
        again = [call for call_id in answered for call in self.sent_calls.pop(call_id, ())]
        self.state = replace(self.state, calls=(*again, *self.state.calls))
        run = self.state.open_run
        run_id = run.run_id if run else ""
        if run is not None:
            # What a model answers behind the request is the open run's, whatever else the host names it.
            chunk = [_of_run(new, run_id) if isinstance(new.body, AssistantRow) else new for new in chunk]
        try:
            history = {i: (*self.known.history.get(i, ()), *self.made.get(i, {}).values()) for i in answered}
            accepted = accept(self.state, chunk, run_id, history)
        except FoldlineError as error:
            raise self._named(error) from None
        self.state = accepted.session
        self.rows += accepted.rows
        for update in accepted.calls:
            self.made.setdefault(update.call_id, {})[update.offset] = update
        self.superseded.update(accepted.superseded)
        self.system_changed = max((self.system_changed, *accepted.places))

    def _named(self, error: FoldlineError) -> FoldlineError:
        """The refusal of a row by its place in the whole list, and by its id."""
        if "row" not in error.metadata:
            return error
        row = len(self.rows) + int(error.metadata["row"])
        key = self.sent.rows[row]
        row_id = self.sent.row_ids[key.first] if key.first >= 0 else ""
        metadata = error.metadata | {"row": str(row), "row_id": row_id}
        what = error.message.split(": ", 1)[-1] if error.message.startswith("row ") else error.message
        return FoldlineError(error.reason, f"row {row_id or row}: {what}", **metadata)

    def _open(self, position: int) -> None:
        # The run of every call before it has ended: a result that comes now is late (R3).
        self._set_aside(self.state.calls)
        self.sent_calls = {
            call_id: [c if c.answered else replace(c, closed=True) for c in calls]
            for call_id, calls in self.sent_calls.items()
        }
        run_id = self.sent.run_id or _named_by(self.sent.open_run_start)
        run = OpenRun(run_id, opened_boundary=0, opened_offset=position + 1, last_active=self.now)
        self.state = replace(self.state, calls=(), open_run=run)

    def _summary(self, body: CompactionSummaryRow, new: NewRow, position: int) -> None:
        if new.pinned:
            raise FoldlineError(
                Reason.SUMMARY_ROW_REFUSED, f"row {position} is a summary and cannot be pinned", row=position
            )
        self.rows.append(Row(self.state.next_offset, body))
        self.state = replace(self.state, next_offset=self.state.next_offset + 1)
        self.summary_of_run = self.summary_of_run or self.state.open_run is not None

    def _made(self) -> Transcript:
        run = self.state.open_run
        if run is not None and not run.request:
            raise FoldlineError(
                Reason.FIELD_VALIDATION,
                f"no request begins at row {self.sent.open_run_start}: no user, context or notice row stands between "
                "it and the first assistant row behind it",
                field="transcript.open_run_start", value=self.sent.open_run_start, range="the first row of a request",
            )  # fmt: skip
        if run is not None and self.summary_of_run:
            # Rounds that have folded were rounds of this run: its checks are in-run.
            run = replace(run, rounds=max(1, run.rounds))
        return Transcript(
            rows=tuple(self.rows),
            keys=keys_of(self.sent),
            open_run=run,
            calls=tuple(sorted((*chain(*self.sent_calls.values()), *self.state.calls), key=lambda c: c.offset)),
            superseded=frozenset(self.superseded),
            system_changed=self.system_changed,
            carried_through=max(self.state.carried_through, self.known.carried),
            prepared_through=self.state.carried_through,
            bound=_bound(self.sent.rows),
            in_run=run is not None and run.rounds > 0,
            warnings=self._late(),
        )

    def _late(self) -> tuple[Warning_, ...]:
        late = [i for i, r in enumerate(self.rows) if isinstance(r.body, ToolResultRow) and r.body.late]
        if not late:
            return ()
        ids = [self.sent.row_ids[self.sent.rows[i].first] for i in late[:NAMED]]
        more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
        what = f"results that are late, which stand apart from their calls: rows {', '.join(ids)}{more}"
        return (Warning_(WarningCode.LATE_RESULT, what),)


def numbered(read: Transcript, offsets: Sequence[int]) -> Transcript:
    """The list with offsets instead of places.

    Args:
        offsets: of the rows, in list order; those that the session gives now are above all others.
    """

    def at(place: int) -> int:
        return -place if place < 0 else offsets[place - 1]

    def through(place: int) -> int:
        return max(offsets[:place], default=0)

    run = read.open_run
    if run is not None:
        run = replace(run, request=tuple(map(at, run.request)), opened_offset=at(run.opened_offset))
    return replace(
        read,
        rows=tuple(Row(o, _answering(r.body, at), r.run_id, r.pinned) for o, r in zip(offsets, read.rows, strict=True)),
        open_run=run,
        calls=tuple(replace(c, offset=at(c.offset)) for c in read.calls),
        superseded=frozenset(map(at, read.superseded)),
        carried_through=through(read.carried_through),
        prepared_through=through(read.prepared_through),
        bound=tuple(tuple(map(at, group)) for group in read.bound),
    )


def _answering(body: RowBody, at: Callable[[int], int]) -> RowBody:
    if isinstance(body, ToolResultRow) and body.call_offset is not None:
        return msgspec.structs.replace(body, call_offset=at(body.call_offset))
    return body


def _of_run(new: NewRow, run_id: str) -> NewRow:
    return new if new.run_id == run_id else msgspec.structs.replace(new, run_id=run_id)


def _named_by(row_id: str) -> str:
    """A run's id from that of its first row, which may hold what no run id may."""
    return "run-" + hashlib.sha256(row_id.encode()).hexdigest()[:24]


def _start(sent: HostList) -> int | None:
    """Position of the first row of the open run's request.

    Raises:
        FoldlineError: FIELD_VALIDATION for a start that names no row, or a run without a start.
    """
    if not sent.open_run_start:
        if sent.run_id:
            raise FoldlineError(
                Reason.FIELD_VALIDATION, f"run {sent.run_id} is open and transcript.open_run_start names no row",
                field="transcript.open_run_start", value="", range="one of transcript.row_ids",
            )  # fmt: skip
        return None
    at = next((i for i, row_id in enumerate(sent.row_ids) if row_id == sent.open_run_start), None)
    found = None if at is None else next((p for p, r in enumerate(sent.rows) if r.last >= at), None)
    if found is None:
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"transcript.open_run_start {sent.open_run_start} is none of the rows",
            field="transcript.open_run_start", value=sent.open_run_start, range="one of transcript.row_ids",
        )  # fmt: skip
    return found


def keys_of(sent: HostList) -> tuple[RowKey, ...]:
    """What each row is known by."""
    keys: list[RowKey] = []
    part, before = 0, -1
    for row in sent.rows:
        part = part + 1 if row.first == before and row.first >= 0 else 0
        before = row.first
        keys.append((sent.row_ids[row.first] if row.first >= 0 else "", part))
    return tuple(keys)


def _bound(rows: Sequence[SentRow]) -> tuple[tuple[int, ...], ...]:
    """Groups of places whose rows share a message: the host can only keep or drop messages whole."""
    groups: list[list[int]] = [[1]] if rows else []
    for offset, (a, b) in enumerate(pairwise(rows), 2):
        if b.first >= 0 and b.first <= a.last:
            groups[-1].append(offset)
        else:
            groups.append([offset])
    return tuple(tuple(g) for g in groups if len(g) > 1)


def plan_whole(
    snapshot: Snapshot, inputs: PlanInputs, calls: Mapping[int, tuple[LedgerCall, ...]],
    bound: Sequence[tuple[int, ...]],
) -> tuple[FoldPlan | None, Snapshot]:  # fmt: skip
    """A plan that splits no message, and the snapshot that it is of.

    A message whose rows would partly fold is held whole, as if it were pinned, and the fold is planned anew.
    """
    for attempt in range(TRIES + 1):
        planned = plan(snapshot, analyze(snapshot), inputs, calls)
        if planned is None:
            break
        split = split_messages(planned, bound)
        if not split:
            return planned, snapshot
        held = {o for group in (split if attempt < TRIES - 1 else bound) for o in group}
        rows = tuple(replace(r, pinned=True) if r.offset in held else r for r in snapshot.rows)
        snapshot = replace(snapshot, rows=rows)
    return None, snapshot


def split_messages(planned: FoldPlan, bound: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The messages of which a plan discards some rows and not others."""
    gone = set(planned.discard)
    return [group for group in bound if 0 < sum(o in gone for o in group) < len(group)]


def discarded_messages(sent: HostList, rows: Sequence[Row], discard: Sequence[int]) -> frozenset[int]:
    """Positions in ``row_ids`` of what folds. A message that made no row goes with the one before it."""
    gone = set(discard)
    found: set[int] = set()
    kept: set[int] = set()
    for row, made in zip(sent.rows, rows, strict=True):
        (found if made.offset in gone else kept).update(range(row.first, row.last + 1))
    for position in range(len(sent.row_ids)):
        if position not in found and position not in kept and position - 1 in found:
            found.add(position)
    return frozenset(found - {-1})


def list_digests(names: Sequence[bytes], lengths: Sequence[int]) -> dict[int, str]:
    """Digests of the leading rows of a list, hex, by their number; lengths beyond the list are left out."""
    wanted = {n for n in lengths if 0 <= n <= len(names)}
    found: dict[int, str] = {}
    digest = hashlib.sha256(b"foldline.list.v1")
    for number in range(max(wanted, default=-1) + 1):
        if number:
            digest.update(names[number - 1])
        if number in wanted:
            found[number] = digest.hexdigest()
    return found


def plain_summary(text: str) -> str:
    """The text of a summary without the line that says what it is, where a host sends it as a message."""
    for mark in (EARLIER_WORK, RUN_WORK):
        if text.startswith(mark):
            return text[len(mark) :].lstrip("\n")
    return text


def unanswered_here(rows: Sequence[SentRow]) -> tuple[str, ...]:
    """Ids of results that answer no call of the list: of calls that have folded, or of none (R3)."""
    waiting: Counter[str] = Counter()
    found: dict[str, None] = {}
    for row in rows:
        body = row.new.body
        if isinstance(body, ToolResultRow):
            if not waiting[body.call_id]:
                found[body.call_id] = None
            elif not body.interim:
                waiting[body.call_id] -= 1
        else:
            waiting.update(c.call_id for c in calls_of(body))
    return tuple(found)


def row_name(key: RowKey, kind: RowKind, content: bytes) -> bytes:
    """What stands for a row in the digest of a list: its id and its content; of a summary, whose id is the host's to
    choose, what it holds alone.

    Args:
        content: digest of the row's body, 32 bytes.
    """
    if kind is RowKind.COMPACTION_SUMMARY:
        return b"s" + content
    row_id = key[0].encode()
    return b"r" + len(row_id).to_bytes(2, "big") + row_id + key[1].to_bytes(4, "big") + content


__all__ = [
    "HostList",
    "Known",
    "RowKey",
    "SentRow",
    "Transcript",
    "discarded_messages",
    "keys_of",
    "list_digests",
    "numbered",
    "plain_summary",
    "plan_whole",
    "read",
    "row_name",
    "split_messages",
    "unanswered_here",
]
