"""What every call passes through: ids, sizes, deadlines, load, logs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import grpc
import pytest
import structlog
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.server import logs
from foldline.v1 import (
    admin_service_pb2,
    compaction_service_pb2,
    event_service_pb2,
    row_pb2,
    session_service_pb2,
)
from foldline.v1 import session_service_pb2 as pb

from tests.support.requests import append, assistant, create, prepare, user
from tests.support.server import Client, Refusal, refusal_of, refused, running_server, started, until

GET = pb.GetSessionRequest(session_id="s")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running_server(tmp_path_factory.mktemp("calls")) as client:
        client.session.CreateSession(create("s"))
        yield client


def request_id_of(client: Client, *given: tuple[str, str]) -> str:
    _, call = client.session.GetSession.with_call(GET, metadata=given)
    return str(dict(call.trailing_metadata())["x-request-id"])


class TestRequestId:
    def test_the_clients_own_is_returned(self, client: Client) -> None:
        assert request_id_of(client, ("x-request-id", "turn-7/model-call-2")) == "turn-7/model-call-2"

    def test_without_one_each_call_gets_its_own(self, client: Client) -> None:
        assert len({request_id_of(client) for _ in range(20)}) == 20

    @pytest.mark.parametrize("given", ["", "x" * 129])
    def test_one_that_logs_cannot_carry_is_replaced(self, client: Client, given: str) -> None:
        assert request_id_of(client, ("x-request-id", given)) not in ("", given)

    def test_a_refused_call_has_one_too(self, client: Client) -> None:
        absent = pb.GetSessionRequest(session_id="no")
        found = refused(client.session.GetSession, absent, metadata=[("x-request-id", "r")])
        assert found.request_id == "r"


LIMIT = 65_536


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running_server(tmp_path_factory.mktemp("small"), {"server.max_message_bytes": LIMIT}) as client:
        client.session.CreateSession(create("s"))
        yield client


class TestSizes:
    """W5."""

    def test_a_request_of_the_largest_size_is_taken_and_one_byte_more_refused(self, small: Client) -> None:
        def sized(size: int) -> pb.AppendRowsRequest:
            filled = size - append("s", user("")).ByteSize() - 6
            short = size - append("s", user("x" * filled)).ByteSize()
            return append("s", user("x" * (filled + short)))

        assert sized(LIMIT).ByteSize() == LIMIT
        small.session.AppendRows(sized(LIMIT))
        found = refused(small.session.AppendRows, sized(LIMIT + 1))
        assert (found.reason, found.code) == ("MESSAGE_TOO_LARGE", "RESOURCE_EXHAUSTED")
        assert found.metadata == {"size": str(LIMIT + 1), "maximum": str(LIMIT)}

    def test_an_answer_over_the_limit_is_refused_with_both_sizes(self, small: Client) -> None:
        for _ in range(3):
            small.session.AppendRows(append("s", user("y" * 30_000)))
        found = refused(small.session.ListRows, pb.ListRowsRequest(session_id="s"))
        assert found.reason == "MESSAGE_TOO_LARGE"
        assert int(found.metadata["size"]) > LIMIT == int(found.metadata["maximum"])

    def test_a_request_far_beyond_is_refused_by_the_transport_with_both_sizes(self, small: Client) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            small.session.AppendRows(append("s", user("x" * LIMIT * 5)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(LIMIT * 4) in caught.value.details()

    def test_the_limit_is_told(self, small: Client) -> None:
        info = small.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest()).server
        assert (info.max_request_bytes, info.max_response_bytes) == (LIMIT, LIMIT)


class TestDamagedRequests:
    @pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe"], ids=["no message", "no UTF-8"])
    def test_bytes_that_are_no_request_are_an_invalid_argument(self, client: Client, data: bytes) -> None:
        """R2."""
        call = client.channel.unary_unary("/foldline.v1.SessionService/GetSession")
        found = refused(call, data)
        assert (found.code, found.reason) == ("INVALID_ARGUMENT", "FIELD_VALIDATION")

    def test_an_unknown_method_is_unimplemented(self, client: Client) -> None:
        found = refused(client.channel.unary_unary("/foldline.v1.SessionService/Nothing"), b"")
        assert found.code == "UNIMPLEMENTED"

    def test_every_violation_is_named_with_its_path(self, client: Client) -> None:
        rows = [row_pb2.Row(), row_pb2.Row(user=row_pb2.UserRow())]
        request = pb.AppendRowsRequest(session_id="a b", input=row_pb2.RowInput(rows=row_pb2.RowList(rows=rows)))
        found = refused(client.session.AppendRows, request)
        assert {field for field, _ in found.violations} == {
            "session_id",
            "input.rows.rows[0].body",
            "input.rows.rows[1].user.content",
        }
        assert found.metadata["field"] == found.violations[0][0]

    def test_details_fit_into_headers_whatever_was_sent(self, client: Client) -> None:
        """The largest texts that can be refused come back clipped, not as a broken answer."""
        rows = [row_pb2.Row() for _ in range(500)]
        request = pb.AppendRowsRequest(
            session_id="é" * 100_000, run_id="\n" * 100_000, input=row_pb2.RowInput(rows=row_pb2.RowList(rows=rows))
        )
        found = refused(client.session.AppendRows, request)
        assert (found.code, found.reason) == ("INVALID_ARGUMENT", "FIELD_VALIDATION")
        assert 1 <= len(found.violations) <= 8


class TestDeadlines:
    """W9."""

    def test_a_client_that_stopped_waiting_learns_deadline_exceeded(self, tmp_path: Path) -> None:
        with waiting_fold(tmp_path) as (client, go_on):
            request = compaction_service_pb2.CompactSessionRequest(session_id="s")
            with pytest.raises(grpc.RpcError) as caught:
                list(client.compaction.CompactSession(request, timeout=0.3))
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            go_on.set()

    def test_a_clients_deadline_bounds_what_it_waits_for(self, tmp_path: Path) -> None:
        with waiting_fold(tmp_path) as (client, go_on):
            fold = client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id="s"))
            next(fold)
            started_at = time.monotonic()
            # What the client asks for ends a little after what the use case waits, so that its answer arrives.
            edit = pb.EditRowsRequest(session_id="s", first_offset=2, last_offset=2)
            code = refused(client.session.EditRows, edit, timeout=0.5).code
            assert code in ("ABORTED", "DEADLINE_EXCEEDED")
            assert time.monotonic() - started_at < 5
            go_on.set()
            assert refused(list, fold).reason == "SUMMARIZER_FAILED"

    def test_a_call_without_one_waits_no_longer_than_the_server_allows(self, tmp_path: Path) -> None:
        with waiting_fold(tmp_path, {"server.max_wait": 0.2}) as (client, go_on):
            fold = client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id="s"))
            next(fold)
            edit = pb.EditRowsRequest(session_id="s", first_offset=2, last_offset=2)
            assert refused(client.session.EditRows, edit).reason == "FOLD_IN_PROGRESS"
            go_on.set()
            assert refused(list, fold).reason == "SUMMARIZER_FAILED"


class _Waiting:
    def __init__(self) -> None:
        self.go_on = threading.Event()

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        self.go_on.wait(30)
        raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, "asked to")


class waiting_fold:
    """A server whose folds wait until they are told to fail, with a session that can fold."""

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        self.source = _Waiting()
        self.server = running_server(folder, settings, summarizer=self.source)

    def __enter__(self) -> tuple[Client, threading.Event]:
        client = self.server.__enter__()
        client.session.CreateSession(create("s"))
        turns = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]
        client.session.AppendRows(append("s", *turns))
        return client, self.source.go_on

    def __exit__(self, *error: object) -> None:
        self.source.go_on.set()
        self.server.__exit__(None, None, None)


def opens(client: Client) -> bool:
    """Whether both places of two streams are free."""
    watches = [client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="s")) for _ in "ab"]
    try:
        for watch in watches:
            next(watch)
    except grpc.RpcError as error:
        if refusal_of(error).reason != "OVERLOADED":
            raise
        return False
    finally:
        for watch in watches:
            watch.cancel()
    return True


class TestLoad:
    def test_health_is_served_when_every_thread_is_taken(self, tmp_path: Path) -> None:
        settings = {"server.workers": 1, "server.max_calls": 1, "server.max_wait": 5.0}
        with waiting_fold(tmp_path, settings) as (client, go_on):
            fold = client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id="s"))
            next(fold)
            edit = client.session.EditRows.future(pb.EditRowsRequest(session_id="s", first_offset=2, last_offset=2))
            found: list[Refusal] = []

            def is_refused() -> bool:
                try:
                    client.session.GetSession(GET)
                except grpc.RpcError as error:
                    found.append(refusal_of(error))
                return bool(found)

            assert until(is_refused)
            assert (found[0].reason, found[0].code) == ("OVERLOADED", "RESOURCE_EXHAUSTED")
            assert found[0].metadata == {"limit": "1"}
            assert found[0].retry_seconds
            assert client.serving() == "SERVING"
            go_on.set()
            assert refused(list, fold).reason == "SUMMARIZER_FAILED"
            edit.exception(10)

    def test_places_are_given_back(self, tmp_path: Path) -> None:
        with running_server(tmp_path, {"server.max_streams": 2, "server.max_calls": 2}) as client:
            client.session.CreateSession(create("s"))
            for _ in range(10):
                assert until(lambda: opens(client))
            for _ in range(20):
                client.session.GetSession(GET)
                refused(client.session.GetSession, pb.GetSessionRequest(session_id="no"))

    def test_many_clients_append_to_one_session_at_once(self, client: Client) -> None:
        client.session.CreateSession(create("crowd"))

        def one(number: int) -> pb.AppendRowsResponse:
            answer: pb.AppendRowsResponse = client.session.AppendRows(append("crowd", user(f"row {number}")))
            return answer

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(one, range(64)))
        assert sorted(a.first_offset for a in answers) == list(range(1, 65))
        assert sorted(a.revision for a in answers) == list(range(1, 65))
        verified = client.session.VerifySession(pb.VerifySessionRequest(session_id="crowd"))
        assert (verified.ok, verified.rows_total) == (True, 64)


class TestUnixSocket:
    def test_every_service_is_served_there_too(self, tmp_path: Path) -> None:
        with started(tmp_path) as server:
            server.ready()
            assert [a.split(":")[0] for a in server.addresses] == ["127.0.0.1", "unix"]
            with Client(server.addresses[0]) as tcp, Client(server.addresses[1]) as unix:
                unix.session.CreateSession(create("s"))
                unix.session.AppendRows(append("s", user("hello")))
                assert tcp.session.GetSession(GET).session.revision == 1
                found = refused(unix.session.GetSession, pb.GetSessionRequest(session_id="no"))
                assert found.reason == "SESSION_NOT_FOUND"
                assert unix.serving("foldline.v1.CompactionService") == "SERVING"

    def test_only_its_owner_may_connect(self, tmp_path: Path) -> None:
        with started(tmp_path, {"socket": str(tmp_path / "new" / "s")}):
            assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
            assert (tmp_path / "new" / "s").stat().st_mode & 0o777 == 0o600

    def test_a_stale_socket_is_replaced(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "s"))
        with started(tmp_path) as server:
            server.ready()
            with Client(f"unix:{tmp_path / 's'}") as client:
                assert client.serving() == "SERVING"


class TestLogs:
    @pytest.fixture
    def stream(self) -> Iterator[BytesIO]:
        before = structlog.get_config()
        made = BytesIO()
        logs.configure("info", made, for_good=False)
        yield made
        structlog.configure(**before)

    def test_a_call_is_one_line_without_its_payload(self, tmp_path: Path, stream: BytesIO) -> None:
        with running_server(tmp_path) as client:
            client.session.CreateSession(create("s"))
            given = [("x-request-id", "r-1")]
            client.session.AppendRows(append("s", user("the secret word is plover")), metadata=given)
            refused(client.compaction.PrepareRequest, prepare("s", "run-1", user("plover"), request_id="é"))
            client.serving()
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert b"plover" not in stream.getvalue()
        calls = [line for line in lines if line["event"] == "call"]
        assert [(c["method"].rsplit("/")[-1], c["code"]) for c in calls] == [
            ("CreateSession", "OK"),
            ("AppendRows", "OK"),
            ("PrepareRequest", "INVALID_ARGUMENT"),
        ]
        assert calls[1]["request_id"] == "r-1"
        assert calls[1]["bytes_in"] > 0 < calls[1]["bytes_out"]
        assert calls[1]["ms"] > 0
        assert calls[2]["reason"] == "FIELD_VALIDATION"

    def test_what_a_client_does_not_learn_is_logged_under_its_id(self, tmp_path: Path, stream: BytesIO) -> None:
        """W8."""

        class Broken:
            def summarize(self, request: SummaryRequest) -> SummaryResult:
                raise OSError("/var/lib/models/weights.bin is gone")

        with running_server(tmp_path, summarizer=Broken()) as client:
            client.session.CreateSession(create("s"))
            turns = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]
            client.session.AppendRows(append("s", *turns))
            request = compaction_service_pb2.CompactSessionRequest(session_id="s")
            found = refused(client.compaction.CompactSession, request)
        assert found.code == "INTERNAL"
        assert "weights" not in repr(found)
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        failed = next(line for line in lines if line.get("code") == "INTERNAL")
        assert failed["request_id"] == found.request_id == found.metadata["x_request_id"]
        assert "weights.bin is gone" in failed["exception"]


def test_a_panic_of_the_core_is_an_internal_error_not_a_hang(tmp_path: Path) -> None:
    """A Rust panic arrives as a BaseException, which grpcio itself would leave unanswered."""

    class Panic(BaseException):
        pass

    class Panicking:
        def summarize(self, request: SummaryRequest) -> SummaryResult:
            raise Panic("index out of bounds")

    with running_server(tmp_path, summarizer=Panicking()) as client:
        client.session.CreateSession(create("s"))
        turns = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]
        client.session.AppendRows(append("s", *turns))
        request = session_service_pb2.UpdateSessionRequest(session_id="s")
        request.policy.auto_compact_threshold = 500
        client.session.UpdateSession(request)
        found = refused(
            client.compaction.CompactSession, compaction_service_pb2.CompactSessionRequest(session_id="s"), timeout=60
        )
        assert (found.code, found.reason) == ("INTERNAL", "INTERNAL")
        assert "bounds" not in repr(found)
