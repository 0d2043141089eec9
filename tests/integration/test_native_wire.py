"""Every way in which a provider's own compaction answers, at each of the three, as an automatic fold (§12, S1, S2, C5).

A fold ends in one event that names who wrote, the history is untouched unless it committed, and nobody is paid for a
second call within the cooldown. What each answer is about stands in ``tests/faults/test_i_native.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, policy_pb2, row_pb2
from google.protobuf.duration_pb2 import Duration

from tests.decisions.table import marks
from tests.support.native import LINE, WAYS, NativeHost, World, world_of
from tests.support.providers import SHAPES, Does
from tests.support.requests import user

THRESHOLD = {"openai": 1_800, "claude": 1_800, "edited": 60_000}
"""Below what ``NativeHost.ready`` appends; the edit needs 50 000 tokens that fold."""
COOLDOWN, ASKED = 600, 1800
NOT_FOUND = Does("not_found")

ANSWERS: list[tuple[str, str, Does, Does, dict[str, str]]] = [
    # (rule, case, what the compaction does, what the Models API does, by way: who writes, else the failure)
    ("N1", "an item", Does(), Does(), dict.fromkeys(WAYS, "NATIVE")),
    ("N3", "no item", Does("no_item"), Does(), dict.fromkeys(WAYS, "PROVIDER")),
    ("N3", "two items", Does("two_items"), Does(), dict.fromkeys(WAYS, "PROVIDER")),
    ("N3", "404", NOT_FOUND, Does(), dict.fromkeys(WAYS, "PROVIDER")),
    ("N3", "404 of the probe", Does(), NOT_FOUND, {"claude": "PROVIDER", "edited": "PROVIDER"}),
    ("N3", "content null", Does("null"), Does(),
     {"openai": "PROVIDER", "claude": "SUMMARY_REJECTED", "edited": "SUMMARY_REJECTED"}),
    ("N3", "content empty", Does("hollow"), Does(),
     {"openai": "PROVIDER", "claude": "SUMMARY_REJECTED", "edited": "SUMMARY_REJECTED"}),
    ("N3", "a chat completion", Does("chat_completion"), Does(), {"openai": "PROVIDER"}),
    ("N3", "an ordinary answer", Does("ordinary"), Does(), {"claude": "PROVIDER", "edited": "PROVIDER"}),
    ("N3", "not taken", Does("not_taken"), Does(), {"claude": "PROVIDER", "edited": "PROVIDER"}),
    ("N3", "unsigned", Does("unsigned"), Does(), {"claude": "PROVIDER"}),
    ("N3", "not triggered", Does("untriggered"), Does(), {"edited": "PROVIDER"}),
    ("N3", "over the window", Does("context_exceeded"), Does(), dict.fromkeys(WAYS, "PROVIDER")),
    ("N3", "the window ran full", Does("window"), Does(), {"claude": "PROVIDER", "edited": "PROVIDER"}),
    ("S5", "refused", Does("refusal"), Does(), {"claude": "SUMMARY_REJECTED", "edited": "SUMMARY_REJECTED"}),
    ("S5", "stopped for its length", Does("length"), Does(),
     {"claude": "SUMMARY_REJECTED", "edited": "SUMMARY_REJECTED"}),
    ("S5", "a server error", Does("server_error"), Does(), dict.fromkeys(WAYS, "SUMMARIZER_FAILED")),
    ("S5", "the wrong key", Does("unauthorized"), Does(), dict.fromkeys(WAYS, "SUMMARIZER_FAILED")),
    ("S5", "cut off", Does("cut"), Does(), dict.fromkeys(WAYS, "SUMMARIZER_FAILED")),
    ("S5", "an empty body", Does("empty"), Does(), dict.fromkeys(WAYS, "SUMMARIZER_FAILED")),
    ("S5", "slow", Does("stall", gate=threading.Event(), seconds=4.0), Does(),
     dict.fromkeys(WAYS, "SUMMARIZER_TIMEOUT")),
    ("C5", "a rate limit with Retry-After", Does("rate_limited", headers={"Retry-After": str(ASKED)}), Does(),
     dict.fromkeys(WAYS, "SUMMARIZER_FAILED")),
]  # fmt: skip
CASES = [
    (rule, f"{way} {case}", way, does, models, outcome)
    for rule, case, does, models, outcomes in ANSWERS
    for way, outcome in outcomes.items()
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of(tmp_path_factory.mktemp("native-wire")) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fresh()
    world.now += 8 * 86_400  # What was learned of a capability is learned anew.


def asked(host: NativeHost, number: int) -> Any:
    return host.ask(f"r{number}", user(LINE.format(n=number)), supersede_open_run=True)


@pytest.mark.parametrize(("way", "does", "models", "outcome"), marks(CASES))
def test_an_answer(world: World, way: str, does: Does, models: Does, outcome: str) -> None:
    assert does.what in SHAPES[WAYS[way][2]] or does.what in ("cut", "empty", "stall")
    summary = {"timeout": Duration(seconds=1 if does.what == "stall" else 20)}
    host = NativeHost(
        world.client, way, summary=summary, auto_compact_threshold=THRESHOLD[way], min_boundaries_between=0
    ).ready()
    world.fake.script, world.fake.models = [does] if models.what == "success" else [], models
    prepared = asked(host, 0)

    failed = outcome.startswith("SUMMAR")
    completed, failures = (host.events_of(f"COMPACTION_{kind}") for kind in ("COMPLETED", "FAILED"))
    assert host.ended_once()
    assert (len(completed), len(failures)) == (1 - failed, int(failed)), "§13: one terminal event"
    assert len(world.compactions) == (models.what == "success")
    assert host.used().calls == 1, "the attempt is counted, made or not (S5)"
    if not failed:
        record = completed[0].compaction_completed.record
        assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
        assert row_pb2.SummarySource.Name(record.summary_source) == f"SUMMARY_SOURCE_{outcome}"
        assert host.kinds()[0] == ("provider_compaction" if outcome == "NATIVE" else "compaction_summary")
        assert world.fake.calls == len(world.compactions) + (outcome == "PROVIDER")
        assert not host.get().cadence.HasField("cooldown_until"), "what is not there has not failed (N3)"
        assert host.sound()
        return
    told = failures[0].compaction_failed
    assert prepared.action == compaction_pb2.ACTION_SEND
    assert compaction_pb2.FailureKind.Name(told.failure) == f"FAILURE_KIND_{outcome}"
    assert told.summary_source == row_pb2.SUMMARY_SOURCE_NATIVE
    assert host.offsets() == list(range(1, len(host.offsets()) + 1)), "S2: PRESERVE"
    _cools(world, host, ASKED if does.headers else COOLDOWN)
    assert host.sound()


def _cools(world: World, host: NativeHost, seconds: int) -> None:
    """C5: nobody is called before the cooldown ends, and the provider's compaction once after."""
    start = world.now
    skips = {asked(host, number).skip for number in range(1, 4)}
    world.now = start + seconds - 1
    skips.add(asked(host, 5).skip)
    assert skips == {compaction_pb2.SKIP_REASON_COOLDOWN}
    assert world.fake.calls == 1
    world.now = start + seconds + 1
    assert asked(host, 6).fold.summary_source == row_pb2.SUMMARY_SOURCE_NATIVE
    assert world.fake.calls == 2


def test_c5_the_longest_retry_after_of_those_that_were_asked_holds(world: World) -> None:
    """Under NEXT the provider is asked after its compaction failed: what it said counts too."""
    host = NativeHost(
        world.client, summary={"on_failure": policy_pb2.ON_FAILURE_NEXT}, auto_compact_threshold=THRESHOLD["openai"]
    ).ready()
    world.fake.script = [Does("server_error"), Does("rate_limited", headers={"Retry-After": str(ASKED)})]
    assert asked(host, 0).fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
    assert world.fake.calls == 2
    assert host.get().cadence.cooldown_until.seconds == int(world.now) + ASKED
    assert host.ended_once()


def test_c5_a_manual_fold_ends_the_cooldown_also_where_it_learns_that_there_is_no_compaction(world: World) -> None:
    """N3: what is not there has not failed, and what the provider wrote in its place is a success."""
    host = NativeHost(world.client, auto_compact_threshold=THRESHOLD["openai"]).ready()
    world.fake.script = [Does("server_error"), NOT_FOUND]
    assert asked(host, 0).skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
    assert host.get().cadence.HasField("cooldown_until")
    assert host.fold().summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert not host.get().cadence.HasField("cooldown_until")
