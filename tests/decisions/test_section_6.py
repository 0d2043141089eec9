"""§6: what folds, what stays, where the summary goes; by the list and the open run alone where that decides it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from foldline.domain.changes import replace
from foldline.domain.folding import FoldPlan, FoldScope, Snapshot
from foldline.domain.policy import Policy, Retention, Summary
from foldline.domain.session import CALL_RAN, LedgerCall
from foldline.engine.planning import PlanInputs, plan
from foldline.engine.structure import analyze

from tests.decisions.table import marks
from tests.notation import snapshot
from tests.strategies import limits

ROOMY = 1_000_000


def planned(
    snap: Snapshot,
    *,
    threshold: int = ROOMY,
    turns: int = 4,
    messages: int = 8,
    calls: Mapping[int, tuple[LedgerCall, ...]] | None = None,
    byte_limit: int | None = None,
    reserve: int = 0,
    summary: Summary | None = None,
    target: float = 0.5,
    **inputs: object,
) -> FoldPlan | None:
    policy = Policy(
        retention=Retention(turns, messages),
        summary=summary or Summary(appendix_tokens=0),
        target_fraction=target,
    )
    bounds = limits(threshold, reserve=reserve, byte_limit=byte_limit)
    return plan(snap, analyze(snap), PlanInputs(policy, bounds, **inputs), calls or {})  # type: ignore[arg-type]


def discarded(snap: Snapshot, **arguments: object) -> tuple[int, ...] | None:
    found = planned(snap, **arguments)  # type: ignore[arg-type]
    return None if found is None else found.discard


TAIL = [
    # (rule, case, transcript, retention.turns, retention.messages, what folds)
    ("F1", "all but the last turns", "U A U A U A U A U A", 2, 0, (1, 2, 3, 4, 5, 6)),
    ("F1", "all but the last rows", "U A U A U A U A U A", 0, 3, (1, 2, 3, 4, 5, 6, 7)),
    ("F1", "the longer of both", "U A U A U A U A U A", 1, 4, (1, 2, 3, 4, 5, 6)),
    ("F1", "the longer of both, turns", "U A U A U A U A U A", 3, 4, (1, 2, 3, 4)),
    ("F1", "rows are widened to whole units", "U A U A(c1,c2) R(c1) R(c2) A", 0, 2, (1, 2, 3)),
    ("F1", "the oldest live turn always folds", "U A U A", 4, 8, (1, 2)),
    ("F1", "also where it is the only one", "U A(c1) R(c1) A", 4, 8, (1, 2, 3, 4)),
    ("F1", "also turn 0", "S A A U A", 4, 8, (2, 3)),
    ("F1", "a turn that is held by a pin is not live", "U! A! U A U A", 4, 8, (3, 4)),
    ("F1", "system rows use no budget", "U A U A S S S A", 0, 2, (1, 2, 3)),
    ("F1", "injected context and notices use no budget", "U A U A I N A", 0, 2, (1, 2, 3)),
    ("F1", "a turn of nothing but a summary uses no budget", "K U A U A U A", 2, 0, (1, 2, 3)),
    ("F1", "no retention", "U A U A", 0, 0, (1, 2, 3, 4)),
    ("F1", "the tail ends at the last row", "U A U A N N", 1, 0, (1, 2)),
    ("F1", "a longer retention than there are turns folds the oldest", "U A U A U A", 9, 99, (1, 2)),
    ("F1", "a turn of a batch that reaches into the next is widened", "U A(c) U R(c) A U A", 0, 3, (1, 2, 3, 4)),
    ("F7", "an assistant row folds whole or stays whole", "U A U A(c,d) R(c) R(d) A", 0, 2, (1, 2, 3)),
    ("F8", "nothing stands before a summary but what must", "S U! A K U A U A", 2, 0, (3, 4)),
    ("F8", "the earlier summary folds", "S K U A U A U A", 2, 0, (2, 3, 4)),
    ("F8", "with every foldable row before it, though in the tail", "U A U K A U A", 4, 8, (1, 2, 3, 4)),
    ("F9", "pins stay with their unit", "U A(c1)! R(c1) U A U A", 1, 0, (1, 4, 5)),
    ("F11", "superseded system rows fold along", "S- S U A U A", 1, 0, (1, 3, 4)),
    ("F11", "also behind what stays", "S U A U S- A", 1, 0, (2, 3, 5)),
    ("F11", "but not pinned ones", "S-! S U A U A", 1, 0, (3, 4)),
    ("F6", "calls of one row are one unit", "U A(c1,c2) R(c1) U R(c2) U A", 1, 0, (1, 2, 3, 4, 5)),
]


@pytest.mark.parametrize(("words", "turns", "messages", "gone"), marks(TAIL))
def test_tail(words: str, turns: int, messages: int, gone: tuple[int, ...]) -> None:
    assert discarded(snapshot(words), turns=turns, messages=messages) == gone


NOTHING = [
    ("F4", "nothing at all", ""),
    ("F11", "superseded system rows alone", "S- S"),
    ("V1", "a summary alone", "S K"),
    ("V1", "a summary and superseded rows", "S- S K"),
    ("F9", "everything is pinned", "U! A!"),
]


@pytest.mark.parametrize("words", marks(NOTHING))
def test_nothing_to_fold(words: str) -> None:
    assert planned(snapshot(words), turns=0, messages=0) is None


def test_f4_one_round_and_nothing_before_the_run_is_nothing_to_fold() -> None:
    assert planned(snapshot("S K U A(c1) R(c1)", run="r1", request=(3,)), in_run=True) is None


SHRINK = [
    # (rule, case, threshold, messages, what folds) of five turns of 2 rows, 100 tokens each
    ("F2", "under the target nothing is dropped", 4_000, 0, (1, 2)),
    ("F2", "the oldest tail turn is dropped until it is", 1_700, 0, (1, 2, 3, 4)),
    ("F2", "and the next", 1_300, 0, (1, 2, 3, 4, 5, 6)),
    ("F2", "not below retention.messages", 1_300, 6, (1, 2, 3, 4)),
    ("F2", "unless the request would not fit", 600, 6, (1, 2, 3, 4, 5, 6)),
    ("F2", "then down to none", 200, 6, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
]


@pytest.mark.parametrize(("threshold", "messages", "gone"), marks(SHRINK))
def test_f2_tail_turns_are_dropped(threshold: int, messages: int, gone: tuple[int, ...]) -> None:
    snap = snapshot("U A U A U A U A U A")
    # The usual summary is 128 tokens here: half of the least budget.
    assert discarded(snap, threshold=threshold, messages=messages, usual_summary=lambda b: 128) == gone


def test_f2_down_to_none_so_that_it_fits_by_bytes_and_under_w() -> None:
    """400 bytes a row, 512 of a summary; T is 4 000 and W 5 000."""
    snap = snapshot("U A U A U A U A U A")
    arguments = {"threshold": 4_000, "messages": 6, "usual_summary": lambda b: 128}
    assert discarded(snap, byte_limit=2_000, **arguments) == (1, 2, 3, 4, 5, 6, 7, 8)
    assert discarded(snap, byte_limit=900, **arguments) == tuple(range(1, 11))
    assert discarded(snap, reserve=4_300, **arguments) == (1, 2, 3, 4, 5, 6)


def test_f2_counts_tools() -> None:
    snap = snapshot("U A U A U A U A U A")
    arguments = {"threshold": 4_000, "messages": 0, "usual_summary": lambda b: 128}
    assert discarded(snap, **arguments) == (1, 2)
    assert discarded(snap, tools_tokens=1_400, **arguments) == (1, 2, 3, 4, 5, 6)


def test_f2_aims_at_the_byte_limit_too() -> None:
    """400 bytes a row: 8 rows and a summary of 512 bytes stay under half of 8 000, not of 6 000."""
    snap = snapshot("U A U A U A U A U A")
    arguments = {"messages": 0, "usual_summary": lambda b: 128}
    assert discarded(snap, byte_limit=8_000, **arguments) == (1, 2)
    assert discarded(snap, byte_limit=6_000, **arguments) == (1, 2, 3, 4)


def test_f2_uses_the_learned_factor() -> None:
    arguments = {"threshold": 2_000, "messages": 0, "usual_summary": lambda b: 100}
    assert discarded(snapshot("U A U A U A U A U A"), **arguments) == (1, 2)
    assert discarded(snapshot("U A U A U A U A U A", factor=2.0), **arguments) == (1, 2, 3, 4, 5, 6)


# F3 and 4.4: runs


def test_whole_checks_never_fold_the_request() -> None:
    snap = snapshot("U A U A N U", run="r1", request=(5, 6))
    assert discarded(snap, turns=0, messages=0) == (1, 2, 3, 4)


BEFORE_A_RUN = [
    # (rule, case, transcript, request, what a fold with no tail takes)
    ("F1", "the oldest live turn is one before the run", "U A U A U", (5,), (1, 2)),
    ("F3", "stage 1 takes notices too", "N=900 U A(c) R(c) A", (2,), (1,)),
    ("F3", "a summary alone before the run is nothing to fold there", "K U A(c) R(c) A", (2,), (1, 3, 4)),
    ("F3", "superseded system rows alone neither", "S- S U A(c) R(c) A", (3,), (1, 4, 5)),
    ("F3", "the context of a user row of the run stays", "U A(c) R(c) I U A A", (1,), (2, 3, 6)),
    ("F3", "what follows the newest round stays", "U A(c) R(c) A N N", (1,), (2, 3)),
    ("F4", "the newest round and pins are nothing", "U A! A", (1,), None),
    ("F9", "a pinned round stays, the others fold", "U A A! A A", (1,), (2, 4)),
    ("F6", "a result not yet carried keeps its round", "U@r1 A(c,d)@r1 R(c)@r1 A@r1 R(d)@r1 A@r1", (1,), (4,)),
]


@pytest.mark.parametrize(("words", "request_rows", "gone"), marks(BEFORE_A_RUN))
def test_what_a_run_folds(words: str, request_rows: tuple[int, ...], gone: tuple[int, ...] | None) -> None:
    carried = 4 if "R(d)" in words else None
    snap = snapshot(words, run="r1", request=request_rows, carried=carried)
    assert discarded(snap, in_run=len(snap.rows) > request_rows[-1]) == gone


IN_RUN = [
    # (rule, case, transcript, request, threshold, scope, what folds)
    (
        "F3",
        "stage 1: only rows before the run",
        "S U A U A(c1) R(c1) A",
        (4,),
        ROOMY,
        FoldScope.STAGE_1,
        (2, 3),
    ),
    (
        "F3",
        "stage 2: completed rounds once nothing before is left",
        "S K U A(c1) R(c1) A(c2) R(c2)",
        (3,),
        ROOMY,
        FoldScope.STAGE_2,
        (2, 4, 5),
    ),
    (
        "F3",
        "stage 2: user rows of the run stay",
        "U A(c1) R(c1) U A(c2) R(c2) A",
        (1,),
        ROOMY,
        FoldScope.STAGE_2,
        (2, 3, 5, 6),
    ),
    (
        "F3",
        "stage 2: with the summary of earlier rounds",
        "U K(r1) A A(c2) R(c2)",
        (1,),
        ROOMY,
        FoldScope.STAGE_2,
        (2, 3),
    ),
    (
        "F3",
        "stage 2: pins before the run do not keep it from coming",
        "U! A! U A(c1) R(c1) A",
        (3,),
        ROOMY,
        FoldScope.STAGE_2,
        (4, 5),
    ),
    (
        "F3",
        "combined: stage 1 would leave it not fitting",
        "U=500 A=500 U A(c1)=400 R(c1)=400 A",
        (3,),
        900,
        FoldScope.COMBINED,
        (1, 2, 4, 5),
    ),
    (
        "F3",
        "combined: stage 1 cannot shrink",
        "U=10 A=10 U A(c1)=400 R(c1)=400 A",
        (3,),
        ROOMY,
        FoldScope.COMBINED,
        (1, 2, 4, 5),
    ),
    (
        "F3",
        "stage 1 alone where only one round exists, though it does not suffice",
        "U=500 A=500 U A(c1)=400 R(c1)=900",
        (3,),
        900,
        FoldScope.STAGE_1,
        (1, 2),
    ),
]


@pytest.mark.parametrize(("words", "request_rows", "threshold", "scope", "gone"), marks(IN_RUN))
def test_f3_stages(
    words: str,
    request_rows: tuple[int, ...],
    threshold: int,
    scope: FoldScope,
    gone: tuple[int, ...],
) -> None:
    snap = snapshot(words, run="r1", request=request_rows)
    found = planned(snap, threshold=threshold, in_run=True)
    assert found is not None
    assert (found.scope, found.discard) == (scope, gone)
    assert found.covers_run == ("r1" if scope in (FoldScope.STAGE_2, FoldScope.COMBINED) else "")


def test_f3_stage_1_keeps_a_tail_like_a_whole_fold() -> None:
    snap = snapshot("U A U A U A U A(c1) R(c1) A", run="r1", request=(7,))
    assert discarded(snap, in_run=True, turns=2, messages=0) == (1, 2)


def test_f3_a_curator_writes_stage_1_and_stage_2_is_a_fold_of_its_own() -> None:
    words = "U=500 A=500 U A(c1)=400 R(c1)=400 A"
    first = planned(snapshot(words, run="r1", request=(3,)), threshold=900, in_run=True, external_source=True)
    assert first is not None
    assert (first.scope, first.discard, first.follow_up) == (FoldScope.STAGE_1, (1, 2), True)
    rest = snapshot("K=100 U A(c1)=400 R(c1)=400 A", run="r1", request=(2,))
    second = planned(rest, threshold=900, in_run=True, external_source=True)
    assert second is not None
    assert (second.scope, second.discard, second.follow_up) == (FoldScope.STAGE_2, (1, 3, 4), False)


def test_f5_a_curator_is_not_asked_for_a_stage_1_that_cannot_shrink() -> None:
    snap = snapshot("U=10 A=10 U A(c1)=400 R(c1)=400 A", run="r1", request=(3,))
    found = planned(snap, in_run=True, external_source=True)
    assert found is not None
    assert (found.scope, found.discard) == (FoldScope.STAGE_2, (4, 5))


def test_p6_a_forced_fold_keeps_no_tail() -> None:
    """4.4: everything before the new run's request folds, V5 apart."""
    snap = snapshot("S U A U! A U A U", run="r2", request=(8,))
    assert discarded(snap, forced=True) == (2, 3, 5, 6, 7)


