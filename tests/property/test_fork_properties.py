"""Any history, forked at any point: the fork is what replaying the history up to there gives (X3)."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.v1 import compaction_pb2, session_service_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.host import Host
from tests.integration.test_forks import Fork, edit, history, restore
from tests.integration.test_readings import system
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refusal_of, running_server

WORDS = ("walnut", "parrot", "beetle", "lantern")
CALLS = ("a", "b", "c")
Step = Callable[[Host], None]
_names = itertools.count()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("server")
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(folder, {"catalog": str(catalog), "store.synchronous": "NORMAL"}) as client:
        yield client


def new_host(client: Client) -> Host:
    host = Host(client, f"history-{next(_names)}", auto_compact=False)
    request = session_service_pb2.UpdateSessionRequest(session_id=host.id)
    request.policy.retention.turns = request.policy.retention.messages = 1
    client.session.UpdateSession(request)
    return host


def says(seed: int) -> str:
    return f"{WORDS[seed % 4]} {seed} " + "is what was said of it then. " * 12


def talk(seed: int) -> Step:
    return lambda host: void(host.append(user(says(seed)), assistant(says(seed + 1))))


def ask(seed: int) -> Step:
    return lambda host: void(host.append(user("look"), calls(*random.Random(seed).sample(CALLS, 1 + seed % 2))))


def reply(seed: int) -> Step:
    return lambda host: void(host.append(result(CALLS[seed % 3], says(seed))))


def run(seed: int) -> Step:
    """A run of one call, which may leave a call behind."""

    def step(host: Host) -> None:
        prepared = host.prepare(f"r{seed}", user(says(seed)))
        said = calls(CALLS[seed % 3]) if seed % 4 == 0 else assistant(says(seed + 2))
        host.record(f"r{seed}", host.answer(prepared, said, finish=compaction_pb2.RUN_OUTCOME_COMPLETED))

    return step


def rules(seed: int) -> Step:
    return lambda host: void(host.rows(system(says(seed), f"k{seed % 2}", 1 + seed % 9)))


def fold(_: int) -> Step:
    return lambda host: void(host.compact())


def cut(seed: int) -> Step:
    def step(host: Host) -> None:
        offsets = host.offsets()
        first = seed % max(1, len(offsets))
        edit(host, offsets[first], offsets[min(len(offsets) - 1, first + seed % 2)])

    return step


def back(seed: int) -> Step:
    return lambda host: restore(host, seed % (1 + host.get().session.revision))


def void(_: Any) -> None:
    return None


STEPS = st.lists(
    st.sampled_from([talk, talk, ask, reply, run, rules, fold, fold, cut, back]).flatmap(
        lambda kind: st.builds(kind, st.integers(0, 999))
    ),
    min_size=2,
    max_size=14,
)


def played(host: Host, steps: list[Step]) -> list[int]:
    """Plays steps; what is refused changes nothing. Returns the revision after each."""
    revisions = []
    for step in steps:
        with contextlib.suppress(grpc.RpcError, IndexError):
            step(host)
        revisions.append(host.get().session.revision)
    return revisions


def told(host: Host) -> dict[str, Any]:
    """All that tells a session from another, but ids, which are given at random, and what summaries' ids weigh."""
    totals = host.get().totals
    return {
        "active": [row_of(r) for r in host.active()],
        "archive": [row_of(r) for r in host.archive()],
        "history": [(r.revision, r.parent_revision, r.kind, r.rows_active) for r in history(host)[:-1]],
        "memory": {w: [(h.offset, h.text, round(h.score, 6)) for h in host.search(w, limit=20).hits] for w in WORDS},
        "totals": (totals.rows_total, totals.folds, totals.memory_entries),
        "faults": list(host.verify().faults),
        "rendered": host.rendered(),
    }


def row_of(row: Any) -> Any:
    copy = type(row)()
    copy.CopyFrom(row)
    if copy.HasField("compaction_summary"):
        copy.compaction_summary.fold_id = copy.compaction_summary.digest = ""
    return str(copy)


def answers(host: Host) -> list[Any]:
    """What becomes of a result of each call: on time, late, or why it is refused."""
    found = []
    for call_id in CALLS:
        try:
            response = host.append(result(call_id, "at last"))
            found.append(sorted(w.code for w in response.warnings))
        except grpc.RpcError as error:
            refusal = refusal_of(error)
            found.append((refusal.reason, refusal.metadata.get("removed_by")))
    return found


@given(steps=STEPS, later=STEPS, at=st.integers(0, 99), last=st.booleans())
@settings(max_examples=30, deadline=None)
def test_x3_a_fork_is_what_replaying_its_history_gives(
    client: Client, steps: list[Step], later: list[Step], at: int, last: bool
) -> None:
    source = new_host(client)
    revisions = played(source, steps)
    count = len(steps) if last else 1 + at % len(steps)
    revision = revisions[count - 1]
    before = told(source)
    fork = Fork(source, f"{source.id}-f", revision=revision)
    replay = new_host(client)
    played(replay, [s for s, r in zip(steps, revisions, strict=True) if r <= revision])
    assert told(fork) == told(replay)
    assert told(source) == before
    assert answers(fork) == answers(replay)
    assert told(fork) == told(replay)
    # Both sides go on, each for itself.
    played(fork, later)
    played(replay, later)
    assert told(fork) == told(replay)
    assert told(source) == before
    child = Fork(fork, f"{source.id}-c")
    held = told(child)
    client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=fork.id))
    assert told(source) == before
    assert told(child) == held
    assert held["faults"] == []
