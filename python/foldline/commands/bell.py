"""Tells watchers that a session has new events."""

from __future__ import annotations

import threading
from collections import defaultdict


class EventBell:
    """Wakes watchers after a commit; what they then read is the store, so none is missed and none comes twice."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung: dict[int, int] = defaultdict(int)

    def ring(self, key: int) -> None:
        with self._condition:
            self._rung[key] += 1
            self._condition.notify_all()

    def wake(self) -> None:
        """Wakes every watcher, to see whether its caller is still there."""
        with self._condition:
            for key in self._rung:
                self._rung[key] += 1
            self._condition.notify_all()

    def count(self, key: int) -> int:
        with self._condition:
            return self._rung[key]

    def wait(self, key: int, seen: int, timeout: float) -> int:
        """Waits until ``key`` was rung more than ``seen`` times, at most ``timeout`` seconds; returns the count."""
        with self._condition:
            self._condition.wait_for(lambda: self._rung[key] > seen, timeout)
            return self._rung[key]
