"""Faults that users met with providers' own compaction, against providers at the wire (section I)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from foldline.v1 import compaction_pb2, policy_pb2, row_pb2

from tests.support.native import LINE, LOCAL, WAYS, NativeHost, World, source_of, world_of
from tests.support.providers import Does
from tests.support.requests import assistant, user
from tests.support.server import refused

NEXT = {"on_failure": policy_pb2.ON_FAILURE_NEXT}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of(tmp_path_factory.mktemp("native")) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fresh()
    world.now += 8 * 86_400  # What was learned of a capability is learned anew.


def falls_through(world: World, host: NativeHost, *, compactions: int) -> None:
    """The provider writes this summary and the next, and the capability is asked once."""
    record = host.fold()
    assert source_of(record) == "PROVIDER"
    assert record.summary_text.startswith("## Goals and constraints")
    assert len(world.compactions) == compactions
    host.filled(8)
    assert source_of(host.fold()) == "PROVIDER"
    assert len(world.compactions) == compactions, "it is remembered (N3)"
    assert host.kinds().count("compaction_summary") == 1
    assert host.ended_once()
    assert host.sound()


def stays(world: World, host: NativeHost, reason: str = "SUMMARIZER_FAILED") -> None:
    before = host.offsets()
    refusal = refused(host.fold)
    assert refusal.reason == reason
    assert host.offsets() == before, "the history is as it was"
    assert host.ended_once()
    assert host.sound()


@pytest.mark.parametrize("what", ["no_item", "two_items", "hollow"])
def test_xi1_not_exactly_one_item_is_no_dead_turn(world: World, what: str) -> None:
    """«Expected exactly one compaction item, got 0 from N»: the next source writes, and nobody asks again."""
    world.fake.script = [Does(what)]
    host = NativeHost(world.client).ready()
    falls_through(world, host, compactions=1)
    completed = host.events_of("COMPACTION_COMPLETED")[0]
    assert completed.compaction_completed.record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["forbidden", "unauthorized", "cut", "drop", "server_error", "empty"])
def test_xi2_what_fails_on_the_way_preserves_the_history_and_is_no_missing_capability(
    world: World, way: str, what: str
) -> None:
    world.fake.script = [Does(what)]
    host = NativeHost(world.client, way).ready()
    stays(world, host)
    assert len(world.compactions) == 1
    assert source_of(host.fold()) == "NATIVE", "it is asked again when a fold is due again"


@pytest.mark.parametrize("what", ["forbidden", "cut", "drop"])
def test_xi2_where_the_host_said_next_the_provider_writes(world: World, what: str) -> None:
    world.fake.script = [Does(what)]
    host = NativeHost(world.client, summary=NEXT).ready()
    assert source_of(host.fold()) == "PROVIDER"
    assert host.ended_once()


def test_xi2_an_automatic_fold_that_fails_cools_and_pays_nothing_more_meanwhile(world: World) -> None:
    host = NativeHost(world.client).filled(29)
    world.fake.script = [Does("server_error")]
    host.append(*(m for n in range(3) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n)))))
    host.ask("r0", user("go on"))
    for n in range(1, 8):
        prepared = host.ask(f"r{n}", user(LINE.format(n=n)), supersede_open_run=True)
    assert len(world.compactions) == 1
    assert world.fake.calls == 1, "nor was anybody else asked"
    assert prepared.skip == compaction_pb2.SKIP_REASON_COOLDOWN
    assert host.ended_once()
    world.now += 601
    assert source_of(host.ask("r9", user("now"), supersede_open_run=True).fold) == "NATIVE"


@pytest.mark.parametrize("way", WAYS)
def test_xi3_a_gateway_without_the_endpoint_is_asked_once(world: World, way: str) -> None:
    if way == "openai":
        world.fake.script = [Does("not_found")]
    else:
        world.fake.models = Does("not_found")
    falls_through(world, NativeHost(world.client, way).ready(), compactions=1 if way == "openai" else 0)
    assert len(world.fake.probes) <= 1


@pytest.mark.parametrize("known", [False, True])
def test_xi3_where_the_next_one_fails_too_the_end_says_that_the_first_is_not_there(world: World, known: bool) -> None:
    """N3, §13: also where that was learned by another session, which had the warning."""
    if known:
        world.fake.script = [Does("not_found")]
        NativeHost(world.client).ready().fold()
    world.fake.script = [Does("server_error")] if known else [Does("not_found"), Does("server_error")]
    host = NativeHost(world.client).ready()
    refusal = refused(host.fold)
    assert refusal.reason == "SUMMARIZER_FAILED"
    (failed,) = host.events_of("COMPACTION_FAILED")
    for said in (refusal.message, failed.compaction_failed.message):
        assert "answered 404), in whose place openai answered 5" in said
    assert host.ended_once()


def test_xi3_where_the_third_one_writes_the_end_says_what_the_first_two_lacked(world: World) -> None:
    world.fake.script = [Does("not_found"), Does("server_error")]
    host = NativeHost(world.client, summary=NEXT).ready()
    assert source_of(host.fold()) == "EXTRACTIVE"
    (done,) = host.events_of("COMPACTION_COMPLETED")
    assert done.compaction_completed.failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED
    assert "answered 404), in whose place openai answered 5" in done.compaction_completed.message


def test_s5_an_attempt_that_paid_two_sources_names_what_both_used(world: World) -> None:
    """§13: an answer without an item is paid for (XI4), and so is the provider's, which is blank."""
    world.fake.script = [
        Does(body=b'{"object": "response", "output": [], "usage": {"input_tokens": 1000, "output_tokens": 10}}'),
        Does("success", text="   "),
    ]
    host = NativeHost(world.client).ready()
    assert refused(host.fold).reason == "REWRITE_REJECTED"
    (failed,) = host.events_of("COMPACTION_FAILED")
    used, native, provider = (
        u for u in (failed.compaction_failed.usage, host.used().usage, host.used("PROVIDER").usage)
    )
    assert native.input_tokens == 1000
    assert provider.input_tokens > 0
    assert used.input_tokens == native.input_tokens + provider.input_tokens
    assert used.output_tokens == native.output_tokens + provider.output_tokens
    assert used.cost == pytest.approx(native.cost + provider.cost)
    assert failed.compaction_failed.model == host.model
    assert host.ended_once()


