"""§12: who writes where the host asks for the provider's own compaction. The calls: ``integration/test_native.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, model_pb2, policy_pb2, row_pb2, session_service_pb2

from tests.decisions.table import marks
from tests.support.native import CLAUDE, LINE, LOCAL, NATIVE, OPENAI, NativeHost, World, source_of, world_of
from tests.support.providers import Does
from tests.support.requests import assistant, user
from tests.support.server import refused

PRESERVE, NEXT, RESCUE = "PRESERVE", "NEXT", "RESCUE"
CHAT, RESPONSES, MESSAGES = (
    row_pb2.FORMAT_OPENAI_CHAT,
    row_pb2.FORMAT_OPENAI_RESPONSES,
    row_pb2.FORMAT_ANTHROPIC_MESSAGES,
)
T, W = 6_500, 7_950


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of(tmp_path_factory.mktemp("native")) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fresh()
    world.now += 8 * 86_400


def policy_of(**summary: Any) -> dict[str, Any]:
    chosen = {"on_failure": policy_pb2.OnFailure.Value(f"ON_FAILURE_{summary.pop('on_failure', PRESERVE)}")}
    return {"summary": chosen | summary, "output_reserve_tokens": 100, "min_progress": 0.0}


SOURCES = [
    # (rule, case, what the endpoint does, on_failure, what the host counts, who writes, else the failure)
    ("N1", "one item", "success", PRESERVE, T, "NATIVE"),
    ("N3", "404", "not_found", PRESERVE, T, "PROVIDER"),
    ("N3", "no item", "no_item", PRESERVE, T, "PROVIDER"),
    ("N3", "several items", "two_items", PRESERVE, T, "PROVIDER"),
    ("N3", "another kind of answer", "chat_completion", PRESERVE, T, "PROVIDER"),
    ("S2", "a failure preserves the history", "server_error", PRESERVE, T, "SUMMARIZER_FAILED"),
    ("S2", "also where the request would not fit", "server_error", PRESERVE, W, "SUMMARIZER_FAILED"),
    ("S2", "NEXT takes the provider", "server_error", NEXT, T, "PROVIDER"),
    ("S2", "RESCUE does not below W", "server_error", RESCUE, T, "SUMMARIZER_FAILED"),
    ("S2", "RESCUE does at W", "server_error", RESCUE, W, "PROVIDER"),
    ("S2", "403 is a failure, not a missing capability", "forbidden", PRESERVE, T, "SUMMARIZER_FAILED"),
    ("N3", "too large for its call is the next one's", "context_exceeded", PRESERVE, T, "PROVIDER"),
]


@pytest.mark.parametrize(("what", "on_failure", "counted", "outcome"), marks(SOURCES))
def test_who_writes(world: World, what: str, on_failure: str, counted: int, outcome: str) -> None:
    world.fake.script = [Does(what)]
    host = NativeHost(world.client, **policy_of(on_failure=on_failure)).filled(10)
    before = host.offsets()
    host.revision = host.get().session.revision
    shape = compaction_service_pb2.RequestShape(input_tokens=counted)
    prepared = host.ask("r1", user("go"), shape=shape)
    if prepared.HasField("fold"):
        assert source_of(prepared.fold) == outcome
        assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
    else:
        assert compaction_pb2.FailureKind.Name(prepared.failure) == f"FAILURE_KIND_{outcome}"
        assert host.offsets()[: len(before)] == before
    assert len(world.compactions) == 1
    assert host.ended_once()
    assert host.sound()


def test_n3_where_no_provider_writes_the_extractive_source_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The provider follows by rules of its own: what it fails at is its failure (S2)."""
    with world_of(tmp_path_factory.mktemp("native")) as world:
        host = NativeHost(world.client, **policy_of()).filled(10)
        world.fake.script = [Does("not_found"), Does("server_error")]
        assert refused(host.fold).reason == "SUMMARIZER_FAILED", "the provider follows by its own rules"
        host = NativeHost(world.client, **policy_of(on_failure=NEXT)).filled(10)
        world.fake.script = [Does("server_error")]
        assert source_of(host.fold()) == "EXTRACTIVE"


MODELS = [
    # (rule, case, model of the next request, format it is rendered in, whether the item is summarized again)
    ("N4", "the same model, rendered for it", OPENAI, RESPONSES, False),
    ("N4", "the same model, rows", OPENAI, None, False),
    ("N4", "the same model, canonical", OPENAI, row_pb2.FORMAT_CANONICAL, False),
    ("N4", "another model of the provider", model_pb2.ModelRef(provider="openai", model="larger"), RESPONSES, True),
    ("N4", "the same name at another provider", LOCAL, RESPONSES, True),
    ("N4", "another provider", CLAUDE, MESSAGES, True),
    ("N4", "the same model by an API that cannot carry it", OPENAI, CHAT, True),
]


@pytest.mark.parametrize(("model", "fmt", "again"), marks(MODELS))
def test_when_an_item_is_summarized_again(
    world: World, model: model_pb2.ModelRef, fmt: row_pb2.Format.ValueType | None, again: bool
) -> None:
    host = NativeHost(world.client, **policy_of()).filled(10)
    host.fold()
    prepared = host.ask("r1", user("go"), model=model, format=fmt)
    assert prepared.HasField("fold") == again
    assert (host.kinds()[0] == "provider_compaction") != again
    assert host.sound()


