"""What folding costs: the summarizing call, and the cache of the provider that serves the agent.

XJ1 to XJ4 look at the wire; how each provider is sent the appended request is in ``test_prompt_cache``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, policy_pb2

from tests.decisions.script import Script
from tests.integration.test_prompt_cache import APPEND, KINDS, SEPARATE, Agent, client, fake, fresh, rows_of
from tests.support.providers import FakeProvider
from tests.support.server import Client, running_server

__all__ = ["client", "fake", "fresh"]

LONG = "The queue drops messages when the consumer restarts before it has acknowledged them. " * 6


def shared(sent: Any, asked: Any) -> float:
    """Share of a request's bytes that the one before it had at its beginning."""
    one, two = (json.dumps(messages, sort_keys=True)[:-1] for messages in (sent, asked))
    same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return same / len(two)


@pytest.mark.parametrize("kind", ["openai", "openai_responses", "google"])
def test_xj1_xj2_the_call_reads_the_cache_of_the_live_request(client: Client, fake: FakeProvider, kind: str) -> None:
    """Nine tenths of what it sends, system rows and tools with it, is what the provider has just been sent."""
    sent, folded = Agent(client, kind).until_folded()
    (call,) = fake.received
    assert shared(rows_of(kind, sent), rows_of(kind, call.body)) > 0.85
    assert call.body["tools"]
    assert folded.fold.usage.cached_input_tokens > 0


def test_xj1_a_call_of_its_own_shares_nothing_and_is_the_default(client: Client, fake: FakeProvider) -> None:
    sent, _ = Agent(client, "openai", summary={"prompt_cache": SEPARATE}).until_folded()
    assert shared(rows_of("openai", sent), rows_of("openai", fake.received[0].body)) < 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [SEPARATE, APPEND])
def test_xj3_xj4_no_call_names_a_cache_key_or_marks_what_is_read_once(
    client: Client, fake: FakeProvider, kind: str, mode: policy_pb2.PromptCache.ValueType
) -> None:
    Agent(client, kind, summary={"prompt_cache": mode}).until_folded(tools=[])
    for call in fake.received:
        assert "cache" not in json.dumps(
            {k: v for k, v in call.body.items() if k not in ("messages", "input", "contents")}
        )
        assert "cache_control" not in json.dumps(call.body)


def test_xj5_what_is_stable_comes_before_the_summary(tmp_path: Path) -> None:
    """System rows and earlier pins stand first and are sent unchanged, fold after fold; the host is told how far."""
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "encoding": "o200k_base"}}))
    with running_server(tmp_path, {"catalog": str(catalog)}) as server:
        host = Script(server, "s", output_reserve_tokens=100, retention={"turns": 1, "messages": 1})
        host.append({"role": "system", "content": "The rules of the house. " * 20})
        host.append({"role": "system", "content": "The list of the tools. " * 20})
        stable, folds = host.rendered()[:2], 0
        for n in range(40):
            prepared = host.turn(f"r{n}", LONG, LONG)
            if prepared.HasField("fold"):
                folds += 1
                assert prepared.stable_prefix_rows >= 2
                kinds = [r.WhichOneof("body") for r in host.active()]
                assert kinds[:3] == ["system", "system", "compaction_summary"]
                assert kinds.count("compaction_summary") == 1
            assert host.rendered()[:2] == stable
        assert folds >= 2


def test_xj6_a_threshold_in_tokens_holds_whatever_the_window(tmp_path: Path) -> None:
    """Four fifths of a window of a million would be paid for again at every call: T may be set by what that costs."""
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 1_000_000, "encoding": "o200k_base"}}))
    with running_server(tmp_path, {"catalog": str(catalog)}) as server:
        host = Script(server, "s", auto_compact_threshold=3_000, output_reserve_tokens=100)
        sizes = []
        for n in range(40):
            prepared = host.turn(f"r{n}", LONG, LONG)
            sizes.append(prepared.pressure_sent.forecast_tokens or prepared.pressure_checked.forecast_tokens)
            assert prepared.action in (compaction_pb2.ACTION_SEND, compaction_pb2.ACTION_SEND_FOLDED)
        assert max(sizes) < 3_000
        assert host.verify().ok
