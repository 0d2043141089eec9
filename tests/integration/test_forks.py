"""Forks over gRPC: what they hold, what they leave behind, and that both sides go on (X3, L2)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, row_pb2, session_pb2, session_service_pb2

from tests.integration.host import Host
from tests.integration.hosted import HostedHost, long_list, talk
from tests.integration.test_boundaries import LONG, codes
from tests.integration.test_readings import system
from tests.integration.test_rewrites import Slow, compacted, long_session, slow
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server

__all__ = ["slow"]


class Fork(Host):
    """A host of a fork."""

    def __init__(self, source: Host, session_id: str, **fields: Any) -> None:
        self.client, self.id, self.list, self.revision = source.client, session_id, [], 0
        request = session_service_pb2.ForkSessionRequest(session_id=source.id, fork_session_id=session_id, **fields)
        self.session = source.client.session.ForkSession(request).session


def history(host: Host) -> list[session_pb2.Revision]:
    request = session_service_pb2.ListRevisionsRequest(session_id=host.id, page_size=500)
    return list(host.client.session.ListRevisions(request).revisions)


def listed(host: Host, revision: int) -> list[row_pb2.Row]:
    request = session_service_pb2.ListRowsRequest(
        session_id=host.id, view=session_pb2.ROW_VIEW_ACTIVE, revision=revision, page_size=500
    )
    return list(host.client.session.ListRows(request).rows)


def restore(host: Host, revision: int) -> None:
    host.client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=host.id, revision=revision)
    )


def edit(host: Host, first: int, last: int) -> None:
    host.client.session.EditRows(
        session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=first, last_offset=last)
    )


def delete(host: Host) -> None:
    host.client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=host.id))


def whole(*hosts: Host) -> bool:
    return all(host.verify().ok for host in hosts)


def folded_twice(client: Client, name: str) -> Host:
    """Ten turns, a fold (revision 11), ten turns, a fold (revision 22), a question."""
    host = Host(client, name, auto_compact=False)
    for part in range(2):
        for n in range(10):
            host.append(user(f"walnut{part}x{n} {LONG}"), assistant(f"parrot{part}x{n} {LONG}"))
        host.compact()
    host.append(user("what now?"))
    return host


def test_x3_a_fork_of_the_current_revision_is_the_session_under_another_id(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    before = host.get()
    fork = Fork(host, f"{name}-f", labels={"branch": "b"})
    session = fork.session
    assert (session.session_id, session.forked_from, dict(session.labels)) == (f"{name}-f", name, {"branch": "b"})
    assert (session.revision, session.digest) == (before.session.revision, before.session.digest)
    assert (session.model, session.policy) == (before.session.model, before.session.policy)
    assert fork.active() == host.active()
    assert fork.archive() == host.archive()
    assert fork.rendered() == host.rendered()
    totals = fork.get().totals
    same = ("rows_total", "rows_active", "folds", "tokens_active", "bytes_active", "boundaries", "memory_entries")
    assert [getattr(totals, f) for f in same] == [getattr(before.totals, f) for f in same]
    assert [r.revision for r in history(fork)] == [r.revision for r in history(host)] == [22, 11, 0]
    made = history(fork)[-1]
    assert (made.kind, made.parent_revision) == (session_pb2.REVISION_KIND_FORK, before.session.revision)
    assert whole(host, fork)
    assert host.get() == before, "the source is not changed"


@pytest.mark.parametrize(
    ("revision", "folds", "walnuts"), [(10, 0, set()), (11, 1, {0}), (21, 1, {0}), (22, 2, {0, 1})]
)
def test_x3_a_fork_of_the_past_is_the_session_as_it_was(
    client: Client, name: str, revision: int, folds: int, walnuts: set[int]
) -> None:
    """M1, X3: before and after each fold; a search sees only folds up to the fork point."""
    host = folded_twice(client, name)
    fork = Fork(host, f"{name}-f", revision=revision)
    assert fork.session.revision == revision
    assert fork.active() == listed(host, revision)
    assert fork.get().totals.folds == folds == sum(r.HasField("fold") for r in history(fork))
    assert fork.get().cadence.boundaries == (20 if revision > 20 else 10)
    for part in range(2):
        found = {h.offset for h in fork.search(f"walnut{part}x0", limit=20).hits if f"walnut{part}x0" in h.text}
        assert found == ({1 + 21 * part} if part in walnuts else set())
    assert whole(host, fork)
    record = fork.compact()
    assert record.revision_after == revision + 1
    assert whole(host, fork)


def test_x3_a_fork_restores_to_before_its_fork_point_and_folds_again(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    fork = Fork(host, f"{name}-f")
    restore(fork, 5)
    assert fork.active() == listed(host, 5)
    assert not fork.search("walnut0x0").hits
    fork.append(user("another way"))
    restore(fork, 22)
    assert fork.offsets() == [r.offset for r in listed(host, 22)]
    assert fork.search("walnut1x0").hits[0].offset == 22
    restore(fork, 10)
    fork.append(assistant("on from there"))
    fork.compact()
    assert whole(host, fork)


def test_x3_an_offset_is_the_last_revision_before_a_later_row(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    for n in range(6):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    edit(host, 1, 2)
    host.compact()
    host.append(user("tail"))
    at = {offset: Fork(host, f"{name}-{offset}", offset=offset).session.revision for offset in range(15)}
    # 11 and 12 come with revision 6, the edit is 7, the summary (13) 8, the tail (14) 9.
    assert at == {0: 0, **{o: o // 2 for o in range(1, 12)}, 12: 7, 13: 8, 14: 9}
    assert refused(Fork, host, f"{name}-x", offset=15).reason == "FIELD_VALIDATION"


def test_x3_what_may_go_wrong_is_named(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("hello"))
    unknown = refused(Fork, host, f"{name}-f", revision=2)
    assert (unknown.code, unknown.reason) == ("NOT_FOUND", "REVISION_NOT_FOUND")
    assert (unknown.metadata["revision"], unknown.metadata["newest"]) == ("2", "1")
    assert refused(Fork, host, name).reason == "SESSION_EXISTS"
    host.id = f"{name}-none"
    assert refused(Fork, host, f"{name}-f").reason == "SESSION_NOT_FOUND"


def test_x3_an_empty_fork_begins_anew(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    fork = Fork(host, f"{name}-f", revision=0)
    assert (fork.archive(), fork.get().cadence.boundaries) == ([], 0)
    assert fork.append(user("hello")).first_offset == 1
    assert whole(host, fork)


def test_w2_a_fork_is_made_once_under_its_id(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("hello"))
    request = session_service_pb2.ForkSessionRequest(session_id=name, request_id=f"{name}-fork")
    with ThreadPoolExecutor(8) as pool:
        made = {s.session.session_id for s in pool.map(lambda _: client.session.ForkSession(request), range(8))}
    assert len(made) == 1
    delete(host)
    assert client.session.ForkSession(request).session.session_id in made, "also once the source is gone"
    request.revision = 0
    assert refused(client.session.ForkSession, request).reason == "REQUEST_ID_REUSED"
    assert refused(client.session.CreateSession, create_with(request.request_id)).reason == "REQUEST_ID_REUSED"


def create_with(request_id: str) -> session_service_pb2.CreateSessionRequest:
    return session_service_pb2.CreateSessionRequest(request_id=request_id)


def test_x3_both_sides_go_on_and_neither_sees_the_other(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    fork = Fork(host, f"{name}-f")
    child = Fork(fork, f"{name}-c", revision=15)
    sides = {"host": host, "fork": fork, "child": child}
    for side, each in sides.items():
        for n in range(8):
            each.append(user(f"{side}word{n} {LONG}"), assistant(f"{n} {LONG}"))
        each.compact()
    for side, each in sides.items():
        for other in sides:
            hits = [h for h in each.search(f"{other}word0").hits if f"{other}word0" in h.text]
            assert bool(hits) == (side == other)
    assert whole(*sides.values())
    delete(host)
    assert whole(fork, child)
    assert fork.search("walnut0x3").hits[0].offset == 7
    delete(fork)
    assert whole(child)
    assert child.session.forked_from == fork.id
    assert child.search("walnut0x3").hits[0].offset == 7
    assert child.archive()[6].user.content[0].text.text.startswith("walnut0x3")
    delete(child)


def test_x3_a_fork_of_a_run_takes_its_calls_and_not_the_run(client: Client, name: str) -> None:
    """R3: what waits for a result waits in the fork too, in place; another run continues what was left out."""
    host = Host(client, name)
    first = host.prepare("r1", user("Look it up."))
    host.record("r1", host.answer(first, calls("a", "b")))
    fork = Fork(host, f"{name}-f")
    assert fork.session.open_run_id == ""
    refusal = refused(fork.prepare, "r1", result("a", "found"))
    assert (refusal.reason, refusal.metadata["run_id"]) == ("RUN_NOT_OPEN", "r1")
    assert refused(fork.record, "", fork.answer(first, assistant("late"))).reason == "PREPARE_NOT_FOUND"
    went_on = fork.prepare("r2", result("a", "found"), result("b", "nothing"))
    assert went_on.pressure_sent.parts.request > 0, "the request of the run that it continues"
    assert [m["role"] for m in fork.rendered()] == ["user", "assistant", "tool", "tool"]
    assert not any(r.tool_result.late for r in fork.active())
    # The source's run goes on as if nothing had been.
    second = host.prepare("r1", result("b", "something"), result("a", "else"))
    host.record("r1", host.answer(second, assistant("done"), finish=compaction_pb2.RUN_OUTCOME_COMPLETED))
    assert [m["content"] for m in host.rendered() if m["role"] == "tool"] == ["something", "else"]
    assert whole(host, fork)


def test_r3_a_fork_of_the_past_asks_again_what_was_answered_since(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("Look it up."))
    asked = host.record("r1", host.answer(first, calls("a"))).revision
    second = host.prepare("r1", result("a", "found"))
    host.record("r1", host.answer(second, assistant("done"), finish=compaction_pb2.RUN_OUTCOME_COMPLETED))
    fork = Fork(host, f"{name}-f", revision=asked)
    assert fork.prepare("r2", result("a", "found elsewhere")).action == compaction_pb2.ACTION_SEND
    assert [m["content"] for m in fork.rendered()] == ["Look it up.", None, "found elsewhere"]
    assert refused(fork.append, result("a", "again")).reason == "DUPLICATE_TOOL_RESULT"
    assert whole(host, fork)


def test_r3_a_result_is_late_in_a_fork_where_its_call_was_sent_unanswered_or_folded(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    host.append(user("look"), calls("a"))
    host.prepare("r1", user("never mind"))
    sent = Fork(host, f"{name}-sent")
    assert "LATE_RESULT" in codes(sent.append(result("a", "late")).warnings)
    for n in range(6):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=name, run_id="r1", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
        )
    )
    folded = host.compact().revision_after
    host.append(result("a", "late here"))
    past = Fork(host, f"{name}-folded", revision=folded)
    assert "LATE_RESULT" in codes(past.append(result("a", "late there")).warnings)
    assert refused(host.append, result("a", "again")).reason == "DUPLICATE_TOOL_RESULT"
    assert refused(past.append, result("a", "again")).reason == "DUPLICATE_TOOL_RESULT"
    # Before anything was sent it is on time.
    early = Fork(host, f"{name}-early", revision=1)
    assert "LATE_RESULT" not in codes(early.append(result("a", "on time")).warnings)
    assert whole(host, sent, past, early)


def test_r3_a_call_that_was_removed_by_then_is_gone_in_the_fork(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("look"))
    with_call = host.append(calls("a")).revision
    edit(host, 2, 2)
    removed = host.get().session.revision
    host.append(user("or not"))
    restore(host, with_call)
    fork = Fork(host, f"{name}-f", revision=removed)
    refusal = refused(fork.append, result("a", "found"))
    assert (refusal.reason, refusal.metadata["removed_by"]) == ("UNKNOWN_TOOL_CALL", str(removed))
    host.append(result("a", "found"))
    assert whole(host, fork)


def test_r5_a_fork_has_the_system_rows_of_its_revision(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    host.rows(system("first rules", "rules", 1))
    host.append(user("hello"))
    before = host.get().session.revision
    host.rows(system("later rules", "rules", 3))
    past, now = Fork(host, f"{name}-p", revision=before), Fork(host, f"{name}-n")
    assert [m["content"] for m in past.rendered()] == ["first rules", "hello"]
    assert [m["content"] for m in now.rendered()] == ["later rules", "hello"]
    past.rows(system("other rules", "rules", 2))
    assert refused(now.rows, system("other rules", "rules", 2)).reason == "STALE_SYSTEM_VERSION"
    assert [m["content"] for m in past.rendered()] == ["other rules", "hello"]
    assert whole(host, past, now)


def test_r6_pins_come_along_and_part_from_then_on(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    for n in range(8):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    pin = session_service_pb2.PinRowsRequest(session_id=name, offsets=[3], pinned=True)
    client.session.PinRows(pin)
    fork = Fork(host, f"{name}-f", revision=7)
    assert [r.offset for r in fork.active() if r.pinned] == [3]
    pin.session_id, pin.pinned = fork.id, False
    client.session.PinRows(pin)
    assert [r.offset for r in host.active() if r.pinned] == [3]
    host.compact()
    assert 3 in host.offsets()
    fork.compact()
    assert 3 not in fork.offsets()
    assert whole(host, fork)


def test_x3_a_fork_keeps_the_cadence_and_neither_count_nor_anchor_nor_fact(client: Client, name: str) -> None:
    """5, X3: no count, anchor or did-not-fit fact; boundaries and the last fold are those of the source."""
    host = Host(client, name)
    for n in range(30):
        host.turn(f"r{n}", f"{n} {LONG}", f"{n} {LONG}")
    prepared = host.prepare("last", user("go"))
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens, "completion_tokens": 2}
    host.record("last", host.answer(prepared, assistant("ok"), usage=usage))
    refused_one = host.prepare("last", user("more"))
    host.refuse("last", refused_one.prepare_id, 413, "")
    state = host.get().cadence
    assert state.HasField("count_tokens")
    assert state.did_not_fit
    fork = Fork(host, f"{name}-f").get()
    for kept in ("boundaries", "last_fold_boundary", "last_attempt_boundary", "left_tokens", "left_threshold_tokens"):
        assert getattr(fork.cadence, kept) == getattr(state, kept)
    assert not fork.cadence.HasField("count_tokens")
    assert not fork.cadence.HasField("anchor_tokens")
    assert fork.cadence.did_not_fit == ""
    assert all(not u.calls and not u.folds for u in fork.totals.usage), "what the source used is not counted twice"


def test_x3_the_cadence_of_the_past_is_that_of_its_folds(client: Client, name: str) -> None:
    host = Host(client, name)
    seen: dict[int, session_pb2.CadenceState] = {}
    for n in range(40):
        host.turn(f"r{n}", f"{n} {LONG}", f"{n} {LONG}")
        seen[host.get().session.revision] = host.get().cadence
    assert host.get().totals.folds >= 2
    for revision, state in seen.items():
        found = Fork(host, f"{name}-{revision}", revision=revision).get().cadence
        for kept in ("boundaries", "last_fold_boundary", "last_attempt_boundary", "left_tokens"):
            assert (kept, getattr(found, kept)) == (kept, getattr(state, kept))


def test_x2_a_fork_of_a_restored_revision_is_not_folded_again_at_once(client: Client, name: str) -> None:
    host = long_session(client, name, 13)
    before = host.get().session.revision
    assert host.prepare("r1", user(LONG)).HasField("fold")
    restore(host, before)
    restored = host.get().session.revision
    host.prepare("r2", user(LONG))
    for fork in (Fork(host, f"{name}-f", revision=restored), Fork(host, f"{name}-g")):
        prepared = fork.prepare("r3", user(LONG))
        assert not prepared.HasField("fold")
        assert prepared.skip == compaction_pb2.SKIP_REASON_AFTER_RESTORE
        assert fork.prepare("r3", user(LONG * 4)).HasField("fold")
    plain = Fork(host, f"{name}-p", revision=before)
    assert plain.prepare("r3", user(LONG)).HasField("fold")


def test_f3_a_run_of_a_fork_takes_over_the_ledger(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("Fix it."))
    for n in range(5):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    host.compact()
    fork = Fork(host, f"{name}-f")
    prepared = fork.prepare("r2")
    for n in range(5, 9):
        outcome = fork.answer(prepared, calls(f"c{n}"))
        prepared = fork.prepare("r2", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    fork.compact()
    assert "read({}) ×8: ran" in fork.rendered()[1]["content"]
    assert whole(host, fork)


def test_13_a_fork_has_events_of_its_own(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    fork = Fork(host, f"{name}-f")
    assert fork.events() == []
    for n in range(8):
        fork.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    fork.compact()
    assert [e.sequence for e in fork.events()] == [1, 2]
    assert len(host.events()) == 4


def test_x3_a_fork_of_an_imported_session_and_an_export_of_a_fork(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    fork = Fork(host, f"{name}-f", revision=15)
    again = exported(fork, f"{name}-i")
    delete(host)
    delete(fork)
    assert again.get().session.forked_from == name
    older = Fork(again, f"{name}-o", revision=10)
    assert (older.get().totals.memory_entries, again.search("walnut0x3").hits[0].offset) == (0, 7)
    assert whole(again, older)


def hosted_fork(host: HostedHost, name: str, **fields: Any) -> HostedHost:
    """A host that branches its own list, and the session of it with the list."""
    request = session_service_pb2.ForkSessionRequest(session_id=host.id, fork_session_id=name, **fields)
    assert host.client.session.ForkSession(request).session.ownership == session_pb2.OWNERSHIP_HOST_OWNED
    fork = HostedHost(host.client, name, create=False)
    fork.list, fork.start = list(host.list), host.start
    return fork


def test_h3_a_fork_of_a_list_that_the_host_keeps_knows_its_rows_and_summaries(client: Client, name: str) -> None:
    """H2, M1, X3: what was committed comes along, what is staged waits for the source's host."""
    host = long_list(client, name)
    unfolded = list(host.list)
    first = host.fold()
    talk(host, 25, first=40)
    host.ask("next")
    staged = host.compact(manual=True)
    fork, past = hosted_fork(host, f"{name}-f"), hosted_fork(host, f"{name}-p", revision=0)
    assert fork.get().totals.memory_entries == host.get().totals.memory_entries
    assert refused(fork.commit, staged).reason == "PROJECTION_NOT_FOUND"
    assert fork.commit(first) == first.record.memory_entries, "it was committed already"
    assert fork.fold(manual=True).record.revision_after == first.record.revision_after + 1
    assert (fork.found("file_3.py")[0], past.found("file_3.py")) == (host.found("file_3.py")[0], [])
    assert fork.found("file_45.py")
    assert not any("file_45.py" in host.text(o) for o in host.found("file_45.py"))
    refusal = refused(past.check)
    assert refusal.reason == "SUMMARY_ROW_REFUSED", "no summary had been issued by then"
    past.list, past.start = unfolded, unfolded[-1][0]
    past.fold()
    host.apply(staged)
    host.commit(staged)
    client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=name))
    assert fork.verify().ok
    assert past.verify().ok
    assert "constant 231" in fork.text(fork.found("file_3.py constant 231")[0])


