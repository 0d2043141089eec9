"""Listing and watching events (§13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from foldline.commands.services import Caller, Services
from foldline.domain.enums import EventKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event

PAGE = 256


def list_events(
    services: Services, caller: Caller, session_id: str, after: int, limit: int, kinds: Collection[EventKind] = ()
) -> tuple[list[Event], bool]:
    """Events with a number above ``after``, of ``kinds`` if any are named, and whether more follow.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    key = _key(services, caller, session_id)
    found: list[Event] = []
    while len(found) <= limit:
        page = services.store.events(key, after, PAGE)
        found += [e for e in page if not kinds or e.kind in kinds]
        if len(page) < PAGE:
            break
        after = page[-1].seq
    return found[:limit], len(found) > limit


def watch_events(
    services: Services,
    caller: Caller,
    session_id: str,
    after: int,
    is_active: Callable[[], bool],
    heartbeat: float,
    kinds: Collection[EventKind] = (),
) -> Iterator[tuple[Event | None, int]]:
    """Every event after ``after``, of ``kinds`` if any are named, in order, then those to come.

    With each comes the number up to which everything has been told: a watch that goes on after it misses none and
    repeats none. After ``heartbeat`` seconds without an event it comes alone; where there is nothing to tell yet, at
    once: it says that the watch stands. Ends when ``is_active`` says that the caller is gone.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, also once the session is deleted, whoever has its id then.
    """
    key = _key(services, caller, session_id)
    told = float("-inf")
    with services.bell.watching(key) as bell:
        while is_active():
            seen = bell.count()
            if _key(services, caller, session_id) != key:
                raise FoldlineError(
                    Reason.SESSION_NOT_FOUND, f"session {session_id} was deleted", session_id=session_id
                )
            found = services.store.events(key, after, PAGE)
            for event in found:
                after = event.seq
                if not kinds or event.kind in kinds:
                    yield event, after
                    told = time.monotonic()
            left = told + heartbeat - time.monotonic()
            if left <= 0 or (not found and bell.wait(seen, left) == seen):
                yield None, after
                told = time.monotonic()


def _key(services: Services, caller: Caller, session_id: str) -> int:
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        return live.session.key
