"""A session's memory as its administrator sees it, over gRPC: entries one by one, pages of them, the drop (M7)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from foldline.v1 import compaction_pb2, event_pb2, memory_pb2, memory_service_pb2, session_service_pb2, warning_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.host import Host
from tests.integration.test_ahead import Gate, cross, near, ready, turn
from tests.integration.test_ahead import settings as ahead_settings
from tests.integration.test_folds import grown
from tests.support.requests import assistant, user
from tests.support.server import Client, refused, running_server


def entries(
    host: Host, limit: int | None = None, **where: object
) -> Iterator[memory_service_pb2.EnumerateScopeResponse]:
    """Pages of the scope to its end."""
    request = memory_service_pb2.EnumerateScopeRequest(
        session_id=host.id, limit=limit, filter=memory_pb2.MemoryFilter(**where)
    )
    while True:
        page = host.client.memory.EnumerateScope(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def places(host: Host, limit: int | None = None, **where: object) -> list[tuple[int, int]]:
    return [(e.offset, e.chunk) for page in entries(host, limit, **where) for e in page.entries]


def drop(host: Host, request_id: str = "") -> int:
    request = memory_service_pb2.DropScopeRequest(session_id=host.id, request_id=request_id)
    return int(host.client.memory.DropScope(request).entries)


def get(host: Host, offset: int, chunk: int = 0) -> memory_service_pb2.GetMemoryResponse:
    request = memory_service_pb2.GetMemoryRequest(session_id=host.id, offset=offset, chunk=chunk)
    return host.client.memory.GetMemory(request)


def test_m7_a_scope_pages_through_every_entry_once_and_in_order(client: Client, name: str) -> None:
    host = grown(client, name)
    assert places(host) == []
    host.compact()
    whole = places(host)
    assert whole == sorted(set(whole))
    assert len(whole) == host.get().totals.memory_entries
    for limit in (1, 3, len(whole), 1000):
        assert places(host, limit) == whole
    sizes = [len(page.entries) for page in entries(host, 3)]
    assert sizes[:-1] == [3] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= 3


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_m7_a_limit_out_of_range_is_an_error_that_names_the_range(client: Client, name: str, limit: int) -> None:
    host = Host(client, name)
    refusal = refused(lambda: list(entries(host, limit)))
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "MEMORY_LIMIT_EXCEEDED")
    assert refusal.metadata == {"limit": str(limit), "minimum": "1", "maximum": "1000"}


def test_m7_a_token_belongs_to_its_filter_and_not_to_its_limit(client: Client, name: str) -> None:
    host = grown(client, name)
    host.compact()
    request = memory_service_pb2.EnumerateScopeRequest(session_id=name, limit=2)
    first = client.memory.EnumerateScope(request)
    request.page_token, request.limit = first.next_page_token, 3
    assert len(client.memory.EnumerateScope(request).entries) == 3
    request.filter.first_offset = 2
    refusal = refused(client.memory.EnumerateScope, request)
    assert refusal.reason == "PAGE_TOKEN_MISMATCH"
    assert refusal.message.endswith("only limit may change")
    request.ClearField("filter")
    for forged in ("x", "WzEsIiIsWzEsIngiXSwwXQ"):
        request.page_token = forged
        assert refused(client.memory.EnumerateScope, request).reason == "PAGE_TOKEN_MISMATCH"


@settings(max_examples=20)
@given(
    limit=st.integers(1, 40),
    roles=st.lists(st.sampled_from([1, 2, 3]), unique=True, max_size=3),
    kinds=st.lists(st.sampled_from([1, 3, 4]), unique=True, max_size=3),
    first=st.none() | st.integers(0, 40),
    last=st.none() | st.integers(0, 40),
)
def test_m7_filters_come_before_pages(scope: Host, limit: int, **where: object) -> None:
    """Whatever is asked, the pages together are the entries that pass, and none but the last is short."""
    bounds = {"first_offset": where["first"], "last_offset": where["last"]}
    asked = {"roles": where["roles"], "kinds": where["kinds"], **{k: v for k, v in bounds.items() if v is not None}}
    passing = [
        (e.offset, e.chunk)
        for page in entries(scope)
        for e in page.entries
        if (not where["roles"] or e.role in where["roles"])
        and (not where["kinds"] or e.kind in where["kinds"])
        and (where["first"] is None or e.offset >= where["first"])
        and (where["last"] is None or e.offset <= where["last"])
    ]
    pages = list(entries(scope, limit, **asked))
    assert [(e.offset, e.chunk) for page in pages for e in page.entries] == passing
    assert all(len(page.entries) == limit for page in pages[:-1])


@pytest.fixture(scope="module")
def scope(client: Client) -> Host:
    host = grown(client, "scope-of-pages", 10)
    host.compact()
    return host


def test_m7_pages_go_on_where_they_stopped_while_folds_commit(client: Client, name: str) -> None:
    """What is published between two pages neither doubles nor hides what was there."""
    host = grown(client, name, 6)
    host.compact()
    before = places(host)
    pages = entries(host, 2)
    seen = [(e.offset, e.chunk) for e in next(pages).entries]
    host.append(*(m for n in range(6) for m in (user(f"And worker-{n}b? " * 30), assistant(f"The same {n}."))))
    host.compact()
    seen += [(e.offset, e.chunk) for page in pages for e in page.entries]
    assert seen == sorted(set(seen))
    assert set(before) <= set(seen)


def test_m7_a_page_ends_before_a_message_would_be_too_large(tmp_path: Path) -> None:
    """W5: with its limit out of reach."""
    with running_server(tmp_path, {"server.max_message_bytes": 65_536}) as client:
        host = Host(client, "s", auto_compact=False)
        for n in range(60):
            host.append(user(f"{n} " + "long words of a question " * 100), assistant("yes"))
        host.compact()
        pages = list(entries(host, 1000))
        assert len(pages) > 1
        found = [(e.offset, e.chunk) for page in pages for e in page.entries]
        assert len(found) == len(set(found)) == host.get().totals.memory_entries


def test_m6_one_entry_is_read_by_its_place(client: Client, name: str) -> None:
    host = grown(client, name)
    assert not get(host, 1).HasField("entry")
    host.compact()
    found = {(e.offset, e.chunk): e for page in entries(host) for e in page.entries}
    for (offset, chunk), entry in found.items():
        assert get(host, offset, chunk).entry == entry
    (offset, chunk), entry = next(iter(found.items()))
    assert not get(host, offset, chunk + 1).HasField("entry")
    request = session_service_pb2.ReadRowRequest(session_id=name, offset=offset, range=entry.byte_range)
    assert client.session.ReadRow(request).text == entry.text
    assert not get(host, host.offsets()[-1]).HasField("entry"), "its row is active"


def test_m7_a_dropped_scope_is_empty_for_good_and_the_archive_stays(client: Client, name: str) -> None:
    host = grown(client, name)
    host.compact()
    rows, held = host.archive(), host.get().totals.memory_entries
    assert drop(host) == held > 0
    assert drop(host) == 0
    found = host.search("E4001")
    assert (list(found.hits), found.scope_dropped) == ([], True)
    assert [(len(p.entries), p.scope_dropped) for p in entries(host)] == [(0, True)]
    assert get(host, 1).scope_dropped
    assert host.get().session.memory_dropped
    assert host.archive() == rows
    assert host.verify().ok, host.verify().faults


def test_m7_later_folds_commit_without_entries_and_say_so(client: Client, name: str) -> None:
    host = Host(client, name, output_reserve_tokens=100)
    drop(host)
    prepared = cross(host)
    assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
    assert (prepared.fold.memory_dropped, prepared.fold.memory_entries) == (True, 0)
    assert warning_pb2.WARNING_CODE_MEMORY_DROPPED in [w.code for w in prepared.warnings]
    assert host.search("E4001").scope_dropped
    assert host.verify().ok


def test_w2_a_repeated_drop_gives_the_first_answer(client: Client, name: str) -> None:
    host = grown(client, name)
    host.compact()
    first = drop(host, "once")
    assert first > 0
    assert [drop(host, "once"), drop(host)] == [first, 0]
    other = memory_service_pb2.EnumerateScopeRequest(session_id=name)
    assert client.memory.EnumerateScope(other).scope_dropped
    assert refused(host.append, user("x"), request_id="once").reason == "REQUEST_ID_REUSED"


def test_m7_a_drop_survives_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        host = grown(client, "s")
        host.compact()
        dropped = drop(host, "r")
    with running_server(tmp_path) as client:
        host.client = client
        assert host.search("E4001").scope_dropped
        assert drop(host, "r") == dropped
        host.append(user("again " * 400), assistant("yes"))
        assert host.compact().memory_dropped
        assert host.verify().ok


def test_m7_a_fork_keeps_what_it_shares(client: Client, name: str) -> None:
    """XL1, XL10: dropping one of the two leaves the other's memory."""
    host = grown(client, name)
    host.compact()
    held = places(host)
    fork = Host.__new__(Host)
    fork.__dict__ = {**host.__dict__, "id": f"{name}-fork"}
    client.session.ForkSession(session_service_pb2.ForkSessionRequest(session_id=name, fork_session_id=f"{name}-fork"))
    other = Host.__new__(Host)
    other.__dict__ = {**host.__dict__, "id": f"{name}-other"}
    client.session.ForkSession(session_service_pb2.ForkSessionRequest(session_id=name, fork_session_id=f"{name}-other"))
    assert drop(host) == len(held)
    assert places(fork) == held
    assert fork.search("E4001").hits
    assert drop(fork) == len(held)
    assert places(other) == held
    assert other.search("E4001").hits
    late = Host.__new__(Host)
    late.__dict__ = {**host.__dict__, "id": f"{name}-late"}
    client.session.ForkSession(session_service_pb2.ForkSessionRequest(session_id=name, fork_session_id=late.id))
    assert late.search("E4001").scope_dropped, "a fork of a closed scope is closed"


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[tuple[Client, Gate]]:
    with running_server(tmp_path, ahead_settings(tmp_path), summarizer=(gate := Gate())) as client:
        yield client, gate
        gate.go_on.set()


