"""What a transcript is made of: units, turns, the open run's request and rounds (§1), and what must stay (V5).

Everything is read off the list and the open run. Choices where §1 is silent:

- An assistant row continues a paused one of its run where nothing but that row's results (or system rows) stands
  between, or where it holds the result of a server call it did not make: a row that was sent after the pause without
  the server call answers another request.
- A request of a closed run is the group before the first assistant row of its id; without a user row in it, that
  group starts a turn (a run that something other than a user opened).
- Rows of no run that an assistant row of no run stands behind are history (an import): their results count as carried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from foldline.domain.enums import RowKind
from foldline.domain.folding import RowFacts, Snapshot
from foldline.domain.session import OpenRun

REQUEST_KINDS = frozenset({RowKind.USER, RowKind.INJECTED_CONTEXT, RowKind.NOTICE})
SUMMARY_KINDS = frozenset({RowKind.COMPACTION_SUMMARY, RowKind.PROVIDER_COMPACTION})
UNSUMMARIZED_KINDS = SUMMARY_KINDS | {RowKind.SYSTEM}
"""Kinds that are no source of a summary; alone they are no reason to fold (F11, V1)."""


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
class Turn:
    """A turn as list positions, ``end`` excluded. The rows before the first start are turn 0."""

    start: int
    end: int


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
    groups = _units(rows)
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
        turns=_turns(rows, groups, unit_of, run, request, run_start, request_end),
        run_start=run_start,
        request_end=request_end,
        request=tuple(r.offset for r in rows if r.offset in request),
        rounds=tuple(tuple(r) for r in rounds),
    )


def must_stay(snapshot: Snapshot, structure: Structure, *, newest_round: bool = True) -> frozenset[int]:
    """Offsets that no fold may take (V5), with their whole units.

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
        if row.run_id or row.offset <= snapshot.prepared_through or not joins_request(row):
            break
        found.add(row.offset)
    return found


def joins_request(row: RowFacts) -> bool:
    """Whether a row can be part of a request (§1): the group ends at every other assistant or result row."""
    return row.kind in REQUEST_KINDS or (row.kind == RowKind.TOOL_RESULT and row.late)


def call_identity(row: RowFacts) -> int:
    """The offset that results of an assistant row's calls name (R3, K2)."""
    return row.offset if row.derived_from is None else row.derived_from


def run_ids(run: OpenRun) -> frozenset[str]:
    """Ids under which rows of the open run may stand: its own, none, and the run's that it continues."""
    return frozenset({"", run.run_id, run.continues})


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


def _request_span(rows: Sequence[RowFacts], request: frozenset[int], run: OpenRun | None) -> tuple[int, int]:
    if run is None:
        return len(rows), len(rows)
    first = next((p for p, r in enumerate(rows) if r.offset in request), None)
    if first is None:
        first = next((p for p, r in enumerate(rows) if r.offset >= run.opened_offset), len(rows))
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


def _units(rows: Sequence[RowFacts]) -> list[list[int]]:
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
        if joins_request(row):
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


def _turns(
    rows: Sequence[RowFacts], groups: Sequence[Sequence[int]], unit_of: Sequence[int], run: OpenRun | None,
    request: frozenset[int], run_start: int, request_end: int,
) -> tuple[Turn, ...]:  # fmt: skip
    steering = run_ids(run) if run else frozenset()
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
        if joins_request(row):
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
