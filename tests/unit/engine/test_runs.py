"""§1 run and request, L4, L5."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, RunOutcome
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import RowFacts
from foldline.domain.rows import ModelRef
from foldline.domain.session import CallState, OpenRun, Session
from foldline.engine.runs import close_run, open_run, opening, require_open

EMPTY = Session(key=1, tenant="", session_id="s", create_time="", model=ModelRef("openai", "gpt-4o"))
OPEN = replace(EMPTY, open_run=OpenRun("r1", 0, 1, last_active=100.0))


def row(offset: int, kind: RowKind = RowKind.USER, run_id: str = "", *, late: bool = False) -> RowFacts:
    return RowFacts(offset, kind, 10, 40, run_id=run_id, late=late)


def opened(*trailing: RowFacts, last_run: str = "", last_request: tuple[int, ...] = (), carried: int = 0) -> OpenRun:
    session = replace(EMPTY, carried_through=carried)
    run = open_run(session, trailing, "r2", last_run_id=last_run, last_request=last_request, now=0.0).open_run
    assert run is not None
    return run


def test_l4_another_run_is_refused_while_one_is_open() -> None:
    with pytest.raises(FoldlineError) as caught:
        opening(OPEN, "r2", supersede=False, now=100.0 + 3599, ttl=3600)
    assert (caught.value.reason, caught.value.metadata["open_run_id"]) == (Reason.RUN_ALREADY_OPEN, "r1")


@pytest.mark.parametrize(("now", "supersede", "expired"), [(101.0, True, False), (3700.0, False, True)])
def test_l4_supersession_and_run_ttl_close_the_open_run(now: float, supersede: bool, expired: bool) -> None:
    asked = opening(OPEN, "r2", supersede=supersede, now=now, ttl=3600)
    assert asked.opens
    assert asked.closes == OPEN.open_run
    assert asked.expired is expired


def test_the_open_runs_own_id_goes_on() -> None:
    assert not opening(OPEN, "r1", supersede=False, now=1e9, ttl=3600).opens


def test_request_is_the_trailing_group_of_this_run_or_none() -> None:
    run = opened(row(1, run_id="r0"), row(2, RowKind.INJECTED_CONTEXT), row(3, run_id="r2"), row(4, RowKind.NOTICE))
    assert run.request == (2, 3, 4)


def test_late_results_that_no_request_carried_belong_to_the_request() -> None:
    results = (row(5, RowKind.TOOL_RESULT, late=True), row(6, RowKind.TOOL_RESULT, late=True))
    assert opened(*results, row(7), carried=5).request == (6, 7)


def test_a_run_without_a_request_continues_the_last_rows_run() -> None:
    run = opened(last_run="r1", last_request=(1, 4))
    assert (run.request, run.continues) == ((1, 4), "r1")


def test_a_refused_prompt_is_the_continued_runs_request() -> None:
    run = opened(row(9, run_id="r1"), last_run="r1", last_request=(9,))
    assert (run.request, run.continues) == ((9,), "r1")


def test_l5_nothing_to_answer_and_nothing_to_continue_is_refused() -> None:
    with pytest.raises(FoldlineError) as caught:
        opened()
    assert caught.value.reason is Reason.RUN_NOT_OPEN


def test_closing_a_run_closes_its_unanswered_calls() -> None:
    session = replace(OPEN, calls=(CallState(1, "c", "run", "r1"), CallState(2, "d", "run", "r0")))
    after, closed = close_run(session, RunOutcome.FAILED)
    assert [c.closed for c in after.calls] == [True, False]
    assert (after.open_run, closed.run_id, closed.outcome) == (None, "r1", RunOutcome.FAILED)


def test_only_the_open_run_is_open() -> None:
    assert require_open(OPEN, "r1").run_id == "r1"
    for session in (OPEN, EMPTY):
        with pytest.raises(FoldlineError) as caught:
            require_open(session, "r9")
        assert caught.value.reason is Reason.RUN_NOT_OPEN
