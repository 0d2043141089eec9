"""Threads that serve calls, with a bound on what may run and wait.

A threaded gRPC server queues without bound, so calls are counted here and refused (OVERLOADED) before they queue.
Streams hold a thread for as long as their client reads and have a pool of their own; so have health checks, which must
be answered under any load, and the refusals themselves, which wait for the end of the requests that they refuse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from foldline.config import Server


class CallPool(ThreadPoolExecutor):
    """Threads, and how many calls they run or hold back.

    Attributes:
        limit: calls that may run or wait.
        depth: calls that do.
    """

    def __init__(self, name: str, workers: int, limit: int) -> None:
        super().__init__(workers, thread_name_prefix=name)
        self.limit = limit
        self.depth = 0
        self._counting = threading.Lock()

    def full(self) -> bool:
        return self.depth >= self.limit

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._counting:
            self.depth += 1
        try:
            return super().submit(self._counted, fn, *args, **kwargs)
        except BaseException:
            self._left()
            raise

    def _counted(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            self._left()

    def _left(self) -> None:
        with self._counting:
            self.depth -= 1


class Pools:
    """The pools of one server."""

    def __init__(self, settings: Server) -> None:
        self.calls = CallPool("call", settings.workers, settings.max_calls)
        self.streams = CallPool("stream", settings.max_streams, settings.max_streams)
        self.health = CallPool("health", 2, 2**31)
        self.refusals = CallPool("refusal", 2, 2**31)

    def of(self, method: str, streams: bool) -> CallPool:
        """The pool that serves a method, by its full name and whether it streams either way."""
        if method.startswith("/grpc.health."):
            return self.health
        return self.streams if streams else self.calls

    def busy(self) -> int:
        """Calls and streams that run or wait."""
        return self.calls.depth + self.streams.depth

    def shutdown(self) -> None:
        """Takes no more calls; does not wait for those that run."""
        for pool in (self.calls, self.streams, self.health, self.refusals):
            pool.shutdown(wait=False, cancel_futures=True)
