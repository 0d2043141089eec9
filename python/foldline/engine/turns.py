"""Turns (§1): where they start, and that none starts inside a unit.

A request of a closed run is the group before the first assistant row of its id; without a user row in it, that group
starts a turn (a run that something other than a user opened).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from foldline.domain.enums import RowKind
from foldline.domain.folding import RowFacts
from foldline.domain.session import OpenRun
from foldline.engine.appending import joins_request


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as list positions, ``end`` excluded. The rows before the first start are turn 0."""

    start: int
    end: int


def turns_of(
    rows: Sequence[RowFacts], groups: Sequence[Sequence[int]], unit_of: Sequence[int], run: OpenRun | None,
    request: frozenset[int], run_start: int, request_end: int,
) -> tuple[Turn, ...]:  # fmt: skip
    # Its own rows, those of none, and those of the run it continues steer the open run (§1 turn).
    steering = {"", run.run_id, run.continues} if run else set[str]()
    opening = [
        p for p, r in enumerate(rows) if r.kind == RowKind.USER and not (p >= request_end and r.run_id in steering)
    ]
    asked = [r for r in rows[run_start:request_end] if r.offset in request]
    if any(_opens(r) for r in asked) and not any(r.kind == RowKind.USER for r in asked):
        opening.append(run_start)
    opening += _notice_openings(rows, request)
    # A unit begins with the injected rows of its user row: they belong to its turn.
    starts = {groups[unit_of[p]][0] for p in opening}
    moved = _behind_units(starts, [(g[0], g[-1]) for g in groups if len(g) > 1], len(rows))
    return tuple(Turn(a, b) for a, b in pairwise(sorted({0, len(rows)} | moved)))


def _opens(row: RowFacts) -> bool:
    return row.kind == RowKind.NOTICE or (row.kind == RowKind.TOOL_RESULT and row.late)


def _notice_openings(rows: Sequence[RowFacts], open_request: frozenset[int]) -> list[int]:
    """Starts of turns of closed runs that no user opened: where the run id of assistant rows changes."""
    starts: list[int] = []
    last_run, group = "", list[int]()
    for position, row in enumerate(rows):
        if joins_request(row.kind, row.late):
            group.append(position)
        elif row.kind == RowKind.ASSISTANT:
            if row.run_id and row.run_id != last_run and not any(rows[p].offset in open_request for p in group):
                own = [p for p in group if rows[p].run_id in ("", row.run_id)] or group
                if any(_opens(rows[p]) for p in own) and not any(rows[p].kind == RowKind.USER for p in own):
                    starts.append(own[0])
            last_run, group = row.run_id, []
        elif row.kind != RowKind.SYSTEM:
            group = []
    return starts


def _behind_units(starts: Iterable[int], spans: Iterable[tuple[int, int]], length: int) -> set[int]:
    """A start inside a batch of calls and results moves behind the batch (§1 turn)."""
    last_of = [-1] * (length + 1)
    for first, last in spans:
        last_of[first] = max(last_of[first], last)
    reach, wanted = -1, set(starts)
    moved: set[int] = set()
    pending = False
    for position in range(length):
        pending = pending or position in wanted
        if pending and position > reach:
            moved.add(position)
            pending = False
        reach = max(reach, last_of[position])
    return moved
