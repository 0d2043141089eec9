"""A seeded random host: every step is one call or a small scene, and the model is asked after each."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    memory_service_pb2,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)
from google.protobuf import json_format

from tests.model import rows as made
from tests.model.crowd import Crowd
from tests.model.onlooker import SEND, Onlooker
from tests.model.server import CATALOG, Backend
from tests.model.state import State, require

MAX_ROWS = 260
"""Rows of a session before another takes its place: what is looked at after each step grows with them."""

POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"min_boundaries_between": 0},
    {"min_boundaries_between": 0, "min_progress": 0.0},
    {"auto_compact": False},
    {"auto_compact_threshold": 1},
    {"auto_compact_threshold": 600, "target_fraction": 0.01},
    {"target_fraction": 0.99, "min_boundaries_between": 1},
    {"retention": {"turns": 0, "messages": 0}, "min_boundaries_between": 0},
    {"retention": {"turns": 1, "messages": 1}},
    {"retention": {"turns": 100, "messages": 1000}},
    {"bounding": {"cut": "BOUNDING_CUT_HEAD_TAIL", "min_bytes": 0}},
    {"bounding": {"min_bytes": 100_000}},
    {"cooldown": "0s", "min_boundaries_between": 0},
    {"output_reserve_tokens": 0, "threshold_fraction": 1.0},
    {"summary": {"max_tokens": 1, "ledger_tokens": 1, "appendix_tokens": 0, "coverage_floor": 0.0}},
    {"summary": {"coverage_floor": 1.0, "appendix_tokens": 2000}},
    {"memory": {"index_tool_results": False, "chunk_tokens": 8}},
    {"byte_fraction": 0.1, "body_cap_bytes": 9000},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_PROVIDER"}, "cooldown": "1s"},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_CURATOR"}, "cooldown": "0s"},
    {"fold_wait": "0s"},
    {"auto_compact_threshold": 2**63 - 1, "body_cap_bytes": 2**63 - 1, "byte_fraction": 1.0},
)


def policy(values: dict[str, Any]) -> policy_pb2.Policy:
    return json_format.ParseDict(values, policy_pb2.Policy())


@dataclass
class Repeat:
    """A call that was answered under a request id, to be repeated."""

    method: str
    request: Any
    response: Any


@dataclass
class Scene:
    """A session with what its host remembers between steps."""

    state: State
    repeats: list[Repeat] = field(default_factory=list)


class Driver:
    def __init__(self, backend: Backend, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.backend, self.seed, self.say = backend, seed, say
        self.rng = random.Random(seed)
        self.look = Onlooker(lambda: backend.client)
        self.scenes: list[Scene] = []
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.numbers = 0
        self.step = 0

    @property
    def client(self) -> Any:
        return self.backend.client

    def run(self, operations: int, seconds: float = float("inf")) -> None:
        end = time.monotonic() + seconds
        try:
            while self.step < operations and time.monotonic() < end:
                self.step += 1
                self.one()
        except BaseException as error:
            tail = "\n".join(self.log[-14:])
            print(f"seed {self.seed}, step {self.step}:\n{tail}\n{error}", file=sys.stderr)
            self.describe()
            raise

    def describe(self) -> None:
        """The session of the last step as the model knows it, for whoever reads a failure."""
        for scene in self.scenes:
            state = scene.state
            if f" {state.id} (" not in self.log[-1] and f" {state.id} (" not in "".join(self.log[-3:]):
                continue
            print(f"{state.id}: open {state.open_run!r}, asked {state.asked}, carried {sorted(state.carried)}", file=sys.stderr)
            for offset in sorted(state.archive):
                row = state.archive[offset].row
                place = "active" if offset in state.active else "folded" if offset in state.folded else "gone"
                extra = state.archive[offset].calls if row.HasField("assistant") else ""
                if row.HasField("tool_result"):
                    body = row.tool_result
                    extra = f"{body.call_id} of {body.call_offset}{' late' if body.late else ''}{' interim' if body.interim else ''}"
                paused = " paused" if state.archive[offset].paused else ""
                print(f"  {offset:4} {state.kind(offset):18} {row.run_id:8} {place:6} {extra}{paused}", file=sys.stderr)
            print(f"  list {state.active}", file=sys.stderr)

    def one(self) -> None:
        rng = self.rng
        while len(self.scenes) < 3:
            self.create()
        scene = rng.choice(self.scenes)
        if len(scene.state.archive) > MAX_ROWS:
            self.delete(scene)
            return
        name, op = self._pick()
        self.note(scene, name)
        op(scene)
        if scene in self.scenes:
            self.look.settle(scene.state, thorough=rng.random() < 0.1)

    def _pick(self) -> tuple[str, Callable[[Scene], None]]:
        names = list(OPS)
        name = self.rng.choices(names, [OPS[n] for n in names])[0]
        return name, getattr(self, name)

    def note(self, scene: Scene, text: str) -> None:
        self.counts[text] += 1
        state = scene.state
        self.log.append(f"  {self.step} {state.id} ({state.model}, {state.policy}) at {state.revision}: {text}")
        self.say(self.log[-1])

    # Calls

    def call(self, scene: Scene | None, method: Callable[..., Any], request: Any, *, expect: Sequence[str] | None = ()) -> Any:
        """The response; None for a refusal, which changed nothing. ``expect`` names allowed reasons, None any."""
        state = scene.state if scene else None
        before = self.look.print_of(state) if state else b""
        try:
            response = method(request, timeout=60)
        except grpc.RpcError as error:
            reason = self.look.error(error, type(request).__name__)
            self.log.append(f"      {reason}: {error.details()}")
            self.say(self.log[-1])
            require(expect is None or reason in expect, "R1", f"{reason}: {error.details()} for {type(request).__name__}, expected {expect}")
            self.counts[reason] += 1
            if state:
                require(self.look.print_of(state) == before, "R1", f"{reason} changed the session: {type(request).__name__}")
            return None
        if scene is not None and getattr(request, "request_id", ""):
            scene.repeats = [*scene.repeats, Repeat(type(request).__name__.removesuffix("Request"), request, response)][-6:]
        return response

    def request_id(self, scene: Scene) -> str:
        return scene.state.next("q-") if self.rng.random() < 0.5 else ""

    # Sessions

    def create(self) -> Scene:
        rng = self.rng
        self.numbers += 1
        state = State(f"s{self.numbers}", rng.choice(list(CATALOG)), rng.choice(POLICIES))
        request = session_service_pb2.CreateSessionRequest(
            session_id=state.id, model=self.model(state.model), policy=policy(state.policy), request_id=f"c-{self.numbers}"
        )
        response = self.call(None, self.client.session.CreateSession, request)
        assert response is not None
        again = self.call(None, self.client.session.CreateSession, request)
        require(again.session.session_id == state.id, "W2", "a repeated create")
        scene = Scene(state)
        self.scenes.append(scene)
        return scene

    def delete(self, scene: Scene) -> None:
        self.note(scene, "delete")
        self.look.settle(scene.state, thorough=True)
        request = session_service_pb2.DeleteSessionRequest(session_id=scene.state.id)
        self.call(None, self.client.session.DeleteSession, request)
        self.call(None, self.client.session.DeleteSession, request, expect=("SESSION_NOT_FOUND",))
        self.scenes.remove(scene)
        if self.rng.random() < 0.3:
            # The same id is another session now.
            state = State(scene.state.id, scene.state.model, scene.state.policy)
            create = session_service_pb2.CreateSessionRequest(
                session_id=state.id, model=self.model(state.model), policy=policy(state.policy)
            )
            self.call(None, self.client.session.CreateSession, create)
            self.scenes.append(Scene(state))

    @staticmethod
    def model(name: str) -> model_pb2.ModelRef:
        return model_pb2.ModelRef(provider=str(CATALOG[name]["type"]), model=name)

    # Rows of a host

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

    def answer_rows(self, scene: Scene) -> list[row_pb2.Row]:
        rng = self.rng
        if rng.random() < 0.45:
            return [made.assistant(rng)]
        count = rng.choice((1, 1, 1, 2, 3))
        used = [i for o in scene.state.active for i in scene.state.archive[o].calls if scene.state.kind(o) == "assistant"]
        ids: list[str] = []
        while len(ids) < count:
            again = rng.choice(used) if used and rng.random() < 0.08 else scene.state.next("call_")
            if again not in ids:
                ids.append(again)
        return [made.assistant(rng, ids)]

    def result_rows(self, scene: Scene) -> list[row_pb2.Row]:
        """Results of calls that have none, newest first by id as R3 says; some stay open, some come in two parts."""
        rng = self.rng
        waiting = scene.state.unanswered()
        newest = {call_id: offset for offset, call_id in sorted(waiting)}
        chosen = [i for i in newest if rng.random() < 0.85]
        rng.shuffle(chosen)
        big = rng.choice((400, 1500, 1500, 6000))
        return [made.result(rng, i, interim=rng.random() < 0.06, big=big) for i in chosen]

    # Boundaries

    def turn(self, scene: Scene) -> None:
        """A run of a new request, the open one closed or superseded."""
        rng, state = self.rng, scene.state
        request = self.prepare_of(scene, state.open_run if state.open_run and rng.random() < 0.3 else state.next("run-"))
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
        results = [made.result(rng, i, interim=rng.random() < 0.05, big=rng.choice((400, 1500, 5000))) for i in ids if rng.random() < 0.9]
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
        response = self.call(
            scene, self.client.compaction.PrepareRequest, request,
            expect=("RUN_ALREADY_OPEN", "RUN_NOT_OPEN", "TOOLS_UNKNOWN", "FIELD_VALIDATION", "PREPARE_NOT_FOUND", "REVISION_MISMATCH"),
        )  # fmt: skip
        if response is None:
            return
        self.took(scene, request, response, answer, rows, typed)

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
            look.appended(state, first + len(answer), first + len(answer) + len(rows) - 1, state.revision + 1, rows, typed)
        if answer or rows:
            require(response.last_offset == first + len(answer) + len(rows) - 1, "3.1", f"last_offset {response.last_offset}")
            require(response.first_offset == first, "3.1", f"first_offset {response.first_offset}, the answer's is {first}")
        if any(r.HasField("system") for r in rows):
            state.sent.clear()
        self.opened(state, request.run_id, rows)
        self.log.append(f"      {compaction_pb2.Action.Name(response.action)} skip {response.skip} fold {response.fold.fold_id} bounded {len(response.bounded)}")
        if response.HasField("fold"):
            require(response.fold.revision_before == state.revision, "V9", f"{response.fold.revision_before} is not {state.revision}")
            look.folded(state, response.fold, response.fold.revision_after)
            self.counts[f"fold {compaction_pb2.FoldScope.Name(response.fold.scope)} {compaction_pb2.Trigger.Name(response.fold.trigger)}"] += 1
        require(response.revision == state.revision, "W3", f"prepared at {response.revision}, the model at {state.revision}")
        self.counts[compaction_pb2.Action.Name(response.action)] += 1
        self.counts["bounded"] += bool(response.bounded)
        look.prepared(state, request, response)
        if response.action in SEND:
            fresh = {o for o in state.active if state.kind(o) == "tool_result" and o not in state.carried}
            self.could_have_fit(scene, request, response, fresh)
            look.sendable(state, request, response)
        state.prepared, state.prepared_run = response.prepare_id, request.run_id

    def opened(self, state: State, run_id: str, rows: Sequence[row_pb2.Row]) -> None:
        if state.open_run != run_id:
            asked = state.trailing_request(run_id, state.active)
            if state.open_run:
                self.closed(state)
            if not asked and state.runs:
                last = next((state.archive[o].row.run_id for o in reversed(state.active) if state.archive[o].row.run_id), "")
                asked = [o for o in state.last_asked if o in state.active] if last == state.runs[-1] else []
            state.open_run, state.asked = run_id, asked
        else:
            new = state.active[len(state.active) - len(rows):]
            state.asked += [o for o in new if state.kind(o) == "user" and state.archive[o].row.run_id in ("", run_id)]

    @staticmethod
    def closed(state: State) -> None:
        state.runs.append(state.open_run)
        state.last_asked = state.asked
        state.open_run, state.asked = "", []

    def could_have_fit(
        self, scene: Scene, request: compaction_service_pb2.PrepareRequestRequest,
        response: compaction_service_pb2.PrepareRequestResponse, fresh: set[int],
    ) -> None:  # fmt: skip
        """C7: what goes out over a hard limit goes out so because no fold could bring it under."""
        checked, allowed = response.pressure_checked, (0, 1, 2, 3, 7, 8)
        over = checked.forecast_tokens + checked.output_reserve_tokens >= checked.window_tokens
        stated = request.shape.HasField("input_tokens") or request.shape.HasField("body_bytes")
        off = {**scene.state.policy, **json_format.MessageToDict(request.override, preserving_proto_field_name=True)}.get("auto_compact") is False
        bytes_over = checked.HasField("byte_limit") and checked.body_bytes >= checked.byte_limit
        if not over or off or stated or bytes_over or response.skip not in allowed or response.failure or response.HasField("fold"):
            return
        plan = self.client.compaction.PlanCompaction(
            compaction_service_pb2.PlanCompactionRequest(session_id=scene.state.id, shape=request.shape, override=request.override)
        ).plan
        gone = {o for r in plan.discarded for o in range(r.first, r.last + 1)}
        if gone and not gone & fresh:
            after = plan.tokens_after + checked.forecast_tokens - checked.transcript_tokens + checked.output_reserve_tokens
            require(after >= checked.window_tokens, "C7", f"sent at {checked.forecast_tokens} of {checked.window_tokens} with skip {response.skip}, though {plan} would leave {after}; request {request}, answer {response}")

    # Answers

    def outcome(self, scene: Scene, rows: Sequence[row_pb2.Row]) -> compaction_service_pb2.Outcome:
        rng, state = self.rng, scene.state
        answer = compaction_service_pb2.Answer()
        if rows:
            answer.input.rows.rows.extend(rows)
        draw = rng.random()
        usual = max(1, self.look.get(state).totals.tokens_active)
        if draw < 0.5:
            answer.usage.input_tokens, answer.usage.output_tokens = max(1, int(usual * rng.uniform(0.7, 1.4))), rng.randrange(500)
        elif draw < 0.6:
            answer.usage.input_tokens = rng.choice((0, 1, usual * 50, 10**12, 2**62, 2**63 - 1))
        elif draw < 0.65:
            answer.usage.input_tokens, answer.usage.aggregated = usual * 4, True
        elif draw < 0.75:
            answer.usage_json = rng.choice((b"{}", b'{"prompt_tokens":0}', b'{"prompt_tokens":1e200}', b'{"prompt_tokens":18446744073709551616}', b'{"input_tokens":900,"cache_read_input_tokens":50}', b'{"prompt_tokens":1200,"completion_tokens":30}'))
        return compaction_service_pb2.Outcome(prepare_id=state.prepared, answer=answer)

    def record(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.prepared:
            return
        rows = self.answer_rows(scene) if rng.random() < 0.85 else []
        sent = list(rows)
        outcome = self.outcome(scene, rows)
        if rows and rng.random() < 0.12:
            outcome.answer.partial = True
            lost = row_pb2.ContentBlock(tool_call=row_pb2.ToolCallBlock(call_id=state.next("call_"), name="read", arguments_json='{"path": "sr'))
            outcome.answer.input.rows.rows[0].assistant.content.append(lost)
        finish = rng.choice((0, 0, 0, 1, 2, 3)) if state.open_run else 0
        outcome.finish = finish
        request = compaction_service_pb2.RecordAnswerRequest(
            session_id=state.id, run_id=rng.choice(("", state.open_run or state.prepared_run)), outcome=outcome, request_id=self.request_id(scene)
        )
        if not request.run_id:
            request.run_id = state.prepared_run
        response = self.call(scene, self.client.compaction.RecordAnswer, request, expect=("RUN_NOT_OPEN", "FORMAT_INVALID"))
        if response is None:
            require(state.open_run != state.prepared_run or outcome.answer.usage_json, "L1", "an answer of the open run was refused")
            return
        if sent:
            self.look.appended(state, response.first_offset, response.last_offset, state.revision + 1, sent, True)
        if finish:
            self.closed(state)

    def refuse(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.prepared or state.prepared_run != state.open_run:
            return
        status, body = rng.choice(
            (
                (400, b'{"error":{"code":"context_length_exceeded","message":"maximum context length is 3000 tokens, you requested 4100"}}'),
                (413, b"request entity too large"),
                (400, b"maximum context length is " + b"9" * 5000 + b" tokens, you requested " + b"8" * 30 + b" tokens"),
                (429, b'{"error":{"message":"Rate limit reached: too many tokens per minute"}}'),
                (500, b""), (529, b"\xff\xfe overloaded"), (0, b""), (401, b"{}"),
            )
        )  # fmt: skip
        refusal = compaction_service_pb2.Refusal(http_status=status, raw_body=body, kind=rng.choice((0, 0, 0, 1, 2, 3, 7)))
        request = compaction_service_pb2.RecordAnswerRequest(
            session_id=state.id, run_id=state.open_run, request_id=self.request_id(scene),
            outcome=compaction_service_pb2.Outcome(prepare_id=state.prepared, refusal=refusal),
        )  # fmt: skip
        response = self.call(scene, self.client.compaction.RecordAnswer, request)
        require(response.run_closed, "4.4", "a refusal left the run open")
        self.counts[f"refused {response.refusal}"] += 1
        self.closed(state)

    def finish(self, scene: Scene) -> None:
        state = scene.state
        request = compaction_service_pb2.FinishRunRequest(
            session_id=state.id, run_id=state.open_run or "run-none", outcome=self.rng.choice((1, 2, 3)), request_id=self.request_id(scene)
        )
        if self.call(scene, self.client.compaction.FinishRun, request, expect=() if state.open_run else ("RUN_NOT_OPEN",)) is not None:
            self.closed(state)

    # Other changes

    def append(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        draw = rng.random()
        if draw < 0.3:
            rows = self.result_rows(scene)
        elif draw < 0.5:
            rows = self.request_rows(scene)
        elif draw < 0.6:
            rows = [self.system_row(scene)]
        elif draw < 0.7:
            state.numbers += 1
            first, second = made.paused(rng, state.numbers, done=rng.random() < 0.3)
            rows = [first, *([made.user(rng)] if rng.random() < 0.2 else []), *([second] if rng.random() < 0.7 else [])]
        else:
            rows = self.history(scene)
        if not rows:
            return
        run_id = rng.choice(("", "", "", state.open_run, state.open_run, "run-other"))
        given, typed = made.as_input(rng, rows)
        request = session_service_pb2.AppendRowsRequest(session_id=state.id, input=given, run_id=run_id, request_id=self.request_id(scene))
        if rng.random() < 0.2:
            request.expected_revision = state.revision
        response = self.call(scene, self.client.session.AppendRows, request)
        self.look.appended(state, response.first_offset, response.last_offset, state.revision + 1, rows, typed)
        require(response.revision == state.revision, "W3", response)
        if any(r.HasField("system") for r in rows):
            state.sent.clear()
        if state.open_run:
            new = state.active[len(state.active) - len(rows):]
            state.asked += [o for o in new if state.kind(o) == "user" and state.archive[o].row.run_id in ("", state.open_run)]

    def history(self, scene: Scene) -> list[row_pb2.Row]:
        """Turns as an import brings them."""
        rng = self.rng
        rows: list[row_pb2.Row] = []
        for _ in range(rng.randrange(1, 5)):
            rows.append(made.user(rng))
            for _ in range(rng.randrange(1, 3)):
                ids = [scene.state.next("call_") for _ in range(rng.choice((0, 1, 2)))]
                rows.append(made.assistant(rng, ids))
                rows += [made.result(rng, i) for i in ids if rng.random() < 0.95]
        return rows

    def bad_append(self, scene: Scene) -> None:
        """Appends that must be refused whole; a good row goes with each."""
        rng, state = self.rng, scene.state
        good = made.user(rng)
        answered = [key for key, (final, _) in state.calls().items() if final]
        open_ids = {call_id for _, call_id in state.unanswered()}
        twice = [call_id for _, call_id in answered if call_id not in open_ids]
        keys = state.systems()
        cases: list[tuple[row_pb2.Row, str]] = [
            (row_pb2.Row(compaction_summary=row_pb2.CompactionSummaryRow(text="mine")), "SUMMARY_ROW_REFUSED"),
            (row_pb2.Row(assistant=row_pb2.AssistantRow()), "EMPTY_ASSISTANT_ROW"),
            (made.result(rng, "never-made"), "UNKNOWN_TOOL_CALL"),
            (row_pb2.Row(user=row_pb2.UserRow()), "FIELD_VALIDATION"),
            (row_pb2.Row(), "FIELD_VALIDATION"),
            (row_pb2.Row(user=row_pb2.UserRow(content=[row_pb2.ContentBlock()])), "FIELD_VALIDATION"),
            (made.assistant(rng, ["same", "same"]), "FIELD_VALIDATION"),
        ]
        if twice:
            cases.append((made.result(rng, rng.choice(twice)), "DUPLICATE_TOOL_RESULT"))
        if keys:
            key, (version, _) = rng.choice(list(keys.items()))
            cases.append((made.system(rng, key, rng.randrange(version + 1)), "STALE_SYSTEM_VERSION"))
        bad, reason = rng.choice(cases)
        rows = [good, bad] if rng.random() < 0.5 else [bad, good]
        request = session_service_pb2.AppendRowsRequest(
            session_id=state.id, input=row_pb2.RowInput(rows=row_pb2.RowList(rows=rows)), request_id=self.request_id(scene)
        )
        require(self.call(scene, self.client.session.AppendRows, request, expect=(reason,)) is None, "R1", f"{bad} was taken")

    def stale(self, scene: Scene) -> None:
        """W3, closed runs, unknown requests, bad fields: refused, and nothing changes."""
        rng, state = self.rng, scene.state
        given, _ = made.as_input(rng, [made.user(rng)])
        stubs = self.client
        draw = rng.randrange(7)
        if draw == 0:
            request: Any = session_service_pb2.AppendRowsRequest(session_id=state.id, input=given, expected_revision=state.revision + rng.choice((-1, 1, 9)) if state.revision else 3)
            response = self.call(scene, stubs.session.AppendRows, request, expect=("REVISION_MISMATCH",))
        elif draw == 1:
            request = self.prepare_of(scene, state.open_run or state.next("run-"))
            request.append.CopyFrom(given)
            request.shape.ClearField("tools")
            request.ClearField("override")
            request.expected_revision = state.revision + 1
            response = self.call(scene, stubs.compaction.PrepareRequest, request, expect=("REVISION_MISMATCH", "FIELD_VALIDATION"))
        elif draw == 2 and state.runs:
            request = self.prepare_of(scene, rng.choice(state.runs))
            request.append.CopyFrom(given)
            request.supersede_open_run = True
            response = self.call(scene, stubs.compaction.PrepareRequest, request, expect=("RUN_NOT_OPEN", "TOOLS_UNKNOWN", "FIELD_VALIDATION", "REVISION_MISMATCH"))
        elif draw == 3:
            outcome = compaction_service_pb2.Outcome(prepare_id="p-none", answer=compaction_service_pb2.Answer(input=given))
            request = compaction_service_pb2.RecordAnswerRequest(session_id=state.id, run_id=state.open_run or "run-none", outcome=outcome)
            response = self.call(scene, stubs.compaction.RecordAnswer, request, expect=("PREPARE_NOT_FOUND", "RUN_NOT_OPEN"))
        elif draw == 4:
            request = session_service_pb2.RestoreRevisionRequest(session_id=state.id, revision=state.revision + 1)
            response = self.call(scene, stubs.session.RestoreRevision, request, expect=("REVISION_NOT_FOUND",))
        elif draw == 5:
            request = session_service_pb2.ReadRowRequest(session_id=state.id, offset=len(state.archive) + 1)
            response = self.call(scene, stubs.session.ReadRow, request, expect=None)
        else:
            raw = row_pb2.RawMessages(format=rng.choice((1, 3)), json=rng.choice((b"[", b"null", b"[1]", b'[{"role":"nobody","content":"x"}]', b'{"role":"tool","content":"x"}', b'"\xff"', b"[" * 5000)))
            request = session_service_pb2.AppendRowsRequest(session_id=state.id, input=row_pb2.RowInput(raw=raw))
            response = self.call(scene, stubs.session.AppendRows, request, expect=None)
        require(response is None, "R1", f"taken: {request}")

    def pin(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.active:
            return
        offsets = rng.sample(state.active, min(len(state.active), rng.randrange(1, 4)))
        pinned = rng.random() < 0.4
        summary = any(state.kind(o) == "compaction_summary" for o in offsets)
        request = session_service_pb2.PinRowsRequest(session_id=state.id, offsets=offsets, pinned=pinned, request_id=self.request_id(scene))
        response = self.call(scene, self.client.session.PinRows, request, expect=("SUMMARY_ROW_REFUSED",) if summary else ())
        require((response is None) == summary, "R6", "a summary was pinned")
        if response is not None:
            changed = {o for o in offsets if (o in state.pinned) != pinned}
            require(response.changed == len(changed), "R6", f"{response.changed} changed, not {changed}")
            state.pinned = state.pinned | changed if pinned else state.pinned - changed

    def edit(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.active:
            return
        first = rng.randrange(len(state.active))
        last = min(len(state.active) - 1, first + rng.choice((0, 0, 1, 2, 5)))
        rows = [made.user(rng)] if rng.random() < 0.5 else []
        rows += [made.assistant(rng, [state.next("call_")] if rng.random() < 0.3 else [])] if rng.random() < 0.3 else []
        request = session_service_pb2.EditRowsRequest(
            session_id=state.id, first_offset=state.active[first], last_offset=state.active[last], request_id=self.request_id(scene)
        )
        if rows:
            request.replacement.rows.rows.extend(rows)
        response = self.call(scene, self.client.session.EditRows, request, expect=("EDIT_SPLITS_UNIT", "SUMMARY_ROW_REFUSED"))
        if response is None:
            return
        before, removed = list(state.active), set(state.active[first : last + 1])
        self.look.appended(state, response.first_offset, response.last_offset, response.revision, rows, True)
        new = list(range(response.first_offset, response.last_offset + 1)) if rows else []
        state.change(response.revision, [*before[:first], *new, *before[last + 1 :]])
        self.rewritten(state, response.cancelled_run_id, removed)

    def restore(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        revision = rng.choice(sorted(state.lists))
        request = session_service_pb2.RestoreRevisionRequest(session_id=state.id, revision=revision, request_id=self.request_id(scene))
        response = self.call(scene, self.client.session.RestoreRevision, request)
        active, folded = state.lists[revision]
        removed = set(state.active).difference(active)
        state.folded = folded
        state.change(response.revision, active)
        require(response.rows_active == len(active), "X2", response)
        self.rewritten(state, response.cancelled_run_id, removed)

    def rewritten(self, state: State, cancelled: str, removed: set[int]) -> None:
        state.sent.clear()
        state.prepared = state.prepared if not cancelled else ""
        asked_gone = [o for o in state.asked if o in removed]
        if cancelled:
            require(cancelled == state.open_run and removed, "X2", f"{cancelled} was cancelled, {state.open_run} is open")
            self.closed(state)
        state.asked = [o for o in state.asked if o not in asked_gone]

    def compact(self, scene: Scene) -> None:
        state = scene.state
        request = compaction_service_pb2.CompactSessionRequest(
            session_id=state.id, request_id=self.request_id(scene), instructions=self.rng.choice(("", "mind the tickets"))
        )
        try:
            steps = list(self.client.compaction.CompactSession(request, timeout=60))
        except grpc.RpcError as error:
            reason = self.look.error(error, "CompactSession")
            allowed = ("NOTHING_TO_FOLD", "SUMMARIZER_FAILED", "REWRITE_REJECTED", "CURATOR_UNAVAILABLE")
            require(reason in allowed, "P7", f"{reason}: {error.details()}")
            self.counts[reason] += 1
            return
        record = steps[-1].record
        require(steps[-1].HasField("record") and record.revision_before == state.revision, "L2", steps[-1])
        self.look.folded(state, record, record.revision_after)
        self.counts[f"fold {compaction_pb2.FoldScope.Name(record.scope)} manual"] += 1

    # Questions, which change nothing

    def ask(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        before = self.look.print_of(state)
        shape = compaction_service_pb2.RequestShape(model=self.model(rng.choice(list(CATALOG))))
        over = policy(rng.choice(POLICIES))
        stubs = self.client
        draw = rng.randrange(5)
        if draw == 0:
            request: Any = compaction_service_pb2.CheckPressureRequest(session_id=state.id, shape=shape, override=over)
            self.call(scene, stubs.compaction.CheckPressure, request, expect=("FIELD_VALIDATION",))
        elif draw == 1:
            request = compaction_service_pb2.PlanCompactionRequest(session_id=state.id, shape=shape, override=over)
            self.call(scene, stubs.compaction.PlanCompaction, request, expect=("FIELD_VALIDATION",))
        elif draw == 2:
            self.search(scene)
        elif draw == 3:
            revision = rng.choice(sorted(state.lists))
            listed = [r.offset for r in self.look.listed(state, 1, revision)]
            require(listed == list(state.lists[revision][0]), "X2", f"revision {revision} is {listed}, was {state.lists[revision][0]}")
            self.look.render(state, rng.choice((1, 3, 5)), revision)
        else:
            page = stubs.session.ListRevisions(session_service_pb2.ListRevisionsRequest(session_id=state.id, page_size=500))
            numbers = [r.revision for r in page.revisions]
            require(numbers == sorted(numbers, reverse=True), "W6", numbers)
            require(sum(r.HasField("fold") for r in page.revisions) == state.folds or page.next_page_token, "V7", "folds in ListRevisions")
        require(self.look.print_of(state) == before, "R1", "a question changed the session")

    def search(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        offsets = list(state.folded) or list(state.archive)
        if not offsets:
            return
        row = state.archive[rng.choice(offsets)].row
        body = getattr(row, row.WhichOneof("body"))
        texts = [b.text.text for b in getattr(body, "content", ()) if b.text.text] or ["deploy"]
        query = rng.choice((texts[0][:80], '"', "AND OR NOT *", "src/", "\u202e", texts[0][:4000]))
        request = memory_service_pb2.SearchMemoryRequest(
            session_id=state.id, query=query, limit=rng.choice((1, 5, 20)), include_neighbors=rng.random() < 0.5
        )
        response = self.call(scene, self.client.memory.SearchMemory, request, expect=("EMPTY_QUERY",))
        for hit in response.hits if response else ():
            require(hit.offset in state.folded and hit.offset not in state.active, "M2", f"hit of row {hit.offset}, which is not folded")

    def update(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        values, model = rng.choice(POLICIES), rng.choice((state.model, rng.choice(list(CATALOG))))
        request = session_service_pb2.UpdateSessionRequest(
            session_id=state.id, policy=policy(values), model=self.model(model), labels={"n": str(self.step)}, request_id=self.request_id(scene)
        )
        request.update_mask.paths.extend(["policy", "model", "labels"])
        response = self.call(scene, self.client.session.UpdateSession, request, expect=("FIELD_VALIDATION",))
        if response is not None:
            state.policy, state.model = values, model

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
        before = self.look.print_of(state)
        again = self.method(repeat)(repeat.request, timeout=60)
        if not isinstance(again, compaction_service_pb2.PrepareRequestResponse) and not isinstance(again, session_service_pb2.UpdateSessionResponse):
            require(again == repeat.response, "W2", f"{again} is not {repeat.response}")
        elif isinstance(again, compaction_service_pb2.PrepareRequestResponse):
            for name in ("prepare_id", "revision", "action", "first_offset", "last_offset"):
                require(getattr(again, name) == getattr(repeat.response, name), "W2", f"{name}: {again} is not {repeat.response}")
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
        stub = self.client.session if hasattr(self.client.session, name) else self.client.compaction
        return getattr(stub, name)  # type: ignore[no-any-return]

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
                yield session_service_pb2.ImportSessionRequest(chunk=session_service_pb2.ImportChunk(sequence=chunk.sequence, jsonl=chunk.jsonl))

        imported = stubs.session.ImportSession(parts())
        require(imported.rows == len(state.archive), "W4", f"{imported.rows} rows imported of {len(state.archive)}")
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
        self.call(None, stubs.session.DeleteSession, session_service_pb2.DeleteSessionRequest(session_id=gone))

    def crowd(self, scene: Scene) -> None:
        """Many callers of one session at once (H)."""
        crowd = Crowd(scene.state, self.look, self.rng)
        plans = crowd.planned(self.rng.choice((2, 4, 8)), self.rng.choice((1, 3)))
        self.backend.source.slow = self.rng.choice((0.0, 0.02))
        crowd.run(self.client, plans)
        self.backend.source.slow = 0.0
        self.aftermath(scene, crowd)

    def impatient(self, scene: Scene) -> None:
        """Deadlines that come in the middle of anything (W9, A5)."""
        crowd = Crowd(scene.state, self.look, self.rng)
        plans = crowd.planned(2, 3)
        self.backend.source.slow = 0.05
        crowd.run(self.client, plans, timeout=lambda: self.rng.choice((0.001, 0.003, 0.01, 0.03)))
        self.backend.source.slow = 0.0
        self.aftermath(scene, crowd)

    def kill(self, scene: Scene) -> None:
        """SIGKILL under callers; what was acknowledged is there, what was lost is asked for again (V10, W10)."""
        if not self.backend.separate:
            return
        crowd = Crowd(scene.state, self.look, self.rng)
        plans = crowd.planned(self.rng.choice((1, 3)), 4)
        delay = self.rng.random() * 0.06
        killer = threading.Timer(delay, self.backend.kill)
        killer.start()
        crowd.run(self.client, plans)
        killer.join()
        self.backend.start()
        self.aftermath(scene, crowd)
        for other in self.scenes:
            self.look.settle(other.state, thorough=True)

    def aftermath(self, scene: Scene, crowd: Crowd) -> None:
        crowd.ask_again(self.client)
        crowd.settle()
        scene.repeats = []
        self.counts["calls of crowds"] += len(crowd.sent)

    def weather(self, scene: Scene) -> None:
        self.backend.source.rate = self.rng.choice((0.0, 0.0, 0.0, 0.4))

    def restart(self, scene: Scene) -> None:
        self.backend.restart()
        for other in self.scenes:
            self.look.settle(other.state, thorough=True)


OPS = {
    "turn": 14, "step_of_run": 40, "prepare_again": 5, "record": 12, "refuse": 3, "finish": 5, "append": 12, "bad_append": 5,
    "stale": 5, "pin": 3, "edit": 4, "restore": 3, "compact": 4, "ask": 6, "update": 2, "repeat": 5, "move": 1,
    "weather": 1, "restart": 0.3, "crowd": 1.5, "impatient": 1, "kill": 2,
}  # fmt: skip
"""How often each step is taken, by weight."""
