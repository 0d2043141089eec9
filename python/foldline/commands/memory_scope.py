"""GetMemory, EnumerateScope, DropScope: a session's memory as its administrator sees it (M7)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter, StoredEntry

MIN_PAGE, PAGE, MAX_PAGE = 1, 100, 1000


@dataclass(frozen=True, slots=True)
class ScopeEntry:
    """A visible entry; ``pending`` while it waits for its vector (M8)."""

    stored: StoredEntry
    pending: bool


@dataclass(frozen=True, slots=True)
class ScopePage:
    """Entries by offset and chunk, and the (offset, chunk) after which the next page starts; None at the end."""

    entries: tuple[ScopeEntry, ...] = ()
    following: tuple[int, int] | None = None
    scope_dropped: bool = False


def get_memory(services: Services, caller: Caller, session_id: str, offset: int, chunk: int) -> ScopePage:
    """One entry; none where there is none, or its row is active.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    page = _page(services, caller, session_id, MemoryFilter(last_offset=offset), (offset, chunk - 1), 1)
    found = tuple(e for e in page.entries if e.stored.entry.chunk == chunk)
    return ScopePage(found, scope_dropped=page.scope_dropped)


def enumerate_scope(
    services: Services, caller: Caller, session_id: str, where: MemoryFilter, limit: int, after: tuple[int, int],
    max_bytes: int,
) -> ScopePage:  # fmt: skip
    """A page of the visible entries that pass a filter, each entry once (M7).

    Args:
        after: (offset, chunk) of the last entry of the page before; (0, -1) starts.
        max_bytes: of texts, at which a page ends before ``limit``; a page holds at least one entry.

    Raises:
        FoldlineError: ADMIN_ONLY, SESSION_NOT_FOUND, MEMORY_LIMIT_EXCEEDED, FIELD_VALIDATION.
    """
    caller.require_admin()
    if not MIN_PAGE <= limit <= MAX_PAGE:
        raise FoldlineError(
            Reason.MEMORY_LIMIT_EXCEEDED, f"limit is {limit}, allowed is {MIN_PAGE}-{MAX_PAGE}",
            limit=limit, minimum=MIN_PAGE, maximum=MAX_PAGE,
        )  # fmt: skip
    page = _page(services, caller, session_id, services.memory.checked(where), after, limit)
    sizes = accumulate(len(e.stored.entry.text.encode()) for e in page.entries)
    carried = max(1, sum(size <= max_bytes for size in sizes))
    if carried >= len(page.entries):
        return page
    return replace(page, entries=page.entries[:carried], following=_position(page.entries[carried - 1]))


def _page(
    services: Services, caller: Caller, session_id: str, where: MemoryFilter, after: tuple[int, int], limit: int
) -> ScopePage:
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session = live.session
        if session.memory_dropped:
            return ScopePage(scope_dropped=True)
        found = services.store.enumerate_memory(session.key, where, after, limit + 1)
        entries = tuple(ScopeEntry(e, services.memory.is_pending(e)) for e in found[:limit])
        return ScopePage(entries, _position(entries[-1]) if len(found) > limit else None)


def _position(found: ScopeEntry) -> tuple[int, int]:
    return found.stored.entry.offset, found.stored.entry.chunk


def drop_scope(services: Services, caller: Caller, session_id: str, request_id: str = "") -> int:
    """Removes every text, vector and lexical row of a session's memory for good; returns how many entries (M7).

    A fold that is under way meanwhile commits without entries: its commit reads the session as it is then. The archive
    stays, and so does what forks share.

    Raises:
        FoldlineError: ADMIN_ONLY, SESSION_NOT_FOUND, REQUEST_ID_REUSED.
    """
    caller.require_admin()
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        session = live.session
        found = repeated(services, caller, session.key, request_id)
        if found is not None:
            return answer_of(found, int)
        dropped = services.store.drop_scope(
            session.key, lambda entries: remember(services, caller, request_id, entries)
        )
        live.session = replace(session, memory_dropped=True)
    services.memory.forget(session.key)
    return dropped
