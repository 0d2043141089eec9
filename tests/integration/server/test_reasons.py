"""Every published reason that this server can raise, raised through real gRPC, with code and metadata (P24)."""

from __future__ import annotations

import ast
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import foldline
import grpc
import pytest
from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.errors import Reason
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.server.errors import CODES, DOMAIN, RETRY_SECONDS
from foldline.v1 import (
    compaction_service_pb2,
    curator_pb2,
    event_service_pb2,
    memory_service_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.integration.hosted import HostedHost, talk
from tests.support.curators import Curator
from tests.support.requests import answer, append, assistant, calls, create, prepare, result, user
from tests.support.server import Client, Refusal, config_of, refusal_of, refused, running_server, started

PACKAGE = Path(foldline.__file__).parent
PROTO = Path(__file__).resolve().parents[3] / "proto/foldline/v1/error_reason.proto"
VALUE = re.compile(r"((?: +//[^\n]*\n)+) +ERROR_REASON_(\w+) = \d+;")
COMMENTS = {
    name: " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
    for comment, name in VALUE.findall(PROTO.read_text())
    if name != "UNSPECIFIED"
}

NOT_RAISED = {
    "UNAUTHENTICATED", "READ_ONLY", "EMBEDDING_MISMATCH",
    # A search goes on without its embedder and says `degraded` (M8): the reason stays in the log.
    "EMBEDDER_UNAVAILABLE",
}  # fmt: skip
"""Reasons of settings that are announced (NOT_YET), or of keys of tenants, which there are none of."""

Case = Callable[[Client, Path], Refusal]
CASES: dict[str, tuple[Case, dict[str, str | None]]] = {}
"""Reason to what raises it and the metadata it comes with; None for a value that differs each time."""


def case(reason: str, **metadata: str | None) -> Callable[[Case], Case]:
    def add(made: Case) -> Case:
        CASES[reason] = (made, metadata)
        return made

    return add


def session_of(client: Client, *messages: dict[str, Any], session_id: str = "s") -> str:
    client.session.CreateSession(create(session_id))
    if messages:
        client.session.AppendRows(append(session_id, *messages))
    return session_id


def long_session(client: Client) -> str:
    """A session with rows enough that a manual fold has something to do."""
    turns = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]
    return session_of(client, *turns)


def compact(client: Client, **fields: Any) -> Refusal:
    request = compaction_service_pb2.CompactSessionRequest(session_id="s", **fields)
    return refused(client.compaction.CompactSession, request)


@case("FIELD_VALIDATION", field="policy.min_progress", value="1.5", range=None)
def _field(client: Client, _: Path) -> Refusal:
    request = create("s")
    request.policy.min_progress = 1.5
    found = refused(client.session.CreateSession, request)
    assert [field for field, _ in found.violations] == ["policy.min_progress"]
    return found


@case("ADMIN_ONLY", method="DropScope")
def _admin(client: Client, _: Path) -> Refusal:
    """M7."""
    request = memory_service_pb2.DropScopeRequest(session_id=session_of(client))
    return refused(client.memory.DropScope, request, metadata=())


@case("SESSION_NOT_FOUND", session_id="nobody")
def _unknown_session(client: Client, _: Path) -> Refusal:
    return refused(client.session.GetSession, session_service_pb2.GetSessionRequest(session_id="nobody"))


@case("SESSION_EXISTS", session_id="s")
def _exists(client: Client, _: Path) -> Refusal:
    return refused(client.session.CreateSession, create(session_of(client)))


@case("REVISION_MISMATCH", expected="7", actual="1")
def _stale(client: Client, _: Path) -> Refusal:
    """W3."""
    session_of(client, user("hello"))
    return refused(client.session.AppendRows, append("s", user("again"), expected_revision=7))


@case("REVISION_NOT_FOUND", revision="99", newest="1")
def _revision(client: Client, _: Path) -> Refusal:
    session_of(client, user("hello"))
    request = session_service_pb2.RestoreRevisionRequest(session_id="s", revision=99)
    return refused(client.session.RestoreRevision, request)


