"""Hosts that write summaries over their own stream: they answer, fail, are late, blank or too long, and die (S6)."""

from __future__ import annotations

import threading

import grpc
from foldline.v1 import compaction_pb2, policy_pb2, row_pb2

from tests.model.host import Scene, policy
from tests.model.host_mistakes import HostMistakes
from tests.model.state import State, require
from tests.support.curators import Curator, Task

MOODS = ("answers", "answers", "answers", "fails", "late", "blank", "huge", "stranger", "dies")
MOST = 3
TEXT = "The parser dropped commas of config/app.toml; it was mended."
_CURATOR = policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR
_BEFORE_THE_RUN = (compaction_pb2.FOLD_SCOPE_WHOLE, compaction_pb2.FOLD_SCOPE_STAGE_1)


class Writers(HostMistakes):
    """Streams come and go between steps; what they do with a task is the mood of the moment."""

    mood = "answers"

    def curate(self, scene: Scene) -> None:
        """One joins, or one leaves, and the mood changes."""
        self.mood = self.rng.choice(MOODS)
        self.writers = [w for w in self.writers if not w.done.is_set()]
        if self.writers and self.rng.random() < 0.3:
            self.writers.pop().curator.close()
        elif len(self.writers) < MOST:
            self.writers.append(Writer(self))

    def wrote(self, state: State, override: policy_pb2.Policy, record: compaction_pb2.CompactionRecord) -> None:
        """S6, F5: while the policy names curators, none but they write what stood before the run, and they no more."""
        source = policy(state.policy)
        source.MergeFrom(override)
        if source.summary.source != _CURATOR:
            return
        wrote = record.summary_source == row_pb2.SUMMARY_SOURCE_CURATOR
        before = record.scope in _BEFORE_THE_RUN
        require(wrote == before, "S6", f"source {record.summary_source} wrote a fold of scope {record.scope}: {record}")
        self.counts["written by curators"] += wrote


class Writer:
    """One stream and the thread that serves it."""

    def __init__(self, host: Writers) -> None:
        self.host, self.done = host, threading.Event()
        self.curator = Curator(host.client, background=host.rng.random() < 0.5)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while self._does(self.curator.task(seconds=3_600)):
                pass
        except (AssertionError, grpc.RpcError):
            pass  # the stream has ended
        finally:
            self.done.set()

    def _does(self, task: Task) -> bool:
        """Whether the stream goes on."""
        mood, curator = self.host.mood, self.curator
        if mood == "answers":
            curator.answer(task, TEXT)
        elif mood == "fails":
            curator.fail(task, "no")
        elif mood == "blank":
            curator.answer(task, " \n")
        elif mood == "huge":
            curator.answer(task, "word " * 40_000)
        elif mood == "stranger":
            curator.answer("t-none", TEXT)
        elif mood == "dies":
            curator.close()
        return mood != "dies"
