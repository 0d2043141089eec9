"""S8, F8, V6, S4 as properties: no rows, budget or counter makes the extractive summary break its promises."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from foldline.domain.enums import FailureKind, SummarySource, TranscriptSource
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.policy import DEFAULT_REDACT
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ImageBlock,
    NoticeRow,
    ReasoningBlock,
    Row,
    RowBody,
    StructuredBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
)
from foldline.engine.summary_text import missing_headings, text_faults
from foldline.summarize.constraints import MEMORY_LINE
from foldline.summarize.extractive import ExtractiveSummarizer
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.summarize.talk import as_row, count, filler, rows, summarize, user

HOSTILE = [
    *(
        "<tool_call>",
        "</think>",
        "<|im_end|>",
        "## Technical details",
        "[TOOL_CALLS]",
        "<thinking>",
        "<invoke name='x'>",
    ),
    *(
        '{"tool_calls": [{"name": "x"}]}',
        "none",
        '"""',
        "```",
        "`",
        "\r\n",
        "\x00\x1b[31m",
        "．。！？",
        "\u2028",
        "🙂‍🙂",
    ),
    *(
        "never",
        "must",
        "?",
        "/a/b.py",
        "evt_1x",
        "sk-" + "a" * 24,
        "(earlier) ",
        "The user requires: ",
        "必ず",
        "Error:",
    ),
    "-----BEGIN PRIVATE KEY-----",
]
texts = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40)), max_size=12).map(" ".join)
ids = st.sampled_from(["c1", "c2", "", "c 3"])
values = st.one_of(texts, st.integers(), st.none(), st.lists(texts, max_size=2))
objects = st.dictionaries(st.sampled_from(["path", "command", "n", "x y"]), values)
arguments = st.one_of(texts, objects.map(json.dumps))
blocks = st.one_of(
    texts.map(TextBlock),
    texts.map(TextBlock),
    st.builds(ReasoningBlock, text=st.just("REASONED-SECRETLY"), signature=texts),
    st.builds(ImageBlock, mime_type=st.sampled_from(["image/png", ""]), data=st.just("AAAA" * 9)),
    st.builds(StructuredBlock, json=texts),
    st.builds(TranscriptBlock, text=texts, source=st.just(TranscriptSource.SPOKEN)),
)
contents = st.lists(blocks, max_size=3).map(tuple)
calls = st.builds(
    ToolCallBlock,
    call_id=ids,
    name=st.one_of(st.sampled_from(["bash", "edit_file", "<invoke>"]), texts),
    arguments_json=arguments,
)
bodies: st.SearchStrategy[RowBody] = st.one_of(
    contents.map(UserRow),
    st.builds(lambda c, k: AssistantRow((*c, *k)), contents, st.lists(calls, max_size=3)),
    st.builds(ToolResultRow, call_id=ids, content=contents, is_error=st.booleans(), interim=st.booleans()),
    st.builds(NoticeRow, content=contents, kind=texts),
)
transcripts = st.lists(bodies, max_size=14)
earlier_rows = st.lists(
    st.builds(
        CompactionSummaryRow,
        text=texts,
        fold_id=st.just("f"),
        source=st.sampled_from([SummarySource.CURATOR, SummarySource.EXTRACTIVE]),
        durable=st.lists(texts, max_size=3).map(tuple),
    ),
    max_size=2,
)
counters = st.sampled_from(
    [count, len, lambda t: len(t.split()), lambda t: 2 * len(t.encode()) + 5]  # type: ignore[list-item]
)


def attempt(
    source: list[RowBody],
    earlier: list[CompactionSummaryRow],
    budget: int,
    appendix: int,
    counter: Callable[[str], int] = count,
) -> SummaryResult | None:
    """A summary, or None where the rows are no longer than one would be."""
    request = SummaryRequest(rows(*source), tuple(earlier), budget, appendix, 0.9, DEFAULT_REDACT)
    try:
        return ExtractiveSummarizer(counter).summarize(request)
    except SummaryFailed as failed:
        if failed.kind is not FailureKind.NOT_SMALLER:
            raise
        return None


@given(transcripts, earlier_rows, st.sampled_from([0, 40, 256, 700, 4096]), st.sampled_from([0, 30, 512]), counters)
def test_v6_the_budget_is_never_exceeded(
    source: list[RowBody],
    earlier: list[CompactionSummaryRow],
    budget: int,
    appendix: int,
    counter: Callable[[str], int],
) -> None:
    for more in ([], filler(6)):
        summary = attempt([*source, *more], earlier, budget, appendix, counter)
        if summary is not None:
            assert 0 <= summary.appendix_tokens <= appendix
            assert counter(summary.text) - summary.appendix_tokens <= budget
            assert 0 <= summary.coverage.summary <= summary.coverage.with_appendix <= 1


