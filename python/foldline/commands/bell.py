"""Tells watchers that a session has new events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Watch:
    """What rings for the watchers of one session."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = 0
        self.watchers = 0

    def ring(self) -> None:
        with self._condition:
            self._rung += 1
            self._condition.notify_all()

    def count(self) -> int:
        """How often it has rung; for ``wait``, taken before the store is read."""
        return self._rung

    def wait(self, seen: int, timeout: float) -> int:
        """Waits until it was rung more than ``seen`` times, at most ``timeout`` seconds; returns the count."""
        with self._condition:
            self._condition.wait_for(lambda: self._rung > seen, timeout)
            return self._rung


class EventBell:
    """Wakes watchers after a commit; what they then read is the store, so none is missed and none comes twice.

    Only sessions that somebody watches take room here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, Watch] = {}

    def ring(self, key: int) -> None:
        """Called after the commit: who begins to watch later reads what was committed."""
        watch = self._watched.get(key)
        if watch is not None:
            watch.ring()

    def wake(self) -> None:
        """Wakes every watcher, to see whether its caller is still there."""
        with self._lock:
            watches = list(self._watched.values())
        for watch in watches:
            watch.ring()

    @contextmanager
    def watching(self, key: int) -> Iterator[Watch]:
        """What rings for ``key`` within the block."""
        with self._lock:
            watch = self._watched.setdefault(key, Watch())
            watch.watchers += 1
        try:
            yield watch
        finally:
            with self._lock:
                watch.watchers -= 1
                if watch.watchers == 0:
                    del self._watched[key]
