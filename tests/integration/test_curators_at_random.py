"""Curators that come, go, come back, fall silent, fail and answer too late, while several sessions fold (S6, V10)."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.integration.host import Host
from tests.integration.test_ahead import LINE, ended_once, events
from tests.integration.test_curators import TEXT, connected, serving, sourced
from tests.support.curators import Curator, Task
from tests.support.requests import assistant, user
from tests.support.server import Client, refusal_of

SEED = 20260727
LEASE = 0.2
EXPECTED = {"CURATOR_UNAVAILABLE", "CURATOR_FAILED", "REWRITE_REJECTED", "NOTHING_TO_FOLD"}


class Actor:
    """One host that behaves badly in every way, by its dice."""

    def __init__(self, client: Client, name: str, rng: Random, over: threading.Event) -> None:
        self.client, self.name, self.rng, self.over = client, name, rng, over
        self.did: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.is_set():
            with Curator(self.client, name=self.name, max_tasks=self.rng.randint(1, 2)) as stream:
                for _ in range(self.rng.randint(1, 4)):
                    if not self.serve(stream):
                        break

    def serve(self, stream: Curator) -> bool:
        """Whether the stream goes on."""
        try:
            task = stream.task(0.2)
        except AssertionError:
            return False
        way = self.rng.choice(["answer", "beat", "late", "leave", "return", "fail", "blank", "unknown"])
        self.did[way] += 1
        text = f"{TEXT} By {self.name}, {task.id}."
        if way == "beat":
            for _ in range(3):
                stream.beat(task.id)
                self.over.wait(LEASE / 2)
        if way == "late":
            self.over.wait(2 * LEASE)
            stream.answer(task, f"{text} LATE")
        elif way == "leave":
            return False
        elif way == "return":
            return self.come_back(stream, task, text)
        elif way == "fail":
            stream.fail(task, "dice")
        elif way == "blank":
            stream.answer(task, " ")
        elif way == "unknown":
            stream.answer("t-unknown", text)
            stream.answer(task, text)
            stream.answer(task, f"{text} TWICE")
        else:
            stream.answer(task, text)
        return True

    def come_back(self, stream: Curator, task: Task, text: str) -> bool:
        stream.close()
        with Curator(self.client, name=self.name) as back:
            back.beat(task.id)
            back.answer(task, text)
            back.beat()
            back.next("heartbeat_ack")
        return False


def fold(host: Host, times: int) -> Counter[str]:
    """Folds by hand, again and again; what became of it."""
    outcomes: Counter[str] = Counter()
    for _ in range(times):
        host.append(*[m for n in range(8) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
        try:
            outcomes[f"folded {host.compact().summary_text.split('.')[-2]}"] += 1
        except grpc.RpcError as error:
            outcomes[refusal_of(error).reason] += 1
    return outcomes


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_whatever_hosts_do_the_history_holds(tmp_path: Path, seed: int) -> None:
    over = threading.Event()
    with serving(tmp_path, LEASE) as (client, served), ThreadPoolExecutor(8) as pool:
        actors = [Actor(client, f"actor-{n}", Random(f"{seed} {n}"), over) for n in range(3)]
        policy = sourced(timeout=Duration(seconds=2))
        hosts = [Host(client, f"s{n}", output_reserve_tokens=100, summary=policy) for n in range(4)]
        playing = [pool.submit(actor.run) for actor in actors]
        outcomes = [pool.submit(fold, host, 8) for host in hosts]
        try:
            became = sum((o.result(120) for o in outcomes), Counter())
        finally:
            over.set()
        for play in playing:
            play.result(30)
        did = sum((a.did for a in actors), Counter())
        assert connected(served, 0)
        assert served.services.store.leases() == []
        assert not served.services.curators._tasks
        folded = [o for o in became if o.startswith("folded")]
        assert set(became) - set(folded) <= EXPECTED, became
        assert folded, (became, did)
        assert sum(became.values()) == 8 * len(hosts)
        for host in hosts:
            assert host.verify().ok
            assert ended_once(host)
            written = [e.compaction_completed.record.summary_text for e in events(host, "COMPACTION_COMPLETED")]
            assert not any("LATE" in text or "TWICE" in text for text in written)
            assert len(written) == len(set(written)), "no task is committed twice"
            assert sum(r.HasField("compaction_summary") for r in host.active()) == min(1, len(written))