def unpinned(host: NativeHost) -> None:
    host.filled(10)


def pinned_first(host: NativeHost) -> None:
    said = row_pb2.UserRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text="Keep me."))])
    host.rows(row_pb2.Row(user=said, pinned=True))
    host.filled(10)


def pinned_in_the_middle(host: NativeHost) -> None:
    host.filled(10)
    host.client.session.PinRows(session_service_pb2.PinRowsRequest(session_id=host.id, offsets=[5], pinned=True))


def pinned_in_the_tail(host: NativeHost) -> None:
    host.filled(10)
    last = host.offsets()[-1]
    host.client.session.PinRows(session_service_pb2.PinRowsRequest(session_id=host.id, offsets=[last], pinned=True))


def system_first(host: NativeHost) -> None:
    host.append({"role": "system", "content": "You are careful."})
    host.filled(10)


def summary_before(host: NativeHost) -> None:
    host.filled(10)
    host.fold(instructions="Briefly.")
    host.filled(8)


def in_chat(host: NativeHost) -> None:
    host.ask("r0", user("hi"), format=CHAT)
    host.filled(10)


PLACES = [
    # (rule, case, what the list is, who writes)
    ("V3", "turns alone", unpinned, "NATIVE"),
    ("V3", "behind system rows", system_first, "NATIVE"),
    ("V3", "a pin before what folds", pinned_first, "PROVIDER"),
    ("V3", "a pin among what folds", pinned_in_the_middle, "PROVIDER"),
    ("V3", "a pin in the tail", pinned_in_the_tail, "NATIVE"),
    ("F8", "an earlier summary folds along", summary_before, "NATIVE"),
    ("N2", "the host's requests cannot carry one", in_chat, "PROVIDER"),
]


@pytest.mark.parametrize(("made", "writer"), marks(PLACES))
def test_where_an_item_may_stand(world: World, made: Callable[[NativeHost], None], writer: str) -> None:
    host = NativeHost(world.client, **policy_of())
    made(host)
    assert source_of(host.fold()) == writer
    kinds = [k for k in host.kinds() if k != "system"]
    assert ("provider_compaction" in kinds) == (writer == "NATIVE")
    if writer == "NATIVE":
        assert kinds[0] == "provider_compaction", "nothing but system rows stands before it"
        assert kinds.count("provider_compaction") == 1
    assert host.sound()


KNOBS = [
    # (rule, case, summary.source, native.enabled, whether it is refused, who writes)
    ("N1", "both", "NATIVE", True, False, "NATIVE"),
    ("N1", "NATIVE without the switch", "NATIVE", False, True, ""),
    ("S2", "the switch alone leaves AUTO as it is", "AUTO", True, False, "PROVIDER"),
    ("S2", "and EXTRACTIVE", "EXTRACTIVE", True, False, "EXTRACTIVE"),
    ("S2", "neither", "AUTO", False, False, "PROVIDER"),
]


@pytest.mark.parametrize(("source", "enabled", "is_refused", "writer"), marks(KNOBS))
def test_the_switch(world: World, source: str, enabled: bool, is_refused: bool, writer: str) -> None:
    chosen = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source}")
    policy = {"summary": {"source": chosen}, "native": {"enabled": enabled}}
    if is_refused:
        refusal = refused(NativeHost, world.client, "openai", **policy)
        assert refusal.reason == "FIELD_VALIDATION"
        assert refusal.metadata["field"] == "policy.summary.source"
        return
    assert source_of(NativeHost(world.client, **policy).filled(10).fold()) == writer


def test_the_switch_turned_off_leaves_what_there_is(world: World) -> None:
    """Items that a session has stay readable: only new ones are not made."""
    host = NativeHost(world.client, **policy_of()).filled(10)
    host.fold()
    change = session_service_pb2.UpdateSessionRequest(session_id=host.id)
    change.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_AUTO
    change.policy.native.enabled = False
    world.client.session.UpdateSession(change)
    prepared = host.ask("r1", user("go"))
    assert not prepared.HasField("fold")
    assert b"encrypted_content" in prepared.rendered_json
    host.record("r1", host.answer(prepared, assistant("Yes."), finish=compaction_pb2.RUN_OUTCOME_COMPLETED))
    host.filled(8)
    assert source_of(host.fold()) == "PROVIDER"
    assert "line 0 then fails" in world.fake.received[-1].user, "from the archive"


def test_native_of_a_single_request_is_refused_without_its_switch(world: World) -> None:
    host = NativeHost(
        world.client, summary={"source": policy_pb2.SUMMARY_SOURCE_POLICY_AUTO}, native={"enabled": False}
    )
    override = policy_pb2.Policy(summary=policy_pb2.SummaryPolicy(source=NATIVE))
    assert refused(host.prepare, "r1", user(LINE), override=override).reason == "FIELD_VALIDATION"
    assert host.kinds() == [], "nothing was written"
