"""The example curators, in two languages, against real servers: what they write, and what a kill of one leaves."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from foldline.v1 import compaction_pb2, row_pb2

from tests.integration.host import Host
from tests.integration.test_ahead import LINE, cross, ended_once, events, near, settings
from tests.integration.test_curators import event_name, host_on, sourced, until_due, untouched
from tests.polyglot.go_host import MODULE, ROOT
from tests.support.requests import assistant, user
from tests.support.server import Client, refused, served_process, started, until

LANGUAGES = ["python", "go"]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """How to start each example."""
    made = {"python": [sys.executable, str(ROOT / "examples" / "python" / "curator.py")]}
    if shutil.which("go") is not None:
        program = tmp_path_factory.mktemp("go") / "curator"
        build = ["go", "build", "-o", str(program), "./cmd/curator"]
        done = subprocess.run(build, cwd=MODULE, capture_output=True, text=True, timeout=170)
        assert done.returncode == 0, done.stderr
        made["go"] = [str(program)]
    return made


class Example:
    """A running example, and what it has said."""

    def __init__(self, command: list[str], target: str, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*command, "--target", target, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())

    def says(self, word: str, times: int = 1) -> bool:
        return until(lambda: sum(line.startswith(word) for line in self.said) >= times, 20)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(commands: dict[str, list[str]], language: str, target: str, *flags: str) -> Iterator[Example]:
    """An example that is connected."""
    if language not in commands:
        pytest.skip("the Go toolchain is not installed")
    example = Example(commands[language], target, *flags)
    try:
        assert example.says("connected"), (example.said, example.process.poll())
        yield example
    finally:
        example.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Client, str]]:
    with started(tmp_path, {**settings(tmp_path), "server.heartbeat_interval": 1}) as served:
        served.ready()
        with Client(served.addresses[0]) as client:
            yield client, served.addresses[0]


def test_s6_all_write_the_same_from_the_same_rows(commands: dict[str, list[str]], server: tuple[Client, str]) -> None:
    client, address = server
    texts: dict[str, list[str]] = {}
    for language in commands:
        with running(commands, language, address):
            host = near(client, language, summary=sourced())
            folded = cross(host, 0)
            assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
            host.append(*[m for n in range(8) for m in (user(LINE.format(n=n)), assistant(f"Ä {n} 漢字"))])
            texts[language] = [folded.fold.summary_text, host.compact().summary_text]
            assert host.verify().ok
            assert ended_once(host)
    assert all(text.startswith("Work so far, as its host tells it.\n") for text in texts["python"])
    assert "Before: Work so far" in texts["python"][1]
    assert len({tuple(said) for said in texts.values()}) == 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_large_task_and_one_that_takes_longer_than_its_lease(
    commands: dict[str, list[str]], server: tuple[Client, str], language: str
) -> None:
    client, address = server
    with running(commands, language, address, "--delay", _seconds(language, 2)) as example:
        host = Host(client, "s", summary=sourced())
        for n in range(6):
            host.append(user(f"{n} " + "ab " * 200_000), assistant("read"))
        assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
        assert host.verify().ok
        assert example.says("answered")


@pytest.mark.parametrize("language", LANGUAGES)
def test_s6_killed_at_work_the_history_is_untouched_and_the_request_answered(
    commands: dict[str, list[str]], server: tuple[Client, str], language: str
) -> None:
    client, address = server
    host = near(client, "s", summary=sourced())
    slow = running(commands, language, address, "--delay", _seconds(language, 60))
    with slow as example, ThreadPoolExecutor(1) as pool:
        due = pool.submit(until_due, host)
        assert example.says("task")
        example.kill()
        prepared = due.result(20)
    assert (prepared.action, prepared.skip) == (
        compaction_pb2.ACTION_SEND, compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
    )  # fmt: skip
    assert [event_name(e) for e in events(host, "COMPACTION_FAILED")] == ["CURATOR_UNAVAILABLE"]
    assert untouched(host)
    assert refused(host.compact).reason == "CURATOR_UNAVAILABLE"
    with running(commands, language, address):
        assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
    assert host.verify().ok


@pytest.mark.parametrize("language", LANGUAGES)
def test_v10_it_comes_back_to_a_sidecar_that_was_killed(
    commands: dict[str, list[str]], tmp_path: Path, language: str
) -> None:
    catalog = ["--set", f"catalog={settings(tmp_path)['catalog']}", "--set", "server.heartbeat_interval=2"]
    with ExitStack() as stack:
        process = stack.enter_context(served_process(tmp_path, *catalog))
        address = process.wait_ready()
        example = stack.enter_context(running(commands, language, address, "--delay", _seconds(language, 1)))
        with Client(address) as client, ThreadPoolExecutor(1) as pool:
            host = near(client, "s", summary=sourced())
            fold = pool.submit(refused, host.compact)
            assert example.says("task")
            process.close()
            assert fold.result(20).code == "UNAVAILABLE"
        process = stack.enter_context(served_process(tmp_path, *catalog, "--listen", address))
        process.wait_ready()
        assert example.says("connected", 2)
        with Client(address) as client:
            host = host_on(client, host)
            assert [event_name(e) for e in events(host, "COMPACTION_FAILED")] == ["INTERRUPTED"]
            assert untouched(host)
            assert host.compact().summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
            assert host.verify().ok


def _seconds(language: str, seconds: int) -> str:
    return f"{seconds}s" if language == "go" else str(seconds)
