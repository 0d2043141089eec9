"""G13: how long a host waits when T is crossed, its summary written ahead of need, against the same fold without.

The provider is a server at the wire that takes ``G13_SECONDS`` (20) for a summary. The two sessions of a round hold
rows of the same words and wait for it at the same time. What a host waits is the longest of its requests, from before
the summary was begun to the folded one.
"""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    compaction_service_pb2_grpc,
    event_pb2,
    event_service_pb2,
    event_service_pb2_grpc,
    model_pb2,
    policy_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)
from google.protobuf.duration_pb2 import Duration

from bench._servers import MODEL, product, spread, timed
from tests.support.providers import Does, FakeProvider

GOAL = "<= 1/100"
SECONDS = float(os.environ.get("G13_SECONDS", "20"))
THRESHOLD, FRACTION, TURN_TOKENS, SEED = 50_000, 0.8, 600, 13
WORDS = (
    "parser", "trailing", "comma", "config/app.toml", "line", "fails", "E1042", "retry", "the", "of", "and", "when",
    "table", "orders", "migrated", "commit", "7f3a9c1", "passed", "failed", "rewrote", "src/lexer.rs", "because",
)  # fmt: skip
NEVER = threading.Event()


class Host:
    """One session and the waits of its requests."""

    def __init__(self, channel: Any, name: str, *, ahead: bool) -> None:
        self.sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self.compaction = compaction_service_pb2_grpc.CompactionServiceStub(channel)
        self.events = event_service_pb2_grpc.EventServiceStub(channel)
        self.id, self._random, self._turns = name, random.Random(SEED), 0
        self.model = model_pb2.ModelRef(provider="bench", model=MODEL)
        policy = policy_pb2.Policy(
            auto_compact_threshold=THRESHOLD,
            background=policy_pb2.BackgroundPolicy(enabled=ahead, fraction=FRACTION),
            summary=policy_pb2.SummaryPolicy(timeout=Duration(seconds=int(SECONDS) + 60)),
        )
        self.sessions.CreateSession(
            session_service_pb2.CreateSessionRequest(session_id=name, model=self.model, policy=policy)
        )

    def _said(self) -> str:
        return " ".join(self._random.choices(WORDS, k=TURN_TOKENS // 4))

    def fill(self, tokens: int) -> None:
        """Rows of about so many tokens, as an import brings them."""
        request = session_service_pb2.AppendRowsRequest(session_id=self.id)
        for _ in range(tokens // TURN_TOKENS):
            request.input.rows.rows.add().user.content.add().text.text = self._said()
            request.input.rows.rows.add().assistant.content.add().text.text = self._said()
        self.sessions.AppendRows(request)

    def turn(self) -> tuple[float, compaction_service_pb2.PrepareRequestResponse]:
        """A whole run of one call; the seconds of its PrepareRequest."""
        self._turns += 1
        run = f"run-{self._turns}"
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=run, reply=compaction_pb2.REPLY_MODE_NONE
        )
        request.shape.model.CopyFrom(self.model)
        request.append.rows.rows.add().user.content.add().text.text = self._said()
        answers: list[compaction_service_pb2.PrepareRequestResponse] = []
        seconds = timed(lambda: answers.append(self.compaction.PrepareRequest(request, timeout=SECONDS + 120)))
        outcome = compaction_service_pb2.Outcome(
            prepare_id=answers[0].prepare_id, finish=compaction_pb2.RUN_OUTCOME_COMPLETED
        )
        outcome.answer.input.rows.rows.add().assistant.content.add().text.text = self._said()
        self.compaction.RecordAnswer(
            compaction_service_pb2.RecordAnswerRequest(session_id=self.id, run_id=run, outcome=outcome)
        )
        return seconds, answers[0]

    def folded(self) -> float:
        """Turns until one is folded; the longest wait among them."""
        waits: list[float] = []
        for _ in range(200):
            seconds, answer = self.turn()
            waits.append(seconds)
            if answer.action == compaction_pb2.ACTION_SEND_FOLDED:
                return max(waits)
            assert not answer.skip, f"the fold was skipped: {answer.skip}"
        raise AssertionError("T was never crossed")

    def started(self) -> bool:
        request = event_service_pb2.ListEventsRequest(session_id=self.id, page_size=500)
        return any(e.kind == event_pb2.EVENT_KIND_COMPACTION_STARTED for e in self.events.ListEvents(request).events)

    def calls(self) -> int:
        totals = self.sessions.GetSession(session_service_pb2.GetSessionRequest(session_id=self.id)).totals
        return sum(usage.calls for usage in totals.usage)


def run(rounds: int) -> dict[str, Any]:
    """The ratio of the waits, ahead over foreground, after a warm-up round whose provider is quick."""
    ratios, waits = [], []
    with FakeProvider() as provider, ThreadPoolExecutor(1) as threads:
        settings = {
            "providers.bench.type": "openai", "providers.bench.base_url": provider.base_url("openai"),
            "memory.embedder": "none",
        }  # fmt: skip
        args = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with product(*args) as channel:
            for number in range(rounds + 1):
                provider.otherwise = Does(gate=NEVER, seconds=SECONDS if number else 0.5)
                ahead, foreground = _round(channel, number, threads)
                if number:
                    waits.append((ahead, foreground))
                    ratios.append(ahead / foreground)
    middle = sorted(waits)[len(waits) // 2]
    return {
        "goal": GOAL,
        "provider_seconds": SECONDS,
        "seed": SEED,
        "wait_ratio": spread(ratios),
        "reached": spread(ratios)["median"] <= 0.01,
        "milliseconds": {"ahead": middle[0] * 1e3, "foreground": middle[1] * 1e3},
    }


def _round(channel: Any, number: int, threads: ThreadPoolExecutor) -> tuple[float, float]:
    ahead = Host(channel, f"ahead-{number}", ahead=True)
    ahead.fill(int(THRESHOLD * FRACTION * 0.9))
    waited = 0.0
    while not ahead.started():
        waited = max(waited, ahead.turn()[0])
    other = Host(channel, f"foreground-{number}", ahead=False)
    other.fill(int(THRESHOLD * 0.95))
    waiting = threads.submit(other.folded)
    # The agent works for as long as its provider summarizes: more turns would cross T before the summary is there.
    while ahead.calls() == 0:
        time.sleep(0.05)
    foreground = waiting.result()
    return max(waited, ahead.folded()), foreground