@given(transcripts, earlier_rows)
def test_v6_the_text_holds_six_headings_no_protocol_no_reasoning_no_secret(
    source: list[RowBody], earlier: list[CompactionSummaryRow]
) -> None:
    summary = attempt([*source, *filler(6)], earlier, 900, 200)
    assert summary is not None
    assert missing_headings(summary.text) == ()
    assert [line for line in summary.text.splitlines() if line.startswith("## ")] == [
        line for line in attempt(filler(6), [], 900, 0).text.splitlines() if line.startswith("## ")  # type: ignore[union-attr]
    ]  # fmt: skip
    assert list(text_faults(summary.text, SummarySource.PROVIDER)) == []
    assert "REASONED-SECRETLY" not in summary.text
    assert "sk-" + "a" * 24 not in summary.text
    assert "\x00" not in summary.text
    summary.text.encode("utf-8")


@given(transcripts, earlier_rows)
def test_s8_the_same_rows_give_the_same_bytes(source: list[RowBody], earlier: list[CompactionSummaryRow]) -> None:
    body = [*source, *filler(6)]
    assert attempt(body, earlier, 800, 200) == attempt(body, earlier, 800, 200)


@given(transcripts, st.text(min_size=1, max_size=300))
def test_s8_unmeasured_speech_is_verbatim_or_the_attempt_fails(source: list[RowBody], words: str) -> None:
    speech = AssistantRow((TranscriptBlock(words, TranscriptSource.SPOKEN_UNMEASURED),))
    request = SummaryRequest(rows(*source, speech, *filler(8)), (), 512, 0, 0.0)
    try:
        text = ExtractiveSummarizer(count).summarize(request).text
    except SummaryFailed as failed:
        if failed.kind is not FailureKind.UNMEASURED_TRANSCRIPT:
            raise
        text = words
    assert not words.strip() or words in text


@given(
    st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta"]), min_size=1, max_size=4, unique=True),
    st.sampled_from([512, 1024, 4096]),
)
def test_f8_constraints_survive_ten_generations_of_folding(topics: list[str], budget: int) -> None:
    stated = tuple(f"Never change the {topic} table without asking." for topic in topics)
    summary = summarize(rows(*[user(s) for s in stated], *filler(6)), budget=budget)
    offset = 100
    for generation in range(10):
        subject = f"module{generation}"
        source = tuple(Row(offset + i, body) for i, body in enumerate(filler(6, subject)))
        offset += len(source)
        summary = summarize(source, earlier=[as_row(summary, generation)], budget=budget)
        assert summary.durable == stated
        assert all(s in summary.text for s in stated)
    assert MEMORY_LINE not in summary.text


def test_f8_new_constraints_push_out_the_oldest_and_the_line_stays() -> None:
    summary = None
    said: list[str] = []
    for generation in range(12):
        rule = f"Never delete the files of project {generation} in the shared folder, whatever the cleanup job says."
        said.append(rule)
        source = tuple(Row(200 * generation + i, b) for i, b in enumerate([user(rule), *filler(6)], 1))
        summary = summarize(source, earlier=[as_row(summary, generation)] if summary else [], budget=512)
        assert summary.durable == tuple(said[-len(summary.durable) :])
        assert (MEMORY_LINE in summary.text) == (len(summary.durable) < len(said))
    assert summary is not None
    assert 3 <= len(summary.durable) < 12


def test_xg18_a_fact_fades_over_generations_instead_of_vanishing_at_once() -> None:
    """Of twelve facts, fewer are left with each fold, and none of the first folds loses all."""
    facts = [f"Decision {n}: service svc_{n:02d} moves to port {7100 + n} because of the proxy." for n in range(12)]
    asked = user("What about the next service?")
    source = rows(*[b for fact in facts for b in (asked, AssistantRow((TextBlock(fact),)))], *filler(4))
    summary = summarize(source, budget=900)
    left = [sum(f"svc_{n:02d}" in summary.text for n in range(12))]
    for generation in range(4):
        more = tuple(Row(100 * (generation + 1) + i, b) for i, b in enumerate(filler(8, f"part{generation}")))
        summary = summarize(more, earlier=[as_row(summary, generation)], budget=900)
        left.append(sum(f"svc_{n:02d}" in summary.text for n in range(12)))
    assert left[0] >= 8
    assert left == sorted(left, reverse=True)
    assert left[2] > 0
    assert left[1] >= left[0] // 3


@pytest.mark.parametrize("budget", [256, 1024, 4096])
def test_s4_redaction_is_complete_at_every_budget(budget: int) -> None:
    secrets = [f"ghp_{n:02d}" + "Ab9" * 10 for n in range(20)]
    body = [
        b
        for s in secrets
        for b in (
            user(f"Never use {s} for it."),
            AssistantRow((TextBlock(f"Token {s} noted."), ToolCallBlock("c", "login", json.dumps({"token": s})))),
        )
    ]
    summary = attempt([*body, *filler(6)], [], budget, 512)
    assert summary is not None
    assert not any(s in summary.text or any(s in d for d in summary.durable) for s in secrets)