@case("REQUEST_ID_REUSED", request_id="r-1", method="AppendRows")
def _reused(client: Client, _: Path) -> Refusal:
    """W2."""
    session_of(client)
    client.session.AppendRows(append("s", user("one"), request_id="r-1"))
    return refused(client.session.AppendRows, append("s", user("two"), request_id="r-1"))


@case("RUN_NOT_OPEN", run_id="run-1", open_run_id="")
def _closed_run(client: Client, _: Path) -> Refusal:
    session_of(client)
    prepared = client.compaction.PrepareRequest(prepare("s", "run-1", user("go")))
    request = compaction_service_pb2.RecordAnswerRequest(
        session_id="s", run_id="run-1", outcome=answer(prepared.prepare_id, assistant("done"), finish=1)
    )
    client.compaction.RecordAnswer(request)
    return refused(client.compaction.PrepareRequest, prepare("s", "run-1", user("more")))


@case("RUN_ALREADY_OPEN", run_id="run-2", open_run_id="run-1", idle_seconds=None, run_ttl_seconds="3600")
def _open_run(client: Client, _: Path) -> Refusal:
    """L4."""
    session_of(client)
    client.compaction.PrepareRequest(prepare("s", "run-1", user("go")))
    return refused(client.compaction.PrepareRequest, prepare("s", "run-2", user("no, go there")))


@case("PREPARE_NOT_FOUND", prepare_id="p-none")
def _unprepared(client: Client, _: Path) -> Refusal:
    session_of(client)
    client.compaction.PrepareRequest(prepare("s", "run-1", user("go")))
    request = compaction_service_pb2.RecordAnswerRequest(
        session_id="s", run_id="run-1", outcome=answer("p-none", assistant("done"))
    )
    return refused(client.compaction.RecordAnswer, request)


@case("UNKNOWN_TOOL_CALL", call_id="call_9", row="0")
def _unknown_call(client: Client, _: Path) -> Refusal:
    """R3."""
    session_of(client, user("go"))
    return refused(client.session.AppendRows, append("s", result("call_9", "text")))


@case("DUPLICATE_TOOL_RESULT", call_id="call_1", row="0", result_offset="3")
def _second_result(client: Client, _: Path) -> Refusal:
    """R3."""
    session_of(client, user("go"), calls("call_1"), result("call_1", "text"))
    return refused(client.session.AppendRows, append("s", result("call_1", "other text")))


@case("SUMMARY_ROW_REFUSED", row="0")
def _summary_row(client: Client, _: Path) -> Refusal:
    session_of(client)
    summary = row_pb2.Row(compaction_summary=row_pb2.CompactionSummaryRow(text="all was well", fold_id="f-1"))
    rows = row_pb2.RowInput(rows=row_pb2.RowList(rows=[summary]))
    return refused(client.session.AppendRows, session_service_pb2.AppendRowsRequest(session_id="s", input=rows))


@case("EMPTY_ASSISTANT_ROW", row="0")
def _empty_assistant(client: Client, _: Path) -> Refusal:
    """R4."""
    session_of(client)
    rows = row_pb2.RowInput(rows=row_pb2.RowList(rows=[row_pb2.Row(assistant=row_pb2.AssistantRow())]))
    return refused(client.session.AppendRows, session_service_pb2.AppendRowsRequest(session_id="s", input=rows))


@case("STALE_SYSTEM_VERSION", key="rules", given="2", current="2")
def _stale_system(client: Client, _: Path) -> Refusal:
    session_of(client)

    def rules(version: int) -> session_service_pb2.AppendRowsRequest:
        text = row_pb2.ContentBlock(text=row_pb2.TextBlock(text=f"rules, version {version}"))
        row = row_pb2.Row(system=row_pb2.SystemRow(key="rules", version=version, content=[text]))
        rows = row_pb2.RowInput(rows=row_pb2.RowList(rows=[row]))
        return session_service_pb2.AppendRowsRequest(session_id="s", input=rows)

    client.session.AppendRows(rules(2))
    return refused(client.session.AppendRows, rules(2))


