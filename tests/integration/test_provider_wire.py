"""Every way in which a provider answers, at every API, through the whole server (S1, S2, S5, S7, C5, W8).

A fold ends in one event that names who wrote, the history is untouched unless it committed, nothing is paid for twice
within the cooldown, and what was used is told with its cost. What each answer becomes in the summarizer alone is in
``tests/unit/summarize/test_providers.py``.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from foldline.v1 import compaction_pb2, model_pb2, policy_pb2, row_pb2
from google.protobuf.duration_pb2 import Duration

from tests.decisions.table import marks
from tests.integration.host import Host
from tests.integration.test_provider_summaries import LINE, PRICES, World, due, ended_once, events, spent, turn
from tests.support.providers import HEADINGS, SHAPES, Does, FakeProvider
from tests.support.requests import assistant, user
from tests.support.server import refused, running_server

APIS = ("openai", "openai_responses", "anthropic", "google")
KEYS = {api: f"key-of-{api.replace('_', '-')}-0123456789abcdef" for api in APIS}
COOLDOWN, ASKED = 600, 1800
CALLS_A_TOOL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>'
CALLS_AS_JSON = '{"name": "read_file", "arguments": {"path": "a"}}'
THINKS = "<think>\nThe user wants a summary, so first I will\n</think>"
NO_HEADINGS = "We looked at the parser together and all of it is fine now."
HALF = "\n\n".join(f"## {head}\n- something" for head in HEADINGS[:3])

ANSWERS = [
    # (rule, case, what the provider does, who writes else the failure, whether it names its usage)
    ("S1", "a summary", Does(), "PROVIDER", True),
    ("S5", "stopped for its length", Does("length"), "SUMMARY_REJECTED", True),
    ("S5", "blank", Does("blank"), "SUMMARY_REJECTED", True),
    ("S5", "an empty text", Does(text=""), "SUMMARY_REJECTED", True),
    ("S5", "refused", Does("refusal"), "SUMMARY_REJECTED", True),
    ("S5", "filtered", Does("filtered"), "SUMMARY_REJECTED", True),
    ("S5", "blocked before it was read", Does("blocked"), "SUMMARY_REJECTED", True),
    ("S5", "a tool call", Does("tool_call"), "SUMMARY_REJECTED", True),
    ("S5", "a tool call as text", Does(text=CALLS_A_TOOL), "SUMMARY_REJECTED", True),
    ("S5", "a tool call as JSON in the text", Does(text=CALLS_AS_JSON), "SUMMARY_REJECTED", True),
    ("S5", "reasoning alone", Does("reasoning"), "SUMMARY_REJECTED", True),
    ("S5", "reasoning alone in the text", Does(text=THINKS), "SUMMARY_REJECTED", True),
    ("V6", "no headings", Does(text=NO_HEADINGS), "SUMMARY_REJECTED", True),
    ("V6", "half of the headings", Does(text=HALF), "SUMMARY_REJECTED", True),
    ("S5", "paused", Does("paused"), "SUMMARIZER_FAILED", True),
    ("S5", "without a finish reason", Does("unfinished"), "SUMMARIZER_FAILED", True),
    ("S5", "failed on its side", Does("failed"), "SUMMARIZER_FAILED", False),
    ("S5", "an empty body", Does("empty"), "SUMMARIZER_FAILED", False),
    ("S5", "cut off", Does("cut"), "SUMMARIZER_FAILED", False),
    ("S5", "dropped without a word", Does("drop"), "SUMMARIZER_FAILED", False),
    ("S5", "a page of a gateway", Does(body=b"<html>502</html>", status=502), "SUMMARIZER_FAILED", False),
    ("S5", "slow", Does("stall", gate=threading.Event(), seconds=3.0), "SUMMARIZER_TIMEOUT", False),
    ("S5", "a server error", Does("server_error"), "SUMMARIZER_FAILED", False),
    ("S5", "overloaded", Does("overloaded"), "SUMMARIZER_FAILED", False),
    ("S5", "the wrong key", Does("unauthorized"), "SUMMARIZER_FAILED", False),
    ("C5", "a rate limit", Does("rate_limited"), "SUMMARIZER_FAILED", False),
    ("C5", "a rate limit with Retry-After", Does("rate_limited", headers={"Retry-After": str(ASKED)}),
     "SUMMARIZER_FAILED", False),
    ("C5", "overloaded with Retry-After", Does("overloaded", headers={"Retry-After": str(ASKED)}),
     "SUMMARIZER_FAILED", False),
    ("S7", "over the context", Does("context_exceeded"), "MECHANICAL", False),
    ("S7", "over the context by a status of its own", Does("context_exceeded", status=422), "MECHANICAL", False),
    ("S7", "over the body", Does("too_large"), "MECHANICAL", False),
    ("S7", "413 without a word", Does("too_large", body=b""), "MECHANICAL", False),
    ("S7", "the window ran full", Does("full"), "MECHANICAL", True),
]  # fmt: skip
CASES = [
    (rule, f"{api} {case}", api, *rest)
    for api, (rule, case, *rest) in itertools.product(APIS, ANSWERS)
    if rest[0].what in SHAPES[api] or rest[0].what in ("empty", "cut", "drop", "stall")
]

TOO_LARGE = ("CONTEXT_EXCEEDED", "BODY_TOO_LARGE")
WORDINGS = [
    (api, file)
    for file in sorted((Path(__file__).parents[1] / "data" / "refusals").glob("*.json"))
    for api in {"openai": APIS[:2]}.get(file.stem, (file.stem if file.stem in APIS else "openai",))
]
"""Each server's own, by the API that it serves."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One server with a provider of each API, whose model costs what the catalog says."""
    folder = tmp_path_factory.mktemp("wire")
    with FakeProvider() as fake:
        settings: dict[str, Any] = {"catalog": str(folder / "models.json")}
        models: dict[str, Any] = {"small": {"context_window": 8000, "type": "openai", "encoding": "o200k_base"}}
        for api in APIS:
            kind = api.split("_")[0]
            models[f"fast-{api}"] = {"context_window": 64_000, "type": kind, "prices": PRICES}
            (folder / f"{api}.key").write_text(KEYS[api])
            settings |= {f"providers.{api}.type": api, f"providers.{api}.base_url": fake.base_url(api),
                         f"providers.{api}.api_key_file": str(folder / f"{api}.key")}  # fmt: skip
        (folder / "models.json").write_text(json.dumps(models))
        made = World(None, fake)  # type: ignore[arg-type]
        with running_server(folder, settings, clock=lambda: made.now) as made.client:
            yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fake.script.clear()
    world.fake.received.clear()
    world.fake.otherwise = Does()


