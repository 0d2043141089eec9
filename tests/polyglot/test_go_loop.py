"""A host in Go, written from the contract alone, against a real server: the loop, and W10 in every way to be away."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.polyglot.go_host import MODULE, ROOT, build, check_nothing_lost, run
from tests.polyglot.lossy import lossy
from tests.support.server import Client, running_server, served_process, started

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="the Go toolchain is not installed")
SEED = 20260727


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with started(tmp_path_factory.mktemp("server")) as server:
        server.ready()
        tcp, unix = server.addresses
        yield {"tcp": tcp, "unix": unix}


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_the_loop_folds_and_finds(program: Path, addresses: dict[str, str], tmp_path: Path, transport: str) -> None:
    """W1: the list that splices lead to is the server's own, over both transports."""
    ran = run(program, tmp_path, addresses[transport])
    report = ran.report
    assert (report["requests"], report["offline"], report["replayed"]) == (40, 0, 0)
    assert report["folds"] >= 1
    assert report["compacted"].startswith("f-")
    assert report["search"]["found"]
    assert (report["verified"], report["replica_equal"], report["reloads"]) == (True, True, 0)
    with Client(addresses["tcp"]) as client:
        check_nothing_lost(client, ran)


def test_a_refusal_is_told_by_its_reason(program: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    flags = ("--target", addresses["tcp"], "--session", "twice", "--steps", "2")
    run(program, tmp_path, addresses["tcp"], *flags)
    second = subprocess.run([str(program), *flags], capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert '"reason":"SESSION_EXISTS","metadata":{"session_id":"twice"}' in second.stdout


def test_an_agent_outlives_kills_of_its_sidecar(program: Path, tmp_path: Path) -> None:
    """W10: while it is down the list goes on unfolded; what was queued is appended once, in order."""
    with ExitStack() as stack:
        server = stack.enter_context(served_process(tmp_path))
        address = server.wait_ready()
        kills = {"15", "45"}
        offline = 0

        def on_step(process: subprocess.Popen[str], line: str) -> None:
            nonlocal server, offline
            number = line.split()[1]
            offline = offline + 1 if "offline" in line else 0
            if number in kills:
                server.close()
            if offline == 4:
                # Held, so that the agent has steps left to make once the sidecar is back.
                process.send_signal(signal.SIGSTOP)
                server = stack.enter_context(served_process(tmp_path, "--listen", address))
                server.wait_ready()
                process.send_signal(signal.SIGCONT)

        ran = run(program, tmp_path, address, "--steps", "80", "--pace", "20ms", on_step=on_step)
        assert ran.report["offline"] >= 2 * 4
        assert ran.report["replayed"] == ran.report["offline"]
        assert ran.report["folds"] >= 1
        assert not ran.steps[-1].endswith("queued")
        with Client(address) as client:
            check_nothing_lost(client, ran)


def test_an_agent_starts_without_its_sidecar(program: Path, tmp_path: Path) -> None:
    """W10: also the session is created on reconnect; an agent that is done waits until everything is acknowledged."""
    with ExitStack() as stack:

        def on_step(process: subprocess.Popen[str], line: str) -> None:
            if line.startswith("step 10 "):
                stack.enter_context(served_process(tmp_path)).wait_ready()

        ran = run(program, tmp_path, f"unix://{tmp_path}/s", "--steps", "10", on_step=on_step)
        assert (ran.report["offline"], ran.report["replayed"]) == (10, 10)
        with Client(f"unix:{tmp_path}/s") as client:
            check_nothing_lost(client, ran)


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_lost_answers_double_nothing(program: Path, tmp_path: Path, seed: int) -> None:
    """W2: a call whose answer was lost, be it that of a fold, is repeated and appended once."""
    dice = Random(seed)
    lost: list[str] = []

    def loses() -> str:
        lost.append(dice.choices(["", "answer", "request"], [5, 3, 1])[0])
        return lost[-1]

    with running_server(tmp_path) as client, lossy(client.channel, loses) as address:
        ran = run(program, tmp_path, address, "--steps", "60")
        assert lost.count("answer") > 10
        assert ran.report["folds"] >= 1
        assert ran.report["reloads"] == 0, "a repeat says what its first answer said, splices included"
        check_nothing_lost(client, ran)


def test_the_committed_stubs_are_those_of_the_contract(tmp_path: Path) -> None:
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    command = [str(buf), "generate", "--path", "proto/foldline", "--output", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert made.returncode == 0, made.stderr
    fresh, kept = (
        {p.relative_to(base): p.read_text() for p in base.rglob("*.go")}
        for base in (tmp_path / "examples/go/gen", MODULE / "gen")
    )
    assert fresh == kept
