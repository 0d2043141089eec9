"""What a transcript is made of: units, turns, the open run's request and rounds (§1), and what must stay (V5).

Everything is read off the list and the open run. Rows of no run that an assistant row of no run stands behind are
history (an import): their results count as carried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from foldline.domain.enums import RowKind
from foldline.domain.folding import RowFacts, Snapshot
from foldline.domain.session import OpenRun
from foldline.engine.appending import joins_request
from foldline.engine.turns import Turn, turns_of
from foldline.engine.units import SUMMARY_KINDS, call_identity, continuations, units_of


class Region(StrEnum):
    """Where a unit stands by the open run; without an open run everything is BEFORE."""

    BEFORE = "BEFORE"
    REQUEST = "REQUEST"
    RUN = "RUN"


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows that move, fold and stay as one (§1), in list order.

    Attributes:
        round: index of the live round of the open run that the unit belongs to; None outside rounds.
    """

    positions: tuple[int, ...]
    offsets: tuple[int, ...]
    region: Region = Region.BEFORE
    round: int | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """Attributes:
    units: every row is in exactly one; ordered by their first rows.
    unit_of: index of the unit of each list position.
    turns: they cover the list in order; no unit is in two.
    run_start: position of the first row of the open run's request; the length of the list without an open run.
    request_end: position behind the last row of the request as it was when the run's first assistant row came.
    request: offsets of the request's live rows.
    rounds: live rounds of the open run as offsets, oldest first, each with all its units.
    """

    units: tuple[Unit, ...]
    unit_of: tuple[int, ...]
    turns: tuple[Turn, ...]
    run_start: int
    request_end: int
    request: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]


def analyze(snapshot: Snapshot) -> Structure:
    """Reads the structure off a snapshot (§1); linear in its rows."""
    rows, run = snapshot.rows, snapshot.open_run
    request = frozenset(run.request) if run else frozenset()
    run_start, request_end = _request_span(rows, request, run)
    groups = units_of(rows)
    unit_of = [0] * len(rows)
    for index, group in enumerate(groups):
        for position in group:
            unit_of[position] = index
    round_of = _round_starts(rows, groups, unit_of, request_end)
    units = tuple(
        Unit(
            tuple(group),
            tuple(rows[p].offset for p in group),
            _region(group, rows, request, run_start, request_end),
            round_of.get(index),
        )
        for index, group in enumerate(groups)
    )
    rounds: list[list[int]] = [[] for _ in set(round_of.values())]
    for position, row in enumerate(rows):
        number = units[unit_of[position]].round
        if number is not None and units[unit_of[position]].region is Region.RUN:
            rounds[number].append(row.offset)
    return Structure(
        units=units,
        unit_of=tuple(unit_of),
        turns=turns_of(rows, groups, unit_of, run, request, run_start, request_end),
        run_start=run_start,
        request_end=request_end,
        request=tuple(r.offset for r in rows if r.offset in request),
        rounds=tuple(tuple(r) for r in rounds),
    )


def must_stay(snapshot: Snapshot, structure: Structure, *, newest_round: bool = True) -> frozenset[int]:
    """Offsets that no fold may take (V5, F9), with their whole units.

    Args:
        newest_round: False for the forced fold of a continued run, which takes the newest round too (4.4).
    """
    rows, run = snapshot.rows, snapshot.open_run
    kept: set[int] = {r.offset for r in rows if r.kind == RowKind.SYSTEM and not r.superseded}
    kept.update(r.offset for r in rows if r.pinned)
    kept.update(uncarried_results(snapshot))
    kept.update(trailing_of_no_run(snapshot))
    if run is not None:
        kept.update(structure.request)
        kept.update(
            rows[p].offset
            for unit in structure.units
            if unit.region is not Region.BEFORE
            for p in unit.positions
            if unit.region is Region.REQUEST or rows[p].kind == RowKind.USER
        )
        if newest_round and structure.rounds:
            kept.update(structure.rounds[-1])
    return close_over_units(structure, kept)


def close_over_units(structure: Structure, offsets: Iterable[int]) -> frozenset[int]:
    """``offsets`` with every row of every unit they touch."""
    wanted = set(offsets)
    return frozenset(o for unit in structure.units if not wanted.isdisjoint(unit.offsets) for o in unit.offsets)


def uncarried_results(snapshot: Snapshot) -> set[int]:
    """Results that no request carried yet (F6, V5)."""
    found: set[int] = set()
    imported_through = 0
    for row in reversed(snapshot.rows):
        if row.kind == RowKind.ASSISTANT and not row.run_id:
            imported_through = max(imported_through, row.offset)
        elif row.kind == RowKind.TOOL_RESULT and row.offset > snapshot.carried_through:
            imported = not row.run_id and row.offset < imported_through
            found.update(() if imported else (row.offset,))
    return found


def trailing_of_no_run(snapshot: Snapshot) -> set[int]:
    """Rows that wait for an answer at the end of the list, of no run, appended since the last PrepareRequest (V5).

    Rows before the last assistant or other result row are history, also when one append carried both (§1 request).
    """
    found: set[int] = set()
    for row in reversed(snapshot.rows):
        if row.kind == RowKind.SYSTEM:
            continue
        if row.run_id or row.offset <= snapshot.prepared_through or not joins_request(row.kind, row.late):
            break
        found.add(row.offset)
    return found


def _request_span(rows: Sequence[RowFacts], request: frozenset[int], run: OpenRun | None) -> tuple[int, int]:
    if run is None:
        return len(rows), len(rows)
    first = next((p for p, r in enumerate(rows) if r.offset in request), None)
    if first is None:
        first = next((p for p, r in enumerate(rows) if call_identity(r) >= run.opened_offset), len(rows))
        return first, first
    end = first
    for position in range(first, len(rows)):
        row = rows[position]
        if row.kind == RowKind.ASSISTANT or row.kind in SUMMARY_KINDS:
            break
        if row.offset in request:
            end = position + 1
    return first, end


def _region(
    group: Sequence[int], rows: Sequence[RowFacts], request: frozenset[int], run_start: int, request_end: int
) -> Region:
    if any(rows[p].offset in request for p in group):
        return Region.REQUEST
    first = group[0]
    if first < run_start:
        return Region.BEFORE
    # What other runs left between the rows of a request moves with it: a summary must not stand inside a request.
    return Region.REQUEST if first < request_end else Region.RUN


def _round_starts(
    rows: Sequence[RowFacts], groups: Sequence[Sequence[int]], unit_of: Sequence[int], request_end: int
) -> dict[int, int]:
    """Round number by unit index; rows behind an assistant row belong to its round up to the next one."""
    joined = continuations(rows)
    rounds: dict[int, int] = {}
    number = -1
    for position in range(request_end, len(rows)):
        first = groups[unit_of[position]][0]
        if rows[position].kind == RowKind.ASSISTANT and position not in joined and first >= request_end:
            number += 1
        if number >= 0 and first >= request_end:
            rounds.setdefault(unit_of[position], number)
    return rounds
