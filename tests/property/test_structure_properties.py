"""§1, V5 over generated sessions: units and turns partition the list, and what must stay is whole."""

from __future__ import annotations

from foldline.domain.enums import RowKind
from foldline.engine.links import links
from foldline.engine.structure import Region, analyze, must_stay
from hypothesis import given

from tests.strategies import Operation, operations, play


@given(operations())
def test_units_and_turns_partition_the_list(ops: list[Operation]) -> None:
    snapshot = play(ops).snapshot()
    found = analyze(snapshot)
    assert sorted(p for u in found.units for p in u.positions) == list(range(len(snapshot.rows)))
    assert all(found.units[found.unit_of[p]].positions.count(p) == 1 for p in range(len(snapshot.rows)))
    edges = [p for t in found.turns for p in range(t.start, t.end)]
    assert edges == list(range(len(snapshot.rows)))
    turn_of = {p: i for i, t in enumerate(found.turns) for p in range(t.start, t.end)}
    assert all(len({turn_of[p] for p in u.positions}) == 1 for u in found.units)


@given(operations())
def test_units_are_what_the_checks_take_for_linked(ops: list[Operation]) -> None:
    """V4: two derivations of the same word."""
    snapshot = play(ops).snapshot()
    found = analyze(snapshot)
    unit_of = {o: i for i, u in enumerate(found.units) for o in u.offsets}
    group = {r.offset: {r.offset} for r in snapshot.rows}
    for a, b in links(snapshot.rows):
        joined = group[a] | group[b]
        for offset in joined:
            group[offset] = joined
    for a in group:
        for b in group[a]:
            assert unit_of[a] == unit_of[b]
    assert all(set(u.offsets) == group[u.offsets[0]] for u in found.units)


@given(operations())
def test_the_run_is_its_request_and_its_rounds(ops: list[Operation]) -> None:
    host = play(ops)
    snapshot = host.snapshot()
    found = analyze(snapshot)
    rows = {r.offset: r for r in snapshot.rows}
    if snapshot.open_run is None:
        assert not found.rounds
        assert all(u.region is Region.BEFORE for u in found.units)
        return
    assert set(found.request) == set(snapshot.open_run.request) & rows.keys()
    for live in found.rounds:
        assert any(rows[o].kind == RowKind.ASSISTANT for o in live)
    offsets = [o for live in found.rounds for o in live]
    assert len(set(offsets)) == len(offsets)


@given(operations())
def test_what_must_stay_is_whole_units(ops: list[Operation]) -> None:
    snapshot = play(ops).snapshot()
    found = analyze(snapshot)
    stay = must_stay(snapshot, found)
    for unit in found.units:
        assert stay.issuperset(unit.offsets) or stay.isdisjoint(unit.offsets)
    assert must_stay(snapshot, found, newest_round=False) <= stay
