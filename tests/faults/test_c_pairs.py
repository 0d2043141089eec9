"""Orphaned calls and results, parallel calls, held by what the endpoints refuse (R5, V4, F6).

XC18 (a server tool's result without its call) is in ``tests/unit/engine/test_render.py``. XC19 is XC11 in another
system.
"""

from __future__ import annotations

from typing import Any

import pytest
from foldline.v1 import compaction_pb2, event_pb2, row_pb2, session_service_pb2

from tests.decisions.script import Script
from tests.support.requests import user
from tests.support.server import Client, refused
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}
FORMATS = {
    row_pb2.FORMAT_OPENAI_CHAT: openai_chat_faults,
    row_pb2.FORMAT_ANTHROPIC_MESSAGES: anthropic_faults,
    row_pb2.FORMAT_OPENAI_RESPONSES: openai_responses_faults,
    row_pb2.FORMAT_GOOGLE_GENAI: lambda request: google_faults(request, signed=False),
}


def assert_sendable(host: Script) -> None:
    """No format is refused, and the session verifies."""
    for fmt, faults in FORMATS.items():
        assert faults(host.rendered(fmt)) == [], row_pb2.Format.Name(fmt)
    assert host.verify().ok


LISTS = [
    # (fault, what happened, script)
    ("xc1", "a result whose call was summarized", "U A(c) R(c) U A # U"),
    ("xc2", "an interrupted run, folded later", ">r1:U A(c)@r1 >r1 =r1:cancelled U A # U"),
    ("xc2", "its result comes after the fold", ">r1:U A(c)@r1 >r1 =r1:cancelled U A # R(c)"),
    ("xc4", "fold of a fold, results on both sides", "U A(c) R(c) A(d) U # R(d) U A(e) R(e) U A # U"),
    ("xc5", "the live turn is a result", ">r1:U A(c)@r1 R(c)@r1 >r1 A(d)@r1 R(d)@r1 #"),
    ("xc8", "the call folds before its result comes", "U A(c) U A # R(c)"),
    ("xc8", "and its id is used again", "U A(c) U A # R(c) A(c) R(c)"),
    ("xc13", "a batch of three, cut inside", "U A U A(c,d,e) R(c) R(d) R(e) U #"),
    ("xc14", "a call that waits for a person folds; the answer comes later", ">r1:U A(ask)@r1 =r1 U A # R(ask) U"),
    ("xc15", "a call that nobody will answer", ">r1:U A(dead)@r1 =r1:failed U A(c) R(c) A # U"),
]


@pytest.mark.parametrize("script", [s[2] for s in LISTS], ids=[f"{s[0]}-{s[1].replace(' ', '-')}" for s in LISTS])
def test_xc1_xc2_xc4_xc5_xc8_xc13_xc14_xc15_every_format_takes_the_request(
    client: Client, name: str, script: str
) -> None:
    host = Script(client, name, **PLAIN)
    for word in script.split():
        host.play(word)
        if host.active():
            assert_sendable(host)


def test_xc5_no_result_is_folded_into_a_message_as_a_result(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play(">r1:U A(c)@r1 R(c)@r1 >r1 A(d)@r1 R(d)@r1 #")
    summary = next(m for m in host.rendered() if "Summary of the work" in str(m["content"]))
    assert summary["role"] == "user"
    assert isinstance(summary["content"], str)
    assert "tool_call_id" not in summary["content"]


@pytest.mark.parametrize("messages", range(13))
def test_xc11_xc13_a_tail_of_any_length_is_widened_to_whole_units(client: Client, name: str, messages: int) -> None:
    """keep last N: batches of three, repeated ids, injected context and a pause on the border."""
    host = Script(client, name, **PLAIN | {"retention": {"turns": 0, "messages": messages}})
    host.play("U A(c,d,e) R(c) R(d) R(e) I U A(c) R(c) A@x^ A@x> U A(f,g) R(g) R(f) A #")
    assert_sendable(host)


def test_xc9_xc12_an_edit_cannot_leave_half_of_a_pair(client: Client, name: str) -> None:
    """The deletion that takes the call and leaves the result is refused with the rows that move as one."""
    host = Script(client, name, **PLAIN).play("U A(c,d) R(c) R(d) U")
    edit = session_service_pb2.EditRowsRequest(session_id=name, first_offset=2, last_offset=2)
    refusal = refused(client.session.EditRows, edit)
    assert (refusal.reason, refusal.metadata["offsets"]) == ("EDIT_SPLITS_UNIT", "2,3,4")
    edit.last_offset = 4
    client.session.EditRows(edit)
    assert_sendable(host)


def test_xc14_the_answer_to_a_folded_question_is_taken_and_named(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play(">r1:U A(ask)@r1 =r1 U A # R(ask)")
    assert host.active()[-1].tool_result.late
    assert "[Late result of the call read (ask)" in str(host.rendered()[-1]["content"])


def test_xc15_a_dead_call_blocks_no_fold_and_the_ledger_says_so(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play(">r1:U A(dead)@r1 >r1 A(c)@r1 R(c)@r1 >r1 A(d)@r1 R(d)@r1 #")
    assert host.listing() == "1 K 5 6"
    assert 'read({"n": 2}): no result came' in str(host.rendered()[1]["content"])


def test_xc17_one_turn_of_many_calls_folds_inside_the_turn(client: Client, name: str) -> None:
    """Rounds count, not user turns."""
    host = Script(client, name, min_boundaries_between=0, output_reserve_tokens=100)
    host.append(user("Look into all of it."), run_id="r1")
    for n in range(24):
        host.boundary("r1", "" if n == 0 else f"R(c{n - 1})@r1")
        host.play(f"A(c{n})@r1")
    done = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]
    assert done
    assert done[0].compaction_completed.record.scope == compaction_pb2.FOLD_SCOPE_STAGE_2
    assert_sendable(host)