def test_p6_a_continued_run_folds_every_round_and_keeps_its_request() -> None:
    snap = snapshot("K U@r1 A(c1)@r1 R(c1)@r1 A(c2)@r1 R(c2)@r1", run="r2", request=(2,), continues="r1")
    found = planned(snap, forced=True)
    assert found is not None
    assert (found.scope, found.discard, found.retain) == (FoldScope.STAGE_2, (1, 3, 4, 5, 6), (2,))


def test_a_result_no_request_carried_yet_stays_with_its_batch() -> None:
    """F6."""
    snap = snapshot("U@a A(c1,c2)@a R(c1)@a R(c2)@a A@a U@b", carried=3)
    assert discarded(snap, turns=0, messages=0) == (1, 5)


def test_the_prompt_that_no_run_answered_stays_between_runs() -> None:
    """§1 continued run: the next run may take it over."""
    snap = snapshot("U@a A@a U@b N@b")
    assert discarded(snap, turns=0, messages=0) == (1, 2)


# V3: place


PLACES = [
    ("V3", "at the first discarded row", "S U A U A", None, 1, 4),
    ("V3", "behind leading system rows that fold", "S- S U A U A", None, 1, 5),
    ("V3", "behind what stays before it", "S U! A! U A U A", None, 1, 6),
    ("V3", "at the end where nothing follows", "S U A", None, 0, None),
    ("V3", "before a unit that stays around it", "U A(c1) N R(c1)! U A", None, 1, 2),
]


