"""§1: units, turns, request and rounds; V5: what must stay."""

from __future__ import annotations

import pytest
from foldline.engine.structure import analyze, must_stay, trailing_of_no_run, uncarried_results

from tests.notation import snapshot

UNITS = [
    # (rule, transcript, units of more than one row)
    ("unit: a call with its result", "U A(c1) R(c1)", [(2, 3)]),
    ("unit: a batch is one", "U A(c1,c2) R(c1) R(c2)", [(2, 3, 4)]),
    ("unit: rows between call and result are no part", "A(c1) U R(c1)", [(1, 3)]),
    ("unit: a late result is alone", "U A(c1) U R(c1)~", []),
    ("R3: an id used twice answers its newest call", "A(c1) R(c1) A(c1) R(c1)", [(1, 2), (3, 4)]),
    ("unit: interim and final result", "A(c1) R(c1)? R(c1)", [(1, 2, 3)]),
    ("unit: injected context goes with the user row behind it", "I U", [(1, 2)]),
    ("unit: all injected rows before a user row", "I I U", [(1, 2, 3)]),
    ("unit: injected context goes forward, not back", "U I U", [(2, 3)]),
    ("§2: without a user row behind it, with the request's last row", "U I A", [(1, 2)]),
    ("§2: a notice can be that row", "N I A", [(1, 2)]),
    ("§2: a notice between does not part them", "I N U", [(1, 3)]),
    ("§2: system rows do not break a request", "I S U", [(1, 3)]),
    ("§2: an answer does", "I A U", []),
    ("§2: injected rows alone hold together", "A I I A", [(2, 3)]),
    ("unit: rows joined by a paused server tool", "U A@r1^ A@r1", [(2, 3)]),
    ("unit: also over more pauses", "U A@r1^ A@r1^ A@r1", [(2, 3, 4)]),
    ("unit: a pause joins rows of one run only", "A@r1^ A@r2", []),
    ("unit: what was sent since answers anew", "A@r1^ U@r1 A@r1", []),
    ("unit: what arrived meanwhile does not part them", "A@r1^ U@r1 A@r1>", [(1, 3)]),
    ("unit: the paused row's own results do not part them", "A(c1)@r1^ R(c1)@r1 A@r1", [(1, 2, 3)]),
    ("unit: calls on both sides of a pause", "A(c1)@r1^ R(c1)@r1 A(c2)@r1 R(c2)@r1", [(1, 2, 3, 4)]),
]


@pytest.mark.parametrize(("rule", "words", "units"), UNITS, ids=[u[0] for u in UNITS])
def test_units(rule: str, words: str, units: list[tuple[int, ...]]) -> None:
    found = analyze(snapshot(words))
    assert [u.offsets for u in found.units if len(u.offsets) > 1] == units
    assert sorted(o for u in found.units for o in u.offsets) == list(range(1, len(words.split()) + 1))


TURNS = [
    # (rule, transcript, first offsets of the turns)
    ("turn: each user row starts one", "U A U A", [1, 3]),
    ("turn: rows before the first start are turn 0", "S A U A", [1, 3]),
    ("turn: injected rows just before belong to it", "U A I I U A", [1, 3]),
    ("turn: notices before a user row do not", "U A N U A", [1, 4]),
    ("turn: a request that notices opened", "U@r1 A@r1 N@r2 A@r2", [1, 3]),
    ("turn: a notice inside a run does not", "U@r1 A(c1)@r1 R(c1)@r1 N@r1 A@r1", [1]),
    ("turn: a notice of no run opens the run that answered it", "U@r1 A@r1 N A@r2", [1, 3]),
    ("turn: a late result can open a run", "U@r1 A(c1)@r1 R(c1)@r1~ A@r2", [1, 3]),
    ("turn: a continued run starts none", "U@r1 A(c1)@r1 R(c1)@r1 A@r2", [1]),
    ("turn: rows of an import without runs", "U A N A", [1]),
    ("turn: a start inside a batch moves behind it", "U A(c1) U R(c1) A U", [1, 5, 6]),
    ("turn: behind it there may be nothing", "U A(c1) U R(c1)", [1]),
    ("turn: two starts inside one batch are one", "U A(c1) U U R(c1) A", [1, 6]),
    ("turn: batches that overlap", "A(c1) U A(c2) R(c1) R(c2) A", [1, 6]),
    ("turn: each user row of a request", "U U A", [1, 2]),
]


@pytest.mark.parametrize(("rule", "words", "starts"), TURNS, ids=[t[0] for t in TURNS])
def test_turns(rule: str, words: str, starts: list[int]) -> None:
    assert [t.start + 1 for t in analyze(snapshot(words)).turns] == starts


def test_a_steering_row_starts_no_turn_until_its_run_is_closed() -> None:
    """§1 turn."""
    words = "U@r1 A(c1)@r1 R(c1)@r1 U A@r1"
    steered = analyze(snapshot(words, run="r1", request=(1,)))
    assert [t.start for t in steered.turns] == [0]
    assert [t.start for t in analyze(snapshot(words)).turns] == [0, 3]


