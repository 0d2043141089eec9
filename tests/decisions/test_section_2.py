"""§2: what rows are, what may enter, and what a request is made of, as a host sees it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from foldline.engine.render import EARLIER_WORK, FIRST_MESSAGE, RUN_WORK
from foldline.v1 import row_pb2, session_service_pb2, warning_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}

KINDS = [
    # (rule, case, script, list after a fold of everything that may)
    ("§2 system", "folds only when superseded", "S U A S #", "1 K 4"),
    ("§2 system", "a later version of its key supersedes it", "S(k,1) U A S(k,2) #", "4 K"),
    ("§2 system", "other keys are other rows", "S(k,1) S(j,1) U A #", "1 2 K"),
    ("§2 notice", "folds", "N U A U A #", "K"),
    ("§2 injected context", "folds with its user row", "I U A #", "K"),
    ("§2 injected context", "stays with a user row that stays", "U A I U! A #", "K 3 4"),
    ("§2 injected context", "without one it stays with the last row of the request", "U A U I A! #", "K 5"),
    ("§2 injected context", "that is a notice here", "U A N! I A #", "K 3 4"),
    ("§2 assistant", "folds with its results", "U A(c) R(c) A #", "K"),
    ("§2 tool result", "an interim one folds with its call too", "U A(c) R(c)? R(c) U A #", "K"),
    ("§2 compaction summary", "folds by the next fold", "U A # U A #", "K"),
    ("R6", "a pin holds its whole unit", "U A(c)! R(c) U A #", "K 2 3"),
    ("R6", "set on any row of it", "U A(c) R(c)! U A #", "K 2 3"),
]


@pytest.mark.parametrize(("script", "listing"), marks(KINDS))
def test_what_folds_of_each_kind(client: Client, name: str, script: str, listing: str) -> None:
    host = Script(client, name, **PLAIN).play(script)
    # A summary takes an offset: rows behind it are numbered by the script, not by what folded.
    assert host.listing() == listing
    assert host.verify().ok


INDEXED = [
    # (rule, case, script, numbers of the rows that memory finds)
    ("§2 user", "is indexed", "U A #", {1, 2}),
    ("§2 tool result", "is indexed", "U A(c) R(c) A #", {1, 2, 3, 4}),
    ("§2 notice", "is not", "N U A #", {2, 3}),
    ("§2 injected context", "is not", "I U A #", {2, 3}),
    ("§2 system", "is not, superseded or not", "S(k,1) S(k,2) U A #", {3, 4}),
    ("§2 compaction summary", "is never", "U A # U A #", {1, 2, 4, 5}),
]


@pytest.mark.parametrize(("script", "found"), marks(INDEXED))
def test_what_memory_holds_of_each_kind(client: Client, name: str, script: str, found: set[int]) -> None:
    host = Script(client, name, **PLAIN).play(script)
    hits = host.search("consumer queue message broker restarts acknowledged", limit=20).hits
    assert {h.offset for h in hits} == found


REFUSED = [
    # (rule, case, script, row, reason)
    ("R4", "an assistant row without blocks", "U", row_pb2.Row(assistant={}), "EMPTY_ASSISTANT_ROW"),
    ("§2 compaction summary", "is the sidecar's alone", "U",
     row_pb2.Row(compaction_summary={"text": "all went well"}), "SUMMARY_ROW_REFUSED"),
    ("§2 provider compaction", "is the sidecar's alone", "U",
     row_pb2.Row(provider_compaction={"item_json": b"{}"}), "SUMMARY_ROW_REFUSED"),
    ("§2 system", "the current version again is stale", "S(k,2)", "S(k,2)", "STALE_SYSTEM_VERSION"),
    ("§2 system", "an earlier version is stale", "S(k,2)", "S(k,1)", "STALE_SYSTEM_VERSION"),
    ("R3", "a result of a call that never was", "U A(c)", "R(d)", "UNKNOWN_TOOL_CALL"),
    ("R3", "a second final result", "U A(c) R(c)", "R(c)", "DUPLICATE_TOOL_RESULT"),
    ("R3", "also of a late one", "U >r1 A(c)@r1 >r1 R(c)", "R(c)", "DUPLICATE_TOOL_RESULT"),
    ("R3", "also once the call has folded", "U A(c) R(c) U A #", "R(c)", "DUPLICATE_TOOL_RESULT"),
    ("R3", "an interim one after the final one", "U A(c) R(c)", "R(c)?", "DUPLICATE_TOOL_RESULT"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "row", "reason"), marks(REFUSED))
def test_what_may_not_enter(client: Client, name: str, script: str, row: Any, reason: str) -> None:
    """R1: with a sound row before it, which stays out too."""
    host = Script(client, name, **PLAIN).play(script)
    before = host.listing()
    given = host.made(row)[0] if isinstance(row, str) else row
    assert refused(host.rows, host.made("U")[0], given).reason == reason
    assert host.listing() == before
    assert host.verify().ok


LATE = [
    # (rule, case, script that ends on a result, whether it is late)
    ("R3", "in time before a request was sent", "U >r1 A(c)@r1 R(c)", False),
    ("R3", "in time though other rows came first", "U >r1 A(c)@r1 N@r1 R(c)", False),
    ("R3", "late once it was sent unanswered", "U >r1 A(c)@r1 >r1 R(c)", True),
    ("R3", "late once its run was closed", "U >r1 A(c)@r1 =r1 R(c)", True),
    ("R3", "late once its call has folded", "U A(c) U A # R(c)", True),
    ("R3", "late behind an interim result", "U >r1 A(c)@r1 R(c)? R(c)", True),
    ("R3", "an interim one in time is not", "U >r1 A(c)@r1 R(c)?", False),
    ("R3", "a second interim one is", "U >r1 A(c)@r1 R(c)? R(c)?", True),
    ("R3", "the newest of two calls of one id is answered first", "U A(c) >r1:U A(c)@r1 R(c)", False),
    ("R3", "then the older", "U A(c) >r1:U A(c)@r1 R(c) R(c)", True),
]


@pytest.mark.parametrize(("script", "late"), marks(LATE))
def test_late_results(client: Client, name: str, script: str, late: bool) -> None:
    host = Script(client, name, **PLAIN).play(script)
    last = host.archive()[-1]
    assert last.tool_result.late is late
    assert host.offsets()[-1] == last.offset, "it stands where it was appended"


def test_r3_a_removed_call_names_what_removed_it(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("U A(c) R(c) U")
    edited = client.session.EditRows(
        session_service_pb2.EditRowsRequest(session_id=name, first_offset=2, last_offset=3)
    )
    refusal = refused(host.rows, host.made("R(c)")[0])
    assert (refusal.reason, refusal.metadata["removed_by"]) == ("UNKNOWN_TOOL_CALL", str(edited.revision))


def outline(messages: list[dict[str, Any]]) -> str:
    """A request in words: kinds with the numbers of their rows, results with their call, placeholders by their text."""
    return " ".join(_piece(m) for m in messages)


def _piece(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content)
    number = (re.findall(r"queue (\d+)", text) or [""])[0]
    if message["role"] == "tool":
        return f"T({message['tool_call_id']})" + (number or f"[{text}]")
    if message["role"] == "assistant":
        return f"A{number}" + "".join(f"({c['id']})" for c in message.get("tool_calls", []))
    if message["role"] == "system":
        return f"S{number}"
    if text.startswith((EARLIER_WORK, RUN_WORK)):
        return "Kr" if text.startswith(RUN_WORK) else "K"
    return f"L{number}" if text.startswith("[Late") else f"U{number}"


RENDERED = [
    # (rule, case, script, the request)
    ("R5", "a result stands directly after its call", "U A(c) U R(c)", "U1 A2(c) T(c)4 U3"),
    ("R5", "a batch is complete before anything else", "U A(c,d) U R(d) N R(c)", "U1 A2(c)(d) T(d)4 T(c)6 U3 U5"),
    ("R5", "an unanswered call has a placeholder", "U >r1 A(c)@r1", "U1 A2(c) T(c)[no result yet]"),
    ("R5", "of a closed run it was not completed", "U >r1 A(c)@r1 =r1", "U1 A2(c) T(c)[not completed]"),
    ("R5", "the text that was sent first stays", "U >r1 A(c)@r1 >r1 =r1", "U1 A2(c) T(c)[no result yet]"),
    (
        "R3",
        "a late result is user text where it came",
        "U >r1 A(c)@r1 >r1 U R(c)",
        "U1 A2(c) T(c)[no result yet] U3 L4",
    ),
    ("R3", "of a folded call too", "U A(c) U A # R(c)", "K L5"),
    ("R5", "rows that came during a pause follow it", "U >r1 A@r1^ U A@r1>", "U1 A2 A4 U3"),
    ("R5", "a server call that nothing continued is left out", "U >r1 A@r1^ U", "U1 A2 U3"),
    ("R5", "a later system version takes the first's place", "S(k,1) U A S(k,2) U", "S4 U2 A3 U5"),
    ("R5", "and keeps it when that one folds", "U A S(k,1) U A S(k,2) #", "K S6"),
    ("R5", "a summary is of earlier work", "U A # U", "K U3"),
    ("R5", "inside a run of work done so far", ">r1:U A@r1 >r1 A@r1 #", "U1 Kr A3"),
    ("R5", "also once that run is closed", ">r1:U A@r1 >r1 A@r1 # =r1", "U1 Kr A3"),
    ("R5", "not where a summary comes first", "U A U A # A", "K A5"),
    ("R5", "a superseded system row is not sent", "S(k,1) S(k,2) U", "S2 U3"),
]


@pytest.mark.parametrize(("script", "request_in_words"), marks(RENDERED))
def test_what_a_request_is_made_of(client: Client, name: str, script: str, request_in_words: str) -> None:
    host = Script(client, name, **PLAIN).play(script)
    assert outline(host.rendered()) == request_in_words
    assert host.rendered() == host.rendered(), "a function of the list"


def test_r5_a_late_result_names_its_call_and_the_arguments(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("U >r1 A(c)@r1 >r1 R(c)")
    parts = host.rendered()[-1]["content"]
    assert parts[0]["text"] == '[Late result of the call read (c) with the arguments {"n": 2}:]'
    assert "queue 3" in parts[1]["text"]


def test_r5_a_repeated_call_id_carries_its_offset_where_ids_must_be_unique(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("U A(c) R(c) A(c) R(c)")
    messages = host.rendered(row_pb2.FORMAT_ANTHROPIC_MESSAGES)["messages"]
    blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
    assert [b["id"] for b in blocks if b["type"] == "tool_use"] == ["c", "c_4"]
    assert [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"] == ["c", "c_4"]


def test_r5_a_first_message_of_no_user_has_one_put_before(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("A U")
    first = host.rendered(row_pb2.FORMAT_ANTHROPIC_MESSAGES)["messages"][0]
    assert (first["role"], first["content"]) == ("user", FIRST_MESSAGE)


def test_r5_formats_without_inner_system_rows_hoist_them(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("S U A S U")
    made = host.rendered(row_pb2.FORMAT_ANTHROPIC_MESSAGES)
    assert re.findall(r"queue (\d+)", json.dumps(made["system"]))[::6] == ["1", "4"]
    assert [m["role"] for m in made["messages"]] == ["user", "assistant", "user"]


def test_r5_a_request_that_ends_on_an_answer_says_so(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play(">r1:U A@r1 >r1")
    assert warning_pb2.WARNING_CODE_ENDS_ON_ASSISTANT in [w.code for w in host.prepared.warnings]
    host.play("U >r1")
    assert not host.prepared.warnings


def test_r1_a_repeat_changes_nothing(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    rows = host.made("U+A")
    first = host.rows(*rows, request_id="once")
    assert host.rows(*rows, request_id="once") == first
    assert host.listing() == "1 2"


def test_r2_what_is_no_utf8_does_not_enter(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    given = row_pb2.RowInput(
        raw=row_pb2.RawMessages(format=row_pb2.FORMAT_OPENAI_CHAT, json=b'[{"role": "user", "content": "\xff"}]')
    )
    request = session_service_pb2.AppendRowsRequest(session_id=name, input=given)
    assert refused(client.session.AppendRows, request).reason == "FORMAT_INVALID"
    assert host.active() == []


def test_r2_what_the_row_model_has_no_field_for_comes_back(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    said = {"role": "assistant", "content": "ok", "x_vendor": {"score": 1.50}}
    host.append({"role": "user", "content": "go", "name": "ann"}, said, calls("c"), result("c", "done"))
    assert host.rendered()[0] == {"role": "user", "content": "go", "name": "ann"}
    assert host.rendered()[1] == said


def test_r4_raw_answers_that_broke_off_are_dropped_with_a_warning(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    host.boundary("r1", "U")
    empty = {"role": "assistant", "content": None, "finish_reason": "error"}
    recorded = host.record("r1", host.answer(host.prepared, empty, usage={"prompt_tokens": 300}))
    assert recorded.last_offset == 0
    assert recorded.usage.counted, "its usage is kept"
    assert warning_pb2.WARNING_CODE_MESSAGE_DROPPED in [w.code for w in recorded.warnings]


def test_r6_pins_make_no_revision_and_no_summary_has_one(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("U A U A #")
    before = host.get().session.revision
    request = session_service_pb2.PinRowsRequest(session_id=name, offsets=[host.active()[0].offset], pinned=True)
    assert refused(client.session.PinRows, request).reason == "SUMMARY_ROW_REFUSED"
    host.append(user("keep this"), assistant("yes"))
    request.offsets[:] = [host.offsets()[-1]]
    client.session.PinRows(request)
    assert host.get().session.revision == before + 1, "the append's alone"
