"""What other callers do while a request waits for its fold (L2, W2, A5), and folds that go wrong (C5, §13)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, policy_pb2, session_service_pb2

from tests.integration.host import SMALL, Host
from tests.integration.test_boundaries import LONG, codes
from tests.integration.test_rewrites import Slow, long_session, slow
from tests.support.requests import assistant, calls, raw, result, user
from tests.support.server import Client, refused, running_server, started

__all__ = ["slow"]

COMPLETED, FAILED = event_pb2.EVENT_KIND_COMPACTION_COMPLETED, event_pb2.EVENT_KIND_COMPACTION_FAILED


def asked(host: Host, run_id: str, text: str) -> compaction_service_pb2.PrepareRequestRequest:
    request = compaction_service_pb2.PrepareRequestRequest(session_id=host.id, run_id=run_id, request_id=f"ask-{text}")
    request.shape.model.CopyFrom(SMALL)
    request.append.CopyFrom(raw(user(text)))
    return request


def finish(host: Host, run_id: str) -> None:
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=host.id, run_id=run_id, outcome=compaction_pb2.RUN_OUTCOME_CANCELLED
        )
    )


def test_r1_a_request_whose_run_is_closed_during_its_fold_is_answered(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_session(client, "s")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.compaction.PrepareRequest, asked(host, "r1", "go"))
        assert source.started.wait(10)
        finish(host, "r1")
        source.go_on.set()
        prepared = waiting.result()
    assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
    assert "RUN_SUPERSEDED" in codes(prepared.warnings)
    assert prepared.first_offset in host.offsets()
    outcome = host.answer(prepared, assistant("too late"))
    assert refused(host.record, "r1", outcome).reason == "RUN_NOT_OPEN"
    again = client.compaction.PrepareRequest(asked(host, "r1", "go"))
    assert (again.prepare_id, again.first_offset) == (prepared.prepare_id, prepared.first_offset)
    assert host.verify().ok


def test_w2_a_repeat_after_the_run_was_closed_says_what_was_appended(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    request = asked(host, "r1", "go")
    request.shape.input_tokens = 1_000_000
    first = client.compaction.PrepareRequest(request)
    assert first.action == compaction_pb2.ACTION_TOO_LARGE
    finish(host, "r1")
    again = client.compaction.PrepareRequest(request)
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset)
    assert host.get().totals.rows_total == 1


class Broken:
    """Has a defect."""

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        raise ZeroDivisionError


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Client]:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(tmp_path, {"catalog": str(catalog)}, summarizer=Broken()) as client:
        yield client


def test_c5_a_defect_of_a_source_fails_the_fold_and_not_the_request(broken: Client) -> None:
    host = long_session(broken, "s")
    prepared = broken.compaction.PrepareRequest(asked(host, "r1", "go"))
    assert prepared.action == compaction_pb2.ACTION_SEND
    assert prepared.skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
    assert prepared.failure == compaction_pb2.FAILURE_KIND_INTERNAL
    refusal = refused(host.compact)
    assert (refusal.code, refusal.reason) == ("INTERNAL", "INTERNAL")
    kinds = [e.kind for e in host.events() if e.fold_id]
    assert kinds == 2 * [event_pb2.EVENT_KIND_COMPACTION_STARTED, event_pb2.EVENT_KIND_COMPACTION_FAILED]
    assert host.verify().ok


def test_b7_a_continued_run_shortens_the_results_of_the_run_that_it_continues(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    prepared = host.prepare("r1", user("read it"))
    outcome = host.answer(prepared, calls("a"))
    prepared = host.prepare("r1", result("a", LONG * 60), previous_answer=outcome)
    (bound,) = prepared.bounded
    host.refuse("r1", prepared.prepare_id, 400, "maximum context length is 4000 tokens")
    continued = host.prepare("r2")
    assert [b.offset for b in continued.bounded] == [bound.offset]


def test_h_callers_that_append_while_a_fold_runs_lose_nothing(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_session(client, "s")
    stop = threading.Event()
    taken: list[int] = []

    def appends() -> None:
        while not stop.is_set():
            taken.append(host.append(user("meanwhile")).first_offset)

    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(client.compaction.PrepareRequest, asked(host, "r1", "go"))
        assert source.started.wait(10)
        appending = pool.submit(appends)
        while len(taken) < 20:
            stop.wait(0.01)
        source.go_on.set()
        waiting.result()
        stop.set()
        appending.result()
    assert set(taken) <= set(host.offsets()), "what came during the fold stands behind it"
    assert host.verify().ok


def test_l2_a_session_deleted_during_its_fold_can_be_created_again_at_once(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_session(client, "s")
    with ThreadPoolExecutor(2) as pool:
        folding = pool.submit(refused, host.compact)
        assert source.started.wait(10)
        waiting = pool.submit(refused, client.compaction.PrepareRequest, asked(host, "r1", "go"))
        client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id="s"))
        again = Host(client, "s")
        assert again.append(user("anew")).first_offset == 1
        source.go_on.set()
        assert folding.result().reason == waiting.result().reason == "SESSION_NOT_FOUND"
    assert again.offsets() == [1]
    assert again.events() == []
    assert again.verify().ok


def test_4_5_a_session_that_bounds_the_factor_widely_leaves_others_their_bounds(client: Client, name: str) -> None:
    wild = Host(client, f"{name}-wild", estimate=policy_pb2.EstimatePolicy(factor_max=1e6))
    tame = Host(client, f"{name}-tame", estimate=policy_pb2.EstimatePolicy(factor_min=0.9, factor_max=1.1))
    prepared = wild.prepare("r1", user(LONG))
    wild.refuse("r1", prepared.prepare_id, 400, f"prompt is too long: {len(LONG)} tokens > 100 maximum")
    assert wild.prepare("r2", user("go")).pressure_checked.estimator_factor > 3
    assert tame.prepare("r1", user("go")).pressure_checked.estimator_factor == 1.1


def test_4_5_what_an_answer_teaches_counts_for_the_request_that_it_comes_with(client: Client, name: str) -> None:
    """L1: the answer before it, or ``RecordAnswer``: one and the same."""
    host = Host(client, name)
    first, request = asked(host, "r1", LONG), asked(host, "r1", "go")
    first.shape.model.model = request.shape.model.model = f"own-{name}"
    first.request_id = ""
    prepared = client.compaction.PrepareRequest(first)
    request.previous_answer.prepare_id = prepared.prepare_id
    request.previous_answer.answer.usage.input_tokens = prepared.pressure_sent.forecast_tokens * 2
    assert client.compaction.PrepareRequest(request).pressure_checked.estimator_factor == 2.0


def test_v3_a_run_that_continues_one_whose_request_has_folded_can_fold(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False, retention=policy_pb2.RetentionPolicy(turns=0, messages=1))
    for n in range(6):
        host.turn(f"run-{n}", f"{n} {LONG}", LONG)
    host.compact()
    assert not any(r.HasField("user") for r in host.active())
    prepared = host.prepare("go-on")
    for n in range(5):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("go-on", result(f"c{n}", f"{n} {LONG}"), previous_answer=outcome)
    newest = host.offsets()[-2:]
    assert host.compact().scope == compaction_pb2.FOLD_SCOPE_STAGE_1
    assert host.compact().scope == compaction_pb2.FOLD_SCOPE_STAGE_2
    assert host.offsets()[-2:] == newest
    assert host.verify().ok


@pytest.mark.parametrize("summary_ends", [True, False])
def test_w7_a_manual_fold_that_a_stop_cuts_off_may_be_called_again(tmp_path: Path, summary_ends: bool) -> None:
    """UNAVAILABLE, whether or not the source ends by then; the fold has one end, and a repeat makes it or finds it."""
    source = Slow()
    with started(tmp_path, {"server.drain_grace": 1}, source) as server, Client(server.addresses[0]) as client:
        server.ready()
        host = long_session(client, "s")
        before = host.offsets()
        with ThreadPoolExecutor(1) as pool:
            fold = pool.submit(refused, host.compact, request_id="q")
            assert source.started.wait(10)
            stopping = on_a_thread(server.stop)
            refusal = fold.result(10)
            if summary_ends:
                source.go_on.set()
            stopping.join()
            source.go_on.set()
        assert (refusal.code, refusal.reason, refusal.metadata["component"]) == ("UNAVAILABLE", "NOT_READY", "server")
    with running_server(tmp_path) as client:
        host = Host.of(client, "s")
        ends = [e.kind for e in host.events() if e.kind in (COMPLETED, FAILED)]
        assert len(ends) == 1
        assert (host.offsets() == before) == (ends == [FAILED])
        assert host.compact(request_id="q").fold_id
        assert host.verify().ok


def on_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread
