"""WatchEvents (§13): no event is missed and none comes twice, whatever becomes of the stream or the session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.v1 import event_pb2, policy_pb2
from foldline.v1 import event_service_pb2 as pb
from foldline.v1 import session_service_pb2 as session_pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.requests import append, create, prepare, user
from tests.support.server import Client, refusal_of, running_server, started, until
from tests.support.wire import Line, line

SUPERSEDED = event_pb2.EVENT_KIND_RUN_SUPERSEDED


class Site:
    """A server, a client of it, and another over a line that can be cut."""

    def __init__(self, client: Client, remote: Client, wire: Line) -> None:
        self.client, self.remote, self.wire = client, remote, wire


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("watch")) as server:
        server.ready()
        with (
            line(server.addresses[0]) as wire,
            Client(server.addresses[0]) as client,
            Client(wire.address) as remote,
        ):
            yield Site(client, remote, wire)


def supersede(client: Client, session_id: str, first: int, last: int) -> None:
    """One event for each number: a run that takes the place of the one before."""
    if first == 1:
        client.compaction.PrepareRequest(prepare(session_id, "run-0", user("go")))
    for number in range(first, last + 1):
        client.compaction.PrepareRequest(prepare(session_id, f"run-{number}", user("go"), supersede_open_run=True))


def listed(client: Client, session_id: str, **asked: Any) -> list[event_pb2.Event]:
    found: list[event_pb2.Event] = []
    token = ""
    while True:
        page = client.event.ListEvents(
            pb.ListEventsRequest(session_id=session_id, page_size=7, page_token=token, **asked)
        )
        found += page.events
        token = page.next_page_token
        if not token:
            return found


def new_session(client: Client, **fields: Any) -> str:
    made: str = client.session.CreateSession(create("", **fields)).session.session_id
    return made


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_cut_at_any_moment_it_resumes_by_its_cursor_without_gap_or_repeat(site: Site, data: st.DataObject) -> None:
    name = new_session(site.client)
    events = data.draw(st.integers(1, 30))
    cuts = iter(data.draw(st.lists(st.floats(0, 0.03), max_size=5)))
    writer = threading.Thread(target=supersede, args=(site.client, name, 1, events))
    writer.start()
    seen: list[event_pb2.Event] = []
    cursor = 0
    while len(seen) < events:
        timer = threading.Timer(next(cuts, 30), site.wire.cut)
        timer.start()
        watch = site.remote.event.WatchEvents(pb.WatchEventsRequest(session_id=name, after=cursor))
        try:
            for told in watch:
                assert told.cursor >= cursor
                cursor = told.cursor
                if told.HasField("event"):
                    assert told.event.sequence == told.cursor
                    seen.append(told.event)
                if len(seen) == events:
                    break
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
        timer.cancel()
        watch.cancel()
    writer.join()
    assert seen == listed(site.client, name)
    assert [e.sequence for e in seen] == list(range(1, events + 1))
    assert {e.run_superseded.opened_run_id for e in seen} == {f"run-{n}" for n in range(1, events + 1)}


def test_with_kinds_the_cursor_goes_on_over_what_is_not_shown(site: Site) -> None:
    name = new_session(site.client)
    supersede(site.client, name, 1, 5)
    kinds = [event_pb2.EVENT_KIND_COMPACTION_COMPLETED]
    asked = pb.WatchEventsRequest(session_id=name, kinds=kinds)
    watch = site.client.event.WatchEvents(asked)
    told = next(watch)
    assert (told.HasField("event"), told.cursor) == (False, 5)
    watch.cancel()
    assert listed(site.client, name, kinds=kinds) == []
    assert listed(site.client, name, kinds=[SUPERSEDED]) == listed(site.client, name)
    assert listed(site.client, name, kinds=[event_pb2.EVENT_KIND_UNSPECIFIED]) == []
    resumed = site.client.event.WatchEvents(pb.WatchEventsRequest(session_id=name, kinds=[SUPERSEDED], after=3))
    assert [next(resumed).event.sequence for _ in range(2)] == [4, 5]
    resumed.cancel()


def test_heartbeats_come_also_while_other_kinds_happen(tmp_path: Path) -> None:
    with running_server(tmp_path, {"server.heartbeat_interval": 0.02}) as client:
        name = new_session(client)
        asked = pb.WatchEventsRequest(session_id=name, kinds=[event_pb2.EVENT_KIND_COMPACTION_COMPLETED])
        watch = client.event.WatchEvents(asked)
        done = threading.Event()

        def write() -> None:
            number = 1
            while not done.is_set():
                supersede(client, name, number, number + 4)
                number += 5

        writer = threading.Thread(target=write)
        writer.start()
        try:
            cursors = [next(watch).cursor for _ in range(20)]
        finally:
            done.set()
            writer.join()
            watch.cancel()
        assert cursors == sorted(cursors)
        assert cursors[-1] > 0


def test_a_slow_reader_holds_up_nobody_and_misses_nothing(tmp_path: Path) -> None:
    """Events with long texts fill what the transport takes long before the reader reads."""
    with running_server(tmp_path) as client:
        name = new_session(client, policy=policy_pb2.Policy())
        watch = client.event.WatchEvents(pb.WatchEventsRequest(session_id=name))
        next(watch)
        long = "x" * 100
        client.compaction.PrepareRequest(prepare(name, long, user("go")))
        for number in range(300):
            client.compaction.PrepareRequest(prepare(name, f"{number}-{long}", user("go"), supersede_open_run=True))
        found = [next(watch).event for _ in range(300)]
        watch.cancel()
        assert found == listed(client, name)


def test_a_delete_ends_it_also_where_the_id_is_taken_again_at_once(site: Site) -> None:
    name = new_session(site.client)
    supersede(site.client, name, 1, 2)
    watch = site.client.event.WatchEvents(pb.WatchEventsRequest(session_id=name))
    assert [next(watch).cursor for _ in range(2)] == [1, 2]
    site.client.session.DeleteSession(session_pb.DeleteSessionRequest(session_id=name))
    site.client.session.CreateSession(create(name))
    supersede(site.client, name, 1, 9)
    with pytest.raises(grpc.RpcError) as caught:
        list(watch)
    assert refusal_of(caught.value).reason == "SESSION_NOT_FOUND"


def test_many_watch_one_session_and_each_is_told_all(site: Site) -> None:
    name = new_session(site.client)
    watches = [site.client.event.WatchEvents(pb.WatchEventsRequest(session_id=name)) for _ in range(8)]
    for watch in watches:
        assert not next(watch).HasField("event")
    supersede(site.client, name, 1, 5)
    site.client.session.AppendRows(append(name, user("no event")))
    for watch in watches:
        assert [next(watch).event.sequence for _ in range(5)] == [1, 2, 3, 4, 5]
        watch.cancel()


def test_who_is_not_watched_takes_no_room_and_who_was_gives_it_back(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        server.ready()
        with Client(server.addresses[0]) as client:
            name = new_session(client)
            watch = client.event.WatchEvents(pb.WatchEventsRequest(session_id=name))
            next(watch)
            watch.cancel()
            assert until(lambda: server.pools.streams.depth == 0)
