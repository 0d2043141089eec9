"""Folds that meet other callers, and edits and restores under an open run (L2, W2, F3, X1, X2, R5)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    pressure_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.integration.host import Host
from tests.integration.test_boundaries import LONG, codes
from tests.integration.test_readings import system
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server, until


class Slow:
    """Writes once it may."""

    def __init__(self) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self.inner = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        self.started.set()
        assert self.go_on.wait(30)
        return self.inner.summarize(request)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Client, Slow]]:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    source = Slow()
    with running_server(tmp_path, {"catalog": str(catalog)}, summarizer=source) as client:
        yield client, source
        source.go_on.set()


def long_session(client: Client, name: str, turns: int = 14) -> Host:
    host = Host(client, name, auto_compact=False, output_reserve_tokens=100)
    for n in range(turns):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    client.session.UpdateSession(
        session_service_pb2.UpdateSessionRequest(session_id=name, policy={"auto_compact": True})
    )
    return host


def compacted(
    host: Host, waits: threading.Event | None = None, **fields: str
) -> list[compaction_service_pb2.CompactSessionResponse]:
    """Every message of a manual fold; ``waits`` is set once it says that it waits for a running one."""
    request = compaction_service_pb2.CompactSessionRequest(session_id=host.id, **fields)
    told = []
    for message in host.client.compaction.CompactSession(request):
        told.append(message)
        if waits is not None and message.progress.phase == compaction_pb2.PROGRESS_PHASE_WAITING:
            waits.set()
    return told


def test_l2_a_second_fold_joins_the_running_one_and_is_told(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_session(client, "s")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(compacted, host)
        assert source.started.wait(10)
        waits = threading.Event()
        second = pool.submit(compacted, host, waits, request_id="second")
        request = compaction_service_pb2.PrepareRequestRequest(session_id="s", run_id="r1")
        request.append.raw.format, request.append.raw.json = row_pb2.FORMAT_OPENAI_CHAT, json.dumps(user("go")).encode()
        third = pool.submit(client.compaction.PrepareRequest, request)
        assert waits.wait(10)
        # The boundary is entered with its rows, in one commit, before it waits.
        assert until(lambda: host.get().totals.rows_total == 29)
        assert not second.done()
        assert not third.done()
        source.go_on.set()
        record = first.result()[-1].record
        waiting, joined = second.result()
        prepared = third.result()
    assert waiting.progress.joined
    assert waiting.progress.fold_id == record.fold_id == joined.record.fold_id
    assert prepared.fold.fold_id == record.fold_id
    assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
    assert "FOLD_JOINED" in codes(prepared.warnings)
    assert host.get().totals.folds == 1
    assert compacted(host, request_id="second")[-1].record == joined.record
    assert host.verify().ok, host.verify().faults


def test_l2_instructions_are_not_answered_by_a_fold_that_did_not_have_them(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_session(client, "s")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compacted, host)
        assert source.started.wait(10)
        waits = threading.Event()
        second = pool.submit(compacted, host, waits, instructions="Keep every number.")
        assert waits.wait(10)
        for n in range(8):
            host.append(user(f"later {n} {LONG}"), assistant("noted"))
        source.go_on.set()
        record, own = first.result()[-1].record, second.result()[-1].record
    assert own.fold_id != record.fold_id
    assert host.get().totals.folds == 2


def test_w2_a_manual_fold_is_given_again_under_its_id(client: Client, name: str) -> None:
    host = long_session(client, name)
    first = compacted(host, request_id="fold")[-1].record
    assert compacted(host, request_id="fold")[-1].record == first
    assert host.get().totals.folds == 1
    refusal = refused(compacted, host, request_id="fold", instructions="other")
    assert refusal.reason == "REQUEST_ID_REUSED"


def test_f3_a_restore_takes_back_what_the_ledger_says_of_unfolded_rounds(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("Fix it."))
    for n in range(5):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    unfolded = host.get().session.revision
    host.compact()
    folded = host.get().session.revision
    assert "read({}) ×4: ran" in host.rendered()[1]["content"]
    for revision in (unfolded, folded, unfolded):
        client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id=name, revision=revision))
    host.compact()
    assert "read({}) ×4: ran" in host.rendered()[1]["content"], "no call is counted twice"
    client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id=name, revision=folded))
    for n in range(5, 9):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    host.compact()
    assert "read({}) ×8: ran" in host.rendered()[1]["content"], "and none is lost"
    assert host.verify().ok, host.verify().faults


def test_x1_an_edit_of_history_changes_neither_request_nor_rounds_of_the_open_run(client: Client, name: str) -> None:
    host = Host(client, name)
    for n in range(6):
        host.turn(f"r{n}", f"{n} {LONG}", LONG)
    prepared = host.prepare("now", user("Now."))
    request = prepared.pressure_sent.parts.request
    edit = session_service_pb2.EditRowsRequest(session_id=name, first_offset=1, last_offset=2)
    edit.replacement.raw.format = row_pb2.FORMAT_OPENAI_CHAT
    edit.replacement.raw.json = json.dumps([user("short"), assistant("shorter")]).encode()
    edited = client.session.EditRows(edit)
    assert not edited.cancelled_run_id
    assert [r.run_id for r in host.active()][:3] == ["r0", "r0", "r1"], "rows take the run of those they replace"
    after = host.prepare("now").pressure_sent.parts
    assert (after.request, after.rounds) == (request, 0)
    record = host.compact()
    assert next((r.first, r.last) for r in record.discarded) == (edited.first_offset, edited.last_offset)
    assert host.verify().ok, host.verify().faults


def test_x2_the_next_boundary_does_not_undo_a_restore(client: Client, name: str) -> None:
    """X2: below W only ordinary trips apply, and C2 counts from the restore, until the transcript grew."""
    host = long_session(client, name, 13)
    before = host.get().session.revision
    folded = host.prepare("r1", user(LONG))
    assert folded.HasField("fold")
    client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id=name, revision=before))
    restored = host.prepare("r2", user(LONG))
    assert not restored.HasField("fold")
    assert restored.skip == compaction_pb2.SKIP_REASON_AFTER_RESTORE
    kinds = {s.kind: s.suppressed_by for s in restored.pressure_checked.signals if s.tripped}
    assert kinds == {
        pressure_pb2.SIGNAL_KIND_HISTORY_ESTIMATE: pressure_pb2.SUPPRESSION_AFTER_RESTORE,
        pressure_pb2.SIGNAL_KIND_FORECAST_THRESHOLD: pressure_pb2.SUPPRESSION_CADENCE,
    }
    grown = host.prepare("r2", user(LONG * 3))
    assert grown.HasField("fold")
    assert host.verify().ok, host.verify().faults


def test_x2_superseded_rows_are_no_part_of_what_a_restored_transcript_grows_from(client: Client, name: str) -> None:
    host = long_session(client, name, 13)
    host.rows(system(LONG * 6, "rules", 1))
    host.rows(system("short", "rules", 2))
    client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=name, revision=host.get().session.revision)
    )
    assert host.prepare("r1", user(LONG * 3)).HasField("fold"), "it grew by more than 10 %"


def test_r5_an_earlier_revision_is_rendered_with_the_system_rows_it_had(client: Client, name: str) -> None:
    host = Host(client, name)
    host.rows(system("first rules", "rules", 1))
    host.append(user("hello"))
    before = host.get().session.revision
    host.rows(system("later rules", "rules", 2))
    request = session_service_pb2.RenderTranscriptRequest(
        session_id=name, format=row_pb2.FORMAT_OPENAI_CHAT, revision=before
    )
    texts = [m["content"] for m in json.loads(client.session.RenderTranscript(request).rendered_json)]
    assert texts == ["first rules", "hello"]
    assert [m["content"] for m in host.rendered()] == ["later rules", "hello"]


def test_r5_f11_a_keyed_system_row_keeps_its_place_when_the_first_version_folds(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    host.rows(system("rules 1", "rules", 1))
    for n in range(8):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    host.rows(system("rules 2", "rules", 2))
    host.rows(system("rules 3", "rules", 3))
    assert [r.offset for r in host.active()][:3] == [1, 18, 19]
    record = host.compact()
    gone = {o for r in record.discarded for o in range(r.first, r.last + 1)}
    assert {1, 18} <= gone
    active = host.active()
    assert [r.WhichOneof("body") for r in active[:2]] == ["system", "compaction_summary"]
    assert active[0].system.content[0].text.text == "rules 3"
    assert not host.search("rules", limit=20).hits or all(h.offset not in {1, 18} for h in host.search("rules").hits)
    assert "rules 1" not in record.summary_text
    host.rows(system("rules 4", "rules", 4))
    assert host.rendered()[0]["content"] == "rules 4"
    assert host.verify().ok, host.verify().faults


def test_plan_says_why_an_automatic_fold_would_not_be_made(client: Client, name: str) -> None:
    host = long_session(client, name, 13)
    host.append(user(LONG))
    request = compaction_service_pb2.PlanCompactionRequest(session_id=name)
    due = client.compaction.PlanCompaction(request)
    assert due.HasField("plan")
    assert due.skip == compaction_pb2.SKIP_REASON_UNSPECIFIED
    request.override.min_progress = 0.99
    assert client.compaction.PlanCompaction(request).skip == compaction_pb2.SKIP_REASON_NO_PROGRESS
    listed = session_service_pb2.ListRowsRequest(session_id=name, view=session_pb2.ROW_VIEW_ACTIVE)
    assert len(client.session.ListRows(listed).rows) == len(host.active())


def test_v9_what_comes_during_a_fold_follows_it_and_what_must_stay_stays(slow: tuple[Client, Slow]) -> None:
    """L2, V9, R6: appends and run ends commit meanwhile; a pin that is set meanwhile counts."""
    client, source = slow
    host = long_session(client, "s", 12)
    host.prepare("r1", user("go"))
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(compacted, host)
        assert source.started.wait(10)
        last = host.append(user("meanwhile"), assistant("noted")).last_offset
        client.session.PinRows(session_service_pb2.PinRowsRequest(session_id="s", offsets=[3], pinned=True))
        host.client.compaction.FinishRun(
            compaction_service_pb2.FinishRunRequest(
                session_id="s", run_id="r1", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
        )
        source.go_on.set()
        record = fold.result()[-1].record
    offsets = host.offsets()
    assert offsets[-2:] == [last - 1, last]
    assert 3 in offsets
    assert all(not r.first <= 3 <= r.last for r in record.discarded)
    assert host.verify().ok, host.verify().faults


def test_a5_a_summary_whose_run_closed_meanwhile_has_no_ledger(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = Host(client, "s", auto_compact=False)
    prepared = host.prepare("r1", user("Fix it."))
    for n in range(6):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"output {n}: {LONG}"), previous_answer=outcome)
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(compacted, host)
        assert source.started.wait(10)
        host.record("r1", host.answer(prepared, assistant("done"), finish=compaction_pb2.RUN_OUTCOME_COMPLETED))
        source.go_on.set()
        fold.result()
    rendered = host.rendered()
    assert rendered[0]["content"] == "Fix it."
    assert "Summary of" in rendered[1]["content"]
    assert "Calls already made" not in json.dumps(rendered)
    assert host.verify().ok, host.verify().faults
