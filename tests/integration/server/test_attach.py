"""AttachSession: the steps of a model call over one stream, with the rules and errors of the unary RPCs."""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.server import logs
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import compaction_pb2, policy_pb2, row_pb2
from foldline.v1 import compaction_service_pb2 as pb
from foldline.v1 import session_service_pb2 as session_pb
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.attached import Attached, metadata_of, reason_of
from tests.support.requests import answer, append, assistant, create, prepare, raw, user
from tests.support.server import Client, refusal_of, running_server, started, until
from tests.support.wire import line

TURNS = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running_server(tmp_path_factory.mktemp("attach")) as client:
        yield client


@pytest.fixture
def name(client: Client) -> str:
    """A new session."""
    made: str = client.session.CreateSession(create("")).session.session_id
    return made


def verified(client: Client, session_id: str) -> session_pb.VerifySessionResponse:
    found: session_pb.VerifySessionResponse = client.session.VerifySession(
        session_pb.VerifySessionRequest(session_id=session_id)
    )
    assert found.ok, found.faults
    return found


def texts(client: Client, session_id: str) -> list[str]:
    """The text of every row, oldest first."""
    rows: list[row_pb2.Row] = []
    token = ""
    while True:
        page = client.session.ListRows(session_pb.ListRowsRequest(session_id=session_id, page_token=token))
        rows += page.rows
        token = page.next_page_token
        if not token:
            return [getattr(r, r.WhichOneof("body")).content[0].text.text for r in rows]


def record(session_id: str, run_id: str, prepare_id: str, text: str, **fields: Any) -> pb.RecordAnswerRequest:
    return pb.RecordAnswerRequest(
        session_id=session_id, run_id=run_id, outcome=answer(prepare_id, assistant(text)), **fields
    )


class TestSteps:
    def test_every_step_is_answered_under_its_number(self, client: Client, name: str) -> None:
        with Attached(client, name) as host:
            assert host.opened.revision == 0
            assert host.opened.heartbeat_interval.ToSeconds() == 15
            added = host.ask(append=pb.AttachAppend(input=raw(user("a note")))).appended
            assert (added.revision, added.first_offset, added.last_offset) == (1, 1, 1)
            prepared = host.ask(prepare=prepare(name, "run-1", user("go"))).prepared
            assert (prepared.action, prepared.revision) == (compaction_pb2.ACTION_SEND, 2)
            recorded = host.ask(record=record(name, "run-1", prepared.prepare_id, "done")).recorded
            assert recorded.first_offset == 3
            checked = host.ask(check=pb.CheckPressureRequest(session_id=name)).checked
            assert checked == client.compaction.CheckPressure(pb.CheckPressureRequest(session_id=name))
            finished = host.ask(
                finish=pb.FinishRunRequest(
                    session_id=name, run_id="run-1", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
                )
            ).finished
            assert finished.revision == 3
            assert host.end() == []
            assert host.call.code() is grpc.StatusCode.OK
        assert texts(client, name) == ["a note", "go", "done"]
        assert verified(client, name).rows_total == 3

    def test_numbers_may_leave_gaps(self, client: Client, name: str) -> None:
        with Attached(client) as host:
            host.send(7, open=pb.AttachOpen(session_id=name))
            host.send(1 << 40, check=pb.CheckPressureRequest(session_id=name))
            host.send((1 << 63) - 1, check=pb.CheckPressureRequest(session_id=name))
            assert [a.sequence for a in host.end()] == [7, 1 << 40, (1 << 63) - 1]

    def test_over_the_unix_socket_too(self, tmp_path: Path) -> None:
        with started(tmp_path) as server:
            server.ready()
            with Client(server.addresses[1]) as client:
                client.session.CreateSession(create("s"))
                with Attached(client, "s") as host:
                    assert host.ask(append=pb.AttachAppend(input=raw(user("hello")))).appended.revision == 1
                    assert host.end() == []

    def test_a_prepare_that_names_no_revision_is_answered_against_what_the_stream_gave(
        self, client: Client, name: str
    ) -> None:
        """W1: hosts on a stream need not repeat what the stream knows."""

        def step(number: int) -> pb.PrepareRequestResponse:
            asked = prepare(name, "run-1", user(f"row {number}"))
            asked.reply = compaction_pb2.REPLY_MODE_EDITS
            return host.ask(prepare=asked).prepared

        with Attached(client, name) as host:
            assert step(1).HasField("rows"), "the host said that it holds nothing"
            (added,) = step(2).splices.splices
            assert (added.position, added.delete_count, list(added.offsets.offsets)) == (1, 0, [2])
            host.ask(append=pb.AttachAppend(input=raw(user("by the way"))))
            (added,) = step(3).splices.splices
            assert (added.position, [r.offset for r in added.rows.rows]) == (2, [3, 4])
        with Attached(client, name, known_revision=3) as host:
            (added,) = step(4).splices.splices
            assert (added.position, [r.offset for r in added.rows.rows]) == (3, [4, 5])
            (added,) = step(5).splices.splices
            assert (added.position, list(added.offsets.offsets)) == (5, [6])

    def test_steps_are_served_in_order_however_fast_they_come(self, client: Client, name: str) -> None:
        in_order(client, name, 2_000)

    @pytest.mark.slow
    @pytest.mark.timeout(1_800)
    def test_a_hundred_thousand_steps_are_served_in_order(self, client: Client, name: str) -> None:
        in_order(client, name, 100_000, seconds=1_700)


