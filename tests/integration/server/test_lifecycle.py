"""A server's life as a process: readiness, drain, refusals to start, and what survives."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.config import ConfigError
from foldline.domain.errors import FoldlineError, Reason, StoreLocked
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.server import app
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import compaction_service_pb2, event_pb2, event_service_pb2
from foldline.v1 import session_service_pb2 as pb
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.requests import append, assistant, create, user
from tests.support.server import (
    Client,
    Process,
    config_of,
    refusal_of,
    refused,
    running_server,
    served_process,
    started,
)

SERVICES = [
    f"foldline.v1.{name}Service"
    for name in ("Session", "Compaction", "Curator", "Memory", "Tool", "Event", "Estimate", "Admin")
]


def _pool_of(files: dict[str, descriptor_pb2.FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """What a client knows that was told these files alone."""
    pool, known = descriptor_pool.DescriptorPool(), set[str]()

    def add(name: str) -> None:
        for needed in files[name].dependency:
            if needed not in known:
                add(needed)
        known.add(name)
        pool.Add(files[name])

    for name in files:
        if name not in known:
            add(name)
    return pool


class TestReadiness:
    def test_health_tells_of_every_service_and_of_all_together(self, tmp_path: Path) -> None:
        with started(tmp_path) as server, Client(server.addresses[0]) as client:
            assert {client.serving(name) for name in ["", *SERVICES]} == {"NOT_SERVING"}
            server.ready()
            assert {client.serving(name) for name in ["", *SERVICES]} == {"SERVING"}
            assert refused(client.serving, "foldline.v1.NoService").code == "NOT_FOUND"

    def test_calls_are_refused_until_then_and_may_be_retried(self, tmp_path: Path) -> None:
        """W7."""
        with started(tmp_path) as server, Client(server.addresses[0]) as client:
            found = refused(client.session.CreateSession, create("s"))
            assert (found.code, found.reason) == ("UNAVAILABLE", "NOT_READY")
            assert found.retry_seconds
            server.ready()
            client.session.CreateSession(create("s"))

    def test_services_are_described_to_clients_of_both_versions(self, tmp_path: Path) -> None:
        with running_server(tmp_path) as client:
            for version in ("v1", "v1alpha"):
                call = client.channel.stream_stream(
                    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                    request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                    response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
                )
                asked = [
                    reflection_pb2.ServerReflectionRequest(list_services=""),
                    reflection_pb2.ServerReflectionRequest(file_containing_symbol="foldline.v1.EventService"),
                ]
                listed, file = call(iter(asked))
                names = {s.name for s in listed.list_services_response.service}
                assert {*SERVICES, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= names
                assert file.file_descriptor_response.file_descriptor_proto
                for name in names:
                    (found,) = call(iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)]))
                    files = [
                        descriptor_pb2.FileDescriptorProto.FromString(f)
                        for f in found.file_descriptor_response.file_descriptor_proto
                    ]
                    pool = _pool_of({f.name: f for f in files})
                    assert pool.FindServiceByName(name).methods, "what is listed can be described, on its own"

    def test_reflection_can_be_off(self, tmp_path: Path) -> None:
        with running_server(tmp_path, {"server.reflection": False}) as client:
            call = client.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
            with pytest.raises(grpc.RpcError) as caught:
                next(call(iter([b""])))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


class TestRefusalsToStart:
    def test_a_directory_that_another_server_holds(self, tmp_path: Path) -> None:
        with started(tmp_path), pytest.raises(StoreLocked):
            app.build(config_of(tmp_path))

    def test_a_port_that_is_taken(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            message = f"listen is {listen}, which cannot be listened on: Address already in use"
            with pytest.raises(ConfigError, match=message), started(tmp_path, {"listen": listen}):
                pass

    @pytest.mark.parametrize(
        ("listen", "message"),
        [
            ("nobody.invalid:0", "the host nobody.invalid is not known"),
            ("..:0", "the host .. is not known"),
            ("192.0.2.1:0", "cannot be listened on: Cannot assign requested address"),
        ],
    )
    def test_a_wrong_host_is_not_blamed_on_a_taken_port(self, tmp_path: Path, listen: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message), started(tmp_path, {"listen": listen}):
            pass

    @pytest.mark.parametrize("listen", ["localhost:0", "[::1]:0", "127.0.0.1:00000"])
    def test_any_way_of_writing_an_address_is_listened_on(self, tmp_path: Path, listen: str) -> None:
        if listen.startswith("[") and not _has_ipv6():
            pytest.skip("this machine has no IPv6")
        with running_server(tmp_path, {"listen": listen}) as client:
            assert client.serving() == "SERVING"

    @pytest.mark.parametrize("what", ["a file", "below a file", "no place for any", "the lock", "the store"])
    def test_a_data_directory_that_cannot_be_used(self, tmp_path: Path, what: str) -> None:
        (tmp_path / "file").write_text("mine")
        data = {
            "a file": tmp_path / "file",
            "below a file": tmp_path / "file" / "data",
            "no place for any": Path("/proc/x"),
        }.get(what, tmp_path / "data")
        if what in ("the lock", "the store"):
            name = {"the lock": "foldline.lock", "the store": "foldline.db"}[what]
            (tmp_path / "data" / name).mkdir(parents=True)
        with pytest.raises(ConfigError, match=f"data is {data}, which cannot be used: .*: /"):
            app.build(config_of(tmp_path, {"data": str(data)}))
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.parametrize("place", ["/proc/x/s", "file/s", "file/below/s"])
    def test_a_place_where_no_socket_can_be(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "file").write_text("mine")
        path = tmp_path / place
        message = f"socket is {path}, which cannot be made: "
        with pytest.raises(ConfigError, match=message), started(tmp_path, {"socket": str(path)}):
            pass

    def test_a_damaged_store_is_named_to_whoever_starts_and_to_no_client(self, tmp_path: Path) -> None:
        """W8."""
        (tmp_path / "data").mkdir()
        store = tmp_path / "data" / "foldline.db"
        store.write_bytes(b"no database at all" * 1_000)
        with pytest.raises(FoldlineError) as caught:
            app.build(config_of(tmp_path))
        assert caught.value.reason is Reason.STORE_CORRUPT
        assert str(store) not in caught.value.message
        assert caught.value.__notes__ == [str(store)]

    def test_a_socket_that_somebody_answers(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as alive:
            alive.bind(str(tmp_path / "s"))
            alive.listen()
            with pytest.raises(ConfigError, match="another process answers"), started(tmp_path):
                pass
        assert (tmp_path / "s").exists()

    def test_a_file_in_the_sockets_place_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "s").write_text("mine")
        with pytest.raises(ConfigError, match="no socket"), started(tmp_path):
            pass
        assert (tmp_path / "s").read_text() == "mine"

    def test_a_socket_path_that_no_system_takes(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="over 107 bytes"), started(tmp_path, {"socket": "/tmp/" + "x" * 120}):
            pass

    def test_nothing_to_listen_on(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="nothing to listen on"), started(tmp_path, {"listen": "", "socket": ""}):
            pass

    @pytest.mark.parametrize(
        ("catalog", "message"),
        [(None, "cannot be read"), ("{", "is not JSON"), ('{"m": {"context_window": -1}}', "m.context_window is -1")],
    )
    def test_a_catalog_that_cannot_be_used(self, tmp_path: Path, catalog: str | None, message: str) -> None:
        path = tmp_path / "models.json"
        if catalog is not None:
            path.write_text(catalog)
        with pytest.raises(ConfigError, match=message):
            app.build(config_of(tmp_path, {"catalog": str(path)}))

    def test_a_refused_start_gives_its_directory_free(self, tmp_path: Path) -> None:
        (tmp_path / "s").write_text("in the way")
        with pytest.raises(ConfigError), started(tmp_path):
            pass
        (tmp_path / "s").unlink()
        with running_server(tmp_path) as client:
            assert client.serving() == "SERVING"


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class Waiting:
    """Extractive summaries, once they are let go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.source = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        self.go_on.wait(30)
        return self.source.summarize(request)


