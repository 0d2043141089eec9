"""§15: what becomes of a summary that was written ahead of need. How it is written: ``integration/test_ahead.py``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from foldline.v1 import compaction_pb2, event_pb2, policy_pb2, row_pb2, session_service_pb2

from tests.decisions.table import marks
from tests.integration.host import Host
from tests.integration.test_ahead import Gate, cross, events, fill, near, ready, server, turn
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client

__all__ = ["server"]

Done = Callable[[Host], object]


def system(key: str, version: int) -> row_pb2.Row:
    made = row_pb2.Row(system=row_pb2.SystemRow(key=key, version=version))
    made.system.content.add().text.text = f"Rule {version}."
    return made


def edit(first: int, last: int) -> Done:
    return lambda host: host.client.session.EditRows(
        session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=first, last_offset=last)
    )


def restore(host: Host) -> None:
    revision = host.get().session.revision
    host.client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=host.id, revision=revision)
    )


def pin(host: Host) -> None:
    host.client.session.PinRows(session_service_pb2.PinRowsRequest(session_id=host.id, offsets=[3], pinned=True))


BETWEEN: list[tuple[str, str, Done, bool]] = [
    # (rule, case, what is done while it is ready, whether the next fold commits it)
    ("A1", "nothing", lambda host: None, True),
    ("A1", "appends", lambda host: host.append(user("more"), assistant("yes")), True),
    ("A1", "a new system row", lambda host: host.rows(system("new", 1)), True),
    ("A1", "a pin, which leaves the fold (V9)", pin, True),
    ("A3", "an edit of what it covers", edit(1, 2), False),
    ("A3", "a restore", restore, False),
    ("A2", "a manual fold with instructions", lambda host: host.compact(instructions="Mind the ports."), False),
    ("A2", "a manual fold without", lambda host: host.compact(), True),
]


@pytest.mark.parametrize(("done", "used"), marks(BETWEEN))
def test_what_becomes_of_a_ready_summary(server: tuple[Client, Gate], done: Done, used: bool) -> None:
    client, gate = server
    host = near(client, "s", min_boundaries_between=0, min_progress=0.0)
    ready(host, gate)
    done(host)
    if not events(host, "COMPACTION_COMPLETED"):
        turn(host, 99)
        if not events(host, "COMPACTION_FAILED") and not events(host, "COMPACTION_COMPLETED"):
            cross(host)
    begun = events(host, "COMPACTION_STARTED")[0].fold_id
    (end,) = [e for e in events(host, "COMPACTION_COMPLETED", "COMPACTION_FAILED") if e.fold_id == begun]
    if used:
        assert end.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED
    else:
        assert end.compaction_failed.failure == compaction_pb2.FAILURE_KIND_READY_DROPPED
    assert host.verify().ok


WRITES = [
    # (rule, case, policy, whether anything is written ahead of need)
    ("A1", "by default for extractive summaries", {}, True),
    ("A1", "not where it is off", {"background": policy_pb2.BackgroundPolicy(enabled=False)}, False),
    ("A4", "not with a curator that did not opt in",
     {"summary": policy_pb2.SummaryPolicy(source=policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR)}, False),
    ("A1", "not while auto_compact is off", {"auto_compact": False}, False),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "writes"), marks(WRITES))
def test_whether_a_summary_is_written_ahead(
    server: tuple[Client, Gate], policy: dict[str, object], writes: bool
) -> None:
    client, gate = server
    host = near(client, "s", **policy)
    for number in range(6):
        turn(host, number)
    assert gate.started.acquire(timeout=5.0 if writes else 0.2) is writes


def test_a1_v8_what_memory_holds_is_what_the_policy_of_the_commit_says(server: tuple[Client, Gate]) -> None:
    """Results are not indexed while the summary is written ahead of need, and are once it commits."""
    client, gate = server
    host = Host(client, "s", output_reserve_tokens=100, memory={"index_tool_results": False})
    host.append(user("read it"), calls("c"), result("c", "E4711 in the relay of harbour seven"), assistant("ok"))
    fill(host)
    ready(host, gate)
    client.session.UpdateSession(
        session_service_pb2.UpdateSessionRequest(session_id="s", policy={"memory": {"index_tool_results": True}})
    )
    folded = cross(host)
    assert folded.fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
    assert host.verify().ok, host.verify().faults
    assert 3 in {h.offset for h in host.search("E4711 relay harbour").hits}
