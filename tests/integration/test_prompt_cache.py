"""S3 ``summary.prompt_cache``: the instruction behind the live request, as every provider is sent it (XJ1-XJ5)."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, model_pb2, policy_pb2, row_pb2, session_service_pb2

from tests.integration.host import Host
from tests.support.providers import Does, FakeProvider, Received
from tests.support.requests import assistant, calls, raw, result, user
from tests.support.server import Client, running_server

APPEND, SEPARATE = policy_pb2.PROMPT_CACHE_APPEND, policy_pb2.PROMPT_CACHE_SEPARATE
LINE = "The parser drops the trailing comma of `config/app.toml` and line {n} then fails with E{n}. " * 4
KINDS = ("openai", "openai_responses", "anthropic", "google")
FORMATS = dict(
    zip(
        KINDS,
        (
            row_pb2.FORMAT_OPENAI_CHAT, row_pb2.FORMAT_OPENAI_RESPONSES, row_pb2.FORMAT_ANTHROPIC_MESSAGES,
            row_pb2.FORMAT_GOOGLE_GENAI,
        ),
        strict=True,
    )
)  # fmt: skip
FUNCTION = {"name": "read", "description": "Reads a file.", "parameters": {"type": "object", "properties": {}}}
TOOLS: dict[str, Any] = {
    "openai": [{"type": "function", "function": FUNCTION}],
    "openai_responses": [{"type": "function", **FUNCTION}],
    "anthropic": [{"name": "read", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
    "google": [{"functionDeclarations": [FUNCTION]}],
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProvider]:
    with FakeProvider() as made:
        yield made


def settings(folder: Path, fake: FakeProvider) -> dict[str, str]:
    catalog, key = folder / "models.json", folder / "key"
    key.write_text("sk-live0123456789abcdefghijkl")
    types = {"openai": "openai", "openai_responses": "openai", "anthropic": "anthropic", "google": "google"}
    model = {"context_window": 8000, "encoding": "o200k_base"}
    catalog.write_text(json.dumps({f"m-{kind}": model | {"type": t} for kind, t in types.items()}))
    made = {"catalog": str(catalog)}
    for kind in KINDS:
        made |= {
            f"providers.{kind}.type": kind, f"providers.{kind}.base_url": fake.base_url(kind),
            f"providers.{kind}.api_key_file": str(key),
        }  # fmt: skip
    return made


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, fake: FakeProvider) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("cache")
    with running_server(folder, settings(folder, fake)) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(fake: FakeProvider) -> None:
    fake.script.clear()
    fake.received.clear()
    fake.otherwise = Does()


def model(kind: str) -> model_pb2.ModelRef:
    return model_pb2.ModelRef(provider=kind, model=f"m-{kind}")


class Agent(Host):
    """A host that has its requests rendered for one provider, tools and all."""

    def __init__(self, client: Client, kind: str, turns: int = 29, **policy: Any) -> None:
        self.kind = kind
        summary = {"retries": 0, "prompt_cache": APPEND, **policy.pop("summary", {})}
        policy.setdefault("output_reserve_tokens", 100)
        policy = {"summary": policy_pb2.SummaryPolicy(**summary), **policy}
        super().__init__(client, f"cache-{next(_numbers)}", **policy)
        client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id=self.id, model=model(kind)))
        self.append({"role": "system", "content": "You mend parsers."})
        self.append(user("Read it."), calls("c1"), result("c1", "x = [1, 2,]"), assistant("I have read it."))
        self.append(*(m for n in range(turns) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))

    def ask(
        self, number: int, tools: Any = None, fmt: int | None = None, **shape: Any
    ) -> compaction_service_pb2.PrepareRequestResponse:
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=f"run-{number}", reply=compaction_pb2.REPLY_MODE_WHOLE,
            format=FORMATS[self.kind] if fmt is None else fmt, supersede_open_run=True,
        )  # fmt: skip
        request.append.CopyFrom(raw(user(LINE.format(n=1000 + number))))
        request.shape.model.CopyFrom(model(self.kind))
        if "tools_digest" not in shape:
            request.shape.tools_json = json.dumps(TOOLS[self.kind] if tools is None else tools).encode()
        for name, value in shape.items():
            setattr(request.shape, name, value)
        return self.client.compaction.PrepareRequest(request)

    def until_folded(self, **fields: Any) -> tuple[Any, compaction_service_pb2.PrepareRequestResponse]:
        """The last request that was sent before the fold, and the answer with the fold."""
        sent: Any = None
        for number in range(20):
            prepared = self.ask(number, **fields)
            if prepared.HasField("fold") or prepared.skip:
                return sent, prepared
            sent = json.loads(prepared.rendered_json)
            self.record(f"run-{number}", self.answer(prepared, assistant(LINE.format(n=2000 + number))))
        raise AssertionError("no fold was due")


def rows_of(kind: str, sent: Any) -> list[Any]:
    """The messages of a request."""
    if isinstance(sent, list):
        return sent
    return list(sent[{"openai": "messages", "openai_responses": "input", "google": "contents"}.get(kind, "messages")])


def blocks(kind: str, messages: list[Any]) -> list[Any]:
    """What a cache sees: blocks in order, whichever message they stand in."""
    if kind != "anthropic":
        return messages
    return [
        (m["role"], b)
        for m in messages
        for b in ([{"type": "text", "text": m["content"]}] if isinstance(m["content"], str) else m["content"])
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_s3_the_call_is_a_prefix_of_what_was_sent_and_one_message_more(
    client: Client, fake: FakeProvider, kind: str
) -> None:
    """XJ1, XJ2: system rows, tools and messages are those of the request before, byte for byte."""
    agent = Agent(client, kind)
    sent, folded = agent.until_folded()
    (call,) = fake.received
    assert call.body["tools"] == TOOLS[kind]
    messages = rows_of(kind, call.body)
    shared, (last,) = blocks(kind, messages)[:-1], blocks(kind, messages)[-1:]
    assert len(shared) > 30
    assert shared == blocks(kind, rows_of(kind, sent))[: len(shared)]
    if kind != "openai":
        name = {"openai_responses": "instructions", "anthropic": "system", "google": "systemInstruction"}[kind]
        assert call.body[name] == sent[name]
    assert "## Open questions and next steps" in json.dumps(last)
    record = folded.fold
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert (record.bound.kind, record.bound.prompt_cache) == (compaction_pb2.SOURCE_BOUND_KIND_WHOLE, APPEND)
    assert not record.bound.separate_because
    assert record.usage.cached_input_tokens == 128, "what the cache gave is reported"
    assert agent.verify().ok


def test_s3_it_ends_with_the_last_row_that_folds(client: Client, fake: FakeProvider) -> None:
    agent = Agent(client, "openai")
    _, folded = agent.until_folded()
    bodies = {r.offset: r for r in agent.archive()}
    last = max(r.last for r in folded.fold.discarded)
    told = fake.received[0].body["messages"]
    assert told[-2]["content"] == bodies[last].assistant.content[0].text.text
    assert told[0] == {"role": "system", "content": "You mend parsers."}


def marks(body: Any) -> int:
    return json.dumps(body).count("cache_control")


@pytest.mark.parametrize("kind", KINDS)
def test_xj3_xj4_one_shot_calls_are_not_marked_and_name_no_cache_key(
    client: Client, fake: FakeProvider, kind: str
) -> None:
    for mode in (SEPARATE, APPEND):
        fake.received.clear()
        Agent(client, kind, summary={"prompt_cache": mode}).until_folded(tools=[])
        (call,) = fake.received
        assert not marks(call.body)
        assert not {"prompt_cache_key", "prompt_cache_retention", "cachedContent"} & call.body.keys()
        assert "tools" not in call.body


def test_s3_separate_is_the_default_and_says_nothing_of_caches(client: Client, fake: FakeProvider) -> None:
    agent = Agent(client, "anthropic", summary={"prompt_cache": SEPARATE})
    record = agent.until_folded()[1].fold
    assert record.bound.prompt_cache == policy_pb2.PROMPT_CACHE_UNSPECIFIED
    assert "<transcript" in fake.received[0].user
    assert "tools" not in fake.received[0].body


WIDE = [{"type": "function", "function": {"name": "x y" * 900}}]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # what the agent asks with, its policy, and why the call is one of its own
    "another model": ({}, {"summary": {"fast_model": model_pb2.ModelRef(provider="openai", model="fast")}}, "goes to"),
    "another format": ({"fmt": row_pb2.FORMAT_ANTHROPIC_MESSAGES}, {}, "in the format ANTHROPIC_MESSAGES"),
    "tools that are no list": ({"tools": {"a": 1}}, {}, "no list of definitions"),
    "a window too small": (
        {"tools": WIDE},
        {},
        "tokens of a window of 8000",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_s3_where_it_cannot_hold_the_call_is_one_of_its_own_and_says_why(
    client: Client, fake: FakeProvider, case: tuple[dict[str, Any], dict[str, Any], str]
) -> None:
    fields, policy, because = case
    record = Agent(client, "openai", **policy).until_folded(**fields)[1].fold
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert record.bound.prompt_cache == SEPARATE
    assert because in record.bound.separate_because
    assert "<transcript" in fake.received[0].user


def test_s3_typed_rows_that_the_host_lowers_itself_share_nothing(client: Client, fake: FakeProvider) -> None:
    agent = Agent(client, "openai")
    typed = row_pb2.Row(user=row_pb2.UserRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text="And now?"))]))
    request = compaction_service_pb2.PrepareRequestRequest(session_id=agent.id, run_id="r")
    request.append.rows.rows.append(typed)
    request.shape.model.CopyFrom(model("openai"))
    request.shape.input_tokens = 7900
    record = agent.client.compaction.PrepareRequest(request).fold
    assert "lowers its requests itself" in record.bound.separate_because


def test_s3_tools_that_are_only_a_digest_still_stand_in_the_call(client: Client, fake: FakeProvider) -> None:
    """They travel once a session."""
    agent = Agent(client, "openai", turns=25)
    agent.ask(99)
    digest = hashlib.sha256(json.dumps(TOOLS["openai"]).encode()).hexdigest()
    record = agent.until_folded(tools_digest=digest)[1].fold
    assert record.bound.prompt_cache == APPEND
    assert fake.received[0].body["tools"] == TOOLS["openai"]


def test_s3_the_live_request_outlives_a_restart(tmp_path: Path, fake: FakeProvider) -> None:
    """Nothing has come since: a manual fold finds the format and the tools, and a digest is enough for the next one."""
    with running_server(tmp_path, settings(tmp_path, fake)) as client:
        agent = Agent(client, "anthropic", turns=25)
        agent.ask(99)
    with running_server(tmp_path, settings(tmp_path, fake)) as client:
        agent.client = client
        record = agent.compact()
        assert (record.bound.prompt_cache, record.bound.separate_because) == (APPEND, "")
        assert fake.received[-1].body["tools"] == TOOLS["anthropic"]
        digest = hashlib.sha256(json.dumps(TOOLS["anthropic"]).encode()).hexdigest()
        agent.append(*(m for n in range(20) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n)))))
        assert agent.until_folded(tools_digest=digest)[1].fold.bound.prompt_cache == APPEND
        assert fake.received[-1].body["tools"] == TOOLS["anthropic"]


def test_s3_tools_are_kept_where_policy_asks_for_them_alone(client: Client, fake: FakeProvider) -> None:
    """A policy that asks later finds what comes later: JSON that came before it is not known."""
    agent = Agent(client, "openai", turns=25, summary={"prompt_cache": SEPARATE})
    agent.ask(99)
    digest = hashlib.sha256(json.dumps(TOOLS["openai"]).encode()).hexdigest()
    changed(agent, APPEND)
    agent.ask(98, tools_digest=digest)
    record = agent.compact()
    assert (record.bound.prompt_cache, record.bound.separate_because) == (
        SEPARATE, "the tools are known by their digest only",
    )  # fmt: skip
    agent.append(*(m for n in range(9) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n)))))
    agent.ask(97)
    agent.ask(96, tools=[])
    agent.ask(95, tools_digest=digest)
    assert agent.compact().bound.prompt_cache == APPEND, "requests without them in between forget nothing"
    assert fake.received[-1].body["tools"] == TOOLS["openai"]


def test_s3_x3_a_fork_has_the_tools_too(client: Client, fake: FakeProvider) -> None:
    agent = Agent(client, "openai", turns=25)
    agent.ask(99)
    request = session_service_pb2.ForkSessionRequest(session_id=agent.id, fork_session_id=f"{agent.id}-fork")
    client.session.ForkSession(request)
    client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=agent.id))
    assert Host.of(client, f"{agent.id}-fork").compact().bound.prompt_cache == APPEND
    assert fake.received[-1].body["tools"] == TOOLS["openai"]


def changed(agent: Agent, mode: Any) -> None:
    summary = policy_pb2.SummaryPolicy(retries=0, prompt_cache=mode)
    policy = policy_pb2.Policy(summary=summary, output_reserve_tokens=100)
    agent.client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id=agent.id, policy=policy))


def test_s4_a_refusal_for_size_is_asked_again_apart_and_both_are_paid(client: Client, fake: FakeProvider) -> None:
    def does(received: Received) -> Does:
        return Does() if "<transcript" in received.user else Does("context_exceeded")

    fake.otherwise = does
    record = Agent(client, "openai").until_folded()[1].fold
    assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert (record.bound.prompt_cache, len(fake.received)) == (SEPARATE, 2)
    assert "for its size" in record.bound.separate_because


def test_s4_secrets_of_the_live_request_are_masked_in_what_comes_back(client: Client, fake: FakeProvider) -> None:
    """The provider has seen them; summary and memory must not."""
    secret = "sk-live9876543210zyxwvutsrqp"
    text = "\n\n".join(
        f"## {h}\n- the key is {secret}" for h in (
            "Goals and constraints", "Decisions and rationale", "Actions and results", "Errors and resolutions",
            "Open questions and next steps", "Technical details",
        )
    )  # fmt: skip
    fake.otherwise = Does(text=text)
    record = Agent(client, "openai").until_folded()[1].fold
    assert record.bound.prompt_cache == APPEND
    assert secret not in record.summary_text
    assert "the key is [redacted]" in record.summary_text


def test_s5_a_tool_call_instead_of_a_summary_fails_the_attempt(client: Client, fake: FakeProvider) -> None:
    fake.otherwise = Does("tool_call")
    prepared = Agent(client, "openai").until_folded()[1]
    assert prepared.failure == compaction_pb2.FAILURE_KIND_SUMMARY_REJECTED
    assert len(fake.received) == 1


def test_f3_rounds_of_a_run_are_appended_to_as_well(client: Client, fake: FakeProvider) -> None:
    agent = Agent(client, "anthropic", turns=0, summary={"max_tokens": 600})
    prepared = agent.ask(0)
    for number in range(40):
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=agent.id, run_id="run-0", reply=compaction_pb2.REPLY_MODE_WHOLE, format=FORMATS["anthropic"],
            previous_answer=agent.answer(prepared, calls(f"d{number}")),
        )  # fmt: skip
        request.append.CopyFrom(raw(result(f"d{number}", LINE.format(n=number) * 2)))
        request.shape.model.CopyFrom(model("anthropic"))
        request.shape.tools_json = json.dumps(TOOLS["anthropic"]).encode()
        prepared = agent.client.compaction.PrepareRequest(request)
        if prepared.HasField("fold") and prepared.fold.scope != compaction_pb2.FOLD_SCOPE_STAGE_1:
            break
    assert prepared.fold.bound.prompt_cache == APPEND
    last = fake.received[-1].body["messages"][-1]
    assert [b["type"] for b in last["content"]] == ["tool_result", "text"], "turns stay in turn"
    assert agent.verify().ok
