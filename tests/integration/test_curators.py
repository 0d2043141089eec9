"""Hosts that connect and write summaries, or fold in the sidecar's place (S6, F12, F5, F8, A4)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.server import app
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    curator_pb2,
    event_pb2,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)
from google.protobuf.duration_pb2 import Duration

from tests.integration import hosted
from tests.integration.host import Host
from tests.integration.test_ahead import LINE, cross, ended_once, events, near, settings
from tests.support import server
from tests.support.curators import Curator, Task
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, Refusal, refused, started, until

TEXT = "The parser dropped commas of config/app.toml; it was mended."
LONG, SHORT = 30.0, 0.4
"""Leases: one that no test outlives, and one that ends while a test waits."""


def sourced(**fields: Any) -> policy_pb2.SummaryPolicy:
    fields.setdefault("coverage_floor", 0)
    return policy_pb2.SummaryPolicy(source=policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR, **fields)


@contextmanager
def serving(folder: Path, lease: float = LONG, **more: Any) -> Iterator[tuple[Client, app.Server]]:
    with started(folder, {**settings(folder), "server.heartbeat_interval": lease, **more}) as server:
        server.ready()
        with Client(server.addresses[0]) as client:
            yield client, server


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path) as (client, _):
        yield client


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[tuple[Client, app.Server]]:
    """A server whose leases are short."""
    with serving(tmp_path, SHORT) as both:
        yield both


@contextmanager
def asking(host: Host, **fields: Any) -> Iterator[Future[compaction_pb2.CompactionRecord]]:
    """A manual fold that is under way."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(host.compact, **fields)


def connected(server: app.Server, count: int) -> bool:
    return until(lambda: len(server.services.curators._hosts) == count)


def failures(host: Host) -> list[str]:
    return [event_name(e) for e in events(host, "COMPACTION_FAILED")]


def event_name(event: event_pb2.Event) -> str:
    return compaction_pb2.FailureKind.Name(event.compaction_failed.failure).removeprefix("FAILURE_KIND_")


def untouched(host: Host) -> bool:
    """The history is as it was appended, and holds."""
    offsets = host.offsets()
    return offsets == list(range(1, len(offsets) + 1)) and host.verify().ok and ended_once(host)


