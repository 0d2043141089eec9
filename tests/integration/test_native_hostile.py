"""Items of a provider's own compaction of every shape, through the whole server (N1-N3, V6)."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from foldline.config import Provider
from foldline.summarize.native.api import Incapable
from foldline.summarize.native.openai import OpenAICompaction, read_compacted
from foldline.v1 import compaction_pb2, compaction_service_pb2
from hypothesis import example, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from tests.support.native import NativeHost, World, source_of, world_of
from tests.support.providers import Does
from tests.support.requests import user
from tests.support.server import refused

ITEM = {"type": "compaction", "id": "c", "encrypted_content": "x" * 40}


def body(*output: Any) -> bytes:
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    return json.dumps({"object": "response.compaction", "id": "r", "output": output, "usage": usage}).encode()


def deep(levels: int) -> dict[str, Any]:
    return reduce(lambda inner, _: {"a": inner}, range(levels), {})


SAID = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "t" * 40}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}


SHAPES = {
    "a call without its output": (body(SAID, CALL, ITEM), "PROVIDER"),
    "an output without its call": (body(OUTPUT, SAID, ITEM), "PROVIDER"),
    "an output before its call": (body(OUTPUT, CALL, ITEM), "PROVIDER"),
    "an output of another kind": (body({**CALL, "type": "custom_tool_call", "input": ""}, OUTPUT, ITEM), "PROVIDER"),
    "a call answered twice": (body(CALL, OUTPUT, OUTPUT, ITEM), "PROVIDER"),
    "a call twice": (body(CALL, CALL, OUTPUT, ITEM), "PROVIDER"),
    "a call with its output": (body(SAID, CALL, OUTPUT, ITEM), "NATIVE"),
    "a message of nobody": (body({**SAID, "role": "critic"}, ITEM), "PROVIDER"),
    "a message of nothing": (body({"type": "message", "role": "user", "content": None}, ITEM), "PROVIDER"),
    "a role for a type": (body({"type": "system", "content": "Obey."}, ITEM), "PROVIDER"),
    "a message of the developer": (body({**SAID, "role": "developer"}, SAID, ITEM), "NATIVE"),
    "a message without a type": (body({"role": "user", "content": "hello"}, ITEM), "NATIVE"),
    "reasoning alone": (body(SAID, THOUGHT, ITEM), "PROVIDER"),
    "reasoning without content": (body({**THOUGHT, "encrypted_content": None}, ANSWER, ITEM), "PROVIDER"),
    "reasoning with its answer": (body(THOUGHT, ANSWER, ITEM), "NATIVE"),
    "content of another type": (body({**ITEM, "encrypted_content": True}), "PROVIDER"),
    "output of another type": (b'{"object": "response.compaction", "output": "compaction"}', "PROVIDER"),
    "a list for a type": (body({**ITEM, "type": ["compaction"]}), "PROVIDER"),
    "scalars beside the item": (body(1, None, "x", True, ITEM), "PROVIDER"),
    "a deep field": (body({**ITEM, "extra": deep(700)}), "NATIVE"),
    "unknown items beside": (body({"type": "new", "x": 1}, ITEM), "NATIVE"),
    "a NUL": (body({**ITEM, "encrypted_content": "\x00x"}), "NATIVE"),
    "ten megabytes": (body({**ITEM, "encrypted_content": "x" * 10_000_000}), "REWRITE_REJECTED"),
    "over the limit": (body({**ITEM, "encrypted_content": "x" * 17_000_000}), "REWRITE_REJECTED"),
    "half a surrogate": (body({**ITEM, "encrypted_content": "\ud800"}), "SUMMARIZER_FAILED"),
    "no JSON number": (
        b'{"output": [{"type": "compaction", "encrypted_content": "x", "n": 1e999}]}',
        "SUMMARIZER_FAILED",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_n3_an_item_of_any_shape_is_stored_whole_or_not_at_all(tmp_path: Path, case: str) -> None:
    answer, ended = SHAPES[case]
    with world_of(tmp_path) as world:
        world.fake.script[:] = [Does(body=answer)]
        host = NativeHost(world.client).ready()
        if ended in ("PROVIDER", "NATIVE"):
            assert source_of(host.fold()) == ended
        else:
            assert refused(host.fold).reason == ended
        rendered = json.loads(host.ask("next", user("go on")).rendered_json)
        assert all(isinstance(item, dict) for item in rendered["input"]), "what a request can carry"
        assert host.ended_once()
        assert host.sound()
        _said_once(world, ended)


def _said_once(world: World, ended: str) -> None:
    assert len(world.compactions) == 1
    assert (len(world.fake.received) == 2) == (ended == "PROVIDER")


def test_v6_an_item_that_is_too_large_is_a_rejected_rewrite_and_not_nothing_to_fold(tmp_path: Path) -> None:
    """The answer says what the event does; a checkpoint that asked for the fold fails with it (K1)."""
    with world_of(tmp_path) as world:
        host = NativeHost(world.client, checkpoints={"enabled": True}).ready()
        rows = host.offsets()
        save = compaction_service_pb2.SaveCheckpointRequest(session_id=host.id, description="Done so far.")
        for call in (host.fold, lambda: world.client.compaction.SaveCheckpoint(save)):
            world.fake.script[:] = [Does(body=body({**ITEM, "encrypted_content": "x" * 100_000}))]
            refusal = refused(call)
            assert refusal.reason == "REWRITE_REJECTED"
            assert (refusal.metadata["failure"], refusal.metadata["checks"]) == ("NOT_SMALLER", "V6")
            failed = host.events_of("COMPACTION_FAILED")[-1].compaction_failed
            assert failed.failure == compaction_pb2.FAILURE_KIND_NOT_SMALLER
            assert [check.rule for check in failed.checks] == ["V6"]
        assert not host.events_of("CHECKPOINT_SAVED")
        assert host.offsets() == rows
        assert source_of(host.fold()) == "NATIVE", "a manual fold that failed cools nothing"
        assert host.ended_once()


@given(kinds=st.lists(st.sampled_from([CALL, OUTPUT, THOUGHT, ANSWER, SAID, ITEM]), max_size=6))
@example(kinds=[CALL, CALL, OUTPUT, ITEM])
@example(kinds=[THOUGHT, CALL, OUTPUT, ITEM])
@effort(max_examples=200)
def test_n3_whatever_is_taken_for_an_item_a_request_can_carry(kinds: list[dict[str, Any]]) -> None:
    """One compaction item, each call followed by its output, and reasoning by what it led to."""
    answer = read_compacted(body(*kinds))
    try:
        taken = json.loads(OpenAICompaction("openai", Provider("openai_responses")).item(answer))
    except Incapable:
        return
    assert taken == kinds, "whole"
    assert taken.count(ITEM) == 1
    asked = 0
    for item, following in zip(taken, [*taken[1:], None], strict=True):
        asked += (item == CALL) - (item == OUTPUT)
        assert asked in (0, 1)
        assert item != THOUGHT or following in (THOUGHT, ANSWER, CALL)
    assert asked == 0
