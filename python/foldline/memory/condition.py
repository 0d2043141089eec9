"""Tells each session, once, when its memory does less than it should, and when it is whole again (M8, M9, §13)."""

from __future__ import annotations

from collections.abc import Callable

from foldline.domain.memory import MemoryHealth, MemoryReport
from foldline.domain.ports import Embedder, Store

WHOLE, UNAVAILABLE, ANEW, QUARANTINED = "", "unavailable", "anew", "quarantined"


class Condition:
    """What the event log says of the memory of each session, compared with how it is.

    Entries that wait a while behind a fold are no matter for it; that the embedder is not there is.

    Args:
        ring: told of a session that has a new event.
    """

    def __init__(self, store: Store, ring: Callable[[int], None]) -> None:
        self._store = store
        self._ring = ring

    def told(self) -> bool:
        """Whether some session was told of a state that may have ended meanwhile."""
        return self._store.memory_told()

    def report(self, embedder: Embedder | None, problem: str) -> None:
        """Compares, and writes an event where something changed.

        Args:
            problem: why nothing can be embedded now; empty where that is possible.
        """
        reports = []
        # Without the embedder also those searches go by words whose entries are all embedded.
        for health in self._store.memory_health(embedder.identity if embedder else "", every=bool(problem)):
            state, message = _state(health, problem)
            if state != health.told:
                reports.append(MemoryReport(health.key, state, message, health.pending, health.quarantined))
        for key in self._store.tell_memory(reports) if reports else ():
            self._ring(key)


def _state(health: MemoryHealth, problem: str) -> tuple[str, str]:
    """What a session is told, as a name that changes when it is to be told again, and in words."""
    if problem:
        return UNAVAILABLE, f"{problem}; {health.pending} entries wait, and searches go by words alone"
    if health.stale:
        return ANEW, f"{health.stale} entries have vectors of another embedder and are embedded anew"
    if health.pending and health.told in (UNAVAILABLE, ANEW):
        return health.told, ""
    if health.quarantined:
        text = f"{health.quarantined} entries could not be embedded and are found by words alone"
        return f"{QUARANTINED} {health.quarantined}", text
    if health.pending:
        return health.told, ""
    return WHOLE, "memory is whole again"
