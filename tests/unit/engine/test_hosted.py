"""Reading and numbering a host's list (H1, R3, L1)."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, SummarySource
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import Snapshot, facts_of
from foldline.domain.policy import Policy
from foldline.domain.ports import CallUpdate
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    NewRow,
    Row,
    RowBody,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)
from foldline.domain.session import CallState
from foldline.engine.hosted import (
    HostList,
    Known,
    SentRow,
    Transcript,
    discarded_messages,
    list_digests,
    numbered,
    plain_summary,
    plan_whole,
    read,
    row_name,
    unanswered_here,
)
from foldline.engine.planning import PlanInputs
from foldline.engine.render import EARLIER_WORK
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import limits


def user(text: str = "do it") -> UserRow:
    return UserRow((TextBlock(text),))


def calls(*ids: str) -> AssistantRow:
    return AssistantRow(tuple(ToolCallBlock(i, "read") for i in ids) or (TextBlock("done"),))


def answer(call_id: str, *, interim: bool = False) -> ToolResultRow:
    return ToolResultRow(call_id, (TextBlock("output"),), interim=interim)


SUMMARY = CompactionSummaryRow("what happened", "f1", SummarySource.EXTRACTIVE, digest="d", of_run="r1")


def host_list(*bodies: RowBody, start: int | None = None, run_id: str = "") -> HostList:
    sent = tuple(SentRow(NewRow(body), i, i) for i, body in enumerate(bodies))
    ids = tuple(f"m{i}" for i in range(len(bodies)))
    return HostList(sent, ids, "" if start is None else ids[start], run_id)


def reads(*bodies: RowBody, start: int | None = None, run_id: str = "", **known: object) -> Transcript:
    summaries = {i: b for i, b in enumerate(bodies) if isinstance(b, CompactionSummaryRow)}
    return read(host_list(*bodies, start=start, run_id=run_id), Known(summaries, **known), now=0.0)  # type: ignore[arg-type]


def late(made: Transcript) -> list[int]:
    return [r.offset for r in made.rows if isinstance(r.body, ToolResultRow) and r.body.late]


class TestReading:
    def test_places_are_offsets_and_results_name_their_calls(self) -> None:
        made = reads(user(), calls("a", "b"), answer("b"), answer("a"))
        assert [r.offset for r in made.rows] == [1, 2, 3, 4]
        assert [r.body.call_offset for r in made.rows if isinstance(r.body, ToolResultRow)] == [2, 2]

    def test_r3_a_result_that_an_answer_parts_from_its_call_is_late(self) -> None:
        made = reads(user(), calls("a", "b"), answer("a"), calls(), answer("b"))
        assert late(made) == [5]
        assert "m4" in made.warnings[0].message

    def test_r3_a_result_behind_the_start_of_the_open_run_is_late(self) -> None:
        made = reads(user(), calls("a"), user("next"), answer("a"), start=2)
        assert late(made) == [4]
        assert made.open_run is not None
        assert made.open_run.request == (3, 4), "it joins the request that no model has seen"

    def test_r3_a_result_of_a_folded_call_is_late(self) -> None:
        waiting = (CallState(-7, "a", "", folded=True),)
        made = reads(SUMMARY, answer("a"), calls=waiting, history={"a": [CallUpdate(7, "a")]})
        assert late(made) == [2]
        assert made.rows[1].body.call_offset == -7  # type: ignore[union-attr]

    def test_f6_what_no_assistant_row_stands_behind_is_not_carried(self) -> None:
        assert reads(user(), calls("a"), answer("a")).carried_through == 1
        assert reads(user(), calls("a"), answer("a"), calls()).carried_through == 3
        assert reads(user(), calls("a"), answer("a"), carried=3).carried_through == 3

    def test_the_open_run_begins_where_it_is_said_to(self) -> None:
        made = reads(user(), calls(), user("go"), calls("a"), answer("a"), calls("b"), start=2, run_id="r")
        assert made.open_run is not None
        assert (made.open_run.run_id, made.open_run.request, made.open_run.rounds) == ("r", (3,), 2)
        assert [r.run_id for r in made.rows] == ["", "", "r", "r", "r", "r"]
        assert made.in_run

    def test_a_run_without_a_name_is_named_by_its_start(self) -> None:
        first, second = (reads(user(), calls(), user("go"), start=2).open_run for _ in range(2))
        other = reads(user("go"), start=0).open_run
        assert first is not None
        assert second is not None
        assert other is not None
        assert first.run_id == second.run_id != other.run_id
        assert first.run_id.isascii()
        assert " " not in first.run_id

    def test_a_summary_of_the_runs_rounds_makes_its_checks_in_run(self) -> None:
        made = reads(user("go"), SUMMARY, start=0, run_id="r1")
        assert made.in_run
        assert reads(SUMMARY, user("go"), start=1, run_id="r1").in_run is False

    def test_43_a_later_version_supersedes_the_earlier(self) -> None:
        rules = [SystemRow((TextBlock(f"v{v}"),), key="rules", version=v) for v in (1, 2)]
        made = reads(rules[0], user(), calls(), rules[1])
        assert (made.superseded, made.system_changed) == (frozenset({1}), 4)

    def test_l5_a_run_needs_a_request(self) -> None:
        with pytest.raises(FoldlineError) as caught:
            reads(user(), calls("a"), answer("a"), start=1)
        assert caught.value.reason is Reason.FIELD_VALIDATION
        assert caught.value.metadata["field"] == "transcript.open_run_start"

    def test_a_refused_row_is_named_by_its_place_and_id(self) -> None:
        with pytest.raises(FoldlineError) as caught:
            reads(user(), calls("a"), answer("a"), calls(), user(), answer("x"))
        assert caught.value.reason is Reason.UNKNOWN_TOOL_CALL
        assert (caught.value.metadata["row"], caught.value.metadata["row_id"]) == ("5", "m5")

    @pytest.mark.parametrize("between", [(), (calls(),), (calls(), user(), calls("a", "b"), answer("a"))])
    def test_r3_a_second_final_result_is_one_wherever_it_stands(self, between: tuple[RowBody, ...]) -> None:
        with pytest.raises(FoldlineError) as caught:
            reads(user(), calls("a"), answer("a"), *between, answer("a"))
        assert caught.value.reason is Reason.DUPLICATE_TOOL_RESULT
        assert caught.value.metadata["row"] == str(3 + len(between))

    def test_h2_a_summary_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(FoldlineError) as caught:
            read(host_list(SUMMARY, user()), Known({}), now=0.0)
        assert caught.value.reason is Reason.SUMMARY_ROW_REFUSED

    def test_unanswered_here_are_results_without_their_calls(self) -> None:
        rows = host_list(user(), answer("x"), calls("a"), answer("a", interim=True), answer("a"), answer("a")).rows
        assert unanswered_here(rows) == ("x", "a")

    def test_h2_the_mark_of_a_summary_is_no_part_of_its_text(self) -> None:
        assert plain_summary(f"{EARLIER_WORK}\n\nwhat happened") == plain_summary("what happened") == "what happened"


class TestNumbering:
    def test_places_become_offsets_everywhere(self) -> None:
        made = reads(user(), calls("a"), answer("a"), calls(), user("go"), start=4)
        given = numbered(made, [3, 4, 20, 21, 22])
        assert [r.offset for r in given.rows] == [3, 4, 20, 21, 22]
        assert given.rows[2].body.call_offset == 4  # type: ignore[union-attr]
        assert given.open_run is not None
        assert (given.open_run.request, given.open_run.opened_offset) == ((22,), 22)
        assert given.carried_through == 20

    def test_calls_of_the_archive_get_their_offsets_back(self) -> None:
        made = reads(SUMMARY, answer("a"), calls=(CallState(-7, "a", "", folded=True),))
        given = numbered(made, [9, 30])
        assert given.rows[1].body.call_offset == 7  # type: ignore[union-attr]


class TestMessages:
    def test_a_message_of_several_rows_is_kept_or_dropped_whole(self) -> None:
        """Planning would take the result and leave the text that came with it."""
        bodies = [user(), calls("a"), answer("a"), user("and go on"), calls(), user("next"), calls()] * 4
        sent, message = [], -1
        for index, body in enumerate(bodies):
            message += index % 7 != 3
            sent.append(SentRow(NewRow(body), message, message))
        given = HostList(tuple(sent), tuple(f"m{i}" for i in range(message + 1)))
        made = read(given, Known({}), now=0.0)
        assert made.bound == ((3, 4), (10, 11), (17, 18), (24, 25))
        facts = tuple(facts_of(r, 40, 200, digest=bytes([r.offset])) for r in made.rows)
        snapshot = Snapshot(0, facts, None, made.carried_through, made.prepared_through)
        policy = replace(Policy(), retention=replace(Policy().retention, turns=0, messages=4))
        planned, held = plan_whole(snapshot, PlanInputs(policy, limits(900)), {}, made.bound)
        assert planned is not None
        gone = set(planned.discard)
        assert all(len(gone.intersection(group)) in (0, 2) for group in made.bound)
        assert {f.offset for f in held.rows} == {f.offset for f in facts}
        positions = discarded_messages(given, made.rows, planned.discard)
        assert {p for p, _ in enumerate(given.row_ids)} >= positions
        assert len(positions) == len({sent[o - 1].first for o in gone})

    def test_a_message_that_made_no_row_goes_with_the_one_before(self) -> None:
        sent = (SentRow(NewRow(user()), 0, 0), SentRow(NewRow(user()), 3, 3))
        rows = (Row(1, user()), Row(2, user()))
        given = HostList(sent, ("a", "b", "c", "d", "e"))
        assert discarded_messages(given, rows, [1]) == {0, 1, 2}
        assert discarded_messages(given, rows, [2]) == {3, 4}


NAMES = st.lists(st.tuples(st.text(max_size=4), st.binary(min_size=32, max_size=32)), max_size=6)


@given(one=NAMES, other=NAMES, rows=st.integers(0, 6))
def test_l1_a_digest_is_of_exactly_the_leading_rows(
    one: list[tuple[str, bytes]], other: list[tuple[str, bytes]], rows: int
) -> None:
    def names(given: list[tuple[str, bytes]]) -> list[bytes]:
        return [row_name((row_id, 0), RowKind.USER, content) for row_id, content in given]

    first, second = (list_digests(names(g), (rows,)).get(rows) for g in (one, other))
    assert (first is None, second is None) == (len(one) < rows, len(other) < rows)
    if first is not None and second is not None:
        assert (first == second) == (one[:rows] == other[:rows])


@given(st.lists(st.sampled_from(["user", "call", "two", "result", "say", "summary"]), max_size=14), st.integers(0, 13))
def test_h1_any_list_is_read_or_refused_by_a_reason(kinds: list[str], start: int) -> None:
    """Whatever a host sends, it learns what of it is wrong; what is read is the same rows in order."""
    made: dict[str, RowBody] = {
        "user": user(), "call": calls("a"), "two": calls("a", "b"), "result": answer("a"), "say": calls(),
        "summary": SUMMARY,
    }  # fmt: skip
    bodies = [made[k] for k in kinds]
    try:
        found = reads(*bodies, start=start if start < len(bodies) else None)
    except FoldlineError as error:
        assert error.reason in (Reason.UNKNOWN_TOOL_CALL, Reason.DUPLICATE_TOOL_RESULT, Reason.FIELD_VALIDATION)
        return
    assert [type(r.body) for r in found.rows] == [type(b) for b in bodies]
    answered: set[tuple[int, str]] = set()
    for row in found.rows:
        if isinstance(row.body, ToolResultRow):
            assert row.body.call_offset is not None
            assert row.body.call_offset < row.offset
            assert (row.body.call_offset, row.body.call_id) not in answered
            answered.add((row.body.call_offset, row.body.call_id))
    given = numbered(found, [10 * (i + 1) for i in range(len(bodies))])
    assert [r.offset for r in given.rows] == [10 * r.offset for r in found.rows]
