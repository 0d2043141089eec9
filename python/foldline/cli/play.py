"""Plays a recorded conversation through a running sidecar, one PrepareRequest a model call.

A player is a host as the contract means it: it holds the list as a replica that it keeps by splices, hands in each
answer with the next call, and asks memory at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from foldline.domain.enums import RowKind
from foldline.domain.rows import NewRow, Row, kind_of
from foldline.formats.importers import Recording, Step
from foldline.server.codec.rows import wire_row
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    compaction_service_pb2_grpc,
    memory_pb2,
    memory_service_pb2,
    memory_service_pb2_grpc,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)

OnPrepared = Callable[["Player", Step, compaction_service_pb2.PrepareRequestResponse], None]


@dataclass(slots=True)
class Played:
    """What playing one recording gave; counts of rows as VerifySession states them.

    Attributes:
        summaries: calls of sources of summaries, also of folds that came to nothing.
    """

    session_id: str
    requests: int = 0
    folds: int = 0
    summaries: int = 0
    too_large: int = 0
    over_window: int = 0
    rows_total: int = 0
    rows_active: int = 0
    rows_archived: int = 0
    verify_ok: bool = False
    faults: list[str] = field(default_factory=list)
    searches: list[tuple[str, bool]] = field(default_factory=list)


class Player:
    """One session on one channel.

    Attributes:
        replica: offsets of the list as the host holds it, kept by splices (W1).
        revision: of the replica.
    """

    def __init__(self, channel: grpc.Channel, session_id: str, model: model_pb2.ModelRef) -> None:
        self.sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self.compaction = compaction_service_pb2_grpc.CompactionServiceStub(channel)
        self.memory = memory_service_pb2_grpc.MemoryServiceStub(channel)
        self.session_id = session_id
        self.model = model
        self.replica: list[int] = []
        self.revision = 0
        self.run = 0
        self.played = Played(session_id)
        self._previous: compaction_service_pb2.Outcome | None = None

    def create(self, policy: policy_pb2.Policy | None = None) -> None:
        self.sessions.CreateSession(
            session_service_pb2.CreateSessionRequest(
                session_id=self.session_id, model=self.model, policy=policy, request_id=f"{self.session_id}-create"
            )
        )

    def play(self, recording: Recording, on_prepared: OnPrepared | None = None) -> Played:
        """Plays every step, finishes the last run, verifies."""
        for step in recording.steps:
            self.step(step, on_prepared)
        self.finish()
        self.verify()
        return self.played

    def step(self, step: Step, on_prepared: OnPrepared | None = None) -> None:
        """One model call: what came before it goes in, its recorded answer waits for the next call."""
        if self.run == 0 or any(kind_of(r.body) == RowKind.USER for r in step.rows):
            if self._previous is not None:
                self._previous.finish = compaction_pb2.RUN_OUTCOME_COMPLETED
            self.run += 1
        self.played.requests += 1
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.session_id,
            run_id=f"run-{self.run}",
            request_id=f"prepare-{self.played.requests}",
            previous_answer=self._previous,
            append=_rows(step.rows) if step.rows else None,
            shape=compaction_service_pb2.RequestShape(model=self.model),
            reply=compaction_pb2.REPLY_MODE_EDITS,
            known_revision=self.revision,
        )
        response = self.compaction.PrepareRequest(request)
        self._apply(response)
        self.played.folds += response.HasField("fold")
        self.played.too_large += response.action == compaction_pb2.ACTION_TOO_LARGE
        if on_prepared is not None:
            on_prepared(self, step, response)
        self._previous = None
        if step.answer is not None:
            self._previous = compaction_service_pb2.Outcome(prepare_id=response.prepare_id)
            self._previous.answer.CopyFrom(_answer(step))

    def _apply(self, response: compaction_service_pb2.PrepareRequestResponse) -> None:
        if response.HasField("rows"):
            self.replica = [r.offset for r in response.rows.rows]
        for splice in response.splices.splices:
            inserted = [r.offset for r in splice.rows.rows] or list(splice.offsets.offsets)
            self.replica[splice.position : splice.position + splice.delete_count] = inserted
        self.revision = response.revision

    def finish(self) -> None:
        """Hands in the last answer and closes the run."""
        if self._previous is None:
            self.compaction.FinishRun(
                compaction_service_pb2.FinishRunRequest(
                    session_id=self.session_id,
                    run_id=f"run-{self.run}",
                    request_id="finish",
                    outcome=compaction_pb2.RUN_OUTCOME_CANCELLED,
                )
            )
            return
        self._previous.finish = compaction_pb2.RUN_OUTCOME_COMPLETED
        self.compaction.RecordAnswer(
            compaction_service_pb2.RecordAnswerRequest(
                session_id=self.session_id, run_id=f"run-{self.run}", request_id="last-answer", outcome=self._previous
            )
        )
        self._previous = None

    def search(self, query: str, answers: Callable[[memory_pb2.MemoryHit], bool]) -> memory_pb2.MemoryHit | None:
        """Asks memory, and notes whether a hit answers; returns the best that does."""
        answer = self.memory.SearchMemory(
            memory_service_pb2.SearchMemoryRequest(session_id=self.session_id, query=query)
        )
        found = next(filter(answers, answer.hits), None)
        self.played.searches.append((query, found is not None))
        return found

    def verify(self) -> session_service_pb2.VerifySessionResponse:
        verified = self.sessions.VerifySession(session_service_pb2.VerifySessionRequest(session_id=self.session_id))
        played = self.played
        played.rows_total, played.rows_active = verified.rows_total, verified.rows_active
        played.rows_archived, played.verify_ok = verified.rows_archived, verified.ok
        played.faults = [f"{fault.rule}: {fault.detail}" for fault in verified.faults]
        got = self.sessions.GetSession(session_service_pb2.GetSessionRequest(session_id=self.session_id))
        played.summaries = sum(u.calls for u in got.totals.usage if u.source != session_pb2.USAGE_SOURCE_HOST)
        return verified


def _rows(rows: Sequence[NewRow]) -> row_pb2.RowInput:
    made = [wire_row(Row(0, r.body, r.run_id, r.pinned)) for r in rows]
    return row_pb2.RowInput(rows=row_pb2.RowList(rows=made))


def _answer(step: Step) -> compaction_service_pb2.Answer:
    """The recorded answer. Its usage stays out: the provider counted another request than the one that was prepared."""
    answer = compaction_service_pb2.Answer()
    if step.answer:
        answer.input.CopyFrom(_rows(step.answer))
    return answer
