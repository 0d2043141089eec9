"""The checker of what endpoints refuse fires on each of its rules, and on nothing that they take."""

import copy

import pytest

from tests.validity import anthropic_faults, openai_chat_faults

MARK = {"cache_control": {"type": "ephemeral"}}


def call(call_id="c1", **inner):
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}", **inner}}


def chat(*messages):
    return [{"role": "user", "content": "hi"}, *messages]


def called(*calls, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(call_id="c1", content="r"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


VALID_CHAT = [
    *chat(called(call("c1"), call("c2")), result("c2"), result("c1"), {"role": "assistant", "content": "done"}),
    {"role": "assistant", "content": "", "tool_calls": [call("c1")]},
    result("c1", [{"type": "text", "text": "r"}]),
]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "messages: empty"),
        (chat({"role": "robot", "content": "x"}), "role 'robot'"),
        (chat({"role": "user", "content": "x", "mood": 1}), "unknown field mood"),
        (chat({"role": "user", "content": "x", "name": "a b"}), "name 'a b'"),
        (chat({"role": "user"}), "user message without content"),
        (chat({"role": "user", "content": ""}), "empty user message"),
        (chat({"role": "system", "content": ""}), "empty system message"),
        (chat({"role": "assistant", "content": ""}), "empty assistant message"),
        (chat({"role": "assistant", "content": None}), "assistant message without content"),
        (chat({"role": "user", "content": []}), "content is an empty array"),
        (chat({"role": "user", "content": 4}), "content is a int"),
        (chat({"role": "user", "content": "a\ud83d"}), "lone surrogate"),
        (chat({"role": "user", "content": [{"type": "text", "text": float("nan")}]}), "number nan"),
        (user({"type": "text"}), "text part without text"),
        (user({"type": "refusal", "refusal": "no"}), "refusal part in a user message"),
        (user({"type": "image_url", "image_url": "x"}), "image_url part without image_url"),
        (user({"type": "image_url", "image_url": {"url": "ftp://x"}}), "image url"),
        (user({"type": "image_url", "image_url": {"url": "data:audio/wav;base64,AA"}}), "image url"),
        (user({"type": "image_url", "image_url": {"url": "http://x", "detail": "max"}}), "image detail"),
        (user({"type": "input_audio", "input_audio": {"data": "AA", "format": "ogg"}}), "audio of format"),
        (user({"type": "file", "file": {"file_data": "x"}}), "file without"),
        (chat(called(call()), result("c1", [{"type": "image_url", "image_url": {"url": "http://x"}}])), "in a tool"),
        (chat(called(call())), "end: calls without results"),
        (chat(called(call()), {"role": "user", "content": "x"}), "2: calls without results"),
        (chat(called(call("c1"), call("c2")), result("c1"), {"role": "user", "content": "x"}), "results: ['c2']"),
        (chat(result("c9")), "result of 'c9' follows no such call"),
        (chat(called(call()), result(), result()), "result of 'c1' follows no such call"),
        (chat(called(call("c1"), call("c1")), result(), result()), "one call id twice"),
        (chat(called()), "tool_calls is an empty array"),
        (chat(called(call("x" * 41)), result("x" * 41)), "call id"),
        (chat(called(call("")), result("")), "call id"),
        (chat(called(call(name="a.b")), result()), "function name"),
        (chat(called(call(name="x" * 65)), result()), "function name"),
        (chat(called(call(arguments={})), result()), "arguments of c1 are no string"),
        (chat(called({"id": "c1", "type": "web"}), result()), "call of type"),
        (chat({"role": "function", "content": "x"}), "function message without a name"),
    ],
)
def test_every_rule_of_chat_completions_fires(messages, fault):
    assert openai_chat_faults(VALID_CHAT) == []
    assert any(fault in found for found in openai_chat_faults(messages)), openai_chat_faults(messages)


def use(call_id="t1", **more):
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}, **more}


def answer(call_id="t1", **more):
    return {"type": "tool_result", "tool_use_id": call_id, **more}


def said(text="x", **more):
    return {"type": "text", "text": text, **more}


def turns(*contents, system=None):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"messages": messages} | ({} if system is None else {"system": system})


def asked(*blocks):
    return turns(list(blocks))


def replied(*blocks):
    return turns("hi", list(blocks), "ok")


