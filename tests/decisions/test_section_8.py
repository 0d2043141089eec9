"""§8: who writes a summary, what one must be, and what it may not hold. Paid sources: ``test_provider_summaries``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foldline import _core
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import compaction_pb2, compaction_service_pb2, policy_pb2, row_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}
HEADINGS = (
    "Goals and constraints", "Decisions and rationale", "Actions and results", "Errors and resolutions",
    "Open questions and next steps", "Technical details",
)  # fmt: skip
T, W = 3_200, 3_900

SOURCES = [
    # (rule, case, summary.source, summary.on_failure, what the host counts, who writes, else the failure)
    ("S2", "AUTO without a provider is extractive", "AUTO", "PRESERVE", T, "EXTRACTIVE"),
    ("S2", "EXTRACTIVE is what it says", "EXTRACTIVE", "PRESERVE", T, "EXTRACTIVE"),
    ("S2", "a provider that is not there preserves the history", "PROVIDER", "PRESERVE", T, "SUMMARIZER_FAILED"),
    ("S2", "also where the request would not fit", "PROVIDER", "PRESERVE", W, "SUMMARIZER_FAILED"),
    ("S2", "NEXT takes the next source", "PROVIDER", "NEXT", T, "EXTRACTIVE"),
    ("S2", "RESCUE does not below W", "PROVIDER", "RESCUE", T, "SUMMARIZER_FAILED"),
    ("S2", "RESCUE does at W", "PROVIDER", "RESCUE", W, "EXTRACTIVE"),
    ("S2", "nobody stands in for a curator, by NEXT", "CURATOR", "NEXT", T, "CURATOR_UNAVAILABLE"),
    ("S2", "nor by RESCUE", "CURATOR", "RESCUE", W, "CURATOR_UNAVAILABLE"),
]


@pytest.mark.parametrize(("source", "on_failure", "counted", "outcome"), marks(SOURCES))
def test_who_writes(client: Client, name: str, source: str, on_failure: str, counted: int, outcome: str) -> None:
    summary = policy_pb2.SummaryPolicy(
        source=policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source}"),
        on_failure=policy_pb2.OnFailure.Value(f"ON_FAILURE_{on_failure}"),
    )
    host = Script(client, name, output_reserve_tokens=100, min_progress=0.0, summary=summary,
                  retention={"turns": 0, "messages": 0}, background={"enabled": False})  # fmt: skip
    host.play("U A U A U A")
    before = host.listing()
    host.revision, host.list = host.get().session.revision, host.offsets()
    shape = compaction_service_pb2.RequestShape(input_tokens=counted)
    prepared = host.prepare("r1", user("go"), shape=shape)
    if prepared.HasField("fold"):
        assert row_pb2.SummarySource.Name(prepared.fold.summary_source) == f"SUMMARY_SOURCE_{outcome}"
        assert prepared.fold.bound.kind == compaction_pb2.SOURCE_BOUND_KIND_WHOLE, "S1"
    else:
        assert compaction_pb2.FailureKind.Name(prepared.failure) == f"FAILURE_KIND_{outcome}"
        assert host.listing().startswith(before)


class Says:
    """A source that says what it is told to."""

    def __init__(self) -> None:
        self.inner = ExtractiveSummarizer(lambda text: _core.count_tokens(text, "o200k_base"))
        self.text: str | None = None
        self.failure: SummaryFailed | None = None

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        if self.failure is not None:
            raise self.failure
        made = self.inner.summarize(request)
        return made if self.text is None else replace(made, text=self.text, appendix_tokens=0)


@pytest.fixture
def saying(tmp_path: Path) -> Iterator[tuple[Client, Says]]:
    source = Says()
    with running_server(tmp_path, summarizer=source) as client:
        yield client, source


TEXTS = [
    # (rule, case, what the source says, reason, failed checks)
    ("S5", "blank", " \n", "REWRITE_REJECTED", "V6"),
    ("S5", "tool protocol", "<tool_call>{}</tool_call>", "REWRITE_REJECTED", "V6"),
    ("S5", "a tool call as JSON", '{"name": "read", "arguments": {}}', "REWRITE_REJECTED", "V6"),
    ("S5", "reasoning", "<think>so</think> it was", "REWRITE_REJECTED", "V6"),
    ("V6", "not smaller", "word " * 3_000, "NOTHING_TO_FOLD", "V6"),
]


@pytest.mark.parametrize(("said", "reason", "checks"), marks(TEXTS))
def test_what_is_no_summary(saying: tuple[Client, Says], said: str, reason: str, checks: str) -> None:
    client, source = saying
    host = Script(client, "s", **PLAIN).play("U A U A")
    source.text = said
    refusal = refused(host.compact)
    assert (refusal.reason, refusal.metadata["checks"]) == (reason, checks)
    assert host.listing() == "1 2 3 4"
    source.text = None
    host.compact()
    assert host.listing() == "K", "the next attempt finds everything"


FAILS = [
    # (rule, case, failure of the source, reason)
    ("S5", "it timed out", FailureKind.SUMMARIZER_TIMEOUT, "SUMMARIZER_FAILED"),
    ("S5", "it failed", FailureKind.SUMMARIZER_FAILED, "SUMMARIZER_FAILED"),
    ("S8", "unmeasured speech does not fit", FailureKind.UNMEASURED_TRANSCRIPT, "SUMMARIZER_FAILED"),
    ("C5", "it cannot be smaller", FailureKind.NOT_SMALLER, "NOTHING_TO_FOLD"),
]


@pytest.mark.parametrize(("kind", "reason"), marks(FAILS))
def test_a_source_that_fails_leaves_the_history(saying: tuple[Client, Says], kind: FailureKind, reason: str) -> None:
    client, source = saying
    host = Script(client, "s", **PLAIN).play("U A U A")
    source.failure = SummaryFailed(kind, "no")
    assert refused(host.compact).reason == reason
    assert host.listing() == "1 2 3 4"


def folded(client: Client, name: str, *messages: dict[str, Any], **policy: Any) -> compaction_pb2.CompactionRecord:
    host = Script(client, name, **PLAIN | policy)
    host.append(*messages)
    host.play("U A")
    return host.compact()


def test_s3_six_headed_sections_in_one_order(client: Client, name: str) -> None:
    text = folded(client, name, user("Ship it.")).summary_text
    places = [text.index(f"## {heading}") for heading in HEADINGS]
    assert places == sorted(places)


def test_s4_secrets_are_masked_reasoning_is_left_out_and_media_are_named(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN | {"summary": {"redact": {"patterns": ["hush-[0-9]+"]}}})
    key = "sk-live0123456789abcdefghijkl"
    host.append(user(f"The key is {key}, the word is hush-42. Never print either."))
    blocks = [
        row_pb2.ContentBlock(reasoning=row_pb2.ReasoningBlock(text="I must flatter them.")),
        row_pb2.ContentBlock(text=row_pb2.TextBlock(text="I decided to keep both out of the log.")),
    ]
    host.rows(row_pb2.Row(assistant=row_pb2.AssistantRow(content=blocks)))
    image = row_pb2.ContentBlock(image=row_pb2.ImageBlock(mime_type="image/png", data=b"abc"))
    host.rows(row_pb2.Row(user=row_pb2.UserRow(content=[image])))
    text = host.play("U A").compact().summary_text
    assert "hush-42" not in text
    assert "flatter" not in text
    assert "Never print either." in text


def test_s8_extractive_is_deterministic_and_quotes_requests_errors_and_calls(client: Client, name: str) -> None:
    said = [
        user("Fix the parser. Do not touch `config/app.toml`."),
        calls("c"),
        result("c", "Error E4711: unexpected comma in src/parser.py line 88"),
        assistant("I fixed src/parser.py: the comma is allowed now."),
    ]
    first = folded(client, name, *said)
    again = folded(client, f"{name}-again", *said)
    assert first.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
    assert first.summary_text == again.summary_text
    for words in ("Do not touch `config/app.toml`.", "E4711", "src/parser.py"):
        assert words in first.summary_text


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_s9_under_the_floor_an_appendix_lists_what_is_missing(saying: tuple[Client, Says], floor: float) -> None:
    """S9: both scores are in the record."""
    client, source = saying
    source.text = None
    host = Script(client, "s", **PLAIN | {"summary": {"coverage_floor": floor, "max_tokens": 300}})
    for n in range(12):
        host.append(user(f"See /srv/app/module_{n}.py and TICKET-{7000 + n}. " + "And so on and on. " * 30))
    record = host.play("A").compact()
    assert record.coverage.identifiers >= 24
    assert 0 <= record.coverage.summary <= record.coverage.with_appendix <= 1
    assert (record.coverage.with_appendix > record.coverage.summary) == (floor == 1.0)