@case("EDIT_SPLITS_UNIT", offsets="2,3")
def _split(client: Client, _: Path) -> Refusal:
    """X1."""
    session_of(client, user("go"), calls("call_1"), result("call_1", "text"))
    request = session_service_pb2.EditRowsRequest(session_id="s", first_offset=2, last_offset=2)
    return refused(client.session.EditRows, request)


@case("TOOLS_UNKNOWN", digest="0" * 64)
def _tools(client: Client, _: Path) -> Refusal:
    session_of(client)
    request = prepare("s", "run-1", user("go"))
    request.shape.tools_digest = "0" * 64
    return refused(client.compaction.PrepareRequest, request)


@case("NOTHING_TO_FOLD", skip="NOTHING_TO_FOLD")
def _nothing(client: Client, _: Path) -> Refusal:
    session_of(client, user("hello"))
    return compact(client)


@case("FOLD_IN_PROGRESS", fold_id=None)
def _fold_in_progress(_: Client, folder: Path) -> Refusal:
    """L2: an edit waits for a running fold until its deadline."""
    started_, go_on = threading.Event(), threading.Event()

    class Slow:
        def summarize(self, request: SummaryRequest) -> SummaryResult:
            started_.set()
            go_on.wait(30)
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, "asked to")

    with running_server(folder, {"server.max_wait": 0.3}, summarizer=Slow()) as client:
        long_session(client)
        fold = client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id="s"))
        try:
            assert started_.wait(10)
            edit = session_service_pb2.EditRowsRequest(session_id="s", first_offset=2, last_offset=2)
            return refused(client.session.EditRows, edit)
        finally:
            go_on.set()
            assert refused(list, fold).reason == "SUMMARIZER_FAILED"


