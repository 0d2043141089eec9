"""Summaries ahead of need, and folds that outlive their callers (A1-A5)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    policy_pb2,
    session_pb2,
    session_service_pb2,
)
from google.protobuf.duration_pb2 import Duration

from tests.integration.host import Host
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server, until

LINE = "The parser drops the trailing comma of `config/app.toml` and line {n} then fails with E{n}. " * 4


class Gate:
    """Writes extractive summaries, each once it may; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[SummaryRequest] = []
        self.started, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()
        self.fails: SummaryFailed | None = None
        self.inner = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        self.asked.append(request)
        self.started.release()
        assert self.go_on.wait(30)
        if self.fails is not None:
            raise self.fails
        return self.inner.summarize(request)

    def shut(self) -> None:
        self.go_on.clear()


Server = tuple[Client, Gate]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, settings(tmp_path), summarizer=(gate := Gate())) as client:
        yield client, gate
        gate.go_on.set()


def settings(folder: Path) -> dict[str, str]:
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 8000, "type": "openai", "encoding": "o200k_base"}}))
    return {"catalog": str(catalog)}


def near(client: Client, name: str, **policy: object) -> Host:
    """A host a little before four fifths of T, which is 6 400; a turn is about 190 tokens."""
    host = Host(client, name, output_reserve_tokens=100, **policy)
    fill(host)
    return host


def fill(host: Host) -> None:
    turns = [m for n in range(25) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))]
    host.append(*turns)


def turn(host: Host, number: int) -> compaction_service_pb2.PrepareRequestResponse:
    return host.turn(f"run-{number}", LINE.format(n=1000 + number), LINE.format(n=2000 + number))


def events(host: Host, *kinds: str) -> list[event_pb2.Event]:
    wanted = [event_pb2.EventKind.Value(f"EVENT_KIND_{k}") for k in kinds]
    return [e for e in host.events() if e.kind in wanted]


def calls_made(host: Host) -> int:
    """Calls of the source that the session has accounted for (S5)."""
    found = [u.calls for u in host.get().totals.usage if u.source == session_pb2.USAGE_SOURCE_EXTRACTIVE]
    return found[0] if found else 0


def ready(host: Host, gate: Gate) -> None:
    """Turns until a summary is being written ahead of need, then until it is written."""
    for number in range(20):
        turn(host, number)
        if gate.started.acquire(timeout=0.3):
            break
    else:
        raise AssertionError("nothing was written ahead of need")
    if gate.go_on.is_set():
        assert until(lambda: calls_made(host) > 0)


def cross(host: Host, first: int = 100) -> compaction_service_pb2.PrepareRequestResponse:
    """Turns until a request is folded or its fold is pending."""
    for number in range(first, first + 20):
        prepared = turn(host, number)
        if prepared.action == compaction_pb2.ACTION_SEND_FOLDED or prepared.fold_pending:
            return prepared
    raise AssertionError("nothing folded")


def ended_once(host: Host) -> bool:
    """Every start has one end (§13)."""
    starts = [e.fold_id for e in events(host, "COMPACTION_STARTED")]
    ends = [e.fold_id for e in events(host, "COMPACTION_COMPLETED", "COMPACTION_FAILED")]
    return sorted(starts) == sorted(ends) and len(set(ends)) == len(ends)


def test_a1_a_summary_is_ready_before_t_and_commits_without_another_call(server: Server) -> None:
    client, gate = server
    host = near(client, "a1")
    ready(host, gate)
    assert not events(host, "COMPACTION_COMPLETED")
    folded = cross(host)
    assert len(gate.asked) == 1, "the source was called once, ahead of need"
    assert folded.fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
    start, end = events(host, "COMPACTION_STARTED")[0], events(host, "COMPACTION_COMPLETED")[0]
    assert start.fold_id == end.fold_id == folded.fold.fold_id
    assert start.boundary < end.boundary, "C2 counts from the boundary that committed it (A2)"
    assert host.list == host.offsets()[:-1], "all but the answer to it"
    assert host.verify().ok
    assert ended_once(host)


