"""SIGKILL while checkpoints are saved: each is there whole or not at all, and a repeat makes it once (V10, W2)."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import grpc
from foldline.v1 import checkpoint_pb2, compaction_service_pb2, event_pb2, policy_pb2, row_pb2

from tests.integration.test_checkpoints import LONG, Agent
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, served_process

SEED = 20261201
KILLS = 6
TURNS = 8


def worked(agent: Agent, part: int) -> Agent:
    """Turns of two calls each."""
    for n in range(TURNS):
        batch = (f"a{part}.{n}", f"b{part}.{n}")
        agent.append(user(f"Question {n}"), calls(*batch), *(result(i, f"{i} {LONG}") for i in batch), assistant("ok"))
    return agent


def again(client: Client) -> Agent:
    agent = Agent.__new__(Agent)
    agent.client, agent.id, agent.list, agent.revision = client, "s", [], 0
    return agent


def request(number: int) -> compaction_service_pb2.SaveCheckpointRequest:
    """Trims, and a fold in their midst."""
    made = compaction_service_pb2.SaveCheckpointRequest(
        session_id="s", description=f"part {number}", request_id=f"q{number}"
    )
    if number % 4 != 3:
        made.trim_count = TURNS
    return made


def saved(agent: Agent) -> list[str]:
    return [c.description for c in agent.checkpoints().checkpoints][::-1]


def whole(agent: Agent, number: int) -> None:
    """Every checkpoint with what it did, none of it twice."""
    agent.sound()
    done = agent.checkpoints().checkpoints
    assert len(done) in (number, number + 1)
    told = [e.checkpoint_saved.checkpoint for e in agent.events() if e.kind == event_pb2.EVENT_KIND_CHECKPOINT_SAVED]
    assert told == list(done)[::-1]
    gone = [o for c in done for r in c.discarded for o in range(r.first, r.last + 1)]
    assert len(gone) == len(set(gone))
    active = set(agent.offsets())
    assert active.isdisjoint(gone)
    assert all(r.offset in active or r.offset in gone for r in agent.archive())
    made = sum(calls_in(r) for r in agent.archive() if not r.assistant.derived_from)
    assert len(agent.call_ids()) == made - sum(c.trimmed_calls for c in done) - folded(agent, done)


def folded(agent: Agent, done: Iterable[checkpoint_pb2.Checkpoint]) -> int:
    """Calls that folds took."""
    rows = {r.offset: r for r in agent.archive()}
    ranges = [r for c in done if c.fold_id for r in c.discarded]
    return sum(calls_in(rows[o]) for r in ranges for o in range(r.first, r.last + 1))


def calls_in(row: row_pb2.Row) -> int:
    return sum(b.HasField("tool_call") for b in row.assistant.content)


def test_a_checkpoint_that_was_cut_short_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    cut = answered = 0
    for number in range(KILLS + 1):
        with served_process(tmp_path) as process, Client(process.wait_ready()) as client:
            if number == 0:
                policy = policy_pb2.RetentionPolicy(turns=2, messages=2)
                agent = Agent(client, "s", auto_compact=False, retention=policy)
            else:
                agent = again(client)
                whole(agent, number - 1)
                before = len(saved(agent))
                first = client.compaction.SaveCheckpoint(request(number - 1))
                assert client.compaction.SaveCheckpoint(request(number - 1)) == first
                assert saved(agent) == [f"part {n}" for n in range(number)]
                cut += before < number
                answered += before == number
                whole(agent, number)
            if number < KILLS:
                worked(agent, number)
                call = client.compaction.SaveCheckpoint.future(request(number))
                time.sleep(moments.uniform(0.05, 0.3) if number % 2 else moments.uniform(0, 0.01))
                process.signal(signal.SIGKILL)
                process.wait()
                try:
                    call.result()
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert cut, "no checkpoint was lost; change the moments"
    assert answered, "no checkpoint was written; change the moments"
