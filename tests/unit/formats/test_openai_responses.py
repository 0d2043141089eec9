"""OpenAI responses: items as rows and back, and what becomes of rows of other formats (W4, R2-R5)."""

import pytest
from foldline import formats
from foldline.domain.arrangement import Arrangement
from foldline.domain.enums import Format, StopReason, SummarySource, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ImageBlock,
    ModelRef,
    NewRow,
    ProviderCompactionRow,
    ReasoningBlock,
    Row,
    ServerToolBlock,
    StructuredBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)
from foldline.engine.render import arrange

from tests.unit.formats.transcripts import arranged, dump, load, stored, through
from tests.validity import openai_responses_faults

RESPONSES, CHAT = Format.OPENAI_RESPONSES, Format.OPENAI_CHAT


SUMMARY = {"type": "summary_text", "text": "hm"}


def text(said):
    return (TextBlock(said),)


def parsed(given):
    return formats.parse(RESPONSES, dump(given))


def bodies(given):
    return [row.body for row in parsed(given).rows]


def render(*rows):
    """(request, warnings) of rows that hosts appended, checked to be what the endpoint takes."""
    arrangement = arranged([NewRow(row) for row in rows])
    rendered = formats.render(RESPONSES, arrangement)
    out = load(rendered.json)
    assert openai_responses_faults(out) == []
    return out, rendered.warnings


def codes(warnings):
    return [w.code for w in warnings]


def call(call_id="c1", **more):
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id="c1", **more):
    return {"type": "function_call_output", "call_id": call_id, "output": "r", **more}


def test_one_answer_of_several_items_is_one_row():
    answer = [
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "g", "summary": [SUMMARY]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        call(),
    ]  # fmt: skip
    user, said, result, last = bodies(
        [{"role": "user", "content": "u"}, *answer, output(), {"role": "assistant", "content": "b"}]
    )
    assert user == UserRow(text("u"))
    assert [type(b) for b in said.content] == [ReasoningBlock, TextBlock, ServerToolBlock, ToolCallBlock]
    thought = said.content[0]
    assert (thought.text, thought.state, thought.signature) == ("hm", "g", "rs_1")
    assert (result.call_id, result.content) == ("c1", text("r"))
    assert [b.text for b in last.content] == ["b"]


def test_spans_say_of_which_items_a_row_was_made():
    given = [
        {"role": "user", "content": "u"}, call("a"), call("b"), output("a"), output("b"),
        {"role": "user", "content": "v"},
    ]  # fmt: skip
    assert parsed(given).spans == ((0, 0), (1, 2), (3, 3), (4, 4), (5, 5))
    assert parsed({"instructions": "s", "input": "u"}).spans == ((-1, -1), (0, 0))


def test_f7_reasoning_comes_back_byte_for_byte():
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA_-+/=\n ", "status": None}
    out, _, _ = through([{"role": "user", "content": "u"}, item, call(), output()], RESPONSES)
    assert out["input"][1] == item


def test_reasoning_that_its_answer_does_not_follow_is_left_out():
    """The API refuses reasoning without the item that it led to; a fold or an abort may have taken that."""
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    for rest in ([], [{"role": "user", "content": "v"}]):
        out, _, rendered = through([{"role": "user", "content": "u"}, item, *rest], RESPONSES)
        assert openai_responses_faults(out) == []
        assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS]


def test_reasoning_of_another_provider_is_left_out():
    foreign = AssistantRow((ReasoningBlock("hm", signature="c2ln"), TextBlock("a")), ModelRef("anthropic", "claude-x"))
    redacted = AssistantRow((ReasoningBlock(state="x", redacted=True), TextBlock("b")))
    out, warnings = render(UserRow(text("u")), foreign, UserRow(text("v")), redacted)
    assert {item.get("type") for item in out["input"]} == {None, "message"}
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]
    own = AssistantRow((ReasoningBlock("hm", "gAAA", "rs_1"), TextBlock("a")), ModelRef("openai", "gpt-x"))
    out, warnings = render(UserRow(text("u")), own)
    assert out["input"][1] == {
        "type": "reasoning", "id": "rs_1", "summary": [SUMMARY], "encrypted_content": "gAAA",
    }  # fmt: skip
    assert not warnings


def test_reasoning_of_responses_goes_to_no_other_format():
    """A signature is valid for its own provider only."""
    given = [{"role": "user", "content": "u"}, {"type": "reasoning", "id": "rs_1", "summary": []}, call(), output()]
    for fmt in (Format.ANTHROPIC_MESSAGES, Format.GOOGLE_GENAI, CHAT):
        _, _, rendered = through(given, RESPONSES, fmt)
        assert b"rs_1" not in rendered.json
        assert WarningCode.FORMAT_LOSS in codes(rendered.warnings)


def test_system_rows_that_lead_are_the_instructions():
    out, warnings = render(SystemRow(text("one")), SystemRow(text("two")), UserRow(text("u")), SystemRow(text("three")))
    assert out["instructions"] == "one\n\ntwo"
    assert [(i["role"], i["content"]) for i in out["input"]] == [("user", "u"), ("system", "three")]
    assert not warnings


def test_system_messages_stay_messages():
    given = {
        "instructions": "one",
        "input": [{"role": "developer", "content": "two"}, {"role": "user", "content": "u"}],
    }
    out, _, _ = through(given, RESPONSES)
    assert out == given
    assert bodies(given)[:2] == [
        SystemRow(text("one"), extra='{"OPENAI_RESPONSES":{"instructions":true}}'),
        SystemRow(text("two"), extra='{"OPENAI_RESPONSES":{"inline":true,"+":{"role":"developer"}}}'),
    ]


def test_r2_ordinary_messages_and_calls_need_no_extra():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "https://example.org/a"}]
    given = [{"role": "user", "content": "u"}, call(), output(), {"role": "user", "content": parts}]
    for body in bodies(given):
        assert "extra" not in str(body).replace("extra=''", "")


def test_r5_calls_without_outputs_are_answered_by_placeholders():
    rows = [
        UserRow(text("u")),
        AssistantRow((ToolCallBlock("a", "f"), ToolCallBlock("b", "f"))),
        ToolResultRow("b", text("2")),
    ]
    out, _ = render(*rows)
    assert [(i["call_id"], i["output"]) for i in out["input"][3:]] == [("b", "2"), ("a", "no result yet")]


def test_r3_repeated_and_long_call_ids_are_made_unique_and_short():
    long = "toolu_" + "x" * 70
    rows = [UserRow(text("u"))]
    for call_id in ("c", "c", long):
        rows += [AssistantRow((ToolCallBlock(call_id, "f"),)), ToolResultRow(call_id, text(call_id[:1]))]
    out, warnings = render(*rows)
    ids = [i["call_id"] for i in out["input"] if i.get("type") == "function_call"]
    assert (ids[0], len(set(ids)), max(map(len, ids))) == ("c", 3, 64)
    assert codes(warnings) == [WarningCode.CALL_ID_RENAMED]


def test_r3_a_local_shells_output_names_its_renamed_call():
    """It has nothing but its call's id."""
    turn = [
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"type": "exec"}},
        {"type": "local_shell_call_output", "id": "c1", "output": "r"},
    ]
    out, _, _ = through([{"role": "user", "content": "u"}, *turn, {**turn[0], "id": "lsh_2"}, turn[1]], RESPONSES)
    assert openai_responses_faults(out) == []
    assert [i["call_id"] for i in out["input"] if i.get("type") == "local_shell_call"] == ["c1", "c1_4"]
    assert [i["id"] for i in out["input"] if i.get("type") == "local_shell_call_output"] == ["c1", "c1_4"]


def test_an_item_id_goes_out_once():
    """Whoever edits a transcript may append an answer again; the API refuses an id that comes twice."""
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    user = {"role": "user", "content": "u"}
    out, _, rendered = through([user, said, search, user, said, search], RESPONSES)
    assert openai_responses_faults(out) == []
    assert [i.get("id") for i in out["input"]] == [None, "msg_1", "ws_1", None, None]
    assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS] * 2