class TestWriting:
    def test_s6_a_connected_curator_writes_the_summary(self, client: Client) -> None:
        with Curator(client, name="night shift").serving(lambda task: TEXT):
            host = near(client, "s", summary=sourced())
            folded = cross(host, 0)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
        assert folded.fold.summary_text.startswith(TEXT)
        assert host.list == host.offsets()[:-1], "all but the answer to it"
        assert host.verify().ok
        assert ended_once(host)

    def test_s6_a_task_says_what_is_asked(self, client: Client) -> None:
        host = near(client, "s", summary=sourced(instructions="Keep names."))
        client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id="s", labels={"team": "blue"}))
        with Curator(client) as curator, asking(host, instructions="Be short.") as fold:
            task = curator.task()
            curator.answer(
                task, TEXT, model=model_pb2.ModelRef(provider="own", model="writer"),
                usage=model_pb2.Usage(input_tokens=900, output_tokens=40, cost=0.25, currency="EUR"),
            )  # fmt: skip
            record = fold.result(10)
        head = task.head
        assert (head.session_id, head.role, head.attempt) == ("s", curator_pb2.CURATOR_ROLE_CURATOR, 1)
        assert (head.trigger, head.instructions) == (compaction_pb2.TRIGGER_MANUAL, "Keep names.\n\nBe short.")
        assert dict(head.labels) == {"team": "blue"}
        assert head.model.model == "small"
        assert not head.HasField("earlier_summary")
        assert not head.units
        gone = [o for r in record.discarded for o in range(r.first, r.last + 1)]
        assert [r.offset for r in task.rows] == gone
        stored = {r.offset: r for r in host.archive()}
        for row in task.rows:
            assert row.user == stored[row.offset].user
            assert row.assistant == stored[row.offset].assistant
        assert 0 < head.budget_tokens <= 4096
        assert head.deadline.ToSeconds() > head.lease_expire_time.ToSeconds() > 0
        assert (record.model.model, record.usage.output_tokens, record.usage.cost) == ("writer", 40, 0.25)
        (used,) = [u for u in host.get().totals.usage if u.folds]
        assert (used.calls, used.usage.input_tokens, used.usage.output_tokens) == (1, 900, 40)

    def test_f8_the_next_replaces_the_earlier_and_carries_what_the_user_requires(self, client: Client) -> None:
        rule = "Never touch the file deploy/production.yaml."
        with Curator(client) as curator:
            host = Host(client, "s", output_reserve_tokens=100, summary=sourced())
            host.append(user(f"Mend the parser. {rule}"), assistant(LINE.format(n=1)))
            host.append(*[m for n in range(9) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
            texts = []
            for n in range(3):
                with asking(host) as fold:
                    task = curator.task()
                    assert task.head.earlier_summary.text == (texts[-1] if texts else "")
                    curator.answer(task, f"{TEXT} Part {n}.")
                    texts.append(fold.result(10).summary_text)
                host.append(*[m for k in range(9) for m in (user(LINE.format(n=k)), assistant(LINE.format(n=k)))])
        assert all(text.startswith(f"{TEXT} Part {n}.") for n, text in enumerate(texts))
        assert all(text.count(rule) == 1 for text in texts), "also of the third, whose author never saw the request"
        assert sum(r.HasField("compaction_summary") for r in host.active()) == 1
        assert host.verify().ok

    def test_f3_the_ledger_of_a_run_that_ended_is_not_handed_on(self, client: Client) -> None:
        host = Host(client, "s", output_reserve_tokens=100, summary=sourced(), min_progress=0.0)
        prepared = host.prepare("r1", user("Read every part."))
        for n in range(4):
            outcome = host.answer(prepared, calls(f"c{n}"))
            prepared = host.prepare("r1", result(f"c{n}", LINE.format(n=n) * 4), previous_answer=outcome)
        host.compact()
        (earlier,) = [r.compaction_summary for r in host.active() if r.HasField("compaction_summary")]
        prose, ledger, _ = earlier.text.partition("\n\nCalls already made for the request above")
        assert ledger
        finish = compaction_pb2.RUN_OUTCOME_COMPLETED
        host.record("r1", host.answer(prepared, assistant("Read."), finish=finish))
        host.append(*[m for n in range(9) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
        with Curator(client) as curator, asking(host) as fold:
            task = curator.task()
            assert task.head.earlier_summary.text == prose
            curator.answer(task, TEXT)
            assert fold.result(10).summary_text == TEXT
        assert host.verify().ok

    def test_f8_what_the_text_says_itself_is_not_said_twice(self, client: Client) -> None:
        rule = "Never touch the file deploy/production.yaml."
        with Curator(client).serving(lambda task: f"{TEXT}\n- {rule}"):
            host = Host(client, "s", output_reserve_tokens=100, summary=sourced())
            host.append(user(f"Mend the parser. {rule}"), assistant(LINE.format(n=1)))
            host.append(*[m for n in range(9) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
            assert host.compact().summary_text == f"{TEXT}\n- {rule}"

    def test_s9_what_the_text_misses_is_listed_behind_it(self, client: Client) -> None:
        with Curator(client).serving(lambda task: TEXT):
            host = near(client, "s", summary=sourced(coverage_floor=1))
            record = host.compact()
        prose, _, appendix = record.summary_text.partition("\n\n")
        assert prose == TEXT
        assert "E17" in appendix
        assert record.coverage.summary < record.coverage.with_appendix

    @pytest.mark.parametrize(
        "text",
        ["  ", "word " * 5000, "<tool_call>read</tool_call>", "<think>hm</think> Done."],
        ids=["blank", "over its budget", "tool protocol", "reasoning"],
    )
    def test_v6_a_text_is_checked_like_any(self, client: Client, text: str) -> None:
        with Curator(client).serving(lambda task: text):
            host = near(client, "s", summary=sourced())
            refusal = refused(host.compact)
        assert (refusal.reason, refusal.metadata["failure"]) == ("REWRITE_REJECTED", "SUMMARY_REJECTED")
        assert untouched(host)

    def test_a_large_task_comes_in_several_messages(self, client: Client) -> None:
        texts = [f"{n} " + "lorem ipsum dolor " * 38_000 for n in range(6)]
        with Curator(client) as curator:
            host = Host(client, "s", summary=sourced())
            for text in texts:
                host.append(user(text), assistant("read"))
            with asking(host) as fold:
                task = curator.task()
                assert task.parts >= 3
                assert not any(m.ByteSize() > 4 << 20 for m in curator.heard), "what clients of gRPC take by default"
                curator.answer(task, TEXT)
                record = fold.result(20)
        gone = [o for r in record.discarded for o in range(r.first, r.last + 1)]
        assert [r.offset for r in task.rows] == gone
        said = [r.user.content[0].text.text for r in task.rows if r.HasField("user")]
        assert said == texts[: len(said)]
        assert [m.sequence for m in curator.heard] == list(range(2, len(curator.heard) + 2))

    def test_a_row_that_fits_no_message_fails_the_attempt(self, tmp_path: Path) -> None:
        """A server whose limit was lowered."""
        with serving(tmp_path) as (client, _):
            host = Host(client, "s", summary=sourced())
            for n in range(6):
                host.append(user(f"{n} " + "lorem ipsum " * 8000), assistant("read"))
        with serving(tmp_path, **{"server.max_message_bytes": 65_536}) as (client, _), Curator(client) as curator:
            refusal = refused(host_on(client, host).compact)
            assert (refusal.code, refusal.reason) == ("ABORTED", "CURATOR_FAILED")
            assert curator.next("cancel").task_id


def host_on(client: Client, host: Host) -> Host:
    """The same host, connected anew."""
    host.client = client
    return host


def test_h3_a_curator_writes_for_a_host_that_keeps_its_list(client: Client) -> None:
    with Curator(client).serving(lambda task: TEXT):
        host = hosted.HostedHost(client, "s", summary=sourced())
        for n in range(30):
            host.add(hosted.user(LINE.format(n=n)), hosted.assistant(LINE.format(n=n + 50)))
        answer = host.fold(manual=True)
    assert answer.record.summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
    assert answer.summary.compaction_summary.text.startswith(TEXT)
    assert host.verify().ok


class TestNobody:
    """S6: disconnected, late, failed or cooling: the attempt fails, and the history is untouched."""

    NEXT = policy_pb2.ON_FAILURE_NEXT

    def test_s6_nobody_connected(self, client: Client) -> None:
        host = near(client, "s", summary=sourced(on_failure=self.NEXT))
        refusal = refused(host.compact)
        assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "CURATOR_UNAVAILABLE")
        prepared = until_due(host)
        assert (prepared.action, prepared.skip) == (SEND, compaction_pb2.SKIP_REASON_ATTEMPT_FAILED)
        assert failures(host) == ["CURATOR_UNAVAILABLE"] * 2
        assert untouched(host)

    def test_c5_one_that_comes_is_asked_at_once_and_nobody_is_asked_in_vain_meanwhile(self, client: Client) -> None:
        """C5, C6: the cooldown of one that is not there ends when it comes, and nothing was spent on it."""
        host = near(client, "s", summary=sourced(), max_paid_folds_per_hour=1)
        assert until_due(host).skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
        for number in range(4):
            assert host.turn(f"alone-{number}", LINE, LINE).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        assert len(events(host, "COMPACTION_STARTED")) == 1
        assert len(events(host, "COMPACTION_SKIPPED")) == 1
        with Curator(client, labels={"team": "blue"}):
            assert host.turn("other", LINE, LINE).skip == compaction_pb2.SKIP_REASON_COOLDOWN, "it is not the session's"
        with Curator(client).serving(lambda task: TEXT):
            check = compaction_service_pb2.CheckPressureRequest(session_id="s")
            assert client.compaction.CheckPressure(check).fold_due
            assert host.turn("now", LINE, LINE).action == compaction_pb2.ACTION_SEND_FOLDED
        assert not host.get().cadence.HasField("cooldown_until")

    def test_c5_one_that_was_lost_with_its_task_cools_though_it_comes_back(
        self, brief: tuple[Client, app.Server]
    ) -> None:
        """It may be the task that it dies of."""
        client, _ = brief
        host = near(client, "s", summary=sourced())
        with ThreadPoolExecutor(1) as pool:
            with Curator(client) as curator:
                due = pool.submit(until_due, host)
                curator.task()
            assert due.result(20).skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
        with Curator(client).serving(lambda task: TEXT):
            assert host.turn("again", LINE, LINE).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        assert failures(host) == ["CURATOR_UNAVAILABLE"]

    def test_s6_its_failure_is_told_and_cools_for_as_long_as_it_asks(self, client: Client) -> None:
        host = near(client, "s", summary=sourced(on_failure=self.NEXT))
        with Curator(client) as curator, ThreadPoolExecutor(1) as pool:
            due = pool.submit(until_due, host)
            curator.fail(curator.task(), "the model is away", retry_after=Duration(seconds=7200))
            prepared = due.result(20)
            assert (prepared.action, prepared.skip) == (SEND, compaction_pb2.SKIP_REASON_ATTEMPT_FAILED)
            assert host.turn("again", LINE, LINE).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        (failed,) = events(host, "COMPACTION_FAILED")
        assert event_name(failed) == "CURATOR_FAILED"
        assert failed.compaction_failed.message == "the model is away"
        cooled = failed.compaction_failed.cooldown_until.ToSeconds() - failed.create_time.ToSeconds()
        assert 7100 <= cooled <= 7300
        assert untouched(host)

    def test_s6_one_that_is_late_is_told_so_and_what_it_says_then_is_dropped(self, client: Client) -> None:
        host = near(client, "s", summary=sourced(timeout=Duration(nanos=300_000_000)))
        with Curator(client) as curator:
            with asking(host) as fold:
                task = curator.task()
                assert task.head.deadline.ToNanoseconds() < task.head.lease_expire_time.ToNanoseconds()
                refusal = refusal_of(fold)
            assert (refusal.code, refusal.reason) == ("ABORTED", "CURATOR_FAILED")
            assert "0.3 s" in refusal.message
            assert curator.next("cancel").task_id == task.id
            curator.answer(task, TEXT)
            assert curator.next("cancel").reason == "the answer comes too late"
            curator.serving(lambda task: TEXT)
            assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
        assert host.verify().ok

    def test_s6_the_hosts_request_is_answered_in_its_own_time(self, client: Client) -> None:
        """A5: the fold goes on behind it, and commits."""
        with Curator(client) as curator:
            host = near(client, "s", summary=sourced(), fold_wait=Duration(nanos=50_000_000))
            prepared = cross(host, 0)
            assert (prepared.action, prepared.fold_pending) == (SEND, True)
            curator.answer(curator.task(), TEXT)
            assert until(lambda: bool(events(host, "COMPACTION_COMPLETED")))
        assert host.verify().ok

    def test_an_answer_of_the_wrong_kind(self, client: Client) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client) as curator:
            with asking(host) as fold:
                task = curator.task()
                curator.rewrite(task, [], TEXT)
                assert refusal_of(fold).reason == "CURATOR_FAILED"
            with asking(host) as fold:
                curator.answer(curator.task(), TEXT)
                assert fold.result(10).fold_id
        assert failures(host) == ["CURATOR_FAILED"]

    def test_an_invalid_answer_ends_its_stream_and_the_attempt_at_once(self, client: Client) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client) as curator, asking(host) as fold:
            curator.answer(curator.task(), "")
            assert refusal_of(fold).reason == "CURATOR_FAILED"
            error = curator.ended()
            assert error is not None
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert untouched(host)

    def test_a_session_that_is_deleted_takes_its_task_back(self, client: Client) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client) as curator:
            with asking(host) as fold:
                task = curator.task()
                client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id="s"))
                assert curator.next("cancel").task_id == task.id
                assert refusal_of(fold).reason == "SESSION_NOT_FOUND"
            curator.answer(task, TEXT)
            assert curator.next("cancel").task_id == task.id

    def test_l2_appends_go_on_while_a_curator_writes(self, client: Client) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client) as curator, asking(host) as fold:
            task = curator.task()
            late = host.append(user("meanwhile"))
            curator.answer(task, TEXT)
            assert fold.result(10).fold_id
        assert host.offsets()[-1] == late.last_offset
        assert host.verify().ok


