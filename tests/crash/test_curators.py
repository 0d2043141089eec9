"""A sidecar that is killed while hosts write: nothing of it is left but an end in the log (S6, V10, §13)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from foldline.domain.curators import Lease
from foldline.store import SqliteStore
from foldline.v1 import row_pb2

from tests.integration.host import Host
from tests.integration.test_ahead import ended_once, events, near, settings
from tests.integration.test_curators import TEXT, event_name, host_on, sourced, untouched
from tests.support.curators import Curator
from tests.support.server import Client, refused, served_process, until


@pytest.mark.parametrize("answered", [False, True], ids=["at work", "just as it answers"])
def test_v10_a_kill_while_curators_write(tmp_path: Path, answered: bool) -> None:
    flags = ("--set", f"catalog={settings(tmp_path)['catalog']}")
    with served_process(tmp_path, *flags) as process, Client(process.wait_ready()) as client:
        hosts = [near(client, f"s{n}", summary=sourced()) for n in range(3)]
        with Curator(client, max_tasks=3, name="night shift") as curator, ThreadPoolExecutor(3) as pool:
            folds = [pool.submit(refused, host.compact) for host in hosts]
            tasks = [curator.task() for _ in hosts]
            if answered:
                for task in tasks:
                    curator.answer(task, TEXT)
                assert until(lambda: any(events(host, "COMPACTION_COMPLETED") for host in hosts))
            process.close()
            assert until(lambda: all(fold.done() for fold in folds), 20)
    leases = left(tmp_path)
    assert answered or {(e.task_id, e.curator, e.attempt) for e in leases} == {(t.id, "night shift", 1) for t in tasks}
    with served_process(tmp_path, *flags) as process, Client(process.wait_ready()) as client:
        folded = check(client, hosts)
        assert answered or not folded
        with Curator(client, name="night shift", max_tasks=3) as curator:
            curator.answer(tasks[0], f"{TEXT} From before.")
            assert curator.next("cancel").task_id == tasks[0].id
            curator.serving(lambda task: f"{TEXT} After.")
            for host in hosts:
                if host.id not in folded:
                    assert host.compact().summary_text == f"{TEXT} After."
                assert host.verify().ok
        process.close()
    assert left(tmp_path) == []


def left(folder: Path) -> list[Lease]:
    """Leases in the store of a server that is not running."""
    store = SqliteStore(folder / "data" / "foldline.db")
    try:
        return list(store.leases())
    finally:
        store.close()


def check(client: Client, hosts: list[Host]) -> set[str]:
    """Every fold has its end; which of the sessions have folded."""
    folded = set()
    for host in hosts:
        again = host_on(client, host)
        kinds = [event_name(e) for e in events(again, "COMPACTION_FAILED")]
        if events(again, "COMPACTION_COMPLETED"):
            folded.add(again.id)
            assert kinds == []
            (summary,) = [r.compaction_summary for r in again.active() if r.HasField("compaction_summary")]
            assert summary.source == row_pb2.SUMMARY_SOURCE_CURATOR
            assert ended_once(again)
        else:
            assert kinds == ["INTERRUPTED"]
            assert untouched(again)
    return folded
