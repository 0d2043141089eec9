"""SearchMemory: recall within one session (M1)."""

from __future__ import annotations

from foldline.commands.services import Caller, Services
from foldline.domain.memory import MemoryAnswer, MemoryQuery


def search_memory(services: Services, caller: Caller, session_id: str, query: MemoryQuery) -> MemoryAnswer:
    """Ranks what was folded away.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, EMPTY_QUERY, MEMORY_LIMIT_EXCEEDED (M5).
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session = live.session
        return services.memory.search(session, query)
