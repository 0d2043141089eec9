"""Hosts that keep their own lists: what they send, fold, commit, lose and get wrong (H1-H3)."""

from __future__ import annotations

import time
from typing import Any

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    model_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.model import rows as made
from tests.model.host import POLICIES, Scene, policy
from tests.model.kept import Answer, Kept
from tests.model.kept_looks import settle
from tests.model.projections import Projections
from tests.model.server import CATALOG
from tests.model.state import State, require, sent_form

MOST_ROWS = 150
_TIMES: tuple[dict[str, Any], ...] = ({}, {}, {"memory": {"projection_ttl": "20s"}})
MANUAL_REFUSALS = (
    "NOTHING_TO_FOLD", "SUMMARIZER_FAILED", "REWRITE_REJECTED", "CURATOR_UNAVAILABLE", "CURATOR_FAILED",
)  # fmt: skip
"""What a fold that was asked for may be refused with."""
ACTS = {
    "grow": 24, "fold": 10, "look": 3, "commit": 8, "abort": 2, "expire": 1, "bill": 4, "mistake": 3, "take_back": 1,
    "change": 2, "again": 2, "copy": 1, "update": 1,
}  # fmt: skip
"""How often each thing is done with a host's own list, by weight."""


class HostLists(Projections):
    """Sessions whose lists are not here; a step does one thing with one of them."""

    def hosted(self, scene: Scene) -> None:
        rng = self.rng
        while len(self.lists) < 2:
            self.new_list()
        kept = rng.choice(self.lists)
        if len(kept.rows) > MOST_ROWS or len(kept.archive) > 2 * MOST_ROWS:
            settle(self, kept, thorough=True)
            self.lists.remove(kept)
            gone = session_service_pb2.DeleteSessionRequest(session_id=kept.log.id)
            self.call(None, self.client.session.DeleteSession, gone)
            return
        act = rng.choices(list(ACTS), list(ACTS.values()))[0]
        self.note(Scene(kept.log), f"hosted {act}")
        getattr(self, f"list_{act}")(kept)
        settle(self, kept, thorough=rng.random() < 0.2)

    def new_list(self) -> None:
        rng = self.rng
        self.numbers += 1
        values = {**rng.choice(POLICIES)}
        extra = rng.choice(_TIMES)
        values = {**values, **extra} if "memory" not in values else values
        kept = Kept(State(f"h{self.numbers}", rng.choice(list(CATALOG)), values), rng.choice((0, 0, 1, 3)))
        request = session_service_pb2.CreateSessionRequest(
            session_id=kept.log.id, model=self.model(kept.log.model), policy=policy(values),
            ownership=session_pb2.OWNERSHIP_HOST_OWNED,
        )  # fmt: skip
        self.call(None, self.client.session.CreateSession, request)
        self.lists.append(kept)

    # The list

    def list_grow(self, kept: Kept) -> None:
        rng = self.rng
        for _ in range(rng.randrange(1, 5)):
            rows, start = self.next_rows(kept)
            if kept.fmt and not all(made.plain(r, kept.fmt) for r in rows):
                continue
            ids = kept.add(*rows)
            kept.start = ids[0] if start == "opens" else "" if start == "ends" else kept.start

    def next_rows(self, kept: Kept) -> tuple[list[row_pb2.Row], str]:
        """What comes next, and whether a run opens or ends with it."""
        rng = self.rng
        if rng.random() < 0.06:
            if rng.random() < 0.4:
                return [made.system(rng)], ""
            key = rng.choice(("rules", "persona"))
            versions = [row.system.version for _, row in kept.rows if row.HasField("system") and row.system.key == key]
            return [made.system(rng, key, max(versions, default=0) + 1)], ""
        if not kept.start:
            lead = [made.injected(rng)] if rng.random() < 0.15 else []
            opens = "opens" if rng.random() < 0.7 else ""
            return [*lead, made.user(rng)], opens
        draw = rng.random()
        if draw < 0.15:
            return [made.assistant(rng)], "ends"
        if draw < 0.25:
            return [made.user(rng) if rng.random() < 0.6 else made.notice(rng)], ""
        if draw < 0.35 and (waiting := kept.waiting()):
            return [made.result(rng, rng.choice(waiting), big=3_000)], ""
        ids = [kept.log.next("call_") for _ in range(rng.choice((1, 1, 2, 3)))]
        results = [made.result(rng, i, big=rng.choice((400, 1_500, 5_000))) for i in ids if rng.random() < 0.9]
        return [made.assistant(rng, ids), *results], ""

    def list_take_back(self, kept: Kept) -> None:
        """The host goes back to its list as it was before the last fold, as after a crash of its own."""
        if not kept.before or kept.staged:
            return
        held = {i: kept.archive[offset] for i, offset in kept.offsets.items()}
        if any(i in held and sent_form(row) != sent_form(held[i]) for i, row in kept.before):
            return  # changed after its fold was staged: an id names one content (H1)
        known = {row_id for row_id, _ in kept.before}
        since = [one for one in kept.rows if one[0] not in known and not one[1].HasField("compaction_summary")]
        kept.rows, kept.before = [*kept.before, *since], []

    def list_change(self, kept: Kept) -> None:
        """The host edits rows that never folded."""
        rng = self.rng
        at = [
            i
            for i, (row_id, row) in enumerate(kept.rows)
            if row.HasField("user") and row_id not in kept.offsets and row_id != kept.start
        ]
        if not at:
            return
        place = rng.choice(at)
        row_id, _ = kept.rows[place]
        if rng.random() < 0.5:
            del kept.rows[place]
            return
        row = made.user(rng)
        if not kept.fmt or made.plain(row, kept.fmt):
            kept.rows[place] = (row_id, row)

    # Measuring and folding

    def shape(self, kept: Kept) -> compaction_service_pb2.RequestShape:
        shape = compaction_service_pb2.RequestShape(model=self.model(kept.log.model))
        draw = self.rng.random()
        if draw < 0.1:
            shape.overhead_tokens = self.rng.choice((0, 50, 400, 5_000))
        elif draw < 0.2:
            shape.input_tokens = self.rng.choice((10, 1_000, 2_500, 100_000))
        elif draw < 0.25:
            shape.body_bytes = self.rng.choice((10, 5_000, 100_000_000))
        return shape

    def list_look(self, kept: Kept) -> None:
        if not kept.rows:
            return
        request = compaction_service_pb2.CheckPressureRequest(
            session_id=kept.log.id, transcript=kept.transcript(), shape=self.shape(kept)
        )
        before = self.look.print_of(kept.log)
        first = self.call(Scene(kept.log), self.client.compaction.CheckPressure, request)
        again = self.call(Scene(kept.log), self.client.compaction.CheckPressure, request)
        require(first == again, "H1", f"the same list is measured as {first} and as {again}")
        require(self.look.print_of(kept.log) == before, "H1", "a check changed the session")

    def list_fold(self, kept: Kept, request: compaction_service_pb2.CompactTranscriptRequest | None = None) -> str:
        """A boundary: what is checked is what is done, at most one paid call, and the list splits as it must.

        Returns:
            The projection that was answered.
        """
        rng = self.rng
        if not kept.rows:
            return ""
        request = request or compaction_service_pb2.CompactTranscriptRequest(
            session_id=kept.log.id, transcript=kept.transcript(), shape=self.shape(kept), manual=rng.random() < 0.25
        )
        manual = request.manual
        if not request.request_id and not manual:
            request.request_id = kept.log.next("q-")
        check = self.call(
            Scene(kept.log), self.client.compaction.CheckPressure,
            compaction_service_pb2.CheckPressureRequest(
                session_id=kept.log.id, transcript=request.transcript, shape=request.shape
            ),
        )  # fmt: skip
        paid = self.backend.paid.calls
        answer = self.folds(kept, request, check, MANUAL_REFUSALS if manual else ())
        calls = self.backend.paid.calls - paid
        require(calls <= 1, "F3", f"{calls} paid calls at one boundary")
        if answer is None:
            return ""
        if not manual:
            self.billed(kept.log, answer.failure, answer.HasField("record"), calls, request.override)
            kept.prepared = answer.prepare_id
            require(answer.prepare_id, "H3", "a boundary without an id for its answer")
        elif answer.projection_id:
            kept.log.cools_until, kept.log.fruitless = 0.0, 0
        again = kept.staged is not None and kept.staged.answer.projection_id == answer.projection_id
        if answer.projection_id and not manual and not again:
            require(check.fold_due, "H1", f"a fold that was not due: {check}, {answer.record}")
        self.staged(kept, request, answer, again)
        return answer.projection_id

    def folds(
        self, kept: Kept, request: compaction_service_pb2.CompactTranscriptRequest,
        check: compaction_service_pb2.CheckPressureResponse, allowed: tuple[str, ...],
    ) -> Answer | None:  # fmt: skip
        """The call; a refused manual fold changes what a failed fold changes."""
        stub = self.client.compaction.CompactTranscript
        if allowed:
            return self.tried(stub, request, allowed)
        answer = self.call(Scene(kept.log), stub, request)
        require(check.pressure == answer.pressure, "L3", f"checked {check.pressure}, then {answer.pressure}")
        told = answer.projection_id or answer.failure or answer.skip
        require(told or not check.fold_due, "C8", f"{check} came to nothing: {answer}")
        return self.waited(kept, request, answer)

    def waited(self, kept: Kept, request: compaction_service_pb2.CompactTranscriptRequest, answer: Answer) -> Answer:
        """A fold goes on without its caller; a repeat of the call is given what it stages (A5)."""
        end = time.monotonic() + 30
        while answer.skip == compaction_pb2.SKIP_REASON_DEADLINE:
            require(list(answer.kept_row_ids) == kept.ids, "A5", "a fold that goes on has taken rows")
            require(time.monotonic() < end, "A5", "a pending fold does not end")
            time.sleep(0.005)
            answer = self.client.compaction.CompactTranscript(request)
        return answer

    def list_bill(self, kept: Kept) -> None:
        """Usage or a refusal of the last answer's request, never rows."""
        rng = self.rng
        if not kept.prepared:
            return
        outcome = compaction_service_pb2.Outcome(prepare_id=kept.prepared)
        if rng.random() < 0.75:
            usage = model_pb2.Usage(input_tokens=rng.choice((0, 500, 1_500, 4_000, 10**12)), output_tokens=9)
            outcome.answer.CopyFrom(compaction_service_pb2.Answer(usage=usage))
            kept.log.fruitless = 0
        else:
            outcome.refusal.kind = rng.choice((1, 2, 3))
        request = compaction_service_pb2.RecordAnswerRequest(session_id=kept.log.id, outcome=outcome)
        self.call(Scene(kept.log), self.client.compaction.RecordAnswer, request, expect=("PREPARE_NOT_FOUND",))
        outcome.answer.CopyFrom(compaction_service_pb2.Answer())
        outcome.answer.input.rows.rows.append(made.assistant(rng))
        request = compaction_service_pb2.RecordAnswerRequest(session_id=kept.log.id, outcome=outcome)
        refused = self.call(
            Scene(kept.log), self.client.compaction.RecordAnswer, request,
            expect=("FIELD_VALIDATION", "PREPARE_NOT_FOUND", "RUN_NOT_OPEN"),
        )  # fmt: skip
        require(refused is None, "H1", "rows were taken for a list that is not here")

    def list_update(self, kept: Kept) -> None:
        rng, log = self.rng, kept.log
        values, model = rng.choice(POLICIES), rng.choice((log.model, rng.choice(list(CATALOG))))
        request = session_service_pb2.UpdateSessionRequest(
            session_id=log.id, policy=policy(values), model=self.model(model)
        )
        request.update_mask.paths.extend(["policy", "model"])
        if self.call(Scene(log), self.client.session.UpdateSession, request, expect=("FIELD_VALIDATION",)) is not None:
            log.policy, log.model = values, model
