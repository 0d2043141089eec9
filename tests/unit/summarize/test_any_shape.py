"""A model's text is judged and cut in time linear in it, whatever its shape (V6, S5)."""

from __future__ import annotations

import time

import pytest
from foldline.domain.enums import SummarySource
from foldline.domain.markdown import title_of, unfenced, without_fenced
from foldline.engine.error_bodies import read
from foldline.engine.summary_text import text_faults
from foldline.summarize.written import HEADINGS, bare, composed, masked, sections_of
from hypothesis import given
from hypothesis import strategies as st

MANY = 200_000
WHOLE = "\n\n".join(f"## {head}\n- a" for head in HEADINGS)
SHAPES = [
    "# a" + " " * MANY + "x", "**a" + " " * MANY + "x", "## " + " #" * MANY, "```\n" + " " * MANY + "x",
    "```a\n" * MANY, "~~~~a\n```\n" * MANY, "<think " * MANY, "<invoke " * MANY, "`" * MANY, "``" + "` " * MANY,
    WHOLE + "\n- x" * MANY, "\\" * MANY, "\n" * MANY, "# \n" * MANY, "<" + " " * MANY,
]  # fmt: skip


@pytest.mark.parametrize("text", SHAPES, ids=lambda text: repr(text[:12]))
def test_v6_no_shape_of_a_text_takes_longer_than_its_length(text: str) -> None:
    started = time.perf_counter()
    list(text_faults(text, SummarySource.PROVIDER))
    sections = sections_of(bare(text))
    if sections is not None:
        made = composed(sections, (), False, 500, lambda part: len(part) // 3 + 1)
        assert made is not None
        assert len(made) // 3 < 500
    read(text.encode())
    assert time.perf_counter() - started < 10, "it was minutes to days"


@pytest.mark.parametrize(("line", "title"), [
    ("## Goals", "goals"), ("   # Goals and more", "goals and more"), ("**Goals**", "goals"), ("**Goals**:  ", "goals"),
    ("##Goals", ""), ("    ## Goals", ""), ("Goals", ""), ("## ", ""), ("****", ""), ("####### a", ""),
])  # fmt: skip
def test_v6_what_is_a_heading(line: str, title: str) -> None:
    assert title_of(line) == title


@pytest.mark.parametrize(("text", "left"), [
    ("a\n```\n<tool_call>\n```\nb", "a\n \nb"),
    ("a\n````py\n```\nx\n````\nb", "a\n \nb"),
    ("~~~\n```\n~~~", " "),
    ("a\n```\nnever closed", "a\n```\nnever closed"),
    ("```\nx\n``` y\nz", "```\nx\n``` y\nz"),
])  # fmt: skip
def test_v6_closed_code_is_no_speech(text: str, left: str) -> None:
    assert without_fenced(text) == left


@pytest.mark.parametrize(("text", "inner"), [
    ("```markdown\n## a\n```", "## a"), ("  ```\n## a\n```  \n", "## a"), ("~~~md\n## a\n~~~~", "## a"),
    ("```json\n{}\n```", None), ("```\n## a\n", None), ("## a", None), ("```", None), ("``````", None),
])  # fmt: skip
def test_s5_a_fence_around_all_of_an_answer(text: str, inner: str | None) -> None:
    assert unfenced(text, ("", "markdown", "md")) == inner


@given(st.lists(st.sampled_from(["```", "````", "~~~", "```py", "x", " ```", "", "``` x"]), max_size=12))
def test_v6_what_stands_outside_of_code_stays(lines: list[str]) -> None:
    """Against the definition: a fence opens a block where a later line closes it."""
    kept, at = [], 0
    while at < len(lines):
        mark = lines[at].strip()[:1]
        size = len(lines[at].strip()) - len(lines[at].strip().lstrip(mark)) if mark in ("`", "~") else 0
        ends = [
            i for i in range(at + 1, len(lines))
            if set(lines[i].strip()) == {mark} and len(lines[i].strip()) >= size
        ] if size >= 3 else []  # fmt: skip
        kept.append(" " if ends else lines[at])
        at = ends[0] + 1 if ends else at + 1
    assert without_fenced("\n".join(lines)) == "\n".join(kept)


def test_s4_a_secret_of_several_lines_is_masked_in_its_section() -> None:
    found = masked(
        [["- a", "BEGIN", "key", "END", "- b"], []], lambda text: text.replace("BEGIN\nkey\nEND", "[redacted]")
    )
    assert found == [["- a", "[redacted]", "- b"], []]
