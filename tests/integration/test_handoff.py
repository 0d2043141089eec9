"""S7: the mechanical handoff through the whole server, where a provider's call fails for its size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foldline import _core
from foldline.v1 import compaction_pb2, policy_pb2, row_pb2, session_service_pb2

from tests.integration.test_provider_summaries import LINE, World, due, ended_once, events, near, settings, spent, turn
from tests.support.providers import HEADINGS, Does, FakeProvider
from tests.support.requests import assistant, calls, result, user
from tests.support.server import running_server

NEXT, RESCUE = policy_pb2.ON_FAILURE_NEXT, policy_pb2.ON_FAILURE_RESCUE
SHAPES = json.loads((Path(__file__).parents[1] / "data" / "providers" / "openai.json").read_text())
LENIENT = json.dumps(SHAPES["context_exceeded"]).encode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("handoff")
    with FakeProvider() as fake:
        made = World(None, fake)  # type: ignore[arg-type]
        with running_server(folder, settings(folder, fake), clock=lambda: made.now) as made.client:
            yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fake.script.clear()
    world.fake.received.clear()
    world.fake.otherwise = Does("context_exceeded")


def speech() -> row_pb2.Row:
    block = row_pb2.TranscriptBlock(
        text="I may have said this.", source=row_pb2.TRANSCRIPT_SOURCE_SPOKEN_UNMEASURED
    )  # fmt: skip
    return row_pb2.Row(assistant=row_pb2.AssistantRow(content=[row_pb2.ContentBlock(transcript=block)]))


@pytest.mark.parametrize(
    "does",
    [
        Does("context_exceeded"), Does("too_large"), Does("too_large", body=b""), Does("context_exceeded", status=500),
        Does("server_error", status=400, body=b'{"error": {"code": 400, "type": "exceed_context_size_error"}}'),
        Does("success", body=LENIENT),
    ],
    ids=["openai", "413", "413-without-a-word", "500", "llama.cpp", "200-with-an-error"],
)  # fmt: skip
def test_s7_a_size_error_of_the_call_leaves_a_handoff(world: World, does: Does) -> None:
    """Also where a failure preserves the history otherwise (S2): asking again with more rows cures nothing (XB3)."""
    world.fake.otherwise = does
    host = near(world.client)
    folded = due(host)
    assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
    record = folded.fold
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
    assert record.bound.kind == compaction_pb2.SOURCE_BOUND_KIND_WHOLE
    places = [record.summary_text.index(f"## {heading}") for heading in HEADINGS]
    assert places == sorted(places)
    assert world.fake.calls == 1
    assert (spent(host).calls, spent(host).folds) == (1, 0), "the call is paid for"
    assert (spent(host, "MECHANICAL").calls, spent(host, "MECHANICAL").folds) == (1, 1)
    (event,) = events(host, "COMPACTION_COMPLETED")
    assert event.compaction_completed.record.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
    assert host.get().cadence.HasField("cooldown_until"), "the provider cools (C5)"
    assert ended_once(host)
    assert host.verify().ok


@pytest.mark.parametrize("what", ["blank", "server_error", "rate_limited", "refusal", "length"])
@pytest.mark.parametrize("on_failure", [policy_pb2.ON_FAILURE_PRESERVE, NEXT])
def test_s7_no_other_failure_does(world: World, what: str, on_failure: policy_pb2.OnFailure.ValueType) -> None:
    world.fake.otherwise = Does(what)
    host = near(world.client, summary={"on_failure": on_failure})
    folded = due(host)
    assert folded.HasField("fold") == (on_failure == NEXT)
    assert folded.fold.summary_source != row_pb2.SUMMARY_SOURCE_MECHANICAL
    assert not spent(host, "MECHANICAL").calls


def test_s7_next_asks_the_extractive_source_first(world: World) -> None:
    host = near(world.client, summary={"on_failure": NEXT})
    assert due(host).fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
    assert not spent(host, "MECHANICAL").calls


def test_s7_rescue_asks_it_first_only_where_it_may_write(world: World) -> None:
    host = near(world.client, summary={"on_failure": RESCUE})
    assert due(host).fold.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
    host = near(world.client, turns=45, summary={"on_failure": RESCUE})
    assert due(host).fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE


@pytest.mark.parametrize("place", ["folds", "stays"])
def test_s7_speech_that_nobody_measured_fails_the_attempt(world: World, place: str) -> None:
    """Anywhere in the active list: also where the row would stay."""
    host = near(world.client, turns=28)
    if place == "folds":
        host = near(world.client, turns=1)
        host.rows(speech())
        host.append(*(m for n in range(28) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
    else:
        host.rows(speech())
    before = host.offsets()
    prepared = due(host)
    assert prepared.failure == compaction_pb2.FAILURE_KIND_UNMEASURED_TRANSCRIPT
    assert host.offsets()[: len(before)] == before
    (event,) = events(host, "COMPACTION_FAILED")
    assert event.compaction_failed.failure == compaction_pb2.FAILURE_KIND_UNMEASURED_TRANSCRIPT
    assert (spent(host).calls, spent(host, "MECHANICAL").calls) == (1, 0)
    assert ended_once(host)


def test_s7_speech_that_a_summary_holds_is_no_obstacle(world: World) -> None:
    nothing, extractive = policy_pb2.RetentionPolicy(turns=0, messages=0), policy_pb2.SUMMARY_SOURCE_POLICY_EXTRACTIVE
    host = near(world.client, turns=4, retention=nothing, summary={"source": extractive})
    host.rows(speech())
    assert "I may have said this." in host.compact().summary_text
    provider = policy_pb2.SummaryPolicy(source=policy_pb2.SUMMARY_SOURCE_POLICY_PROVIDER)
    world.client.session.UpdateSession(
        session_service_pb2.UpdateSessionRequest(session_id=host.id, policy=policy_pb2.Policy(summary=provider))
    )
    assert due(host, 100, 60).fold.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL


def test_s7_what_it_holds(world: World) -> None:
    """First and last request verbatim, ledger, files, errors, counts, the way to the rest; V6's budget holds."""
    host = near(world.client, turns=0, retention=policy_pb2.RetentionPolicy(turns=0, messages=0), cooldown=None)
    host.append(user("Mend the parser in src/parser.py. Never touch `config/app.toml`."))
    for n in range(12):
        host.append(
            calls(f"c{n}"), result(f"c{n}", f"Error E{4700 + n}: no such entry in src/part_{n}.py" + " x" * 150)
        )
    host.append(
        assistant("The parser is mended."), user("Now write the release notes."), assistant("They are written.")
    )
    record = host.compact()
    text = record.summary_text
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
    for words in (
        '"Mend the parser in src/parser.py. Never touch `config/app.toml`."', '"Now write the release notes."',
        '[#1]: "Never touch `config/app.toml`."', "12 calls", "E4711", "src/part_11.py",
        "2 user requests", "memory_search", "read_result",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(("limit", "max_tokens"), [(300, 4096), (2048, 280), (90, 4096)])
def test_s7_never_over_its_budget_or_v6s(world: World, limit: int, max_tokens: int) -> None:
    summary: dict[str, Any] = {"mechanical_tokens": limit, "max_tokens": max_tokens, "appendix_tokens": 0}
    host = near(world.client, summary=summary)
    record = due(host).fold
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
    assert _core.count_tokens(record.summary_text, "o200k_base") <= min(limit, max_tokens)


def test_s7_the_next_fold_carries_what_a_handoff_says(world: World) -> None:
    host = near(world.client, turns=1)
    host.append(user("You must never drop the orders table."), assistant("Understood."))
    host.append(
        *(m for n in range(28) for m in (user(f"{n} " + "Go on. " * 60), assistant(f"{n} " + "So it is. " * 60)))
    )
    assert due(host).fold.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
    world.now += 3600
    world.fake.otherwise = Does()
    folded = due(host, 100, 60)
    assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert '"You must never drop the orders table."' in folded.fold.summary_text
    assert "put together without a model" in world.fake.received[-1].user


def test_s7_a_provider_that_cools_is_not_asked_so_that_nothing_stands_in(world: World) -> None:
    host = near(world.client)
    due(host)
    skipped = due(host, 100, 60)
    assert skipped.skip == compaction_pb2.SKIP_REASON_COOLDOWN
    assert world.fake.calls == 1
    assert turn(host, 300).skip == compaction_pb2.SKIP_REASON_COOLDOWN
