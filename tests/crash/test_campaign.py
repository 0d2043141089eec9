"""SIGKILL in the middle of a long session, again and again: nothing acknowledged is lost, nothing is doubled (V10, W2).

The shipped session is played against ``foldline serve`` on a small window. The server dies at random moments, between
calls, within one, or within a fold; it starts again on the same data, and the call that got no answer is repeated under
its request id.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from foldline.cli.play import Player
from foldline.demo import session as shipped
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    event_service_pb2,
    model_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.support.server import Client, Process

SESSION = "campaign"
MODEL = model_pb2.ModelRef(provider="openai", model="small")
WINDOW = 8_000
RECORDING = shipped.recording()
ENDS = (event_pb2.EVENT_KIND_COMPACTION_COMPLETED, event_pb2.EVENT_KIND_COMPACTION_FAILED)


@dataclass(frozen=True)
class Kill:
    """A moment to die: ``seconds`` after call number ``call`` was sent, or after the next fold began from then on."""

    call: int
    seconds: float
    in_fold: bool


def plan(seed: int, kills: int) -> list[Kill]:
    """Every other kill is aimed at a fold; the end of the session is left for what was aimed at to come."""
    dice = Random(seed)
    calls = sorted(dice.sample(range(1, len(RECORDING.steps) * 3 // 4), kills))
    return [
        Kill(call, dice.uniform(0, 0.06) if index % 2 else dice.uniform(0, 0.02), index % 2 == 1)
        for index, call in enumerate(calls)
    ]


class Sidecar:
    """The server, killed by plan, and what the host was told by it."""

    def __init__(self, folder: Path, kills: Sequence[Kill]) -> None:
        self.folder = folder
        self.catalog = folder / "models.json"
        entry = {"context_window": WINDOW, "type": "openai", "encoding": "o200k_base"}
        self.catalog.write_text(json.dumps({MODEL.model: entry}))
        self.plan = list(kills)
        self.armed = False
        self.awaits_fold = False
        self.calls = 0
        self.starts = 0
        self.acknowledged: dict[int, bytes] = {}
        self.folds: dict[str, compaction_pb2.CompactionRecord] = {}
        self.stored: dict[int, bytes] = {}
        self.failures: Counter[int] = Counter()
        self.start()

    def start(self) -> None:
        self.process = Process(self.folder, "--set", f"catalog={self.catalog}", "--set", "log.level=error")
        self.process.wait_ready()
        self.client = Client(f"unix:{self.folder / 's'}")
        self.armed = self.awaits_fold = False
        self.starts += 1

    def kill_after(self, seconds: float) -> None:
        threading.Timer(seconds, self.process.signal, [signal.SIGKILL]).start()

    def close(self) -> None:
        self.client.channel.close()
        self.process.close()

    def before(self) -> None:
        """Called before each call; takes aim when it is time for the next kill."""
        self.calls += 1
        late = self.calls > len(RECORDING.steps) - 15
        if self.awaits_fold and late:
            self.awaits_fold = False
            self.kill_after(0)
        if self.armed or not self.plan or self.calls < self.plan[0].call:
            return
        self.armed, kill = True, self.plan.pop(0)
        say(f"call {self.calls}: {kill}")
        if not kill.in_fold or late:
            self.kill_after(kill.seconds)
            return
        self.awaits_fold = True
        watch = self.client.event.WatchEvents(
            event_service_pb2.WatchEventsRequest(
                session_id=SESSION,
                after=max((e.sequence for e in self.events()), default=0),
                kinds=[event_pb2.EVENT_KIND_COMPACTION_STARTED],
            )
        )
        threading.Thread(target=self._kill_in_fold, args=(watch, kill.seconds), daemon=True).start()

    def _kill_in_fold(self, watch: Any, seconds: float) -> None:
        try:
            if any(message.HasField("event") for message in watch):
                self.awaits_fold = False
                self.kill_after(seconds)
        except grpc.RpcError:
            return

    def answered(self, request: Any, response: Any) -> None:
        """Notes what a call acknowledged."""
        rows = rows_of(request)
        if rows:
            offsets = range(response.first_offset, response.last_offset + 1)
            self.acknowledged |= dict(zip(offsets, map(authored, rows), strict=True))
        if isinstance(response, compaction_service_pb2.PrepareRequestResponse) and response.HasField("fold"):
            self.folds[response.fold.fold_id] = response.fold

    def lost(self, request: Any) -> None:
        """The server is dead: starts it again, and holds what it has against what it had acknowledged."""
        assert self.process.wait(10) == -signal.SIGKILL, self.process.log.read_text()
        self.close()
        self.start()
        self.check(rows_of(request))

    def check(self, in_flight: Sequence[row_pb2.Row] = ()) -> None:
        """Every acknowledged row and fold is there as told; of a call in flight all of its rows or none (R1)."""
        verified = self.client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=SESSION))
        assert verified.ok, verified.faults
        archive = {r.offset: r for r in self.archive()}
        assert verified.rows_total == len(archive)
        for offset, body in self.acknowledged.items():
            assert authored(archive[offset]) == body
        others = [r for o, r in archive.items() if o not in self.acknowledged]
        new = [authored(r) for r in others if not r.HasField("compaction_summary")]
        assert new in ([], [authored(r) for r in in_flight])
        for offset, bytes_before in self.stored.items():
            assert whole(archive[offset]) == bytes_before
        self.stored = {offset: whole(row) for offset, row in archive.items()}
        self._check_folds(verified.folds)

    def _check_folds(self, folds: int) -> None:
        """§13: every start has exactly one end, also across a crash; an acknowledged fold is the one in the log."""
        events = self.events()
        assert [e.sequence for e in events] == list(range(1, len(events) + 1))
        began = Counter(e.fold_id for e in events if e.kind == event_pb2.EVENT_KIND_COMPACTION_STARTED)
        ended = Counter(e.fold_id for e in events if e.kind in ENDS)
        assert began == ended
        assert set(began.values()) <= {1}
        records = {e.fold_id: e.compaction_completed.record for e in events if e.HasField("compaction_completed")}
        assert len(records) == folds
        for fold_id, record in self.folds.items():
            assert records[fold_id].summary_text == record.summary_text
            assert records[fold_id].discarded == record.discarded
        self.failures = Counter(e.compaction_failed.failure for e in events if e.HasField("compaction_failed"))

    def archive(self) -> list[row_pb2.Row]:
        def page(token: str) -> session_service_pb2.ListRowsResponse:
            view = session_pb2.ROW_VIEW_ARCHIVE
            return self.client.session.ListRows(
                session_service_pb2.ListRowsRequest(session_id=SESSION, view=view, page_size=1000, page_token=token)
            )

        return [row for answer in pages(page) for row in answer.rows]

    def events(self) -> list[event_pb2.Event]:
        def page(token: str) -> event_service_pb2.ListEventsResponse:
            return self.client.event.ListEvents(
                event_service_pb2.ListEventsRequest(session_id=SESSION, page_size=1000, page_token=token)
            )

        return [event for answer in pages(page) for event in answer.events]


class Repeats(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Repeats a call whose answer did not come, the same message to the server that came back (W2)."""

    def __init__(self, sidecar: Sidecar, channel: grpc.Channel) -> None:
        self.sidecar, self.channel = sidecar, channel

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        self.sidecar.before()
        while True:
            call = continuation(details, request)
            if call.code() is grpc.StatusCode.OK:
                self.sidecar.answered(request, call.result())
                return call
            assert call.code() is grpc.StatusCode.UNAVAILABLE, call.details()
            self.sidecar.lost(request)
            grpc.channel_ready_future(self.channel).result(30)


