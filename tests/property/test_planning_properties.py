"""F1-F11, V1-V9: plans over generated sessions, folded at any boundary, again and again."""

from __future__ import annotations

from foldline.domain.folding import FoldScope
from foldline.engine.planning import PlanInputs
from foldline.engine.rebase import rebase
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import Folded, Host, Operation, operations, play


def assert_holds(folded: Folded) -> None:
    failures = [f for f in folded.failures if folded.saves or "not smaller" not in f.detail]
    assert not failures, (failures, folded.plan)


@given(operations())
def test_checks_accept_every_plan_of_repeated_folds(ops: list[Operation]) -> None:
    """V1-V7: the planner never returns a plan that the checks reject, also over folds of folds."""
    host = Host()
    for op in ops:
        folded = host.apply(op)
        if folded is not None:
            assert_holds(folded)


@given(operations(folds=False), st.integers(1, 40), st.booleans(), st.booleans(), st.floats(0.5, 2.5))
def test_a_fold_forced_at_every_boundary_holds(
    ops: list[Operation], tens: int, forced: bool, external: bool, factor: float
) -> None:
    host = Host(factor=factor)
    for op in ops:
        host.apply(op)
        if op.kind == "prepare":
            folded = host.fold(host.inputs(tens * 100, forced=forced, external_source=external))
            if folded is not None:
                assert_holds(folded)


@given(operations(), operations(folds=False, least=2), st.integers(1, 20))
def test_what_happens_while_a_summary_is_written_follows_it(
    ops: list[Operation], between: list[Operation], tens: int
) -> None:
    """V9: appends, results, pins and run ends between snapshot and commit."""
    host = play(ops)
    before = [r.offset for r in host.rows]
    folded = host.fold(host.inputs(tens * 200), between)
    if folded is None:
        return
    assert_holds(folded)
    new = {r.offset for r in folded.snapshot.rows}.difference(before)
    assert new.issubset(folded.plan.retain)


@given(operations(), st.integers(1, 20))
def test_the_plan_is_a_partition_in_list_order(ops: list[Operation], tens: int) -> None:
    """V1, V2: and its numbers are those of its rows."""
    host = play(ops)
    planned = host.plan(host.inputs(tens * 200))
    if planned is None:
        return
    order = [r.offset for r in host.rows]
    assert sorted((*planned.discard, *planned.retain), key=order.index) == order
    assert list(planned.discard) == sorted(planned.discard, key=order.index)
    assert planned.discarded_tokens + planned.retained_tokens == planned.transcript_tokens
    assert planned.budget >= 256
    assert not set(planned.source_rows) & host.superseded


@given(operations(), st.integers(1, 20), st.booleans())
def test_rebasing_on_the_same_list_changes_nothing(ops: list[Operation], tens: int, forced: bool) -> None:
    """V9."""
    host = play(ops)
    planned = host.plan(host.inputs(tens * 200, forced=forced))
    if planned is not None:
        snapshot = host.snapshot()
        rebased = rebase(planned, snapshot, snapshot, min_progress=1.0, forced=forced, calls=host.calls())
        assert rebased == planned


@given(operations(), st.integers(1, 20))
def test_planning_is_deterministic(ops: list[Operation], tens: int) -> None:
    host = play(ops)
    inputs = host.inputs(tens * 200)
    assert host.plan(inputs) == host.plan(inputs)


@given(operations(folds=False), st.integers(1, 20))
def test_folding_again_ends(ops: list[Operation], tens: int) -> None:
    """F4: repeated folds of an unchanged session run out of rows to fold."""
    host = play(ops)
    folds = 0
    while (folded := host.fold(host.inputs(tens * 200))) is not None and not folded.failures:
        folds += 1
        assert folds <= len(host.archive)


@given(operations(), st.integers(1, 20), st.integers(0, 4))
def test_a_looser_target_never_folds_more(ops: list[Operation], tens: int, turns: int) -> None:
    """F2: with a larger threshold the tail is at least as long."""
    host = play(ops)
    host.policy = _with_turns(host, turns)
    small, large = (host.plan(host.inputs(t)) for t in (tens * 100, tens * 200))
    if small is None or large is None or {small.scope, large.scope} - {FoldScope.WHOLE, FoldScope.STAGE_1}:
        return
    assert set(large.discard) <= set(small.discard)


def _with_turns(host: Host, turns: int):  # type: ignore[no-untyped-def]
    from foldline.domain.changes import replace

    return replace(host.policy, retention=replace(host.policy.retention, turns=turns))


def test_inputs_have_usable_defaults() -> None:
    host = Host()
    host.user()
    assert host.plan(PlanInputs(host.policy, host.inputs(1000).limits)) is None
