"""SearchMemory: recall within one session (M1)."""

from __future__ import annotations

from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.memory import MemoryAnswer, MemoryQuery

HITS = 5
"""Hits of a search that names no limit (M5)."""


def search_memory(
    services: Services, caller: Caller, session_id: str, query: MemoryQuery, max_tokens: int | None = None
) -> MemoryAnswer:
    """Ranks what was folded away.

    Args:
        query: its fusion and index are those of the session's policy.
        max_tokens: budget of the answer's texts; None for the session's policy (M4).

    Raises:
        FoldlineError: SESSION_NOT_FOUND, EMPTY_QUERY, MEMORY_LIMIT_EXCEEDED (M5).
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session = live.session
        policy = services.policy(session).policy.memory
        budget = policy.max_answer_tokens if max_tokens is None else max_tokens
        asked = replace(query, max_tokens=budget, fusion=policy.fusion, index=policy.index)
        return services.memory.search(session, asked)
