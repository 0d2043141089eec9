"""A server on one folder that can be stopped, killed and started again under its clients."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from pathlib import Path

from foldline import _core
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.server import app
from foldline.summarize.extractive import ExtractiveSummarizer

from tests.support.server import Client, Process, config_of

CATALOG = {
    "chat": {"context_window": 3_000, "type": "openai", "encoding": "o200k_base"},
    "claude": {"context_window": 2_600, "type": "anthropic"},
    "tiny": {"context_window": 1_500, "type": "openai", "encoding": "cl100k_base"},
    "roomy": {"context_window": 60_000, "type": "openai", "encoding": "o200k_base"},
    "narrow": {"context_window": 60_000, "type": "anthropic", "body_cap_bytes": 14_000},
    "ceiling": {"context_window": 9_000, "input_ceiling": 2_500, "type": "google"},
}
"""Small windows, so that folds, bounds and refusals are common."""


class Unreliable:
    """The extractive source, which sometimes fails, blanks or takes its time, as a paid one does."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._inner = ExtractiveSummarizer(lambda text: _core.count_tokens(text, "o200k_base"))
        self.rate = 0.0
        self.slow = 0.0
        self.calls = 0

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        with self._lock:
            self.calls += 1
            draw, kind = self._rng.random(), self._rng.randrange(4)
            delay = self._rng.random() * self.slow
        time.sleep(delay)
        if draw >= self.rate:
            return self._inner.summarize(request)
        if kind == 0:
            raise SummaryFailed(FailureKind.SUMMARIZER_TIMEOUT, "took too long")
        if kind == 1:
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, "no answer")
        made = self._inner.summarize(request)
        return replace(made, text=" \n" if kind == 2 else made.text * 40)


class Backend:
    """One data folder and the server on it, in this process or, where it is to be killed, in its own.

    Attributes:
        source: writes in the extractive source's place, ``paid`` as the configured provider; both in this process only.
        now: what the server's clock shows, in this process.
    """

    def __init__(self, folder: Path, *, separate: bool, seed: int) -> None:
        self.folder, self.separate = folder, separate
        self.catalog = folder / "models.json"
        self.catalog.write_text(json.dumps(CATALOG))
        self.source, self.paid = Unreliable(seed), Unreliable(seed + 1)
        self.now = 1_700_000_000.0
        self._server: app.Server | None = None
        self._process: Process | None = None
        self.client: Client
        self.start()

    def clock(self) -> float:
        """What the server's clock shows."""
        return time.time() if self.separate else self.now

    def start(self) -> None:
        settings = {
            "catalog": str(self.catalog),
            "policy.background.enabled": False,
            "policy.summary.source": "EXTRACTIVE",
        }
        if self.separate:
            self._process = Process(
                self.folder, "--set", f"catalog={self.catalog}", "--set", "policy.background.enabled=false"
            )
            address = self._process.wait_ready()
        else:
            self._server = app.build(
                config_of(self.folder, settings), self.source, lambda: self.now, provider=self.paid
            )
            self._server.start()
            self._server.ready()
            address = self._server.addresses[0]
        self.client = Client(address)

    def stop(self) -> None:
        self.client.channel.close()
        if self._process is not None:
            self._process.signal(signal.SIGTERM)
            assert self._process.wait() == 0, self._process.log.read_text()[-2000:]
            self._process.close()
            self._process = None
        if self._server is not None:
            assert self._server.stop(), "calls were still running at the end of the drain"
            self._server = None

    def kill(self) -> None:
        """SIGKILL; the client keeps its channel, whose calls fail."""
        assert self._process is not None
        self._process.close()
        self._process = None
        self.client.channel.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        elif self._server is not None:
            self.stop()