def grown(world: World, name: str, api: str, **summary: Any) -> Host:
    """A session over its threshold, whose summaries a model of the API writes."""
    fast = model_pb2.ModelRef(provider=api, model=f"fast-{api}")
    written = policy_pb2.SummaryPolicy(**{"retries": 0, "fast_model": fast, "timeout": Duration(seconds=20), **summary})
    host = Host(world.client, name, auto_compact_threshold=1200, min_boundaries_between=0, summary=written,
                retention=policy_pb2.RetentionPolicy(turns=1, messages=2))  # fmt: skip
    host.append(*(m for n in range(8) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
    return host


def cost(usage: Any) -> float:
    """By the catalog's prices: cached tokens are a part of the input here."""
    cached = usage.cached_input_tokens
    return ((usage.input_tokens - cached) * 2.0 + cached * 0.5 + usage.output_tokens * 8.0) / 1e6


@pytest.mark.parametrize(("api", "does", "outcome", "used"), marks(CASES))
def test_an_answer(world: World, name: str, api: str, does: Does, outcome: str, used: bool) -> None:
    world.fake.otherwise = does
    timeout = {"timeout": Duration(nanos=400_000_000)} if outcome == "SUMMARIZER_TIMEOUT" else {}
    host = grown(world, name, api, **timeout)
    with structlog.testing.capture_logs() as logs:
        prepared = due(host)
    record, failed = _ended(host)
    usage = record.usage if record else failed.usage
    handed_off = outcome == "MECHANICAL"

    assert ended_once(host), "§13: one terminal event"
    if record is not None:
        assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
        assert row_pb2.SummarySource.Name(record.summary_source) == f"SUMMARY_SOURCE_{outcome}"
        assert host.offsets()[0] == record.summary_offset
    else:
        assert prepared.action == compaction_pb2.ACTION_SEND
        assert compaction_pb2.FailureKind.Name(failed.failure) == f"FAILURE_KIND_{outcome}"
        assert failed.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert host.offsets() == list(range(1, len(host.offsets()) + 1)), "S2: PRESERVE"
        assert failed.cooldown_until.seconds == int(world.now) + (ASKED if does.headers else COOLDOWN), "C5"
        assert failed.duration.ToMilliseconds() < 5000
    _accounted(host, usage if not handed_off else None, used, folds=int(outcome == "PROVIDER"))
    assert world.fake.calls == 1
    assert {r.api for r in world.fake.received} == {api}

    told = repr(logs) + repr(host.events()) + repr(prepared)
    assert not [key for key in KEYS.values() if key in told], "W8"
    if outcome != "PROVIDER":
        _cools(world, host, ASKED if does.headers else COOLDOWN)
    assert host.verify().ok


@pytest.mark.parametrize(("api", "file"), WORDINGS, ids=[f"{api}-{file.stem}" for api, file in WORDINGS])
def test_s7_each_wording_of_a_refusal_for_size(world: World, name: str, api: str, file: Path) -> None:
    """As real servers word it: a handoff, one event, one call, and no second within the cooldown.

    Left out are events of streams, which no summary's call is, and what only the provider's name tells.
    """
    cases = [c for c in json.loads(file.read_text("utf-8")) if c["kind"] in TOO_LARGE and c["status"] >= 400]
    for n, case in enumerate(c for c in cases if "provider" not in c):
        body = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])
        world.fake.otherwise = Does("server_error", status=case["status"], body=body.encode())
        world.fake.received.clear()
        host = grown(world, f"{name}-{n}", api)
        assert due(host).fold.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL, case["name"]
        assert ended_once(host)
        assert [turn(host, 300 + k).HasField("fold") for k in range(3)] == [False] * 3
        assert world.fake.calls == 1, case["name"]