def in_order(client: Client, name: str, steps: int, seconds: float = 170) -> None:
    """Sends steps without waiting; answers come in their order, rows stand in theirs, and a bad step harms no other."""
    chosen = random.Random(steps)
    kinds = [chosen.choices(("append", "check", "bad"), (2, 7, 1))[0] for _ in range(steps)]
    with Attached(client, name, timeout=seconds) as host:
        told: dict[int, str] = {}
        for number, kind in enumerate(kinds):
            if kind == "append":
                sequence = host.send(append=pb.AttachAppend(input=raw(user(f"{number}"))))
            elif kind == "check":
                sequence = host.send(check=pb.CheckPressureRequest(session_id=name))
            else:
                sequence = host.send(record=record(name, "", "p-none", "x"))
            told[sequence] = kind
        found = host.end()
    fields = {"append": "appended", "check": "checked", "bad": "error"}
    assert [(a.sequence, a.WhichOneof("answer")) for a in found] == [(s, fields[k]) for s, k in told.items()]
    appended = [a.appended.first_offset for a in found if a.HasField("appended")]
    assert appended == list(range(1, len(appended) + 1))
    assert texts(client, name) == [str(n) for n, kind in enumerate(kinds) if kind == "append"]
    verified(client, name)


class TestErrors:
    def test_a_failed_step_is_answered_as_the_unary_call_would_be_and_the_stream_goes_on(
        self, client: Client, name: str
    ) -> None:
        client.compaction.PrepareRequest(prepare(name, "run-1", user("go")))
        bad_row = row_pb2.RowInput(rows=row_pb2.RowList(rows=[row_pb2.Row(user=row_pb2.UserRow())]))
        cases: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
            ({"prepare": prepare(name, "run-2", user("no"))}, client.compaction.PrepareRequest),
            ({"prepare": prepare(name, "run-1", request_id="é")}, client.compaction.PrepareRequest),
            ({"record": record(name, "run-1", "p-none", "x")}, client.compaction.RecordAnswer),
            ({"record": pb.RecordAnswerRequest(session_id=name)}, client.compaction.RecordAnswer),
            ({"finish": pb.FinishRunRequest(session_id=name, run_id="r9", outcome=1)}, client.compaction.FinishRun),
            (
                {"check": pb.CheckPressureRequest(session_id=name, override=policy_pb2.Policy(min_progress=7))},
                client.compaction.CheckPressure,
            ),
            (
                {"append": pb.AttachAppend(input=raw({"role": "tool", "tool_call_id": "c", "content": "x"}))},
                lambda step: client.session.AppendRows(session_pb.AppendRowsRequest(session_id=name, input=step.input)),
            ),
            (
                {"append": pb.AttachAppend(input=bad_row)},
                lambda step: client.session.AppendRows(session_pb.AppendRowsRequest(session_id=name, input=step.input)),
            ),
        ]
        with Attached(client, name) as host:
            for step, unary in cases:
                status = host.ask(**step).error
                with pytest.raises(grpc.RpcError) as caught:
                    unary(*step.values())
                expected = refusal_of(caught.value)
                assert (status.code, status.message) == (caught.value.code().value[0], expected.message)
                assert (reason_of(status), metadata_of(status)) == (expected.reason, expected.metadata)
            assert host.ask(check=pb.CheckPressureRequest(session_id=name)).HasField("checked")
            assert host.end() == []
        assert verified(client, name).rows_total == 1

    def test_of_a_deleted_session_the_stream_tells_and_goes_on(self, client: Client, name: str) -> None:
        with Attached(client, name) as host:
            client.session.DeleteSession(session_pb.DeleteSessionRequest(session_id=name))
            for _ in range(2):
                status = host.ask(append=pb.AttachAppend(input=raw(user("hello")))).error
                assert reason_of(status) == "SESSION_NOT_FOUND"

    def test_a_session_that_is_not_there_ends_it(self, client: Client) -> None:
        with Attached(client) as host:
            host.send(open=pb.AttachOpen(session_id="nobody"))
            found = refusal_of(host.ended())
            assert (found.code, found.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND")

    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            ({"sequence": 2, "check": pb.CheckPressureRequest(session_id="$")}, "sequence"),
            ({"sequence": 1, "check": pb.CheckPressureRequest(session_id="$")}, "sequence"),
            ({"sequence": 0, "check": pb.CheckPressureRequest(session_id="$")}, "sequence"),
            ({"sequence": 1 << 63, "check": pb.CheckPressureRequest(session_id="$")}, "sequence"),
            ({"open": pb.AttachOpen(session_id="$")}, "open"),
            ({}, "step"),
            ({"check": pb.CheckPressureRequest(session_id="another")}, "check.session_id"),
            ({"prepare": pb.PrepareRequestRequest(session_id="another")}, "prepare.session_id"),
        ],
        ids=["repeated", "lower", "zero", "beyond", "opens twice", "no step", "another session", "and its prepare"],
    )
    def test_what_is_no_step_of_the_stream_ends_it(
        self, client: Client, name: str, bad: dict[str, Any], field: str
    ) -> None:
        for step in bad.values():
            if getattr(step, "session_id", "") == "$":
                step = type(step)(session_id=name)
                bad = {k: step if k in ("open", "check") else v for k, v in bad.items()}
        with Attached(client, name) as host:
            host.ask(append=pb.AttachAppend(input=raw(user("kept"))))
            host.send(**bad)
            found = refusal_of(host.ended())
            assert (found.code, found.reason) == ("INVALID_ARGUMENT", "FIELD_VALIDATION")
            assert (found.metadata["field"], [f for f, _ in found.violations]) == (field, [field])
        assert texts(client, name) == ["kept"]

    @pytest.mark.parametrize("first", ["check", "append", "no step", "a bad id"])
    def test_the_first_message_opens_or_ends_it(self, client: Client, name: str, first: str) -> None:
        step: dict[str, Any] = {
            "check": {"check": pb.CheckPressureRequest(session_id=name)},
            "append": {"append": pb.AttachAppend(input=raw(user("hello")))},
            "no step": {},
            "a bad id": {"open": pb.AttachOpen(session_id="a b")},
        }[first]
        with Attached(client) as host:
            host.send(**step)
            assert refusal_of(host.ended()).reason == "FIELD_VALIDATION"
        assert verified(client, name).rows_total == 0

    def test_a_stream_without_any_message_ends_well(self, client: Client) -> None:
        with Attached(client) as host:
            assert host.end() == []
            assert host.call.code() is grpc.StatusCode.OK

    def test_damaged_bytes_end_it(self, client: Client, name: str) -> None:
        """R2."""
        opening = pb.AttachSessionRequest(sequence=1, open=pb.AttachOpen(session_id=name)).SerializeToString()
        call = client.channel.stream_stream("/foldline.v1.CompactionService/AttachSession")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([opening, b"\xff\xff\xff"])))
        assert refusal_of(caught.value).reason == "FIELD_VALIDATION"

    @pytest.mark.parametrize("given", [0.0, -1.0, 86_401.0])
    def test_a_timeout_that_is_none_fails_its_step(self, client: Client, name: str, given: float) -> None:
        wait = Duration()
        wait.FromMilliseconds(round(given * 1000))
        with Attached(client, name) as host:
            status = host.ask(check=pb.CheckPressureRequest(session_id=name), timeout=wait).error
            assert (reason_of(status), metadata_of(status)["field"]) == ("FIELD_VALIDATION", "timeout")
            assert host.ask(check=pb.CheckPressureRequest(session_id=name), timeout=Duration(seconds=86_400)).checked