SHELL = {"type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed", "action": {"commands": ["ls"]}}
SHELL_OUTPUT = {
    "type": "shell_call_output", "call_id": "c1",
    "output": [{"stdout": "a" * 300, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}  # fmt: skip


def test_a_built_in_tools_call_is_a_functions_where_its_output_cannot_be_its_own():
    """A placeholder or a shortened text has no form in most of them; a function's output takes any text."""
    unanswered, _, _ = through([{"role": "user", "content": "u"}, SHELL], RESPONSES)
    assert openai_responses_faults(unanswered) == []
    assert unanswered["input"][1:] == [
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"commands":["ls"]}'},
        {"type": "function_call_output", "call_id": "c1", "output": "no result yet"},
    ]
    rows = stored(parsed([{"role": "user", "content": "u"}, SHELL, SHELL_OUTPUT]).rows)
    shortened = arrange(rows, open_run=None, calls=(), bounded={3: "a…"})
    out = load(formats.render(RESPONSES, shortened).json)
    assert openai_responses_faults(out) == []
    assert [i["type"] for i in out["input"][1:]] == ["function_call", "function_call_output"]
    whole = load(formats.render(RESPONSES, arrange(rows, open_run=None, calls=())).json)
    assert whole["input"][1:] == [SHELL, SHELL_OUTPUT]


def test_k4_a_usage_mark_is_sent_behind_any_output():
    rows = parsed([{"role": "user", "content": "u"}, SHELL, SHELL_OUTPUT]).rows
    marked = ToolResultRow("c1", rows[2].body.content, usage_mark="9", extra=rows[2].body.extra)
    out, _ = render(rows[0].body, rows[1].body, marked)
    assert out["input"][2]["output"].endswith("[input tokens: 9, one request behind]")


def test_screenshots_reach_other_formats_as_images():
    given = [
        {"role": "user", "content": "u"},
        {"type": "computer_call", "id": "cu_1", "call_id": "c1", "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": "c1", "output": {
            "type": "computer_screenshot", "image_url": "data:image/png;base64,aWs="}},
    ]  # fmt: skip
    out, _, _ = through(given, RESPONSES, Format.ANTHROPIC_MESSAGES)
    assert out["messages"][1]["content"][0]["name"] == "computer"
    assert out["messages"][2]["content"][0]["content"][0]["type"] == "image"


def test_images_that_the_model_made_are_images():
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aWs="}
    (answer,) = bodies([item])
    assert isinstance(answer.content[0], ImageBlock)
    assert (answer.content[0].mime_type, answer.content[0].data) == ("image/png", "aWs=")


def test_an_image_inside_an_assistants_message_stays_there():
    parts = [{"type": "output_text", "text": "See:"}, {"type": "input_image", "image_url": "https://example.org/a"}]
    given = [{"role": "user", "content": "u"}, {"type": "message", "role": "assistant", "content": parts}]
    out, _, _ = through(given, RESPONSES)
    assert out["input"] == given


def test_a_call_that_the_provider_ran_waits_for_nothing():
    """§1: only a paused answer is continued; items that are complete must not be taken for one."""
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    given = [{"role": "user", "content": "u"}, search, {"role": "user", "content": "v"}]
    out, _, _ = through(given, RESPONSES)
    assert out["input"] == given


def test_a_compaction_trigger_is_sent_only_at_the_end():
    given = [{"role": "user", "content": "u"}, {"type": "compaction_trigger"}]
    out, _, _ = through(given, RESPONSES)
    assert out["input"] == given
    out, _, rendered = through([*given, {"role": "user", "content": "v"}], RESPONSES)
    assert [i["content"] for i in out["input"]] == ["u", "v"]
    assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS]


@pytest.mark.parametrize(
    ("item", "sent"),
    [('{"type": "compaction", "encrypted_content": "g"}', True), ('{"type": "compaction_2"}', False), ("{}", False)],
)
def test_native_compaction_items_are_sent_where_they_are_the_apis_own(item, sent):
    rows = [Row(5, ProviderCompactionRow(item, ModelRef("openai", "m"))), Row(6, UserRow(text("u")))]
    rendered = formats.render(RESPONSES, arrange(rows, open_run=None, calls=()))
    assert openai_responses_faults(load(rendered.json)) == []
    assert (len(rendered.spans), codes(rendered.warnings)) == ((2, []) if sent else (1, [WarningCode.FORMAT_LOSS]))


def test_r5_summaries_are_user_messages_and_no_placeholder_comes_first():
    summary = CompactionSummaryRow("what was done", "f1", SummarySource.EXTRACTIVE)
    out = load(formats.render(RESPONSES, arrange([Row(9, summary)], open_run=None, calls=())).json)
    assert out["input"][0]["role"] == "user"
    assert out["input"][0]["content"].endswith("what was done")
    out, _ = render(AssistantRow(text("hello")), UserRow(text("hi")))
    assert [i["role"] for i in out["input"]] == ["assistant", "user"]


def test_r4_an_assistant_message_of_nothing_is_dropped():
    empty = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    found = parsed([{"role": "user", "content": "u"}, empty, call(), output()])
    assert len(found.rows) == 3
    assert codes(found.warnings) == [WarningCode.MESSAGE_DROPPED]


def response(*items, status="completed", **more):
    usage = {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3, "total_tokens": 15}
    return {
        "id": "resp_1", "object": "response", "status": status, "model": "gpt-x", "error": None,
        "incomplete_details": None, "instructions": "s", "output": list(items), "usage": usage, **more,
    }  # fmt: skip