SEND = compaction_pb2.ACTION_SEND


def until_due(host: Host) -> compaction_service_pb2.PrepareRequestResponse:
    """Turns until a fold is due; the answer to its request."""
    for number in range(30):
        prepared = host.turn(f"due-{number}", LINE.format(n=number), LINE.format(n=number))
        if prepared.skip or prepared.action != SEND:
            return prepared
    raise AssertionError("no fold was due")


def refusal_of(fold: Future[Any]) -> Refusal:
    error = fold.exception(20)
    assert isinstance(error, grpc.RpcError)
    return server.refusal_of(error)


class TestChoosing:
    def test_the_session_has_all_labels_of_its_curator(self, client: Client) -> None:
        blue = {"team": "blue"}
        with (
            Curator(client, labels=blue).serving(lambda task: f"{TEXT} Blue."),
            Curator(client, labels=blue | {"shift": "night"}).serving(lambda task: f"{TEXT} Night."),
            Curator(client, labels={"team": "red"}).serving(lambda task: f"{TEXT} Red."),
        ):
            said = {}
            for name, labels in {"blue": blue, "red": {"team": "red", "shift": "day"}, "green": {}}.items():
                host = near(client, name, summary=sourced())
                request = session_service_pb2.UpdateSessionRequest(session_id=name, labels=labels)
                client.session.UpdateSession(request)
                if labels:
                    said[name] = host.compact().summary_text.rsplit(" ", 1)[-1]
                else:
                    assert refused(host.compact).reason == "CURATOR_UNAVAILABLE"
        assert said == {"blue": "Blue.", "red": "Red."}

    def test_hosts_share_tasks_by_their_room_and_what_is_over_it_waits(self, client: Client) -> None:
        hosts = [near(client, f"s{n}", summary=sourced()) for n in range(5)]
        with Curator(client) as one, Curator(client, max_tasks=3) as many, ThreadPoolExecutor(5) as pool:
            folds = [pool.submit(host.compact) for host in hosts]
            mine, theirs = one.task(), [many.task() for _ in range(3)]
            given = {t.head.session_id for t in (mine, *theirs)}
            assert len(given) == 4
            (waiting,) = {host.id for host in hosts} - given
            many.answer(theirs[0], TEXT)
            assert many.task().head.session_id == waiting
            for task in theirs[1:]:
                many.answer(task, TEXT)
            many.answer(next(m.task.task_id for m in many.heard if m.task.session_id == waiting), TEXT)
            one.answer(mine, TEXT)
            assert all(fold.result(20).fold_id for fold in folds)

    def test_all_busy_until_the_deadline(self, client: Client) -> None:
        first = near(client, "first", summary=sourced())
        second = near(client, "second", summary=sourced(timeout=Duration(nanos=200_000_000)))
        with Curator(client) as curator, asking(first) as fold:
            task = curator.task()
            refusal = refused(second.compact)
            assert refusal.reason == "CURATOR_UNAVAILABLE"
            assert "busy" in refusal.message
            curator.answer(task, TEXT)
            assert fold.result(10).fold_id
        assert untouched(second)

    def test_a_foreign_tenant_is_denied(self, client: Client) -> None:
        with Curator(client, register=False) as curator:
            curator.send(register={"role": curator_pb2.CURATOR_ROLE_CURATOR, "tenant": "acme"})
            error = curator.ended()
            assert error is not None
            refusal = server.refusal_of(error)
            assert (refusal.code, refusal.reason, refusal.metadata["tenant"]) == (
                "PERMISSION_DENIED", "TENANT_DENIED", "acme",
            )  # fmt: skip
            assert not any(m.HasField("registered") for m in curator.heard)
            assert refused(near(client, "s", summary=sourced()).compact).reason == "CURATOR_UNAVAILABLE"

    @pytest.mark.parametrize("opted", [False, True])
    def test_a4_it_is_asked_ahead_of_need_only_if_it_opted_in(self, client: Client, opted: bool) -> None:
        with Curator(client, background=opted).serving(lambda task: TEXT):
            host = near(client, "s", summary=sourced(), background=policy_pb2.BackgroundPolicy(enabled=True))
            folded = cross(host, 0)
        expected = compaction_pb2.TRIGGER_BACKGROUND if opted else compaction_pb2.TRIGGER_AUTOMATIC
        assert folded.fold.trigger == expected
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_CURATOR

    def test_a4_of_two_the_one_that_opted_in_is_asked_ahead_of_need(self, client: Client) -> None:
        with Curator(client) as plain, Curator(client, background=True).serving(lambda task: TEXT):
            host = near(client, "s", summary=sourced(), background=policy_pb2.BackgroundPolicy(enabled=True))
            assert cross(host, 0).fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
            assert not plain.heard