def _ended(host: Host) -> tuple[Any, Any]:
    """The record of the fold that committed, else its failure."""
    completed, failures = events(host, "COMPACTION_COMPLETED"), events(host, "COMPACTION_FAILED")
    assert len(completed) + len(failures) == 1
    if completed:
        return completed[0].compaction_completed.record, None
    return None, failures[0].compaction_failed


def _accounted(host: Host, usage: Any, used: bool, *, folds: int) -> None:
    """S5: the call is counted with its tokens and their cost, committed or not; what is not known is not zero."""
    total = spent(host)
    assert (total.calls, total.folds) == (1, folds)
    assert (total.usage.input_tokens > 0) == used
    if usage is not None:
        assert (usage.input_tokens, usage.output_tokens) == (total.usage.input_tokens, total.usage.output_tokens)
        assert usage.HasField("cost") == (used and usage.output_tokens > 0)
        if usage.HasField("cost"):
            assert usage.cost == pytest.approx(cost(usage)) == pytest.approx(total.usage.cost)
            assert usage.currency == "USD"


def _cools(world: World, host: Host, seconds: int) -> None:
    """C5: no second call before the cooldown ends, and one after."""
    start = world.now
    skips = {turn(host, number).skip for number in range(300, 308)}
    assert skips <= {compaction_pb2.SKIP_REASON_COOLDOWN, compaction_pb2.SKIP_REASON_UNSPECIFIED}
    assert compaction_pb2.SKIP_REASON_COOLDOWN in skips
    world.now = start + seconds - 1
    turn(host, 310)
    assert world.fake.calls == 1
    world.now = start + seconds + 1
    world.fake.otherwise = Does()
    assert due(host, 400).fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert (world.fake.calls, spent(host).calls, spent(host).folds) == (2, 2, 1)


@pytest.mark.parametrize("api", APIS)
def test_w8_what_a_manual_fold_is_refused_with_tells_no_word_of_the_provider(
    world: World, name: str, api: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.fake.otherwise = Does("unauthorized")
    host = grown(world, name, api)
    with structlog.testing.capture_logs() as logs:
        refusal = refused(host.compact)
    assert refusal.reason == "SUMMARIZER_FAILED"
    assert any("[redacted]" in line.get("said", "") for line in logs), "what the provider said is logged, masked"
    told = repr(refusal) + repr(host.events())
    assert KEYS[api] not in told + repr(logs) + caplog.text
    assert not [word for word in ("API key", "x-api-key", "127.0.0.1") if word in told]


@pytest.mark.parametrize("api", APIS)
def test_s5_what_is_transient_is_tried_again_within_one_attempt(world: World, name: str, api: str) -> None:
    world.fake.script = [
        Does("overloaded", headers={"Retry-After": "0"}),
        Does("cut"),
        Does("rate_limited", headers={"retry-after-ms": "1"}),
    ]
    host = grown(world, name, api, retries=3)
    assert due(host).action == compaction_pb2.ACTION_SEND_FOLDED
    assert (world.fake.calls, spent(host).calls, spent(host).folds) == (4, 1, 1)
    assert ended_once(host)


def test_s5_without_prices_a_cost_is_unset_and_never_zero(world: World, name: str) -> None:
    host = grown(world, name, "openai", fast_model=model_pb2.ModelRef(provider="openai", model="not-in-the-catalog"))
    due(host)
    record, _ = _ended(host)
    assert record.usage.input_tokens > 0
    assert not record.usage.HasField("cost")
    assert not spent(host).usage.HasField("cost")
