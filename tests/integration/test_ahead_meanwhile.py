"""What comes before the commit of a summary ahead of need, or of a fold that outlives its caller (A2, A5, L2)."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
    warning_pb2,
)
from google.protobuf.duration_pb2 import Duration

from tests.integration.host import Host
from tests.integration.test_ahead import LINE, Gate, cross, ended_once, events, near, ready, settings, turn
from tests.support.providers import Does, FakeProvider
from tests.support.requests import assistant, raw, result, user
from tests.support.server import Client, refused, running_server, until

Server = tuple[Client, Gate]


class Wordy(Gate):
    """Writes nearly as much as it may."""

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        written = super().summarize(request)
        return SummaryResult("word " * (request.budget - 40), written.durable, written.source)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, settings(tmp_path), summarizer=(gate := Wordy())) as client:
        yield client, gate
        gate.go_on.set()


def changed(host: Host, **policy: object) -> None:
    request = session_service_pb2.UpdateSessionRequest(session_id=host.id, policy=policy_pb2.Policy(**policy))
    request.update_mask.paths.append("policy")
    host.client.session.UpdateSession(request)


def rules(version: int) -> row_pb2.Row:
    made = row_pb2.Row()
    made.system.key, made.system.version = "rules", version
    made.system.content.add().text.text = f"version {version} of the rules"
    return made


def test_a2_a_ready_summary_that_is_too_long_by_now_is_taken_in_and_cools_nothing(server: Server) -> None:
    client, gate = server
    host = near(client, "a2-too-long")
    ready(host, gate)
    assert gate.asked[0].budget > 1_000
    changed(host, output_reserve_tokens=100, summary=policy_pb2.SummaryPolicy(max_tokens=400))
    folded = cross(host)
    assert folded.fold.trigger == compaction_pb2.TRIGGER_AUTOMATIC
    assert [len(s.text) > 1_000 for s in gate.asked[1].earlier] == [True], "what was written is not lost"
    failed = [e.compaction_failed.failure for e in events(host, "COMPACTION_FAILED")]
    assert failed == [compaction_pb2.FAILURE_KIND_READY_DROPPED]
    assert not any(turn(host, number).skip for number in range(300, 303))
    assert host.verify().ok
    assert ended_once(host)


@pytest.mark.parametrize("suffices", [True, False])
def test_l2_a_system_row_that_changes_while_a_fold_waits_for_its_summary_holds_nothing_up(
    server: Server, suffices: bool
) -> None:
    client, gate = server
    host = Host(client, f"l2-{suffices}", output_reserve_tokens=100, fold_wait=Duration(nanos=1))
    host.rows(rules(1))
    host.append(*(m for n in range(25) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
    gate.shut()
    ready(host, gate)
    if not suffices:
        host.append(*(m for n in range(30) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 900)))))
    assert cross(host).fold_pending
    host.rows(rules(2))
    assert turn(host, 300).fold_pending
    gate.go_on.set()
    assert until(lambda: bool(events(host, "COMPACTION_COMPLETED"))), [str(e) for e in host.events()]
    more = itertools.count(301)
    assert until(lambda: not turn(host, next(more)).fold_pending)
    assert len(gate.asked) == (1 if suffices else 2)
    assert all(
        e.compaction_failed.failure == compaction_pb2.FAILURE_KIND_READY_DROPPED
        for e in events(host, "COMPACTION_FAILED")
    )
    assert host.verify().ok
    assert ended_once(host)


def test_l2_a_store_that_fails_where_a_summary_ends_gives_the_barrier_back(tmp_path: Path) -> None:
    gate = Gate()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "l2-store", fold_wait=Duration(nanos=1), cooldown=Duration())
        gate.shut()
        ready(host, gate)
        assert cross(host).fold_pending
        other = sqlite3.connect(tmp_path / "data" / "foldline.db", isolation_level=None)
        other.execute("CREATE TRIGGER full BEFORE UPDATE ON session BEGIN SELECT RAISE(ABORT, 'no room'); END")
        try:
            gate.go_on.set()
            edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=9_999, last_offset=9_999)
            # It waits for the barrier before it looks at its rows, of which there are none.
            assert until(lambda: refused(client.session.EditRows, edit, timeout=2).reason == "FIELD_VALIDATION", 15)
        finally:
            other.execute("DROP TRIGGER full")
            other.close()
        changed(host, output_reserve_tokens=100)
        assert cross(host, 200).action == compaction_pb2.ACTION_SEND_FOLDED
        assert host.verify().ok
        assert ended_once(host)


def test_f3_a_fold_that_outlives_its_run_keeps_the_ledger_of_the_run_that_continues_it(server: Server) -> None:
    client, gate = server
    off = policy_pb2.BackgroundPolicy(enabled=False)
    host = Host(client, "f3-continued", output_reserve_tokens=100, background=off, fold_wait=Duration(nanos=1))
    gate.shut()
    prepared = host.prepare("first", user("order all of them"))
    number = 0
    while not prepared.fold_pending:
        number += 1
        prepared = _ordered(host, "first", prepared, number)
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=host.id, run_id="first", outcome=compaction_pb2.RUN_OUTCOME_FAILED
        )
    )
    prepared = host.prepare("second")
    assert prepared.fold_pending
    gate.go_on.set()
    assert until(lambda: bool(events(host, "COMPACTION_COMPLETED")))
    changed(host, output_reserve_tokens=100, background=off)
    while prepared.action != compaction_pb2.ACTION_SEND_FOLDED:
        number += 1
        prepared = _ordered(host, "second", prepared, number)
    rendered = "".join(m["content"] or "" for m in host.rendered() if m["role"] == "user")
    assert [f'order({{"number": {n}}}): ran' in rendered for n in range(1, number - 1)] == [True] * (number - 2)
    assert host.verify().ok


def _ordered(
    host: Host, run_id: str, prepared: compaction_service_pb2.PrepareRequestResponse, number: int, text: str = LINE
) -> compaction_service_pb2.PrepareRequestResponse:
    call = {"name": "order", "arguments": f'{{"number": {number}}}'}
    made = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
    }
    answered = host.answer(prepared, made)
    return host.prepare(run_id, result(f"c{number}", text.format(n=number)), previous_answer=answered)


def test_c6_a_call_ahead_of_need_that_spent_the_budget_leaves_none_for_the_fold_that_takes_it_in(
    tmp_path: Path,
) -> None:
    with FakeProvider(otherwise=Does()) as fake:
        configured = {
            **settings(tmp_path), "providers.openai.type": "openai", "providers.openai.model": "small",
            "providers.openai.base_url": fake.base_url("openai"), "providers.openai.api_key_env": "",
        }  # fmt: skip
        with running_server(tmp_path, configured) as client:
            host = near(
                client, "c6-ahead", max_paid_folds_per_hour=1, background=policy_pb2.BackgroundPolicy(enabled=True),
                summary=policy_pb2.SummaryPolicy(on_failure=policy_pb2.ON_FAILURE_RESCUE),
            )  # fmt: skip
            for number in range(20):
                turn(host, number)
                if fake.wait_for_calls(1, 0.2):
                    break
            assert until(lambda: bool(_usage(host, session_pb2.USAGE_SOURCE_PROVIDER)))
            host.append(*(m for n in range(60) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
            folded = host.prepare("big", user("and now?"))
            assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
            assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
            assert fake.calls == 1
            assert host.verify().ok
            assert ended_once(host)


def _usage(host: Host, source: session_pb2.UsageSource.ValueType) -> int:
    return next((u.calls for u in host.get().totals.usage if u.source == source), 0)


def test_c7_a_request_that_an_older_fold_leaves_over_the_window_gets_one_of_its_own(server: Server) -> None:
    client, gate = server
    off = policy_pb2.BackgroundPolicy(enabled=False)
    host = Host(client, "c7-joined", output_reserve_tokens=100, background=off, fold_wait=Duration(nanos=1))
    gate.shut()
    prepared = host.prepare("run", user("order all of them"))
    number = 0
    while not prepared.fold_pending:
        number += 1
        prepared = _ordered(host, "run", prepared, number)
    while prepared.pressure_checked.forecast_tokens < 8_000:
        number += 1
        prepared = _ordered(host, "run", prepared, number)
    changed(host, output_reserve_tokens=100, background=off)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_ordered, host, "run", prepared, number + 1, LINE * 50)
        assert not until(waiting.done, 0.3)
        gate.go_on.set()
        sent = waiting.result()
    assert sent.action == compaction_pb2.ACTION_SEND_FOLDED
    assert not sent.bounded
    assert sent.pressure_sent.forecast_tokens < 8_000
    assert [w.code for w in sent.warnings] == [warning_pb2.WARNING_CODE_FOLD_JOINED]
    assert len(gate.asked) == 2
    assert host.list == host.offsets()
    assert host.verify().ok
    assert ended_once(host)


class SecondFails(Gate):
    def summarize(self, request: SummaryRequest) -> SummaryResult:
        written = super().summarize(request)
        if len(self.asked) == 2:
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, "asked to")
        return written


def test_a2_what_is_ready_outlives_the_fold_that_failed_with_it_and_ends_once(tmp_path: Path) -> None:
    gate = SecondFails()
    with running_server(tmp_path, settings(tmp_path), summarizer=gate) as client:
        host = near(client, "a2-outlives", fold_wait=Duration(nanos=1), cooldown=Duration())
        gate.shut()
        ready(host, gate)
        host.append(*(m for n in range(30) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 900)))))
        assert cross(host).fold_pending
        gate.go_on.set()
        assert until(lambda: bool(events(host, "COMPACTION_FAILED")))
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=host.id, run_id="wider", append=raw(user("and now?")), reply=compaction_pb2.REPLY_MODE_NONE
        )
        request.shape.model.provider, request.shape.model.model = "openai", "of the catalog's default"
        request.override.auto_compact_threshold = 10_000
        request.override.fold_wait.seconds = 20
        folded = client.compaction.PrepareRequest(request)
        assert folded.fold.trigger == compaction_pb2.TRIGGER_BACKGROUND, "the wider window takes what is ready as it is"
        assert len(gate.asked) == 2
        assert ended_once(host)
        assert host.verify().ok


def test_c5_a_source_that_fails_cools_also_where_its_rows_changed_meanwhile(server: Server) -> None:
    client, gate = server
    host = near(client, "c5-changed")
    gate.shut()
    gate.fails = SummaryFailed(FailureKind.SUMMARIZER_FAILED, "asked to")
    ready(host, gate)
    first = host.offsets()[0]
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=first, last_offset=first)
    edit.replacement.rows.rows.add().user.content.add().text.text = "another beginning"
    client.session.EditRows(edit)
    host.list, host.revision = [], 0
    gate.go_on.set()
    assert until(lambda: bool(events(host, "COMPACTION_FAILED")))
    (failed,) = events(host, "COMPACTION_FAILED")
    assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED
    skips = [turn(host, number).skip for number in range(600, 610)]
    assert compaction_pb2.SKIP_REASON_COOLDOWN in skips
    assert len(gate.asked) == 1
    assert ended_once(host)


def test_s6_what_was_written_ahead_does_not_stand_in_for_a_curator(server: Server) -> None:
    """Curators are named by now, and none is there: the attempt fails and the history stays; A2 goes on after."""
    client, gate = server
    host = near(client, "s6")
    ready(host, gate)
    before = host.offsets()
    changed(host, summary={"source": policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR})
    assert refused(host.compact).reason == "CURATOR_UNAVAILABLE"
    assert host.offsets() == before
    changed(host, summary={"source": policy_pb2.SUMMARY_SOURCE_POLICY_EXTRACTIVE})
    assert host.compact().trigger == compaction_pb2.TRIGGER_BACKGROUND
    assert len(gate.asked) == 1
    assert ended_once(host)
