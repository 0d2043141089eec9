"""S7: the mechanical handoff by example, at its edges, and whatever the rows and the budget are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.policy import DEFAULT_REDACT
from foldline.domain.rows import CompactionSummaryRow, NoticeRow, Row, RowBody, TextBlock
from foldline.engine.summary_text import missing_headings, text_faults
from foldline.summarize.constraints import REACH_LINE
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.summarize.mechanical import MechanicalHandoff
from foldline.summarize.packing import HEADINGS
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_summaries import counters, earlier_rows, transcripts
from tests.unit.summarize.talk import call, count, filler, headings, result, rows, says, section, user


def handoff(
    source: Sequence[Row], *, earlier: Sequence[CompactionSummaryRow] = (), budget: int = 1024, appendix: int = 0,
    counter: Callable[[str], int] = count,
) -> SummaryResult:  # fmt: skip
    request = SummaryRequest(tuple(source), tuple(earlier), budget, appendix, 0.9, DEFAULT_REDACT)
    return MechanicalHandoff(counter).summarize(request)


def test_the_six_headings_stand_in_order_and_say_what_it_is() -> None:
    made = handoff(rows(*filler(6), first=40))
    assert headings(made.text) == list(HEADINGS)
    assert made.source is SummarySource.MECHANICAL
    assert made.text.startswith(
        "Handoff of conversation rows 40-63, put together without a model; not the user's words"
    )
    assert section(made.text, "Decisions and rationale") == "none"
    assert REACH_LINE in section(made.text, "Technical details")
    assert "24 rows folded here: 6 user requests, 6 assistant messages, 6 calls" in made.text


def test_first_and_last_request_are_whole_where_they_fit() -> None:
    first, last = "Rename --fast to --quick\nand keep an alias.", "Then\n\n  write the notes."
    goals = section(handoff(rows(user(first), *filler(6), user(last))).text, "Goals and constraints")
    assert f'Asked first [#1]: """\n{first}\n"""' in goals
    assert f'Last request [#26] (not answered here): """\n{last}\n"""' in goals


def test_too_long_ones_keep_head_and_tail_within_their_share() -> None:
    for word in ("word ", "漢字漢字", "0f3a9c"):
        long = f"BEGIN {word * 3000} END"
        made = handoff(rows(user(long), *filler(6), user(f"NOW {long}")), budget=600)
        goals = section(made.text, "Goals and constraints")
        assert all(mark in goals for mark in ("BEGIN", "NOW", "END", "[…]"))
        assert count(made.text) <= 600


def test_one_request_is_not_told_twice_and_a_notice_stands_in_for_none() -> None:
    alone = handoff(rows(user("Mend it."), *filler(6)[1:4]))
    assert alone.text.count('"Mend it."') == 1
    body = [NoticeRow((TextBlock("Job 7 has failed."),), kind="job"), *filler(4)[1:4]]
    assert 'Last notice job [#1] (answered in [#4]): "Job 7 has failed."' in handoff(rows(*body)).text


def test_every_call_is_in_the_ledger_with_what_came_of_it() -> None:
    body: list[RowBody] = [user("Look.")]
    for n in range(3):
        body += [says("", call(f"a{n}", "read", path="src/a.py")), result(f"a{n}", "x = 1\n" * 40)]
    body += [says("", call("b", "bash", command="make check")), result("b", "Error E77: boom", failed=True)]
    body += [says("", call("c", "bash", command="make check")), result("c", "all is well" * 20)]
    body += [
        says("", call("d", "write_file", path="src/b.py")),
        result("d", "ok"),
        says("", call("e", "wait", id="x9")),
    ]
    text = handoff(rows(*body)).text
    assert "7 calls were made and are not to be repeated blindly: read ×3, bash ×2, write_file ×1, wait ×1" in text
    for line in ("read src/a.py ×3: ran", "bash make check ×2: ran", "write_file src/b.py: ran", "wait x9: no result"):
        assert line in section(text, "Actions and results")
    assert "bash make check failed: Error E77: boom; ran in [#10]" in section(text, "Errors and resolutions")
    assert "wait x9: no result among these rows" in section(text, "Open questions and next steps")
    assert "Files changed: src/b.py" in section(text, "Technical details")


def test_a_next_fold_of_either_source_carries_it_on_without_what_was_of_its_moment() -> None:
    first = handoff(rows(user("Never rename the port."), *filler(6), user("Go on.")))
    row = CompactionSummaryRow(first.text, "f", first.source, durable=first.durable)
    for source in (MechanicalHandoff(count), ExtractiveSummarizer(count)):
        request = SummaryRequest(rows(*filler(9, "writer"), first=50), (row,), 1500, 0, 0.0)
        again = source.summarize(request)
        assert again.durable == ("Never rename the port.",)
        assert "(earlier) [#23] read_file src/parser/part_5.py" in again.text
        assert "(earlier) Asked [#26]" in again.text
        assert "24 rows folded here" not in again.text.replace("36 rows", "")
        assert again.text.count("no closing answer") <= 1


def test_rows_shorter_than_six_headings_are_not_folded() -> None:
    with pytest.raises(SummaryFailed) as failed:
        handoff(rows(user("hi")))
    assert failed.value.kind is FailureKind.NOT_SMALLER


@given(transcripts, earlier_rows, st.sampled_from([60, 256, 700, 2048]), st.sampled_from([0, 40, 512]), counters)
def test_whatever_the_rows_it_keeps_the_promises_of_a_summary(
    source: list[RowBody], earlier: list[CompactionSummaryRow], budget: int, appendix: int,
    counter: Callable[[str], int],
) -> None:  # fmt: skip
    """S7, V6, S4: within its budgets, six headings, no protocol, no secret, the same bytes again."""
    made: list[SummaryResult] = []
    for _ in range(2):
        try:
            found = handoff(
                rows(*source, *filler(6)), earlier=earlier, budget=budget, appendix=appendix, counter=counter
            )
        except SummaryFailed as failed:
            assert failed.kind is FailureKind.NOT_SMALLER
            return
        made.append(found)
    assert made[0] == made[1]
    text = made[0].text
    assert counter(text) - made[0].appendix_tokens <= budget
    assert made[0].appendix_tokens <= appendix
    assert missing_headings(text) == ()
    assert list(text_faults(text, SummarySource.PROVIDER)) == []
    assert "REASONED-SECRETLY" not in text
    assert "sk-" + "a" * 24 not in text
    assert all(d in text for d in made[0].durable)
