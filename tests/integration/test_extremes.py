"""What is at the edge of every size: nested, huge and forged input (W5, W6, W8, R2)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
from typing import Any

import grpc
import pytest
from foldline.v1 import (
    compaction_service_pb2,
    estimate_service_pb2,
    memory_service_pb2,
    model_pb2,
    row_pb2,
    session_service_pb2,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.host import SMALL, Host
from tests.integration.test_boundaries import LONG
from tests.support.requests import assistant, raw, result, user
from tests.support.server import Client, refusal_of, refused


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [100, 700, 950, 5_000])
def test_s8_deep_arguments_and_results_do_not_keep_a_session_from_folding(
    client: Client, name: str, depth: int
) -> None:
    host = Host(client, name, auto_compact=False)
    for n in range(3):
        function = {"name": "f", "arguments": nested(depth)}
        call = {"id": f"c{n}", "type": "function", "function": function}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        host.append(user(f"{n} {LONG}"), asked, result(f"c{n}", "[" * depth + "]" * depth), assistant(LONG))
    host.compact()
    assert host.verify().ok
    assert host.rendered(row_pb2.FORMAT_ANTHROPIC_MESSAGES)


@pytest.mark.parametrize("depth", [950, 5_000, 100_000])
def test_w8_json_that_is_nested_too_deep_is_refused_or_taken_and_never_a_defect(
    client: Client, name: str, depth: int
) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("go"))
    plain = row_pb2.Row(user=row_pb2.UserRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text="x"))]))
    plain.extra = nested(depth).encode()
    usage = compaction_service_pb2.Answer(usage_json=nested(min(depth, 10_000)).encode())
    call = row_pb2.ToolCallBlock(call_id="c", name="f", arguments_json=nested(depth))
    partial = compaction_service_pb2.Answer(partial=True)
    partial.input.rows.rows.add().assistant.content.add().tool_call.CopyFrom(call)
    partial.input.rows.rows[0].assistant.content.add().text.text = "so far"
    normalize = estimate_service_pb2.NormalizeUsageRequest(model=SMALL, usage_json=nested(min(depth, 10_000)).encode())
    for attempt in (
        lambda: host.rows(plain),
        lambda: host.record("r1", compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, answer=usage)),
        lambda: host.record("r1", compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, answer=partial)),
        lambda: client.estimate.NormalizeUsage(normalize),
    ):
        try:
            attempt()
        except Exception as error:
            assert error.code().name == "INVALID_ARGUMENT"  # type: ignore[attr-defined]
    assert host.verify().ok


@pytest.mark.parametrize("position", [-1, 2**63, 2**70, "x", None, [1], 1.5, True])
def test_w6_a_forged_page_token_is_refused(client: Client, name: str, position: object) -> None:
    host = Host(client, name)
    host.append(user("one"), user("two"))
    page = client.session.ListRows(session_service_pb2.ListRowsRequest(session_id=name, page_size=1))
    token = json.loads(base64.urlsafe_b64decode(page.next_page_token + "=="))
    token[2] = position
    forged = base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")
    request = session_service_pb2.ListRowsRequest(session_id=name, page_token=forged)
    assert refused(client.session.ListRows, request).reason == "PAGE_TOKEN_MISMATCH"


def test_w5_a_listing_pages_by_bytes_before_a_message_is_too_large(client: Client, name: str) -> None:
    host = Host(client, name)
    for n in range(4):
        host.append(user(f"{n} " + "lorem ipsum " * 550_000))
    assert host.offsets() == [1, 2, 3, 4]
    assert [r.offset for r in host.archive()] == [1, 2, 3, 4]


FIELDS = ("input_tokens", "body_bytes", "overhead_tokens", "overhead_bytes", "output_reserve_tokens")


@pytest.mark.parametrize("field", FIELDS)
def test_p4_the_largest_number_that_can_be_stated_is_a_number(client: Client, name: str, field: str) -> None:
    host = Host(client, name)
    shape = compaction_service_pb2.RequestShape(model=SMALL, **{field: 2**63 - 1})
    request = compaction_service_pb2.PrepareRequestRequest(session_id=name, run_id="r1", shape=shape)
    request.append.CopyFrom(raw(user("go")))
    assert client.compaction.PrepareRequest(request).prepare_id
    assert host.verify().ok


def test_4_3_usage_at_the_limit_of_its_type_leaves_the_session_readable(client: Client, name: str) -> None:
    host = Host(client, name)
    for _ in range(3):
        prepared = host.prepare("r1", user("go"))
        answer = compaction_service_pb2.Answer(usage=model_pb2.Usage(input_tokens=2**63 - 1, output_tokens=2**63 - 1))
        answer.input.CopyFrom(raw(assistant("done")))
        recorded = host.record("r1", compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, answer=answer))
        assert not recorded.usage.counted
    assert host.get().totals.usage[0].calls == 3


CANONICAL = [
    {"type": "system", "key": "k", "version": 2**70},
    {"type": "system", "key": "k", "version": -1},
    {"type": "user", "content": []},
    {"type": "user", "content": [{"type": "image", "tokens_hint": 2**40}]},
    {"type": "user", "content": [{"type": "video", "duration_seconds": -1.0}]},
    {"type": "user", "content": [{"type": "image", "mime_type": "x" * 300}]},
    {"type": "tool_result", "call_id": ""},
    {"type": "assistant", "content": [{"type": "tool_call", "call_id": "c", "name": ""}]},
    {"type": "user", "create_time": "yesterday"},
    {"type": "user", "extra": "{"},
]


@pytest.mark.parametrize("row", CANONICAL, ids=lambda row: f"{row['type']} {sorted(row)[0]}")
def test_w4_rows_in_foldlines_own_json_keep_the_limits_of_typed_ones(
    client: Client, name: str, row: dict[str, object]
) -> None:
    host = Host(client, name)
    given = {"content": [{"type": "text", "text": "x"}], **row}
    request = session_service_pb2.AppendRowsRequest(session_id=name)
    request.input.raw.format, request.input.raw.json = row_pb2.FORMAT_CANONICAL, json.dumps([given]).encode()
    assert refused(client.session.AppendRows, request).reason in ("FIELD_VALIDATION", "FORMAT_INVALID")
    assert host.offsets() == []


def test_r3_what_the_sidecar_sets_is_ignored_in_foldlines_own_json(client: Client, name: str) -> None:
    host = Host(client, name)
    call = {"type": "tool_call", "call_id": "c", "name": "f", "arguments_json": "{}"}
    rows = [
        {"type": "user", "content": [{"type": "text", "text": "go"}]},
        {"type": "assistant", "content": [call], "derived_from": 1},
        {"type": "tool_result", "call_id": "c", "late": True, "call_offset": 1, "usage_mark": "12"},
    ]
    request = session_service_pb2.AppendRowsRequest(session_id=name)
    request.input.raw.format, request.input.raw.json = row_pb2.FORMAT_CANONICAL, json.dumps(rows).encode()
    client.session.AppendRows(request)
    _, asked, answered = host.active()
    assert asked.assistant.derived_from == 0
    assert (answered.tool_result.late, answered.tool_result.call_offset, answered.tool_result.usage_mark) == (
        False,
        2,
        "",
    )


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (-62135596801, 0), (0, -1), (0, 10**9)])
def test_w8_a_time_that_is_none_is_refused(client: Client, name: str, seconds: int, nanos: int) -> None:
    host = Host(client, name)
    row = row_pb2.Row(user=row_pb2.UserRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text="x"))]))
    row.create_time.seconds, row.create_time.nanos = seconds, nanos
    assert refused(host.rows, row).reason == "FIELD_VALIDATION"
    query = memory_service_pb2.SearchMemoryRequest(session_id=name, query="x")
    query.filter.after_time.seconds, query.filter.after_time.nanos = seconds, nanos
    assert refused(client.memory.SearchMemory, query).reason == "FIELD_VALIDATION"


def exported(client: Client, name: str) -> list[dict[str, object]]:
    chunks = client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=name))
    return [json.loads(line) for line in b"".join(c.jsonl for c in chunks).splitlines()]


def imported(client: Client, name: str, lines: list[dict[str, object]]) -> session_service_pb2.ImportSessionResponse:
    """An import of lines whose last one is made to fit them, as whoever changes an export can do."""
    body = b"".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for line in lines)
    end = {"line": "end", "lines": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    chunk = session_service_pb2.ImportChunk(sequence=1, jsonl=body + json.dumps(end).encode() + b"\n")
    header = session_service_pb2.ImportHeader(session_id=name)
    parts = [
        session_service_pb2.ImportSessionRequest(header=header),
        session_service_pb2.ImportSessionRequest(chunk=chunk),
    ]
    return client.session.ImportSession(iter(parts))


FORGED: dict[str, dict[str, object]] = {
    "a body that is no row": {"body": {"type": "user", "content": 5}},
    "a kind that is not the body's": {"kind": 5},
    "tokens below zero": {"tokens": -1},
    "bytes beyond 64 bits": {"bytes": 2**64},
    "an offset out of order": {"offset": 1},
    "an offset of later": {"offset": 99},
    "a revision of later": {"revision": 99},
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_w4_a_forged_export_is_refused_whole(client: Client, name: str, change: dict[str, object]) -> None:
    host = Host(client, name)
    host.append(user("one"))
    host.append(user("two"))
    *lines, _ = exported(client, name)
    assert imported(client, f"{name}-copy", lines).rows == 2
    at = max(n for n, line in enumerate(lines) if line["line"] == "row")
    lines[at] = lines[at] | change
    assert refused(imported, client, f"{name}-forged", lines).reason == "FORMAT_INVALID"
    asked = session_service_pb2.GetSessionRequest(session_id=f"{name}-forged")
    assert refused(client.session.GetSession, asked).reason == "SESSION_NOT_FOUND"


def test_w4_an_export_that_says_one_thing_twice_is_refused(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("one"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})  # fmt: skip
    *lines, _ = exported(client, name)
    lines.append(next(line for line in lines if line["line"] == "rewrite"))
    assert refused(imported, client, f"{name}-forged", lines).reason == "FORMAT_INVALID"


@pytest.fixture(scope="module")
def long_export(client: Client) -> list[dict[str, object]]:
    """A session with folds, an edit and a restore, as lines."""
    host = Host(client, "long", auto_compact=False)
    for fold in range(3):
        for n in range(4):
            host.append(user(f"{fold}.{n} {LONG}"), assistant(f"{fold}.{n} {LONG}"))
        host.compact()
    edit = session_service_pb2.EditRowsRequest(session_id="long", first_offset=25, last_offset=26)
    with contextlib.suppress(grpc.RpcError):
        client.session.EditRows(edit)
    client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id="long", revision=4))
    *lines, _ = exported(client, "long")
    return lines


def changed(value: Any, data: st.DataObject) -> Any:
    """The value with one number, text or member in it changed."""
    if isinstance(value, dict) and value:
        key = data.draw(st.sampled_from(sorted(value)))
        return value | {key: changed(value[key], data)}
    if isinstance(value, list) and value:
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], changed(value[at], data), *value[at + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + data.draw(st.sampled_from([-1, 1, 7]))
    if isinstance(value, str):
        return data.draw(st.sampled_from([value + "x", value[1:], value.upper()]))
    return data.draw(st.sampled_from([0, "", None, [], {}]))


_copies = itertools.count(1)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_v10_whatever_is_imported_verifies(
    client: Client, long_export: list[dict[str, object]], data: st.DataObject
) -> None:
    """A line that is changed, lost, doubled or moved, in an export whose own sum was made to fit."""
    lines, name = list(long_export), f"long-{next(_copies)}"
    at = data.draw(st.integers(1, len(lines) - 1))
    match data.draw(st.sampled_from(["change", "lose", "double", "move"])):
        case "change":
            lines[at] = changed(lines[at], data)
        case "lose":
            del lines[at]
        case "double":
            lines.insert(at, lines[at])
        case "move":
            lines.insert(data.draw(st.integers(1, len(lines) - 1)), lines.pop(at))
    try:
        imported(client, name, lines)
    except grpc.RpcError as error:
        assert refusal_of(error).reason == "FORMAT_INVALID", error
        found = refused(client.session.GetSession, session_service_pb2.GetSessionRequest(session_id=name))
        assert found.reason == "SESSION_NOT_FOUND"
        return
    verified = client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=name))
    assert verified.ok, verified.faults


def test_v10_an_export_that_is_forged_throughout_is_refused_by_what_does_not_hold(
    client: Client, long_export: list[dict[str, object]]
) -> None:
    lines = [dict(line) for line in long_export]
    at = next(n for n, line in enumerate(lines) if line["line"] == "row")
    lines[at]["body"] = {"type": "user", "content": [{"type": "text", "text": "never said"}]}
    found = refused(imported, client, "long-forged", lines)
    assert (found.reason, found.metadata["rule"]) == ("FORMAT_INVALID", "V7")


@pytest.mark.parametrize("digest", ["", "x", "0" * 63, "0" * 65, "g" * 64])
def test_v10_an_export_whose_digests_are_none_is_refused(
    client: Client, long_export: list[dict[str, object]], digest: str
) -> None:
    lines: list[Any] = json.loads(json.dumps(long_export))
    rewrites = [line["rewrite"] for line in lines if line["line"] == "rewrite"]
    rewrites[-2]["digest"] = digest
    assert refused(imported, client, "long-digest", lines).reason == "FORMAT_INVALID"