SAID = {
    "id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
    "content": [{"type": "output_text", "text": "yo", "annotations": []}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        (response(SAID), StopReason.END_TURN),
        (response(SAID, call()), StopReason.TOOL_CALLS),
        (
            response(SAID, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            StopReason.MAX_TOKENS,
        ),
        (response(SAID, status="incomplete", incomplete_details={"reason": "content_filter"}), StopReason.REFUSAL),
        (response(SAID, status="incomplete"), StopReason.OTHER),
        (response(SAID, status="failed", error={"code": "server_error"}), StopReason.ERROR),
        (response(SAID, status="cancelled"), StopReason.ABORTED),
        (response(SAID, status="in_progress"), None),
    ],
)
def test_a_response_gives_row_model_and_stop(body, stop):
    found = formats.parse_response(RESPONSES, dump(body))
    (row,) = found.rows
    assert row.body.content[0].text == "yo"
    assert row.body.stop_reason is found.stop_reason is stop
    assert found.model == "gpt-x"
    assert not found.warnings


def test_an_answer_is_sent_again_as_its_items():
    items = [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA"}, SAID,
        call(id="fc_1", status="completed"),
    ]  # fmt: skip
    (answer,) = formats.parse_response(RESPONSES, dump(response(*items))).rows
    out, _ = render(UserRow(text("u")), answer.body, ToolResultRow("c1", text("r")))
    assert out["input"][1:-1] == items


def test_outputs_in_a_response_are_the_providers_own():
    """A hosted shell's call and output come in one response: there is nothing for the host to answer."""
    found = formats.parse_response(RESPONSES, dump(response(SHELL, SHELL_OUTPUT, SAID)))
    (row,) = found.rows
    assert [type(b) for b in row.body.content] == [ServerToolBlock, ServerToolBlock, TextBlock]
    assert found.stop_reason is StopReason.END_TURN
    out, _ = render(UserRow(text("u")), row.body)
    assert out["input"][1:] == [SHELL, SHELL_OUTPUT, SAID]


def test_l1_a_failed_answer_keeps_what_is_whole():
    body = response(SAID, call("c2", arguments='{"x'), status="failed", error={"code": "server_error"})
    found = formats.parse_response(RESPONSES, dump(body))
    assert [type(b) for b in found.rows[0].body.content] == [TextBlock]
    assert codes(found.warnings) == [WarningCode.PARTIAL_CALLS_DROPPED]


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        (response(), StopReason.END_TURN),
        (response(status="failed", error={"code": "x"}), StopReason.ERROR),
        ({"error": {"message": "overloaded"}}, StopReason.ERROR),
    ],
)
def test_r4_an_answer_of_nothing_is_dropped(body, stop):
    found = formats.parse_response(RESPONSES, dump(body))
    assert (found.rows, found.stop_reason) == ((), stop)
    assert codes(found.warnings) == [WarningCode.MESSAGE_DROPPED]


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"id": "x"}', b'{"output": "x"}', b'{"output": [1]}'])
def test_what_is_no_response_is_refused(body):
    with pytest.raises(FoldlineError) as caught:
        formats.parse_response(RESPONSES, body)
    assert caught.value.reason is Reason.FORMAT_INVALID


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (4, "$"),
        ({"instructions": "s"}, "$.input"),
        ({"instructions": ["s"], "input": []}, "$.instructions"),
        ([1], "$[0]"),
        ([{"content": "x"}], "$[0].type"),
        ([{"type": "message", "content": "x"}], "$[0].role"),
        ([{"role": "robot", "content": "x"}], "$[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "$.input[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "$[0].content[0].type"),
        ([{"type": "function_call", "name": "f"}], "$[0].call_id"),
        ([call(name="")], "$[0].name"),
        ([call(arguments=[])], "$[0].arguments"),
        ([call(), output(output=4)], "$[1].output"),
    ],
)
def test_items_of_a_wrong_shape_are_refused_with_their_path(given, path):
    with pytest.raises(FoldlineError) as caught:
        parsed(given)
    assert caught.value.reason is Reason.FORMAT_INVALID
    assert caught.value.metadata["path"] == path


def test_fields_of_a_request_beside_its_input_are_named():
    found = parsed({"model": "m", "tools": [], "input": "hi"})
    assert codes(found.warnings) == [WarningCode.FORMAT_LOSS]
    assert "model, tools" in found.warnings[0].message


def test_an_empty_transcript_is_an_empty_input():
    assert formats.render(RESPONSES, Arrangement(())).json == b'{"input":[]}'


@pytest.mark.parametrize(
    "notes",
    [
        "5", '{"as": "shell_call", "content": 4, "+": 1, "-": 2, "~": 3}', '{"as": "item", "item": 7}',
        '{"item": {"content": "string", "+": 3}}', '{"as": "reasoning", "-": "x"}', '{"as": "verbatim"}',
        '{"inline": 1, "bare": 2}', '{"instructions": true, "content": "value"}',
    ],
)  # fmt: skip
def test_r2_a_hosts_own_extra_of_any_shape_harms_nothing(notes):
    extra = f'{{"OPENAI_RESPONSES": {notes}}}'
    render(
        SystemRow((TextBlock("s", extra),), extra=extra),
        UserRow((TextBlock("u", extra), StructuredBlock("{", extra)), extra=extra),
        AssistantRow((TextBlock("a", extra), ToolCallBlock("c", "f", "{", extra)), extra=extra),
        ToolResultRow("c", (TextBlock("r", extra),), extra=extra),
    )  # fmt: skip
