"""Many callers at once, deadlines, cancels and kills: what no order of events can be foretold of.

Each caller keeps what was acknowledged. Afterwards every unknown outcome is asked for again under its request id, the
model reads the session anew, and holds it to what does not depend on order: nothing acknowledged is lost, nothing is
there twice, every fold took only what it may.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_service_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.model import rows as made
from tests.model.onlooker import Onlooker
from tests.model.state import State, expanded, require, sent_form
from tests.support.server import Client

LOST = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
"""Ends of a call that say nothing of what became of it."""
_EXPECTED = {
    "RUN_ALREADY_OPEN", "RUN_NOT_OPEN", "PREPARE_NOT_FOUND", "REVISION_MISMATCH", "FOLD_IN_PROGRESS", "NOTHING_TO_FOLD",
    "FIELD_VALIDATION", "UNKNOWN_TOOL_CALL", "DUPLICATE_TOOL_RESULT", "SUMMARIZER_FAILED", "REWRITE_REJECTED",
    "CURATOR_UNAVAILABLE", "CURATOR_FAILED", "EDIT_SPLITS_UNIT", "SUMMARY_ROW_REFUSED", "OVERLOADED", "NOT_READY",
    "EMPTY_QUERY",
}  # fmt: skip


@dataclass
class Sent:
    """One mutating call: ``response`` once it was acknowledged, ``reason`` once it was refused, neither if lost."""

    name: str
    request: Any
    rows: list[row_pb2.Row] = field(default_factory=list)
    response: Any = None
    reason: str = ""


class Crowd:
    """Callers of one session, each with its own generator so that a seed gives the same calls."""

    def __init__(self, state: State, look: Onlooker, rng: random.Random) -> None:
        self.state, self.look, self.rng = state, look, rng
        self.sent: list[Sent] = []
        self.lock = threading.Lock()
        self.number = state.numbers

    def planned(self, callers: int, calls: int) -> list[list[Sent]]:
        """What every caller will send. Unanswered calls are each answered once, by whoever comes first."""
        waiting = [call_id for _, call_id in self.state.unanswered()]
        self.rng.shuffle(waiting)
        plans = [[self._one(waiting) for _ in range(calls)] for _ in range(callers)]
        self.sent = [one for plan in plans for one in plan]
        self.state.numbers = self.number
        return plans

    def _id(self) -> str:
        self.number += 1
        return f"k-{self.number}"

    def _one(self, waiting: list[str]) -> Sent:
        rng, state = self.rng, self.state
        draw = rng.random()
        if draw < 0.35:
            rows = [made.user(rng)] if rng.random() < 0.6 or not waiting else [made.result(rng, waiting.pop())]
            given = row_pb2.RowInput(rows=row_pb2.RowList(rows=rows))
            append = session_service_pb2.AppendRowsRequest(session_id=state.id, request_id=self._id(), input=given)
            return Sent("AppendRows", append, rows)
        if draw < 0.7:
            rows = [made.user(rng)] if rng.random() < 0.7 else []
            prepare = compaction_service_pb2.PrepareRequestRequest(
                session_id=state.id, run_id=state.open_run or "run-crowd", request_id=self._id(),
                reply=rng.choice((1, 2, 3)), known_revision=state.revision,
            )  # fmt: skip
            if rows:
                prepare.append.rows.rows.extend(rows)
            return Sent("PrepareRequest", prepare, rows)
        if draw < 0.8:
            return Sent(
                "CompactSession",
                compaction_service_pb2.CompactSessionRequest(session_id=state.id, request_id=self._id()),
            )
        if draw < 0.87 and state.prepared:
            rows = [made.assistant(rng)]
            answer = compaction_service_pb2.Answer(input=row_pb2.RowInput(rows=row_pb2.RowList(rows=rows)))
            outcome = compaction_service_pb2.Outcome(prepare_id=state.prepared, answer=answer)
            record = compaction_service_pb2.RecordAnswerRequest(
                session_id=state.id, run_id=state.prepared_run, request_id=self._id(), outcome=outcome
            )
            return Sent("RecordAnswer", record, rows)
        if draw < 0.9 and state.open_run:
            finish = compaction_service_pb2.FinishRunRequest(
                session_id=state.id,
                run_id=state.open_run,
                outcome=compaction_pb2.RUN_OUTCOME_COMPLETED,
                request_id=self._id(),
            )
            return Sent("FinishRun", finish)
        if draw < 0.95:
            return Sent("ListRows", session_service_pb2.ListRowsRequest(session_id=state.id, page_size=1000))
        return Sent("ListEvents", event_service_pb2.ListEventsRequest(session_id=state.id))

    def send(self, client: Client, one: Sent, timeout: float | None = 60) -> None:
        """Calls once and keeps what came of it."""
        stub = next(s for s in (client.session, client.compaction, client.event) if hasattr(s, one.name))
        try:
            answer = getattr(stub, one.name)(one.request, timeout=timeout)
            if one.name == "CompactSession":
                answer = list(answer)[-1]
        except ValueError:
            return  # the channel was closed under the caller, as by a kill
        except grpc.RpcError as error:
            reason = self.look.error(error, one.name)
            if reason not in LOST:
                require(reason in _EXPECTED, "H", f"{reason} of {one.name}: {error.details()}")
                one.reason = reason
            return
        with self.lock:
            if one.response is not None and one.name in ("AppendRows", "RecordAnswer", "FinishRun"):
                require(answer == one.response, "W2", f"a repeat of {one.name} answers {answer}, not {one.response}")
            one.response = answer

    def run(self, client: Client, plans: list[list[Sent]], *, timeout: Callable[[], float | None] = lambda: 60) -> None:
        broken: list[BaseException] = []

        def caller(plan: list[Sent]) -> None:
            for one in plan:
                try:
                    self.send(client, one, timeout())
                except BaseException as error:
                    broken.append(error)
                    return

        threads = [threading.Thread(target=caller, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            require(not thread.is_alive(), "L2", "a call never came back")
        if broken:
            raise broken[0]

    def ask_again(self, client: Client) -> None:
        """Repeats every call whose outcome was lost, and some that were answered, until it is known (W2, W10)."""
        for one in self.sent:
            lost = one.response is None and not one.reason
            if lost or (one.response is not None and self.rng.random() < 0.3):
                self.send(client, one)
            require(one.response is not None or one.reason, "W2", f"{one.name} is still unknown")

    def settle(self) -> None:
        """Reads the session anew, and accounts for every row (R1, V10, L2)."""
        state, look = self.state, self.look
        deadline = time.monotonic() + 30
        while True:
            # A fold of a caller that went away may still be under way (A5).
            look.pending(state)
            if not state.started.keys() - state.ended - state.ahead or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self._barrier()
        look.pending(state)
        known = set(state.archive)
        rows = look.listed(state, session_pb2.ROW_VIEW_ARCHIVE)
        look.learn(state, rows)
        got = look.get(state)
        require([r.offset for r in rows] == list(range(1, len(rows) + 1)), "R1", "offsets have gaps")
        self._nothing_twice(rows, known)
        active = [r.offset for r in look.listed(state, session_pb2.ROW_VIEW_ACTIVE)]
        gone = (set(state.active) | set(state.archive) - known) - set(active)
        for offset in gone:
            require(offset not in state.pinned, "F9", f"pinned row {offset} folded")
        self._folds(known)
        state.folded |= gone
        state.folds = got.totals.folds
        state.seen_folds.update(r.fold_id for r in state.unseen_folds)
        state.change(got.session.revision, active)
        state.sent.clear()
        state.maybe_carried.update(o for o in active if state.kind(o) == "tool_result")
        if got.session.open_run_id != state.open_run:
            if state.open_run:
                state.runs.append(state.open_run)
            state.open_run, state.asked, state.last_asked = got.session.open_run_id, [], []
        state.prepared = ""
        state.replica, state.replica_revision = list(active), got.session.revision

    def _barrier(self) -> None:
        """A fork waits for whatever fold is under way (L2), one with a summary written ahead of need too (A5)."""
        gone = f"{self.state.id}-barrier"
        fork = session_service_pb2.ForkSessionRequest(session_id=self.state.id, fork_session_id=gone)
        self.look.client.session.ForkSession(fork, timeout=60)
        self.look.client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=gone))

    def _nothing_twice(self, rows: list[row_pb2.Row], known: set[int]) -> None:
        """Every acknowledged row is stored once, at the offset that was answered; a refused one is not there."""
        new = [r for r in rows if r.offset not in known and not r.HasField("compaction_summary")]
        stored = sorted(sent_form(r) for r in new)
        wanted = sorted(sent_form(r) for one in self.sent if one.response is not None for r in one.rows)
        require(len(stored) == len(wanted), "R1", f"{len(stored)} rows stored, {len(wanted)} acknowledged")
        require(stored == wanted, "R1", "other rows are stored than were acknowledged")
        by_offset = {r.offset: r for r in new}
        for one in self.sent:
            if one.response is not None and one.rows and one.name != "ListRows":
                require(one.response.last_offset in by_offset, "R1", f"{one.name} answered {one.response.last_offset}")
                require(
                    sent_form(by_offset[one.response.last_offset]) == sent_form(one.rows[-1]), "R1",
                    f"row {one.response.last_offset} is not what {one.name} sent",
                )  # fmt: skip

    def _folds(self, known: set[int]) -> None:
        """No row of the open run's request folded, whoever asked for the fold."""
        for one in self.sent:
            record = None
            if one.name == "PrepareRequest" and one.response is not None and one.response.HasField("fold"):
                record = one.response.fold
            if one.name == "CompactSession" and one.response is not None:
                record = one.response.record
            if record is not None:
                closed = any(o.name == "FinishRun" and o.response is not None for o in self.sent)
                taken = set(expanded(record.discarded)) & set(self.state.asked)
                require(not taken or closed, "V5", f"rows {taken} of the open run's request folded")
                require(record.tokens_after < record.tokens_before, "V6", record)
