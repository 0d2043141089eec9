"""What edits, restores and policy changes leave of folded rows: their calls (R3) and their memory (V8, V10)."""

from __future__ import annotations

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, policy_pb2, session_service_pb2

from tests.integration.host import Host
from tests.integration.test_boundaries import LONG
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused


def folded_call(client: Client, name: str) -> Host:
    """A session whose call ``a`` is folded without a result."""
    host = Host(client, name, auto_compact=False)
    host.append(user("look"), calls("a", "b"), result("b", LONG), assistant("waiting"))
    for n in range(6):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    host.compact()
    return host


def remove(host: Host, offset: int) -> None:
    host.client.session.EditRows(
        session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=offset, last_offset=offset)
    )


def restore(host: Host, revision: int) -> None:
    host.client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=host.id, revision=revision)
    )


def test_r3_the_late_result_of_a_folded_call_may_come_again_once_it_was_edited_away(client: Client, name: str) -> None:
    host = folded_call(client, name)
    first = host.append(result("a", "one")).first_offset
    remove(host, first)
    host.append(result("a", "two"))
    assert refused(host.append, result("a", "three")).reason == "DUPLICATE_TOOL_RESULT"


@pytest.mark.parametrize("before_fold", [True, False])
def test_r3_a_restore_knows_which_folded_calls_have_their_result(client: Client, name: str, before_fold: bool) -> None:
    host = folded_call(client, name)
    unanswered = host.get().session.revision
    answered = host.append(result("a", "one")).revision
    if before_fold:
        restore(host, unanswered - 1)
    else:
        remove(host, host.offsets()[-1])
    restore(host, answered)
    assert refused(host.append, result("a", "again")).reason == "DUPLICATE_TOOL_RESULT"
    restore(host, unanswered)
    host.append(result("a", "two"))
    assert refused(host.append, result("a", "three")).reason == "DUPLICATE_TOOL_RESULT"
    assert host.verify().ok


def test_r3_a_result_that_folded_with_its_call_counts_in_its_lineage(client: Client, name: str) -> None:
    host = folded_call(client, name)
    unanswered = host.get().session.revision
    host.append(result("a", "one"))
    for n in range(6):
        host.append(user(f"more {n} {LONG}"), assistant(f"{n} {LONG}"))
    first = host.compact().revision_after
    restore(host, unanswered)
    host.append(result("a", "two"))
    restore(host, first)
    assert refused(host.append, result("a", "three")).reason == "DUPLICATE_TOOL_RESULT"


def test_r3_a_folded_call_that_a_restore_leaves_behind_is_removed_by_it(client: Client, name: str) -> None:
    host = folded_call(client, name)
    folded = host.get().session.revision
    restore(host, 0)
    refusal = refused(host.append, result("a", "one"))
    assert (refusal.reason, refusal.metadata["removed_by"]) == ("UNKNOWN_TOOL_CALL", str(folded + 1))
    restore(host, folded)
    host.append(result("a", "one"))
    assert host.verify().ok


def test_r3_a_restore_brings_back_a_folded_call_with_the_result_it_has(client: Client, name: str) -> None:
    host = folded_call(client, name)
    host.append(result("a", "one"))
    for n in range(6):
        host.append(user(f"more {n} {LONG}"), assistant(f"{n} {LONG}"))
    folded = host.compact().revision_after
    restore(host, 0)
    restore(host, folded)
    refusal = refused(host.append, result("a", "two"))
    assert refusal.reason == "DUPLICATE_TOOL_RESULT"
    assert refusal.metadata["result_offset"].isdigit()
    assert host.verify().ok


def test_v8_what_memory_must_hold_is_judged_by_the_policy_of_the_fold(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False, memory=policy_pb2.MemoryPolicy(index_tool_results=False))
    host.append(user("look"), calls("a"), result("a", LONG), assistant("done"))
    for n in range(6):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    host.compact()
    update = session_service_pb2.UpdateSessionRequest(session_id=name)
    update.policy.memory.index_tool_results = True
    client.session.UpdateSession(update)
    assert host.verify().ok


@pytest.mark.parametrize("back", ["restored", "edited", "there and back", "forked"])
def test_r3_a_late_result_that_folded_before_its_pinned_call_counts_after_a_restore(
    client: Client, name: str, back: str
) -> None:
    host = Host(client, name, auto_compact=False)
    host.append(user("look"), calls("a"))
    host.prepare("r1", user("more"))
    host.append(user("go on"), assistant("on"), result("a", "late"), run_id="r1")
    host.prepare("r1")
    for n in range(6):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    call = 2
    host.client.session.PinRows(session_service_pb2.PinRowsRequest(session_id=name, offsets=[call], pinned=True))
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=name, run_id="r1", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
        )
    )
    before, folded = host.get().session.revision, host.compact().revision_after
    assert call in host.offsets(), "the call stays"
    late = next(r.offset for r in host.archive() if r.HasField("tool_result"))
    assert late not in host.offsets(), "its result has folded"
    host.append(user("something new"))
    if back == "there and back":
        restore(host, before)
    if back == "forked":
        fork = session_service_pb2.ForkSessionRequest(session_id=name, fork_session_id=f"{name}-fork", revision=folded)
        host = Host.of(client, client.session.ForkSession(fork).session.session_id)
    elif back == "edited":
        remove(host, host.offsets()[-1])
    else:
        restore(host, folded)
    assert refused(host.append, result("a", "again")).reason == "DUPLICATE_TOOL_RESULT"
    assert host.verify().ok
