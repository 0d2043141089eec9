"""Runs a summary's calls apart from the caller's thread, so that its time is kept whatever a library does (S5)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_POLL = 0.05
_GRACE = 1.0


class Cancelled(Exception):
    """Nobody wants the result any more."""


def run(work: Callable[[], Coroutine[Any, Any, T]], *, seconds: float, cancelled: Callable[[], bool]) -> T:
    """Runs ``work`` in an event loop of its own and closes its connections with it.

    Raises:
        TimeoutError: it took longer than ``seconds``.
        Cancelled: ``cancelled`` said so meanwhile.
        Exception: whatever ``work`` raises.
    """
    result: concurrent.futures.Future[T] = concurrent.futures.Future()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        async with asyncio.timeout(seconds):
            return await work()

    def body() -> None:
        try:
            result.set_result(asyncio.run(main()))
        except BaseException as error:
            result.set_exception(error)

    # A library that holds its thread, in a name look-up say, is left behind rather than waited for.
    threading.Thread(target=contextvars.copy_context().run, args=(body,), name="summary", daemon=True).start()
    end, stopping = time.monotonic() + seconds + _GRACE, False
    while not concurrent.futures.wait([result], timeout=_POLL).done:
        now = time.monotonic()
        if now > end:
            raise Cancelled if stopping else TimeoutError
        if not stopping and cancelled():
            stopping, end = True, now + _GRACE
            _stop(running)
    if stopping:
        raise Cancelled
    return result.result()


def _stop(running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]]) -> None:
    for loop, task in running:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:
            continue  # It ended just now, and its loop with it.