def test_xi3_other_models_and_other_sessions_of_the_endpoint_are_told_apart(world: World) -> None:
    world.fake.script = [Does("not_found")]
    host = NativeHost(world.client).ready()
    host.fold()
    second = NativeHost(world.client).ready()
    assert source_of(second.fold()) == "PROVIDER", "remembered over sessions"
    (said,) = [e.warning.message for e in second.events_of("WARNING")]
    assert " has no compaction of its own there: " in said
    assert said.endswith(" answered 404")
    assert len(world.compactions) == 1
    assert source_of(NativeHost(world.client, "claude").ready().fold()) == "NATIVE", "of another endpoint"


def test_xi3_after_a_week_it_is_asked_again(world: World) -> None:
    world.fake.script = [Does("not_found")]
    host = NativeHost(world.client).ready()
    host.fold()
    world.now += 6 * 86_400
    assert source_of(host.filled(8).fold()) == "PROVIDER"
    world.now += 2 * 86_400
    assert source_of(host.filled(8).fold()) == "NATIVE"


def test_xi4_a_chat_completion_is_no_compaction(world: World) -> None:
    """It was answered, and paid for: the usage counts."""
    world.fake.script = [Does("chat_completion")]
    host = NativeHost(world.client).ready()
    falls_through(world, host, compactions=1)
    used = host.used()
    assert (used.calls, used.folds) == (1, 0)
    assert used.usage.input_tokens > 0


@pytest.mark.parametrize("way", ["claude", "edited"])
@pytest.mark.parametrize("what", ["null", "hollow", "refusal", "length"])
def test_xi5_a_block_without_content_is_never_stored(world: World, way: str, what: str) -> None:
    """Null is a no-op, an empty string illegal to send back: this fold failed, the capability is there."""
    world.fake.script = [Does(what)]
    host = NativeHost(world.client, way).ready()
    stays(world, host, "REWRITE_REJECTED")
    assert not any(r.HasField("provider_compaction") for r in host.archive())
    assert host.used().usage.input_tokens > 0, "what failed is paid for too"
    assert source_of(host.fold()) == "NATIVE"