class TestLeases:
    """A lease that ends gives the task to another host; a host that comes back within it goes on."""

    def test_a_lost_host_gives_its_task_to_another(self, brief: tuple[Client, app.Server]) -> None:
        client, served = brief
        host = near(client, "s", summary=sourced())
        with Curator(client, name="first") as first, asking(host) as fold:
            task = first.task()
            with Curator(client, name="second") as second:
                first.close()
                again = second.task()
                (lease,) = served.services.store.leases()
                assert (lease.task_id, lease.attempt, lease.curator) == (task.id, 2, "second")
                assert (again.id, again.head.attempt, again.rows) == (task.id, 2, task.rows)
                assert again.head.deadline == task.head.deadline
                second.answer(again, TEXT)
                assert fold.result(10).summary_text.startswith(TEXT)
        assert served.services.store.leases() == []
        assert ended_once(host)

    def test_a_silent_host_loses_its_task_and_its_answer_comes_too_late(self, brief: tuple[Client, app.Server]) -> None:
        client, _ = brief
        host = near(client, "s", summary=sourced())
        with Curator(client) as silent, asking(host) as fold:
            task = silent.task()
            with Curator(client) as other:
                again = other.task()
                assert silent.next("cancel").task_id == task.id
                silent.answer(task, "What is too late.")
                assert silent.next("cancel").reason == "the answer comes too late"
                other.answer(again, TEXT)
                assert fold.result(10).summary_text.startswith(TEXT)
        assert host.verify().ok

    def test_s6_with_no_other_the_attempt_fails(self, brief: tuple[Client, app.Server]) -> None:
        client, served = brief
        host = near(client, "s", summary=sourced(on_failure=policy_pb2.ON_FAILURE_NEXT))
        with Curator(client) as curator, ThreadPoolExecutor(1) as pool:
            due = pool.submit(until_due, host)
            curator.task()
            curator.close()
            prepared = due.result(20)
        assert (prepared.action, prepared.skip) == (SEND, compaction_pb2.SKIP_REASON_ATTEMPT_FAILED)
        assert failures(host) == ["CURATOR_UNAVAILABLE"]
        assert untouched(host)
        assert served.services.store.leases() == []

    def test_heartbeats_keep_the_tasks_that_they_name(self, brief: tuple[Client, app.Server]) -> None:
        client, _ = brief
        kept, dropped = (near(client, name, summary=sourced()) for name in ("kept", "dropped"))
        with Curator(client, max_tasks=2) as curator, ThreadPoolExecutor(2) as pool:
            assert curator.interval == SHORT
            folds = {host.id: pool.submit(host.compact) for host in (kept, dropped)}
            tasks = {t.head.session_id: t for t in (curator.task(), curator.task())}
            while not folds["dropped"].done():
                curator.beat(tasks["kept"].id)
                ack = curator.next("heartbeat_ack")
            assert ack.lease_expire_time.ToNanoseconds() > tasks["kept"].head.lease_expire_time.ToNanoseconds()
            assert refusal_of(folds["dropped"]).reason == "CURATOR_UNAVAILABLE"
            curator.answer(tasks["kept"], TEXT)
            assert folds["kept"].result(10).fold_id

    def test_a_heartbeat_learns_what_is_no_task_of_its_own(self, client: Client) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client) as holder, Curator(client, labels={"a": "b"}) as other, asking(host) as fold:
            task = holder.task()
            other.beat(task.id, "t-unknown")
            assert {other.next("cancel").task_id, other.next("cancel").task_id} == {task.id, "t-unknown"}
            other.answer(task, "Not mine.")
            assert other.next("cancel").task_id == task.id
            holder.answer(task, TEXT)
            assert fold.result(10).summary_text.startswith(TEXT)

    @pytest.mark.parametrize("by", ["heartbeat", "answer"])
    def test_a_host_that_comes_back_goes_on(self, client: Client, by: str) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client) as before, asking(host) as fold:
            task = before.task()
            before.close()
            before.ended()
            with Curator(client) as back:
                if by == "heartbeat":
                    assert until(lambda: beats(back, task.id))
                assert until(lambda: fold.done() or not back.answer(task, TEXT))
                assert fold.result(10).summary_text.startswith(TEXT)
                assert not any(m.HasField("task") for m in back.heard)

    def test_another_takes_up_nobody_elses_broken_stream(self, client: Client) -> None:
        host = near(client, "s", summary=sourced())
        with Curator(client, name="mine") as before, Curator(client, name="other") as other, asking(host) as fold:
            holder, by = (before, other) if until(lambda: bool(before.heard), 1) else (other, before)
            task = holder.task()
            holder.close()
            holder.ended()
            by.answer(task, "From somebody else.")
            assert by.next("cancel").task_id == task.id
            with Curator(client, name="mine" if holder is before else "other") as back:
                assert until(lambda: fold.done() or not back.answer(task, TEXT))
                assert fold.result(10).summary_text.startswith(TEXT)

    def test_a_broken_stream_is_forgotten(self, brief: tuple[Client, app.Server]) -> None:
        client, served = brief
        host = near(client, "s", summary=sourced())
        with Curator(client), Curator(client) as second:
            assert connected(served, 2)
            second.leave()
            assert second.ended() is None
            assert connected(served, 1)
        assert connected(served, 0)
        assert refused(host.compact).reason == "CURATOR_UNAVAILABLE"


