"""Taking the oldest completed tool calls out of the list (K2): which there are, and what takes their rows' place.

A call is completed once it has a final result; it goes with every result it has in the list. Its row goes whole where
nothing is left of it, else a derived row takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from foldline.domain.enums import RowKind, StopReason
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import RowFacts, Snapshot, is_paused
from foldline.domain.rows import AssistantRow, ContentBlock, ReasoningBlock, TextBlock, ToolCallBlock
from foldline.domain.session import CallState
from foldline.engine.structure import Region, Structure, close_over_units, uncarried_results
from foldline.engine.units import call_identity, continuations


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A completed call of the list.

    Attributes:
        row: offset of the row that stands for it in the list; ``offset`` is that of the row that made it first (R3).
        results: offsets of its results in the list.
        history: it stands before the open run.
    """

    row: int
    offset: int
    call_id: str
    results: tuple[int, ...]
    history: bool


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """A decided trim.

    Attributes:
        calls: what goes, oldest first.
        by_row: ids of the calls that each row loses.
        results: offsets of the results that go.
    """

    calls: tuple[CompletedCall, ...]
    by_row: Mapping[int, frozenset[str]]
    results: frozenset[int]


def plan_trim(snapshot: Snapshot, structure: Structure, calls: Sequence[CallState], count: int) -> TrimPlan:
    """The ``count`` oldest completed calls (K2).

    Args:
        calls: the session's call states; they know of answers that are no longer in the list.

    Raises:
        FoldlineError: TRIM_COUNT_TOO_LARGE with how many there are.
    """
    there = completed_calls(snapshot, structure, calls)
    if count > len(there):
        raise FoldlineError(
            Reason.TRIM_COUNT_TOO_LARGE,
            f"{count} completed tool calls were to be trimmed, there are {len(there)} (those of the newest round, of "
            "the open request and of pinned rows do not count, nor those whose results were not sent yet)",
            count=count, available=len(there),
        )  # fmt: skip
    chosen = there[:count]
    by_row: dict[int, frozenset[str]] = {}
    for call in chosen:
        by_row[call.row] = by_row.get(call.row, frozenset()) | {call.call_id}
    return TrimPlan(tuple(chosen), by_row, frozenset(o for c in chosen for o in c.results))


def completed_calls(snapshot: Snapshot, structure: Structure, calls: Sequence[CallState]) -> list[CompletedCall]:
    """Completed calls that may be trimmed, in list order."""
    final = {(c.offset, c.call_id) for c in calls if c.answered}
    results: dict[tuple[int, str], list[int]] = {}
    for row in snapshot.rows:
        if row.kind == RowKind.TOOL_RESULT and row.call_offset is not None:
            name = (row.call_offset, row.call_id)
            results.setdefault(name, []).append(row.offset)
            if not row.interim:
                final.add(name)
    held, uncarried = _held(snapshot, structure), uncarried_results(snapshot)
    run = snapshot.open_run
    found = []
    for position, row in enumerate(snapshot.rows):
        history = run is not None and structure.units[structure.unit_of[position]].region is Region.BEFORE
        for call_id in row.call_ids if row.offset not in held else ():
            name = (call_identity(row), call_id)
            own = results.get(name, [])
            if name in final and held.isdisjoint(own) and uncarried.isdisjoint(own):
                found.append(CompletedCall(row.offset, name[0], call_id, tuple(own), history))
    return found


def _held(snapshot: Snapshot, structure: Structure) -> frozenset[int]:
    """Rows whose calls do not count: of the newest round, the open request and pinned units."""
    rows, kept = snapshot.rows, {r.offset for r in snapshot.rows if r.pinned}
    kept.update(o for u in structure.units if u.region is Region.REQUEST for o in u.offsets)
    kept.update(structure.rounds[-1] if structure.rounds else ())
    joined = continuations(rows)
    # Between runs, and before a run's first answer, the newest round is that of the last answer there is.
    newest = next((p for p in reversed(range(len(rows))) if _begins_round(rows[p], p, joined)), len(rows))
    kept.update(r.offset for r in rows[newest:])
    return close_over_units(structure, kept)


def _begins_round(row: RowFacts, position: int, joined: Mapping[int, int]) -> bool:
    return row.kind == RowKind.ASSISTANT and position not in joined


def derive(body: AssistantRow, offset: int, gone: AbstractSet[str]) -> AssistantRow | None:
    """What is left of a row without some of its calls and the reasoning that led to them; None where that is nothing.

    Args:
        offset: of the row that made the calls first, whose identity they keep.
    """
    content: list[ContentBlock] = []
    for thought, said in _led(body.content):
        left = [b for b in said if not (isinstance(b, ToolCallBlock) and b.call_id in gone)]
        content += [*(thought if len(left) == len(said) else ()), *left]
    if all(isinstance(b, ReasoningBlock) or (isinstance(b, TextBlock) and not b.text.strip()) for b in content):
        return None
    made = msgspec.structs.replace(body, content=tuple(content), derived_from=offset)
    if is_paused(made) != is_paused(body):
        # What the last block tells of a row that names no reason must not change with it (§1 round).
        reason = StopReason.PAUSED if is_paused(body) else StopReason.OTHER
        made = msgspec.structs.replace(made, stop_reason=reason)
    return made


def _led(content: Sequence[ContentBlock]) -> list[tuple[list[ContentBlock], list[ContentBlock]]]:
    """Blocks as (reasoning, what follows it up to the next reasoning)."""
    parts: list[tuple[list[ContentBlock], list[ContentBlock]]] = []
    for block in content:
        if isinstance(block, ReasoningBlock):
            if not parts or parts[-1][1]:
                parts.append(([], []))
            parts[-1][0].append(block)
        else:
            if not parts:
                parts.append(([], []))
            parts[-1][1].append(block)
    return parts
