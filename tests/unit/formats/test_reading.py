"""What enters, what is repaired, what is refused, what is dropped (R2, R4, XF5)."""

import json

import pytest
from foldline import formats
from foldline.domain.enums import Format, StopReason, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import (
    AssistantRow,
    ReasoningBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
)

from tests.unit.formats.transcripts import dump

CHAT, ANTHROPIC, CANONICAL = Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES, Format.CANONICAL


def rows(fmt, given):
    return [row.body for row in formats.parse(fmt, given if isinstance(given, bytes) else dump(given)).rows]


def refusal(fmt, given):
    with pytest.raises(FoldlineError) as caught:
        formats.parse(fmt, given if isinstance(given, bytes) else dump(given))
    assert caught.value.reason is Reason.FORMAT_INVALID
    return caught.value


def test_one_message_is_taken_like_an_array_of_one():
    message = {"role": "user", "content": "hi"}
    assert rows(CHAT, message) == rows(CHAT, [message]) == [UserRow((TextBlock("hi"),))]
    # Where an append of Anthropic messages starts, a message does.
    assert rows(ANTHROPIC, message) == rows(ANTHROPIC, [message])
    assert rows(CHAT, []) == rows(ANTHROPIC, []) == rows(CANONICAL, []) == []


def test_chat_roles_become_row_types():
    given = [
        {"role": "developer", "content": "d"},
        {"role": "assistant", "reasoning_content": "r", "content": "t", "refusal": "no", "tool_calls": [_call("c")]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    system, answer, result = rows(CHAT, given)
    assert isinstance(system, SystemRow)
    assert [type(block) for block in answer.content] == [ReasoningBlock, TextBlock, TextBlock, ToolCallBlock]
    assert isinstance(result, ToolResultRow)
    assert result.call_id == "c"


def test_a_spoken_answer_holds_its_words_as_a_transcript():
    """Memory and other formats read the words; the audio comes back as it was."""
    audio = {"id": "audio_1", "data": "UklG", "transcript": "Hello.", "expires_at": 1}
    (answer,) = rows(CHAT, [{"role": "assistant", "content": None, "audio": audio}])
    assert [block.text for block in answer.content if isinstance(block, TranscriptBlock)] == ["Hello."]


def test_one_anthropic_message_becomes_a_row_a_result_and_one_for_the_rest():
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": "2", "is_error": True},
        {"type": "text", "text": "go on"},
    ]
    first, second, said = rows(ANTHROPIC, [{"role": "user", "content": content}])
    assert (first.call_id, second.call_id, second.is_error) == ("a", "b", True)
    assert said == UserRow((TextBlock("go on"),))


def test_fields_of_a_request_beside_its_messages_are_named():
    given = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    parsed = formats.parse(ANTHROPIC, dump(given))
    assert [w.code for w in parsed.warnings] == [WarningCode.FORMAT_LOSS]
    assert "max_tokens, model" in parsed.warnings[0].message


@pytest.mark.parametrize("fmt", [CHAT, ANTHROPIC])
def test_xf5_lone_surrogates_become_replacement_characters(fmt):
    """The row stays: half a pair is repaired, a whole pair and an escaped backslash are left alone."""
    given = rb'[{"role": "user", "content": "a\ud83d b\udc00 \ud83d\ude00 c\\ud83d \ud83d\u0041"}]'
    parsed = formats.parse(fmt, given)
    assert parsed.rows[0].body.content[0].text == "a\ufffd b\ufffd \U0001f600 c\\ud83d \ufffdA"
    assert [w.code for w in parsed.warnings] == [WarningCode.SURROGATE_REPLACED]
    assert "3 lone surrogates" in parsed.warnings[0].message


def test_xf5_canonical_rows_are_repaired_too():
    parsed = formats.parse(CANONICAL, rb'{"type": "user", "content": [{"type": "text", "text": "\udead"}]}')
    assert parsed.rows[0].body.content[0].text == "\ufffd"
    assert [w.code for w in parsed.warnings] == [WarningCode.SURROGATE_REPLACED]


@pytest.mark.parametrize("fmt", [CHAT, ANTHROPIC, CANONICAL])
@pytest.mark.parametrize(
    ("given", "position"),
    [(b'[{"role": "user", "content": "\xff"}]', 30), (b'[{"role": "\xed\xa0\xbd"}]', 11), (b"\xfe", 0)],
)
def test_r2_text_that_is_not_utf8_does_not_enter(fmt, given, position):
    error = refusal(fmt, given)
    assert error.metadata["position"] == str(position)


@pytest.mark.parametrize("fmt", [CHAT, ANTHROPIC, CANONICAL])
@pytest.mark.parametrize(
    "given", [b"", b"[", b'[{"role": }]', b"[NaN]", b"[1e999999999999999999999]", b"\xef\xbb\xbf[]"]
)
def test_malformed_json_is_refused(fmt, given):
    assert refusal(fmt, given).metadata["field"] == "json"


def test_json_nested_too_deep_is_refused():
    refusal(CHAT, b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("text", "$"),
        ([1], "$[0]"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "$[1].role"),
        ([{"role": "robot", "content": "x"}], "$[0].role"),
        ([{"role": "user", "content": 5}], "$[0].content"),
        ([{"role": "user", "content": ["x"]}], "$[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "$[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "$[0].content[0].text"),
        ([{"role": "tool", "content": "x"}], "$[0].tool_call_id"),
        ([{"role": "function", "content": "x"}], "$[0].name"),
        ([{"role": "assistant", "tool_calls": {}}], "$[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "$[0].tool_calls[0].id"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "$[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}], "$[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": 1}}]}],
            "$[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_chat_messages_of_a_wrong_shape_are_refused_with_their_path(given, path):
    assert refusal(CHAT, given).metadata["path"] == path


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"system": "s"}, "$.messages"),
        ({"system": 4, "messages": []}, "$.system"),
        ({"messages": [{"role": "tool"}]}, "$.messages[0].role"),
        ([{"role": "user", "content": {"type": "text"}}], "$[0].content"),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "$[0].content[0].tool_use_id"),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 3}]}],
            "$[0].content[0].content",
        ),
        ([{"role": "assistant", "content": [{"type": "text", "text": 1}]}], "$[0].content[0].text"),
    ],
)
def test_anthropic_messages_of_a_wrong_shape_are_refused_with_their_path(given, path):
    assert refusal(ANTHROPIC, given).metadata["path"] == path


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ([{"type": "user"}], "$[0]"),
        ([{"type": "guest", "content": []}], "$[0]"),
        ([{"type": "user", "content": [{"type": "text"}]}], "$[0].content[0]"),
        ([{"type": "user", "content": [], "contnet": 1}], "$[0].contnet"),
        ({"type": "assistant", "content": [{"type": "text", "text": "x", "txt": 1}]}, "$.content[0].txt"),
        ({"type": "assistant", "content": [], "model": {"name": "m"}}, "$.model.name"),
    ],
)
def test_canonical_rows_with_wrong_or_unknown_fields_are_refused(given, path):
    """R2: a misspelt field is not lost, it is refused."""
    assert refusal(CANONICAL, given).metadata["path"].startswith(path)