def last_fold(host: Host) -> event_pb2.Event:
    return [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED][-1]


def assert_closed(host: Host) -> None:
    fold = last_fold(host).compaction_completed.record
    assert (fold.memory_dropped, fold.memory_entries) == (True, 0)
    assert host.search("parser").scope_dropped
    assert host.get().totals.memory_entries == 0
    assert host.verify().ok, host.verify().faults


def test_m7_a_drop_during_a_manual_fold_waits_for_nothing(gated: tuple[Client, Gate]) -> None:
    client, gate = gated
    host = near(client, "s")
    gate.shut()
    with ThreadPoolExecutor(1) as pool:
        folding = pool.submit(host.compact)
        assert gate.started.acquire(timeout=10)
        assert drop(host) == 0
        gate.go_on.set()
        record = folding.result()
    assert (record.memory_dropped, record.memory_entries) == (True, 0)
    assert_closed(host)


def test_m7_a_drop_while_a_summary_is_written_ahead_of_need(gated: tuple[Client, Gate]) -> None:
    """A1: also one that was ready before the drop."""
    client, gate = gated
    host = near(client, "ready")
    ready(host, gate)
    drop(host)
    cross(host)
    assert_closed(host)


def test_m7_a_drop_during_a_detached_fold(gated: tuple[Client, Gate]) -> None:
    """A5: the fold that outlived its request commits without entries."""
    client, gate = gated
    host = near(client, "detached", background={"enabled": False}, fold_wait={"nanos": 50_000_000})
    gate.shut()
    prepared = cross(host)
    assert prepared.fold_pending
    drop(host)
    gate.go_on.set()
    for number in itertools.count(900):
        if [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]:
            break
        turn(host, number)
    assert_closed(host)


def test_m7_drops_and_folds_at_once(client: Client, name: str) -> None:
    """Whatever comes first, no text is left in memory and every fold's record tells the truth."""
    host = grown(client, name, 4)
    go = threading.Barrier(3)

    def fold() -> None:
        go.wait()
        for n in range(4):
            host.append(user(f"More {n} of parser.py " * 60), assistant("yes"))
            host.compact()

    def search() -> None:
        go.wait()
        for _ in range(20):
            host.search("parser.py")

    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(fold), pool.submit(search)]
        go.wait()
        dropped = drop(host)
        for each in work:
            each.result()
    folds = [e.compaction_completed.record for e in host.events() if e.HasField("compaction_completed")]
    assert len(folds) == 4
    assert sum(f.memory_entries for f in folds) == dropped
    assert all(f.memory_dropped == (f.memory_entries == 0) for f in folds)
    assert [a.memory_dropped <= b.memory_dropped for a, b in pairwise(folds)] == [True] * 3
    assert host.search("parser").scope_dropped
    assert host.get().totals.memory_entries == 0
    assert host.verify().ok
