"""Sessions whose transcript the host keeps: projections, and what the sidecar holds of them (H1-H3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    memory_service_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.integration.host import Host
from tests.integration.hosted import (
    Answer,
    HostedHost,
    assistant,
    flat,
    long_list,
    system,
    talk,
    user,
)
from tests.support.requests import raw
from tests.support.server import Client, refused, running_server


def folded(host: HostedHost, answer: Answer) -> None:
    """What every fold of a host's list must be: all of it kept or discarded, in order, the summary where told."""
    ids = host.ids()
    assert sorted([*answer.kept_row_ids, *answer.discarded_row_ids]) == sorted(ids)
    assert [i for i in ids if i in set(answer.kept_row_ids)] == list(answer.kept_row_ids)
    assert answer.summary.compaction_summary.digest == answer.record.digest
    assert answer.summary_before_row_id in {"", *answer.kept_row_ids}
    assert len(flat(answer.record.discarded)) == len(answer.discarded_row_ids)


# H3: the example


def test_h3_a_fold_is_staged_and_the_host_commits_it(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    folded(host, answer)
    assert host.ids()[-1] in answer.kept_row_ids
    assert answer.summary_before_row_id == answer.kept_row_ids[0]
    # Staged: counted, and nothing of it to be seen (V8).
    assert (host.found("file_3.py"), host.archive(), host.verify().rows_total) == ([], [], 0)
    assert list(host.ends().values()) == [[]]
    host.apply(answer)
    assert host.commit(answer) == answer.record.memory_entries > 0
    assert len(host.archive()) == len(answer.discarded_row_ids) + 1
    offset = host.found("file_3.py constant 231")[0]
    assert "constant 231" in host.text(offset)
    assert host.verify().ok
    assert list(host.ends().values()) == [["completed"]]
    assert not host.check().fold_due


def test_h3_what_a_commit_published_it_publishes_once(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    first = host.commit(answer, "c1")
    assert host.commit(answer, "c1") == host.commit(answer, "c2") == host.commit(answer) == first
    assert host.get().totals.memory_entries == first
    assert host.verify().folds == 1


def test_h3_an_aborted_projection_leaves_nothing(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    host.abort(answer)
    host.abort(answer)
    assert (host.archive(), host.found("file_3.py")) == ([], [])
    assert list(host.ends().values()) == [[compaction_pb2.FAILURE_KIND_CANCELLED]]
    refusal = refused(host.commit, answer)
    assert (refusal.code, refusal.reason) == ("NOT_FOUND", "PROJECTION_NOT_FOUND")
    assert refusal.metadata == {"projection_id": answer.projection_id}
    # C5: nothing is known against the source.
    assert not host.get().cadence.HasField("cooldown_until")
    again = host.compact(manual=True)
    assert min(flat(again.record.discarded)) > max(flat(answer.record.discarded)), "offsets are given once"


def test_h3_a_committed_projection_cannot_be_aborted(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    host.commit(answer)
    assert refused(host.abort, answer).reason == "PROJECTION_NOT_FOUND"
    assert host.verify().ok
    assert host.found("file_3.py")


def test_h3_a_projection_that_never_was_is_not_found(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    made_up = Answer(projection_id="pr-x")
    assert refused(host.commit, made_up).reason == refused(host.abort, made_up).reason == "PROJECTION_NOT_FOUND"


def test_h3_a_later_fold_takes_the_place_of_a_staged_one(client: Client, name: str) -> None:
    host = long_list(client, name)
    first = host.compact()
    # Another list than the one that was folded: an earlier row is gone.
    del host.list[4]
    second = host.compact(manual=True)
    assert second.projection_id not in ("", first.projection_id)
    assert refused(host.commit, first).reason == "PROJECTION_NOT_FOUND"
    host.commit(second)
    assert sorted(map(str, host.ends().values())) == ["['completed']", f"[{compaction_pb2.FAILURE_KIND_CANCELLED}]"]
    assert host.verify().ok


def test_h3_what_is_staged_is_given_again_while_the_list_only_grows(client: Client, name: str) -> None:
    """L2, A5: a host that lost its answer, or has appended since, gets the fold that is ready."""
    host = long_list(client, name)
    first = host.compact()
    host.add(user("one thing more"))
    again = host.compact()
    assert again.projection_id == first.projection_id
    assert list(again.discarded_row_ids) == list(first.discarded_row_ids)
    folded(host, again)
    assert again.prepare_id != first.prepare_id
    host.apply(again)
    host.commit(again)
    assert host.verify().ok
    assert len(host.ends()) == 1


def test_h3_a_system_row_that_replaces_one_leaves_what_is_staged_as_good(client: Client, name: str) -> None:
    """L2, 4.1: the version before counts nothing once another follows, so nothing more is left behind the fold."""
    host = HostedHost(client, name)
    host.add(system("rule " * 1200, "rules", 1))
    talk(host, 12)
    host.ask("next")
    first = host.compact(manual=True)
    threshold, left = first.pressure.threshold_tokens, first.record.tokens_after
    assert left + 1200 > threshold > left, "twice the row would not fit"
    host.add(system("rule " * 1200, "rules", 2))
    assert host.compact(manual=True).projection_id == first.projection_id


def test_h3_what_is_staged_is_not_given_again_once_it_may_not_fold_any_more(client: Client, name: str) -> None:
    """R6, V5: a pin, or a run that is open from earlier on, holds rows that the staged fold takes."""
    host = long_list(client, name)
    first = host.compact()
    pinned, opened = first.discarded_row_ids[4], first.discarded_row_ids[8]
    plain = list(host.list)
    for row_id, row in host.list:
        if row_id == pinned:
            row.pinned = True
    second = host.compact(manual=True)
    assert second.projection_id != first.projection_id
    assert pinned in second.kept_row_ids
    host.list, host.start = plain, opened
    third = host.compact(manual=True)
    assert third.projection_id != second.projection_id
    assert opened in third.kept_row_ids
    host.apply(third)
    host.commit(third)
    assert host.verify().ok


def test_h3_a_summary_that_stands_last_comes_before_what_was_appended(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    talk(host, 28)
    first = host.compact(override={"retention": {"turns": 0, "messages": 0}}, manual=True)
    assert first.summary_before_row_id == ""
    following = host.add(user("a new question"))[0]
    again = host.compact(override={"retention": {"turns": 0, "messages": 0}}, manual=True)
    assert again.projection_id == first.projection_id
    assert again.summary_before_row_id == following


# Restarts, and the end of a projection's time


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    return tmp_path, {"catalog": str(catalog)}


def test_h3_a_staged_projection_survives_a_restart(place: tuple[Path, dict[str, Any]]) -> None:
    with running_server(*place) as client:
        host = long_list(client, "s")
        answer = host.compact()
    with running_server(*place) as client:
        host.client = client
        assert host.archive() == []
        assert list(host.ends().values()) == [[]], "it is no fold that a crash cut off"
        host.apply(answer)
        assert host.commit(answer) == answer.record.memory_entries
        assert host.verify().ok
        assert list(host.ends().values()) == [["completed"]]
        assert not host.check().fold_due


@pytest.mark.parametrize("restarts", [False, True])
def test_h3_a_projection_ends_with_its_time(place: tuple[Path, dict[str, Any]], restarts: bool) -> None:
    clock = Clock()
    with running_server(*place, clock=clock) as client:
        host = long_list(client, "s")
        answer = host.compact(override={"memory": {"projection_ttl": {"seconds": 60}}})
        assert answer.projection_expire_time.ToSeconds() == int(clock.now) + 60
        clock.now += 60
        if not restarts:
            check_expired(host, answer)
    with running_server(*place, clock=clock) as client:
        host.client = client
        check_expired(host, answer)


def check_expired(host: HostedHost, answer: Answer) -> None:
    refusal = refused(host.commit, answer)
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "PROJECTION_EXPIRED")
    assert refusal.metadata["projection_id"] == answer.projection_id
    assert refusal.metadata["expire_time"] == answer.projection_expire_time.ToJsonString()
    host.abort(answer)
    assert list(host.ends().values()) == [[compaction_pb2.FAILURE_KIND_CANCELLED]]
    assert (host.archive(), host.found("file_3.py")) == ([], [])


# H2: summaries among the rows


def test_h2_an_issued_summary_is_an_earlier_summary(client: Client, name: str) -> None:
    """F8: it folds again, and what the user required is known from the record, not from the host."""
    host = long_list(client, name)
    host.list.insert(0, ("rule", user("Never touch the directory secrets/, this is important.")))
    first = host.fold()
    carried = first.summary.compaction_summary.text
    assert "secrets/" in carried
    place = next(i for i, (_, row) in enumerate(host.list) if row.HasField("compaction_summary"))
    summary_id = host.ids()[place]
    emptied = row_pb2.Row(compaction_summary=row_pb2.CompactionSummaryRow(text="-", digest=first.record.digest))
    host.list[place] = (summary_id, emptied)
    talk(host, 25, first=40)
    host.ask("next")
    second = host.fold(manual=True)
    assert summary_id in second.discarded_row_ids
    assert "secrets/" in second.summary.compaction_summary.text
    assert first.record.summary_offset in flat(second.record.discarded)
    assert host.verify().ok
    assert first.record.summary_offset not in host.found("summary of earlier work")


def test_h2_a_summary_of_no_record_is_refused(client: Client, name: str) -> None:
    host = long_list(client, name)
    other = long_list(client, f"{name}-other")
    foreign = other.fold()
    row = foreign.summary
    host.list.insert(0, ("x", row))
    for call in (host.compact, host.check):
        refusal = refused(call)
        assert (refusal.reason, refusal.metadata) == ("SUMMARY_ROW_REFUSED", {"row": "0", "row_id": "x"})


def test_h2_a_summary_whose_projection_was_aborted_is_refused(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    host.apply(answer, "s")
    refusal = refused(host.compact, manual=True)
    assert (refusal.reason, refusal.metadata["row_id"]) == ("SUMMARY_ROW_REFUSED", "s")
    assert answer.projection_id in refusal.message
    assert not host.check().fold_due, "measuring it is no harm"
    host.abort(answer)
    assert refused(host.check).reason == refused(host.compact).reason == "SUMMARY_ROW_REFUSED"


# M2: what folds again


def test_m2_a_fold_that_the_host_undoes_is_hidden_and_then_shown_again(client: Client, name: str) -> None:
    host = long_list(client, name)
    before = list(host.list)
    first = host.fold()
    entries = host.get().totals.memory_entries
    assert host.found("file_3.py")
    host.list = before
    host.add(assistant("done"), user("again"))
    host.start = host.ids()[-1]
    host.compact(override={"auto_compact": False})
    assert (host.found("file_3.py"), host.get().totals.memory_entries) == ([], 0)
    assert host.verify().ok
    second = host.fold(manual=True)
    assert flat(first.record.discarded) == flat(second.record.discarded)[: len(flat(first.record.discarded))]
    assert host.get().totals.memory_entries >= entries
    hits = host.found("file_3.py", 20)
    assert len(hits) == len(set(hits))
    assert host.verify().ok
    assert len(host.archive()) == len(set(flat(second.record.discarded))) + 2


def test_m2_another_content_under_the_id_of_a_folded_row_is_refused(client: Client, name: str) -> None:
    host = long_list(client, name)
    before = list(host.list)
    answer = host.fold()
    changed = answer.discarded_row_ids[3]
    host.list = [(i, user("something else") if i == changed else row) for i, row in before]
    for call in (host.compact, host.check):
        refusal = refused(call)
        assert (refusal.reason, refusal.metadata["value"]) == ("FIELD_VALIDATION", changed)
    assert host.verify().ok


def test_m2_a_row_that_never_folded_may_change(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.fold()
    kept = answer.kept_row_ids[-2]
    host.list = [(i, user("edited by the host") if i == kept else row) for i, row in host.list]
    host.check()


# Which sessions


def test_h1_a_list_that_is_not_here_is_neither_read_nor_changed(client: Client, name: str) -> None:
    HostedHost(client, name)
    session, compaction = client.session, client.compaction
    rows = raw({"role": "user", "content": "x"})
    made = [
        (session.AppendRows, session_service_pb2.AppendRowsRequest(session_id=name, input=rows)),
        (session.EditRows, session_service_pb2.EditRowsRequest(session_id=name, first_offset=1, last_offset=1)),
        (session.PinRows, session_service_pb2.PinRowsRequest(session_id=name, offsets=[1], pinned=True)),
        (session.RestoreRevision, session_service_pb2.RestoreRevisionRequest(session_id=name, revision=0)),
        (session.RenderTranscript, session_service_pb2.RenderTranscriptRequest(session_id=name, format=1)),
        (session.ListRows, session_service_pb2.ListRowsRequest(session_id=name, view=session_pb2.ROW_VIEW_ACTIVE)),
        (
            compaction.PrepareRequest,
            compaction_service_pb2.PrepareRequestRequest(session_id=name, run_id="r", append=rows),
        ),
        (compaction.CheckPressure, compaction_service_pb2.CheckPressureRequest(session_id=name)),
        (compaction.PlanCompaction, compaction_service_pb2.PlanCompactionRequest(session_id=name)),
        (compaction.CompactSession, compaction_service_pb2.CompactSessionRequest(session_id=name)),
    ]
    for call, request in made:
        refusal = refused(call, request)
        assert (refusal.reason, refusal.metadata["range"]) == ("FIELD_VALIDATION", "a session that is SIDECAR_OWNED")


def test_h1_a_list_that_is_kept_here_is_not_sent_along(client: Client, name: str) -> None:
    Host(client, name)
    other = HostedHost(client, name, create=False)
    other.add(user("x"))
    made_up = Answer(projection_id="pr-x")
    for call in (other.compact, other.check, lambda: other.commit(made_up), lambda: other.abort(made_up)):
        refusal = refused(call)
        assert (refusal.reason, refusal.metadata["range"]) == ("FIELD_VALIDATION", "a session that is HOST_OWNED")


# W2


def test_w2_a_repeat_gives_the_first_answer(client: Client, name: str) -> None:
    host = long_list(client, name)
    first = host.compact(request_id="q")
    again = host.compact(request_id="q")
    assert first == again
    assert host.get().totals.boundaries == 29
    host.add(user("more"))
    assert refused(host.compact, request_id="q").reason == "REQUEST_ID_REUSED"
    assert len(host.ends()) == 1


def test_w2_a_skipped_one_is_measured_again_at_the_same_boundary(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.ask("x")
    skipped = host.compact(request_id="q", shape={"input_tokens": 3_900})
    assert skipped.skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD
    again = host.compact(request_id="q", shape={"input_tokens": 3_900})
    assert again.skip == skipped.skip
    assert host.get().totals.boundaries == 1


# Moving and removing


def test_w_an_export_knows_rows_and_summaries_again(client: Client, name: str) -> None:
    host = long_list(client, name)
    before = list(host.list)
    answer = host.fold()
    chunks = list(client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=name)))

    def messages() -> Any:
        header = session_service_pb2.ImportHeader(session_id=f"{name}-copy")
        yield session_service_pb2.ImportSessionRequest(header=header)
        for number, chunk in enumerate(chunks, 1):
            part = session_service_pb2.ImportChunk(sequence=number, jsonl=chunk.jsonl)
            yield session_service_pb2.ImportSessionRequest(chunk=part)

    client.session.ImportSession(messages())
    copy = HostedHost(client, f"{name}-copy", create=False)
    copy.list, copy.start = list(host.list), host.start
    assert copy.verify().ok
    assert copy.found("file_3.py") == host.found("file_3.py")
    assert not copy.check().fold_due
    assert copy.commit(answer) == answer.record.memory_entries
    copy.list = [(i, user("x") if i == answer.discarded_row_ids[0] else row) for i, row in before]
    assert refused(copy.check).reason == "FIELD_VALIDATION"


def test_h3_an_export_leaves_what_is_staged_behind(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    chunks = list(client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=name)))

    def messages() -> Any:
        header = session_service_pb2.ImportHeader(session_id=f"{name}-copy")
        yield session_service_pb2.ImportSessionRequest(header=header)
        for number, chunk in enumerate(chunks, 1):
            part = session_service_pb2.ImportChunk(sequence=number, jsonl=chunk.jsonl)
            yield session_service_pb2.ImportSessionRequest(chunk=part)

    client.session.ImportSession(messages())
    copy = HostedHost(client, f"{name}-copy", create=False)
    copy.list, copy.start = list(host.list), host.start
    assert refused(copy.commit, answer).reason == "PROJECTION_NOT_FOUND"
    assert list(copy.ends().values()) == [[compaction_pb2.FAILURE_KIND_CANCELLED]]
    fresh = copy.fold(manual=True)
    assert fresh.projection_id != answer.projection_id
    assert copy.verify().ok
    host.commit(answer)


def test_h3_a_deleted_session_takes_what_is_staged_along(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=name))
    assert refused(host.commit, answer).reason == "SESSION_NOT_FOUND"
    other = long_list(client, name)
    assert refused(other.commit, answer).reason == "PROJECTION_NOT_FOUND"
    other.fold()
    assert other.verify().ok


# M7: a scope that is dropped


def test_m7_a_projection_of_a_dropped_scope_is_committed_without_memory(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    client.memory.DropScope(memory_service_pb2.DropScopeRequest(session_id=name))
    assert host.commit(answer) == 0
    assert (host.found("file_3.py"), len(host.archive())) == ([], len(answer.discarded_row_ids) + 1)
    record = next(e for e in host.events() if e.HasField("compaction_completed")).compaction_completed.record
    assert (record.memory_dropped, record.memory_entries) == (True, 0)
    assert record.create_time.seconds
    assert host.verify().ok
    host.apply(answer)
    talk(host, 20, first=50)
    host.ask("next")
    later = host.compact(manual=True)
    assert (later.record.memory_dropped, later.record.memory_entries) == (True, 0)
    assert host.commit(later) == 0
    assert host.verify().ok
