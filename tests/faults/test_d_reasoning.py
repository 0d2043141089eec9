"""XD2-XD4: reasoning blocks and compaction, as users met them, with the provider's own signed blocks (S4, S5, F6, F7).

XD1 and XD3 are one fault: a merged answer of tens of blocks must fold, or stay, as a whole.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, model_pb2, policy_pb2, row_pb2

from tests.integration.host import Host
from tests.integration.test_provider_summaries import ended_once, events
from tests.support.providers import HEADINGS, SHAPES, Does, FakeProvider, summary_of
from tests.support.server import Client, running_server

KINDS = ("openai", "openai_responses", "anthropic", "google")
LINE = "The parser drops the trailing comma of `config/app.toml` and line {n} then fails with E{n}. " * 3
AGENT = "You are the agent Calliope. Answer only with calls of your tools, never with prose."
TOOLS = json.dumps([{"name": "read", "input_schema": {"type": "object"}}]).encode()
THOUGHT, SEAL, STATE = "Privately I doubt step {n}", "c2lnbmF0dXJl{n}==", "c2VhbGVk{n}=="
WRITERS = [("anthropic", "claude"), ("anthropic", "another-claude"), ("openai", "gpt"), ("google", "gemini")]
"""Who writes the summary of a session on ``anthropic/claude``: the same model, another, and other providers'."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProvider]:
    with FakeProvider() as made:
        yield made


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, fake: FakeProvider) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("reasoning")
    models = {"claude": {"context_window": 64_000, "type": "anthropic"}}
    (folder / "models.json").write_text(json.dumps(models))
    settings = {"catalog": str(folder / "models.json")}
    for kind in KINDS:
        settings |= {f"providers.{kind}.type": kind, f"providers.{kind}.base_url": fake.base_url(kind)}
    with running_server(folder, settings) as client:
        yield client


@pytest.fixture(autouse=True)
def fresh(fake: FakeProvider) -> None:
    fake.script.clear()
    fake.received.clear()
    fake.otherwise = Does()


class Thinker(Host):
    """A session on a model that reasons, with its own system prompt and tools."""

    def __init__(self, client: Client, writer: tuple[str, str], **policy: Any) -> None:
        fast = model_pb2.ModelRef(provider=writer[0], model=writer[1])
        summary = policy_pb2.SummaryPolicy(fast_model=fast, retries=0, **policy.pop("summary", {}))
        policy.setdefault("retention", policy_pb2.RetentionPolicy(turns=1, messages=2))
        super().__init__(client, f"thinker-{next(_numbers)}", summary=summary, **policy)
        self.rows(row_pb2.Row(system=row_pb2.SystemRow(content=[_text(AGENT)])))

    def asks(self, n: int) -> None:
        self.rows(row_pb2.Row(user=row_pb2.UserRow(content=[_text(LINE.format(n=n))])))

    def works(self, n: int, blocks: int = 1) -> None:
        """An answer that reasons before each of its calls, and the results."""
        content: list[row_pb2.ContentBlock] = []
        for i in range(n, n + blocks):
            thought = row_pb2.ReasoningBlock(text=THOUGHT.format(n=i), signature=SEAL.format(n=i))
            sealed = row_pb2.ReasoningBlock(state=STATE.format(n=i), redacted=True)
            call = row_pb2.ToolCallBlock(call_id=f"c{i}", name="read", arguments_json="{}")
            content += [
                row_pb2.ContentBlock(reasoning=thought), row_pb2.ContentBlock(reasoning=sealed),
                row_pb2.ContentBlock(tool_call=call),
            ]  # fmt: skip
        made = row_pb2.AssistantRow(content=content, model=model_pb2.ModelRef(provider="anthropic", model="claude"))
        results = [
            row_pb2.Row(tool_result=row_pb2.ToolResultRow(call_id=f"c{i}", content=[_text(LINE.format(n=i))]))
            for i in range(n, n + blocks)
        ]
        self.rows(row_pb2.Row(assistant=made), *results)

    def said(self) -> dict[int, bytes]:
        """Every active row but summaries, as its bytes."""
        return {r.offset: r.SerializeToString(deterministic=True) for r in self.active() if not _is_summary(r)}