def test_a_user_row_of_another_run_does_start_a_turn() -> None:
    words = "U@r1 A@r1 U@r2"
    assert [t.start for t in analyze(snapshot(words, run="r1", request=(1,))).turns] == [0, 2]


def test_the_open_run_that_notices_opened_starts_a_turn() -> None:
    words = "U@r1 A@r1 I N N"
    assert [t.start for t in analyze(snapshot(words, run="r2", request=(3, 4, 5))).turns] == [0, 2]


ROUNDS = [
    # (rule, transcript, request, rounds)
    ("round: one assistant row, its calls, their results", "U A(c1) R(c1) A", (1,), [(2, 3), (4,)]),
    ("round: rows appended after it up to the next", "U A N A U", (1,), [(2, 3), (4, 5)]),
    ("round: rows joined by a pause are one", "U A@r1^ A@r1 A@r1", (1,), [(2, 3), (4,)]),
    ("round: a summary of folded rounds is in none", "U K(r1) A(c1) R(c1)", (1,), [(3, 4)]),
    ("round: rows before the run are in none", "U A(c1) R(c1) U A", (4,), [(5,)]),
    ("round: none yet", "U A U", (3,), []),
    ("request: its rows lie together", "A N I U A", (2, 3, 4), [(5,)]),
]


@pytest.mark.parametrize(("rule", "words", "request_rows", "rounds"), ROUNDS, ids=[r[0] for r in ROUNDS])
def test_rounds(rule: str, words: str, request_rows: tuple[int, ...], rounds: list[tuple[int, ...]]) -> None:
    found = analyze(snapshot(words, run="r1", request=request_rows))
    assert list(found.rounds) == rounds
    assert found.request == request_rows


def test_a_continued_run_has_the_rounds_of_the_run_it_continues() -> None:
    """§1 continued run: also where a later user row joined its request."""
    words = "U@r1 A(c1)@r1 R(c1)@r1 U@r2 A@r2"
    found = analyze(snapshot(words, run="r2", request=(1, 4), continues="r1"))
    assert found.run_start == 0
    assert found.request_end == 1
    assert found.rounds == ((2, 3), (5,))


STAY = [
    # (rule, transcript, run request, carried, prepared, what stays)
    ("V5: current system rows", "S S- U A", None, 9, 9, {1}),
    ("V5: pins with their unit", "U! A(c1) R(c1)! U A", None, 9, 9, {1, 2, 3}),
    ("V5: a pinned injected row holds its user row", "I! U A", None, 9, 9, {1, 2}),
    ("V5: request, user rows, newest round", "U A U A(c1) R(c1) U A(c2) R(c2)", (3,), 9, 9, {3, 6, 7, 8}),
    ("V5: a steering row's injected context", "U A(c1) R(c1) I U A", (1,), 9, 9, {1, 4, 5, 6}),
    ("F6: a result not yet carried, with its batch", "U@r A(c1,c2)@r R(c1)@r R(c2)@r U@s A@s", None, 3, 9, {2, 3, 4}),
    ("F6: a late result not yet carried, alone", "U@r A(c1)@r U@s R(c1)@r~ A@s", None, 3, 9, {4}),
    ("V5: what no run appended since the last request", "U A U N", None, 9, 2, {3, 4}),
    ("V5: but not what an answer followed", "U A U A", None, 9, 2, set()),
    ("V5: nor what was prepared", "U A U", None, 9, 3, set()),
    ("V5: nor rows of a run", "U A U@r9", None, 9, 2, set()),
    ("imports: results that an imported answer followed", "U A(c1) R(c1) A", None, 0, 0, set()),
    ("imports: not the last one", "U A(c1) R(c1) A(c2) R(c2)", None, 0, 0, {4, 5}),
]


@pytest.mark.parametrize(
    ("rule", "words", "request_rows", "carried", "prepared", "stay"), STAY, ids=[s[0] for s in STAY]
)
def test_must_stay(
    rule: str, words: str, request_rows: tuple[int, ...] | None, carried: int, prepared: int, stay: set[int]
) -> None:
    snap = snapshot(
        words, run="r1" if request_rows else "", request=request_rows or (), carried=carried, prepared=prepared
    )
    assert must_stay(snap, analyze(snap)) == stay


def test_the_forced_fold_of_a_continued_run_may_take_the_newest_round() -> None:
    """4.4."""
    snap = snapshot("U A(c1) R(c1) A(c2) R(c2)", run="r1", request=(1,))
    assert must_stay(snap, analyze(snap), newest_round=False) == {1}


def test_trailing_rows_end_at_the_last_answer() -> None:
    snap = snapshot("A U S U", prepared=0)
    assert trailing_of_no_run(snap) == {2, 4}


def test_uncarried_results_name_only_results() -> None:
    assert uncarried_results(snapshot("U@r A(c1)@r R(c1)@r N", carried=1)) == {3}