class TestRepeats:
    """W2: a repeat is known over either way."""

    def test_of_every_step_over_the_other_way(self, client: Client, name: str) -> None:
        asked = prepare(name, "run-1", user("go"), request_id="prepare")
        rows = append(name, user("a note"), request_id="append")
        step = pb.AttachAppend(input=rows.input, request_id="append")
        with Attached(client, name) as host:
            added = client.session.AppendRows(rows)
            again = host.ask(append=step).appended
            assert (again.revision, again.first_offset) == (added.revision, added.first_offset)
            prepared = host.ask(prepare=asked).prepared
            assert client.compaction.PrepareRequest(asked) == prepared
            told = record(name, "run-1", prepared.prepare_id, "done", request_id="record")
            recorded = client.compaction.RecordAnswer(told)
            assert host.ask(record=told).recorded == recorded
            ends = pb.FinishRunRequest(
                session_id=name, run_id="run-1", request_id="finish", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
            finished = host.ask(finish=ends).finished
            assert client.compaction.FinishRun(ends) == finished
            assert host.ask(append=step, timeout=Duration(seconds=9)).appended == again
        assert texts(client, name) == ["a note", "go", "done"]

    def test_with_another_payload_or_step_is_refused(self, client: Client, name: str) -> None:
        with Attached(client, name) as host:
            host.ask(append=pb.AttachAppend(input=raw(user("one")), request_id="r"))
            status = host.ask(append=pb.AttachAppend(input=raw(user("two")), request_id="r")).error
            assert (reason_of(status), metadata_of(status)["method"]) == ("REQUEST_ID_REUSED", "AppendRows")
            status = host.ask(prepare=prepare(name, "run-1", user("one"), request_id="r")).error
            assert reason_of(status) == "REQUEST_ID_REUSED"

    def test_may_ask_for_its_answer_in_another_way(self, client: Client, name: str) -> None:
        """A host that lost its list repeats the call and asks for the whole."""
        asked = prepare(name, "run-1", user("go"), request_id="r")
        asked.reply, asked.known_revision = compaction_pb2.REPLY_MODE_EDITS, 0
        first = client.compaction.PrepareRequest(asked)
        assert first.splices.splices[0].offsets.offsets == [1]
        asked.reply = compaction_pb2.REPLY_MODE_WHOLE
        asked.ClearField("known_revision")
        again = client.compaction.PrepareRequest(asked)
        assert (again.prepare_id, [r.offset for r in again.rows.rows]) == (first.prepare_id, [1])
        asked.format = row_pb2.FORMAT_OPENAI_CHAT
        rendered = json.loads(client.compaction.PrepareRequest(asked).rendered_json)
        assert rendered == [user("go")]
        asked.append.CopyFrom(raw(user("stop")))
        with pytest.raises(grpc.RpcError) as caught:
            client.compaction.PrepareRequest(asked)
        assert refusal_of(caught.value).reason == "REQUEST_ID_REUSED"


class Held:
    """A source of summaries that waits until it is let go on."""

    def __init__(self, *, fails: bool = False) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._fails = fails
        self._source = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        self.reached.set()
        self.go_on.wait(30)
        if self._fails:
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, "asked to")
        return self._source.summarize(request)


