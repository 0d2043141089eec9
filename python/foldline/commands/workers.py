"""Threads on which folds are worked out, apart from those that serve calls (A1, A5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

log = structlog.get_logger(__name__)

LOCAL_THREADS, PAID_THREADS = 1, 32
"""Ahead of need: what this machine writes itself must leave it time to serve; calls of others mostly wait."""


class Workers:
    """Runs folds; one that a caller waits for starts at once, one ahead of need when there is a thread.

    ``stopping`` is set when the server stops: whoever works then writes nothing more.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._running: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._ahead = {
            paid: ThreadPoolExecutor(threads, thread_name_prefix=f"ahead-{'paid' if paid else 'local'}")
            for paid, threads in ((False, LOCAL_THREADS), (True, PAID_THREADS))
        }

    def now(self, work: Callable[[], None]) -> None:
        """Runs ``work`` on a thread of its own."""
        thread = threading.Thread(target=lambda: self._run(work), name="fold", daemon=True)
        with self._lock:
            self._running.add(thread)
        thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            _logged(work)
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())

    def ahead(self, work: Callable[[], None], *, paid: bool, dropped: Callable[[], None]) -> None:
        """Runs ``work`` when a thread for such work is free, or ``dropped`` where the server stops."""
        if self.stopping.is_set():
            dropped()
            return
        self._ahead[paid].submit(lambda: dropped() if self.stopping.is_set() else _logged(work))

    def stop(self, seconds: float) -> None:
        """Lets what is under way end for a while; what does not is ended as interrupted at the next start (§13)."""
        self.stopping.set()
        for pool in self._ahead.values():
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join(seconds / max(1, len(running)))


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # A panic of the core is no Exception.
        log.error("a fold's thread failed", exc_info=error)
