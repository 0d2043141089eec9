"""Which rows belong together, read off the list for the checks alone (V3, V4, V5).

``engine.structure`` derives units in another way for planning; where the two disagree, a check fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from foldline.domain.enums import RowKind
from foldline.domain.folding import RowFacts

WAITING = (RowKind.USER, RowKind.INJECTED_CONTEXT, RowKind.NOTICE)


def waits(row: RowFacts) -> bool:
    """Whether a row can wait in a request: all but answers and results that are not late (§1)."""
    return row.kind in WAITING or (row.kind == RowKind.TOOL_RESULT and row.late)


def links(rows: Sequence[RowFacts]) -> tuple[tuple[int, int], ...]:
    """Pairs of offsets that belong together (§1 unit), earlier in the list first."""
    pairs: list[tuple[int, int]] = []
    made: dict[int, int] = {}
    for row in rows:
        if row.kind == RowKind.ASSISTANT:
            made[row.offset if row.derived_from is None else row.derived_from] = row.offset
    for row in rows:
        if row.kind == RowKind.TOOL_RESULT and not row.late and row.call_offset in made:
            pairs.append((made[row.call_offset], row.offset))
    pairs += _paused(rows)
    pairs += _injected(rows)
    return tuple(pairs)


def _paused(rows: Sequence[RowFacts]) -> Iterator[tuple[int, int]]:
    for i, row in enumerate(rows):
        if row.kind != RowKind.ASSISTANT or not row.paused:
            continue
        own = row.offset if row.derived_from is None else row.derived_from
        for j in range(i + 1, len(rows)):
            if rows[j].kind == RowKind.ASSISTANT:
                between = [
                    r
                    for r in rows[i + 1 : j]
                    if r.kind != RowKind.SYSTEM
                    and not (r.kind == RowKind.TOOL_RESULT and r.call_offset == own and not r.late)
                ]
                if rows[j].run_id == row.run_id and (rows[j].resumes or not between):
                    yield row.offset, rows[j].offset
                break


def _injected(rows: Sequence[RowFacts]) -> Iterator[tuple[int, int]]:
    """An injected row and the user row behind it; without one, the last row of its group that is none."""
    group: list[RowFacts] = []
    for row in (*rows, None):
        if row is not None and row.kind == RowKind.SYSTEM:
            continue
        if row is not None and waits(row):
            group.append(row)
            continue
        for i, member in enumerate(group):
            if member.kind != RowKind.INJECTED_CONTEXT:
                continue
            users = [r for r in group[i + 1 :] if r.kind == RowKind.USER]
            others = [r for r in group if r.kind in (RowKind.USER, RowKind.NOTICE)]
            loose = [r for r in group[i + 1 :] if r.kind == RowKind.INJECTED_CONTEXT]
            if users:
                yield member.offset, users[0].offset
            elif others:
                yield min(member.offset, others[-1].offset), max(member.offset, others[-1].offset)
            elif loose:
                yield member.offset, loose[0].offset
        group = []


def inside_units(kept: Sequence[int], place: Mapping[int, int], pairs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Indices of the retained list at which a new row would stand inside a unit."""
    inside = [0] * (len(kept) + 1)
    for a, b in pairs:
        if a in place and b in place:
            low, high = sorted((place[a], place[b]))
            inside[low + 1] += 1
            inside[high + 1] -= 1 if high + 1 < len(inside) else 0
    found, depth = set[int](), 0
    for index, change in enumerate(inside):
        depth += change
        if depth > 0 and index < len(kept):
            found.add(index)
    return frozenset(found)