def ready_to_fold(client: Client, session_id: str = "s") -> str:
    """A session whose next boundary folds."""
    client.session.CreateSession(create(session_id, policy=policy_pb2.Policy(auto_compact_threshold=2_500)))
    client.session.AppendRows(append(session_id, *TURNS))
    return session_id


class TestHeartbeats:
    def test_come_while_the_stream_is_idle(self, tmp_path: Path) -> None:
        with running_server(tmp_path, {"server.heartbeat_interval": 0.02}) as client:
            client.session.CreateSession(create("s"))
            with Attached(client, "s") as host:
                beats = [host.next() for _ in range(3)]
                assert all(b.HasField("heartbeat") and b.sequence == 0 for b in beats)
                times = [b.heartbeat.time.ToNanoseconds() for b in beats]
                assert times == sorted(times)
                assert host.ask(check=pb.CheckPressureRequest(session_id="s")).HasField("checked")

    def test_come_while_a_fold_runs(self, tmp_path: Path) -> None:
        source = Held()
        with running_server(tmp_path, {"server.heartbeat_interval": 0.02}, summarizer=source) as client:
            ready_to_fold(client)
            with Attached(client, "s") as host:
                number = host.send(prepare=prepare("s", "run-1", user("go")))
                assert source.reached.wait(10)
                assert all(host.next().HasField("heartbeat") for _ in range(3))
                source.go_on.set()
                answered = host.answer()
                assert (answered.sequence, answered.prepared.action) == (number, compaction_pb2.ACTION_SEND_FOLDED)

    def test_come_no_more_often_than_said(self, tmp_path: Path) -> None:
        with running_server(tmp_path, {"server.heartbeat_interval": 30.0}) as client:
            client.session.CreateSession(create("s"))
            with Attached(client, "s") as host:
                assert host.opened.heartbeat_interval.ToSeconds() == 30
                for _ in range(50):
                    assert host.send(check=pb.CheckPressureRequest(session_id="s")) == host.next().sequence


