"""§13: which events a session writes, in what order, and that they can be read from any place on."""

from __future__ import annotations

from typing import Any

import pytest
from foldline.v1 import compaction_pb2, event_pb2, event_service_pb2, policy_pb2, session_service_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.requests import calls, result, user
from tests.support.server import Client, refused

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}
CURATOR = {"source": policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR}


def kinds(host: Script) -> list[str]:
    return [event_pb2.EventKind.Name(e.kind).removeprefix("EVENT_KIND_") for e in host.events()]


WRITTEN = [
    # (rule, case, policy, script, events)
    ("§13", "an append is none", PLAIN, "U A U", []),
    ("§13", "a boundary is none", PLAIN, ">r1:U A@r1 >r1 =r1", []),
    ("§13", "a fold is a start and one end", PLAIN, "U A #", ["COMPACTION_STARTED", "COMPACTION_COMPLETED"]),
    ("§13", "each fold has its own", PLAIN, "U A # U A #", ["COMPACTION_STARTED", "COMPACTION_COMPLETED"] * 2),
    ("§13", "a failed fold is a start and one end", PLAIN | {"summary": CURATOR}, "U A !#",
     ["COMPACTION_STARTED", "COMPACTION_FAILED"]),
    ("§13", "nothing to fold is a skip", PLAIN, "S !#", ["COMPACTION_SKIPPED"]),
    ("§13", "a refusal records that it did not fit", PLAIN, ">r1:U *r1", ["DID_NOT_FIT_RECORDED"]),
    ("§13", "a superseded run is one", PLAIN, ">r1:U ^r2:U", ["RUN_SUPERSEDED"]),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "script", "events"), marks(WRITTEN))
def test_what_is_written(client: Client, name: str, policy: dict[str, Any], script: str, events: list[str]) -> None:
    host = Script(client, name, **policy)
    for word in script.split():
        if word == "!#":
            assert refused(host.compact).reason in ("CURATOR_UNAVAILABLE", "NOTHING_TO_FOLD")
        else:
            host.play(word)
    assert kinds(host) == events
    assert [e.sequence for e in host.events()] == list(range(1, len(events) + 1))


def test_13_a_completed_fold_says_all_of_it(client: Client, name: str) -> None:
    """§13, S1, XE16: trigger, signals, tokens and bytes before and after, source, coverage, offsets, revisions."""
    host = Script(client, name, **PLAIN).play("U A U A #")
    (event,) = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]
    record = event.compaction_completed.record
    assert (event.trigger, list(event.signals)) == (record.trigger, list(record.signals))
    assert record.trigger == compaction_pb2.TRIGGER_MANUAL
    assert record.tokens_after < record.tokens_before
    assert record.bytes_after < record.bytes_before
    assert record.rows_summarized == 4
    assert (record.revision_before, record.revision_after) == (4, 5)
    assert record.summary_text
    assert [(s.first, s.last) for s in record.discarded] == [(1, 4)]
    assert record.coverage.with_appendix >= record.coverage.summary
    assert event.fold_id == record.fold_id
    assert event.revision == record.revision_after


def test_13_a_reader_resumes_after_any_event(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("U A # U A # >r1:U *r1")
    every = [e.sequence for e in host.events()]
    for after in (0, *every):
        request = event_service_pb2.ListEventsRequest(session_id=name, after=after, page_size=500)
        assert [e.sequence for e in client.event.ListEvents(request).events] == [s for s in every if s > after]


def test_13_a_bound_and_a_warning_are_events_too(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    first = host.prepare("r1", user("read"))
    host.prepare("r1", result("c", "line\n" * 20_000), previous_answer=host.answer(first, calls("c")))
    assert "TOOL_RESULTS_BOUNDED_FOR_REQUEST" in kinds(host)
    big = Script(
        client, f"{name}-big", auto_compact_threshold=700, retention={"turns": 0, "messages": 0}, min_progress=0.0
    )
    big.append({"role": "system", "content": "Mind the rules. " * 200})
    big.play("U@r0 A@r0 U@r0 A@r0 >r1:U")
    assert kinds(big)[-1] == "WARNING", "the fold left the history over the threshold (C3)"


def test_13_events_go_with_their_session(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN).play("U A #")
    client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=name))
    assert refused(host.events).reason == "SESSION_NOT_FOUND"
