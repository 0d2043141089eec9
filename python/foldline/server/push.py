"""Streams that are answered by calls, from any thread, instead of by an iterator.

grpcio takes the answers of an iterator on the thread that makes them: one that waits for the next request, or works on
one, could not say meanwhile that the stream is alive. Handing each answer to another thread would cost every step a
switch of threads. So the thread that reads a stream also sends its answers, and a second one sends what fills silence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.message import Message

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE = 0.5


def pushes(method: F) -> F:
    """Marks a servicer's method that takes (requests, call, stream) and answers by ``stream.send``."""
    method.pushes = True  # type: ignore[attr-defined]
    return method


class Pushed:
    """The answering side of one stream.

    Attributes:
        received, sent: bytes of messages.
        busy: whether a step is under way though the stream waits for its client, so that it does not end.
    """

    def __init__(self, push: Callable[[bytes | None], None], encode: Callable[[Message], bytes]) -> None:
        self.received = self.sent = 0
        self.busy: Callable[[], bool] = lambda: False
        self._push = push
        self._encode = encode
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._waiting = False
        self._ended = False

    def requests(self, raws: Iterator[bytes], read: Callable[[bytes], Any], stops: Callable[[], bool]) -> Iterator[Any]:
        """What the client sends, until it has sent all, or ``stops`` says that there is to be no further step."""
        while True:
            with self._lock:
                if self._ended or (stops() and not self.busy()):
                    return
                self._waiting = True
            raw = next(raws, None)
            with self._lock:
                self._waiting = False
                if raw is None or self._ended:
                    return
            self.received += len(raw)
            yield read(raw)

    def send(self, message: Message) -> None:
        """Sends a message; waits while the client takes none. Nothing is sent once the stream has ended.

        Raises:
            FoldlineError: MESSAGE_TOO_LARGE.
        """
        data = self._encode(message)
        with self._lock:
            self._send(data)

    def _send(self, data: bytes) -> None:
        if not self._ended:
            self._push(data)
            self.sent += len(data)
            self._last = time.monotonic()

    @contextmanager
    def beating(self, interval: float, beat: Callable[[], Message]) -> Iterator[None]:
        """Within the block, sends what ``beat`` makes whenever nothing was sent for ``interval`` seconds."""
        done = threading.Event()

        def run() -> None:
            while not done.wait(max(0.0, self._last + interval - time.monotonic())):
                # While an answer is being sent the stream is not silent, and if its client reads none, it stays so.
                if self._lock.acquire(timeout=interval):
                    try:
                        if time.monotonic() - self._last >= interval and not done.is_set():
                            self._send(self._encode(beat()))
                    finally:
                        self._lock.release()

        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def end(self, status: Callable[[], None] = lambda: None, *, if_waiting: bool = False) -> bool:
        """Ends the stream with what ``status`` sets, OK by default; False where it has ended before.

        Args:
            if_waiting: only while no step is under way, and from another thread than the stream's.
        """
        if not self._lock.acquire(timeout=_PATIENCE if if_waiting else -1):
            return False
        try:
            if self._ended or (if_waiting and (not self._waiting or self.busy())):
                return False
            self._ended = True
            status()
            self._push(None)
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Sends nothing more; what ends the stream comes from elsewhere."""
        with self._lock:
            self._ended = True
