"""A random host and the sessions it has: what every step of it needs."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from foldline.v1 import (
    model_pb2,
    policy_pb2,
    session_service_pb2,
)
from google.protobuf import json_format

from tests.model.kept import Kept
from tests.model.onlooker import Onlooker
from tests.model.server import CATALOG, Backend
from tests.model.state import State, require
from tests.model.transport import Transport

THOROUGH = 0.12
"""How often a session is replayed, rendered and read whole after a step."""
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
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_PROVIDER"}},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_PROVIDER"}, "cooldown": "30s", "min_boundaries_between": 0},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_PROVIDER", "on_failure": "ON_FAILURE_NEXT"}},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_PROVIDER", "on_failure": "ON_FAILURE_RESCUE"}},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_PROVIDER"}, "max_paid_folds_per_hour": 1},
    {"background": {"enabled": True, "fraction": 0.3}, "min_boundaries_between": 0},
    {"background": {"enabled": True}, "retention": {"turns": 1, "messages": 1}},
    {"background": {"enabled": True, "fraction": 0.5}, "fold_wait": "0.001s"},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_CURATOR", "timeout": "0.15s"}, "min_boundaries_between": 0},
    {"summary": {"source": "SUMMARY_SOURCE_POLICY_CURATOR", "timeout": "0.15s"}, "cooldown": "0s"},
    {"checkpoints": {"enabled": True}, "min_boundaries_between": 0},
    {"checkpoints": {"enabled": True}, "retention": {"turns": 1, "messages": 1}},
    {"checkpoints": {"enabled": True}, "auto_compact": False},
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


class Host:
    """Calls, sessions, and what to print when a rule is broken.

    Attributes:
        steps: how often each step is taken, by weight; a step is a method that takes a scene.
    """

    steps: Mapping[str, float] = {}

    def __init__(self, backend: Backend, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.backend, self.seed, self.say = backend, seed, say
        self.rng = random.Random(seed)
        self.look = Onlooker(lambda: backend.client)
        self.scenes: list[Scene] = []
        self.lists: list[Kept] = []
        self.writers: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.numbers = 0
        self.step = 0
        self.transport = Transport(random.Random(seed))

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
            error.add_note(self.report())
            raise

    def report(self) -> str:
        """The last steps and the session of the last one as the model knows it, for whoever reads a failure."""
        lines = [f"seed {self.seed}, step {self.step}:", *self.log[-14:]]
        for state in (s.state for s in self.scenes):
            if not any(f" {state.id} (" in line for line in self.log[-3:]):
                continue
            lines.append(f"{state.id}: open {state.open_run!r}, asked {state.asked}, carried {sorted(state.carried)}")
            lines += [self._line(state, offset) for offset in sorted(state.archive)]
            lines.append(f"  list {state.active}")
        return "\n".join(lines)

    @staticmethod
    def _line(state: State, offset: int) -> str:
        known = state.archive[offset]
        place = "active" if offset in state.active else "folded" if offset in state.folded else "gone"
        more = " paused" if known.paused else ""
        if known.kind == "assistant":
            more = f"{known.calls}{more}"
        if known.kind == "tool_result":
            body = known.row.tool_result
            flags = [name for name in ("late", "interim") if getattr(body, name)]
            more = f"{body.call_id} of {body.call_offset} {' '.join(flags)}"
        return f"  {offset:4} {known.kind:18} {known.row.run_id:8} {place:6} {more}"

    def one(self) -> None:
        rng = self.rng
        while len(self.scenes) < 3:
            self.create()
        scene = rng.choice(self.scenes)
        if len(scene.state.archive) > MAX_ROWS:
            self.delete(scene)
            return
        self.backend.now += rng.expovariate(1 / 5)
        name, op = self._pick()
        self.note(scene, name)
        op(scene)
        if scene in self.scenes:
            self.look.settle(scene.state, thorough=rng.random() < THOROUGH)

    def _pick(self) -> tuple[str, Callable[[Scene], None]]:
        name = self.rng.choices(list(self.steps), list(self.steps.values()))[0]
        return name, getattr(self, name)

    def note(self, scene: Scene, text: str) -> None:
        self.counts[text] += 1
        state = scene.state
        self.log.append(f"  {self.step} {state.id} ({state.model}, {state.policy}) at {state.revision}: {text}")
        self.say(self.log[-1])

    def call(
        self, scene: Scene | None, method: Callable[..., Any], request: Any, *, expect: Sequence[str] | None = ()
    ) -> Any:
        """The response; None for a refusal, which changed nothing. ``expect`` names allowed reasons, None any."""
        state = scene.state if scene else None
        before = self.look.print_of(state) if state and expect != () else b""
        try:
            name = type(request).__name__.removesuffix("Request")
            response = self.transport.send(self.client, name, method, request)
        except grpc.RpcError as error:
            reason = self.look.error(error, type(request).__name__)
            self.log.append(f"      {reason}: {error.details()}")
            self.say(self.log[-1])
            require(
                expect is None or reason in expect,
                "R1",
                f"{reason}: {error.details()} for {type(request).__name__}, expected {expect}",
            )
            self.counts[reason] += 1
            if state:
                require(
                    self.look.print_of(state) == before, "R1", f"{reason} changed the session: {type(request).__name__}"
                )
            return None
        if scene is not None and getattr(request, "request_id", ""):
            scene.repeats = [*scene.repeats, Repeat(type(request).__name__.removesuffix("Request"), request, response)][
                -6:
            ]
        return response

    def tried(self, method: Callable[..., Any], request: Any, expect: Sequence[str] = ()) -> Any:
        """The response; None for an allowed refusal, which may have written what a failure writes."""
        try:
            return method(request, timeout=60)
        except grpc.RpcError as error:
            reason = self.look.error(error, type(request).__name__)
            require(reason in expect, "R1", f"{reason}: {error.details()} for {type(request).__name__}, not {expect}")
            self.counts[reason] += 1
            return None

    def request_id(self, scene: Scene) -> str:
        return scene.state.next("q-") if self.rng.random() < 0.5 else ""

    def create(self) -> Scene:
        rng = self.rng
        self.numbers += 1
        state = State(f"s{self.numbers}", rng.choice(list(CATALOG)), rng.choice(POLICIES))
        request = session_service_pb2.CreateSessionRequest(
            session_id=state.id,
            model=self.model(state.model),
            policy=policy(state.policy),
            request_id=f"c-{self.numbers}",
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
        self.transport.drop(scene.state.id)
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