def beats(curator: Curator, task_id: str) -> bool:
    """Whether a heartbeat keeps the task: until the broken stream is noticed it is another's."""
    curator.beat(task_id)
    curator.next("heartbeat_ack")
    return curator.heard[-2:-1] == [] or not curator.heard[-2].HasField("cancel")


class TestStreams:
    @pytest.mark.parametrize(
        ("messages", "field"),
        [
            ([{"heartbeat": {}}], "heartbeat"),
            ([{"register": {"role": 0}}], "register.role"),
            ([{"register": {"role": 1}}, {"register": {"role": 1}}], "register"),
            ([{"register": {"role": 1}}, {"sequence": 1, "heartbeat": {}}], "sequence"),
            ([{"register": {"role": 1}}, {}], "kind"),
            ([{"register": {"role": 1, "max_tasks": 65}}], "register.max_tasks"),
        ],
    )
    def test_what_is_no_message_of_such_a_stream_ends_it(
        self, client: Client, messages: list[dict[str, Any]], field: str
    ) -> None:
        with Curator(client, register=False) as curator:
            for message in messages:
                curator.send(**message)
            error = curator.ended()
        assert error is not None
        refusal = server.refusal_of(error)
        assert refusal.reason == "FIELD_VALIDATION"
        assert refusal.metadata["field"] == field

    def test_a_host_that_does_not_read_holds_nobody_up(self, brief: tuple[Client, app.Server]) -> None:
        client, _ = brief
        large = Host(client, "large", summary=sourced())
        for n in range(7):
            large.append(user(f"{n} " + "ab " * 120_000), assistant("read"))
        with Curator(client, reads=False), asking(large) as stuck:
            refusal = refusal_of(stuck)
            assert refusal.reason == "CURATOR_UNAVAILABLE"
            with Curator(client, labels={}).serving(lambda task: TEXT):
                assert large.compact().fold_id

    def test_streams_are_counted_and_the_next_is_refused(self, tmp_path: Path) -> None:
        with (
            serving(tmp_path, **{"server.max_streams": 2}) as (client, _),
            Curator(client), Curator(client), Curator(client, register=False) as third,
        ):  # fmt: skip
            third.send(register={"role": curator_pb2.CURATOR_ROLE_CURATOR})
            error = third.ended()
            assert error is not None
            assert server.refusal_of(error).reason == "OVERLOADED"

    def test_a_server_that_stops_lets_a_task_be_finished(self, tmp_path: Path) -> None:
        with serving(tmp_path, **{"server.drain_grace": 20}) as (client, served):
            host = near(client, "s", summary=sourced())
            with Curator(client) as busy, asking(host) as fold, ThreadPoolExecutor(1) as pool:
                task = busy.task()
                with Curator(client) as idle:
                    stopping = pool.submit(served.stop)
                    error = idle.ended()
                    assert error is not None
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                busy.answer(task, TEXT)
                assert fold.result(10).summary_text.startswith(TEXT)
                error = busy.ended()
                assert error is not None
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert stopping.result(20)

    @pytest.mark.parametrize("ask", ["compact", "checkpoint"])
    def test_s6_a_manual_fold_that_a_stop_cuts_off_may_be_called_again(self, tmp_path: Path, ask: str) -> None:
        """W7: UNAVAILABLE, which is retried blindly; the session is untouched, and the log has one end of the fold."""
        with serving(tmp_path, **{"server.drain_grace": 1}) as (client, served):
            host = near(client, "s", summary=sourced(), checkpoints={"enabled": True})
            with Curator(client) as curator, ThreadPoolExecutor(2) as pool:
                save = compaction_service_pb2.SaveCheckpointRequest(session_id="s", description="so far")
                call = host.compact if ask == "compact" else lambda: client.compaction.SaveCheckpoint(save)
                fold = pool.submit(call)
                curator.task()
                second = client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id="s"))
                assert next(second).progress.joined
                joined = pool.submit(list, second)
                served.stop()
                for asked in (fold, joined):
                    refusal = refusal_of(asked)
                    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "NOT_READY")
                    assert refusal.metadata["component"] == "server"
                    assert refusal.retry_seconds
        with serving(tmp_path) as (client, served):
            host = host_on(client, host)
            assert failures(host) == ["INTERRUPTED"]
            assert untouched(host)
            with Curator(client).serving(lambda task: TEXT):
                assert host.compact().fold_id

    def test_a5_a_request_that_waits_for_a_fold_goes_out_unfolded_when_the_server_stops(self, tmp_path: Path) -> None:
        with serving(tmp_path, **{"server.drain_grace": 1}) as (client, served):
            host = near(client, "s", summary=sourced())
            host.append(*(m for n in range(9) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n)))))
            with Curator(client) as curator, ThreadPoolExecutor(1) as pool:
                due = pool.submit(host.prepare, "due", user("And now?"))
                curator.task()
                served.stop()
                prepared = due.result(10)
                assert prepared.action == SEND
                assert prepared.fold_pending or prepared.failure == compaction_pb2.FAILURE_KIND_INTERRUPTED

    def test_s6_a_server_that_stops_ends_the_fold_and_nobody_cools(self, tmp_path: Path) -> None:
        with serving(tmp_path, **{"server.drain_grace": 0.2}) as (client, served):
            host = near(client, "s", summary=sourced(), fold_wait=Duration(nanos=50_000_000))
            with Curator(client) as curator:
                assert cross(host, 0).fold_pending
                curator.task()
                served.stop()
        with serving(tmp_path) as (client, served):
            host = host_on(client, host)
            assert served.services.store.leases() == []
            assert failures(host) == ["INTERRUPTED"]
            assert untouched(host)
            with Curator(client).serving(lambda task: TEXT):
                cross(host, 50)
                assert until(lambda: bool(events(host, "COMPACTION_COMPLETED")))


