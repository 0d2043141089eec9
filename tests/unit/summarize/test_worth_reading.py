"""S8: what an extractive summary leaves out, because it tells nothing where it stands."""

from __future__ import annotations

import pytest
from foldline.domain.rows import NoticeRow, RowBody, TextBlock
from foldline.summarize.identifiers import find_identifiers

from tests.unit.summarize.talk import as_row, call, filler, headings, result, rows, says, section, summarize, user

NOISE = [
    "Let me look at the other file as well.",
    "We can use the list command for the files of the directory.",
    "Here are the flights that I have found for you:",
    "Please let me know which of the options you would like to choose.",
    "Thank you for the clarification about the date.",
    "Hotkey handling and life cycle management",
    "**Flight Number:** HAT229 tomorrow",
    "If so, please confirm the cabin class that you want.",
]


@pytest.mark.parametrize("said", NOISE)
def test_s8_announcements_questions_lead_ins_and_labels_are_no_decisions(said: str) -> None:
    text = summarize(
        rows(user("Book it."), says(f"{said}\n\nThe seat is booked for Monday."), *filler(6)), budget=2048
    ).text
    assert said[:40] not in text
    assert "The seat is booked for Monday." in text


@pytest.mark.parametrize(
    "said",
    [
        "Let's use a queue instead of a table because writers must not wait.",
        "We can ship it: the root cause is proven and the fix is in.",
        "`parse_line()` drops the comma",
    ],
)
def test_s8_what_decides_or_names_is_kept_whatever_its_form(said: str) -> None:
    body = [user("See `parse_line()`."), says(f"{said}\n\nDone."), *filler(6)]
    assert said in summarize(rows(*body), budget=2048).text


def test_s8_questions_that_a_user_answered_since_are_not_open() -> None:
    asked = [says("The flag is gone. Shall I remove the alias too?"), user("Yes."), says("Gone. Shall I tag it?")]
    opened = section(summarize(rows(*filler(6), *asked)).text, "Open questions and next steps")
    assert "Shall I tag it?" in opened
    assert "alias" not in opened


def test_s8_lines_that_every_result_has_tell_nothing() -> None:
    body: list[RowBody] = [user("Run them all.")]
    for n in range(6):
        footer = "(Current directory: /testbed)\nbash-$"
        body += [says("", call(f"c{n}", "run", id=f"job{n}")), result(f"c{n}", f"job {n} took {n * 7} s\n{footer}")]
    text = summarize(rows(*body, *filler(6)), budget=2048).text
    assert "job 5 took 35 s" in text
    assert "bash-$" not in text
    assert "Current directory" not in text


def test_s8_notices_are_what_came_back_where_a_user_speaks() -> None:
    notices = [
        NoticeRow((TextBlock("Traceback (most recent call last):\n  f()\nValueError: no such port 8443"),), kind="job"),
        NoticeRow((TextBlock("All 42 checks passed in shard 7."),), kind="ci"),
    ]
    text = summarize(rows(user("Watch the jobs."), *notices, *filler(6)), budget=2048).text
    assert "notice job: ValueError: no such port 8443" in section(text, "Errors and resolutions")
    assert "notice ci: All 42 checks passed in shard 7." in section(text, "Actions and results")
    assert "notice" not in section(text, "Goals and constraints").lower()


def test_s8_json_that_was_cut_is_told_by_its_words() -> None:
    cut = '[{"flight": "HAT229", "from": "DEN", "seats": {"economy": 3}}, ' * 60
    body = [user("Find one."), says("", call("c", "find_flight", origin="DEN")), result("c", cut)]
    told = section(summarize(rows(*body, *filler(6))).text, "Actions and results")
    assert "flight: HAT229, from: DEN" in told
    assert '[{"' not in told


def test_f8_what_was_asked_first_outlives_what_was_asked_later() -> None:
    first = summarize(rows(user("Move the whole service to the new queue library."), *filler(6)))
    row = as_row(first)
    for generation in range(5):
        made = summarize(rows(*filler(8, f"part{generation}"), first=100 * (generation + 1)), earlier=[row], budget=700)
        assert headings(made.text)
        assert "Move the whole service to the new queue library." in made.text
        row = as_row(made)


@pytest.mark.parametrize(
    "said", ["It's so important, even if it's not always easy.", "Keep it up!", "Tough times don't last, hope does."]
)
def test_f8_encouragement_is_no_constraint(said: str) -> None:
    assert summarize(rows(user(said), *filler(6))).durable == ()


def test_s9_a_function_is_one_name_with_and_without_its_brackets() -> None:
    assert list(find_identifiers("Call `setModel()` or setModel, then `run()`.")) == ["run", "setModel"]
