"""V9: a plan carried over to what the list has become."""

from __future__ import annotations

from foldline.domain.changes import replace
from foldline.domain.folding import FoldPlan, FoldScope, Snapshot
from foldline.domain.policy import Policy, Retention
from foldline.domain.rows import NoticeRow, SystemRow, TextBlock
from foldline.engine.rebase import rebase

from tests.strategies import Host, Operation

KEEPS_LITTLE = Policy(retention=Retention(1, 0))


def talk(turns: int = 4) -> Host:
    """A host with closed runs of a call each."""
    host = Host(policy=KEEPS_LITTLE)
    host.append(SystemRow((TextBlock("be good"),), key="rules", version=1))
    for _ in range(turns):
        host.user("please " * 200)
        host.prepare()
        call = host.call()
        host.answer(call)
        host.result(call.call_id, "fine " * 200)
        host.prepare()
        host.answer(TextBlock("done " * 200))
        host.finish()
    return host


def begin(host: Host) -> tuple[FoldPlan, Snapshot]:
    planned = host.plan(host.inputs(100_000))
    assert planned is not None
    return planned, host.snapshot()


def test_nothing_appended_changes_nothing() -> None:
    host = talk()
    planned, then = begin(host)
    assert rebase(planned, then, host.snapshot(), min_progress=0.1) == planned


def test_appended_rows_follow_at_the_end() -> None:
    host = talk()
    planned, then = begin(host)
    host.user()
    rebased = rebase(planned, then, host.snapshot(), min_progress=0.1)
    assert rebased is not None
    assert rebased.discard == planned.discard
    assert rebased.retain == (*planned.retain, host.rows[-1].offset)
    assert rebased.insert_before == planned.insert_before


def test_a_keyed_system_row_stands_at_its_place() -> None:
    host = talk()
    planned, then = begin(host)
    host.append(SystemRow((TextBlock("be better"),), key="rules", version=2))
    rebased = rebase(planned, then, host.snapshot(), min_progress=0.1)
    assert rebased is not None
    assert rebased.retain[:2] == (host.rows[0].offset, host.rows[1].offset)


def test_a_pin_leaves_the_discard_set_with_its_unit() -> None:
    """V5, R6."""
    host = talk()
    planned, then = begin(host)
    call, result = (r.offset for r in host.rows[2:4])
    host.pin(call)
    rebased = rebase(planned, then, host.snapshot(), min_progress=0.0)
    assert rebased is not None
    assert {call, result} & set(planned.discard) == {call, result}
    assert set(planned.discard) - set(rebased.discard) == {call, result}
    assert rebased.predicted_saving < planned.predicted_saving


def test_a_result_that_came_meanwhile_keeps_its_call() -> None:
    """F6: no request carried it yet."""
    host = Host(policy=KEEPS_LITTLE)
    host.user("please " * 200)
    host.prepare("r1")
    call, other = host.call(), host.call()
    row = host.answer(call, other)
    host.result(call.call_id)
    # No request went out since: the call is not late yet.
    host.append(NoticeRow((TextBlock("busy"),)))
    planned = host.plan(host.inputs(100_000))
    assert planned is None or row.offset not in planned.discard
    then = host.snapshot()
    forced = FoldPlan(FoldScope.WHOLE, (1, 2, 3), (4,), 4, (1, 2, 3), (), (), "", 256, 100, 10, 50, 110)
    then = replace(then, open_run=None, carried_through=3)
    host.result(other.call_id)
    now = replace(host.snapshot(), open_run=None, carried_through=3)
    rebased = rebase(forced, then, now, min_progress=0.0)
    assert rebased is not None
    assert rebased.discard == (1,)


def test_too_little_left_drops_the_candidate() -> None:
    host = talk(2)
    planned, then = begin(host)
    for row in host.rows[1:4]:
        host.pin(row.offset)
    now = host.snapshot()
    assert rebase(planned, then, now, min_progress=0.0) is not None
    assert rebase(planned, then, now, min_progress=0.9) is None


def test_min_progress_is_asked_only_where_rows_left_the_discard_set() -> None:
    host = talk(2)
    planned, then = begin(host)
    host.user()
    assert rebase(planned, then, host.snapshot(), min_progress=0.99) is not None


def test_nothing_but_summaries_left_drops_the_candidate() -> None:
    host = talk(2)
    planned, then = begin(host)
    for offset in planned.discard:
        host.pin(offset)
    assert rebase(planned, then, host.snapshot(), min_progress=0.0) is None


def test_anything_but_appends_drops_the_candidate() -> None:
    host = talk()
    planned, then = begin(host)
    del host.rows[2:4]
    assert rebase(planned, then, host.snapshot(), min_progress=0.0) is None


def in_run() -> Host:
    host = Host(policy=KEEPS_LITTLE)
    host.user()
    for _ in range(3):
        host.prepare("r1")
        call = host.call(arguments=f"[{host.call_number}]")
        host.answer(call)
        host.result(call.call_id, "fine " * 200)
    host.prepare("r1")
    return host


def test_a_summary_whose_run_closed_keeps_its_place_and_loses_its_ledger() -> None:
    """A5."""
    host = in_run()
    planned, then = begin(host)
    assert planned.scope is FoldScope.STAGE_2
    assert len(planned.ledger) == 2
    host.finish()
    host.user()
    rebased = rebase(planned, then, host.snapshot(), min_progress=0.0)
    assert rebased is not None
    assert rebased.ledger == ()
    assert rebased.covers_run == "r1"
    assert rebased.insert_before == planned.insert_before


def test_the_ledger_loses_the_calls_of_rows_that_stay() -> None:
    host = in_run()
    planned, then = begin(host)
    host.pin(planned.discard[0])
    rebased = rebase(planned, then, host.snapshot(), min_progress=0.0, calls=host.calls())
    assert rebased is not None
    assert len(rebased.ledger) == 1


def test_a_fold_of_a_host_goes_through_rebase() -> None:
    host = talk()
    between = [Operation("user"), Operation("prepare"), Operation("answer", size=2), Operation("finish")]
    folded = host.fold(host.inputs(100_000), between)
    assert folded is not None
    assert folded.failures == ()
