"""Checkpoints that meet other callers and restarts, and a store that somebody changed (L2, V9, V10, A3)."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, session_service_pb2

from tests.integration.test_checkpoints import LONG, Agent, history
from tests.integration.test_rewrites import Slow, compacted
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, config_of, refused, running_server, until


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Client, Slow]]:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    source = Slow()
    with running_server(tmp_path, {"catalog": str(catalog)}, summarizer=source) as client:
        yield client, source
        source.go_on.set()


def arrived(agent: Agent) -> None:
    """Lets calls that wait for a fold, and show nothing of it, come to where they wait."""
    for _ in range(50):
        agent.get()


def test_l2_a_checkpoint_joins_a_running_fold_and_names_it(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    agent = history(client, "s", 8)
    with ThreadPoolExecutor(2) as pool:
        fold = pool.submit(compacted, agent)
        assert source.started.wait(10)
        saving = pool.submit(agent.save, "meanwhile", request_id="k")
        arrived(agent)
        source.go_on.set()
        record, saved = fold.result()[-1].record, saving.result()
    assert saved.checkpoint.fold_id == record.fold_id
    assert list(saved.checkpoint.discarded) == list(record.discarded)
    assert list(agent.checkpoints().checkpoints) == [saved.checkpoint]
    assert agent.save("meanwhile", request_id="k") == saved
    assert [e.kind for e in agent.events()].count(event_pb2.EVENT_KIND_COMPACTION_COMPLETED) == 1
    agent.sound()


def test_l2_a_trim_waits_for_a_running_fold_until_its_deadline(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    agent = history(client, "s", 8)
    request = compaction_service_pb2.SaveCheckpointRequest(session_id="s", description="d", trim_count=1)
    with ThreadPoolExecutor(2) as pool:
        fold = pool.submit(compacted, agent)
        assert source.started.wait(10)
        refusal = refused(client.compaction.SaveCheckpoint, request, timeout=1)
        assert refusal.reason == "FOLD_IN_PROGRESS"
        waiting = pool.submit(agent.trim, 1)
        assert not waiting.done()
        source.go_on.set()
        record, trimmed = fold.result()[-1].record, waiting.result()
    assert trimmed.revision_before == record.revision_after
    agent.sound()


@pytest.mark.parametrize("count", [None, 1])
def test_w2_a_call_that_comes_twice_while_a_fold_runs_saves_once(slow: tuple[Client, Slow], count: int | None) -> None:
    client, source = slow
    agent = history(client, "s", 8)
    with ThreadPoolExecutor(3) as pool:
        fold = pool.submit(compacted, agent)
        assert source.started.wait(10)
        saving = [pool.submit(agent.save, "twice", request_id="k", trim_count=count) for _ in range(2)]
        arrived(agent)
        source.go_on.set()
        fold.result()
        first, second = (s.result() for s in saving)
    assert first == second
    assert list(agent.checkpoints().checkpoints) == [first.checkpoint]
    agent.sound()


def test_l2_an_edit_that_comes_twice_while_a_fold_runs_is_made_once(slow: tuple[Client, Slow]) -> None:
    """W2."""
    client, source = slow
    agent = history(client, "s", 8)
    request = session_service_pb2.RestoreRevisionRequest(session_id="s", revision=2, request_id="k")
    with ThreadPoolExecutor(3) as pool:
        fold = pool.submit(compacted, agent)
        assert source.started.wait(10)
        twice = [pool.submit(client.session.RestoreRevision, request) for _ in range(2)]
        arrived(agent)
        source.go_on.set()
        revision = fold.result()[-1].record.revision_after
        first, second = (t.result() for t in twice)
    assert first == second
    assert agent.get().session.revision == revision + 1


def test_v9_what_is_appended_while_a_checkpoint_folds_follows_it(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    agent = history(client, "s", 8)
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(agent.save)
        assert source.started.wait(10)
        last = agent.append(user("one more")).last_offset
        source.go_on.set()
        saved = saving.result()
    assert agent.offsets()[-1] == last
    assert saved.checkpoint.revision_after == agent.get().session.revision
    agent.sound()


def test_a3_a_trim_drops_what_was_written_ahead_of_need(client: Client, name: str) -> None:
    agent = Agent(client, name, min_boundaries_between=0)
    agent.append(
        *(m for n in range(3) for m in (user(f"{n} {LONG}"), calls(f"c{n}"), result(f"c{n}", LONG), assistant("ok")))
    )
    run = 0
    while not any(e.trigger == compaction_pb2.TRIGGER_BACKGROUND for e in agent.events()):
        run += 1
        assert run < 40, "nothing was written ahead"
        agent.turn(f"r{run}", f"{run} {LONG}", "ok")
    started = next(e for e in agent.events() if e.trigger == compaction_pb2.TRIGGER_BACKGROUND)
    agent.trim(1)
    assert until(
        lambda: any(
            e.fold_id == started.fold_id and e.kind == event_pb2.EVENT_KIND_COMPACTION_FAILED for e in agent.events()
        )
    )
    agent.sound()


OTHER = '"digest":"' + "0" * 16
TRIM = "WHERE kind = 'TRIM'"
DAMAGE = [
    # (case, table, column, (pattern, what stands there instead), where, rule that does not hold)
    ("the derived row says more", "archive_row", "body", ("I look", "I see!"), "WHERE offset = 5", "V2"),
    ("the record takes another call", "rewrite", "record", ('"h0"', '"hx"'), TRIM, "V2"),
    ("the record derives another row", "rewrite", "record", (r"\[\[5,2\]\]", "[[5,1]]"), TRIM, "V1"),
    ("the record has another digest", "rewrite", "record", ('"digest":"[0-9a-f]{16}', OTHER), TRIM, "V7"),
    ("the record has a digest that is none", "rewrite", "record", ('"digest":"', '"digest":"00'), TRIM, "V10"),
    ("the list has a result again", "rewrite", "active", (r"\[5,5\],\[4,4\]", "[5,5],[3,4]"), TRIM, "V2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "column", "change", "where", "rule"), [pytest.param(*d[1:], id=d[0].replace(" ", "-")) for d in DAMAGE]
)
def test_v10_a_trim_that_was_tampered_with_is_found(
    tmp_path: Path, table: str, column: str, change: tuple[str, str], where: str, rule: str
) -> None:
    with running_server(tmp_path) as client:
        agent = history(client, "s", 1)
        agent.trim(1)
        agent.sound()
        assert agent.offsets() == [1, 5, 4]
    with sqlite3.connect(config_of(tmp_path).data / "foldline.db") as db:
        before = db.execute(f"SELECT CAST({column} AS TEXT) FROM {table} {where}").fetchone()[0]
        after = re.sub(*change, before)
        assert after != before
        db.execute(f"UPDATE {table} SET {column} = CAST(? AS BLOB) {where}", (after,))
    db.close()
    with running_server(tmp_path) as client:
        found = again(client).verify()
        assert not found.ok
        assert rule in {f.rule for f in found.faults}, found.faults


def test_v8_what_memory_lost_of_a_trim_is_found(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        history(client, "s", 1).trim(1)
    with sqlite3.connect(config_of(tmp_path).data / "foldline.db") as db:
        assert db.execute("UPDATE memory_entry SET visible = 0 WHERE offset = 3").rowcount
    db.close()
    with running_server(tmp_path) as client:
        assert "V8" in {f.rule for f in again(client).verify().faults}


def again(client: Client) -> Agent:
    agent = Agent.__new__(Agent)
    agent.client, agent.id = client, "s"
    return agent


def test_k3_a_checkpoint_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        agent = history(client, "s", 3)
        saved = agent.trim(2, description="read two files")
    with running_server(tmp_path) as client:
        agent = again(client)
        assert list(agent.checkpoints().checkpoints) == [saved]
        assert agent.available() == 1
        agent.trim(1)
        agent.sound()