def test_a1_off_writes_nothing_ahead(server: Server) -> None:
    client, gate = server
    host = near(client, "a1-off", background=policy_pb2.BackgroundPolicy(enabled=False))
    folded = cross(host, 0)
    assert folded.fold.trigger == compaction_pb2.TRIGGER_AUTOMATIC
    assert len(gate.asked) == 1


def test_a1_appends_meanwhile_follow_the_ready_summary(server: Server) -> None:
    client, gate = server
    host = near(client, "a1-appends")
    ready(host, gate)
    late = host.append(user("remember the port 7420"))
    folded = cross(host)
    assert late.first_offset in host.offsets()
    assert all(r.last < late.first_offset for r in folded.fold.discarded)
    assert host.verify().ok


def test_a2_a_fold_that_is_due_waits_for_the_summary_that_is_being_written(server: Server) -> None:
    client, gate = server
    gate.shut()
    host = near(client, "a2-waits", fold_wait=Duration(nanos=1))
    ready(host, gate)
    pending = cross(host)
    assert pending.fold_pending
    assert pending.action == compaction_pb2.ACTION_SEND
    assert len(gate.asked) == 1, "the running call is waited for, no second one is made"
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=1, last_offset=2)
    assert refused(client.session.EditRows, edit, timeout=0.5).code in ("ABORTED", "DEADLINE_EXCEEDED")
    gate.go_on.set()
    assert until(lambda: bool(events(host, "COMPACTION_COMPLETED"))), "the fold goes on without its caller (A5)"
    assert len(gate.asked) == 1
    assert host.verify().ok
    assert ended_once(host)


def test_a2_is_not_used_after_a_refusal(server: Server) -> None:
    client, gate = server
    host = near(client, "a2-p6")
    ready(host, gate)
    prepared = host.prepare("refused", user("go"))
    host.refuse("refused", prepared.prepare_id, 400, json.dumps({"error": {"code": "context_length_exceeded"}}))
    folded = host.prepare("again", user("once more"))
    assert folded.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert len(gate.asked) == 2
    dropped = events(host, "COMPACTION_FAILED")
    assert [e.compaction_failed.failure for e in dropped] == [compaction_pb2.FAILURE_KIND_READY_DROPPED]
    assert ended_once(host)
    assert host.verify().ok


@pytest.mark.parametrize("instructions", ["", "Mind the ports."])
def test_a2_serves_a_manual_fold_unless_it_comes_with_instructions(server: Server, instructions: str) -> None:
    client, gate = server
    host = near(client, "a2-manual")
    ready(host, gate)
    record = host.compact(instructions=instructions)
    assert len(gate.asked) == (2 if instructions else 1)
    expected = compaction_pb2.TRIGGER_MANUAL if instructions else compaction_pb2.TRIGGER_BACKGROUND
    assert record.trigger == expected
    assert ended_once(host)


def test_a2_one_that_would_not_suffice_is_the_earlier_summary_of_one_fold(server: Server) -> None:
    client, gate = server
    host = near(client, "a2-earlier")
    ready(host, gate)
    written = gate.inner.summarize(gate.asked[0]).text
    big = [m for n in range(30) for m in (user(LINE.format(n=3000 + n)), assistant(LINE.format(n=4000 + n)))]
    host.append(*big)
    folded = host.prepare("next", user("and now?"))
    assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
    assert folded.fold.trigger == compaction_pb2.TRIGGER_AUTOMATIC
    assert len(gate.asked) == 2
    again = gate.asked[1]
    assert [s.text for s in again.earlier] == [written]
    assert {r.offset for r in again.rows}.isdisjoint(r.offset for r in gate.asked[0].rows)
    assert ended_once(host)
    assert host.verify().ok