class TestDeadlines:
    """W9."""

    def test_a_step_waits_no_longer_than_it_says(self, tmp_path: Path) -> None:
        source = Held()
        with running_server(tmp_path, summarizer=source) as client, ThreadPoolExecutor(1) as threads:
            ready_to_fold(client)
            fold = threads.submit(
                lambda: list(client.compaction.CompactSession(pb.CompactSessionRequest(session_id="s")))
            )
            assert source.reached.wait(10)
            with Attached(client, "s") as host:
                wait = Duration(nanos=200_000_000)
                before = time.monotonic()
                prepared = host.ask(prepare=prepare("s", "run-1", user("go")), timeout=wait).prepared
                assert prepared.fold_pending
                assert time.monotonic() - before < 5
            source.go_on.set()
            assert fold.result()[-1].HasField("record")

    def test_without_saying_it_is_given_what_a_call_without_a_deadline_is(self, tmp_path: Path) -> None:
        source = Held()
        with running_server(tmp_path, {"server.max_wait": 0.2}, summarizer=source) as client:
            ready_to_fold(client)
            fold = client.compaction.CompactSession(pb.CompactSessionRequest(session_id="s"))
            assert source.reached.wait(10)
            with Attached(client, "s") as host:
                prepared = host.ask(prepare=prepare("s", "run-1", user("go"))).prepared
                assert prepared.fold_pending
            source.go_on.set()
            list(fold)

    def test_a_deadline_of_the_stream_ends_it(self, client: Client, name: str) -> None:
        with Attached(client, name, timeout=0.3) as host:
            with pytest.raises(grpc.RpcError) as caught:
                host.answer()
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


LIMIT = 65_536


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running_server(tmp_path_factory.mktemp("small"), {"server.max_message_bytes": LIMIT}) as client:
        yield client