@pytest.mark.parametrize(("words", "request_rows", "turns", "before"), marks(PLACES))
def test_v3_place(words: str, request_rows: None, turns: int, before: int | None) -> None:
    found = planned(snapshot(words), turns=turns, messages=0)
    assert found is not None
    assert found.insert_before == before


def test_v3_a_summary_moves_before_a_unit_it_would_split() -> None:
    found = planned(snapshot("A(c1)! N R(c1) U A U A"), turns=1, messages=0)
    assert found is not None
    assert found.discard == (2, 4, 5)
    assert found.insert_before == 1


def test_v3_stage_2_stands_directly_after_the_request() -> None:
    snap = snapshot("U! A! N U A(c1) R(c1) U A", run="r1", request=(3, 4))
    found = planned(snap, in_run=True)
    assert found is not None
    assert found.insert_before == 7


# V6, C4: budget and prediction


BUDGETS = [
    # (rule, case, threshold, max_tokens, budget) for 20 000 tokens that fold and 1 000 that stay
    ("V6", "summary.max_tokens", 100_000, 4_096, 4_096),
    ("V6", "T/4", 8_000, 4_096, 2_000),
    ("V6", "the room under T", 1_300, 4_096, 299),
    ("V6", "never under 256", 1_100, 4_096, 256),
]


