"""The calls of an agent's loop: requests, answers, refusals, ends of runs."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    policy_pb2,
    row_pb2,
)
from google.protobuf import json_format

from tests.model import rows as made
from tests.model.answers import Answers
from tests.model.host import POLICIES, Scene, policy
from tests.model.onlooker import SEND
from tests.model.server import CATALOG
from tests.model.state import State, require

_REFUSED = (
    "RUN_ALREADY_OPEN",
    "RUN_NOT_OPEN",
    "TOOLS_UNKNOWN",
    "FIELD_VALIDATION",
    "PREPARE_NOT_FOUND",
    "REVISION_MISMATCH",
)
"""What a random request may be refused with."""


class Boundaries(Answers):
    """The calls of an agent's loop: requests, answers, refusals, ends of runs."""

    def request_rows(self, scene: Scene) -> list[row_pb2.Row]:
        rng = self.rng
        rows = [made.injected(rng)] if rng.random() < 0.15 else []
        rows += [made.notice(rng)] if rng.random() < 0.1 else []
        rows += [made.user(rng)] if rng.random() < 0.9 or not rows else []
        if rng.random() < 0.08:
            rows.insert(rng.randrange(len(rows) + 1), self.system_row(scene))
        return rows

    def system_row(self, scene: Scene) -> row_pb2.Row:
        rng, keys = self.rng, scene.state.systems()
        if rng.random() < 0.3:
            return made.system(rng)
        key = rng.choice(("rules", "tools", "persona"))
        return made.system(rng, key, keys.get(key, (0, 0))[0] + rng.randrange(1, 3))

    def result_rows(self, scene: Scene) -> list[row_pb2.Row]:
        """Results of calls that have none, newest first by id as R3 says; some stay open, some come in two parts."""
        rng = self.rng
        waiting = scene.state.unanswered()
        newest = {call_id: offset for offset, call_id in sorted(waiting)}
        chosen = [i for i in newest if rng.random() < 0.85]
        rng.shuffle(chosen)
        big = rng.choice((400, 1500, 1500, 6000))
        return [made.result(rng, i, interim=rng.random() < 0.06, big=big) for i in chosen]

    def turn(self, scene: Scene) -> None:
        """A run of a new request, the open one closed or superseded."""
        rng, state = self.rng, scene.state
        request = self.prepare_of(
            scene, state.open_run if state.open_run and rng.random() < 0.3 else state.next("run-")
        )
        rows = self.request_rows(scene)
        if state.open_run and request.run_id != state.open_run:
            request.supersede_open_run = rng.random() < 0.8
        self.prepare(scene, request, [], rows)

    def step_of_run(self, scene: Scene) -> None:
        """The answer to the last request with the results of its calls, and the next request."""
        rng, state = self.rng, scene.state
        if not state.open_run:
            return self.turn(scene)
        request = self.prepare_of(scene, state.open_run)
        answer: list[row_pb2.Row] = []
        if state.prepared and state.prepared_run == state.open_run:
            answer = self.answer_rows(scene)
            request.previous_answer.CopyFrom(self.outcome(scene, answer))
        ids = [b.tool_call.call_id for r in answer for b in r.assistant.content if b.HasField("tool_call")]
        waiting = self.result_rows(scene) if rng.random() < 0.3 or not ids else []
        results = [
            made.result(rng, i, interim=rng.random() < 0.05, big=rng.choice((400, 1500, 5000)))
            for i in ids
            if rng.random() < 0.9
        ]
        open_ids = set(ids)
        rows = [*results, *(r for r in waiting if r.tool_result.call_id not in open_ids)]
        if rng.random() < 0.1:
            rows += self.request_rows(scene)
        if rng.random() < 0.05:
            request.previous_answer.finish = rng.choice((1, 2, 3)) if answer else 0
            if answer and request.previous_answer.finish:
                request.run_id = state.next("run-")
                rows += [made.user(rng)]
        return self.prepare(scene, request, answer, rows)

    def prepare_again(self, scene: Scene) -> None:
        """A boundary with no new rows: the same run once more, or one that continues the last."""
        state = scene.state
        request = self.prepare_of(scene, state.open_run or state.next("run-"))
        self.prepare(scene, request, [], [])

    def prepare_of(self, scene: Scene, run_id: str) -> compaction_service_pb2.PrepareRequestRequest:
        rng, state = self.rng, scene.state
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=state.id, run_id=run_id, request_id=self.request_id(scene),
            reply=rng.choice((0, 1, 2, 2, 2, 3)), format=rng.choice((0, 1, 1, 3, 3, 5)),
        )  # fmt: skip
        if rng.random() < 0.9 and state.replica_revision is not None:
            request.known_revision = state.replica_revision
        elif rng.random() < 0.1:
            request.known_revision = rng.choice((0, state.revision, state.revision + 5, 2**62))
        if request.reply == compaction_pb2.REPLY_MODE_EDITS and request.known_revision != (state.replica_revision or 0):
            request.ClearField("known_revision")
        if rng.random() < 0.2:
            request.expected_revision = state.revision
        shape = request.shape
        shape.model.CopyFrom(self.model(state.model if rng.random() < 0.9 else rng.choice(list(CATALOG))))
        draw = rng.random()
        if draw < 0.15:
            shape.tools_json = b'[{"name":"read","description":"' + b"x" * rng.choice((1, 40, 900)) + b'"}]'
        elif draw < 0.2:
            shape.tools_digest = "0" * 64
        if rng.random() < 0.08:
            shape.output_reserve_tokens = rng.choice((0, 100, 700, 2**63 - 1))
        if rng.random() < 0.08:
            shape.overhead_tokens = rng.choice((0, 50, 400, 1000, 5000, 2**63 - 1))
        if rng.random() < 0.05:
            shape.input_tokens = rng.choice((0, 10, 1_000, 2_500, 100_000, 2**63 - 1))
        if rng.random() < 0.05:
            shape.body_bytes = rng.choice((0, 10, 5_000, 20_000, 100_000_000, 2**63 - 1))
        if rng.random() < 0.03:
            shape.overhead_bytes = rng.choice((0, 3_000, 2**63 - 1))
        if rng.random() < 0.1:
            request.override.CopyFrom(policy(rng.choice(POLICIES)))
        return request

    def prepare(
        self, scene: Scene, request: compaction_service_pb2.PrepareRequestRequest, answer: list[row_pb2.Row],
        rows: list[row_pb2.Row],
    ) -> None:  # fmt: skip
        typed = True
        if rows:
            given, typed = made.as_input(self.rng, rows)
            request.append.CopyFrom(given)
        paid = self.backend.paid.calls
        response = self.call(
            scene, self.client.compaction.PrepareRequest, request,
            expect=_REFUSED,
        )  # fmt: skip
        if response is None:
            return
        calls = self.backend.paid.calls - paid
        if request.HasField("previous_answer"):
            scene.state.fruitless = 0
        self.billed(scene.state, response.failure, response.HasField("fold"), calls, request.override)
        self.took(scene, request, response, answer, rows, typed)

    def billed(
        self, state: State, failure: compaction_pb2.FailureKind.ValueType, folded: bool, calls: int,
        override: policy_pb2.Policy,
    ) -> None:  # fmt: skip
        """A boundary pays for at most one summary, and none while the source cools.

        Attempts in vain are few in a row: not counted are those that an answer or a whole cooldown parts, and those of
        a cooldown that was set to nothing.
        """
        now = self.backend.now
        require(calls <= 1, "F3", f"{calls} paid calls at one boundary")
        if not calls:
            return
        self.counts["paid calls"] += 1
        require(now >= state.cools_until, "C5", f"a paid call {state.cools_until - now:.0f} s before the cooldown ends")
        if 0 < state.cools_until <= now:
            state.fruitless = 0
        cooldown = self.effective(state, override).cooldown.ToSeconds()
        state.fruitless = state.fruitless + 1 if failure and cooldown else 0
        require(state.fruitless < 3, "C4", f"{state.fruitless} paid attempts in a row were in vain, now by {failure}")
        if folded:
            state.cools_until = 0.0
        elif failure and failure != compaction_pb2.FAILURE_KIND_NOT_SMALLER:
            state.cools_until = now + cooldown

    @staticmethod
    def effective(state: State, override: policy_pb2.Policy) -> policy_pb2.Policy:
        made = policy_pb2.Policy(cooldown={"seconds": 600})
        for layer in (policy(state.policy), override):
            if layer.HasField("cooldown"):
                # Merging leaves a duration as it is where the layer says none at all.
                made.ClearField("cooldown")
            made.MergeFrom(layer)
        return made

    def took(
        self, scene: Scene, request: compaction_service_pb2.PrepareRequestRequest,
        response: compaction_service_pb2.PrepareRequestResponse, answer: list[row_pb2.Row], rows: list[row_pb2.Row],
        typed: bool,
    ) -> None:  # fmt: skip
        state, look = scene.state, self.look
        first = len(state.archive) + 1
        if answer:
            look.appended(state, first, first + len(answer) - 1, state.revision + 1, answer, True)
        if request.previous_answer.finish and request.HasField("previous_answer"):
            self.closed(state)
        if rows:
            look.appended(
                state, first + len(answer), first + len(answer) + len(rows) - 1, state.revision + 1, rows, typed
            )
        if answer or rows:
            require(
                response.last_offset == first + len(answer) + len(rows) - 1,
                "3.1",
                f"last_offset {response.last_offset}",
            )
            require(
                response.first_offset == first, "3.1", f"first_offset {response.first_offset}, the answer's is {first}"
            )
        if any(r.HasField("system") for r in rows):
            state.sent.clear()
        self.opened(state, request.run_id, rows)
        self.log.append(
            f"      {compaction_pb2.Action.Name(response.action)} skip {response.skip} fold {response.fold.fold_id} "
            f"bounded {len(response.bounded)}"
        )
        if response.HasField("fold"):
            look.first_of_two(state, response.fold)
            require(
                response.fold.revision_before == state.revision,
                "V9",
                f"{response.fold.revision_before} is not {state.revision}",
            )
            look.folded(state, response.fold, response.fold.revision_after)
            self.wrote(state, request.override, response.fold)
            self.counts[
                f"fold {compaction_pb2.FoldScope.Name(response.fold.scope)} "
                f"{compaction_pb2.Trigger.Name(response.fold.trigger)}"
            ] += 1
        require(
            response.revision == state.revision, "W3", f"prepared at {response.revision}, the model at {state.revision}"
        )
        self.counts[compaction_pb2.Action.Name(response.action)] += 1
        self.counts["bounded"] += bool(response.bounded)
        look.prepared(state, request, response)
        if response.fold_pending:
            # The list may be folded at any moment now, so that what a question shows may be another list.
            self.counts["folds that outlive their request"] += 1
            state.sent.clear()
            if response.action in SEND:
                state.carried.update(o for o in state.active if state.kind(o) == "tool_result")
            look.outlived(state)
        elif response.action in SEND:
            fresh = {o for o in state.active if state.kind(o) == "tool_result" and o not in state.carried}
            self.could_have_fit(scene, request, response, fresh)
            look.sendable(state, request, response)
        state.prepared, state.prepared_run = response.prepare_id, request.run_id

    def wrote(self, state: State, override: policy_pb2.Policy, record: compaction_pb2.CompactionRecord) -> None:
        """Whoever knows who may write looks at who did."""

    def opened(self, state: State, run_id: str, rows: Sequence[row_pb2.Row]) -> None:
        if state.open_run != run_id:
            asked = state.trailing_request(run_id, state.active)
            if state.open_run:
                self.closed(state)
            if not asked and state.runs and not state.late_behind():
                last = next(
                    (state.archive[o].row.run_id for o in reversed(state.active) if state.archive[o].row.run_id), ""
                )
                asked = [o for o in state.last_asked if o in state.active] if last == state.runs[-1] else []
            state.open_run, state.asked = run_id, asked
        else:
            new = state.active[len(state.active) - len(rows) :]
            state.asked += [o for o in new if state.kind(o) == "user" and state.archive[o].row.run_id in ("", run_id)]

    def could_have_fit(
        self, scene: Scene, request: compaction_service_pb2.PrepareRequestRequest,
        response: compaction_service_pb2.PrepareRequestResponse, fresh: set[int],
    ) -> None:  # fmt: skip
        """C7: what goes out over a hard limit goes out so because no fold could bring it under."""
        checked, allowed = response.pressure_checked, (0, 1, 2, 3, 7, 8)
        over = checked.forecast_tokens + checked.output_reserve_tokens >= checked.window_tokens
        stated = request.shape.HasField("input_tokens") or request.shape.HasField("body_bytes")
        off = {
            **scene.state.policy,
            **json_format.MessageToDict(request.override, preserving_proto_field_name=True),
        }.get("auto_compact") is False
        bytes_over = checked.HasField("byte_limit") and checked.body_bytes >= checked.byte_limit
        if (
            not over
            or off
            or stated
            or bytes_over
            or response.skip not in allowed
            or response.failure
            or response.HasField("fold")
        ):
            return
        plan = self.client.compaction.PlanCompaction(
            compaction_service_pb2.PlanCompactionRequest(
                session_id=scene.state.id, shape=request.shape, override=request.override
            )
        ).plan
        gone = {o for r in plan.discarded for o in range(r.first, r.last + 1)}
        if gone and not gone & fresh:
            after = (
                plan.tokens_after + checked.forecast_tokens - checked.transcript_tokens + checked.output_reserve_tokens
            )
            require(
                after >= checked.window_tokens,
                "C7",
                f"sent at {checked.forecast_tokens} of {checked.window_tokens} with skip {response.skip}, though "
                f"{plan} would leave {after}; request {request}, answer {response}",
            )