class TestSizes:
    """W5."""

    def test_a_request_over_the_limit_ends_the_stream(self, small: Client) -> None:
        name = small.session.CreateSession(create("")).session.session_id
        with Attached(small, name) as host:
            host.send(append=pb.AttachAppend(input=raw(user("x" * LIMIT))))
            found = refusal_of(host.ended())
            assert (found.reason, found.metadata["maximum"]) == ("MESSAGE_TOO_LARGE", str(LIMIT))

    @pytest.mark.parametrize("way", ["unary", "stream"])
    @pytest.mark.parametrize("fmt", [row_pb2.FORMAT_UNSPECIFIED, row_pb2.FORMAT_OPENAI_CHAT])
    def test_an_answer_over_the_limit_changes_nothing_and_the_call_can_be_repeated_otherwise(
        self, small: Client, way: str, fmt: row_pb2.Format
    ) -> None:
        name = small.session.CreateSession(create("")).session.session_id
        for number in range(3):
            small.session.AppendRows(append(name, user(f"{number}" * 30_000)))
        asked = prepare(name, "run-1", user("go"), request_id="r")
        asked.reply, asked.format = compaction_pb2.REPLY_MODE_WHOLE, fmt
        with Attached(small, name) as host:
            if way == "unary":
                with pytest.raises(grpc.RpcError) as caught:
                    small.compaction.PrepareRequest(asked)
                reason, metadata = refusal_of(caught.value).reason, refusal_of(caught.value).metadata
            else:
                status = host.ask(prepare=asked).error
                reason, metadata = reason_of(status), metadata_of(status)
            assert reason == "MESSAGE_TOO_LARGE"
            assert int(metadata["size"]) > int(metadata["maximum"]) >= LIMIT - 64
            found = small.session.GetSession(session_pb.GetSessionRequest(session_id=name))
            assert (found.session.revision, found.session.open_run_id, found.totals.boundaries) == (3, "", 0)
            asked.reply, asked.known_revision = compaction_pb2.REPLY_MODE_EDITS, 3
            prepared = small.compaction.PrepareRequest(asked)
            assert (prepared.revision, prepared.splices.splices[0].offsets.offsets) == (4, [4])
            assert host.ask(prepare=asked).prepared == prepared
        assert verified(small, name).rows_total == 4

    def test_after_a_fold_the_rows_are_in_once_and_the_call_can_be_repeated_otherwise(self, tmp_path: Path) -> None:
        with running_server(tmp_path, {"server.max_message_bytes": LIMIT}) as client:
            ready_to_fold(client)
            asked = prepare("s", "run-1", user("x" * 50_000), request_id="r")
            asked.reply = compaction_pb2.REPLY_MODE_WHOLE
            client.session.AppendRows(append("s", user("y" * 40_000)))
            with pytest.raises(grpc.RpcError) as caught:
                client.compaction.PrepareRequest(asked)
            assert refusal_of(caught.value).reason == "MESSAGE_TOO_LARGE"
            asked.reply = compaction_pb2.REPLY_MODE_NONE
            prepared = client.compaction.PrepareRequest(asked)
            assert (prepared.first_offset, prepared.prepare_id != "") == (26, True)
            rows = client.session.ListRows(session_pb.ListRowsRequest(session_id="s", revision=prepared.revision))
            assert rows.rows
            found = verified(client, "s")
            assert (found.rows_total, found.folds) == (27, 1)


def reconnected(client: Client) -> bool:
    try:
        return bool(client.serving())
    except grpc.RpcError:
        return False


