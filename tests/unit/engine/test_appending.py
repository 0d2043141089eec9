"""R1-R4 and §2: what may enter, and what the sidecar sets on it."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import SummarySource, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.ports import CallUpdate
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ModelRef,
    NewRow,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)
from foldline.domain.session import OpenRun, Session
from foldline.engine.appending import accept, close_run_calls, mark_sent, unknown_call_ids

EMPTY = Session(key=1, tenant="", session_id="s", create_time="", model=ModelRef("openai", "gpt-4o"))


def user(text: str = "hello") -> NewRow:
    return NewRow(UserRow((TextBlock(text),)))


def calls(*ids: str) -> NewRow:
    return NewRow(AssistantRow(tuple(ToolCallBlock(i, "run", "{}") for i in ids)))


def result(call_id: str, *, interim: bool = False) -> NewRow:
    return NewRow(ToolResultRow(call_id, (TextBlock("done"),), interim=interim))


def system(version: int, key: str = "rules") -> NewRow:
    return NewRow(SystemRow((TextBlock(f"v{version}"),), key=key, version=version))


def after(*rows: NewRow, session: Session = EMPTY, run_id: str = "r1") -> Session:
    return accept(session, rows, run_id, {}).session


def refused(session: Session, *rows: NewRow, history: dict[str, list[CallUpdate]] | None = None) -> FoldlineError:
    with pytest.raises(FoldlineError) as caught:
        accept(session, rows, "r1", history or {})
    return caught.value


def test_offsets_increase_and_are_never_given_twice() -> None:
    """§1 offset."""
    first = accept(EMPTY, [user(), user()], "", {})
    second = accept(first.session, [user()], "", {})
    assert [r.offset for r in (*first.rows, *second.rows)] == [1, 2, 3]


def test_r1_one_bad_row_refuses_the_append_and_names_it() -> None:
    error = refused(EMPTY, user(), NewRow(AssistantRow(())))
    assert (error.reason, error.metadata["row"]) == (Reason.EMPTY_ASSISTANT_ROW, "1")


def test_summary_rows_are_the_sidecars_alone() -> None:
    """§2 compaction_summary."""
    summary = NewRow(CompactionSummaryRow("text", "f-1", SummarySource.EXTRACTIVE))
    assert refused(EMPTY, summary).reason is Reason.SUMMARY_ROW_REFUSED


def test_r3_a_result_answers_the_newest_unanswered_call_of_its_id() -> None:
    accepted = accept(after(calls("c")), [calls("c"), result("c")], "r1", {})
    assert accepted.rows[1].body.call_offset == 2  # type: ignore[union-attr]
    again = accept(accepted.session, [result("c")], "r1", {})
    assert again.rows[0].body.call_offset == 1  # type: ignore[union-attr]


def test_r3_second_final_result_is_a_duplicate() -> None:
    session = after(calls("c"), result("c"))
    assert unknown_call_ids(session, [result("c")]) == ("c",)
    error = refused(session, result("c"), history={"c": [CallUpdate(1, "c", result_offset=2)]})
    assert (error.reason, error.metadata["result_offset"]) == (Reason.DUPLICATE_TOOL_RESULT, "2")


def test_r3_two_results_of_one_call_in_one_append_are_a_duplicate() -> None:
    error = refused(after(calls("c")), result("c"), result("c"))
    assert error.reason is Reason.DUPLICATE_TOOL_RESULT


def test_r3_a_call_that_never_was_is_unknown() -> None:
    assert refused(EMPTY, result("c")).reason is Reason.UNKNOWN_TOOL_CALL


def test_r3_a_removed_call_names_what_removed_it() -> None:
    error = refused(EMPTY, result("c"), history={"c": [CallUpdate(1, "c", removed_by=7)]})
    assert (error.reason, error.metadata["removed_by"]) == (Reason.UNKNOWN_TOOL_CALL, "7")


@pytest.mark.parametrize("cause", ["sent", "closed", "folded", "interim"])
def test_r3_a_result_is_late_when_its_call_was(cause: str) -> None:
    session = after(calls("c"))
    if cause == "sent":
        session = mark_sent(session)
    elif cause == "closed":
        session = close_run_calls(session, OpenRun("r1", 0, 1, 0.0))
    elif cause == "folded":
        session = replace(session, calls=tuple(replace(c, folded=True) for c in session.calls))
    else:
        session = after(result("c", interim=True), session=session)
    accepted = accept(session, [result("c")], "r1", {})
    assert accepted.rows[0].body.late  # type: ignore[union-attr]
    assert [w.code for w in accepted.warnings] == [WarningCode.LATE_RESULT]


def test_r3_the_first_result_in_time_is_not_late() -> None:
    accepted = accept(after(calls("c")), [result("c")], "r1", {})
    assert not accepted.rows[0].body.late  # type: ignore[union-attr]
    assert accepted.session.calls == ()


def test_r5_the_placeholder_sent_first_stays_after_a_late_result() -> None:
    session = mark_sent(after(calls("c")))
    answered = after(result("c"), session=session)
    assert [(c.placeholder, c.answered) for c in answered.calls] == [("pending", True)]


def test_keyed_system_row_supersedes_and_takes_its_place() -> None:
    """§2 system, R5."""
    accepted = accept(after(system(1), user()), [system(2)], "", {})
    assert (accepted.places, accepted.superseded, accepted.system_changed) == ({3: 1}, (1,), True)


@pytest.mark.parametrize("row", [system(1), NewRow(SystemRow((TextBlock("note"),)))])
def test_4_3_a_system_row_that_replaces_none_voids_no_count(row: NewRow) -> None:
    assert not accept(after(user()), [row], "", {}).system_changed


@pytest.mark.parametrize("version", [1, 2])
def test_a_version_that_is_not_later_is_stale(version: int) -> None:
    error = refused(after(system(2)), system(version))
    assert (error.reason, error.metadata["current"]) == (Reason.STALE_SYSTEM_VERSION, "2")


def test_one_call_id_twice_in_one_row_cannot_be_told_apart() -> None:
    assert refused(EMPTY, calls("c", "c")).reason is Reason.FIELD_VALIDATION


def test_request_takes_rows_until_the_first_assistant_row() -> None:
    """§1 request."""
    session = replace(after(user()), open_run=OpenRun("r1", 0, 2, 0.0, request=(1,)))
    session = after(user("more"), session=session)
    session = after(calls("c"), user("steer"), session=session)
    assert session.open_run is not None
    assert (session.open_run.request, session.open_run.rounds) == ((1, 2), 1)


def test_request_takes_what_other_runs_left_before_the_first_assistant_row() -> None:
    """§1 request: a late result of an earlier run, a row that another run appended."""
    earlier = close_run_calls(after(calls("job"), run_id="r0"), OpenRun("r0", 0, 1, 0.0))
    session = replace(after(user(), session=earlier), open_run=OpenRun("r1", 0, 3, 0.0, request=(2,)))
    session = after(result("job"), user("from elsewhere"), session=session, run_id="r0")
    session = after(calls("c"), user("after"), session=session)
    assert session.open_run is not None
    assert session.open_run.request == (2, 3, 4)