def say(line: str) -> None:
    """For whom a campaign fails: pytest shows it then."""
    sys.stdout.write(f"{line}\n")


def pages(page: Callable[[str], Any]) -> list[Any]:
    found = [page("")]
    while found[-1].next_page_token:
        found.append(page(found[-1].next_page_token))
    return found


def rows_of(request: Any) -> list[row_pb2.Row]:
    """The rows that a call hands in, in the order in which they are appended."""
    if isinstance(request, compaction_service_pb2.PrepareRequestRequest):
        return [*request.previous_answer.answer.input.rows.rows, *request.append.rows.rows]
    if isinstance(request, compaction_service_pb2.RecordAnswerRequest):
        return list(request.outcome.answer.input.rows.rows)
    return []


def authored(row: row_pb2.Row) -> bytes:
    """What the host authored of a row: without what the sidecar adds on the way in."""
    own = row_pb2.Row()
    own.CopyFrom(row)
    for field in ("offset", "create_time", "run_id", "archived"):
        own.ClearField(field)
    if own.HasField("tool_result"):
        for field in ("late", "usage_mark", "call_offset"):
            own.tool_result.ClearField(field)
    return own.SerializeToString(deterministic=True)


def whole(row: row_pb2.Row) -> bytes:
    """A stored row with all that the sidecar added; only a fold may change that it is archived."""
    stored = row_pb2.Row()
    stored.CopyFrom(row)
    stored.ClearField("archived")
    return stored.SerializeToString(deterministic=True)


def campaign(folder: Path, seed: int, kills: int) -> Sidecar:
    """Plays the session under fire to its end."""
    say(f"seed {seed}")
    sidecar = Sidecar(folder, plan(seed, kills))
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.use_local_subchannel_pool", 1)]
    try:
        with grpc.insecure_channel(f"unix:{folder / 's'}", options=options) as channel:
            player = Player(grpc.intercept_channel(channel, Repeats(sidecar, channel)), SESSION, MODEL)
            player.create()
            played = player.play(RECORDING)
            assert played.verify_ok, played.faults
            assert sidecar.starts == kills + 1
            sidecar.check()
            listed = sidecar.client.session.ListRows(
                session_service_pb2.ListRowsRequest(session_id=SESSION, revision=player.revision, page_size=1000)
            )
            assert [r.offset for r in listed.rows] == player.replica
            handed_in = [r for r in sidecar.archive() if not r.HasField("compaction_summary")]
            assert len(handed_in) == len(sidecar.acknowledged) == len(RECORDING.rows)
            for question in shipped.questions():
                player.search(question.query, lambda hit, marker=question.marker: marker in hit.text)
            assert all(found for _, found in played.searches), played.searches
    finally:
        sidecar.close()
    say(f"{played.folds} folds answered, failures {dict(sidecar.failures)}")
    return sidecar


def test_a_session_survives_three_kills(tmp_path: Path) -> None:
    """V10, W2."""
    sidecar = campaign(tmp_path, seed=20260727, kills=3)
    assert len(sidecar.folds) >= 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_a_session_survives_ten_kills(tmp_path: Path, seed: int) -> None:
    """V10, W2: fifty kills in all, half of them aimed at folds."""
    sidecar = campaign(tmp_path, seed, kills=10)
    assert sidecar.failures[compaction_pb2.FAILURE_KIND_INTERRUPTED] >= 1