@contextlib.contextmanager
def folding(folder: Path, source: Waiting) -> Iterator[tuple[app.Server, Any]]:
    """A server in the middle of a manual fold, and the stream of its caller."""
    with started(folder, summarizer=source) as server, Client(server.addresses[0]) as client:
        server.ready()
        client.session.CreateSession(create("s"))
        turns = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]
        client.session.AppendRows(append("s", *turns))
        fold = client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id="s"))
        next(fold)
        try:
            yield server, fold
        finally:
            source.go_on.set()


class TestDrain:
    def test_sigterm_ends_an_idle_server_with_0_and_its_socket_is_gone(self, tmp_path: Path) -> None:
        with served_process(tmp_path) as server:
            server.wait_ready()
            assert (tmp_path / "s").is_socket()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert not (tmp_path / "s").exists()

    def test_open_watches_end_as_unavailable_so_that_clients_come_back(self, tmp_path: Path) -> None:
        with served_process(tmp_path) as server, Client(server.wait_ready()) as client:
            client.session.CreateSession(create("s"))
            watch = client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="s"))
            next(watch)
            server.signal(signal.SIGINT)
            with pytest.raises(grpc.RpcError) as caught:
                list(watch)
            assert refusal_of(caught.value).reason == "NOT_READY"
            assert server.wait() == 0

    def test_a_call_under_way_is_answered(self, tmp_path: Path) -> None:
        source = Waiting()
        with folding(tmp_path, source) as (server, fold):
            stopped: list[bool] = []
            stop = threading.Thread(target=lambda: stopped.append(server.stop(grace=20)))
            stop.start()
            source.go_on.set()
            assert list(fold)[-1].HasField("record")
            stop.join()
            assert stopped == [True]

    def test_one_that_outlives_its_grace_is_cut_off_and_ended_at_the_next_start(self, tmp_path: Path) -> None:
        """V10, §13: every started fold has its end in the log."""
        source = Waiting()
        with folding(tmp_path, source) as (server, fold):
            server.stop(grace=0.1)
            with pytest.raises(grpc.RpcError):
                list(fold)
            source.go_on.set()
        with running_server(tmp_path) as client:
            events = client.event.ListEvents(event_service_pb2.ListEventsRequest(session_id="s")).events
            assert [e.kind for e in events][-2:] == [
                event_pb2.EVENT_KIND_COMPACTION_STARTED,
                event_pb2.EVENT_KIND_COMPACTION_FAILED,
            ]
            assert client.session.VerifySession(pb.VerifySessionRequest(session_id="s")).ok

    def test_health_says_not_serving_while_calls_are_still_taken(self, tmp_path: Path) -> None:
        with served_process(tmp_path, "--set", "server.drain_delay=1.5") as server:
            with Client(server.wait_ready()) as client:
                client.session.CreateSession(create("s"))
                server.signal(signal.SIGTERM)
                while client.serving() == "SERVING":
                    pass
                client.session.AppendRows(append("s", user("one more")))
            assert server.wait() == 0

    def test_a_second_signal_ends_it_at_once(self, tmp_path: Path) -> None:
        with served_process(tmp_path, "--set", "server.drain_delay=60") as server:
            with Client(server.wait_ready()) as client:
                server.signal(signal.SIGTERM)
                while client.serving() == "SERVING":
                    pass
            server.signal(signal.SIGTERM)
            assert server.wait(10) == 130

    def test_what_was_acknowledged_survives_a_kill_and_the_socket_is_taken_over(self, tmp_path: Path) -> None:
        """V10."""
        with served_process(tmp_path) as server, Client(server.wait_ready()) as client:
            client.session.CreateSession(create("s"))
            for number in range(20):
                client.session.AppendRows(append("s", user(f"row {number}"), request_id=f"r-{number}"))
            server.signal(signal.SIGKILL)
            server.wait()
        with served_process(tmp_path) as server:
            server.wait_ready()
            with Client(f"unix:{tmp_path / 's'}") as client:
                verified = client.session.VerifySession(pb.VerifySessionRequest(session_id="s"))
                assert (verified.ok, verified.rows_total) == (True, 20)
                again = client.session.AppendRows(append("s", user("row 19"), request_id="r-19"))
                assert again.first_offset == 20

    def test_a_start_that_is_interrupted_leaves_a_sound_store(self, tmp_path: Path) -> None:
        for _ in range(3):
            with served_process(tmp_path) as server:
                threading.Event().wait(0.2)
                server.signal(signal.SIGKILL)
        with served_process(tmp_path) as server, Client(server.wait_ready()) as client:
            assert client.serving() == "SERVING"


