"""Any course of a session whose provider compacts: what is sent is valid for whoever it is sent to (N1-N4, V1-V10)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, policy_pb2, row_pb2, session_service_pb2, warning_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.native import CLAUDE, LINE, LOCAL, OPENAI, NativeHost, World, world_of
from tests.support.providers import Does
from tests.support.requests import assistant, calls, result, user
from tests.support.server import refusal_of
from tests.validity import anthropic_faults, openai_chat_faults, openai_responses_faults

FORMATS = {
    "openai": (OPENAI, row_pb2.FORMAT_OPENAI_RESPONSES, openai_responses_faults),
    "claude": (CLAUDE, row_pb2.FORMAT_ANTHROPIC_MESSAGES, anthropic_faults),
    "local": (LOCAL, row_pb2.FORMAT_OPENAI_CHAT, openai_chat_faults),
}
ITEM, SUMMARY = "provider_compaction", "compaction_summary"
NOTHING = compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD
EXPECTED = {"NOTHING_TO_FOLD", "SUMMARIZER_FAILED", "REWRITE_REJECTED", "RUN_NOT_OPEN", "RUN_ALREADY_OPEN"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of(tmp_path_factory.mktemp("native"), {"store.synchronous": "NORMAL"}) as made:
        yield made


@dataclass
class Course:
    """One session while it is played."""

    world: World
    host: NativeHost
    way: str
    run: int = 0
    said: list[str] = field(default_factory=list)

    def say(self, rounds: int) -> None:
        """A closed turn, with a call and its result where ``rounds`` says so."""
        n = len(self.said)
        self.said.append(f"walnut-{n}")
        rows: list[dict[str, Any]] = [user(f"walnut-{n} {LINE.format(n=n)}")]
        for step in range(rounds):
            rows += [calls(f"c{n}-{step}"), result(f"c{n}-{step}", LINE.format(n=n))]
        self.host.append(*rows, assistant(LINE.format(n=n)), run_id=f"old-{n}")

    def ask(self, way: str) -> None:
        """A request to a model, in its format; every one is valid there, and holds an item only if that model can."""
        self.way = way
        model, fmt, faults = FORMATS[way]
        self.run += 1
        question = f"walnut-q{self.run} go on"
        self.said.append(question.split()[0])
        shape = compaction_service_pb2.RequestShape(model=model)
        check = compaction_service_pb2.CheckPressureRequest(session_id=self.host.id, shape=shape)
        foreseen = self.world.client.compaction.CheckPressure(check)
        prepared = self.host.ask(f"r{self.run}", user(question), model=model, format=fmt, supersede_open_run=True)
        sent = json.loads(prepared.rendered_json)
        assert faults(sent) == []
        kinds = self.host.kinds()
        assert kinds.count(ITEM) <= 1
        left_out = any(w.code == warning_pb2.WARNING_CODE_NATIVE_ITEM_LEFT_OUT for w in prepared.warnings)
        assert foreseen.fold_due == (prepared.HasField("fold") or left_out), "N4 is foreseen"
        if ITEM in kinds and not left_out:
            (item,) = [r.provider_compaction for r in self.host.active() if r.HasField(ITEM)]
            assert item.model == model
            assert dict(prepared.request_headers) == ({"anthropic-beta": item.beta} if item.beta else {})
        else:
            assert not prepared.request_headers
            assert b"encrypted_content" not in prepared.rendered_json
            assert b'"compaction"' not in prepared.rendered_json
        outcome = self.host.answer(prepared, assistant("Yes."), finish=compaction_pb2.RUN_OUTCOME_COMPLETED)
        self.host.record(f"r{self.run}", outcome)

    def fold(self, does: str) -> None:
        shape = compaction_service_pb2.RequestShape(model=FORMATS[self.way][0])
        before = self.host.get().session.revision
        request = compaction_service_pb2.PlanCompactionRequest(session_id=self.host.id, shape=shape)
        planned = self.world.client.compaction.PlanCompaction(request)
        assert self.host.get().session.revision == before
        self.world.fake.script = [Does(does)]
        try:
            record = self.host.compact(shape=shape)
        except grpc.RpcError as error:
            assert (refusal_of(error).reason == "NOTHING_TO_FOLD") == (planned.skip == NOTHING) or does != "success"
            raise
        finally:
            self.world.fake.script.clear()
        plan = planned.plan
        assert list(plan.discarded) == list(record.discarded)
        if does == "success":
            assert (plan.summary_source, plan.model) == (record.summary_source, record.model), (plan, record)
        assert not plan.native_unavailable or record.summary_source != row_pb2.SUMMARY_SOURCE_NATIVE

    def restore(self, back: int) -> None:
        revision = max(1, self.host.get().session.revision - back)
        request = session_service_pb2.RestoreRevisionRequest(session_id=self.host.id, revision=revision)
        self.world.client.session.RestoreRevision(request)

    def choose(self, source: str) -> None:
        request = session_service_pb2.UpdateSessionRequest(session_id=self.host.id)
        request.policy.summary.source = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source}")
        self.world.client.session.UpdateSession(request)

    def forget(self) -> None:
        self.world.now += 8 * 86_400


BEHAVIOURS = ["success", "success", "success", "server_error", "no_item", "forbidden", "two_items", "context_exceeded"]
STEPS = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 2)),
    st.tuples(st.just("say"), st.integers(0, 2)),
    st.tuples(st.just("ask"), st.sampled_from(["openai", "openai", "claude", "local"])),
    st.tuples(st.just("fold"), st.sampled_from(BEHAVIOURS)),
    st.tuples(st.just("fold"), st.just("success")),
    st.tuples(st.just("restore"), st.integers(1, 4)),
    st.tuples(st.just("choose"), st.sampled_from(["NATIVE", "NATIVE", "EXTRACTIVE", "AUTO"])),
    st.tuples(st.just("forget")),
)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["openai", "claude"]), st.lists(STEPS, min_size=6, max_size=22))
def test_any_course_of_a_session_sends_items_to_their_own_model_alone(
    world: World, way: str, steps: list[tuple[Any, ...]]
) -> None:
    world.fresh()
    world.now += 8 * 86_400
    retention = {"turns": 1, "messages": 1}
    course = Course(world, NativeHost(world.client, way, retention=retention, auto_compact=False), way)
    for n in range(3):
        course.say(n % 2)
    for name, *arguments in steps:
        with contextlib.suppress(_Expected), _expected():
            getattr(course, name)(*arguments)
        assert course.host.sound(), (name, arguments)
    course.ask("local")
    kinds = course.host.kinds()
    assert ITEM not in kinds, "what one model compacted, another reads as text"
    assert kinds.count(SUMMARY) <= 1
    if course.host.events_of("COMPACTION_STARTED"):
        assert course.host.ended_once()


class _Expected(Exception):
    """A refusal that a course may meet."""


@contextlib.contextmanager
def _expected() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        refusal = refusal_of(error)
        if refusal.reason not in EXPECTED:
            raise
        raise _Expected(refusal.reason) from error
