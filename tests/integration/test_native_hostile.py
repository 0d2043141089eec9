"""Items of a provider's own compaction of every shape, through the whole server (N1-N3, V6)."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

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


SHAPES = {
    "content of another type": (body({**ITEM, "encrypted_content": True}), "PROVIDER"),
    "output of another type": (b'{"object": "response.compaction", "output": "compaction"}', "PROVIDER"),
    "a list for a type": (body({**ITEM, "type": ["compaction"]}), "PROVIDER"),
    "scalars beside the item": (body(1, None, "x", True, ITEM), "PROVIDER"),
    "a deep field": (body({**ITEM, "extra": deep(700)}), "NATIVE"),
    "unknown items beside": (body({"type": "new", "x": 1}, ITEM), "NATIVE"),
    "a NUL": (body({**ITEM, "encrypted_content": "\x00x"}), "NATIVE"),
    "ten megabytes": (body({**ITEM, "encrypted_content": "x" * 10_000_000}), "NOTHING_TO_FOLD"),
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
