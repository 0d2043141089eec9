"""Calls that change nothing: questions, refusals, repeats, and an export with its import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_service_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.model import rows as made
from tests.model.host import POLICIES, Repeat, Scene, policy
from tests.model.server import CATALOG
from tests.model.state import State, expanded, require
from tests.model.stateless import Stateless


class Questions(Stateless):
    """Calls that change nothing: questions, refusals, repeats, and an export with its import."""

    def stale(self, scene: Scene) -> None:
        """W3, closed runs, unknown requests, bad fields: refused, and nothing changes."""
        rng, state = self.rng, scene.state
        given, _ = made.as_input(rng, [made.user(rng)])
        stubs = self.client
        draw = rng.randrange(7)
        if draw == 0:
            request: Any = session_service_pb2.AppendRowsRequest(
                session_id=state.id,
                input=given,
                expected_revision=state.revision + rng.choice((-1, 1, 9)) if state.revision else 3,
            )
            response = self.call(scene, stubs.session.AppendRows, request, expect=("REVISION_MISMATCH",))
        elif draw == 1:
            request = self.prepare_of(scene, state.open_run or state.next("run-"))
            request.append.CopyFrom(given)
            request.shape.ClearField("tools")
            request.ClearField("override")
            request.expected_revision = state.revision + 1
            response = self.call(
                scene, stubs.compaction.PrepareRequest, request, expect=("REVISION_MISMATCH", "FIELD_VALIDATION")
            )
        elif draw == 2 and state.runs:
            request = self.prepare_of(scene, rng.choice(state.runs))
            request.append.CopyFrom(given)
            request.supersede_open_run = True
            response = self.call(
                scene,
                stubs.compaction.PrepareRequest,
                request,
                expect=("RUN_NOT_OPEN", "TOOLS_UNKNOWN", "FIELD_VALIDATION", "REVISION_MISMATCH"),
            )
        elif draw == 3:
            outcome = compaction_service_pb2.Outcome(
                prepare_id="p-none", answer=compaction_service_pb2.Answer(input=given)
            )
            request = compaction_service_pb2.RecordAnswerRequest(
                session_id=state.id, run_id=state.open_run or "run-none", outcome=outcome
            )
            response = self.call(
                scene, stubs.compaction.RecordAnswer, request, expect=("PREPARE_NOT_FOUND", "RUN_NOT_OPEN")
            )
        elif draw == 4:
            request = session_service_pb2.RestoreRevisionRequest(session_id=state.id, revision=state.revision + 1)
            response = self.call(scene, stubs.session.RestoreRevision, request, expect=("REVISION_NOT_FOUND",))
        elif draw == 5:
            request = session_service_pb2.ReadRowRequest(session_id=state.id, offset=len(state.archive) + 1)
            response = self.call(scene, stubs.session.ReadRow, request, expect=None)
        else:
            raw = row_pb2.RawMessages(
                format=rng.choice((1, 3)),
                json=rng.choice(
                    (
                        b"[",
                        b"null",
                        b"[1]",
                        b'[{"role":"nobody","content":"x"}]',
                        b'{"role":"tool","content":"x"}',
                        b'"\xff"',
                        b"[" * 5000,
                    )
                ),
            )
            request = session_service_pb2.AppendRowsRequest(session_id=state.id, input=row_pb2.RowInput(raw=raw))
            response = self.call(scene, stubs.session.AppendRows, request, expect=None)
        require(response is None, "R1", f"taken: {request}")

    def ask(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        before = self.look.print_of(state)
        shape = compaction_service_pb2.RequestShape(model=self.model(rng.choice(list(CATALOG))))
        over = policy(rng.choice(POLICIES))
        stubs = self.client
        draw = rng.randrange(8)
        if draw == 0:
            request: Any = compaction_service_pb2.CheckPressureRequest(session_id=state.id, shape=shape, override=over)
            self.call(scene, stubs.compaction.CheckPressure, request, expect=("FIELD_VALIDATION",))
        elif draw == 1:
            request = compaction_service_pb2.PlanCompactionRequest(session_id=state.id, shape=shape, override=over)
            planned = self.call(scene, stubs.compaction.PlanCompaction, request, expect=("FIELD_VALIDATION",))
            if planned is not None:
                self.plan_is_right(state, planned.plan)
        elif draw == 2:
            self.search(scene)
        elif draw == 3:
            revision = rng.choice(sorted(state.lists))
            listed = [r.offset for r in self.look.listed(state, 1, revision)]
            require(
                listed == list(state.lists[revision][0]),
                "X2",
                f"revision {revision} is {listed}, was {state.lists[revision][0]}",
            )
            self.look.render(state, rng.choice((1, 3, 5)), revision)
        elif draw == 4:
            self.stateless()
        elif draw == 5:
            self.read_ranges(scene)
        elif draw == 6:
            self.watch(scene)
        else:
            page = stubs.session.ListRevisions(
                session_service_pb2.ListRevisionsRequest(session_id=state.id, page_size=500)
            )
            numbers = [r.revision for r in page.revisions]
            require(numbers == sorted(numbers, reverse=True), "W6", numbers)
            require(
                sum(r.HasField("fold") for r in page.revisions) == state.folds or page.next_page_token,
                "V7",
                "folds in ListRevisions",
            )
        require(self.look.print_of(state) == before, "R1", "a question changed the session")

    @staticmethod
    def plan_is_right(state: State, plan: compaction_pb2.CompactionPlan) -> None:
        """V1, V2, V5: a plan takes and keeps what a fold may."""
        gone, stay = expanded(plan.discarded), expanded(plan.retained)
        if not gone:
            return
        require(sorted([*gone, *stay]) == sorted(state.active), "V1", f"{plan} of {state.active}")
        held = {o for o in gone if o in state.pinned or o in state.asked or state.current_system(o)}
        require(not held, "V5", f"a plan takes {held}")

    def watch(self, scene: Scene) -> None:
        """§13: a watch from any number on gives what the list gives, without gap or repeat."""
        state = scene.state
        self.look.pending(state)
        after = self.rng.randrange(0, state.event + 1)
        seen: list[int] = []
        stream = self.client.event.WatchEvents(
            event_service_pb2.WatchEventsRequest(session_id=state.id, after=after), timeout=60
        )
        for item in stream if after < state.event else ():
            seen += [item.event.sequence] if item.HasField("event") else []
            if seen and seen[-1] >= state.event:
                break
        stream.cancel()
        require(seen == list(range(after + 1, max(seen, default=after) + 1)), "§13", f"{seen} after {after}")

    def repeat(self, scene: Scene) -> None:
        """W2: a repeat gives the first answer, another payload under the id is refused."""
        rng, state = self.rng, scene.state
        if not scene.repeats:
            return
        repeat = rng.choice(scene.repeats)
        if isinstance(repeat.response, compaction_service_pb2.PrepareRequestResponse):
            if repeat.response.skip or repeat.response.action == compaction_pb2.ACTION_TOO_LARGE:
                return
            if repeat.request.reply == compaction_pb2.REPLY_MODE_EDITS:
                return
        if isinstance(repeat.response, session_service_pb2.ForkSessionResponse):
            fork = repeat.response.session.session_id
            if all(s.state.id != fork for s in self.scenes):
                return
        before = self.look.print_of(state)
        again = self.method(repeat)(repeat.request, timeout=60)
        if isinstance(again, session_service_pb2.ForkSessionResponse):
            require(again.session.session_id == repeat.response.session.session_id, "W2", f"another fork: {again}")
        elif not isinstance(again, compaction_service_pb2.PrepareRequestResponse) and not isinstance(
            again, session_service_pb2.UpdateSessionResponse
        ):
            require(again == repeat.response, "W2", f"{again} is not {repeat.response}")
        elif isinstance(again, compaction_service_pb2.PrepareRequestResponse):
            for name in ("prepare_id", "revision", "action", "first_offset", "last_offset"):
                require(
                    getattr(again, name) == getattr(repeat.response, name),
                    "W2",
                    f"{name}: {again} is not {repeat.response}",
                )
        other = type(repeat.request)()
        other.CopyFrom(repeat.request)
        if hasattr(other, "expected_revision"):
            other.expected_revision = 10**6
        elif hasattr(other, "run_id"):
            other.run_id = "run-forged"
        else:
            return
        self.call(None, self.method(repeat), other, expect=("REQUEST_ID_REUSED", "RUN_NOT_OPEN"))
        require(self.look.print_of(state) == before, "W2", "a repeat changed the session")

    def method(self, repeat: Repeat) -> Callable[..., Any]:
        name = "PrepareRequest" if repeat.method == "Prepare" else repeat.method
        stubs = (self.client.session, self.client.compaction, self.client.memory, self.client.tool)
        return next(getattr(stub, name) for stub in stubs if hasattr(stub, name))  # type: ignore[no-any-return]

    def move(self, scene: Scene) -> None:
        """Export, import under another id, and go on with either."""
        rng, state = self.rng, scene.state
        stubs = self.client
        chunks = list(stubs.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=state.id)))
        self.numbers += 1
        new_id = f"s{self.numbers}"

        def parts() -> Any:
            yield session_service_pb2.ImportSessionRequest(header=session_service_pb2.ImportHeader(session_id=new_id))
            for chunk in chunks:
                yield session_service_pb2.ImportSessionRequest(
                    chunk=session_service_pb2.ImportChunk(sequence=chunk.sequence, jsonl=chunk.jsonl)
                )

        imported = stubs.session.ImportSession(parts())
        require(imported.rows == len(state.archive), "W4", f"{imported.rows} rows imported of {len(state.archive)}")
        # The two go apart from here: what was being written ahead of need has ended in the import, not in the other.
        log = state.log_copy()
        old = state.id
        state.id = new_id
        self.look.settle(state, thorough=True)
        for revision in rng.sample(sorted(state.lists), min(3, len(state.lists))):
            listed = [r.offset for r in self.look.listed(state, 1, revision)]
            require(listed == list(state.lists[revision][0]), "W4", f"revision {revision} of the import")
        goes = rng.random() < 0.5
        gone = old if goes else new_id
        if goes:
            state.prepared, scene.repeats = "", []
        else:
            state.id = old
            state.event, state.started, state.ahead, state.ended = log
        self.call(None, stubs.session.DeleteSession, session_service_pb2.DeleteSessionRequest(session_id=gone))