def test_a3_a_changed_prefix_drops_it_and_two_drops_end_it_until_the_next_run(server: Server) -> None:
    client, gate = server
    host = near(client, "a3")
    prepared = host.prepare("long", user("go"))
    asked = 0
    for number in range(60):
        made = [assistant(LINE.format(n=6000 + number)), user("go on")]
        prepared = host.prepare("long", made[1], previous_answer=host.answer(prepared, made[0]))
        if prepared.action == compaction_pb2.ACTION_SEND_FOLDED:
            break
        if gate.started.acquire(timeout=0.1):
            asked += 1
            first = host.active()[0].offset
            replace = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=first, last_offset=first)
            replace.replacement.rows.rows.add().user.content.add().text.text = f"{LINE.format(n=number)} edited"
            assert until(lambda written=asked: calls_made(host) == written)
            client.session.EditRows(replace)
            host.list, host.revision = [], 0
    dropped = [e.compaction_failed.failure for e in events(host, "COMPACTION_FAILED")]
    assert dropped == [compaction_pb2.FAILURE_KIND_READY_DROPPED] * 2
    assert asked == 2
    assert prepared.fold.trigger == compaction_pb2.TRIGGER_AUTOMATIC, "the fold that was due asked a source itself"
    assert calls_made(host) == 3, "what was dropped is counted all the same"
    assert ended_once(host)
    assert host.verify().ok


def test_a2_a_failure_ahead_of_need_starts_the_cooldown(server: Server) -> None:
    client, gate = server
    host = near(client, "a2-cooldown")
    gate.fails = SummaryFailed(FailureKind.SUMMARIZER_FAILED, "asked to")
    ready(host, gate)
    assert until(lambda: bool(events(host, "COMPACTION_FAILED")))
    assert turn(host, 500).fold_pending is False
    for number in range(501, 520):
        prepared = turn(host, number)
        if prepared.skip:
            break
    assert prepared.skip == compaction_pb2.SKIP_REASON_COOLDOWN
    assert len(gate.asked) == 1
    assert ended_once(host)


def test_a1_holds_no_barrier_and_a_delete_ends_it(server: Server) -> None:
    client, gate = server
    gate.shut()
    host = near(client, "a1-delete")
    ready(host, gate)
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=1, last_offset=1)
    edit.replacement.rows.rows.add().user.content.add().text.text = "another beginning"
    client.session.EditRows(edit, timeout=5)
    client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=host.id), timeout=5)
    gate.go_on.set()
    assert refused(client.session.GetSession, session_service_pb2.GetSessionRequest(session_id=host.id)).reason == (
        "SESSION_NOT_FOUND"
    )


def test_a1_a_restart_ends_what_was_ready(tmp_path: Path) -> None:
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "a1-restart")
        ready(host, gate)
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host.client = client
        assert [e.compaction_failed.failure for e in events(host, "COMPACTION_FAILED")] == [
            compaction_pb2.FAILURE_KIND_INTERRUPTED
        ]
        folded = cross(host)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert ended_once(host)
        assert host.verify().ok


@pytest.mark.parametrize("closes", [False, True])
def test_a5_a_fold_outlives_its_caller_and_the_run(server: Server, closes: bool) -> None:
    client, gate = server
    host = near(
        client, f"a5-{closes}", background=policy_pb2.BackgroundPolicy(enabled=False), fold_wait=Duration(nanos=1)
    )
    prepared = host.prepare("long", user("go"))
    gate.shut()
    for number in range(40):
        made = [calls(f"c{number}"), result(f"c{number}", LINE.format(n=6000 + number))]
        prepared = host.prepare("long", made[1], previous_answer=host.answer(prepared, made[0]))
        if prepared.fold_pending:
            break
    assert prepared.fold_pending
    assert prepared.action == compaction_pb2.ACTION_SEND
    if closes:
        finish = compaction_pb2.RUN_OUTCOME_COMPLETED
        host.record("long", host.answer(prepared, assistant("done"), finish=finish))
        turn(host, 900)
    gate.go_on.set()
    assert until(lambda: bool(events(host, "COMPACTION_COMPLETED")))
    if not closes:
        prepared = host.prepare("long", previous_answer=host.answer(prepared, assistant("and on")), append=None)
        assert host.list == host.offsets()
    assert host.verify().ok
    assert ended_once(host)
