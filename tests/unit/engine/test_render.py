"""R5: rendering is a function of the list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from foldline.domain.arrangement import (
    Arrangement,
    AssistantItem,
    Item,
    NativeItem,
    PlaceholderKind,
    ResultsItem,
    SystemItem,
    UserItem,
    UserKind,
)
from foldline.domain.enums import StopReason, SummarySource, WarningCode
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ImageBlock,
    ModelRef,
    NoticeRow,
    ProviderCompactionRow,
    ReasoningBlock,
    Row,
    ServerToolBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)
from foldline.domain.session import CallState, OpenRun
from foldline.engine.render import EARLIER_WORK, FIRST_MESSAGE, RUN_WORK, archived_calls, arrange

from tests.strategies import Host


def arranged(host: Host, **arguments: object) -> Arrangement:
    session = host.session
    return arrange(host.rows, open_run=session.open_run, calls=session.calls, **arguments)  # type: ignore[arg-type]


def shape(arrangement: Arrangement) -> str:
    """The order of an arrangement: kinds with offsets, placeholders of results by their kind."""
    return " ".join(_word(item) for item in arrangement.items)


def _word(item: Item) -> str:
    if isinstance(item, ResultsItem):
        given = (str(r.row.offset) if r.row else str(r.placeholder) for r in item.results)
        return f"R[{','.join(given)}]"
    if isinstance(item, UserItem):
        letter = {UserKind.ROW: "U", UserKind.SUMMARY: "K", UserKind.LATE_RESULT: "L", UserKind.PLACEHOLDER: "P"}
        return letter[item.kind] + "".join(map(str, item.offsets))
    letters: dict[type, str] = {SystemItem: "S", AssistantItem: "A", NativeItem: "X"}
    return letters[type(item)] + "".join(map(str, item.offsets))


def text_of(item: Item) -> str:
    assert isinstance(item, UserItem)
    return "\n".join(b.text for b in item.content if isinstance(b, TextBlock))


def asked(*calls: str) -> Host:
    """A run with one answer that makes ``calls``, not sent yet."""
    host = Host()
    host.user()
    host.prepare("r1")
    host.answer(*(host.call(call_id=c) for c in calls))
    return host


def test_results_stand_directly_after_their_call_row() -> None:
    host = asked("a", "b")
    host.result("b")
    host.user("wait")
    host.result("a")
    assert shape(arranged(host)) == "U1 A2 R[5,3] U4"


def test_an_unanswered_call_gets_a_placeholder() -> None:
    host = asked("a", "b")
    host.result("a")
    arrangement = arranged(host)
    assert shape(arrangement) == "U1 A2 R[3,pending]"
    assert arrangement.placeholders == ((2, "b", PlaceholderKind.PENDING),)
    results = arrangement.items[-1]
    assert isinstance(results, ResultsItem)
    assert results.results[1].content == (TextBlock("no result yet"),)


def test_a_call_of_a_closed_run_was_not_completed() -> None:
    host = asked("a")
    host.finish()
    assert shape(arranged(host)) == "U1 A2 R[not_completed]"


def test_the_text_that_was_sent_first_stays() -> None:
    host = asked("a")
    host.prepare("r1")
    host.finish()
    assert shape(arranged(host)) == "U1 A2 R[pending]"


def test_a_late_result_stands_where_it_came_and_names_its_call() -> None:
    """R3."""
    host = Host()
    host.user()
    host.prepare("r1")
    host.answer(host.call("read", '{"path": "x"}', "a"))
    host.prepare("r1")
    host.user("go on")
    host.result("a", "late text")
    arrangement = arranged(host)
    assert shape(arrangement) == "U1 A2 R[pending] U3 L4"
    text = text_of(arrangement.items[-1])
    assert "read" in text
    assert '{"path": "x"}' in text
    assert text.endswith("late text")


def test_a_late_error_says_so_and_keeps_its_media() -> None:
    host = asked("a")
    host.prepare("r1")
    image = ImageBlock("image/png", "AAAA")
    host.append(ToolResultRow("a", (image,), is_error=True))
    item = arranged(host).items[-1]
    assert isinstance(item, UserItem)
    assert "error" in text_of(item)
    assert item.content[-1] == image


def test_a_late_result_of_a_folded_call_is_named_from_the_archive() -> None:
    call = Row(5, AssistantRow((ToolCallBlock("a", "read", '{"path": "x"}'),)))
    late = Row(9, ToolResultRow("a", (TextBlock("t"),), call_offset=5, late=True))
    rows = [Row(8, UserRow((TextBlock("u"),))), late]
    assert archived_calls(rows) == (5,)
    arrangement = arrange(rows, open_run=None, calls=(), archived={5: call})
    assert '"path"' in text_of(arrangement.items[-1])
    assert "a" in text_of(arrange(rows, open_run=None, calls=()).items[-1])


def test_archived_calls_are_only_those_that_are_gone() -> None:
    host = asked("a")
    host.result("a")
    assert archived_calls(host.rows) == ()


def test_the_interim_result_stands_and_the_final_one_is_late() -> None:
    host = asked("a")
    host.result("a", "started", interim=True)
    host.prepare("r1")
    before = arranged(host)
    host.result("a", "ended")
    assert shape(arranged(host)) == "U1 A2 R[3] L4"
    assert arranged(host).items[:3] == before.items[:3]


def test_of_interim_results_the_newest_stands() -> None:
    rows = [
        Row(1, UserRow((TextBlock("u"),))),
        Row(2, AssistantRow((ToolCallBlock("a", "read"),))),
        Row(3, ToolResultRow("a", (TextBlock("10 %"),), call_offset=2, interim=True)),
        Row(4, ToolResultRow("a", (TextBlock("20 %"),), call_offset=2, interim=True)),
        Row(5, ToolResultRow("a", (TextBlock("done"),), call_offset=2)),
    ]
    arrangement = arrange(rows, open_run=None, calls=())
    assert shape(arrangement) == "U1 A2 R[4] L5"
    assert arrangement.items[2].offsets == (3, 4)


def test_a_result_whose_call_is_gone_is_rendered_like_a_late_one() -> None:
    rows = [Row(1, UserRow((TextBlock("u"),))), Row(2, ToolResultRow("a", (TextBlock("t"),), call_offset=None))]
    assert shape(arrange(rows, open_run=None, calls=())) == "U1 L2"


# Server tools


SEARCH = ServerToolBlock("s", "search", "{}")
FOUND = ServerToolBlock("s", "search", "[]", result=True)


def paused(*between: str) -> Host:
    host = Host()
    host.user()
    host.prepare("r1")
    host.answer(TextBlock("let me look"), ReasoningBlock("hm", signature="s"), SEARCH, stop=StopReason.PAUSED)
    for text in between:
        host.user(text, run_id="r1")
    return host


def test_a_paused_row_is_sent_back_whole_and_is_no_end_on_an_assistant() -> None:
    host = paused()
    arrangement = arranged(host)
    assert shape(arrangement) == "U1 A2"
    assert isinstance(arrangement.items[-1], AssistantItem)
    assert SEARCH in arrangement.items[-1].content
    assert arrangement.warnings == ()


def test_rows_that_arrived_while_paused_come_after_the_continuation() -> None:
    host = paused()
    host.prepare("r1")
    host.user("hurry", run_id="r1")
    host.answer(FOUND, TextBlock("found it"))
    arrangement = arranged(host)
    assert shape(arrangement) == "U1 A2 A4 U3"
    first, second = arrangement.items[1:3]
    assert isinstance(first, AssistantItem)
    assert isinstance(second, AssistantItem)
    assert SEARCH in first.content
    assert (first.continues, second.continues) == (False, True)


def test_a_server_call_never_continued_is_left_out_once_anything_follows() -> None:
    arrangement = arranged(paused("never mind"))
    assert shape(arrangement) == "U1 A2 U3"
    item = arrangement.items[1]
    assert isinstance(item, AssistantItem)
    # The reasoning led to the call: it may not end the message without it.
    assert item.content == (TextBlock("let me look"),)


def test_xc18_a_server_call_that_its_continuation_does_not_answer_is_left_out() -> None:
    host = paused()
    host.prepare("r1")
    host.answer(host.call(call_id="a"))
    host.result("a")
    arrangement = arranged(host)
    assert shape(arrangement) == "U1 A2 A3 R[4]"
    first, second = arrangement.items[1:3]
    assert isinstance(first, AssistantItem)
    assert isinstance(second, AssistantItem)
    assert SEARCH not in first.content
    assert second.continues


def test_xc18_a_continuation_of_a_row_that_is_left_out_stands_for_itself() -> None:
    host = Host()
    host.user()
    host.prepare("r1")
    host.answer(SEARCH, stop=StopReason.PAUSED)
    host.answer(TextBlock("nothing to search"))
    host.user(run_id="r1")
    arrangement = arranged(host)
    assert shape(arrangement) == "U1 A3 U4"
    item = arrangement.items[1]
    assert isinstance(item, AssistantItem)
    assert not item.continues


def test_an_assistant_row_of_nothing_else_is_left_out_with_it() -> None:
    host = Host()
    host.user()
    host.prepare("r1")
    host.answer(SEARCH, stop=StopReason.PAUSED)
    host.user("never mind", run_id="r1")
    assert shape(arranged(host)) == "U1 U3"


def test_an_answer_to_the_request_without_the_server_call_does_not_bring_it_back() -> None:
    host = paused("never mind")
    host.prepare("r1")
    sent = arranged(host)
    host.answer(TextBlock("fine"))
    arrangement = arranged(host)
    assert arrangement.items[: len(sent.items)] == sent.items
    assert shape(arrangement) == "U1 A2 U3 A4"


def test_a_continuation_with_calls_keeps_its_batch_together() -> None:
    host = paused()
    host.prepare("r1")
    host.user("hurry", run_id="r1")
    host.answer(FOUND, host.call(call_id="a"))
    host.result("a")
    assert shape(arranged(host)) == "U1 A2 A4 R[5] U3"


# System rows, summaries, native items


def test_only_the_current_version_of_a_keyed_system_row_is_sent_at_its_place() -> None:
    host = Host()
    host.append(SystemRow((TextBlock("v1"),), key="k", version=1), SystemRow((TextBlock("other"),)))
    host.user()
    host.append(SystemRow((TextBlock("v2"),), key="k", version=2))
    assert shape(arranged(host)) == "S4 S2 U3"


def summary(offset: int, of_run: str = "", text: str = "what was", call_ledger: str = "") -> Row:
    return Row(offset, CompactionSummaryRow(text, "f", SummarySource.EXTRACTIVE, of_run=of_run, ledger=call_ledger))


def user(offset: int) -> Row:
    return Row(offset, UserRow((TextBlock("u"),)))


def test_a_summary_is_a_user_message_marked_as_earlier_work() -> None:
    arrangement = arrange([summary(9), user(5)], open_run=None, calls=())
    assert shape(arrangement) == "K9 U5"
    assert text_of(arrangement.items[0]) == f"{EARLIER_WORK}\n\nwhat was"


RUN = OpenRun("r1", 0, 6, 0.0, request=(5,))


@pytest.mark.parametrize("open_run", [RUN, None])
def test_inside_a_run_it_is_the_work_done_on_the_request_above(open_run: OpenRun | None) -> None:
    """Also once the run is closed: what was sent stays as it was."""
    arrangement = arrange([user(5), summary(9, "r1", call_ledger="Calls:\n- read")], open_run=open_run, calls=())
    assert text_of(arrangement.items[1]) == f"{RUN_WORK}\n\nwhat was\n\nCalls:\n- read"


def test_a_summary_of_a_run_without_a_request_above_it_is_earlier_work() -> None:
    arrangement = arrange([summary(9, "r1"), user(5)], open_run=None, calls=())
    assert text_of(arrangement.items[0]).startswith(EARLIER_WORK)


def test_a_native_item_is_passed_through_and_may_come_first() -> None:
    row = Row(3, ProviderCompactionRow("{}", ModelRef("openai", "m")))
    assert shape(arrange([row, user(4)], open_run=None, calls=())) == "X3 U4"


# The first message, warnings


def test_a_placeholder_precedes_a_first_message_that_is_no_users() -> None:
    rows = [Row(1, SystemRow((TextBlock("s"),))), Row(2, AssistantRow((TextBlock("hello"),))), user(3)]
    arrangement = arrange(rows, open_run=None, calls=())
    assert shape(arrangement) == "S1 P A2 U3"
    assert text_of(arrangement.items[1]) == FIRST_MESSAGE


@pytest.mark.parametrize("row", [user(2), summary(2), Row(2, NoticeRow((TextBlock("n"),)))])
def test_no_placeholder_before_a_user_message(row: Row) -> None:
    assert "P" not in shape(arrange([Row(1, SystemRow((TextBlock("s"),))), row], open_run=None, calls=()))


def test_an_empty_transcript_is_empty() -> None:
    assert arrange([], open_run=None, calls=()) == Arrangement(())


def test_a_transcript_that_ends_on_an_assistant_row_is_warned_of() -> None:
    rows = [user(1), Row(2, AssistantRow((TextBlock("hi"),))), Row(3, SystemRow((TextBlock("s"),)))]
    assert arrange(rows, open_run=None, calls=()).warnings == (WarningCode.ENDS_ON_ASSISTANT,)
    assert arrange([*rows, user(4)], open_run=None, calls=()).warnings == ()


# Call ids


def ids(arrangement: Arrangement) -> list[tuple[str, str]]:
    return [
        (call.call_id, call.unique_id)
        for item in arrangement.items
        if isinstance(item, AssistantItem)
        for call in item.calls
    ]


def batch(offset: int, *call_ids: str) -> Sequence[Row]:
    calls = tuple(ToolCallBlock(c, "read") for c in call_ids)
    results = (
        Row(offset + 1 + i, ToolResultRow(c, (TextBlock("t"),), call_offset=offset)) for i, c in enumerate(call_ids)
    )
    return [Row(offset, AssistantRow(calls)), *results]


def test_a_repeated_call_id_carries_its_assistant_offset_in_call_and_result() -> None:
    arrangement = arrange([user(1), *batch(2, "a", "b"), *batch(5, "a")], open_run=None, calls=())
    assert ids(arrangement) == [("a", "a"), ("b", "b"), ("a", "a_5")]
    last = arrangement.items[-1]
    assert isinstance(last, ResultsItem)
    assert last.results[0].call.unique_id == "a_5"


def test_unique_ids_are_unique_though_the_model_made_them_up_already() -> None:
    arrangement = arrange([user(1), *batch(2, "a", "a_9"), *batch(9, "a"), *batch(12, "a_9")], open_run=None, calls=())
    unique = [u for _, u in ids(arrangement)]
    assert len(set(unique)) == len(unique) == 4


# Bounding and usage marks


def test_a_bounded_text_replaces_a_results_own() -> None:
    """B2."""
    host = asked("a", "b")
    host.append(ToolResultRow("a", (TextBlock("long"), ImageBlock("image/png", "AA")), usage_mark="unavailable"))
    host.result("b", "short")
    item = arranged(host, bounded={3: "lo…"}).items[-1]
    assert isinstance(item, ResultsItem)
    assert item.results[0].content == (TextBlock("lo…"), TextBlock("[input tokens: unavailable]"))
    assert [r.shortened for r in item.results] == [True, False]


def test_a_bounded_late_result_keeps_its_lead() -> None:
    """B7."""
    host = asked("a")
    host.prepare("r1")
    host.result("a", "long text")
    text = text_of(arranged(host, bounded={3: "lo…"}).items[-1])
    assert text.endswith("lo…")
    assert "read" in text


def test_a_usage_mark_is_rendered_after_the_results_text() -> None:
    """K4."""
    host = asked("a")
    host.append(ToolResultRow("a", (TextBlock("t"),), usage_mark="10"))
    item = arranged(host).items[-1]
    assert isinstance(item, ResultsItem)
    assert item.results[0].content == (TextBlock("t"), TextBlock("[input tokens: 10, one request behind]"))


def test_a_derived_row_keeps_its_calls_identity() -> None:
    """K2."""
    rows = [
        user(1),
        Row(9, AssistantRow((ToolCallBlock("b", "read"),), derived_from=2)),
        Row(4, ToolResultRow("b", (TextBlock("t"),), call_offset=2)),
    ]
    assert shape(arrange(rows, open_run=None, calls=(CallState(2, "b", "read"),))) == "U1 A9 R[4]"