@pytest.mark.parametrize(("threshold", "most", "budget"), marks(BUDGETS))
def test_v6_budget(threshold: int, most: int, budget: int) -> None:
    snap = snapshot("U=10000 A=10000 U=1000", run="r", request=(3,))
    found = planned(snap, threshold=threshold, summary=Summary(max_tokens=most, appendix_tokens=0))
    assert found is not None
    assert found.budget == budget


def test_v6_budget_leaves_room_for_tools_reserve_and_appendix() -> None:
    snap = snapshot("U=10000 A=10000 U=1000", run="r", request=(3,))
    summary = Summary(appendix_tokens=100)
    found = planned(snap, threshold=10_000, reserve=8_000, tools_tokens=1_000, summary=summary)
    assert found is not None
    # W is 12 500: less reserve, tools, what stays and the appendix, and one under.
    assert found.budget == 12_500 - 8_000 - 1_000 - 1_000 - 100 - 1


def test_the_budget_is_at_most_half_of_what_folds() -> None:
    found = planned(snapshot("U=1000 A=1000 U A"), turns=1, messages=0)
    assert found is not None
    assert found.budget == 1_000


def test_c4_the_usual_size_is_first_half_of_the_budget_and_never_over_it() -> None:
    snap = snapshot("U=10000 A=10000 U A")
    first = planned(snap, turns=1, messages=0)
    assert first is not None
    assert first.predicted_saving == 20_000 - 2_048
    later = planned(snap, turns=1, messages=0, usual_summary=lambda b: 50_000)
    assert later is not None
    assert later.predicted_saving == 20_000 - 4_096