class TestCuts:
    """A broken stream resumes by request_id (W2)."""

    def test_a_step_whose_stream_breaks_is_done_once(self, tmp_path: Path) -> None:
        """The cut comes while the step folds: what is repeated finds it done, or waits for it."""
        source = Held()
        with started(tmp_path, summarizer=source) as server:
            server.ready()
            with line(server.addresses[0]) as wire, Client(wire.address) as client:
                ready_to_fold(client)
                asked = prepare("s", "run-1", user("go"), request_id="r")
                with Attached(client, "s") as host:
                    host.send(prepare=asked)
                    assert source.reached.wait(10)
                    wire.cut()
                    assert host.ended().code() is grpc.StatusCode.UNAVAILABLE
                source.go_on.set()
                # The first call after a cut may still take the broken line.
                assert until(lambda: reconnected(client), 10)
                with Attached(client, "s") as host:
                    again = host.ask(prepare=asked).prepared
                    assert host.ask(prepare=asked).prepared == again
                assert again.action in (compaction_pb2.ACTION_SEND, compaction_pb2.ACTION_SEND_FOLDED)
                found = verified(client, "s")
                assert (found.rows_total, found.folds) == (len(TURNS) + 2, 1)
                assert until(lambda: server.pools.streams.depth == 0)

    @settings(max_examples=15, deadline=None)
    @given(data=st.data())
    def test_cuts_at_any_moment_lose_and_double_nothing(self, broken: Broken, data: st.DataObject) -> None:
        """A host sends steps ahead of their answers and, whenever the line breaks, again all that is unanswered."""
        name = broken.client.session.CreateSession(create("")).session.session_id
        steps = data.draw(st.integers(1, 40))
        cuts = iter(data.draw(st.lists(st.floats(0, 0.02), max_size=4)))
        unanswered = list(range(steps))
        offsets: dict[int, int] = {}
        while unanswered:
            wait = next(cuts, None)
            timer = threading.Timer(wait or 0, broken.wire.cut)
            try:
                with Attached(broken.client, name) as host:
                    if wait is not None:
                        timer.start()
                    numbers = {host.send(append=self.step(n)): n for n in unanswered}
                    for found in host.end():
                        offsets[numbers[found.sequence]] = found.appended.first_offset
                        unanswered.remove(numbers[found.sequence])
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            finally:
                timer.cancel()
        assert [offsets[n] for n in range(steps)] == list(range(1, steps + 1))
        assert texts(broken.client, name) == [f"row {n}" for n in range(steps)]

    @staticmethod
    def step(number: int) -> pb.AttachAppend:
        return pb.AttachAppend(input=raw(user(f"row {number}")), request_id=f"r-{number}")


class Broken:
    """A client over a line that can be cut."""

    def __init__(self, client: Client, wire: Any) -> None:
        self.client, self.wire = client, wire


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    with started(tmp_path_factory.mktemp("broken")) as server:
        server.ready()
        with line(server.addresses[0]) as wire, Client(wire.address) as client:
            yield Broken(client, wire)