class TestCompactors:
    """F12, over the stream."""

    def test_f12_it_chooses_what_stays(self, client: Client) -> None:
        with Curator(client, role=curator_pb2.CURATOR_ROLE_COMPACTOR) as compactor:
            host = near(client, "s", summary=sourced())
            with ThreadPoolExecutor(1) as pool:
                crossing = pool.submit(cross, host, 0)
                task = compactor.task()
                assert task.head.role == curator_pb2.CURATOR_ROLE_COMPACTOR
                assert [o for unit in task.head.units for o in unit.offsets] == [r.offset for r in task.rows]
                kept = list(task.head.units[0].offsets)
                compactor.rewrite(task, kept, TEXT)
                folded = crossing.result(20)
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_COMPACTOR
        assert folded.fold.summary_text == TEXT
        gone = {o for r in folded.fold.discarded for o in range(r.first, r.last + 1)}
        assert gone == {r.offset for r in task.rows} - set(kept)
        assert set(kept) <= set(host.offsets())
        assert host.verify().ok

    @pytest.mark.parametrize("keep", ["unknown", "all"])
    def test_f12_nonsense_leaves_the_history(self, client: Client, keep: str) -> None:
        with Curator(client, role=curator_pb2.CURATOR_ROLE_COMPACTOR) as compactor:
            host = near(client, "s", summary=sourced())
            with asking(host) as fold:
                task = compactor.task()
                compactor.rewrite(task, [10**6] if keep == "unknown" else [r.offset for r in task.rows], TEXT)
                assert refusal_of(fold).reason in ("CURATOR_FAILED", "NOTHING_TO_FOLD", "REWRITE_REJECTED")
        assert untouched(host)

    @pytest.mark.parametrize("opted", [False, True])
    def test_a4_it_is_asked_ahead_of_need_only_if_it_opted_in(self, client: Client, opted: bool) -> None:
        role = curator_pb2.CURATOR_ROLE_COMPACTOR
        with Curator(client, role=role, background=opted) as compactor, ThreadPoolExecutor(1) as pool:
            host = near(client, "s", summary=sourced(), background=policy_pb2.BackgroundPolicy(enabled=True))
            crossing = pool.submit(cross, host, 0)
            compactor.rewrite(compactor.task(), [], TEXT)
            folded = crossing.result(20)
        expected = compaction_pb2.TRIGGER_BACKGROUND if opted else compaction_pb2.TRIGGER_AUTOMATIC
        assert folded.fold.trigger == expected
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_COMPACTOR

    @pytest.mark.parametrize("role", ["CURATOR", "COMPACTOR"])
    def test_b4_bounding_forces_no_fold_of_a_compactor(self, client: Client, role: str) -> None:
        with Curator(client, role=curator_pb2.CuratorRole.Value(f"CURATOR_ROLE_{role}")):
            host = Host(client, "s", output_reserve_tokens=100, summary=sourced())
            prepared = host.prepare("run", user("read it"))
            prepared = host.prepare("run", result("c", LINE * 100), previous_answer=host.answer(prepared, calls("c")))
        assert prepared.bounded
        assert bool(events(host, "DID_NOT_FIT_RECORDED")) == (role == "CURATOR")

    def test_s6_a_curator_comes_before_a_compactor(self, client: Client) -> None:
        with Curator(client, role=curator_pb2.CURATOR_ROLE_COMPACTOR) as compactor:
            with Curator(client).serving(lambda task: TEXT):
                host = near(client, "s", summary=sourced())
                assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
            assert not compactor.heard

    def test_s2_one_that_is_connected_is_no_configuration(self, client: Client) -> None:
        """AUTO does not depend on who happens to be there."""
        with Curator(client, role=curator_pb2.CURATOR_ROLE_COMPACTOR) as compactor, Curator(client) as curator:
            assert near(client, "s").compact().summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
            assert not compactor.heard
            assert not curator.heard

    @pytest.mark.parametrize("role", ["CURATOR", "COMPACTOR"])
    def test_f5_it_is_handed_only_rows_before_the_run(self, client: Client, role: str) -> None:
        """F3: stage 2 is a fold of its own, and the sidecar's."""
        tasks: list[Task] = []
        with Curator(client, role=curator_pb2.CuratorRole.Value(f"CURATOR_ROLE_{role}")) as curator:
            host = Host(client, "s", output_reserve_tokens=100, auto_compact=False, summary=sourced())
            host.append(*[m for n in range(4) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
            prepared = host.prepare("run", user("go"))
            first = prepared.first_offset
            for n in range(70):
                made = [calls(f"c{n}"), result(f"c{n}", LINE.format(n=n + 100))]
                prepared = host.prepare("run", made[1], previous_answer=host.answer(prepared, made[0]))
            policy = policy_pb2.Policy(auto_compact=True)
            client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id="s", policy=policy))
            with ThreadPoolExecutor(1) as pool:
                due = pool.submit(
                    host.prepare, "run", result("last", "x"), previous_answer=host.answer(prepared, calls("last"))
                )
                tasks.append(curator.task())
                if role == "CURATOR":
                    curator.answer(tasks[0], TEXT)
                else:
                    curator.rewrite(tasks[0], [], TEXT)
                folded = due.result(20)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert max(r.offset for r in tasks[0].rows) < first
        done = events(host, "COMPACTION_COMPLETED")
        sources = [row_pb2.SummarySource.Name(e.compaction_completed.record.summary_source) for e in done]
        assert sources == [f"SUMMARY_SOURCE_{role}", "SUMMARY_SOURCE_EXTRACTIVE"]
        (ledger,) = [r.compaction_summary.text for r in host.active() if r.compaction_summary.of_run]
        assert ledger.endswith("- read({}) ×70: ran"), "F3: every call that folded, as already run"
        assert not any(m.HasField("task") for m in curator.heard[1:])
        assert host.list == host.offsets()
        assert ended_once(host)
        assert host.verify().ok
