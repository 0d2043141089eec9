"""What the wire promises of every list, repeat and watch (W2, W6, §13)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.v1 import (
    admin_service_pb2,
    compaction_service_pb2,
    event_pb2,
    event_service_pb2,
    policy_pb2,
    session_pb2,
)
from foldline.v1 import session_service_pb2 as pb

from tests.support.requests import answer, append, assistant, create, prepare, user
from tests.support.server import Client, refused, running_server, served_process


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running_server(tmp_path_factory.mktemp("contract")) as client:
        for number in range(7):
            client.session.CreateSession(create(f"list-{number}", labels={"parity": str(number % 2)}))
        client.session.AppendRows(append("list-0", *(user(f"row {n}") for n in range(7))))
        for number in range(6):
            client.session.AppendRows(append("list-0", user(f"later {number}")))
        yield client


def fold_often(client: Client, session_id: str, folds: int) -> None:
    """Makes events: a session with some manual folds, each with something to do."""
    client.session.CreateSession(create(session_id))
    for number in range(folds):
        turns = [m for n in range(12) for m in (user(f"question {number}.{n} " * 40), assistant("as you say " * 40))]
        client.session.AppendRows(append(session_id, *turns))
        list(client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id=session_id)))


class _Lists:
    """List RPCs: what asks for a page, and what of an answer are its items."""

    @staticmethod
    def sessions(client: Client, **page: Any) -> tuple[list[Any], str]:
        found = client.session.ListSessions(pb.ListSessionsRequest(**page))
        return [s.session_id for s in found.sessions], found.next_page_token

    @staticmethod
    def labelled_sessions(client: Client, **page: Any) -> tuple[list[Any], str]:
        found = client.session.ListSessions(pb.ListSessionsRequest(labels={"parity": "0"}, **page))
        return [s.session_id for s in found.sessions], found.next_page_token

    @staticmethod
    def rows(client: Client, **page: Any) -> tuple[list[Any], str]:
        found = client.session.ListRows(pb.ListRowsRequest(session_id="list-0", **page))
        return [r.offset for r in found.rows], found.next_page_token

    @staticmethod
    def archive(client: Client, **page: Any) -> tuple[list[Any], str]:
        view = session_pb2.ROW_VIEW_ARCHIVE
        found = client.session.ListRows(pb.ListRowsRequest(session_id="list-0", view=view, **page))
        return [r.offset for r in found.rows], found.next_page_token

    @staticmethod
    def revisions(client: Client, **page: Any) -> tuple[list[Any], str]:
        found = client.session.ListRevisions(pb.ListRevisionsRequest(session_id="folded", **page))
        return [r.revision for r in found.revisions], found.next_page_token

    @staticmethod
    def events(client: Client, **page: Any) -> tuple[list[Any], str]:
        found = client.event.ListEvents(event_service_pb2.ListEventsRequest(session_id="folded", **page))
        return [e.sequence for e in found.events], found.next_page_token

    @staticmethod
    def models(client: Client, **page: Any) -> tuple[list[Any], str]:
        found = client.admin.ListModels(admin_service_pb2.ListModelsRequest(**page))
        return [m.model.model for m in found.models], found.next_page_token


LISTS = {name: getattr(_Lists, name) for name in vars(_Lists) if not name.startswith("_")}


@pytest.fixture(scope="module")
def folded(client: Client) -> None:
    fold_often(client, "folded", 3)


@pytest.mark.usefixtures("folded")
@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
class TestPages:
    """W6, AIP-158."""

    @pytest.mark.parametrize("size", [1, 2, 3, 1000, 2**31 - 1])
    def test_pages_of_any_size_give_every_item_once_and_in_order(
        self, client: Client, ask: Callable[..., Any], size: int
    ) -> None:
        whole, token = ask(client)
        assert (len(whole) > 2, token) == (True, "")
        found: list[Any] = []
        token = ""
        while True:
            items, token = ask(client, page_size=size, page_token=token)
            assert len(items) <= size
            found += items
            if not token:
                break
        assert found == whole
        assert len(set(found)) == len(found)

    def test_the_last_full_page_has_no_token(self, client: Client, ask: Callable[..., Any]) -> None:
        whole, _ = ask(client)
        assert ask(client, page_size=len(whole)) == (whole, "")
        assert ask(client, page_size=len(whole) - 1)[1] != ""

    def test_a_negative_size_is_refused(self, client: Client, ask: Callable[..., Any]) -> None:
        found = refused(ask, client, page_size=-1)
        assert (found.reason, found.metadata["field"]) == ("FIELD_VALIDATION", "page_size")

    @pytest.mark.parametrize("token", ["x", "AAAA", "é", "WzEsIngiLDBd", "%%%"])
    def test_a_token_of_nobodys_making_is_refused(self, client: Client, ask: Callable[..., Any], token: str) -> None:
        assert refused(ask, client, page_token=token).reason == "PAGE_TOKEN_MISMATCH"

    def test_the_size_may_change_between_pages(self, client: Client, ask: Callable[..., Any]) -> None:
        whole, _ = ask(client)
        first, token = ask(client, page_size=1)
        assert first + ask(client, page_size=1000, page_token=token)[0] == whole


def test_without_a_size_and_beyond_the_largest_pages_are_as_the_contract_says(client: Client) -> None:
    client.session.CreateSession(create("rows"))
    client.session.AppendRows(append("rows", *(user("row") for _ in range(1001))))
    for asked, given in ((0, 100), (1000, 1000), (1001, 1000), (2**31 - 1, 1000)):
        assert len(client.session.ListRows(pb.ListRowsRequest(session_id="rows", page_size=asked)).rows) == given
    for number in range(501):
        client.session.CreateSession(create(f"many-{number}"))
    for asked, given in ((0, 50), (500, 500), (501, 500)):
        assert len(client.session.ListSessions(pb.ListSessionsRequest(page_size=asked)).sessions) == given


def test_a_token_of_another_list_or_filter_is_refused(client: Client) -> None:
    _, token = _Lists.sessions(client, page_size=1)
    assert refused(_Lists.labelled_sessions, client, page_token=token).reason == "PAGE_TOKEN_MISMATCH"
    _, token = _Lists.rows(client, page_size=1)
    assert refused(_Lists.archive, client, page_token=token).reason == "PAGE_TOKEN_MISMATCH"


def test_pages_of_rows_stay_at_the_revision_of_the_first(client: Client) -> None:
    client.session.CreateSession(create("moving"))
    client.session.AppendRows(append("moving", *(user(f"row {n}") for n in range(4))))
    first = client.session.ListRows(pb.ListRowsRequest(session_id="moving", page_size=2))
    client.session.AppendRows(append("moving", user("later")))
    rest = client.session.ListRows(
        pb.ListRowsRequest(session_id="moving", page_size=9, page_token=first.next_page_token)
    )
    assert [r.offset for r in (*first.rows, *rest.rows)] == [1, 2, 3, 4]
    assert first.revision == rest.revision == 1


class TestRepeats:
    """W2: a repeat returns the first answer and changes nothing."""

    def test_of_every_mutating_call_of_a_session(self, client: Client) -> None:
        one = create("repeat", request_id="create")
        assert client.session.CreateSession(one) == client.session.CreateSession(one)
        rows = append("repeat", user("hello"), request_id="append")
        assert client.session.AppendRows(rows) == client.session.AppendRows(rows)
        asked = prepare("repeat", "run-1", user("go"), request_id="prepare")
        prepared = client.compaction.PrepareRequest(asked)
        assert client.compaction.PrepareRequest(asked) == prepared
        told = compaction_service_pb2.RecordAnswerRequest(
            session_id="repeat", run_id="run-1", request_id="answer",
            outcome=answer(prepared.prepare_id, assistant("done"), finish=1),
        )  # fmt: skip
        assert client.compaction.RecordAnswer(told) == client.compaction.RecordAnswer(told)
        pin = pb.PinRowsRequest(session_id="repeat", offsets=[1], pinned=True, request_id="pin")
        assert client.session.PinRows(pin) == client.session.PinRows(pin)
        edit = pb.EditRowsRequest(session_id="repeat", first_offset=3, last_offset=3, request_id="edit")
        assert client.session.EditRows(edit) == client.session.EditRows(edit)
        back = pb.RestoreRevisionRequest(session_id="repeat", revision=1, request_id="restore")
        assert client.session.RestoreRevision(back) == client.session.RestoreRevision(back)
        verified = client.session.VerifySession(pb.VerifySessionRequest(session_id="repeat"))
        assert (verified.ok, verified.rows_total) == (True, 3)

    def test_at_the_same_time(self, client: Client) -> None:
        client.session.CreateSession(create("race"))
        with ThreadPoolExecutor(8) as threads:
            request = append("race", user("once"), request_id="r")
            answers = list(threads.map(lambda _: client.session.AppendRows(request), range(16)))
        assert all(a == answers[0] for a in answers)
        assert client.session.GetSession(pb.GetSessionRequest(session_id="race")).totals.rows_total == 1

    def test_after_a_restart(self, tmp_path: Path) -> None:
        request = append("s", user("once"), request_id="r")
        with running_server(tmp_path) as client:
            client.session.CreateSession(create("s"))
            first = client.session.AppendRows(request)
        with running_server(tmp_path) as client:
            assert client.session.AppendRows(request) == first

    def test_labels_in_another_order_are_the_same_request(self, client: Client) -> None:
        one = create("ordered", labels={"a": "1", "b": "2"}, request_id="labels")
        two = create("ordered", labels={"b": "2", "a": "1"}, request_id="labels")
        assert client.session.CreateSession(one) == client.session.CreateSession(two)


class TestAdmin:
    def test_every_rpc_of_the_contract_is_served(self, client: Client) -> None:
        info = client.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest()).server
        assert not info.not_yet

    def test_settings_are_told_with_their_origin(self, tmp_path: Path) -> None:
        settings = {"server.max_calls": 9, "policy.retention.turns": 7}
        with running_server(tmp_path, settings) as client:
            found = client.admin.GetEffectiveConfig(admin_service_pb2.GetEffectiveConfigRequest())
        told = {e.key: (e.value, e.origin) for e in found.entries}
        assert told["server.max_calls"] == ("9", "--set server.max_calls")
        assert told["store.synchronous"] == ("FULL", "default")
        assert found.policy.values.retention.turns == 7
        assert found.policy.origins["retention.turns"] == policy_pb2.POLICY_LAYER_CONFIG
        assert found.policy.origins["retention.messages"] == policy_pb2.POLICY_LAYER_BUILT_IN

    def test_a_catalog_file_adds_models(self, tmp_path: Path) -> None:
        (tmp_path / "models.json").write_text('{"house-model": {"context_window": 5000, "type": "anthropic"}}')
        with running_server(tmp_path, {"catalog": str(tmp_path / "models.json")}) as client:
            models = client.admin.ListModels(admin_service_pb2.ListModelsRequest()).models
        found = {m.model.model: m.context_window for m in models}
        assert found["house-model"] == 5000
        assert found["gpt-4o"] == 128_000


class TestWatch:
    """§13: a watch resumes by its cursor without gap and without repeat."""

    def test_events_come_as_they_happen(self, client: Client) -> None:
        client.session.CreateSession(create("watched"))
        watch = client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="watched"))
        assert not next(watch).HasField("event")
        seen: list[int] = []
        folded = threading.Thread(target=_fold, args=(client, "watched", 2))
        folded.start()
        terminal = 0
        for told in watch:
            if told.HasField("event"):
                seen.append(told.event.sequence)
                assert told.cursor == told.event.sequence
                terminal += told.event.kind == event_pb2.EVENT_KIND_COMPACTION_COMPLETED
            if terminal == 2:
                watch.cancel()
                break
        folded.join()
        assert seen == event_numbers(client, "watched")[: len(seen)]

    def test_it_resumes_after_any_cursor(self, client: Client) -> None:
        fold_often(client, "resumed", 2)
        whole = event_numbers(client, "resumed")
        for at in range(len(whole)):
            after = whole[at - 1] if at else 0
            watch = client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="resumed", after=after))
            assert [next(watch).event.sequence for _ in whole[at:]] == whole[at:]
            watch.cancel()

    def test_it_resumes_over_a_restart(self, tmp_path: Path) -> None:
        with served_process(tmp_path) as server, Client(server.wait_ready()) as client:
            fold_often(client, "s", 1)
            watch = client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="s"))
            cursor = next(watch).cursor
            server.process.kill()
            with pytest.raises(grpc.RpcError):
                list(watch)
        with served_process(tmp_path) as server, Client(server.wait_ready()) as client:
            whole = event_numbers(client, "s")
            request = event_service_pb2.WatchEventsRequest(session_id="s", after=cursor)
            watch = client.event.WatchEvents(request)
            rest = [next(watch).event.sequence for _ in whole[1:]]
            assert [cursor, *rest] == whole

    def test_it_shows_the_kinds_asked_for_and_tells_how_far_it_is(self, client: Client) -> None:
        fold_often(client, "kinds", 2)
        kinds = [event_pb2.EVENT_KIND_COMPACTION_COMPLETED]
        watch = client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="kinds", kinds=kinds))
        assert [next(watch).event.kind for _ in "ab"] == kinds * 2
        watch.cancel()

    def test_it_ends_when_its_session_is_deleted(self, client: Client) -> None:
        client.session.CreateSession(create("gone"))
        watch = client.event.WatchEvents(event_service_pb2.WatchEventsRequest(session_id="gone"), timeout=10)
        next(watch)
        client.session.DeleteSession(pb.DeleteSessionRequest(session_id="gone"))
        assert refused(list, watch).reason == "SESSION_NOT_FOUND"


def _fold(client: Client, session_id: str, folds: int) -> None:
    for number in range(folds):
        turns = [m for n in range(12) for m in (user(f"question {number}.{n} " * 40), assistant("as you say " * 40))]
        client.session.AppendRows(append(session_id, *turns))
        list(client.compaction.CompactSession(compaction_service_pb2.CompactSessionRequest(session_id=session_id)))


def event_numbers(client: Client, session_id: str) -> list[int]:
    found = client.event.ListEvents(event_service_pb2.ListEventsRequest(session_id=session_id))
    return [e.sequence for e in found.events]