def test_what_the_sidecar_sets_on_results_is_not_taken_from_hosts():
    given = [{"type": "tool_result", "call_id": "a", "content": [], "call_offset": 7, "late": True}]
    assert rows(CANONICAL, given) == [ToolResultRow("a")]


@pytest.mark.parametrize(
    ("fmt", "message"),
    [
        (CHAT, {"role": "assistant", "content": None}),
        (CHAT, {"role": "assistant", "content": ""}),
        (CHAT, {"role": "assistant", "content": [], "tool_calls": [], "refusal": None}),
        (ANTHROPIC, {"role": "assistant", "content": []}),
        (ANTHROPIC, {"role": "assistant", "content": ""}),
    ],
)
def test_r4_an_assistant_message_of_nothing_is_dropped_with_its_usage_kept(fmt, message):
    given = [{"role": "user", "content": "hi"}, {**message, "usage": {"input_tokens": 9}, "model": "m-1"}]
    parsed = formats.parse(fmt, dump(given))
    assert len(parsed.rows) == 1
    assert [w.code for w in parsed.warnings] == [WarningCode.MESSAGE_DROPPED]
    assert "$[1]" in parsed.warnings[0].message
    (usage,) = parsed.usages
    assert (usage.row, usage.usage, usage.model) == (None, {"input_tokens": 9}, "m-1")


@pytest.mark.parametrize("word", ["error", "aborted"])
def test_r4_l1_a_failed_message_keeps_what_is_whole(word):
    """Its text and whole calls stay, a call that was cut off goes; with nothing left the message is dropped."""
    whole, cut = _call("c1"), _call("c2", '{"path": "/ho')
    given = [{"role": "assistant", "content": "I look", "tool_calls": [whole, cut], "finish_reason": word}]
    parsed = formats.parse(CHAT, dump(given))
    assert [type(b) for b in parsed.rows[0].body.content] == [TextBlock, ToolCallBlock]
    assert [w.code for w in parsed.warnings] == [WarningCode.PARTIAL_CALLS_DROPPED]
    alone = formats.parse(CHAT, dump([{"role": "assistant", "tool_calls": [cut], "finish_reason": word}]))
    assert not alone.rows
    assert [w.code for w in alone.warnings] == [WarningCode.PARTIAL_CALLS_DROPPED, WarningCode.MESSAGE_DROPPED]