@pytest.mark.parametrize("way", ["claude", "edited"])
def test_xi6_the_header_follows_the_content(world: World, way: str) -> None:
    """Every request that holds the block names its beta, and none that does not."""
    host = NativeHost(world.client, way).ready()
    assert not host.ask("r0", user("before")).request_headers
    host.record("r0", host.answer(host.ask("r0"), assistant("Yes."), finish=compaction_pb2.RUN_OUTCOME_COMPLETED))
    host.fold()
    beta = {"claude": "compact-2026-09-04", "edited": "compact-2026-01-12"}[way]
    for n in range(3):
        prepared = host.ask(f"r{n + 1}", user("go on"), supersede_open_run=True)
        assert dict(prepared.request_headers) == {"anthropic-beta": beta}
        edits = json.loads(prepared.rendered_json).get("context_management", {}).get("edits", [])
        assert [e["type"] for e in edits] == (["compact_20260112"] if way == "edited" else [])
        assert all(e["trigger"]["value"] > 200_000 for e in edits), "the provider folds nothing behind our back"


@pytest.mark.parametrize("way", WAYS)
def test_xi6_another_route_gets_no_item(world: World, way: str) -> None:
    host = NativeHost(world.client, way).ready()
    host.fold()
    prepared = host.ask("r1", user("go on"), model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT)
    assert not prepared.request_headers
    assert "compaction" not in {m.get("type") for m in json.loads(prepared.rendered_json)}
    assert b"encrypted_content" not in prepared.rendered_json
    assert b"signature" not in prepared.rendered_json
    assert host.kinds()[0] == "compaction_summary"


@pytest.mark.parametrize("way", ["claude", "edited"])
@pytest.mark.parametrize("models", ["unable", "untold", "not_found"])
def test_xi7_a_gateway_that_does_not_say_that_it_can_is_not_paid_for_it(world: World, way: str, models: str) -> None:
    world.fake.models = Does(models)
    host = NativeHost(world.client, way).ready()
    falls_through(world, host, compactions=0)
    assert host.used().usage.input_tokens == 0


@pytest.mark.parametrize("what", ["ordinary", "no_item", "unsigned", "two_items", "not_taken"])
def test_xi7_one_that_says_so_and_cannot_is_paid_once(world: World, what: str) -> None:
    world.fake.script = [Does(what)]
    host = NativeHost(world.client, "claude").ready()
    falls_through(world, host, compactions=1)
    if what == "ordinary":
        assert host.used().usage.input_tokens > 0, "an ordinary completion was billed"


def test_xi7_the_edit_that_was_not_triggered_says_nothing_against_the_capability(world: World) -> None:
    world.fake.script = [Does("untriggered")]
    host = NativeHost(world.client, "edited").ready()
    assert source_of(host.fold()) == "PROVIDER"
    again = NativeHost(world.client, "edited").ready()
    assert source_of(again.fold()) == "NATIVE"


def test_xi7_the_edit_that_went_on_writing_gave_its_block_all_the_same(world: World) -> None:
    world.fake.script = [Does("went_on")]
    host = NativeHost(world.client, "edited").ready()
    assert source_of(host.fold()) == "NATIVE"
    assert json.loads(host.item().item_json)["type"] == "compaction"


@pytest.mark.parametrize("way", WAYS)
def test_xi8_system_rows_that_stay_are_in_the_call(world: World, way: str) -> None:
    """Another system prompt than the live turn's would miss the cache and tell of another task."""
    host = NativeHost(world.client, way)
    host.append({"role": "system", "content": "You are careful."})
    host.ready()
    live = json.loads(host.ask("r1", user("go on")).rendered_json)
    host.fold()
    name = "instructions" if way == "openai" else "system"
    assert world.compactions[0].body[name] == live[name] == "You are careful."


def test_compaction_unavailable_is_tried_again(world: World) -> None:
    world.fake.script = [Does("compaction_unavailable", headers={"retry-after": "0"})]
    host = NativeHost(world.client, "claude", summary={"retries": 1}).ready()
    assert source_of(host.fold()) == "NATIVE"
    assert len(world.compactions) == 2


@pytest.mark.parametrize(("way", "what"), [("openai", "context_exceeded"), ("claude", "context_exceeded"),
                                           ("claude", "window")])  # fmt: skip
def test_a_history_that_is_too_large_for_the_call_is_the_next_ones(world: World, way: str, what: str) -> None:
    """To preserve it would end the session: it only grows, and the call never fits again."""
    world.fake.script = [Does(what)]
    host = NativeHost(world.client, way).ready()
    assert source_of(host.fold()) == "PROVIDER"
    assert source_of(NativeHost(world.client, way).ready().fold()) == "NATIVE", "nothing is remembered against it"


def test_a_typed_refusal_of_the_request_says_nothing_against_the_capability(world: World) -> None:
    world.fake.script = [Does("unanswered")]
    host = NativeHost(world.client, "claude").ready()
    stays(world, host)
    assert source_of(host.fold()) == "NATIVE"
