"""W4, R2: what comes in by a format goes out by it as the same JSON values, and by the other as a valid request."""

import json

import pytest
from foldline import formats
from foldline.domain.enums import Format
from foldline.domain.rows import encode_body

from tests.unit.formats.transcripts import FIXTURES, arranged, canon, dump, load, through
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

CHAT, RESPONSES = Format.OPENAI_CHAT, Format.OPENAI_RESPONSES
ANTHROPIC, GOOGLE = Format.ANTHROPIC_MESSAGES, Format.GOOGLE_GENAI
FAULTS = {
    CHAT: openai_chat_faults,
    RESPONSES: openai_responses_faults,
    ANTHROPIC: anthropic_faults,
    GOOGLE: google_faults,
}
FILES = (
    ("openai_chat", CHAT),
    ("openai_compatible", CHAT),
    ("openai_responses", RESPONSES),
    ("anthropic_messages", ANTHROPIC),
    ("google_genai", GOOGLE),
)


def cases(file):
    found = load((FIXTURES / f"{file}.json").read_bytes())
    return [pytest.param(value, id=name) for name, value in found.items()]


@pytest.mark.parametrize("messages", cases("openai_chat") + cases("openai_compatible"))
def test_w4_chat_messages_come_back_as_they_were(messages):
    out, parsed, _ = through(messages, Format.OPENAI_CHAT)
    assert canon(out) == canon(messages)
    assert not parsed.warnings


@pytest.mark.parametrize("request_", cases("anthropic_messages"))
def test_w4_anthropic_requests_come_back_as_they_were(request_):
    out, parsed, _ = through(request_, Format.ANTHROPIC_MESSAGES)
    assert canon(out) == canon(request_)
    assert not parsed.warnings


@pytest.mark.parametrize("request_", cases("anthropic_messages"))
def test_w4_an_array_of_anthropic_messages_comes_back_as_messages(request_):
    out, _, _ = through(request_["messages"], Format.ANTHROPIC_MESSAGES)
    assert canon(out) == canon({"messages": request_["messages"]})


@pytest.mark.parametrize("request_", cases("anthropic_messages"))
def test_w4_messages_appended_one_by_one_come_back_as_they_were(request_):
    """Where an append ends says nothing of where a message does; only answers with nothing between them join."""
    rows = ()
    for message in request_["messages"]:
        rows += formats.parse(Format.ANTHROPIC_MESSAGES, dump([message])).rows
    out = load(formats.render(Format.ANTHROPIC_MESSAGES, arranged(rows)).json)
    assert canon(out) == canon({"messages": _with_answers_joined(request_["messages"])})


def _with_answers_joined(messages):
    joined = []
    for message in messages:
        if message["role"] == "assistant" and joined and joined[-1]["role"] == "assistant":
            last = joined.pop()
            joined.append({"role": "assistant", "content": _blocks(last["content"]) + _blocks(message["content"])})
        else:
            joined.append(message)
    return joined


def _blocks(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@pytest.mark.parametrize("request_", cases("openai_responses"))
def test_w4_responses_requests_come_back_as_they_were(request_):
    out, parsed, _ = through(request_, RESPONSES)
    assert canon(out) == canon(request_)
    assert not parsed.warnings


@pytest.mark.parametrize(
    "request_",
    # A string is no item; an output that came with its call from the provider is known as such only beside it.
    [c for c in cases("openai_responses") if c.id not in ("an input of one string", "tools that the provider ran")],
)
def test_w4_items_appended_one_by_one_come_back_as_they_were(request_):
    """Where an append ends says nothing of where an answer does."""
    given = request_["input"]
    rows = ()
    for item in given:
        rows += formats.parse(RESPONSES, dump([item])).rows
    out = load(formats.render(RESPONSES, arranged(rows)).json)["input"]
    assert _by_batch(out) == _by_batch(given)


def _by_batch(items):
    """Items as they are, but outputs moved to their calls: each answer here is a row of its own."""
    calls = {i["call_id"]: i for i in items if i.get("type", "").endswith("_call") and "call_id" in i}
    answers = {i.get("call_id", i.get("id")): i for i in items if i.get("type", "").endswith("_output")}
    moved = []
    for item in items:
        if item.get("type", "").endswith("_output"):
            continue
        moved.append(item)
        moved += [answers[i] for i, call in calls.items() if call is item]
    return canon(moved)


@pytest.mark.parametrize("request_", cases("google_genai"))
def test_w4_google_requests_come_back_as_they_were(request_):
    out, parsed, _ = through(request_, GOOGLE)
    assert canon(out) == canon(request_)
    assert not parsed.warnings


@pytest.mark.parametrize("request_", cases("google_genai"))
def test_w4_contents_appended_one_by_one_come_back_as_they_were(request_):
    rows = ()
    for content in request_["contents"]:
        rows += formats.parse(GOOGLE, dump([content])).rows
    out = load(formats.render(GOOGLE, arranged(rows)).json)
    assert canon(out) == canon({"contents": _with_contents_joined(request_["contents"])})


def _with_contents_joined(contents):
    joined = []
    for content in contents:
        if content.get("role") == "model" and joined and joined[-1].get("role") == "model":
            joined.append({"role": "model", "parts": [*joined.pop()["parts"], *content["parts"]]})
        else:
            joined.append(content)
    return joined


@pytest.mark.parametrize("messages", cases("openai_chat"))
def test_w4_chat_fixtures_are_what_the_endpoint_takes(messages):
    assert openai_chat_faults(messages) == []


@pytest.mark.parametrize("request_", cases("anthropic_messages"))
def test_w4_anthropic_fixtures_are_what_the_endpoint_takes(request_):
    assert anthropic_faults(request_, alternating=False) == []


@pytest.mark.parametrize("request_", cases("openai_responses"))
def test_w4_responses_fixtures_are_what_the_endpoint_takes(request_):
    assert openai_responses_faults(request_) == []


@pytest.mark.parametrize("request_", cases("google_genai"))
def test_w4_google_fixtures_are_what_the_endpoint_takes(request_):
    assert google_faults(request_, alternating=False, signed=False) == []


@pytest.mark.parametrize("target", FAULTS)
@pytest.mark.parametrize(("source", "given"), [
    pytest.param(source, case.values[0], id=f"{file}: {case.id}") for file, source in FILES for case in cases(file)
])  # fmt: skip
def test_w4_requests_become_valid_ones_of_every_other_api(source, given, target):
    if source is not target:
        out, _, _ = through(given, source, target)
        assert FAULTS[target](out) == []


@pytest.mark.parametrize("messages", cases("openai_chat") + cases("openai_compatible"))
def test_w4_rows_of_chat_messages_come_back_as_rows(messages):
    _, parsed, _ = through(messages, Format.OPENAI_CHAT)
    rows = [json.loads(encode_body(row.body)) for row in parsed.rows]
    out, _, _ = through(rows, Format.CANONICAL)
    assert canon(out) == canon(rows)


def test_r2_ordinary_messages_need_no_extra():
    """The canonical form of a message that hosts send every day is that message."""
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [_call("c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]
    anthropic = {
        "system": "s",
        "messages": [
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "x"},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "r"},
                    {"type": "text", "text": "and"},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        ],
    }
    for fmt, given in ((Format.OPENAI_CHAT, chat), (Format.ANTHROPIC_MESSAGES, anthropic)):
        _, parsed, _ = through(given, fmt)
        assert not any(b"extra" in encode_body(row.body) for row in parsed.rows)


def _call(call_id):
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