PNG = {"type": "base64", "media_type": "image/png", "data": "aWs="}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
SERVER = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
VALID_ANTHROPIC = turns(
    "hi",
    [THOUGHT, said(), use("t1"), use("t2")],
    [answer("t2", content="r", is_error=True), answer("t1"), said("and"), {"type": "image", "source": PNG}],
    [SERVER, FOUND, said()],
    "end",
    system=[said("s", **MARK)],
)


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ({"messages": []}, "messages: empty"),
        ({**turns("hi"), "tools": []}, "unknown field tools"),
        (turns("hi", system=[said(" ")]), "system: blank text block"),
        (turns("hi", system=[{"type": "image", "source": PNG}]), "image block in system content"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "first message is of role 'assistant'"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "second user message"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}, "role 'tool'"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "unknown field name"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                       {"role": "system", "content": "c"}]}, "system message between assistant"),
        (turns([]), "no content"),
        (turns(""), "blank text block"),
        (turns("\n"), "blank text block"),
        (asked(said(mood=1)), "unknown field mood"),
        (asked(use()), "tool_use block in user content"),
        (replied({"type": "image", "source": PNG}), "image block in assistant content"),
        (asked({"type": "image", "source": {**PNG, "media_type": "image/tiff"}}), "image of type"),
        (asked({"type": "image", "source": {**PNG, "data": "%"}}), "data is no base64"),
        (asked({"type": "image", "source": {**PNG, "data": ""}}), "no base64 data"),
        (asked({"type": "image", "source": {"type": "url", "url": "ftp://x"}}), "image url"),
        (asked({"type": "image", "source": {"type": "file"}}), "image source"),
        (asked({"type": "document", "source": {**PNG}}), "document of type"),
        (asked({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": " "}}), "blank"),
        (asked({"type": "document", "source": {"type": "url", "url": "x"}}), "document url"),
        (asked({"type": "document", "source": {"type": "content"}}), "document without content"),
        (asked({"type": "document", "source": {}}), "document source"),
        (replied({"type": "thinking", "thinking": "hm", "signature": ""}, said()), "thinking without its signature"),
        (replied({**THOUGHT, **MARK}, said()), "thinking block with unknown field cache_control"),
        (replied({"type": "redacted_thinking"}, said()), "redacted thinking without data"),
        (replied(said(), THOUGHT), "the final block is thinking"),
        (turns("hi", [use("a.b")], [answer("a.b")]), "tool_use id"),
        (turns("hi", [use(name="a.b")], [answer()]), "tool name"),
        (turns("hi", [use(name="x" * 129)], [answer()]), "tool name"),
        (turns("hi", [use(input=[])], [answer()]), "is no object"),
        (turns("hi", [use()]), "end: calls without results"),
        (turns("hi", [use()], "no"), "2: calls without results"),
        (turns("hi", [said()], [answer()]), "results without calls"),
        (turns("hi", [use()], [answer(), answer()]), "two results of one call"),
        (turns("hi", [use()], [said(), answer()]), "results do not come first"),
        (turns("hi", [use()], [answer()], [use()], [answer()]), "call id t1 twice"),
        (turns("hi", [use()], [answer(is_error=True)]), "error result without content"),
        (turns("hi", [use()], [answer(is_error="yes")]), "is_error is no boolean"),
        (turns("hi", [use()], [answer(content=5)]), "result content is a int"),
        (turns("hi", [use()], [answer(content=[said(" ")])]), "blank text block"),
        (turns("hi", [use()], [answer(content=[use()])]), "tool_use block in result content"),
        (turns("hi", "done "), "ends in white space"),
        (replied({**SERVER, "id": "toolu_1"}, said()), "server_tool_use id"),
        (replied(SERVER, said()), "server calls without results"),
        (replied(FOUND, said()), "server results without calls"),
        (turns([said(**MARK)] * 2, "a", [said(**MARK)], system=[said(**MARK)] * 2), "5 cache marks"),
        (turns("a\udc00"), "lone surrogate"),
    ],
)  # fmt: skip
def test_every_rule_of_the_messages_api_fires(request_, fault):
    assert anthropic_faults(VALID_ANTHROPIC) == []
    assert any(fault in found for found in anthropic_faults(request_)), anthropic_faults(request_)


def test_an_unfinished_server_call_may_end_a_request():
    """A paused answer is sent back as it is."""
    assert anthropic_faults(turns("hi", [said(), SERVER])) == []


def test_neighbours_of_one_role_are_allowed_where_asked():
    request = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}
    assert anthropic_faults(request, alternating=False) == []


def test_the_checkers_change_nothing():
    before = copy.deepcopy((VALID_CHAT, VALID_ANTHROPIC))
    openai_chat_faults(VALID_CHAT)
    anthropic_faults(VALID_ANTHROPIC)
    assert before == (VALID_CHAT, VALID_ANTHROPIC)
