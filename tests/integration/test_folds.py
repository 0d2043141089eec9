"""Folds, edits and restores over gRPC: what they keep, what they say, what they never lose (§6, §7, §13, §16)."""

from __future__ import annotations

import json

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.integration.host import Host
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused

LONG = "The queue drops messages when the consumer restarts before it has acknowledged them. " * 10


def grown(client: Client, name: str, turns: int = 8) -> Host:
    """A session of a few turns with a tool call each, none folded yet."""
    host = Host(client, name, auto_compact=False)
    for n in range(turns):
        call = f"c{n}"
        host.append(
            user(f"Question {n}: why does worker-{n} stall? {LONG}"),
            calls(call),
            result(call, f"worker-{n}.log: E{4000 + n} broken pipe in /srv/worker_{n}/queue.py"),
            assistant(f"Cause {n}."),
        )
    return host


def test_a_manual_fold_folds_and_every_row_is_accounted_for(client: Client, name: str) -> None:
    """P7, V1, V10."""
    host = grown(client, name)
    before = {r.offset: r.SerializeToString(deterministic=True) for r in host.archive()}
    record = host.compact()
    assert record.tokens_after < record.tokens_before
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
    after = {r.offset: r for r in host.archive()}
    for offset, row in before.items():
        kept = row_pb2.Row.FromString(after[offset].SerializeToString())
        kept.archived = False
        assert kept.SerializeToString(deterministic=True) == row
    verified = host.verify()
    assert verified.ok, verified.faults
    assert verified.rows_total == len(before) + 1
    assert verified.rows_archived == verified.rows_total - verified.rows_active


def test_a_fold_is_a_start_and_one_end(client: Client, name: str) -> None:
    """§13."""
    host = grown(client, name)
    record = host.compact()
    kinds = [(e.kind, e.fold_id) for e in host.events()]
    assert kinds == [
        (event_pb2.EVENT_KIND_COMPACTION_STARTED, record.fold_id),
        (event_pb2.EVENT_KIND_COMPACTION_COMPLETED, record.fold_id),
    ]
    assert [e.sequence for e in host.events()] == [1, 2]


def test_v4_no_call_is_separated_from_its_result(client: Client, name: str) -> None:
    host = grown(client, name)
    host.compact()
    active = {r.offset: r for r in host.active()}
    for row in active.values():
        if row.HasField("tool_result") and not row.tool_result.late:
            assert row.tool_result.call_offset in active


def test_m2_what_was_folded_is_found_by_identifier(client: Client, name: str) -> None:
    host = grown(client, name)
    assert not host.search("E4001").hits
    host.compact()
    hits = host.search("E4001").hits
    assert any("E4001" in h.text for h in hits)
    assert host.search("worker_1/queue.py").hits[0].offset == hits[0].offset


def test_m5_search_limits(client: Client, name: str) -> None:
    host = grown(client, name, 1)
    assert refused(host.search, "x", limit=0).reason == "MEMORY_LIMIT_EXCEEDED"
    assert refused(host.search, "x", limit=21).reason == "MEMORY_LIMIT_EXCEEDED"
    assert refused(host.search, "   ").reason == "EMPTY_QUERY"
    assert not host.search("x", limit=20).hits


def test_nothing_to_fold_is_an_error_of_a_manual_fold(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("only this"))
    refusal = refused(host.compact)
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "NOTHING_TO_FOLD")
    assert host.verify().ok


def test_r6_a_pinned_row_stays_with_its_unit(client: Client, name: str) -> None:
    host = grown(client, name)
    pinned = next(r.offset for r in host.active() if r.HasField("tool_result"))
    answer = client.session.PinRows(session_service_pb2.PinRowsRequest(session_id=name, offsets=[pinned], pinned=True))
    assert answer.changed == 1
    host.compact()
    kept = host.offsets()
    assert pinned in kept
    assert pinned - 1 in kept


def test_f8_the_earlier_summary_folds_and_its_constraints_go_on(client: Client, name: str) -> None:
    host = grown(client, name)
    host.append(user("Never restart the primary before 18:00. " + LONG), assistant("Understood."))
    host.compact()
    for n in range(6):
        host.append(user(f"Later question {n}. {LONG}"), assistant(f"Later answer {n}."))
    record = host.compact()
    summaries = [r for r in host.active() if r.HasField("compaction_summary")]
    assert len(summaries) == 1
    assert "Never restart the primary before 18:00" in record.summary_text
    assert host.verify().ok


def test_f3_in_run_folds_list_the_calls_already_made(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("Fix it."))
    pending: list[dict[str, object]] = []
    for n in range(12):
        outcome = host.answer(prepared, calls(f"c{n}"))
        pending = [result(f"c{n}", f"output {n}: {LONG} {LONG}")]
        prepared = host.prepare("r1", *pending, previous_answer=outcome)
    assert host.get().totals.folds >= 1
    rendered = json.dumps(host.rendered())
    assert "Calls already made for the request above" in rendered
    assert "Fix it." in rendered
    assert host.verify().ok, host.verify().faults


def test_x2_a_restore_brings_the_list_back_and_memory_hides_it(client: Client, name: str) -> None:
    host = grown(client, name)
    before, revision = host.offsets(), host.get().session.revision
    host.compact()
    assert host.search("E4001").hits
    restored = client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=name, revision=revision)
    )
    assert host.offsets() == before
    assert restored.revision == revision + 2
    assert not host.search("E4001").hits
    assert host.verify().ok, host.verify().faults
    host.compact()
    assert host.search("E4001").hits
    assert host.verify().ok, host.verify().faults


