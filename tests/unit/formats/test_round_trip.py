"""W4, R2: what comes in by a format goes out by it as the same JSON values, and by the other as a valid request."""

import json

import pytest
from foldline import formats
from foldline.domain.enums import Format
from foldline.domain.rows import encode_body

from tests.unit.formats.transcripts import FIXTURES, arranged, canon, dump, load, through
from tests.validity import anthropic_faults, openai_chat_faults


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


@pytest.mark.parametrize("messages", cases("openai_chat"))
def test_w4_chat_fixtures_are_what_the_endpoint_takes(messages):
    assert openai_chat_faults(messages) == []


@pytest.mark.parametrize("request_", cases("anthropic_messages"))
def test_w4_anthropic_fixtures_are_what_the_endpoint_takes(request_):
    assert anthropic_faults(request_, alternating=False) == []


@pytest.mark.parametrize("messages", cases("openai_chat") + cases("openai_compatible"))
def test_w4_chat_messages_become_a_valid_anthropic_request(messages):
    out, _, _ = through(messages, Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES)
    assert anthropic_faults(out) == []


@pytest.mark.parametrize("request_", cases("anthropic_messages"))
def test_w4_anthropic_messages_become_valid_chat_messages(request_):
    out, _, _ = through(request_, Format.ANTHROPIC_MESSAGES, Format.OPENAI_CHAT)
    assert openai_chat_faults(out) == []


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