class Failing:
    """A source of summaries that fails as it is told to."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        raise self.error


@case("SUMMARIZER_FAILED", failure="SUMMARIZER_TIMEOUT", checks="")
def _summarizer(_: Client, folder: Path) -> Refusal:
    """S5."""
    source = Failing(SummaryFailed(FailureKind.SUMMARIZER_TIMEOUT, "no answer in 60 s"))
    with running_server(folder, summarizer=source) as client:
        long_session(client)
        return compact(client)


@case("CURATOR_UNAVAILABLE", failure="CURATOR_UNAVAILABLE", checks="")
def _no_curator(client: Client, _: Path) -> Refusal:
    """S2: the configured source is not there, and another may not write instead."""
    long_session(client)
    request = session_service_pb2.UpdateSessionRequest(session_id="s")
    request.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR
    client.session.UpdateSession(request)
    return compact(client)


@case("CURATOR_FAILED", failure="CURATOR_FAILED", checks="")
def _failing_curator(client: Client, _: Path) -> Refusal:
    """S6."""
    long_session(client)
    request = session_service_pb2.UpdateSessionRequest(session_id="s")
    request.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR
    client.session.UpdateSession(request)
    with Curator(client) as curator, ThreadPoolExecutor(1) as pool:
        found = pool.submit(compact, client)
        curator.fail(curator.task(), "no model today")
        return found.result(20)


@case("TENANT_DENIED", tenant="acme")
def _foreign_tenant(client: Client, _: Path) -> Refusal:
    with Curator(client, register=False) as curator:
        curator.send(register={"role": curator_pb2.CURATOR_ROLE_CURATOR, "tenant": "acme"})
        error = curator.ended()
        assert error is not None
        return refusal_of(error)


@case("REWRITE_REJECTED", failure="SUMMARY_REJECTED", checks="V6")
def _rejected(_: Client, folder: Path) -> Refusal:
    """V6: a blank summary is none."""

    class Blank:
        def summarize(self, request: SummaryRequest) -> SummaryResult:
            return SummaryResult(text="  ", durable=(), source=SummarySource.EXTRACTIVE)

    with running_server(folder, summarizer=Blank()) as client:
        long_session(client)
        return compact(client)


@case("INTERNAL", x_request_id="mine-7")
def _internal(_: Client, folder: Path) -> Refusal:
    """W8: the text of an unknown error does not leave the process."""
    with running_server(folder, summarizer=Failing(OSError("/var/lib/secret.db: no such table"))) as client:
        long_session(client)
        request = compaction_service_pb2.CompactSessionRequest(session_id="s")
        found = refused(client.compaction.CompactSession, request, metadata=[("x-request-id", "mine-7")])
        assert "secret" not in repr(found)
        return found


@case("MEMORY_LIMIT_EXCEEDED", limit="21", minimum="1", maximum="20")
def _limit(client: Client, _: Path) -> Refusal:
    """M5."""
    request = memory_service_pb2.SearchMemoryRequest(session_id=session_of(client), query="x", limit=21)
    return refused(client.memory.SearchMemory, request)


@case("EMPTY_QUERY")
def _query(client: Client, _: Path) -> Refusal:
    """M5."""
    request = memory_service_pb2.SearchMemoryRequest(session_id=session_of(client), query=" \n")
    return refused(client.memory.SearchMemory, request)


@case("PAGE_TOKEN_MISMATCH")
def _page(client: Client, _: Path) -> Refusal:
    """W6."""
    for name in "abc":
        session_of(client, session_id=name)
    page = client.session.ListSessions(session_service_pb2.ListSessionsRequest(page_size=1))
    request = session_service_pb2.ListSessionsRequest(labels={"team": "x"}, page_token=page.next_page_token)
    return refused(client.session.ListSessions, request)


@case("MESSAGE_TOO_LARGE", size=None, maximum="65536")
def _too_large(_: Client, folder: Path) -> Refusal:
    """W5."""
    with running_server(folder, {"server.max_message_bytes": 65536}) as client:
        session_of(client)
        return refused(client.session.AppendRows, append("s", user("x" * 100_000)))


@case("FORMAT_INVALID", path="$[0].role", expected=None)
def _format(client: Client, _: Path) -> Refusal:
    """W4."""
    session_of(client)
    return refused(client.session.AppendRows, append("s", {"role": "wizard", "content": "abracadabra"}))


@case("OVERLOADED", limit="1")
def _overloaded(_: Client, folder: Path) -> Refusal:
    with running_server(folder, {"server.max_streams": 1}) as client:
        session_of(client)
        request = event_service_pb2.WatchEventsRequest(session_id="s")
        watch = client.event.WatchEvents(request)
        next(watch)
        found = refused(client.event.WatchEvents, request)
        watch.cancel()
        return found


@case("NOT_READY", component="core")
def _not_ready(_: Client, folder: Path) -> Refusal:
    with started(folder) as server, Client(server.addresses[0]) as client:
        return refused(client.session.CreateSession, create("s"))


@case("NOT_YET", method="policy.archive.retention", will=None)
def _not_yet(client: Client, _: Path) -> Refusal:
    request = create("knob")
    request.policy.archive.retention.FromSeconds(86_400)
    return refused(client.session.CreateSession, request)


@case("CHECKPOINTS_DISABLED", session_id="s")
def _no_checkpoints(client: Client, _: Path) -> Refusal:
    """§11."""
    session_of(client)
    request = compaction_service_pb2.SaveCheckpointRequest(session_id="s", description="d")
    return refused(client.compaction.SaveCheckpoint, request)


@case("TRIM_COUNT_TOO_LARGE", count="2", available="1")
def _trims_too_many(client: Client, _: Path) -> Refusal:
    """K2."""
    made = create("s")
    made.policy.checkpoints.enabled = True
    client.session.CreateSession(made)
    client.session.AppendRows(append("s", user("q"), calls("a"), result("a", "x"), assistant("done")))
    request = compaction_service_pb2.SaveCheckpointRequest(session_id="s", description="d", trim_count=2)
    return refused(client.compaction.SaveCheckpoint, request)


@case("PROJECTION_NOT_FOUND", projection_id="pr-x")
def _no_projection(client: Client, _: Path) -> Refusal:
    HostedHost(client, "kept")
    request = compaction_service_pb2.CommitProjectionRequest(session_id="kept", projection_id="pr-x")
    return refused(client.compaction.CommitProjection, request)


@case("PROJECTION_EXPIRED", projection_id=None, expire_time=None)
def _expired_projection(client: Client, _: Path) -> Refusal:
    host = HostedHost(client, "kept")
    talk(host, 20)
    host.ask("and now?")
    answer = host.compact(manual=True, override={"memory": {"projection_ttl": {"nanos": 1}}})
    return refused(host.commit, answer)


@case("STORE_CORRUPT", record="Session")
def _corrupt(_: Client, folder: Path) -> Refusal:
    with running_server(folder) as client:
        session_of(client)
    with sqlite3.connect(config_of(folder).data / "foldline.db") as db:
        db.execute("UPDATE session SET state = x'00'")
    db.close()
    with running_server(folder) as client:
        return refused(client.session.GetSession, session_service_pb2.GetSessionRequest(session_id="s"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Client]]:
    """One server for the cases that need nothing of their own; each takes its sessions away."""
    with running_server(tmp_path_factory.mktemp("shared")) as client:
        yield [client]


@pytest.fixture
def client(shared: list[Client]) -> Iterator[Client]:
    yield shared[0]
    for session in shared[0].session.ListSessions(session_service_pb2.ListSessionsRequest()).sessions:
        shared[0].session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=session.session_id))


@pytest.mark.parametrize("reason", CASES)
def test_a_reason_reaches_the_client_with_code_and_metadata(reason: str, client: Client, tmp_path: Path) -> None:
    raise_it, metadata = CASES[reason]
    found = raise_it(client, tmp_path)
    assert (found.reason, found.domain) == (reason, DOMAIN)
    assert found.code == re.search(r"Code: ([A-Z_]+)\.", COMMENTS[reason])[1]  # type: ignore[index]
    assert {k: v for k, v in found.metadata.items() if metadata.get(k, "") is not None} == {
        k: v for k, v in metadata.items() if v is not None
    }
    assert set(metadata) == set(found.metadata)
    assert found.message
    assert found.request_id
    assert (found.retry_seconds is not None) == (Reason(reason) in RETRY_SECONDS)
    assert bool(found.violations) == (reason == "FIELD_VALIDATION")


def _raised_metadata() -> Iterator[tuple[str, str, set[str]]]:
    """(place, reason, metadata keys) of every FoldlineError that the package's code makes."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "v1") or path.is_relative_to(PACKAGE / "formats/importers"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FoldlineError":
                reason = node.args[0] if node.args else None
                # One that is passed on with more words has been looked at where it was raised.
                if isinstance(reason, ast.Attribute) and ast.unparse(reason.value) == "Reason":
                    yield f"{path.name}:{node.lineno}", reason.attr, {k.arg for k in node.keywords if k.arg}