class TestCrowds:
    def test_streams_on_one_session_share_it(self, client: Client, name: str) -> None:
        """Each stream's rows stand in its order, and every offset is given once."""

        def one(host_number: int) -> list[int]:
            with Attached(client, name) as host:
                for step in range(30):
                    host.send(append=pb.AttachAppend(input=raw(user(f"{host_number}.{step}"))))
                return [a.appended.first_offset for a in host.end()]

        with ThreadPoolExecutor(6) as threads:
            offsets = list(threads.map(one, range(6)))
        assert sorted(o for each in offsets for o in each) == list(range(1, 181))
        rows = texts(client, name)
        for number, each in enumerate(offsets):
            assert each == sorted(each)
            assert [rows[o - 1] for o in each] == [f"{number}.{step}" for step in range(30)]
        assert verified(client, name).rows_total == 180

    def test_streams_beyond_the_pool_are_refused_and_places_are_given_back(self, tmp_path: Path) -> None:
        with started(tmp_path, {"server.max_streams": 2}) as server:
            server.ready()
            with Client(server.addresses[0]) as client:
                client.session.CreateSession(create("s"))
                for end in ("half-close", "cancel", "violation"):
                    with Attached(client, "s") as one, Attached(client, "s") as two, Attached(client) as three:
                        found = refusal_of(three.ended())
                        assert (found.code, found.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
                        for host in (one, two):
                            if end == "half-close":
                                host.end()
                            elif end == "violation":
                                host.send(0)
                                host.ended()
                    assert until(lambda: server.pools.streams.depth == 0), end
                assert until(lambda: not [t for t in threading.enumerate() if t.name == "heartbeat"])

    def test_a_client_that_reads_nothing_holds_up_nobody_else(self, tmp_path: Path) -> None:
        with running_server(tmp_path, {"server.heartbeat_interval": 0.02}) as client:
            client.session.CreateSession(create("s"))
            client.session.AppendRows(append("s", *(user("x" * 100_000) for _ in range(20))))
            asked = prepare("s", "run-1", user("go"), request_id="r")
            asked.reply = compaction_pb2.REPLY_MODE_WHOLE
            with Attached(client, "s") as deaf, Attached(client, "s") as host:
                for _ in range(50):
                    deaf.send(prepare=asked)
                for number in range(20):
                    assert host.ask(append=pb.AttachAppend(input=raw(user(f"{number}")))).HasField("appended")
                assert host.next().HasField("heartbeat")


class TestDrain:
    def test_an_idle_stream_ends_as_unavailable_so_that_its_host_comes_back(self, tmp_path: Path) -> None:
        """Without waiting for the grace that calls under way are given."""
        with started(tmp_path, {"server.drain_grace": 60.0}) as server:
            server.ready()
            with Client(server.addresses[0]) as client:
                client.session.CreateSession(create("s"))
                with Attached(client, "s") as host:
                    stopping = threading.Thread(target=server.stop)
                    stopping.start()
                    with pytest.raises(grpc.RpcError) as caught:
                        host.answer()
                    found = refusal_of(caught.value)
                    assert (found.code, found.reason) == ("UNAVAILABLE", "NOT_READY")
                    assert found.request_id
                    stopping.join(10)
                    assert not stopping.is_alive()

    def test_a_step_under_way_is_answered_first(self, tmp_path: Path) -> None:
        source = Held()
        with started(tmp_path, {"server.drain_grace": 60.0}, summarizer=source) as server:
            server.ready()
            with Client(server.addresses[0]) as client:
                ready_to_fold(client)
                with Attached(client, "s") as host:
                    host.send(prepare=prepare("s", "run-1", user("go")))
                    host.send(append=pb.AttachAppend(input=raw(user("too late"))))
                    assert source.reached.wait(10)
                    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()
                    stopping = threading.Thread(target=lambda: ended.put(server.stop()))
                    stopping.start()
                    assert until(lambda: server.readiness.draining)
                    source.go_on.set()
                    assert host.answer().prepared.action == compaction_pb2.ACTION_SEND_FOLDED
                    assert refusal_of(host.ended()).reason == "NOT_READY"
                    assert ended.get(timeout=10) is True

    def test_before_the_server_is_ready_it_is_refused(self, tmp_path: Path) -> None:
        with started(tmp_path) as server, Client(server.addresses[0]) as client, Attached(client) as host:
            assert refusal_of(host.ended()).reason == "NOT_READY"


class TestLogs:
    @pytest.fixture
    def stream(self) -> Iterator[BytesIO]:
        before = structlog.get_config()
        made = BytesIO()
        logs.configure("info", made, for_good=False)
        yield made
        structlog.configure(**before)

    def test_steps_are_lines_under_the_stream_and_number_and_hide_what_clients_do_not_learn(
        self, tmp_path: Path, stream: BytesIO
    ) -> None:
        """W8."""

        class Panic(BaseException):
            pass

        broken = threading.Event()

        def clock() -> float:
            if broken.is_set():
                raise Panic("/var/lib/models/weights.bin is gone")
            return time.time()

        with running_server(tmp_path, clock=clock) as client:
            client.session.CreateSession(create("s"))
            with Attached(client, "s") as host:
                host.ask(append=pb.AttachAppend(input=raw(user("the secret word is plover"))))
                broken.set()
                status = host.ask(prepare=prepare("s", "run-1", user("go"))).error
                broken.clear()
                assert (status.code, reason_of(status)) == (grpc.StatusCode.INTERNAL.value[0], "INTERNAL")
                assert "weights" not in repr(status)
                assert host.ask(check=pb.CheckPressureRequest(session_id="s")).HasField("checked")
                host.end()
                named = dict(host.call.trailing_metadata())["x-request-id"]
        assert b"plover" not in stream.getvalue()
        lines = [json.loads(each) for each in stream.getvalue().splitlines()]
        steps = [each for each in lines if each["event"] == "step"]
        assert [(s["step"], s["code"], s["request_id"]) for s in steps] == [
            ("append", "OK", f"{named}/2"), ("prepare", "INTERNAL", f"{named}/3"), ("check", "OK", f"{named}/4"),
        ]  # fmt: skip
        assert metadata_of(status)["x_request_id"] == f"{named}/3"
        assert "weights.bin is gone" in steps[1]["exception"]
        (call,) = [each for each in lines if each["event"] == "call" and each["method"].endswith("AttachSession")]
        assert (call["code"], call["request_id"]) == ("OK", named)
        assert call["bytes_in"] > 0 < call["bytes_out"]
