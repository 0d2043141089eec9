"""§7: a sound rewrite that is tampered with anywhere is rejected."""

from __future__ import annotations

from dataclasses import replace

from foldline.domain.folding import CheckFailure, FoldPlan, RowFacts
from foldline.engine.checks import check
from foldline.engine.structure import Region, analyze, must_stay
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import Folded, Operation, limits, operations, play

THRESHOLD = 4_000


def planned(ops: list[Operation]) -> Folded:
    host = play(ops)
    found = host.plan(host.inputs(THRESHOLD))
    assume(found is not None)
    assert found is not None
    folded = host.judge(host.snapshot(), found, host.inputs(THRESHOLD))
    assume(folded.saves)
    assert folded.failures == ()
    return folded


def judged(folded: Folded, after: tuple[RowFacts, ...], plan: FoldPlan | None = None) -> tuple[CheckFailure, ...]:
    candidate = replace(folded.candidate, plan=plan or folded.plan)
    return check(folded.snapshot, after, candidate, play([]).policy, limits(THRESHOLD))


@given(operations(), st.data())
def test_a_row_that_is_lost_is_missed(ops: list[Operation], data: st.DataObject) -> None:
    """V1, V3."""
    folded = planned(ops)
    index = data.draw(st.integers(0, len(folded.after) - 1))
    assert judged(folded, folded.after[:index] + folded.after[index + 1 :])


@given(operations(), st.data())
def test_a_row_that_came_back_is_seen(ops: list[Operation], data: st.DataObject) -> None:
    """V1."""
    folded = planned(ops)
    gone = [r for r in folded.snapshot.rows if r.offset in set(folded.plan.discard)]
    row = data.draw(st.sampled_from(gone))
    index = data.draw(st.integers(0, len(folded.after)))
    assert judged(folded, (*folded.after[:index], row, *folded.after[index:]))


@given(operations(), st.data())
def test_two_rows_that_changed_places_are_seen(ops: list[Operation], data: st.DataObject) -> None:
    """V2, V3."""
    folded = planned(ops)
    assume(len(folded.after) > 1)
    index = data.draw(st.integers(0, len(folded.after) - 2))
    after = list(folded.after)
    after[index], after[index + 1] = after[index + 1], after[index]
    assert judged(folded, tuple(after))


@given(operations(), st.data())
def test_a_row_that_changed_is_seen(ops: list[Operation], data: st.DataObject) -> None:
    """V2."""
    folded = planned(ops)
    kept = [i for i, r in enumerate(folded.after) if r.offset in set(folded.plan.retain)]
    assume(kept)
    index = data.draw(st.sampled_from(kept))
    after = list(folded.after)
    after[index] = replace(after[index], digest=b"other")
    assert {f.rule for f in judged(folded, tuple(after))} == {"V2"}


@given(operations(), st.data())
def test_a_unit_that_must_stay_cannot_go(ops: list[Operation], data: st.DataObject) -> None:
    """V5."""
    folded = planned(ops)
    structure = analyze(folded.snapshot)
    stay = must_stay(folded.snapshot, structure)
    run = folded.snapshot.open_run
    asked = set(run.request) if run else set()
    # What others left between the rows of a request stays by the planner's choice, not by V5.
    named = [u for u in structure.units if u.region is not Region.REQUEST or not asked.isdisjoint(u.offsets)]
    units = [u for u in named if stay.issuperset(u.offsets)]
    assume(units)
    lost = set(data.draw(st.sampled_from(units)).offsets)
    order = [r.offset for r in folded.snapshot.rows]
    discard = tuple(o for o in order if o in lost or o in set(folded.plan.discard))
    plan = replace(folded.plan, discard=discard, retain=tuple(o for o in order if o not in set(discard)))
    failures = judged(folded, tuple(r for r in folded.after if r.offset not in lost), plan)
    assert "V5" in {f.rule for f in failures}
