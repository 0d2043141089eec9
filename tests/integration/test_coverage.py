"""S9 through the whole server: what the summary, its appendix and memory hold of what the folded rows name."""

from __future__ import annotations

import pytest
from foldline.domain.folding import Named
from foldline.domain.memory import EntryKind, EntryRole, MemoryEntry
from foldline.engine.coverage import held
from foldline.v1 import compaction_pb2, event_pb2, memory_service_pb2, policy_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.decisions.script import Script
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client

NOTHING = policy_pb2.RetentionPolicy(turns=0, messages=0)


def folded(client: Client, name: str, **policy: object) -> tuple[Script, compaction_pb2.CompactionRecord]:
    memory = policy.pop("memory", {})
    host = Script(client, name, auto_compact=False, min_progress=0.0, retention=NOTHING, memory=memory, **policy)
    for n in range(12):
        host.append(user(f"See /srv/app/module_{n}.py and TICKET-{7000 + n}.\n  Never touch\n it on day {n}."))
        for call in (f"c{n}", f"d{n}"):
            host.append(calls(call), result(call, f"Error E{4100 + n} in /var/log/queue_{n}.log" + " so" * 40))
        host.append(assistant(f"Module {n} is mended: E{4100 + n} came from `listen_{n}`."))
    return host, host.compact()


def test_s9_all_three_scores_are_in_the_record_and_in_its_event(client: Client, name: str) -> None:
    host, record = folded(client, name, summary={"max_tokens": 300, "coverage_floor": 1.0, "appendix_tokens": 60})
    coverage = record.coverage
    assert coverage.identifiers > 40
    assert 0 < coverage.summary < coverage.with_appendix < 1
    assert coverage.memory == 1.0, "memory holds every row"
    (event,) = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]
    assert event.compaction_completed.record.coverage == coverage


def test_s9_memory_that_leaves_results_out_scores_less(client: Client, name: str) -> None:
    _, record = folded(client, name, memory={"index_tool_results": False})
    assert 0.5 < record.coverage.memory < 1.0


def test_s9_a_dropped_scope_is_not_measured(client: Client, name: str) -> None:
    host = Script(client, name, auto_compact=False, min_progress=0.0, retention=NOTHING)
    host.play("U A U A")
    client.memory.DropScope(memory_service_pb2.DropScopeRequest(session_id=host.id))
    record = host.compact()
    assert record.memory_dropped
    assert not record.coverage.HasField("memory")


def entry(offset: int, text: str, chunk: int = 0) -> MemoryEntry:
    return MemoryEntry(offset, chunk, EntryKind.TEXT, EntryRole.USER, text)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.text("ab ", min_size=1, max_size=4)), max_size=8),
    st.lists(st.tuples(st.integers(1, 6), st.text("ab \n", max_size=12)), max_size=8),
)
def test_s9_the_share_is_that_of_the_identifiers_that_stand_anywhere(
    wanted: list[tuple[int, str]], rows: list[tuple[int, str]]
) -> None:
    entries = [entry(offset, text, chunk) for chunk, (offset, text) in enumerate(rows)]
    found = held([Named(*w) for w in wanted], entries)
    if not wanted:
        assert found is None
        return
    texts = {offset: "\n".join(t for o, t in rows if o == offset) for offset, _ in rows}
    whole = "\n".join(texts.values())
    there = sum(text in whole or text in " ".join(texts.get(offset, "").split()) for offset, text in wanted)
    assert found == pytest.approx(there / len(wanted))
