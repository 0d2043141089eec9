"""Listing and watching events (§13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foldline.commands.services import Caller, Services
from foldline.domain.events import Event

PAGE = 256


def list_events(
    services: Services, caller: Caller, session_id: str, after: int, limit: int
) -> tuple[list[Event], bool]:
    """Events with a number above ``after``, and whether more follow.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            key = live.session.key
        found = services.store.events(key, after, limit + 1)
        return found[:limit], len(found) > limit


def watch_events(
    services: Services,
    caller: Caller,
    session_id: str,
    after: int,
    is_active: Callable[[], bool],
    heartbeat: float = 15.0,
) -> Iterator[Event | None]:
    """Every event after ``after``, in order, then those to come; None after ``heartbeat`` seconds without one.

    Where there is nothing to tell yet, the first None comes at once: it says that the watch stands.
    Ends when ``is_active`` says that the caller is gone, or when the session is deleted.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    wait = 0.0
    while is_active():
        with services.sessions.use(caller.tenant, session_id) as live, live.locked():
            key = live.session.key
        seen = services.bell.count(key)
        found = services.store.events(key, after, PAGE)
        for event in found:
            after = event.seq
            yield event
        if not found and services.bell.wait(key, seen, wait) == seen:
            yield None
        wait = heartbeat