def test_metadata_are_those_the_contract_names() -> None:
    """P24: wherever an error is raised. What INTERNAL carries inside goes to the log only (W8)."""
    surprising = {
        place: (reason, keys - documented)
        for place, reason, keys in _raised_metadata()
        if reason not in NOT_RAISED | {"INTERNAL"}
        and not keys <= (documented := set(re.findall(r"`(\w+)`", COMMENTS[reason].split("Metadata: ")[1])))
    }
    assert surprising == {}


def test_every_reason_is_raised_or_said_not_to_be() -> None:
    assert set(CASES) | NOT_RAISED == {r.value for r in Reason} == set(COMMENTS)
    assert not set(CASES) & NOT_RAISED


@pytest.mark.parametrize("reason", Reason)
def test_codes_are_those_of_the_contract(reason: Reason) -> None:
    stated = re.search(r"Code: ([A-Z_]+)\.", COMMENTS[reason.value])
    assert stated is not None
    assert CODES[reason] is grpc.StatusCode[stated[1]]


@pytest.mark.parametrize("reason", Reason)
def test_a_retry_is_proposed_where_the_contract_says_so(reason: Reason) -> None:
    assert (reason in RETRY_SECONDS) == ("google.rpc.RetryInfo" in COMMENTS[reason.value])
