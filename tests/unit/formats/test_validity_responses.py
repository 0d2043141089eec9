"""The checker of what the Responses API refuses fires on each of its rules, and on nothing that it takes."""

import copy

import pytest

from tests.validity import openai_responses_faults


def asked(*items):
    return {"input": [{"role": "user", "content": "hi"}, *items]}


def call(call_id="c1", **more):
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id="c1", **more):
    return {"type": "function_call_output", "call_id": call_id, "output": "r", **more}


def said(text="x", **more):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def user(*parts):
    return {"input": [{"role": "user", "content": list(parts)}]}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
VALID = {
    "instructions": "s",
    "input": [
        {"role": "user", "content": "hi"},
        THOUGHT,
        said(id="msg_1", status="completed"),
        SEARCH,
        call("c1", id="fc_1"),
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "r"}]},
        output("c1"),
        {"role": "assistant", "content": "done"},
        {"type": "item_reference", "id": "msg_9"},
        {"role": "developer", "content": "d"},
        {"type": "compaction_trigger"},
    ],
}
SCREEN = {"type": "computer_call_output", "call_id": "c1"}


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        ({"input": []}, "input: empty"),
        ({"input": ""}, "input: empty"),
        ({**asked(), "tools": []}, "unknown field tools"),
        ({**asked(), "instructions": ["s"]}, "instructions: no string"),
        (asked({"type": "dance"}), "item of type 'dance'"),
        (asked(said(mood=1)), "message with unknown field mood"),
        (asked({"type": "compaction"}), "compaction without encrypted_content"),
        (asked({"type": "web_search_call"}), "web_search_call without id"),
        (asked({"type": "reasoning"}, said()), "reasoning without summary"),
        (asked({"role": "robot", "content": "x"}), "role 'robot'"),
        (asked({"role": "user"}), "user message without content"),
        (asked({"role": "user", "content": ""}), "empty user message"),
        (asked({"role": "assistant", "content": []}), "empty assistant message"),
        (user({"type": "output_text", "text": "x"}), "output_text part in a user message"),
        (user({"type": "text", "text": "x"}), "text part in a user message"),
        (asked({"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}), "input_text part in a assist"),
        (asked({"role": "system", "content": [{"type": "input_file", "file_id": "f"}]}), "part in a system message"),
        (user({"type": "input_text", "text": "x", "mood": 1}), "part with unknown field mood"),
        (user({"type": "input_text"}), "input_text part without text"),
        (asked({"role": "assistant", "content": [{"type": "refusal"}]}), "refusal part without text"),
        (user({"type": "input_image", "image_url": "ftp://x"}), "image url"),
        (user({"type": "input_image"}), "image url"),
        (user({"type": "input_file", "filename": "x"}), "file without"),
        (user({"type": "input_file", "file_data": "x"}), "file data without a name"),
        (asked(call(id="item_1"), output()), "does not begin with fc"),
        (asked(said(id="chatcmpl-1")), "does not begin with msg"),
        (asked({**THOUGHT, "id": "x"}, said()), "does not begin with rs"),
        (asked(said(id="msg_" + "x" * 61)), "item id"),
        (asked(said(id="msg_1"), said(id="msg_1")), "one item id twice"),
        (asked(call()), "end: calls without outputs"),
        (asked(call(), {"role": "user", "content": "x"}), "2: calls without outputs"),
        (asked(call("c1"), call("c2"), output("c1"), said()), "calls without outputs: ['c2']"),
        (asked(output()), "follows no such call"),
        (asked(call(), output(), output()), "follows no such call"),
        (asked(call(), {"type": "custom_tool_call_output", "call_id": "c1", "output": "r"}), "follows no such call"),
        (asked(call(), output(), call(), output()), "one call id twice"),
        (asked(call("x" * 65), output("x" * 65)), "call id"),
        (asked(call(name="a.b"), output()), "tool name"),
        (asked(call(arguments={}), output()), "are no string"),
        (asked(call(), output(output=4)), "output is a int"),
        (asked(call(), output(output=[])), "output is a list"),
        (asked(call(), output(output=[{"type": "output_text", "text": "x"}])), "output_text part in a result message"),
        (asked({"type": "computer_call", "call_id": "c1"}, {**SCREEN, "output": {}}), "is no screenshot"),
        (
            asked(
                {"type": "shell_call", "call_id": "c1", "action": {}},
                {"type": "shell_call_output", "call_id": "c1", "output": "x"},
            ),
            "shell output is a str",
        ),
        (
            asked(
                {"type": "local_shell_call", "call_id": "c1", "action": {}},
                {"type": "local_shell_call_output", "id": "c1", "output": []},
            ),
            "output is a list",
        ),
        (asked({**THOUGHT, "summary": "x"}, said()), "reasoning without a summary"),
        (asked(said(), THOUGHT), "reasoning without the item that follows it"),
        (asked(THOUGHT, {"role": "user", "content": "x"}), "reasoning without the item that follows it"),
        (asked({"type": "compaction_trigger"}, said()), "trigger is not last"),
        (asked(said("a\ud83d")), "lone surrogate"),
    ],
)
def test_every_rule_of_the_responses_api_fires(request_, fault):
    assert openai_responses_faults(VALID) == []
    assert any(fault in found for found in openai_responses_faults(request_)), openai_responses_faults(request_)


def test_a_string_is_an_input():
    assert openai_responses_faults({"input": "hi"}) == []


def test_the_checker_changes_nothing():
    before = copy.deepcopy(VALID)
    openai_responses_faults(VALID)
    assert before == VALID