def test_x1_an_edit_may_not_split_a_unit(client: Client, name: str) -> None:
    host = grown(client, name, 2)
    call = next(r.offset for r in host.active() if r.HasField("assistant"))

    def edit(first: int, last: int) -> session_service_pb2.EditRowsResponse:
        return client.session.EditRows(
            session_service_pb2.EditRowsRequest(session_id=name, first_offset=first, last_offset=last)
        )

    assert refused(edit, call, call).reason == "EDIT_SPLITS_UNIT"
    edit(call, call + 1)
    assert host.offsets() == [1, 4, 5, 6, 7, 8]
    assert refused(host.append, result("c0", "again")).reason == "UNKNOWN_TOOL_CALL"
    assert host.verify().ok, host.verify().faults


def test_x2_an_edit_of_the_request_cancels_the_run(client: Client, name: str) -> None:
    host = Host(client, name)
    host.prepare("r1", user("do this"))
    edited = client.session.EditRows(
        session_service_pb2.EditRowsRequest(session_id=name, first_offset=1, last_offset=1)
    )
    assert edited.cancelled_run_id == "r1"
    assert host.get().session.open_run_id == ""


def test_plan_shows_what_a_fold_would_do_and_changes_nothing(client: Client, name: str) -> None:
    host = grown(client, name)
    revision = host.get().session.revision
    planned = client.compaction.PlanCompaction(compaction_service_pb2.PlanCompactionRequest(session_id=name))
    assert host.get().session.revision == revision
    assert not host.events()
    record = host.compact()
    assert list(planned.plan.discarded) == list(record.discarded)


def test_export_and_import_are_lossless(client: Client, name: str) -> None:
    host = grown(client, name)
    host.compact()
    host.append(user("after"), assistant("the fold"))
    chunks = list(client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=name)))
    assert chunks[-1].last

    def messages():
        header = session_service_pb2.ImportHeader(session_id=f"{name}-copy")
        yield session_service_pb2.ImportSessionRequest(header=header)
        for chunk in chunks:
            part = session_service_pb2.ImportChunk(sequence=chunk.sequence, jsonl=chunk.jsonl)
            yield session_service_pb2.ImportSessionRequest(chunk=part)

    imported = client.session.ImportSession(messages())
    assert imported.rows == len(host.archive())
    copy = Host.__new__(Host)
    copy.client, copy.id, copy.list, copy.revision = client, f"{name}-copy", [], 0
    assert copy.archive() == host.archive()
    assert copy.rendered() == host.rendered()
    assert copy.verify().ok, copy.verify().faults
    assert [h.offset for h in copy.search("E4001").hits] == [h.offset for h in host.search("E4001").hits]
    assert refused(client.session.ImportSession, messages()).reason == "SESSION_EXISTS"


def test_a_cut_export_is_refused_whole(client: Client, name: str) -> None:
    host = grown(client, name, 1)
    (chunk,) = client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=name))
    cut = chunk.jsonl[: len(chunk.jsonl) // 2]

    def messages():
        yield session_service_pb2.ImportSessionRequest(header=session_service_pb2.ImportHeader(session_id="cut"))
        yield session_service_pb2.ImportSessionRequest(chunk=session_service_pb2.ImportChunk(sequence=1, jsonl=cut))

    assert refused(client.session.ImportSession, messages()).reason == "FORMAT_INVALID"
    missing = refused(client.session.GetSession, session_service_pb2.GetSessionRequest(session_id="cut"))
    assert missing.reason == "SESSION_NOT_FOUND"
    assert host.verify().ok


def test_delete_removes_everything_and_a_repeat_is_fine(client: Client, name: str) -> None:
    host = grown(client, name, 2)
    host.compact()
    request = session_service_pb2.DeleteSessionRequest(session_id=name, request_id="d")
    client.session.DeleteSession(request)
    client.session.DeleteSession(request)
    assert refused(host.get).reason == "SESSION_NOT_FOUND"
    again = Host(client, name)
    assert not again.archive()
    assert not again.search("E4001").hits


@pytest.mark.parametrize(("source", "reason"), [("CURATOR", "CURATOR_UNAVAILABLE"), ("PROVIDER", "SUMMARIZER_FAILED")])
def test_s2_a_source_that_is_not_there_fails_the_fold_and_history_stays(
    client: Client, name: str, source: str, reason: str
) -> None:
    host = grown(client, name)
    before = host.offsets()
    policy = policy_pb2.Policy()
    policy.summary.source = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source}")
    client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id=name, policy=policy))
    assert refused(host.compact).reason == reason
    assert host.offsets() == before
    assert [e.kind for e in host.events()] == [
        event_pb2.EVENT_KIND_COMPACTION_STARTED,
        event_pb2.EVENT_KIND_COMPACTION_FAILED,
    ]
    policy.summary.on_failure = policy_pb2.ON_FAILURE_NEXT
    client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id=name, policy=policy))
    if source == "PROVIDER":
        assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
    else:
        assert refused(host.compact).reason == reason


def test_c5_a_failed_automatic_fold_cools_down_and_the_request_goes_out(client: Client, name: str) -> None:
    host = grown(client, name, 14)
    policy = policy_pb2.Policy(auto_compact=True)
    policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR
    client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id=name, policy=policy))
    question = user(LONG + LONG + LONG + LONG + LONG + LONG)
    failed = host.prepare("r1", question)
    assert failed.action == compaction_pb2.ACTION_SEND
    assert failed.skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
    assert failed.failure == compaction_pb2.FAILURE_KIND_CURATOR_UNAVAILABLE
    assert host.get().cadence.HasField("cooldown_until")
    cooling = host.prepare("r1", user("more"))
    assert cooling.skip == compaction_pb2.SKIP_REASON_COOLDOWN
    assert cooling.action == compaction_pb2.ACTION_SEND
    assert host.verify().ok