def test_m2_a_fork_of_a_list_that_the_host_unfolded_shows_what_is_folded(client: Client, name: str) -> None:
    host = long_list(client, name)
    before = list(host.list)
    host.fold()
    host.list = before
    host.compact(override={"auto_compact": False})
    fork = hosted_fork(host, f"{name}-f")
    assert fork.found("file_3.py") == host.found("file_3.py") == []
    assert fork.verify().ok
    fork.fold(manual=True)
    assert fork.found("file_3.py")
    assert host.found("file_3.py") == []
    assert fork.verify().ok
    assert host.verify().ok


def exported(host: Host, name: str) -> Host:
    chunks = host.client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=host.id))
    header = session_service_pb2.ImportSessionRequest(header={"session_id": name})
    messages = [header] + [
        session_service_pb2.ImportSessionRequest(chunk={"sequence": c.sequence, "jsonl": c.jsonl}) for c in chunks
    ]
    host.client.session.ImportSession(iter(messages))
    made = Host.__new__(Host)
    made.client, made.id, made.list, made.revision = host.client, name, [], 0
    return made


def test_l2_a_fork_waits_for_a_running_fold_and_one_of_the_past_does_not(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_session(client, "s")
    newest = host.get().session.revision
    with ThreadPoolExecutor(2) as pool:
        fold = pool.submit(compacted, host)
        assert source.started.wait(10)
        request = session_service_pb2.ForkSessionRequest(session_id="s", fork_session_id="at-once")
        late = refused(client.session.ForkSession, request, timeout=1)
        assert (late.code, late.reason) == ("ABORTED", "FOLD_IN_PROGRESS")
        request.revision = newest
        assert refused(client.session.ForkSession, request, timeout=1).reason == "FOLD_IN_PROGRESS"
        past = Fork(host, "past", revision=newest - 1)
        waiting = pool.submit(Fork, host, "waited")
        host.append(user("meanwhile"))
        source.go_on.set()
        record = fold.result()[-1].record
        waited = waiting.result()
    assert waited.session.revision >= record.revision_after
    assert past.offsets() == [r.offset for r in listed(host, newest - 1)]
    assert whole(host, past, waited)


def test_v10_a_fork_and_appends_to_its_source_at_once(client: Client, name: str) -> None:
    host = folded_twice(client, name)
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            host.append(user("more"))

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(append)
        forks = [Fork(host, f"{name}-{n}") for n in range(10)]
        stop.set()
        writer.result()
    assert whole(host, *forks)
    revisions = [f.session.revision for f in forks]
    assert revisions == sorted(revisions)


def test_x3_forks_are_there_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        host = folded_twice(client, "s")
        Fork(host, "fork", revision=15)
        before = host.active()
        delete(host)
    with running_server(tmp_path) as client:
        again = Host.__new__(Host)
        again.client, again.id, again.list, again.revision = client, "fork", [], 0
        assert again.get().session.forked_from == "s"
        assert whole(again)
        assert {r.offset for r in before} & set(again.offsets()) == set()
        assert again.search("walnut0x3").hits[0].offset == 7