class TestCommandLine:
    def run(self, *args: str, folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "foldline", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, check=False)

    def test_health_follows_the_server_over_tcp_and_socket(self, tmp_path: Path) -> None:
        with served_process(tmp_path) as server:
            address = server.wait_ready()
            for target in (address, f"unix:{tmp_path / 's'}"):
                found = self.run("health", target, folder=tmp_path)
                assert (found.returncode, found.stdout) == (0, f"{target}: SERVING\n")
            found = self.run("health", address, "--service", "foldline.v1.MemoryService", folder=tmp_path)
            assert found.returncode == 0
            found = self.run("health", address, "--service", "foldline.v1.Memory", folder=tmp_path)
            assert (found.returncode, found.stderr) == (1, f"{address}: NOT_FOUND: it has no such service\n")
            server.signal(signal.SIGTERM)
            server.wait()
        found = self.run("health", address, "--timeout", "1", folder=tmp_path)
        assert found.returncode == 1
        assert found.stderr.startswith(f"{address}: UNAVAILABLE: nothing answers there; foldline serve prints")

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--set", "server.workers=0"], "server.workers is '0' (from --set server.workers), allowed is > 0"),
            (["--set", "server.wrokers=2"], "did you mean server.workers?"),
            (["--set", "workers"], "allowed is KEY=VALUE"),
            (["--config", "none.toml"], "none.toml cannot be read"),
            (["--data", ""], "data is '' (from --data), allowed is a path"),
            (["--listen", "127.0.0.1:65536"], "listen is '127.0.0.1:65536' (from --listen), allowed is HOST:PORT"),
            (["--data", "/proc/x"], "data is /proc/x, which cannot be used"),
        ],
    )
    def test_a_bad_setting_is_named_and_ends_with_2(self, tmp_path: Path, args: list[str], message: str) -> None:
        found = self.run("serve", "--data", "data", "--listen", "127.0.0.1:0", *args, folder=tmp_path)
        assert found.returncode == 2
        (line,) = found.stderr.splitlines()
        assert line.startswith("foldline: ")
        assert message in line
        assert not (tmp_path / "data").exists()

    def test_a_taken_port_is_told_in_one_line_of_ours(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            found = self.run("serve", "--data", "data", "--listen", listen, "--set", "log.level=error", folder=tmp_path)
        assert found.returncode == 2
        assert found.stderr == f"foldline: listen is {listen}, which cannot be listened on: Address already in use\n"

    def test_a_damaged_store_is_named_with_its_path_and_ends_with_1(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        store = tmp_path / "data" / "foldline.db"
        store.write_bytes(b"no database at all" * 1_000)
        found = self.run("serve", "--data", "data", "--listen", "127.0.0.1:0", folder=tmp_path)
        assert found.returncode == 1
        assert f"foldline: STORE_CORRUPT: the store's file is no database: {store}\n" in found.stderr
        assert "Traceback" not in found.stderr

    def test_help_names_every_command_in_a_whole_line(self, tmp_path: Path) -> None:
        found = self.run("--help", folder=tmp_path)
        assert found.returncode == 0
        assert "..." not in found.stdout.partition("Commands:")[2]
        for command in ("serve", "health", "demo"):
            assert f"\n  {command} " in found.stdout

    def test_linear_algebra_gets_one_thread_before_it_is_loaded(self, tmp_path: Path) -> None:
        code = (
            "import atexit, os, sys; from foldline.cli import main; "
            "atexit.register(lambda: print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)); "
            "sys.argv = ['foldline', '--version']; main.main()"
        )
        clean = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
        for given, expected in ((clean, "1 False"), ({**clean, "OPENBLAS_NUM_THREADS": "3"}, "3 False")):
            found = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=given, check=True
            )
            assert found.stdout.splitlines()[-1] == expected

    def test_a_held_directory_is_named_and_ends_with_1(self, tmp_path: Path) -> None:
        with served_process(tmp_path) as server:
            server.wait_ready()
            args = ("--data", "data", "--listen", "127.0.0.1:0")
            found = self.run("serve", *args, folder=tmp_path)
        assert found.returncode == 1
        assert f"is served by process {server.process.pid}" in found.stderr

    def test_listening_beyond_loopback_is_warned_of(self, tmp_path: Path) -> None:
        quiet, loud = tmp_path / "quiet", tmp_path / "loud"
        for folder, listen in ((quiet, "127.0.0.1:0"), (loud, "0.0.0.0:0")):
            folder.mkdir()
            server = Process(folder, "--listen", listen)
            try:
                server.wait_ready()
            finally:
                server.close()
        assert "without TLS" not in (quiet / "server.log").read_text()
        assert "without TLS" in (loud / "server.log").read_text()


def test_two_signals_at_once_never_leave_the_server_deaf(tmp_path: Path) -> None:
    """Whichever of the two is taken first, the process ends: drained, or forced by the second."""
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        with served_process(folder) as process:
            process.wait_ready()
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGINT)
            assert process.wait() in (0, 130)
