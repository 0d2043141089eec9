"""V6, F8: which lines a budget takes, whatever the counter."""

from __future__ import annotations

import pytest
from foldline.summarize.packing import ACTIONS, DECISIONS, GOALS, HEADINGS, Line, Packer, render

from tests.unit.summarize.talk import count, headings

EVEN = (1 / 6,) * 6


def line(section: int, text: str, value: float = 0.5, order: int = 0, age: int = 0) -> Line:
    return Line(section, text, value, (0, order), age)


def test_s3_an_empty_document_has_every_heading_and_none() -> None:
    text = render("", [])
    assert headings(text) == list(HEADINGS)
    assert text.count("none") == 6


def test_v6_a_budget_below_the_headings_gives_nothing() -> None:
    bare = count(render("", []))
    assert Packer("", [], bare, count).pack(EVEN, 0.4) == render("", [])
    assert Packer("", [], bare - 1, count).pack(EVEN, 0.4) is None


def test_v6_lines_of_value_one_and_more_come_first() -> None:
    lines = [line(GOALS, f"- wish {n} " + "word " * 20, 0.9, n) for n in range(30)]
    lines.append(line(ACTIONS, "- must stand " + "really " * 40, 1.5))
    text = Packer("", lines, 200, count).pack(EVEN, 0.4)
    assert text is not None
    assert "- must stand" in text
    assert count(text) <= 200


def test_s8_every_section_gets_its_share_before_one_takes_all() -> None:
    lines = [line(GOALS, f"- loud {n} " + "word " * 10, 0.99, n) for n in range(100)]
    lines += [line(DECISIONS, f"- quiet {n} " + "word " * 10, 0.1, n) for n in range(3)]
    text = Packer("", lines, 900, count).pack(EVEN, 0.4)
    assert text is not None
    assert text.count("- quiet") == 3


def test_s8_lines_stand_in_their_order_not_in_that_of_their_worth() -> None:
    text = Packer("", [line(GOALS, "- late", 0.9, 9), line(GOALS, "- early", 0.1, 1)], 300, count).pack(EVEN, 0.4)
    assert text is not None
    assert text.index("- early") < text.index("- late")


def test_f8_old_lines_get_less_room_than_new_ones_but_some() -> None:
    lines = [line(DECISIONS, f"- new {n} " + "word " * 12, 0.5, n) for n in range(60)]
    lines += [line(DECISIONS, f"- old {n} " + "word " * 12, 0.5, n, age=1) for n in range(60)]
    lines += [line(DECISIONS, f"- older {n} " + "word " * 12, 0.5, n, age=2) for n in range(60)]
    text = Packer("", lines, 1000, count).pack((0, 1, 0, 0, 0, 0), 0.4)
    assert text is not None
    assert text.count("- new") > text.count("- old ") >= text.count("- older") > 0


@pytest.mark.parametrize(
    "counter",
    [len, lambda t: len(t.split()), lambda t: 3 * len(t.encode()) + 7, lambda t: len(t) ** 2 // 50, lambda t: 0],
    ids=["characters", "words", "dear", "superadditive", "free"],
)
def test_v6_the_budget_holds_for_any_counter(counter: object) -> None:
    assert callable(counter)
    lines = [line(n % 6, f"- line {n} " + "word " * (n % 17), 0.01 * (n % 90), n) for n in range(200)]
    lines.append(line(GOALS, "- first of all", 2.0))
    for budget in (300, 900, 5_000):
        text = Packer("preface", lines, budget, counter).pack(EVEN, 0.4)
        assert text is None or counter(text) <= budget
        assert text is not None or counter(render("preface", [])) > budget
