"""SIGKILL around the folds and commits of a host that keeps its transcript (H3, V10, W2, §13).

The call that got no answer is repeated under its request id against the server that came back. The host goes by what it
was told: it applies an answer once, commits until it hears that it is committed, and loses nothing.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import grpc
import pytest

from tests.integration.hosted import HostedHost, assistant, result
from tests.support.server import Client, Process

T = TypeVar("T")


class Sidecar:
    """The server, and a host that repeats what it did not hear of."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.dice = folder, Random(seed)
        self.catalog = folder / "models.json"
        entry = {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}
        self.catalog.write_text(json.dumps({"small": entry}))
        self.kills = 0
        self.start()
        self.host = HostedHost(self.client, "s", retention={"turns": 1, "messages": 4}, min_boundaries_between=0)

    def start(self) -> None:
        self.process = Process(self.folder, "--set", f"catalog={self.catalog}", "--set", "log.level=error")
        self.process.wait_ready()
        self.client = Client(f"unix:{self.folder / 's'}")

    def close(self) -> None:
        self.client.channel.close()
        self.process.close()

    def call(self, run: Callable[[], T], *, kill: bool) -> T:
        """Makes a call until it is answered; the server dies at some moment of the first try."""
        if kill:
            self.kills += 1
            threading.Timer(self.dice.uniform(0, 0.05), self.process.signal, [signal.SIGKILL]).start()
        while True:
            try:
                answer = run()
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                self.restart()
                kill = False
                continue
            if kill:
                # The timer may ring after the answer: what was acknowledged must have survived.
                self.restart()
            return answer

    def restart(self) -> None:
        assert self.process.wait(10) == -signal.SIGKILL, self.process.log.read_text()
        self.close()
        self.start()
        self.host.client = self.client


def campaign(folder: Path, seed: int, turns: int, every: int) -> Sidecar:
    sidecar = Sidecar(folder, seed)
    host, said, folds = sidecar.host, dict[str, str](), 0
    try:
        for number in range(turns):
            host.ask(f"Request number {number} about module{number}x. " + "word " * 160)
            said |= dict.fromkeys(host.ids()[-1:], f"module{number}x")
            for call in range(2):
                name = f"c{number}_{call}"
                host.add(assistant("", name), result(name, f"output of {name}x " + "line " * 160))
                said |= dict.fromkeys(host.ids()[-1:], f"{name}x")
            # The first boundaries fold nothing.
            kill = number > 5 and number % every == 0
            answer = sidecar.call(lambda n=number: host.compact(request_id=f"q{n}"), kill=kill)
            if answer.projection_id:
                folds += 1
                kill = folds % every == 1
                committed = sidecar.call(lambda a=answer, n=number: host.commit(a, f"k{n}"), kill=kill)
                assert committed == answer.record.memory_entries
                host.apply(answer)
            host.add(assistant("Done."))
            host.end_run()
        check(sidecar, said)
    finally:
        sidecar.close()
    return sidecar


def check(sidecar: Sidecar, said: dict[str, str]) -> None:
    host = sidecar.host
    verified = host.verify()
    assert verified.ok, verified.faults
    assert verified.folds >= 3
    ends = host.ends().values()
    assert [e for e in ends if len(e) != 1] == [], "§13: each start has exactly one end"
    assert sum(e == ["completed"] for e in ends) == verified.folds
    here = set(host.ids())
    texts = [b.text.text for row in host.archive() for b in (*row.user.content, *row.tool_result.content)]
    for row_id, word in said.items():
        assert sum(word in t.split() or f"{word}." in t.split() for t in texts) == (row_id not in here), word
    gone = [word for row_id, word in said.items() if row_id not in here]
    for word in gone[:: max(1, len(gone) // 6)]:
        assert len({offset for offset, text in host.hits(word) if word in text.replace(".", " ").split()}) == 1


def test_a_hosts_folds_survive_kills(tmp_path: Path) -> None:
    sidecar = campaign(tmp_path, seed=20260727, turns=14, every=4)
    assert sidecar.kills >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_a_hosts_folds_survive_many_kills(tmp_path: Path, seed: int) -> None:
    assert campaign(tmp_path, seed, turns=40, every=2).kills >= 15