def test_usage_on_messages_is_found_with_its_row():
    given = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo", "usage": {"prompt_tokens": 3, "cost": 0.5}},
    ]
    (usage,) = formats.parse(CHAT, dump(given)).usages
    assert (usage.row, usage.usage) == (1, {"prompt_tokens": 3, "cost": 0.5})
    assert isinstance(usage.usage["cost"], float)


def test_a_response_among_anthropic_messages_is_sent_again_as_a_message():
    """The API refuses the other fields of its own response in a request."""
    response = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "yo"}], "usage": {"input_tokens": 3},
    }  # fmt: skip
    parsed = formats.parse(ANTHROPIC, dump([{"role": "user", "content": "hi"}, response]))
    assert parsed.rows[1].body == AssistantRow((TextBlock("yo"),), stop_reason=StopReason.END_TURN)
    assert [(u.row, u.model) for u in parsed.usages] == [(1, "claude-x")]


def completion(message, finish="stop", **more):
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"id": "x", "object": "chat.completion", "model": "gpt-x", "choices": [choice], "usage": usage, **more}


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", StopReason.END_TURN),
        ("length", StopReason.MAX_TOKENS),
        ("tool_calls", StopReason.TOOL_CALLS),
        ("content_filter", StopReason.REFUSAL),
        ("eos", StopReason.OTHER),
        (None, None),
    ],
)
def test_a_chat_completion_gives_row_model_and_stop(finish, reason):
    found = formats.parse_response(CHAT, dump(completion({"content": "yo", "refusal": None}, finish)))
    (row,) = found.rows
    assert row.body.content == (TextBlock("yo"),)
    assert row.body.stop_reason is found.stop_reason is reason
    assert found.model == "gpt-x"
    assert not found.warnings


def test_of_several_choices_the_first_is_taken_and_the_others_named():
    given = completion({"content": "one"})
    given["choices"].append({"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "two"}})
    found = formats.parse_response(CHAT, dump(given))
    assert found.rows[0].body.content == (TextBlock("one"),)
    assert [w.code for w in found.warnings] == [WarningCode.FORMAT_LOSS]


@pytest.mark.parametrize(
    ("fmt", "body", "stop"),
    [
        (CHAT, completion({"content": None}), StopReason.END_TURN),
        (CHAT, completion({"content": ""}, "error"), StopReason.ERROR),
        (CHAT, {"error": {"message": "overloaded"}}, StopReason.ERROR),
        (CHAT, {"choices": [], "usage": {"prompt_tokens": 12}}, None),
        (ANTHROPIC, {"type": "error", "error": {"type": "overloaded_error"}}, StopReason.ERROR),
        (
            ANTHROPIC,
            {
                "type": "message",
                "role": "assistant",
                "content": [],
                "stop_reason": "end_turn",
                "usage": {"prompt_tokens": 12},
            },
            StopReason.END_TURN,
        ),
    ],
)
def test_r4_an_answer_of_nothing_is_dropped(fmt, body, stop):
    found = formats.parse_response(fmt, dump(body))
    assert found.rows == ()
    assert [w.code for w in found.warnings] == [WarningCode.MESSAGE_DROPPED]
    assert found.stop_reason is stop


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", StopReason.END_TURN),
        ("tool_use", StopReason.TOOL_CALLS),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
        ("pause_turn", StopReason.PAUSED),
        ("refusal", StopReason.REFUSAL),
    ],
)
def test_an_anthropic_response_gives_row_model_and_stop(word, reason):
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": word,
        "content": [{"type": "text", "text": "yo"}], "usage": {"input_tokens": 12, "output_tokens": 3},
    }  # fmt: skip
    found = formats.parse_response(ANTHROPIC, dump(body))
    assert found.rows[0].body == AssistantRow((TextBlock("yo"),), stop_reason=reason)
    assert found.model == "claude-x"


@pytest.mark.parametrize(
    ("fmt", "body"),
    [
        (CHAT, {"id": "x"}),
        (CHAT, {"choices": [{"delta": {"content": "x"}}]}),
        (CHAT, {"choices": [{"message": {"role": "user", "content": "x"}}]}),
        (ANTHROPIC, {"id": "x"}),
        (ANTHROPIC, [1]),
        (CHAT, b"<html>"),
    ],
)
def test_what_is_no_response_is_refused(fmt, body):
    with pytest.raises(FoldlineError) as caught:
        formats.parse_response(fmt, body if isinstance(body, bytes) else dump(body))
    assert caught.value.reason is Reason.FORMAT_INVALID


def test_an_answer_that_is_rows_already_is_taken_as_it_is():
    body = {"type": "assistant", "content": [{"type": "text", "text": "yo"}], "model": {"model": "m"}}
    found = formats.parse_response(CANONICAL, json.dumps(body).encode())
    assert (found.model, len(found.rows)) == ("m", 1)


def _call(call_id, arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
