"""F12 and F5: what a compactor is handed, and the plan of its answer; A2: whether the request fits then."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.folding import FoldPlan, FoldScope, Snapshot
from foldline.domain.policy import Policy, Retention, Summary
from foldline.engine.checks import appends_only
from foldline.engine.planning import PlanInputs, handed, plan_keeping, would_fit
from foldline.engine.rebase import rebase
from foldline.engine.structure import analyze
from hypothesis import given
from hypothesis import strategies as st

from tests.notation import snapshot
from tests.strategies import Operation, limits, operations, play

INPUTS = PlanInputs(Policy(retention=Retention(0, 0), summary=Summary(appendix_tokens=0)), limits(100_000))

HANDED = [
    ("F5: everything before the run", "S U A U A | U@r1 A@r1", ((2,), (3,), (4,), (5,))),
    ("F6: calls with their results", "U A(c1,c2) R(c1) R(c2) | U@r1 A@r1", ((1,), (2, 3, 4))),
    ("F9: no pinned unit", "U A(c1)! R(c1) U A | U@r1 A@r1", ((1,), (4,), (5,))),
    ("F8: the earlier summary too", "K U A | U@r1 A@r1", ((1,), (2,), (3,))),
    ("F11: no superseded system row", "S- S U A | U@r1 A@r1", ((3,), (4,))),
    ("§1 unit: context with its user row", "I U A | U@r1 A@r1", ((1, 2), (3,))),
    ("F3: nothing of a run alone", "U@r1 A@r1 A@r1", ()),
]


def snap(words: str) -> Snapshot:
    """``|`` stands before the request of the open run r1."""
    before, _, after = words.rpartition("|")
    text = f"{before} {after}"
    offset = len(before.split()) + 1
    return snapshot(text, run="r1", request=(offset,))


@pytest.mark.parametrize(("why", "words", "units"), HANDED, ids=[h[0] for h in HANDED])
def test_f12_handed(why: str, words: str, units: tuple[tuple[int, ...], ...]) -> None:
    shot = snap(words)
    assert tuple(u.offsets for u in handed(shot, analyze(shot), INPUTS)) == units


def keeping(words: str, *keep: int) -> FoldPlan:
    shot = snap(words)
    return plan_keeping(shot, analyze(shot), INPUTS, keep)


def test_f12_the_rest_folds_and_the_summary_stands_at_the_first_that_went() -> None:
    made = keeping("S U A U A | U@r1 A@r1", 2)
    assert made.discard == (3, 4, 5)
    assert made.retain == (1, 2, 6, 7)
    assert made.insert_before == 6
    assert made.scope is FoldScope.STAGE_1


@pytest.mark.parametrize(
    ("keep", "says"),
    [((99,), "not handed"), ((6,), "not handed"), ((2,), "V4"), ((1, 2, 3, 4), "V1"), ((0,), "not handed")],
)
def test_f12_nonsense_is_refused_by_name(keep: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        keeping("U A(c1) R(c1) A | U@r1 A@r1", *keep)


def test_f8_a_summary_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="not handed"):
        keeping("K U A | U@r1 A@r1", 1)


@given(operations(folds=False), st.randoms(use_true_random=False))
def test_f12_any_choice_of_whole_units_is_a_plan_that_keeps_them(ops: list[Operation], rng: object) -> None:
    host = play(ops)
    shot = host.snapshot()
    structure = analyze(shot)
    units = handed(shot, structure, INPUTS)
    rows = {r.offset: r for r in shot.rows}
    free = [u for u in units if rows[u.offsets[0]].kind.name not in ("COMPACTION_SUMMARY", "PROVIDER_COMPACTION")]
    kept = [u for u in free if rng.random() < 0.5]  # type: ignore[attr-defined]
    keep = {o for u in kept for o in u.offsets}
    if len(kept) == len(free):
        with pytest.raises(ValueError, match="V1"):
            plan_keeping(shot, structure, INPUTS, keep)
        return
    made = plan_keeping(shot, structure, INPUTS, keep)
    assert keep.isdisjoint(made.discard)
    assert {o for u in free for o in u.offsets} - keep <= set(made.discard)
    assert sorted((*made.discard, *made.retain)) == sorted(rows)
    assert appends_only(shot, shot)
    assert rebase(made, shot, shot, min_progress=0.0) is not None


@pytest.mark.parametrize(
    ("tokens", "size", "fits"),
    [(499, 0, True), (500, 0, False), (0, 3_999, True), (0, 4_000, False)],
    ids=["under T", "at T", "under the byte limit", "at the byte limit"],
)
def test_a2_a_request_fits_under_every_limit(tokens: int, size: int, fits: bool) -> None:
    inputs = PlanInputs(Policy(), limits(600, byte_limit=4_000), tools_tokens=50)
    made = keeping("U A | U@r1 A@r1")
    left = replace(made, retained_tokens=tokens, discarded_bytes=0)
    assert would_fit(left, inputs, summary_tokens=50 if tokens else 0, transcript_bytes=size) is fits
