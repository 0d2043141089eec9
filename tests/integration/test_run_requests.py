"""Runs over gRPC: their requests, what a continued one takes over, when answers may still come (§1, L1-L5)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, row_pb2
from google.protobuf import duration_pb2

from tests.integration.host import Host
from tests.integration.test_boundaries import LONG, codes
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server

COMPLETED = compaction_pb2.RUN_OUTCOME_COMPLETED


def kept(host: Host) -> list[str]:
    return [r.WhichOneof("body") or "" for r in host.active()]


def test_1_a_late_result_before_the_first_answer_is_part_of_the_request(client: Client, name: str) -> None:
    """§1 request: it stays through every fold of the run, also of stage 2, though another run made the call."""
    host = Host(client, name)
    first = host.prepare("r1", user("start the job"))
    steered = host.prepare("r1", user("never mind"), previous_answer=host.answer(first, calls("job")))
    host.record("r1", host.answer(steered, assistant("It runs."), finish=COMPLETED))
    host.prepare("r2", user("Fix it."))
    late = host.append(result("job", "the job is done")).first_offset
    prepared = host.prepare("r2")
    for n in range(14):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r2", result(f"c{n}", f"output {n}: {LONG} {LONG}"), previous_answer=outcome)
    assert host.get().totals.folds == 1
    assert host.offsets()[0] == 5, "everything before the request has folded"
    assert late in host.offsets()
    assert host.verify().ok, host.verify().faults


def test_1_a_continued_run_takes_over_the_request_and_its_user_rows(client: Client, name: str) -> None:
    """§1 continued run, 4.4: every round folds, the newest too; request and steering stay."""
    host = Host(client, name)
    prepared = host.prepare("r1", user("Fix it."))
    for n in range(4):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    prepared = host.prepare("r1", user("But not the tests."), previous_answer=host.answer(prepared, assistant("Ok.")))
    host.refuse("r1", prepared.prepare_id, 413, "request_too_large")
    again = host.prepare("r2")
    assert again.action == compaction_pb2.ACTION_SEND_FOLDED
    assert again.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    active = host.active()
    assert [r.WhichOneof("body") for r in active] == ["user", "compaction_summary", "user"]
    assert [r.user.content[0].text.text for r in active if r.HasField("user")] == ["Fix it.", "But not the tests."]
    assert "Summary of the work done so far on the request above" in host.rendered()[1]["content"]
    assert host.verify().ok, host.verify().faults


def test_1_a_run_that_opens_with_results_continues_the_run_that_made_the_calls(client: Client, name: str) -> None:
    """§1 continued run: rows that come with the opening are its own, not those of a run before it."""
    host = Host(client, name)
    host.append(user(f"Fix it. {LONG}"), calls("c"), run_id="r1")
    went_on = host.prepare("r2", result("c", "broken"))
    assert went_on.pressure_sent.parts.request > 100
    for n in range(30):
        outcome = host.answer(went_on, calls(f"c{n}"))
        went_on = host.prepare("r2", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    assert host.get().totals.folds >= 1
    assert host.offsets()[0] == 1, "the request stays"
    assert host.verify().ok, host.verify().faults


def test_4_4_p6_does_not_act_inside_a_run(client: Client, name: str) -> None:
    """P6: TOO_LARGE leaves the run open; the fact waits for the next whole check."""
    host = Host(client, name)
    prepared = host.prepare("big", user(f"Fix it. {LONG}"))
    too_large = host.prepare(
        "big", result("c", "output"), previous_answer=host.answer(prepared, calls("c")),
        shape=compaction_service_pb2.RequestShape(input_tokens=3_100),
    )  # fmt: skip
    assert too_large.action == compaction_pb2.ACTION_TOO_LARGE
    inside = host.prepare("big")
    assert (inside.action, inside.HasField("fold")) == (compaction_pb2.ACTION_SEND, False)
    assert host.get().cadence.did_not_fit == "too_large"
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(session_id=name, run_id="big", outcome=COMPLETED)
    )
    whole = host.prepare("next", user("Next."))
    assert whole.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert kept(host) == ["compaction_summary", "user"], "no tail is kept"
    assert host.get().cadence.did_not_fit == ""


def test_l1_usage_may_come_when_its_run_is_closed(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    host.record("r1", host.answer(prepared, assistant("ok"), finish=COMPLETED))
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens + 1}
    recorded = host.record("r1", host.answer(prepared, usage=usage))
    assert recorded.usage.counted
    assert host.get().cadence.count_tokens == usage["prompt_tokens"]
    assert refused(host.record, "r1", host.answer(prepared, assistant("more"))).reason == "RUN_NOT_OPEN"
    assert refused(host.record, "r9", host.answer(prepared, usage=usage)).reason == "FIELD_VALIDATION"


def test_l1_a_fold_between_request_and_answer_leaves_the_count_out(client: Client, name: str) -> None:
    host = Host(client, name)
    for n in range(6):
        host.turn(f"r{n}", f"{n} {LONG}", LONG)
    prepared = host.prepare("last", user("go"))
    host.compact()
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens}
    recorded = host.record("last", host.answer(prepared, assistant("ok"), usage=usage))
    assert not recorded.usage.counted
    state = host.get().cadence
    assert not state.HasField("count_tokens")
    assert not state.HasField("anchor_tokens")


def test_l1_appends_between_request_and_answer_leave_the_count(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    host.append(user("meanwhile"))
    note = row_pb2.SystemRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text="note"))])
    host.rows(row_pb2.Row(system=note))
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens}
    assert host.record("r1", host.answer(prepared, assistant("ok"), usage=usage)).usage.counted


def test_an_outcome_without_a_run_is_of_the_run_it_was_prepared_for(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("go"))
    assert host.record("", host.answer(prepared, assistant("ok"))).first_offset == 2


def test_l4_rows_of_the_run_end_its_idling(tmp_path: Path) -> None:
    now = [1_000_000.0]
    with running_server(tmp_path, clock=lambda: now[0]) as client:
        host = Host(client, "idle", run_ttl=duration_pb2.Duration(seconds=600))
        host.prepare("r1", user("go"))
        for _ in range(4):
            now[0] += 300
            host.append(user("still there"), run_id="r1")
        now[0] += 599
        assert refused(host.prepare, "r2", user("other")).reason == "RUN_ALREADY_OPEN"
        now[0] += 1
        response = host.prepare("r2", user("other"))
        assert "RUN_EXPIRED" in codes(response.warnings)
        (event,) = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_RUN_SUPERSEDED]
        assert event.run_id == "r1"


def test_1_boundaries_of_an_imported_history_count_however_it_came(client: Client, name: str) -> None:
    """§1 boundary: by AppendRows or with the first PrepareRequest; later answers count none twice."""
    rows = [user("a"), assistant("b"), user("c"), assistant("d")]
    appended, prepared = Host(client, f"{name}-a"), Host(client, f"{name}-b")
    appended.append(*rows)
    appended.prepare("r1", user("e"))
    first = prepared.prepare("r1", *rows, user("e"))
    assert appended.get().cadence.boundaries == prepared.get().cadence.boundaries == 3
    prepared.prepare("r1", user("f"), previous_answer=prepared.answer(first, assistant("g")))
    assert prepared.get().cadence.boundaries == 4


def test_r5_every_reply_says_that_a_transcript_ends_on_an_assistant_row(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("go"))
    host.record("r1", host.answer(prepared, assistant("done")))
    note = row_pb2.SystemRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text="note"))])
    host.rows(row_pb2.Row(system=note))
    for mode in (compaction_pb2.REPLY_MODE_NONE, compaction_pb2.REPLY_MODE_EDITS, compaction_pb2.REPLY_MODE_WHOLE):
        for fmt in (row_pb2.FORMAT_UNSPECIFIED, row_pb2.FORMAT_OPENAI_CHAT):
            response = host.prepare("r1", reply=mode, format=fmt)
            assert [w for w in codes(response.warnings) if w == "ENDS_ON_ASSISTANT"] == ["ENDS_ON_ASSISTANT"]
    paused = row_pb2.AssistantRow(
        content=[row_pb2.ContentBlock(server_tool=row_pb2.ServerToolBlock(call_id="s", name="search"))],
        stop_reason=row_pb2.STOP_REASON_PAUSED,
    )
    host.rows(row_pb2.Row(assistant=paused), run_id="r1")
    assert "ENDS_ON_ASSISTANT" not in codes(host.prepare("r1").warnings)


def test_1_a_pinned_row_before_a_summary_is_history(client: Client, name: str) -> None:
    """§1 request: the rows that answered it have folded; the summary folds with the next (F8)."""
    host = Host(client, name, retention={"turns": 0, "messages": 0})
    host.rows(row_pb2.Row(pinned=True, user=_text(f"Never touch main. {LONG}")))
    for n in range(4):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    host.compact()
    assert kept(host) == ["user", "compaction_summary"]
    prepared = host.prepare("r1", user("Now this."))
    assert prepared.pressure_sent.parts.request < 20
    for n in range(3):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", LONG), previous_answer=outcome)
    host.record("r1", host.answer(prepared, assistant("done"), finish=COMPLETED))
    host.compact()
    assert kept(host) == ["user", "compaction_summary"], "the earlier summary has folded"


def test_1_rows_of_no_run_before_a_summary_of_their_run_are_its_request_still(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("Fix it."))
    prepared = host.prepare("r1")
    for n in range(3):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", LONG), previous_answer=outcome)
    host.refuse("r1", prepared.prepare_id, 413, "request_too_large")
    refused_again = host.prepare("r2")
    assert kept(host) == ["user", "compaction_summary"]
    host.refuse("r2", refused_again.prepare_id, 429, "rate limit")
    assert host.prepare("r3").action == compaction_pb2.ACTION_SEND


def _text(text: str) -> row_pb2.UserRow:
    return row_pb2.UserRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text))])


def test_f3_a_continued_run_goes_on_with_the_ledger_of_the_run_before(client: Client, name: str) -> None:
    """§1 continued run: no call of its rounds is forgotten, whichever run folded them; a new request starts none."""
    host = Host(client, name)
    prepared = host.prepare("r1", user("Fix it."))
    for n in range(5):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    host.compact()
    assert "read({}) ×4: ran" in host.rendered()[1]["content"]
    host.refuse("r1", prepared.prepare_id, 413, "request_too_large")
    again = host.prepare("r2")
    assert again.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert "read({}) ×5: ran" in host.rendered()[1]["content"]
    host.refuse("r2", again.prepare_id, 429, "rate limit")
    prepared = host.prepare("r3")
    for n in range(5, 8):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r3", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    host.compact()
    assert "read({}) ×7: ran" in host.rendered()[1]["content"]
    host.record("r3", host.answer(prepared, assistant("done"), finish=COMPLETED))
    prepared = host.prepare("r4", user("Something else."))
    for n in range(8, 11):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r4", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    host.compact()
    host.compact()
    ledgers = [m["content"].split("Calls already made")[1:] for m in host.rendered() if m["role"] == "user"]
    assert [text for parts in ledgers for text in parts if "×2: ran" in text]
    assert not [text for parts in ledgers for text in parts if "×7" in text]
    assert host.verify().ok, host.verify().faults


def test_f3_4_5_what_a_boundary_writes_does_not_grow_with_the_calls_that_folded(tmp_path: Path) -> None:
    """Every call of the run is in its ledger, also after a restart; the state that each boundary writes is as short."""

    def state() -> int:
        with closing(sqlite3.connect(f"file:{tmp_path / 'data' / 'foldline.db'}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT length(state) FROM session").fetchone()[0])

    with running_server(tmp_path) as client:
        host = Host(client, "s")
        sizes = []
        for rounds in (5, 200):
            for n in range(rounds):
                host.append(read(f"{rounds}-{n}.py"), result("c", "text " * 20), run_id="r1")
            host.prepare("r1", user("Fix it."))
            host.compact()
            host.prepare("r1")
            sizes.append(state())
        assert sizes[1] < sizes[0] + 100, sizes
    with running_server(tmp_path) as client:
        host.client = client
        host.append(read("last.py"), result("c", "text " * 400), read("newest.py"), result("c", "text"), run_id="r1")
        host.prepare("r1")
        host.compact()
        told = host.rendered()[1]["content"]
        assert "read ×" in told
        assert '"last.py"' in told
        assert host.verify().ok, host.verify().faults


def read(path: str) -> dict[str, Any]:
    function = {"name": "read", "arguments": json.dumps({"path": path})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
