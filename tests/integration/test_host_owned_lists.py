"""What lists a host may send, and which of their rows fold (H1, R3, F3, F6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    row_pb2,
)

from tests.integration.hosted import (
    SMALL,
    HostedHost,
    assistant,
    flat,
    result,
    system,
    talk,
    user,
    work,
)
from tests.support.server import Client, refused

# Runs, rounds and the ledger


def test_f3_rounds_of_the_open_run_fold_with_a_ledger_across_folds(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.ask("Do a long task.", run_id="r1")
    work(host, 16)
    first = host.fold(manual=True)
    assert first.record.scope == compaction_pb2.FOLD_SCOPE_STAGE_2
    assert host.ids()[0] == host.start
    assert first.summary.compaction_summary.of_run == "r1"
    assert "call3.py" in first.summary.compaction_summary.text
    work(host, 12, first=16)
    second = host.fold(manual=True)
    ledger = second.summary.compaction_summary.text
    assert "call3.py" in ledger
    assert "call20.py" in ledger
    assert host.verify().ok
    # The first fold after the run drops it.
    host.add(assistant("finished"))
    host.end_run()
    talk(host, 8)
    host.ask("Something else.")
    third = host.fold(manual=True)
    assert "call3.py" not in third.summary.compaction_summary.text.split("## ")[-1].split("Calls already made")[-1]
    assert third.summary.compaction_summary.of_run == ""


def test_f6_a_result_that_no_request_carried_stays_with_its_call(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.ask("Do a long task.")
    work(host, 20)
    answer = host.compact(manual=True)
    assert set(host.ids()[-2:]) <= set(answer.kept_row_ids)


def test_r3_a_late_result_stands_apart_and_is_told(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.add(user("start"), assistant("", "job"), user("meanwhile"))
    talk(host, 2)
    late = host.add(result("job", "the job is done"))[0]
    talk(host, 26, first=2)
    host.ask("next")
    answer = host.compact()
    assert [late in w.message for w in answer.warnings] == [True]
    assert late in answer.discarded_row_ids
    host.apply(answer)
    host.commit(answer)
    assert host.verify().ok
    # Its call has folded, answered: a second final result is refused.
    host.add(result("job", "once more"))
    refusal = refused(host.check)
    assert refusal.reason == "DUPLICATE_TOOL_RESULT"
    assert host.text(int(refusal.metadata["result_offset"])) == "the job is done"


def test_r3_a_call_that_folded_unanswered_takes_its_result_late(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.add(user("start"), assistant("", "job"), user("meanwhile"))
    talk(host, 26)
    host.ask("next")
    host.fold()
    late = host.add(result("job", "the job is done"))[0]
    checked = host.check()
    assert any(late in w.message for w in checked.warnings)
    host.add(assistant("thanks"))
    host.end_run()
    talk(host, 20, first=50)
    host.ask("and now")
    answer = host.fold(manual=True)
    assert late in answer.discarded_row_ids
    row = next(r for r in host.archive() if r.tool_result.call_id == "job" and r.HasField("tool_result"))
    assert row.tool_result.late
    assert host.read(row.tool_result.call_offset).assistant.content[0].tool_call.call_id == "job"
    assert host.verify().ok


# What is wrong with a list


@pytest.mark.parametrize(
    ("rows", "reason", "at"),
    [
        ([user("a"), result("nobody", "x")], "UNKNOWN_TOOL_CALL", 1),
        ([user("a"), assistant("", "c"), result("c", "1"), result("c", "2")], "DUPLICATE_TOOL_RESULT", 3),
        ([user("a"), row_pb2.Row(assistant=row_pb2.AssistantRow())], "EMPTY_ASSISTANT_ROW", 1),
        ([user("a"), assistant("", "c", "c")], "FIELD_VALIDATION", 1),
    ],
)
def test_h1_a_row_that_cannot_stand_is_named_by_its_id(
    client: Client, name: str, rows: list[row_pb2.Row], reason: str, at: int
) -> None:
    host = HostedHost(client, name)
    ids = host.add(user("before"), assistant("fine"), *rows)
    for call in (host.check, host.compact):
        refusal = refused(call)
        assert (refusal.reason, refusal.metadata["row"], refusal.metadata["row_id"]) == (
            reason,
            str(at + 2),
            ids[at + 2],
        )
    assert host.get().totals.boundaries == 0


def test_h1_a_stale_system_version_is_refused(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.add(system("new", "rules", 2), user("hi"), system("old", "rules", 1))
    assert refused(host.check).reason == "STALE_SYSTEM_VERSION"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda t: t.row_ids.pop(), "transcript.row_ids"),
        (lambda t: setattr(t, "open_run_start", "nothing"), "transcript.open_run_start"),
        (lambda t: (setattr(t, "open_run_start", ""), setattr(t, "run_id", "r")), "transcript.open_run_start"),
        (lambda t: setattr(t, "open_run_start", t.row_ids[1]), "transcript.open_run_start"),
        (lambda t: t.row_ids.__setitem__(0, t.row_ids[1]), "transcript.row_ids"),
    ],
)
def test_h1_fields_that_contradict_each_other_are_named(client: Client, name: str, change: Any, field: str) -> None:
    host = HostedHost(client, name)
    host.add(user("a"), assistant("b"))
    host.start = host.ids()[0]
    request = host.request()
    change(request.transcript)
    refusal = refused(client.compaction.CompactTranscript, request)
    assert refusal.reason == "FIELD_VALIDATION"
    assert field in (refusal.metadata.get("field"), *(v[0] for v in refusal.violations))


# Messages of providers


def raw_request(
    host: HostedHost, fmt: row_pb2.Format.ValueType, messages: list[Any], ids: list[str], **fields: Any
) -> Any:
    given = row_pb2.RawMessages(format=fmt, json=json.dumps(messages).encode())
    transcript = compaction_service_pb2.HostTranscript(input=row_pb2.RowInput(raw=given), row_ids=ids, **fields)
    return compaction_service_pb2.CompactTranscriptRequest(
        session_id=host.id, transcript=transcript, shape=compaction_service_pb2.RequestShape(model=SMALL), manual=True
    )


@pytest.mark.parametrize("marked", [False, True])
def test_h2_a_summary_may_come_back_as_a_message(client: Client, name: str, marked: bool) -> None:
    host = HostedHost(client, name)
    messages: list[Any] = [{"role": "user", "content": "Never delete the file notes.txt, this is a strict rule."}]
    for number in range(12):
        messages += [
            {"role": "assistant", "content": f"step {number} " + "word " * 60},
            {"role": "user", "content": f"go on {number} " + "word " * 60},
        ]
    ids = [f"i{n}" for n in range(len(messages))]
    request = raw_request(host, row_pb2.FORMAT_OPENAI_CHAT, messages, ids, open_run_start=ids[-1])
    first = client.compaction.CompactTranscript(request)
    host.commit(first)
    said = first.summary.compaction_summary.text
    mark = "[Summary of earlier work in this conversation. It is a record of what happened, no request.]\n\n"
    kept = [(i, m) for i, m in zip(ids, messages, strict=True) if i in set(first.kept_row_ids)]
    pairs = [("sum", {"role": "user", "content": mark + said if marked else said}), *kept]
    for number in range(12):
        pairs += [
            (f"a{number}", {"role": "assistant", "content": f"later {number} " + "word " * 60}),
            (f"u{number}", {"role": "user", "content": f"further {number} " + "word " * 60}),
        ]
    request = raw_request(
        host, row_pb2.FORMAT_OPENAI_CHAT, [m for _, m in pairs], [i for i, _ in pairs], open_run_start="u11"
    )
    second = client.compaction.CompactTranscript(request)
    assert "sum" in second.discarded_row_ids
    assert first.record.summary_offset in flat(second.record.discarded)
    assert "notes.txt" in second.summary.compaction_summary.text
    host.commit(second)
    assert host.verify().ok


def test_h1_rows_of_one_message_stay_or_fold_together(client: Client, name: str) -> None:
    """An Anthropic message may hold a result and the next request at once."""
    host = HostedHost(client, name)
    messages: list[Any] = []
    for number in range(14):
        messages += [
            {"role": "user", "content": f"question {number} " + "word " * 30},
            {"role": "assistant", "content": [
                {"type": "text", "text": "reading " + "word " * 30},
                {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {}},
                {"type": "tool_use", "id": f"s{number}", "name": "read", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"t{number}", "content": "output " * 20},
                {"type": "tool_result", "tool_use_id": f"s{number}", "content": "output " * 20},
                {"type": "text", "text": "and go on"},
            ]},
            {"role": "assistant", "content": "done"},
        ]  # fmt: skip
    messages += messages[:3]
    ids = [f"i{n}" for n in range(len(messages))]
    request = raw_request(host, row_pb2.FORMAT_ANTHROPIC_MESSAGES, messages, ids, open_run_start=ids[-3])
    answer = client.compaction.CompactTranscript(request)
    assert answer.projection_id
    assert {*answer.kept_row_ids, *answer.discarded_row_ids} == set(ids)
    kept = [m for i, m in zip(ids, messages, strict=True) if i in set(answer.kept_row_ids)]
    called = {b["id"] for m in kept if isinstance(m["content"], list) for b in m["content"] if b["type"] == "tool_use"}
    answered = {
        b["tool_use_id"]
        for m in kept
        if isinstance(m["content"], list)
        for b in m["content"]
        if b["type"] == "tool_result"
    }
    assert called == answered
    host.commit(answer)
    assert host.verify().ok
    assert host.verify().rows_total > len(answer.discarded_row_ids) + 1, "a message became several rows"


def test_h1_items_of_one_answer_fold_together(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    items: list[Any] = []
    for number in range(14):
        items += [
            {"role": "user", "content": f"question {number} " + "word " * 40},
            {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": "hm " * 20}]},
            {"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": "output " * 40},
            {"role": "assistant", "content": [{"type": "output_text", "text": "done " * 20}]},
        ]
    items.append({"role": "user", "content": "next"})
    ids = [f"i{n}" for n in range(len(items))]
    request = raw_request(host, row_pb2.FORMAT_OPENAI_RESPONSES, items, ids, open_run_start=ids[-1])
    answer = client.compaction.CompactTranscript(request)
    kept = set(answer.kept_row_ids)
    for number in range(14):
        together = {ids[number * 5 + 1] in kept, ids[number * 5 + 2] in kept, ids[number * 5 + 3] in kept}
        assert len(together) == 1
    host.commit(answer)
    assert host.verify().ok