def _text(text: str) -> row_pb2.ContentBlock:
    return row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text))


def _is_summary(row: row_pb2.Row) -> bool:
    return row.HasField("compaction_summary")


def thoughts(rendered: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = [b for m in rendered["messages"] if isinstance(m["content"], list) for b in m["content"]]
    return [b for b in blocks if b["type"] in ("thinking", "redacted_thinking")]


@pytest.mark.parametrize("writer", WRITERS, ids=["the-same-model", "another-of-it", "openai", "google"])
def test_xd2_no_reasoning_reaches_the_model_that_writes_and_what_is_kept_is_kept_whole(
    client: Client, fake: FakeProvider, writer: tuple[str, str]
) -> None:
    host = Thinker(client, writer)
    for n in range(8):
        host.asks(n)
        host.works(n)
    before, sent = host.said(), thoughts(host.rendered(row_pb2.FORMAT_ANTHROPIC_MESSAGES))
    record = host.compact()
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    (request,) = fake.received
    asked = json.dumps(request.body)
    for words in ("Privately", "c2lnbmF0dXJl", "c2VhbGVk", "thinking"):
        assert words not in asked + record.summary_text
    assert "[#3] assistant calls read" in request.user, "its calls are told"

    kept = host.said()
    assert kept, "a tail is kept"
    assert kept.items() <= before.items(), "F7: byte for byte"
    left = thoughts(host.rendered(row_pb2.FORMAT_ANTHROPIC_MESSAGES))
    assert left == sent[-len(left) :], "signed and sealed blocks go back as they came, in order"
    assert left
    assert_never_half_a_turn(host)


def assert_never_half_a_turn(host: Thinker) -> None:
    """F6: an answer with reasoning is folded with all of its results, or kept with them."""
    active = {r.offset for r in host.active()}
    answer = 0
    for row in host.archive():
        if row.HasField("assistant"):
            answer = row.offset
        if row.HasField("tool_result"):
            assert (row.offset in active) == (answer in active)
    assert host.verify().ok


@pytest.mark.parametrize(("writer", "shared"), [(WRITERS[0], True), (WRITERS[1], False), (WRITERS[2], False)])
def test_xd2_behind_the_live_request_reasoning_goes_back_untouched_to_its_own_model_alone(
    client: Client, fake: FakeProvider, writer: tuple[str, str], shared: bool
) -> None:
    """S3 APPEND: nothing is merged or filtered on the way; another model gets a request of its own, without it."""
    host = Thinker(client, writer, summary={"prompt_cache": policy_pb2.PROMPT_CACHE_APPEND})
    for n in range(8):
        host.asks(n)
        host.works(n)
    claude = model_pb2.ModelRef(provider="anthropic", model="claude")
    shape = compaction_service_pb2.RequestShape(model=claude, tools_json=TOOLS, input_tokens=60_000)
    request = compaction_service_pb2.PrepareRequestRequest(
        session_id=host.id, run_id="r", reply=compaction_pb2.REPLY_MODE_WHOLE, shape=shape,
        format=row_pb2.FORMAT_ANTHROPIC_MESSAGES,
    )  # fmt: skip
    request.append.rows.rows.add().user.content.add().CopyFrom(_text("Go on."))
    live = [{"type": "thinking", "thinking": THOUGHT.format(n=n), "signature": SEAL.format(n=n)} for n in range(8)]
    prepared = client.compaction.PrepareRequest(request)
    assert prepared.fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    (asked,) = fake.received
    if shared:
        shown = [b for b in thoughts(asked.body) if b["type"] == "thinking"]
        assert shown == live[: len(shown)], "up to the last row that folds"
        assert len(shown) >= 6
    else:
        assert "Privately" not in json.dumps(asked.body)
        assert "c2lnbmF0dXJl" not in json.dumps(asked.body)


@pytest.mark.parametrize("merged_at", [0, 5], ids=["it-folds", "it-is-kept"])
def test_xd3_a_merged_answer_of_tens_of_blocks_folds_or_stays_as_a_whole(
    client: Client, fake: FakeProvider, merged_at: int
) -> None:
    host = Thinker(client, WRITERS[0])
    for n in range(6):
        host.asks(n)
        host.works(100 * n, blocks=40 if n == merged_at else 1)
    (large,) = [r.offset for r in host.active() if len(r.assistant.content) == 120]
    before = host.said()
    for _ in range(2):
        record = host.compact()
        assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert_never_half_a_turn(host)
        host.asks(900)
        host.works(900 + next(_numbers))
        host.asks(901)
        host.works(900 + next(_numbers))
        if merged_at == 5:
            break
    active = [r.offset for r in host.active()]
    assert (large in active) == (merged_at == 5)
    if merged_at == 5:
        assert host.said()[large] == before[large]
    assert "Privately" not in "".join(json.dumps(r.body) for r in fake.received)


SAYS = [
    ("tool-call", Does("tool_call")),
    ("reasoning-alone", Does("reasoning")),
    ("protocol-as-text", Does(text='<function_calls><invoke name="read"></invoke></function_calls>')),
    ("call-as-json", Does(text='{"name": "read", "arguments": {"path": "a"}}')),
    ("thoughts-as-text", Does(text="<think>The user wants a summary, so first I")),
    ("goes-on-with-the-task", Does(text="Sure, let me read config/app.toml next.")),
    ("protocol-below-headings", Does(text=summary_of("") + '\n<tool_call>{"name": "read"}</tool_call>')),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("does", [does for _, does in SAYS], ids=[name for name, _ in SAYS])
def test_xd4_the_call_is_isolated_from_the_agent_and_only_its_text_counts(
    client: Client, fake: FakeProvider, kind: str, does: Does
) -> None:
    """What has a finish reason of ``stop`` and is no summary is never kept as one."""
    host = Thinker(client, (kind, "m"), auto_compact_threshold=1_000)
    for n in range(8):
        host.asks(n)
        host.works(n)
    fake.otherwise = does
    before = host.offsets()
    host.prepare("r0", {"role": "user", "content": "Go on."})
    if not fake.received:
        host.prepare("r0")
    (request,) = fake.received
    assert "Calliope" not in json.dumps(request.body)
    assert not {"tools", "tool_choice", "functions"} & request.body.keys()
    assert host.offsets()[: len(before)] == before
    (event,) = events(host, "COMPACTION_FAILED")
    assert event.compaction_failed.failure == compaction_pb2.FAILURE_KIND_SUMMARY_REJECTED
    assert ended_once(host)


@pytest.mark.parametrize("kind", ["openai", "openai_responses", "anthropic", "google"])
def test_xd4_reasoning_beside_the_text_is_left_where_it_is(client: Client, fake: FakeProvider, kind: str) -> None:
    host = Thinker(client, (kind, "m"))
    for n in range(8):
        host.asks(n)
        host.works(n)
    fake.otherwise = lambda received: Does(body=with_thoughts(kind, summary_of(received.user)))
    text = host.compact().summary_text
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert "first I will" not in text


def with_thoughts(kind: str, text: str) -> bytes:
    """An answer whose reasoning stands beside its text, as each API has it."""
    whole = json.loads(json.dumps(SHAPES[kind]["success"]).replace('"{text}"', json.dumps(text)))
    alone = SHAPES[kind]["reasoning"]
    if kind == "openai":
        whole["choices"][0]["message"]["reasoning_content"] = alone["choices"][0]["message"]["reasoning_content"]
    elif kind == "openai_responses":
        whole["output"] = [*(i for i in alone["output"] if i["type"] == "reasoning"), *whole["output"]]
    elif kind == "anthropic":
        whole["content"] = [*(b for b in alone["content"] if b["type"] != "text"), *whole["content"]]
    else:
        parts = [p for p in alone["candidates"][0]["content"]["parts"] if p.get("thought")]
        whole["candidates"][0]["content"]["parts"] = [*parts, *whole["candidates"][0]["content"]["parts"]]
    return json.dumps(whole).encode()
