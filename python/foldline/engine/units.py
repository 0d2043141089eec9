"""Units (§1): rows that move, fold and stay as one (F6, F7).

An assistant row continues a paused one of its run where nothing but that row's results (or system rows) stands
between, or where it holds the result of a server call it did not make: a row that was sent after the pause without the
server call answers another request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foldline.domain.enums import RowKind
from foldline.domain.folding import RowFacts
from foldline.engine.appending import joins_request

SUMMARY_KINDS = frozenset({RowKind.COMPACTION_SUMMARY, RowKind.PROVIDER_COMPACTION})
UNSUMMARIZED_KINDS = SUMMARY_KINDS | {RowKind.SYSTEM}
"""Kinds that are no source of a summary; alone they are no reason to fold (F11, V1)."""


def units_of(rows: Sequence[RowFacts]) -> list[list[int]]:
    """Positions by unit (§1 unit), each ascending, ordered by their first."""
    parent = list(range(len(rows)))

    def root(p: int) -> int:
        while parent[p] != p:
            parent[p] = parent[parent[p]]
            p = parent[p]
        return p

    def join(a: int, b: int) -> None:
        low, high = sorted((root(a), root(b)))
        parent[high] = low

    callers = {call_identity(r): p for p, r in enumerate(rows) if r.kind == RowKind.ASSISTANT}
    for position, row in enumerate(rows):
        if row.kind == RowKind.TOOL_RESULT and not row.late and row.call_offset in callers:
            join(callers[row.call_offset], position)
    for position, before in continuations(rows).items():
        join(before, position)
    for group in _waiting_groups(rows):
        _bind_injected(rows, group, join)
    found: dict[int, list[int]] = {}
    for position in range(len(rows)):
        found.setdefault(root(position), []).append(position)
    return sorted(found.values())


def _waiting_groups(rows: Sequence[RowFacts]) -> list[list[int]]:
    """Positions of rows that wait together for an answer: unbroken by an answer, another result or a summary."""
    groups: list[list[int]] = [[]]
    for position, row in enumerate(rows):
        if joins_request(row.kind, row.late):
            groups[-1].append(position)
        elif row.kind != RowKind.SYSTEM and groups[-1]:
            groups.append([])
    return groups


def _bind_injected(rows: Sequence[RowFacts], group: Sequence[int], join: Callable[[int, int], None]) -> None:
    """Injected context goes with the user row that follows it, else with the last row that is none (§2)."""
    after: int | None = None
    fallback = next((p for p in reversed(group) if rows[p].kind in (RowKind.USER, RowKind.NOTICE)), None)
    loose: int | None = None
    for position in reversed(group):
        if rows[position].kind == RowKind.USER:
            after = position
        elif rows[position].kind == RowKind.INJECTED_CONTEXT:
            host = after if after is not None else fallback
            host = host if host is not None else loose
            if host is not None:
                join(host, position)
            loose = position


def call_identity(row: RowFacts) -> int:
    """The offset that results of an assistant row's calls name (R3, K2)."""
    return row.offset if row.derived_from is None else row.derived_from


def continuations(rows: Sequence[RowFacts]) -> dict[int, int]:
    """Position of each assistant row that continues a paused one, to that one's position (§1 round)."""
    found: dict[int, int] = {}
    paused: int | None = None
    clear = True
    for position, row in enumerate(rows):
        if row.kind == RowKind.ASSISTANT:
            before = rows[paused] if paused is not None else None
            if paused is not None and before is not None and before.run_id == row.run_id and (clear or row.resumes):
                found[position] = paused
            paused, clear = (position if row.paused else None), True
        elif paused is not None and row.kind != RowKind.SYSTEM:
            own = row.kind == RowKind.TOOL_RESULT and row.call_offset == call_identity(rows[paused])
            clear = clear and own and not row.late
    return found
