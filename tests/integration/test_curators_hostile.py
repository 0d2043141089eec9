"""Curators and compactors that misbehave, over real streams (S6, F12, C6): nobody else notices it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import curator_pb2, model_pb2

from tests.integration.host import Host
from tests.integration.test_curators import near, sourced, untouched
from tests.integration.test_provider_summaries import ended_once, events
from tests.support.curators import Curator
from tests.support.server import Client, refused, running_server, watched

COMPACTOR = curator_pb2.CURATOR_ROLE_COMPACTOR
MANY = 4_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_server(tmp_path_factory.mktemp("curators")) as made:
        yield made


TEXTS = {
    "spaces": "## Goals" + " " * MANY + "x",
    "fences": "```a\n" * (MANY // 5),
    "thoughts": "<think " * (MANY // 7),
    "paths": " ".join(f"/srv/app-{n}/file_{n}.py" for n in range(MANY // 40)),
    "ticks": "`" * MANY,
    "words": "word " * (MANY // 5),
}


@pytest.mark.parametrize("role", ["curator", "compactor"])
@pytest.mark.parametrize("case", TEXTS)
def test_v6_a_huge_text_is_refused_while_the_server_serves(client: Client, case: str, role: str) -> None:
    host, other = near(client, f"huge-{case}-{role}", summary=sourced()), Host(client, f"other-{case}-{role}")
    fields = {"role": COMPACTOR} if role == "compactor" else {}
    started = time.monotonic()
    with watched(other.offsets) as waits, Curator(client, **fields) as curator, ThreadPoolExecutor(1) as pool:
        fold = pool.submit(refused, host.compact)
        task = curator.task()
        if role == "compactor":
            curator.rewrite(task, [], TEXTS[case])
        else:
            curator.answer(task, TEXTS[case])
        assert fold.result(60).reason
    assert untouched(host)
    assert ended_once(host)
    assert max(waits, default=0.0) < 5
    assert time.monotonic() - started < 20


def test_s5_usage_of_any_size_adds_up_and_can_be_read(client: Client) -> None:
    most = {"input_tokens": 2**63 - 1, "output_tokens": 2**63 - 1, "cost": 1.7e308, "currency": "USD"}
    host = near(client, "usage", summary=sourced())
    with Curator(client) as curator, ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            fold = pool.submit(refused, host.compact)
            curator.answer(curator.task(), " ", usage=model_pb2.Usage(**most))
            fold.result(20)
    used = [u.usage for u in host.get().totals.usage]
    assert all(u.input_tokens >= 0 for u in used)
    assert all(u.cost < float("inf") for u in used), "the contract has it finite"
    assert len(events(host, "COMPACTION_FAILED")) == 3
    assert host.verify().ok


def test_s6_two_answers_foreign_answers_and_a_flood_change_nothing(client: Client) -> None:
    host = near(client, "flood", summary=sourced())
    with Curator(client, name="one") as one, ThreadPoolExecutor(1) as pool:
        fold = pool.submit(host.compact)
        task = one.task()
        with Curator(client, name="two") as two:
            for n in range(300):
                two.answer(task, "stolen")
                two.answer(f"t-{n}", "made up")
                two.beat(task.id, *(f"t-{n}-{i}" for i in range(60)))
            two.next("heartbeat_ack", 20)
            one.answer(task, "The work on the parser.")
            one.answer(task, "Another text.")
            record = fold.result(30)
    assert record.summary_offset
    shown = repr([str(r) for r in host.active()])
    assert "The work on the parser." in shown
    assert "stolen" not in shown
    assert "Another" not in shown
    assert ended_once(host)


def test_s6_a_thousand_registrations_leave_room_for_others(tmp_path: Path) -> None:
    with running_server(tmp_path, {"server.max_streams": 8}) as client:
        host = near(client, "s", summary=sourced())
        for _ in range(200):
            with Curator(client):
                pass
        with Curator(client) as curator, ThreadPoolExecutor(1) as pool:
            fold = pool.submit(host.compact)
            curator.answer(curator.task(), "The work on the parser.")
            assert fold.result(20).summary_offset
