"""§3: one model call, what may come between its parts, and what each part is answered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    pressure_pb2,
    session_service_pb2,
    warning_pb2,
)
from google.protobuf import duration_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.integration.test_rewrites import Slow, compacted
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}
Shape = compaction_service_pb2.RequestShape

BETWEEN = [
    # (rule, case, script between request and answer, whether the answer sets the count, and the anchor)
    ("L1", "nothing", "", True, True),
    ("L1", "an append", "U", True, True),
    ("L1", "an append of a new system row", "S(k,1)", True, True),
    ("L1", "a fold", "#", False, False),
    ("L1", "an edit", "edit", False, False),
    ("L1", "a restore", "restore", False, False),
    ("L1", "a system row update", "S(rules,2)", False, False),
]


@pytest.mark.parametrize(("script", "counted", "anchored"), marks(BETWEEN))
def test_what_comes_between_a_request_and_its_answer(
    client: Client, name: str, script: str, counted: bool, anchored: bool
) -> None:
    host = Script(client, name, **PLAIN).play("S(rules,1) U A U A >r1:U")
    estimate = host.prepared.pressure_sent.forecast_tokens
    if script == "edit":
        client.session.EditRows(session_service_pb2.EditRowsRequest(session_id=name, first_offset=2, last_offset=3))
    elif script == "restore":
        client.session.RestoreRevision(
            session_service_pb2.RestoreRevisionRequest(session_id=name, revision=host.get().session.revision)
        )
    else:
        host.play(script)
    recorded = host.record("r1", host.answer(host.prepared, assistant("ok"), usage={"prompt_tokens": estimate}))
    assert recorded.usage.counted is counted
    state = host.get().cadence
    assert state.HasField("count_tokens") is counted
    assert state.HasField("anchor_tokens") is anchored
    assert recorded.usage.usage.input_tokens == estimate, "it is reported either way"


ANSWERS = [
    # (rule, case, messages, fields, kinds of the blocks that are kept)
    ("L1", "zero rows with usage", (), {"usage": {"prompt_tokens": 300}}, []),
    ("L1", "a partial text is kept", (assistant("I will"),), {"partial": True}, ["text"]),
    ("L1", "a partial call with whole arguments is kept", (calls("c"),), {"partial": True}, ["tool_call"]),
    ("L1", "an answer with calls", (calls("c", "d"),), {}, ["tool_call", "tool_call"]),
]


@pytest.mark.parametrize(("messages", "fields", "kept"), marks(ANSWERS))
def test_what_an_answer_appends(
    client: Client, name: str, messages: tuple[dict[str, Any], ...], fields: dict[str, Any], kept: list[str]
) -> None:
    host = Script(client, name, **PLAIN).play(">r1:U")
    host.record("r1", host.answer(host.prepared, *messages, **fields))
    blocks = [b.WhichOneof("kind") for r in host.active() if r.HasField("assistant") for b in r.assistant.content]
    assert blocks == kept


FINISHES = [
    # (rule, case, where the run is closed)
    ("3.1", "FinishRun", "finish"),
    ("3.1", "in the recorded answer", "record"),
    ("3.1", "in the answer that the next call carries", "previous"),
]


@pytest.mark.parametrize("where", marks(FINISHES))
@pytest.mark.parametrize("outcome", ["COMPLETED", "FAILED", "CANCELLED"])
def test_a_run_is_closed_and_its_request_stays(client: Client, name: str, where: str, outcome: str) -> None:
    host = Script(client, name, **PLAIN).play(">r1:U")
    finish = compaction_pb2.RunOutcome.Value(f"RUN_OUTCOME_{outcome}")
    done = host.answer(host.prepared, assistant("ok"), finish=finish)
    if where == "finish":
        host.finish("r1", outcome)
    elif where == "record":
        assert host.record("r1", done).run_closed
    else:
        host.boundary("r2", "U", previous_answer=done)
    assert host.get().session.open_run_id == ("r2" if where == "previous" else "")
    assert 1 in host.offsets()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Client, Slow]]:
    source = Slow()
    with running_server(tmp_path, summarizer=source) as client:
        yield client, source
        source.go_on.set()


BARRIER = [
    # (rule, case, call during a fold, the reason it is refused with)
    ("L2", "an append commits", "append", ""),
    ("L2", "an answer commits", "answer", ""),
    ("L2", "the end of a run commits", "finish", ""),
    ("L2", "an edit waits for its deadline", "edit", "FOLD_IN_PROGRESS"),
    ("L2", "a restore waits for its deadline", "restore", "FOLD_IN_PROGRESS"),
    ("L2", "a second fold waits for its deadline", "compact", "FOLD_IN_PROGRESS"),
    ("L2", "a fork waits for its deadline", "fork", "FOLD_IN_PROGRESS"),
]


@pytest.mark.parametrize(("what", "reason"), marks(BARRIER))
def test_the_fold_barrier(slow: tuple[Client, Slow], what: str, reason: str) -> None:
    client, source = slow
    host = Script(client, "s", **PLAIN).play("U A U A >r1:U")
    early = host.get().session.revision
    service = client.session
    during: dict[str, Any] = {
        "append": lambda: host.play("N"),
        "answer": lambda: host.record("r1", host.answer(host.prepared, assistant("ok"))),
        "finish": lambda: host.finish("r1", "completed"),
        "edit": lambda: service.EditRows(
            session_service_pb2.EditRowsRequest(session_id="s", first_offset=1, last_offset=2), timeout=0.5
        ),
        "restore": lambda: service.RestoreRevision(
            session_service_pb2.RestoreRevisionRequest(session_id="s", revision=early), timeout=0.5
        ),
        "compact": lambda: list(
            client.compaction.CompactSession(
                compaction_service_pb2.CompactSessionRequest(session_id="s", instructions="other"), timeout=0.5
            )
        ),
        "fork": lambda: service.ForkSession(
            session_service_pb2.ForkSessionRequest(session_id="s", fork_session_id="t"), timeout=0.5
        ),
    }
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(compacted, host)
        assert source.started.wait(10)
        if reason:
            assert refused(during[what]).reason == reason
        else:
            during[what]()
        source.go_on.set()
        record = fold.result()[-1].record
    assert record.revision_before >= early
    assert host.verify().ok


def test_l2_delete_cancels_a_running_fold(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = Script(client, "s", **PLAIN).play("U A U A")
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(lambda: refused(compacted, host))
        assert source.started.wait(10)
        client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id="s"))
        source.go_on.set()
        assert fold.result().reason == "SESSION_NOT_FOUND"
    assert refused(host.get).reason == "SESSION_NOT_FOUND"


ACTIONS = [
    # (rule, case, what the host states, policy, action, warning, fact)
    ("L3", "under every limit", {}, {}, "SEND", "", ""),
    ("L3", "an exact count over the budget", {"input_tokens": 4_000}, {}, "TOO_LARGE", "", "too_large"),
    ("L3", "an exact count at the budget", {"input_tokens": 3_000}, {}, "SEND", "", ""),
    ("L3", "one over it", {"input_tokens": 3_001}, {}, "TOO_LARGE", "", "too_large"),
    ("L3", "an estimate over it", {"overhead_tokens": 4_000}, {}, "SEND", "FORECAST_OVER_WINDOW", ""),
    ("L3", "exact bytes over the cap", {"body_bytes": 9_001}, {"body_cap_bytes": 9_000}, "TOO_LARGE", "", "too_large"),
    ("L3", "exact bytes at the cap", {"body_bytes": 9_000}, {"body_cap_bytes": 9_000}, "SEND", "", ""),
    ("L3", "also while auto_compact is off", {"input_tokens": 4_000}, {"auto_compact": False}, "TOO_LARGE", "",
     "too_large"),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "policy", "action", "warning", "fact"), marks(ACTIONS))
def test_what_a_boundary_answers(
    client: Client, name: str, stated: dict[str, int], policy: dict[str, Any], action: str, warning: str, fact: str
) -> None:
    host = Script(client, name, output_reserve_tokens=1_000, **policy)
    prepared = host.prepare("r1", user("hello"), shape=Shape(**stated))
    assert prepared.action == compaction_pb2.Action.Value(f"ACTION_{action}")
    codes = [warning_pb2.WarningCode.Name(w.code).removeprefix("WARNING_CODE_") for w in prepared.warnings]
    assert codes == ([warning] if warning else [])
    state = host.get()
    assert state.cadence.did_not_fit == fact
    assert state.session.open_run_id == "r1", "the run stays open"


def test_l3_numbers_are_named_by_part(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("S U A U! A >r1:U A(c)@r1 R(c)")
    prepared = host.prepare("r1", shape=Shape(overhead_tokens=70))
    parts = prepared.pressure_sent.parts
    assert all((parts.system, parts.request, parts.rounds, parts.results, parts.pinned, parts.history))
    assert parts.tools == 70
    whole = parts.system + parts.tools + parts.request + parts.rounds + parts.history
    assert whole == pytest.approx(prepared.pressure_sent.forecast_tokens, abs=3)
    assert parts.results < parts.rounds


def test_l3_pressure_is_told_as_checked_and_as_sent(client: Client, name: str) -> None:
    host = Script(client, name, output_reserve_tokens=100, min_progress=0.0)
    host.play(" ".join(["U A"] * 12) + " >r1:U")
    prepared = host.prepared
    assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
    assert prepared.pressure_checked.forecast_tokens > prepared.pressure_sent.forecast_tokens
    assert any(s.tripped for s in prepared.pressure_checked.signals)
    events = [e.kind for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]
    assert len(events) == 1, "at most one fold a boundary"


IDLE = [
    # (rule, case, seconds of silence, supersede, whether the other run opens, warning)
    ("L4", "another run while one is open", 0, False, False, ""),
    ("L4", "unless the host supersedes", 0, True, True, "RUN_SUPERSEDED"),
    ("L4", "one second before run_ttl", 599, False, False, ""),
    ("L4", "at run_ttl", 600, False, True, "RUN_EXPIRED"),
]


@pytest.mark.parametrize(("seconds", "supersede", "opens", "warning"), marks(IDLE))
def test_a_second_run(tmp_path: Path, seconds: int, supersede: bool, opens: bool, warning: str) -> None:
    now = [1_000_000.0]
    with running_server(tmp_path, clock=lambda: now[0]) as client:
        host = Script(client, "s", run_ttl=duration_pb2.Duration(seconds=600))
        host.boundary("r1", "U")
        now[0] += seconds
        if not opens:
            refusal = refused(host.boundary, "r2", "U", supersede=supersede)
            assert (refusal.reason, refusal.metadata["open_run_id"]) == ("RUN_ALREADY_OPEN", "r1")
            assert host.get().session.open_run_id == "r1"
            return
        host.boundary("r2", "U", supersede=supersede)
        assert [warning_pb2.WarningCode.Name(w.code) for w in host.prepared.warnings] == [f"WARNING_CODE_{warning}"]
        closed = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_RUN_SUPERSEDED]
        assert [e.run_id for e in closed] == ["r1"]
        assert refused(host.boundary, "r1", "U", supersede=True).reason == "RUN_NOT_OPEN"


REQUESTLESS = [
    # (rule, case, history, whether a run without rows opens)
    ("L5", "nothing at all", "", False),
    ("L5", "an answer of no run", "U A", False),
    ("L5", "system rows alone", "S", False),
    ("L5", "a user row", "U", True),
    ("L5", "a notice", "N", True),
    ("L5", "injected context", "I", True),
    ("L5", "a run to continue", "U A@r1", True),
]


@pytest.mark.parametrize(("history", "opens"), marks(REQUESTLESS))
def test_a_run_without_a_request(client: Client, name: str, history: str, opens: bool) -> None:
    host = Script(client, name, **PLAIN).play(history)
    before = host.get()
    if opens:
        host.boundary("r9")
        assert host.get().session.open_run_id == "r9"
        return
    assert refused(host.boundary, "r9").reason == "RUN_NOT_OPEN"
    assert host.get() == before, "nothing was written"


def test_3_1_the_same_boundary_folds_bounds_and_answers(client: Client, name: str) -> None:
    """3.1: append, count the boundary, measure, fold, bound, answer, in that order and in one call."""
    host = Script(client, name, output_reserve_tokens=100, min_progress=0.0)
    host.play(" ".join(["U A"] * 10) + " >r1:U")
    done = host.answer(host.prepared, calls("c"))
    before = host.get().cadence.boundaries
    prepared = host.prepare("r1", result("c", "x " * 9_000), previous_answer=done)
    assert prepared.HasField("fold")
    assert [b.call_id for b in prepared.bounded] == ["c"]
    assert host.get().cadence.boundaries == before + 1
    assert host.list == host.offsets(), "the replica holds what is sent"
    report = {s.kind: s.tripped for s in prepared.pressure_checked.signals}
    assert report[pressure_pb2.SIGNAL_KIND_FORECAST_WINDOW], "B5: measured before the bound"