def test_numbers_are_estimates_after_the_factor_without_superseded_rows() -> None:
    found = planned(snapshot("S=50 S-=70 U=1000 A=1000 U=10 A=10", factor=1.5), turns=1, messages=0)
    assert found is not None
    assert found.transcript_tokens == 3_105
    assert found.retained_tokens == 105
    assert found.discarded_tokens == 3_000
    assert found.discarded_bytes == 8_000


# F3: the ledger of the plan


def test_f3_the_ledger_lists_folded_rounds_across_folds() -> None:
    def call(name: str) -> LedgerCall:
        return LedgerCall(name, "{}", CALL_RAN)

    snap = snapshot("U A(c0) R(c0) U K(r1) A(c1) R(c1) A(c2) R(c2)", run="r1", request=(4,))
    assert snap.open_run is not None
    snap = replace(snap, open_run=replace(snap.open_run, ledger=(call("older"),)))
    calls = {2: (call("history"),), 6: (call("folded"),), 8: (call("newest"),)}
    found = planned(snap, in_run=True, threshold=600, calls=calls)
    assert found is not None
    assert found.scope is FoldScope.COMBINED
    assert [c.name for c in found.ledger] == ["older", "folded"]


def test_sources_are_neither_system_rows_nor_summaries() -> None:
    found = planned(snapshot("S- S K U A U A"), turns=1, messages=0)
    assert found is not None
    assert (found.source_rows, found.earlier) == ((4, 5), (3,))
