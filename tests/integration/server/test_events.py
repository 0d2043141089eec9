"""Every kind of event through the server, with every field that §13 names (also across crash, delete and import)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foldline.domain.enums import EventKind, FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.models import Usage
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import compaction_pb2, event_pb2, event_service_pb2, policy_pb2, row_pb2
from foldline.v1 import compaction_service_pb2 as pb
from foldline.v1 import session_service_pb2 as session_pb

from tests.integration.test_rewrites import Slow
from tests.support.requests import answer, append, assistant, calls, create, prepare, result, user
from tests.support.server import Client, refused, running_server

TURNS = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]
ELSEWHERE = {EventKind.CHECKPOINT_SAVED, EventKind.MEMORY_DEGRADED}
"""Kinds of what has tests of its own, or is announced."""


class Source:
    """Extractive summaries, or a failure that cost something."""

    def __init__(self) -> None:
        self.fails = False
        self._source = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        if self.fails:
            raise SummaryFailed(
                FailureKind.SUMMARIZER_FAILED, "the source is down", usage=Usage(900, 12, None, 0.25, "USD")
            )
        return self._source.summarize(request)


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, source: Source) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("events")
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"gpt-4o": {"context_window": 8000, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(folder, {"catalog": str(catalog)}, summarizer=source) as client:
        yield client


def events(client: Client, session_id: str) -> list[event_pb2.Event]:
    return list(client.event.ListEvents(event_service_pb2.ListEventsRequest(session_id=session_id)).events)


def new_session(client: Client, *messages: dict[str, Any], **fields: Any) -> str:
    made: str = client.session.CreateSession(create("", **fields)).session.session_id
    if messages:
        client.session.AppendRows(append(made, *messages))
    return made


def set_fields(message: Any) -> set[str]:
    return {field.name for field, _ in message.ListFields()}


def _folded(client: Client, source: Source) -> str:
    name = new_session(client, *TURNS, policy=policy_pb2.Policy(auto_compact_threshold=2_500))
    assert client.compaction.PrepareRequest(prepare(name, "run-1", user("go"))).HasField("fold")
    return name


def _failed(client: Client, source: Source) -> str:
    name = new_session(client, *TURNS, policy=policy_pb2.Policy(auto_compact_threshold=2_500))
    source.fails = True
    try:
        client.compaction.PrepareRequest(prepare(name, "run-1", user("go")))
    finally:
        source.fails = False
    return name


def _skipped(client: Client, source: Source) -> str:
    name = _failed(client, source)
    client.compaction.PrepareRequest(prepare(name, "run-1", user("more")))
    return name


def _bounded(client: Client, source: Source) -> str:
    name = new_session(client)
    prepared = client.compaction.PrepareRequest(prepare(name, "run-1", user("go")))
    client.compaction.RecordAnswer(
        pb.RecordAnswerRequest(session_id=name, outcome=answer(prepared.prepare_id, calls("c")))
    )
    client.compaction.PrepareRequest(prepare(name, "run-1", result("c", "line of the log\n" * 4_000)))
    return name


def _refused(client: Client, source: Source) -> str:
    name = new_session(client)
    prepared = client.compaction.PrepareRequest(prepare(name, "run-1", user("go")))
    told = pb.RecordAnswerRequest(session_id=name, outcome=pb.Outcome(prepare_id=prepared.prepare_id))
    told.outcome.refusal.http_status = 400
    told.outcome.refusal.raw_body = json.dumps(
        {
            "error": {
                "message": "This model's maximum context length is 8000 tokens. However, your messages resulted in "
                "9017 tokens. Please reduce the length of the messages.",
                "code": "context_length_exceeded",
            }
        }
    ).encode()
    client.compaction.RecordAnswer(told)
    return name


def _superseded(client: Client, source: Source) -> str:
    name = new_session(client)
    client.compaction.PrepareRequest(prepare(name, "run-1", user("go")))
    client.compaction.PrepareRequest(prepare(name, "run-2", user("no, there"), supersede_open_run=True))
    return name


def _warned(client: Client, source: Source) -> str:
    name = new_session(client)
    asked = prepare(name, "run-1", user("go"))
    asked.shape.model.provider, asked.shape.model.model = "openai", "nobody-knows"
    client.compaction.PrepareRequest(asked)
    return name


COMMON = {"sequence", "session_id", "kind", "create_time", "revision"}
FOLD = {*COMMON, "boundary", "fold_id", "trigger", "signals", "run_id"}
CASES: dict[EventKind, tuple[Callable[[Client, Source], str], set[str], set[str]]] = {
    EventKind.COMPACTION_STARTED: (
        _folded, {*FOLD, "compaction_started"}, {"summary_source", "rows", "tokens_before", "bytes_before"},
    ),
    EventKind.COMPACTION_COMPLETED: (_folded, {*FOLD, "compaction_completed"}, {"record"}),
    EventKind.COMPACTION_FAILED: (
        _failed, {*FOLD, "compaction_failed"} - {"run_id"},
        {"failure", "summary_source", "usage", "duration", "cooldown_until", "message"},
    ),
    EventKind.COMPACTION_SKIPPED: (
        _skipped, {*COMMON, "boundary", "trigger", "signals", "compaction_skipped"}, {"reason", "tokens", "message"},
    ),
    EventKind.TOOL_RESULTS_BOUNDED_FOR_REQUEST: (
        _bounded, {*COMMON, "boundary", "run_id", "tool_results_bounded"}, {"results", "limit", "limit_unit"},
    ),
    EventKind.DID_NOT_FIT_RECORDED: (
        _refused, {*COMMON, "run_id", "did_not_fit_recorded"}, {"cause", "refusal", "named_tokens"},
    ),
    EventKind.RUN_SUPERSEDED: (
        _superseded, {*COMMON, "run_id", "run_superseded"}, {"closed_run_id", "opened_run_id"},
    ),
    EventKind.WARNING: (_warned, {*COMMON, "warning"} - {"revision"}, {"code", "message"}),
}  # fmt: skip


def test_every_kind_has_its_case() -> None:
    assert set(CASES) | ELSEWHERE == set(EventKind)


@pytest.mark.parametrize("kind", CASES)
def test_every_field_of_a_kind_is_filled(client: Client, source: Source, kind: EventKind) -> None:
    make, fields, payload = CASES[kind]
    name = make(client, source)
    number = event_pb2.EventKind.Value(f"EVENT_KIND_{kind.name}")
    found = next(e for e in events(client, name) if e.kind == number)
    assert fields <= set_fields(found), fields - set_fields(found)
    told = getattr(found, found.WhichOneof("payload"))
    assert payload <= set_fields(told), payload - set_fields(told)
    assert found.session_id == name


def test_a_record_says_all_that_a_fold_did(client: Client, source: Source) -> None:
    """§13, S1: trigger, signals, sizes before and after, source and bound, coverage, offsets, revisions, duration."""
    name = _folded(client, source)
    completed = events(client, name)[-1]
    record = completed.compaction_completed.record
    left_out = {"model", "usage", "memory_dropped"}
    assert set_fields(record) == {f.name for f in record.DESCRIPTOR.fields} - left_out
    assert record.fold_id == completed.fold_id
    assert (record.revision_before, record.revision_after) == (completed.revision - 1, completed.revision)
    assert record.trigger == completed.trigger == compaction_pb2.TRIGGER_AUTOMATIC
    assert list(record.signals) == list(completed.signals)
    assert abs(record.create_time.ToMilliseconds() - completed.create_time.ToMilliseconds()) < 1_000
    assert record.bound.kind == compaction_pb2.SOURCE_BOUND_KIND_WHOLE
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
    assert record.tokens_after < record.tokens_before
    discarded = [o for r in record.discarded for o in range(r.first, r.last + 1)]
    assert record.rows_summarized == len(discarded)
    assert record.memory_entries > 0
    assert record.duration.ToMicroseconds() > 0


def test_a_failure_says_what_it_cost_and_until_when_attempts_pause(client: Client, source: Source) -> None:
    """C5, S5."""
    failed = events(client, _failed(client, source))[-1].compaction_failed
    assert failed.failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED
    assert failed.message == "the source is down"


def test_only_a_refusal_names_tokens(client: Client, source: Source) -> None:
    kinds = {
        "refused": _refused(client, source),
        "bounded": _bounded(client, source),
    }
    found = {
        cause: next(e for e in events(client, name) if e.HasField("did_not_fit_recorded")).did_not_fit_recorded
        for cause, name in kinds.items()
    }
    assert [d.cause for d in found.values()] == list(found)
    assert found["refused"].named_tokens == 9017
    assert not found["bounded"].HasField("named_tokens")


def test_a_copy_of_a_session_that_was_folding_has_an_end_for_its_start(tmp_path: Path) -> None:
    """§13: the fold goes on in the session that was exported."""
    reached, go_on = threading.Event(), threading.Event()

    class Held(Source):
        def summarize(self, request: SummaryRequest) -> SummaryResult:
            reached.set()
            go_on.wait(30)
            return super().summarize(request)

    with running_server(tmp_path, summarizer=Held()) as client:
        name = new_session(client, *TURNS)
        fold = client.compaction.CompactSession(pb.CompactSessionRequest(session_id=name))
        assert reached.wait(10)
        chunks = list(client.session.ExportSession(session_pb.ExportSessionRequest(session_id=name)))
        parts = [session_pb.ImportSessionRequest(header={"session_id": "copy"})]
        parts += [session_pb.ImportSessionRequest(chunk={"sequence": c.sequence, "jsonl": c.jsonl}) for c in chunks]
        client.session.ImportSession(iter(parts))
        go_on.set()
        assert list(fold)[-1].HasField("record")
        started, failed = events(client, "copy")
        assert (failed.sequence, failed.fold_id) == (started.sequence + 1, started.fold_id)
        assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_INTERRUPTED
        list(client.compaction.CompactSession(pb.CompactSessionRequest(session_id="copy")))
        assert [e.sequence for e in events(client, "copy")] == [1, 2, 3, 4]
    with running_server(tmp_path) as client:
        assert len(events(client, "copy")) == 4, "no start without an end was found"


def test_a_session_that_is_deleted_while_it_folds_leaves_no_start_without_an_end(tmp_path: Path) -> None:
    """§13, L2: the start goes with the session, and no later start of the server finds it."""
    source = Slow()
    with running_server(tmp_path, summarizer=source) as client:
        name = new_session(client, *TURNS)
        fold = client.compaction.CompactSession(pb.CompactSessionRequest(session_id=name))
        next(fold)
        assert source.started.wait(10)
        client.session.DeleteSession(session_pb.DeleteSessionRequest(session_id=name))
        source.go_on.set()
        assert refused(list, fold).reason == "SESSION_NOT_FOUND"
        client.session.CreateSession(create(name))
        assert events(client, name) == []
    with running_server(tmp_path) as client:
        assert events(client, name) == []
