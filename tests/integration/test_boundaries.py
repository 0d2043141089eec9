"""The steps of a model call over gRPC: runs, answers, refusals, replies, repeats (§3, §4, W1, W2)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    pressure_pb2,
    row_pb2,
    warning_pb2,
)

from tests.integration.host import Host
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused

LONG = "The deployment failed because the migration was applied twice. " * 12
"""About 120 tokens."""


def signal(report: pressure_pb2.PressureReport, kind: str) -> pressure_pb2.Signal:
    number = pressure_pb2.SignalKind.Value(f"SIGNAL_KIND_{kind}")
    return next(s for s in report.signals if s.kind == number)


def codes(warnings: Any) -> set[str]:
    return {warning_pb2.WarningCode.Name(w.code).removeprefix("WARNING_CODE_") for w in warnings}


def test_one_rpc_a_model_call(client: Client, name: str) -> None:
    """§3: the previous answer, the new row and the request in one call."""
    host = Host(client, name)
    first = host.prepare("r1", user("hello"))
    done = host.answer(first, assistant("hi"), finish=compaction_pb2.RUN_OUTCOME_COMPLETED)
    second = host.prepare("r2", user("again"), previous_answer=done)
    assert second.action == compaction_pb2.ACTION_SEND
    assert [m["content"] for m in host.rendered()] == ["hello", "hi", "again"]
    assert (second.first_offset, second.last_offset) == (2, 3), "the answer's row included"


def test_w1_the_replica_is_the_servers_list(client: Client, name: str) -> None:
    host = Host(client, name)
    for number in range(60):
        prepared = host.prepare(f"r{number}", user(f"{number} {LONG}"))
        assert host.list == host.offsets()
        answer = host.answer(prepared, assistant(f"Answer {number}: {LONG}"))
        host.prepare(f"r{number}", user("more"), previous_answer=answer)
        assert host.list == host.offsets()
        host.client.compaction.FinishRun(
            compaction_service_pb2.FinishRunRequest(
                session_id=name, run_id=f"r{number}", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
        )
    assert host.get().totals.folds >= 3


def test_w1_a_host_that_names_no_known_revision_gets_everything(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("one"), assistant("two"), user("three"))
    host.revision = 999
    response = host.prepare("r1")
    assert [r.offset for r in response.rows.rows] == [1, 2, 3]
    assert "HOST_BEHIND" in codes(response.warnings)


def test_w1_rows_of_others_travel_whole_the_hosts_own_by_offset(client: Client, name: str) -> None:
    host = Host(client, name)
    host.prepare("r1", user("mine"))
    host.append(user("another process"))
    response = host.prepare("r1", user("mine again"))
    (splice,) = response.splices.splices
    assert [r.user.content[0].text.text for r in splice.rows.rows] == ["another process", "mine again"]
    assert host.list == host.offsets()


def test_w2_a_repeat_gives_the_first_answer_and_changes_nothing(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("hello"), request_id="a")
    host.revision = 0
    again = host.prepare("r1", user("hello"), request_id="a")
    assert (again.prepare_id, again.revision) == (first.prepare_id, first.revision)
    assert len(host.archive()) == 1
    assert host.get().cadence.boundaries == 1


def test_w2_a_repeat_that_is_measured_again_says_what_the_first_appended(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user(LONG * 40), request_id="a")
    done = host.answer(first, assistant("hi"), usage={"prompt_tokens": 4500, "completion_tokens": 2})
    known = host.revision, list(host.list)
    second = host.prepare("r1", user("again"), request_id="b", previous_answer=done)
    assert second.skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD
    host.revision, host.list = known
    repeated = host.prepare("r1", user("again"), request_id="b", previous_answer=done)
    assert (repeated.first_offset, repeated.last_offset) == (second.first_offset, second.last_offset) == (2, 3)
    assert repeated.last_usage == second.last_usage
    assert repeated.last_usage.usage.input_tokens == 4500
    assert host.list == [1, 2, 3]
    assert host.get().cadence.boundaries == 2


def test_w2_another_payload_under_the_same_id_is_refused(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("a"), request_id="x")
    refusal = refused(host.append, user("b"), request_id="x")
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "REQUEST_ID_REUSED")
    assert len(host.archive()) == 1


def test_l1_usage_sets_count_and_anchor(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    estimate = prepared.pressure_sent.forecast_tokens
    usage = {"prompt_tokens": estimate + 3, "completion_tokens": 2}
    host.record("r1", host.answer(prepared, assistant("ok"), usage=usage))
    state = host.get().cadence
    assert (state.count_tokens, state.anchor_tokens) == (estimate + 3, estimate + 3)
    report = host.prepare("r1", user("next")).pressure_checked
    assert signal(report, "PROVIDER_COUNT").value == estimate + 3
    assert estimate + 3 < signal(report, "PROJECTION").value < estimate + 60


def test_l1_usage_may_come_later_and_with_zero_rows(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    host.record("r1", host.answer(prepared, assistant("ok")))
    assert not host.get().cadence.HasField("count_tokens")
    recorded = host.record("r1", host.answer(prepared, usage={"prompt_tokens": 140, "completion_tokens": 2}))
    assert recorded.first_offset == 0
    assert host.get().cadence.count_tokens == 140


@pytest.mark.parametrize("tokens", [1_000_000, 4])
def test_4_3_an_outlier_is_reported_and_anchors_nothing(client: Client, name: str, tokens: int) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    recorded = host.record("r1", host.answer(prepared, assistant("ok"), usage={"prompt_tokens": tokens}))
    assert "USAGE_OUTLIER" in codes(recorded.warnings)
    assert not host.get().cadence.HasField("anchor_tokens")


def test_4_3_zero_usage_is_unknown(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    recorded = host.record("r1", host.answer(prepared, assistant("ok"), usage={"prompt_tokens": 0}))
    assert "USAGE_MISSING" in codes(recorded.warnings)
    assert not host.get().cadence.HasField("count_tokens")


def test_l1_a_partial_answer_keeps_its_text_and_drops_broken_calls(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("go"))
    broken = {
        "role": "assistant",
        "content": "I will read",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "/et'}}],
    }
    recorded = host.record("r1", host.answer(prepared, broken, partial=True))
    assert "PARTIAL_CALLS_DROPPED" in codes(recorded.warnings)
    (row,) = [r for r in host.active() if r.HasField("assistant")]
    assert [b.WhichOneof("kind") for b in row.assistant.content] == ["text"]


def test_r3_a_late_result_leaves_what_was_sent_as_it_was(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("go"))
    host.prepare("r1", user("steer"), previous_answer=host.answer(first, calls("c1")))
    before = host.rendered()
    host.append(result("c1", "the result"))
    after = host.rendered()
    assert after[: len(before)] == before
    assert before[2]["role"] == "tool"
    assert "the result" in json.dumps(after[-1]["content"])
    assert after[-1]["role"] == "user"


def test_r5_an_unanswered_call_gets_a_placeholder(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("go"), calls("c1", "c2"), result("c2", "two"), user("next"))
    roles = [(m["role"], m.get("tool_call_id")) for m in host.rendered()]
    assert roles[:2] + roles[4:] == [("user", None), ("assistant", None), ("user", None)]
    assert sorted(roles[2:4]) == [("tool", "c1"), ("tool", "c2")]


def test_4_4_a_refusal_folds_at_the_next_whole_check(client: Client, name: str) -> None:
    host = Host(client, name)
    for number in range(4):
        host.turn(f"r{number}", f"{number} {LONG}", LONG)
    prepared = host.prepare("big", user("the prompt"))
    assert not prepared.HasField("fold")
    body = '{"error": {"code": "context_length_exceeded", "message": "maximum context length is 4000 tokens"}}'
    recorded = host.refuse("big", prepared.prepare_id, 400, body)
    assert recorded.refusal == compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED
    assert recorded.run_closed
    assert host.get().cadence.did_not_fit == "refused"
    again = host.prepare("retry")
    assert again.action == compaction_pb2.ACTION_SEND_FOLDED
    assert again.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert [m["content"] for m in host.rendered()][-1] == "the prompt"
    assert host.get().cadence.did_not_fit == ""


def test_4_4_a_rate_limit_is_no_refusal_for_size(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("hello"))
    body = '{"error": {"message": "Rate limit reached: tokens per min"}}'
    recorded = host.refuse("r1", prepared.prepare_id, 429, body)
    assert recorded.refusal == compaction_pb2.REFUSAL_KIND_RATE_LIMITED
    assert host.get().cadence.did_not_fit == ""


def test_l3_an_exact_count_over_the_budget_is_too_large(client: Client, name: str) -> None:
    host = Host(client, name)
    response = host.prepare("r1", user("hello"), shape=compaction_service_pb2.RequestShape(input_tokens=5_000))
    assert response.action == compaction_pb2.ACTION_TOO_LARGE
    assert response.pressure_sent.forecast_tokens == 5_000
    assert host.get().cadence.did_not_fit == "too_large"
    assert host.get().session.open_run_id == "r1"


def test_l3_an_estimate_over_the_budget_is_sent_with_a_warning(client: Client, name: str) -> None:
    host = Host(client, name)
    response = host.prepare("r1", user("word " * 5_000))
    assert response.action == compaction_pb2.ACTION_SEND
    assert "FORECAST_OVER_WINDOW" in codes(response.warnings)


def test_l4_a_second_run_waits_for_the_first(client: Client, name: str) -> None:
    host = Host(client, name)
    host.prepare("r1", user("hello"))
    assert refused(host.prepare, "r2", user("other")).reason == "RUN_ALREADY_OPEN"
    response = host.prepare("r2", user("other"), supersede_open_run=True)
    assert "RUN_SUPERSEDED" in codes(response.warnings)
    assert refused(host.prepare, "r1", user("back"), supersede_open_run=True).reason == "RUN_NOT_OPEN"


def test_l5_a_run_without_request_is_refused_before_anything_is_written(client: Client, name: str) -> None:
    host = Host(client, name)
    assert refused(host.prepare, "r1").reason == "RUN_NOT_OPEN"
    assert host.get().session.revision == 0


def test_c1_boundary_zero_does_not_fold_on_ordinary_trips(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(*[m for i in range(3) for m in (user(f"{i}"), {"role": "user", "content": LONG * 9})])
    report = host.prepare("r1", user("hello")).pressure_checked
    forecast = signal(report, "FORECAST_THRESHOLD")
    assert forecast.tripped
    assert forecast.suppressed_by == pressure_pb2.SUPPRESSION_FIRST_BOUNDARY


def test_auto_compact_off_reports_and_does_not_act(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    for number in range(30):
        prepared = host.turn(f"r{number}", f"{number} {LONG}", LONG)
        assert not prepared.HasField("fold")
    tripped = [s for s in prepared.pressure_checked.signals if s.tripped]
    assert tripped
    assert all(s.suppressed_by == pressure_pb2.SUPPRESSION_AUTO_COMPACT_OFF for s in tripped)
    assert host.compact().trigger == compaction_pb2.TRIGGER_MANUAL


def test_every_signal_is_listed_at_every_boundary(client: Client, name: str) -> None:
    """4.1."""
    host = Host(client, name)
    report = host.prepare("r1", user("hello")).pressure_checked
    kinds = [s.kind for s in report.signals]
    assert sorted(kinds) == sorted(set(pressure_pb2.SignalKind.values()) - {0})


def test_tools_travel_once(client: Client, name: str) -> None:
    host = Host(client, name)
    tools = b'[{"type": "function", "function": {"name": "read", "description": "reads a file", "parameters": {}}}]'
    shape = compaction_service_pb2.RequestShape(tools_json=tools)
    first = host.prepare("r1", user("hello"), shape=shape)
    assert first.pressure_sent.parts.tools > 10
    digest = hashlib.sha256(tools).hexdigest()
    known = host.prepare("r1", user("more"), shape=compaction_service_pb2.RequestShape(tools_digest=digest))
    assert known.pressure_sent.parts.tools == first.pressure_sent.parts.tools
    other = compaction_service_pb2.RequestShape(tools_digest="0" * 64)
    assert refused(host.prepare, "r1", user("x"), shape=other).reason == "TOOLS_UNKNOWN"


def test_stable_prefix_is_where_a_cache_mark_belongs(client: Client, name: str) -> None:
    host = Host(client, name)
    assert host.prepare("r1", user("one")).stable_prefix_rows == 0
    assert host.prepare("r1", user("two")).stable_prefix_rows == 1
    assert host.prepare("r1", user("three")).stable_prefix_rows == 2


def test_b_a_result_that_cannot_fit_is_carried_shortened(client: Client, name: str) -> None:
    """B1-B4: this request carries its head, the archive keeps it whole, the answer anchors nothing."""
    host = Host(client, name)
    first = host.prepare("r1", user("read it"))
    text = "".join(f"line {i} of a long file\n" for i in range(2_000))
    outcome = host.answer(first, calls("c1"))
    response = host.prepare(
        "r1", result("c1", text), previous_answer=outcome, reply=compaction_pb2.REPLY_MODE_WHOLE,
        format=row_pb2.FORMAT_OPENAI_CHAT,
    )  # fmt: skip
    (bounded,) = response.bounded
    assert bounded.whole_bytes == len(text.encode())
    assert 0 < bounded.kept_bytes < 12_000
    assert bounded.text.encode() in response.rendered_json or "read_result" in bounded.text
    assert response.pressure_sent.forecast_tokens <= response.pressure_sent.input_budget_tokens
    stored = next(r for r in host.active() if r.HasField("tool_result"))
    assert stored.tool_result.content[0].text.text == text
    assert host.get().cadence.did_not_fit == "bounded"
    host.record("r1", host.answer(response, assistant("read"), usage={"prompt_tokens": 2_500}))
    assert not host.get().cadence.HasField("anchor_tokens")
    assert host.get().cadence.did_not_fit == "bounded"


def test_r5_a_transcript_that_ends_on_an_assistant_row_says_so(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("go"))
    again = host.prepare("r1", previous_answer=host.answer(first, assistant("done")))
    assert "ENDS_ON_ASSISTANT" in codes(again.warnings)
    calling = host.prepare("r1", previous_answer=host.answer(again, calls("c1")))
    assert "ENDS_ON_ASSISTANT" not in codes(calling.warnings)
