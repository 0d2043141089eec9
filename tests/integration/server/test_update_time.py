"""``Session.update_time``: when a session last changed, whatever changed it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from foldline.v1 import compaction_service_pb2 as compaction
from foldline.v1 import session_service_pb2 as pb

from tests.support.requests import answer, append, assistant, create, prepare, user
from tests.support.server import Client, running_server

TURNS = [m for n in range(12) for m in (user(f"question {n} " * 60), assistant(f"answer {n} " * 60))]


class Clock:
    def __init__(self) -> None:
        self.now = 1_767_225_600.0

    def __call__(self) -> float:
        return self.now


def updated(client: Client) -> float:
    session = client.session.GetSession(pb.GetSessionRequest(session_id="s")).session
    (listed,) = client.session.ListSessions(pb.ListSessionsRequest()).sessions
    assert listed.update_time == session.update_time
    return session.update_time.ToMicroseconds() / 1e6


def test_it_is_the_time_of_the_last_change_and_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with running_server(tmp_path, clock=clock) as client:
        created = client.session.CreateSession(create("s")).session
        assert created.update_time == created.create_time
        assert updated(client) == clock.now

        def prepared() -> None:
            told = client.compaction.PrepareRequest(prepare("s", "run-1", user("go")))
            client.compaction.RecordAnswer(
                compaction.RecordAnswerRequest(
                    session_id="s", outcome=answer(told.prepare_id, assistant("done"), finish=1)
                )
            )

        changes: list[Callable[[], object]] = [
            lambda: client.session.AppendRows(append("s", *TURNS)),
            prepared,
            lambda: client.session.PinRows(pb.PinRowsRequest(session_id="s", offsets=[1], pinned=True)),
            lambda: client.session.EditRows(pb.EditRowsRequest(session_id="s", first_offset=3, last_offset=4)),
            lambda: list(client.compaction.CompactSession(compaction.CompactSessionRequest(session_id="s"))),
            lambda: client.session.RestoreRevision(pb.RestoreRevisionRequest(session_id="s", revision=1)),
            lambda: client.session.UpdateSession(pb.UpdateSessionRequest(session_id="s", labels={"a": "b"})),
        ]
        for change in changes:
            clock.now += 60
            change()
            assert updated(client) == clock.now
        last = clock.now
        clock.now += 60
        client.session.VerifySession(pb.VerifySessionRequest(session_id="s"))
        client.compaction.CheckPressure(compaction.CheckPressureRequest(session_id="s"))
        assert updated(client) == last
    with running_server(tmp_path, clock=clock) as client:
        assert updated(client) == last
