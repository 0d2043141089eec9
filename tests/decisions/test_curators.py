"""§6 F5, F12 and §8 S6: who of the connected hosts writes, and what is left where none does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, curator_pb2, policy_pb2, row_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.integration.conftest import WINDOW
from tests.support.curators import Curator, Task
from tests.support.requests import user
from tests.support.server import Client, running_server

T, W = 3_200, 3_900
TEXT = "What was said so far, as the host tells it."
Does = Callable[[Curator, Task], None]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server whose leases are short."""
    folder = tmp_path_factory.mktemp("server")
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": WINDOW, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(folder, {"catalog": str(catalog), "server.heartbeat_interval": 0.3}) as client:
        yield client


def writes(curator: Curator, task: Task) -> None:
    curator.answer(task, TEXT)


def says(text: str) -> Does:
    return lambda curator, task: curator.answer(task, text)


def fails(curator: Curator, task: Task) -> None:
    curator.fail(task, "no")


def sleeps(curator: Curator, task: Task) -> None:
    while True:
        curator.beat(task.id)
        curator.next("heartbeat_ack")


def breaks(curator: Curator, task: Task) -> None:
    curator.close()


def silent(curator: Curator, task: Task) -> None:
    curator.next("cancel")


def keeps(*positions: int) -> Does:
    """Keeps units of the task by their position."""
    return lambda curator, task: curator.rewrite(task, [o for p in positions for o in task.head.units[p].offsets], TEXT)


def keeps_unknown(curator: Curator, task: Task) -> None:
    curator.rewrite(task, [10**6], TEXT)


def keeps_all(curator: Curator, task: Task) -> None:
    curator.rewrite(task, [r.offset for r in task.rows], TEXT)


CURATOR, COMPACTOR = "CURATOR", "COMPACTOR"
CASES = [
    # (rule, case, hosts as (role, what it does, its labels), what the host counts, who writes, else the failure)
    ("S6", "a connected curator writes", [(CURATOR, writes, {})], T, CURATOR),
    ("S6", "none is connected", [], T, "CURATOR_UNAVAILABLE"),
    ("S6", "nor does another where the request would not fit", [], W, "CURATOR_UNAVAILABLE"),
    ("S6", "one of other labels is none", [(CURATOR, writes, {"team": "blue"})], T, "CURATOR_UNAVAILABLE"),
    ("S6", "it fails", [(CURATOR, fails, {})], T, "CURATOR_FAILED"),
    ("S6", "it fails where the request would not fit", [(CURATOR, fails, {})], W, "CURATOR_FAILED"),
    ("S6", "a failure is not handed on", [(CURATOR, fails, {}), (CURATOR, fails, {})], T, "CURATOR_FAILED"),
    ("S6", "it is late, though it lives", [(CURATOR, sleeps, {})], T, "CURATOR_FAILED"),
    ("S6", "its stream breaks", [(CURATOR, breaks, {})], T, "CURATOR_UNAVAILABLE"),
    ("S6", "it falls silent", [(CURATOR, silent, {})], T, "CURATOR_UNAVAILABLE"),
    ("S6", "both are lost", [(CURATOR, breaks, {}), (CURATOR, silent, {})], T, "CURATOR_UNAVAILABLE"),
    ("V6", "it says nothing", [(CURATOR, says(" "), {})], T, "SUMMARY_REJECTED"),
    ("V6", "it says too much", [(CURATOR, says("word " * 1500), {})], T, "SUMMARY_REJECTED"),
    ("V6", "it speaks tool protocol", [(CURATOR, says("<tool_call>x</tool_call>"), {})], T, "SUMMARY_REJECTED"),
    ("F12", "a compactor does where no curator is", [(COMPACTOR, keeps(), {})], T, COMPACTOR),
    ("F12", "it may keep what it was handed", [(COMPACTOR, keeps(0), {})], T, COMPACTOR),
    ("F12", "not what it was not", [(COMPACTOR, keeps_unknown, {})], T, "CURATOR_FAILED"),
    ("F12", "not all of it", [(COMPACTOR, keeps_all, {})], T, "CURATOR_FAILED"),
    ("F12", "it fails", [(COMPACTOR, fails, {})], T, "CURATOR_FAILED"),
    ("F12", "a summary is no rewrite", [(COMPACTOR, writes, {})], T, "CURATOR_FAILED"),
    ("S6", "a rewrite is no summary", [(CURATOR, keeps_unknown, {})], T, "CURATOR_FAILED"),
    ("S6", "a curator comes first", [(COMPACTOR, fails, {}), (CURATOR, writes, {})], T, CURATOR),
    ("F12", "a compactor also before one of other labels",
     [(CURATOR, fails, {"team": "blue"}), (COMPACTOR, keeps(), {})], T, COMPACTOR),
]  # fmt: skip


def serves(curator: Curator, does: Does) -> None:
    """Does so with every task, until the stream ends."""
    try:
        while True:
            does(curator, curator.task(60))
    except AssertionError:
        return


@pytest.mark.parametrize(("hosts", "counted", "outcome"), marks(CASES))
def test_who_writes_and_what_else_happens(
    client: Client, name: str, hosts: list[tuple[str, Does, dict[str, str]]], counted: int, outcome: str
) -> None:
    """S2: NEXT and RESCUE are of no use to a curator, so NEXT is asked for in every case."""
    summary = policy_pb2.SummaryPolicy(
        source=policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR, on_failure=policy_pb2.ON_FAILURE_NEXT, coverage_floor=0
    )
    summary.timeout.FromMilliseconds(900)
    host = Script(client, name, output_reserve_tokens=100, min_progress=0.0, summary=summary,
                  retention={"turns": 0, "messages": 0})  # fmt: skip
    host.play("U A U A U A")
    before = host.listing()
    host.revision, host.list = host.get().session.revision, host.offsets()
    with ExitStack() as stack:
        for role, does, labels in hosts:
            number = curator_pb2.CuratorRole.Value(f"CURATOR_ROLE_{role}")
            curator = stack.enter_context(Curator(client, role=number, labels=labels))
            threading.Thread(target=serves, args=(curator, does), daemon=True).start()
        shape = compaction_service_pb2.RequestShape(input_tokens=counted)
        prepared = host.prepare("r1", user("go"), shape=shape)
    if prepared.HasField("fold"):
        assert row_pb2.SummarySource.Name(prepared.fold.summary_source) == f"SUMMARY_SOURCE_{outcome}"
        assert prepared.fold.summary_text == TEXT
    else:
        assert compaction_pb2.FailureKind.Name(prepared.failure) == f"FAILURE_KIND_{outcome}"
        assert prepared.action == compaction_pb2.ACTION_SEND
        assert host.listing().startswith(before)
    assert host.verify().ok
