"""Unicode. XF5 is in ``tests/unit/formats/test_reading.py``, XF6 in ``test_memory_backfill``."""

from __future__ import annotations

import json

import pytest
from foldline.v1 import compaction_pb2, row_pb2

from tests.decisions.script import Script
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client

FAMILY = "👩‍👩‍👧 "
WHOLE, CHAT = compaction_pb2.REPLY_MODE_WHOLE, row_pb2.FORMAT_OPENAI_CHAT


def sound(text: str) -> bool:
    text.encode("utf-8")
    return "\ufffd" not in text


@pytest.mark.parametrize("lead", range(0, 9, 2))
@pytest.mark.parametrize("cut", [1, 2])
def test_xf1_xf2_a_result_is_cut_at_a_character_and_stays_so(client: Client, name: str, lead: int, cut: int) -> None:
    """Emoji to both sides of every border that a cut may fall on; each later request carries the same text."""
    host = Script(client, name, auto_compact=False, output_reserve_tokens=1_000, bounding={"cut": cut})
    first = host.prepare("r1", user("read"))
    text = "x" * lead + FAMILY * 6_000
    prepared = host.prepare(
        "r1", result("c", text), previous_answer=host.answer(first, calls("c")), reply=WHOLE, format=CHAT
    )
    (bound,) = prepared.bounded
    assert sound(bound.text)
    sent = json.loads(prepared.rendered_json)[2]["content"]
    assert sound(sent)
    again = host.prepare("r1", user("go on"), reply=WHOLE, format=CHAT)
    assert sound(json.loads(again.rendered_json)[2]["content"])


def test_xf2_late_arguments_and_summaries_are_cut_at_a_character(client: Client, name: str) -> None:
    host = Script(client, name, auto_compact=False, retention={"turns": 0, "messages": 0})
    made = {"id": "c", "type": "function", "function": {"name": "read", "arguments": json.dumps({"q": FAMILY * 2_000})}}
    host.append(user(FAMILY * 300), {"role": "assistant", "content": None, "tool_calls": [made]})
    host.append(user(FAMILY * 300), assistant(FAMILY * 300))
    record = host.compact()
    assert sound(record.summary_text)
    host.append(result("c", "done"))
    assert all(sound(json.dumps(m, ensure_ascii=False)) for m in host.rendered())


def test_xf4_memory_is_cut_into_chunks_at_characters(client: Client, name: str) -> None:
    host = Script(client, name, auto_compact=False, retention={"turns": 0, "messages": 0}, memory={"chunk_tokens": 16})
    host.append(user("family tree " + FAMILY * 400), assistant("ok " + FAMILY * 40))
    host.compact()
    hits = host.search("family tree", limit=20).hits
    assert hits
    assert all(sound(h.text) for h in hits)
