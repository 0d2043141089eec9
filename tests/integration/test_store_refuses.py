"""A store that refuses the end of a fold, as a full disk does: cost and cooldown are owed (S5, C5, C6, §13)."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from foldline.domain.enums import FailureKind
from foldline.domain.folding import Compacted, CompactorTask, SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.models import Usage
from foldline.server import app
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.integration import hosted
from tests.integration.host import SMALL, Host
from tests.integration.test_ahead import LINE, Gate, cross, ended_once, events, fill, near, ready, settings, turn
from tests.integration.test_curators import asking, serving, sourced
from tests.support.curators import Curator
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server, started, until

FAILS = SummaryFailed(FailureKind.SUMMARIZER_FAILED, "no answer", usage=Usage(700, 30, cost=0.25), retry_after=900.0)
ALONE = policy_pb2.BackgroundPolicy(enabled=False)


class Full:
    """SQLite itself refuses the statement, from when on another connection says so."""

    def __init__(self, folder: Path, what: str = "UPDATE ON session") -> None:
        self.database, self.what = folder / "data" / "foldline.db", what

    def _execute(self, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(self.database, timeout=30, isolation_level=None)) as other:
            other.execute(statement)

    def begin(self) -> None:
        self._execute(f"CREATE TRIGGER IF NOT EXISTS full BEFORE {self.what} BEGIN SELECT RAISE(ABORT, 'no room'); END")

    def end(self) -> None:
        self._execute("DROP TRIGGER IF EXISTS full")

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


class Source:
    """While it writes, or fails to, the store becomes full."""

    def __init__(self, folder: Path) -> None:
        self.full, self.fills, self.fails = Full(folder), True, True
        self.asked = self.failed = 0
        self.inner = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        self.asked += 1
        if self.fills:
            self.full.begin()
        if self.fails:
            self.failed += 1
            raise FAILS
        return self.inner.summarize(request)


class Nonsense(Source):
    """A compactor, which is paid (C6): it keeps what it was not handed."""

    background = False

    def compact(self, task: CompactorTask) -> Compacted:
        self.asked += 1
        self.full.begin()
        return Compacted((9_999,), "nonsense", usage=FAILS.usage)


def barrier_is_back(host: Host) -> bool:
    """An edit waits for the barrier before it looks at its rows, of which there are none."""
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=9_999, last_offset=9_999)
    return refused(host.client.session.EditRows, edit, timeout=60).reason == "FIELD_VALIDATION"


def used(
    host: Host | hosted.HostedHost, source: session_pb2.UsageSource.ValueType = session_pb2.USAGE_SOURCE_EXTRACTIVE
) -> tuple[int, int, float]:
    """(calls, input tokens, cost) of summaries that the session accounts for (S5)."""
    found = [u for u in host.get().totals.usage if u.source == source]
    return (found[0].calls, found[0].usage.input_tokens, found[0].usage.cost) if found else (0, 0, 0.0)


def skips(host: Host) -> compaction_pb2.SkipReason.ValueType:
    """Why a fold that is due is not made, as a check says, which writes nothing."""
    request = compaction_service_pb2.CheckPressureRequest(
        session_id=host.id, shape=compaction_service_pb2.RequestShape(model=SMALL)
    )
    return host.client.compaction.CheckPressure(request).skip


def fails_unseen(folder: Path, host: Host, gate: Gate) -> None:
    """A fold that nobody waits for (A5), whose source fails, and whose end the store refuses."""
    gate.shut()
    gate.fails = FAILS
    assert cross(host).fold_pending
    with Full(folder):
        gate.go_on.set()
        assert barrier_is_back(host)
        assert used(host) == (1, 700, 0.25)
        assert skips(host) == compaction_pb2.SKIP_REASON_COOLDOWN
    assert not events(host, "COMPACTION_FAILED")


def told_once(host: Host, *, cools: bool = True) -> None:
    (failed,) = events(host, "COMPACTION_FAILED")
    assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED
    assert failed.compaction_failed.HasField("cooldown_until") == cools, "a manual fold cools nothing (C5)"
    assert used(host) == (1, 700, 0.25)
    assert ended_once(host)
    assert host.verify().ok, host.verify().faults


def test_c5_the_next_boundary_knows_of_a_cooldown_that_could_not_be_written(tmp_path: Path) -> None:
    """S5: the source is not paid again at once; the end is in the log once, with what it cost, after a restart too."""
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s", fold_wait=Duration(nanos=1), background=ALONE)
        fails_unseen(tmp_path, host, gate)
        assert turn(host, 200).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        told_once(host)
        assert turn(host, 201).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        told_once(host)
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host.client = client
        told_once(host)
        assert turn(host, 202).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        assert len(gate.asked) == 1


def test_c5_a_store_that_refuses_for_long_refuses_requests_and_no_fold_is_paid_twice(tmp_path: Path) -> None:
    """Requests are refused as well and append nothing; what is owed is written with the first that is taken."""
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s", fold_wait=Duration(nanos=1), background=ALONE)
        fails_unseen(tmp_path, host, gate)
        rows = len(host.offsets())
        with Full(tmp_path):
            for number in range(200, 203):
                with pytest.raises(grpc.RpcError):
                    turn(host, number)
        assert len(host.offsets()) == rows
        assert turn(host, 204).skip == compaction_pb2.SKIP_REASON_COOLDOWN
        told_once(host)
        assert len(gate.asked) == 1


def test_s5_a_server_that_stops_writes_the_end_that_could_not_be_written(tmp_path: Path) -> None:
    """§13: no boundary came; it did not end as interrupted."""
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s", fold_wait=Duration(nanos=1), background=ALONE)
        fails_unseen(tmp_path, host, gate)
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host.client = client
        told_once(host)


def test_13_a_fold_whose_end_no_store_took_until_the_server_stopped_ends_as_interrupted(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with running_server(tmp_path, settings(tmp_path), summarizer=source) as client:
        host = near(client, "s")
        refused(host.compact)
    source.full.end()
    with running_server(tmp_path, settings(tmp_path), summarizer=source) as client:
        host.client = client
        (failed,) = events(host, "COMPACTION_FAILED")
        assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_INTERRUPTED
        assert ended_once(host)
        assert host.verify().ok, host.verify().faults


def test_13_upkeep_writes_what_sessions_owe_that_nobody_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PING_SECONDS", 0.01)
    source, stopped = Source(tmp_path), threading.Event()
    with started(tmp_path, settings(tmp_path), summarizer=source) as server:
        server.ready()
        upkeep = threading.Thread(target=server.upkeep, args=[stopped])
        upkeep.start()
        try:
            with Client(server.addresses[0]) as client:
                host = near(client, "s")
                refused(host.compact)
                assert not events(host, "COMPACTION_FAILED")
                source.full.end()
                assert until(lambda: ended_once(host), 30)
                told_once(host, cools=False)
        finally:
            stopped.set()
            upkeep.join()


def test_s5_a_session_that_owes_stays_in_memory(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with started(tmp_path, settings(tmp_path), summarizer=source) as server:
        server.ready()
        with Client(server.addresses[0]) as client:
            host = near(client, "s")
            refused(host.compact)
            source.full.end()
            server.services.sessions.capacity = 0
            Host(client, "another").append(user("hello"))
            assert used(host) == (1, 700, 0.25)
            host.append(user("and on"))
            told_once(host, cools=False)


def test_v10_a_fold_that_the_store_refuses_to_commit_has_one_end_and_is_paid_for_once(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.fails = False
    with running_server(tmp_path, settings(tmp_path), summarizer=source) as client:
        host = near(client, "s")
        rows = host.offsets()
        refused(host.compact)
        assert host.offsets() == rows
        source.full.end()
        source.fills = False
        host.append(user("and on"))
        (failed,) = events(host, "COMPACTION_FAILED")
        assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_COMMIT_FAILED
        assert used(host)[0] == 1
        assert host.compact().fold_id
        assert used(host)[0] == source.asked == 2
        assert ended_once(host)
        assert host.verify().ok, host.verify().faults


def test_c6_what_a_call_cost_counts_against_the_budget_though_it_could_not_be_written(tmp_path: Path) -> None:
    source = Nonsense(tmp_path)
    with running_server(tmp_path, settings(tmp_path), compactor=source) as client:
        host = near(client, "s", max_tokens_per_day=100, cooldown=Duration())
        refused(host.compact)
        source.full.end()
        prepared = next(p for n in itertools.count(100) if (p := turn(host, n)).skip or p.HasField("fold"))
        assert prepared.skip == compaction_pb2.SKIP_REASON_BUDGET
        assert used(host, session_pb2.USAGE_SOURCE_COMPACTOR) == (1, 700, 0.25)
        assert source.asked == 1
        assert ended_once(host)


def test_s6_a_curator_that_fails_while_the_store_refuses_is_counted_once(tmp_path: Path) -> None:
    with serving(tmp_path) as (client, _), Curator(client) as curator:
        host = near(client, "s", summary=sourced())
        with asking(host) as folded:
            task = curator.task()
            with Full(tmp_path):
                curator.fail(task, "no")
                assert folded.exception(30) is not None
                assert used(host, session_pb2.USAGE_SOURCE_CURATOR)[0] == 1
        assert not events(host, "COMPACTION_FAILED")
        host.append(user("and on"))
        (failed,) = events(host, "COMPACTION_FAILED")
        assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_CURATOR_FAILED
        assert used(host, session_pb2.USAGE_SOURCE_CURATOR)[0] == 1
        assert ended_once(host)


@pytest.mark.parametrize("fails", [True, False])
def test_h3_a_fold_of_a_hosts_list_whose_end_the_store_refuses_cools_and_ends_once(tmp_path: Path, fails: bool) -> None:
    source = Source(tmp_path)
    source.fails = fails
    with running_server(tmp_path, settings(tmp_path), summarizer=source) as client:
        host = hosted.long_list(client, "s", turns=60, min_boundaries_between=0)
        with pytest.raises(grpc.RpcError):
            host.compact()
        assert used(host)[0] == 1
        source.full.end()
        assert host.check().skip == compaction_pb2.SKIP_REASON_COOLDOWN
        assert host.compact().skip == compaction_pb2.SKIP_REASON_COOLDOWN
        kind = compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED if fails else compaction_pb2.FAILURE_KIND_COMMIT_FAILED
        assert list(host.ends().values()) == [[kind]]
        assert used(host)[0] == source.asked == 1
        source.fills = source.fails = False
        host.fold(manual=True)
        assert list(host.ends().values()) == [[kind], ["completed"]]
        assert host.verify().ok, host.verify().faults


def test_a1_a_summary_ahead_of_need_whose_start_the_store_refuses_is_tried_anew(tmp_path: Path) -> None:
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s", min_progress=0.01)
        with Full(tmp_path, "INSERT ON open_fold"), capture_logs() as logged:
            for number in range(100, 104):
                turn(host, number)
                if until(lambda: any("given up" in entry["event"] for entry in logged), 0.3):
                    break
            else:
                raise AssertionError("nothing was to be written ahead of need")
        ready(host, gate)
        assert cross(host, 200).fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
        assert ended_once(host)


def test_a2_what_a_summary_ahead_of_need_cost_is_counted_once_where_the_store_refused_it(tmp_path: Path) -> None:
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s")
        gate.shut()
        ready(host, gate)
        with Full(tmp_path):
            gate.go_on.set()
            assert until(lambda: used(host)[0] == 1, 30)
        assert cross(host).fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
        assert used(host)[0] == len(gate.asked) == 1
        assert ended_once(host)
        assert host.verify().ok, host.verify().faults


def test_a2_a_server_that_stops_writes_what_a_summary_ahead_of_need_has_cost(tmp_path: Path) -> None:
    """§13: the summary itself is lost, its end is an interruption."""
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s")
        gate.shut()
        ready(host, gate)
        with Full(tmp_path):
            gate.go_on.set()
            assert until(lambda: used(host)[0] == 1, 30)
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host.client = client
        assert used(host)[0] == 1
        (failed,) = events(host, "COMPACTION_FAILED")
        assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_INTERRUPTED
        assert ended_once(host)


def test_a3_a_drop_that_the_store_refuses_does_not_fail_the_edit_that_has_been_made(tmp_path: Path) -> None:
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "s")
        ready(host, gate)
        gate.shut()
        first = host.offsets()[0]
        edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=first, last_offset=first)
        with Full(tmp_path, "INSERT ON event WHEN instr(CAST(NEW.body AS TEXT), 'READY_DROPPED')"):
            client.session.EditRows(edit)
            assert first not in host.offsets()
            assert not events(host, "COMPACTION_FAILED")
        turn(host, 201)
        (dropped,) = events(host, "COMPACTION_FAILED")
        assert dropped.compaction_failed.failure == compaction_pb2.FAILURE_KIND_READY_DROPPED
        gate.go_on.set()
        assert host.verify().ok, host.verify().faults


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Source]]:
    folder = tmp_path_factory.mktemp("refuses")
    source = Source(folder)
    with running_server(folder, settings(folder), summarizer=source) as client:
        yield client, source


SESSIONS = itertools.count()
FOLDS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=5)
"""Of each fold: whether its source fails, whether the store is full by then, and whether it still is at the next."""


@effort(max_examples=15, deadline=None)
@given(folds=FOLDS)
def test_13_every_fold_has_one_end_and_every_call_is_counted_whatever_the_store_refuses(
    many: tuple[Client, Source], folds: list[tuple[bool, bool, bool]]
) -> None:
    client, source = many
    source.asked = source.failed = committed = 0
    host = Host(client, f"s-{next(SESSIONS)}", auto_compact=False)
    for fails, fills, lasts in folds:
        with contextlib.suppress(grpc.RpcError):
            fill(host)
        source.fails, source.fills = fails, fills
        with contextlib.suppress(grpc.RpcError):
            committed += bool(host.compact().fold_id)
        assert used(host)[0] == source.asked
        if not lasts:
            source.full.end()
    source.full.end()
    host.append(user("the last"))
    assert used(host) == (source.asked, *used(host)[1:])
    assert used(host)[2] == 0.25 * source.failed
    assert len(events(host, "COMPACTION_STARTED")) == source.asked
    assert len(events(host, "COMPACTION_COMPLETED")) == committed
    assert ended_once(host)
    assert host.verify().ok, host.verify().faults


class Whole:
    """A compactor after which no fold can start, as the store has no room for what says so."""

    background = False

    def __init__(self, folder: Path) -> None:
        self.full = Full(folder, "INSERT ON open_fold")

    def compact(self, task: CompactorTask) -> Compacted:
        self.full.begin()
        return Compacted((), "All of it, in one line.")


@pytest.mark.parametrize("manual", [False, True])
def test_f3_a_second_fold_that_cannot_start_takes_nothing_from_the_first(tmp_path: Path, manual: bool) -> None:
    """Who waits is told of the first, which is there; the rounds fold at a later boundary."""
    source = Whole(tmp_path)
    with running_server(tmp_path, settings(tmp_path), compactor=source) as client:
        host = Host(client, "s", output_reserve_tokens=100, auto_compact=False)
        host.append(*[m for n in range(4) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
        prepared = host.prepare("run", user("go"))
        for n in range(70):
            made = [calls(f"c{n}"), result(f"c{n}", LINE.format(n=n + 100))]
            prepared = host.prepare("run", made[1], previous_answer=host.answer(prepared, made[0]))
        policy = policy_pb2.Policy(auto_compact=True)
        client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id="s", policy=policy))
        with capture_logs() as logs:
            if manual:
                assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_COMPACTOR
            else:
                prepared = host.prepare(
                    "run", result("last", "x"), previous_answer=host.answer(prepared, calls("last"))
                )
                assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
                assert prepared.fold.summary_source == row_pb2.SUMMARY_SOURCE_COMPACTOR
                assert host.list == host.offsets()
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["a fold's thread failed"]
        assert len(events(host, "COMPACTION_COMPLETED")) == 1
        assert not events(host, "COMPACTION_FAILED")
        assert ended_once(host)
        source.full.end()
        assert host.verify().ok, host.verify().faults
