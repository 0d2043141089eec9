"""What memory forgets, keeps apart, and keeps once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import (
    compaction_service_pb2,
    event_pb2,
    memory_pb2,
    memory_service_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.integration.host import Host
from tests.integration.test_ahead import Gate
from tests.integration.test_ahead import settings as ahead_settings
from tests.integration.test_folds import LONG, grown
from tests.integration.test_memory_scope import drop, entries, places
from tests.support.embeddings import FakeEmbeddings
from tests.support.requests import append, assistant, user
from tests.support.server import Client, refused, running_server, until

TABLES = ("memory_entry", "memory_text", "memory_vector", "memory_segment", "memory_posting", "memory_garbage")


def folded(client: Client, name: str, word: str, turns: int = 8) -> Host:
    host = Host(client, name, auto_compact=False)
    host.append(*(m for n in range(turns) for m in (user(f"{word} {n}: {LONG}"), assistant(f"Noted {word} {n}."))))
    host.compact()
    return host


def stored(folder: Path) -> dict[str, int]:
    with sqlite3.connect(folder / "data" / "foldline.db") as db:
        return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}


def holding(folder: Path, text: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file() and text in path.read_bytes()]


def delete(host: Host) -> None:
    host.client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=host.id))


def restore(host: Host, revision: int) -> None:
    host.client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=host.id, revision=revision)
    )


@pytest.mark.parametrize("forget", [drop, delete], ids=["drop", "delete"])
def test_xl1_forgetting_one_leaves_the_others(client: Client, name: str, forget: Callable[[Host], object]) -> None:
    mine, other = folded(client, f"{name}-a", "walnut"), folded(client, f"{name}-b", "walnut")
    before = places(other)
    forget(mine)
    assert places(other) == before
    assert other.search("walnut").hits
    assert other.verify().ok


@pytest.mark.parametrize("forget", [drop, delete], ids=["drop", "delete"])
def test_xl2_xl6_xl10_what_is_forgotten_is_in_no_search_no_table_and_no_file(
    tmp_path: Path, forget: Callable[[Host], object]
) -> None:
    """Neither text, nor vector, nor a word of the index; the archive of a dropped scope stays, as is said."""
    with FakeEmbeddings() as fake:
        settings = {"memory.embedder": "openai", "memory.model": "m", "memory.base_url": fake.base_url}
        with running_server(tmp_path, settings) as client:
            host = folded(client, "s", "xylophone")
            assert until(lambda: host.get().totals.memory_pending == 0, 20)
            assert host.search("xylophone").hits
            assert stored(tmp_path)["memory_vector"] > 0
            forget(host)
            if forget is drop:
                assert not host.search("xylophone").hits
                assert not host.search("what instrument was it").hits
                assert [len(page.entries) for page in entries(host)] == [0]
            assert set(stored(tmp_path).values()) == {0}
            if forget is delete:
                assert until(lambda: not holding(tmp_path / "data", b"xylophon"), 10)
    assert forget is drop or not holding(tmp_path / "data", b"xylophon")


@pytest.mark.parametrize("forget", [drop, delete], ids=["drop", "delete"])
def test_xl9_a_vector_that_comes_for_what_is_gone_is_kept_by_nobody(
    tmp_path: Path, forget: Callable[[Host], object]
) -> None:
    """What is forgotten while it is being embedded; and what has vectors of a model that was before."""
    under_way, go_on = threading.Event(), threading.Event()

    def hold(answer: dict[str, Any]) -> dict[str, Any]:
        if len(answer["data"]) > 1:
            under_way.set()
            assert go_on.wait(30)
        return answer

    with FakeEmbeddings() as fake:
        settings = {"memory.embedder": "openai", "memory.model": "m", "memory.base_url": fake.base_url}
        with running_server(tmp_path, settings) as client:
            old, other = folded(client, "old", "xylophone"), folded(client, "other", "walnut")
            assert until(lambda: all(host.get().totals.memory_pending == 0 for host in (old, other)), 20)
        kept = stored(tmp_path)["memory_vector"] // 2
        with running_server(tmp_path, {**settings, "memory.model": "another"}) as client:
            fake.change = hold
            host = folded(client, "s", "xylophone")
            assert under_way.wait(20)
            old.client = other.client = client
            forget(old)
            forget(host)
            go_on.set()
            assert until(lambda: other.get().totals.memory_pending == 0, 20)
        assert stored(tmp_path)["memory_vector"] == stored(tmp_path)["memory_entry"] == kept


def test_xl3_what_a_list_does_not_show_no_search_does(client: Client, name: str) -> None:
    """After each of a fold, a restore, another fold, a drop."""
    host = folded(client, name, "walnut")
    revision = host.get().session.revision

    def agree() -> None:
        listed = {(e.offset, e.chunk) for page in entries(host) for e in page.entries}
        found = {(h.offset, h.chunk) for h in host.search("walnut", limit=20).hits}
        assert found <= listed
        assert bool(found) == bool(listed)

    agree()
    restore(host, revision - 1)
    assert places(host) == []
    agree()
    host.compact()
    agree()
    drop(host)
    agree()


@pytest.mark.parametrize("path", ["restore", "edit and restore", "delete", "drop"])
def test_xl7_every_way_of_forgetting_reaches_every_index(client: Client, name: str, path: str) -> None:
    """No ghost comes up, and none takes a place from what lives."""
    host = folded(client, name, "walnut", 12)
    folds = host.get().session.revision
    live = [user("walnut cake is what Ida bakes " * 20), assistant("noted")]
    host.append(*(live * 6))
    host.compact()
    alive = {p for p in places(host) if p[0] > 25}
    assert alive
    if path == "delete":
        delete(host)
        host = folded(client, name, "parrot")
        assert not [h for h in host.search("walnut", limit=20).hits if "walnut" in h.text]
        return
    if path == "drop":
        drop(host)
        assert host.search("walnut").scope_dropped
        return
    if path == "edit and restore":
        last = host.offsets()[-1]
        request = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=last, last_offset=last)
        host.client.session.EditRows(request)
    restore(host, folds - 1)
    assert places(host) == []
    host.compact()
    hits = host.search("walnut", limit=20).hits
    assert {(h.offset, h.chunk) for h in hits} <= set(places(host))
    assert len(hits) == min(20, len({h.text for h in hits}))
    assert host.verify().ok


def test_xl11_a_retry_stores_nothing_twice(client: Client, name: str) -> None:
    """Neither rows nor what is made of them, however often and however fast it is asked again."""
    host = Host(client, name, auto_compact=False)
    said = [m for n in range(8) for m in (user(f"walnut {n} {LONG}"), assistant("yes"))]
    request = append(name, *said, request_id="1")
    threads = [threading.Thread(target=client.session.AppendRows, args=(request,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = host.compact(request_id="fold")
    again = host.compact(request_id="fold")
    assert first.fold_id == again.fold_id
    found = places(host)
    assert len(found) == len(set(found)) == host.get().totals.memory_entries == first.memory_entries
    assert len([e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]) == 1


def test_xl12_what_timed_out_and_is_asked_again_is_made_once(tmp_path: Path) -> None:
    """The summary of the first is under way still, or was written in vain: one fold, and each entry once."""
    gate = Gate()
    with running_server(tmp_path, ahead_settings(tmp_path), summarizer=gate) as client:
        host = Host(client, "s", auto_compact=False)
        host.append(*(m for n in range(8) for m in (user(f"walnut {n} {LONG}"), assistant("yes"))))
        request = compaction_service_pb2.CompactSessionRequest(session_id="s", request_id="fold")
        gate.shut()
        for _ in range(3):
            late = refused(lambda: list(client.compaction.CompactSession(request, timeout=0.5)))
            assert late.code in ("DEADLINE_EXCEEDED", "ABORTED")
        assert places(host) == []
        gate.go_on.set()
        first, again = host.compact(request_id="fold"), host.compact(request_id="fold")
        assert first == again
        found = places(host)
        assert len(found) == len(set(found)) == host.get().totals.memory_entries == first.memory_entries > 0
        assert len([e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED]) == 1
        assert host.verify().ok


def test_xl13_every_entry_says_which_row_it_is_of(client: Client, name: str) -> None:
    host = grown(client, name)
    host.compact()
    for page in entries(host):
        for entry in page.entries:
            request = session_service_pb2.ReadRowRequest(session_id=name, offset=entry.offset, range=entry.byte_range)
            assert client.session.ReadRow(request).text == entry.text


def test_xl14_the_same_rows_are_the_same_entries_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        host = folded(client, "s", "walnut")
        before, revision = places(host), host.get().session.revision
    with running_server(tmp_path) as client:
        host.client = client
        restore(host, revision - 1)
        host.compact()
        assert places(host) == before
        hits = host.search("walnut", limit=20).hits
        assert len(hits) == len({h.text for h in hits})


@pytest.mark.parametrize("session_id", ["a.b:c@d/e+f=~-g", "A", "a", "0", "x" * 128, "s/1", "s//1"])
def test_xl20_what_is_written_under_a_name_is_read_under_it(client: Client, session_id: str) -> None:
    host = folded(client, session_id, "walnut")
    assert host.search("walnut").hits
    assert places(host)


@pytest.mark.parametrize("session_id", ["", "nobody", "*", "%", "xl21-%"])
def test_xl21_xl22_no_scope_is_not_every_scope(client: Client, session_id: str) -> None:
    if not client_knows(client, "xl21-one"):
        folded(client, "xl21-one", "walnut")
    for request, call in (
        (memory_service_pb2.SearchMemoryRequest(session_id=session_id, query="walnut"), client.memory.SearchMemory),
        (memory_service_pb2.EnumerateScopeRequest(session_id=session_id), client.memory.EnumerateScope),
        (memory_service_pb2.GetMemoryRequest(session_id=session_id, offset=1), client.memory.GetMemory),
        (memory_service_pb2.DropScopeRequest(session_id=session_id), client.memory.DropScope),
    ):
        assert refused(call, request).reason in ("FIELD_VALIDATION", "SESSION_NOT_FOUND")


def client_knows(client: Client, session_id: str) -> bool:
    found = client.session.ListSessions(session_service_pb2.ListSessionsRequest(page_size=500)).sessions
    return any(s.session_id == session_id for s in found)


def test_xl23_an_empty_scope_is_no_default_scope(client: Client, name: str) -> None:
    """Nor is a filter that nothing passes no filter."""
    folded(client, f"{name}-full", "walnut")
    empty = Host(client, f"{name}-empty")
    assert not empty.search("walnut").hits
    assert not empty.search("walnut").degraded or empty.search("walnut").degraded_reason
    host = Host(client, f"{name}-said", auto_compact=False)
    host.append(*(m for n in range(8) for m in (user(f"walnut {n} {LONG}"), assistant(f"walnut {n}"))))
    host.compact()
    assert host.search("walnut").hits
    for where in ({"roles": [memory_pb2.ENTRY_ROLE_TOOL]}, {"kinds": [memory_pb2.ENTRY_KIND_TOOL_RESULT]}):
        assert not host.search("walnut", filter=where).hits
        assert places(host, None, **where) == []


def test_xl25_no_limit_is_the_default_and_not_everything(client: Client, name: str) -> None:
    host = folded(client, name, "walnut", 90)
    assert len(places(host)) > 100
    assert len(host.search("walnut").hits) == 5
    first = next(entries(host))
    assert len(first.entries) == 100
    assert first.next_page_token


def test_xl26_a_time_filter_and_a_floor_together_find_what_is_there(client: Client, name: str) -> None:
    """The floor is of how well a row answers, not of how it compares with rows that the filter left out."""
    host = Host(client, name, auto_compact=False)

    def said(text: str, year: int) -> row_pb2.Row:
        row = row_pb2.Row(user=row_pb2.UserRow(content=[{"text": {"text": text}}]))
        row.create_time.FromJsonString(f"{year}-05-01T12:00:00Z")
        return row

    for n in range(20):
        host.rows(said(f"the parrot likes walnut cake very much, said {n} times: walnut cake", 2020))
        host.append(assistant("noted"))
    host.rows(said("walnut cake was for the parrot", 2024))
    host.append(assistant("noted"))
    host.append(*(m for n in range(12) for m in (user(f"small talk {n} {LONG}"), assistant("yes"))))
    host.compact()
    where = memory_pb2.MemoryFilter()
    where.after_time.FromJsonString("2024-01-01T00:00:00Z")
    hits = host.search("walnut cake parrot", min_score=0.5, limit=20, filter=where).hits
    assert hits[0].text == "walnut cake was for the parrot"
