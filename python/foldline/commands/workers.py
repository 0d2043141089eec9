"""Threads on which folds are worked out, apart from those that serve calls (A1, A5)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import structlog

from foldline.domain.errors import FoldlineError, Reason

log = structlog.get_logger(__name__)

LOCAL_THREADS, PAID_THREADS = 1, 32
"""Ahead of need: what this machine writes itself must leave it time to serve; calls of others mostly wait."""


class Workers:
    """Runs folds; one that a caller waits for starts at once, one ahead of need when there is a thread.

    Threads are daemons: a source that takes a minute must not hold up the end of the process, and what it writes then
    is void anyway. ``stopping`` is set when the server stops, ``ending`` before the calls that wait are cut off.
    """

    def __init__(self) -> None:
        self.stopping, self.ending = threading.Event(), threading.Event()
        self._running: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._most = {False: LOCAL_THREADS, True: PAID_THREADS}
        self._busy = {False: 0, True: 0}
        self._waiting: dict[bool, deque[tuple[Callable[[], None], Callable[[], None]]]] = {
            False: deque(),
            True: deque(),
        }

    def ends(self, *, manual: bool) -> bool:
        """Whether the server is so near its end that nobody waits for a fold: requests go out unfolded (A5).

        Raises:
            FoldlineError: NOT_READY for a ``manual`` caller, who may repeat the call (W7).
        """
        near = self.ending.is_set()
        if near and manual:
            raise stops()
        return near

    def now(self, work: Callable[[], None]) -> None:
        """Runs ``work`` on a thread of its own."""
        self._start(lambda: _logged(work), "fold")

    def ahead(self, work: Callable[[], None], *, paid: bool, dropped: Callable[[], None]) -> None:
        """Runs ``work`` when a thread for such work is free, or ``dropped`` where the server stops before."""
        with self._lock:
            if not self.stopping.is_set():
                self._waiting[paid].append((work, dropped))
                if self._busy[paid] >= self._most[paid]:
                    return
                self._busy[paid] += 1
        if self.stopping.is_set():
            dropped()
        else:
            self._start(lambda: self._drain(paid), "ahead")

    def _drain(self, paid: bool) -> None:
        while True:
            with self._lock:
                if not self._waiting[paid]:
                    self._busy[paid] -= 1
                    return
                work, dropped = self._waiting[paid].popleft()
            _logged(dropped if self.stopping.is_set() else work)

    def _start(self, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._running.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._running.add(thread)
        thread.start()

    def stop(self, seconds: float) -> None:
        """Lets what is under way end for a while; what does not is ended as interrupted at the next start (§13)."""
        self.stopping.set()
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join(seconds / max(1, len(running)))


def stops() -> FoldlineError:
    """What a caller is told that waited for a fold which the server's end cuts off (W7)."""
    message = "the server stops before the fold has ended; the session is as it was, or as the fold leaves it"
    return FoldlineError(Reason.NOT_READY, message, component="server")


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # A panic of the core is no Exception.
        log.error("a fold's thread failed", exc_info=error)
