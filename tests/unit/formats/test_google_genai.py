"""Google generateContent: contents as rows and back, and what becomes of rows of other formats (W4, R2-R5)."""

import pytest
from foldline import formats
from foldline.domain.arrangement import Arrangement
from foldline.domain.enums import Format, StopReason, SummarySource, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import (
    AssistantRow,
    AudioBlock,
    CompactionSummaryRow,
    DocumentBlock,
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
    VideoBlock,
)
from foldline.engine.render import arrange

from tests.unit.formats.transcripts import arranged, dump, load, stored, through
from tests.validity import google_faults

GOOGLE, CHAT, ANTHROPIC = Format.GOOGLE_GENAI, Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES
PNG = {"mimeType": "image/png", "data": "aWs="}
DUMMY = {"thoughtSignature": "skip_thought_signature_validator"}


def text(said):
    return (TextBlock(said),)


def parsed(given):
    return formats.parse(GOOGLE, dump(given))


def bodies(given):
    return [row.body for row in parsed(given).rows]


def render(*rows):
    """(request, warnings) of rows that hosts appended, checked to be what the endpoint takes."""
    rendered = formats.render(GOOGLE, arranged([NewRow(row) for row in rows]))
    out = load(rendered.json)
    assert google_faults(out, signed=False) == []
    return out, rendered.warnings


def codes(warnings):
    return [w.code for w in warnings]


def user(*parts):
    return {"role": "user", "parts": list(parts)}


def model(*parts):
    return {"role": "model", "parts": list(parts)}


def said(words="x"):
    return {"text": words}


def call(name="f", **more):
    return {"functionCall": {"name": name, "args": {}, **more}}


def answer(words="r", name="f", **more):
    return {"functionResponse": {"name": name, "response": {"output": words}, **more}}


def test_r3_calls_without_ids_are_matched_by_name_and_order():
    given = [user(said()), model(call("f"), call("g"), call("f")), user(answer("1"), answer("2"), answer("3", "g"))]
    made, first, second, third = bodies(given)[1:]
    assert [b.call_id for b in made.content] == ["call_f_0", "call_g_0", "call_f_1"]
    assert [(r.call_id, r.content[0].text) for r in (first, second, third)] == [
        ("call_f_0", "1"), ("call_f_1", "2"), ("call_g_0", "3"),
    ]  # fmt: skip


def test_r3_made_ids_do_not_depend_on_what_is_appended_together():
    whole = bodies([user(said()), model(call("f"), call("f")), user(answer("1"), answer("2"))])
    apart = [*bodies(user(said())), *bodies(model(call("f"), call("f"))), *bodies(user(answer("1"), answer("2")))]
    assert [getattr(b, "call_id", "") for b in whole] == [getattr(b, "call_id", "") for b in apart]


def test_r3_responses_without_ids_answer_calls_that_have_some():
    given = [user(said()), model(call("f", id="a"), call("f", id="b")), user(answer("1"), answer("2"))]
    assert [b.call_id for b in bodies(given)[2:]] == ["a", "b"]


def test_r3_responses_in_contents_of_their_own_are_counted_on():
    given = [user(said()), model(call("f"), call("f")), user(answer("1")), user(answer("2"))]
    assert [b.call_id for b in bodies(given)[2:]] == ["call_f_0", "call_f_1"]


def test_r3_an_id_that_comes_twice_in_an_answer_is_made_unique_and_comes_back():
    given = {
        "contents": [user(said()), model(call("f", id="a"), call("f", id="a")), user(answer("1", id="a"), answer("2"))]
    }
    calls = bodies(given)[1].content
    assert [b.call_id for b in calls] == ["a", "call_f_1"]
    out, _, _ = through(given, GOOGLE)
    assert out["contents"][1] == given["contents"][1]


def test_f7_signatures_come_back_on_the_parts_they_came_on():
    signed = "AZ+/b-_x=="
    parts = [
        {"text": "hm", "thought": True, "thoughtSignature": signed}, {"text": "a", "thoughtSignature": signed},
        {**call("f"), "thoughtSignature": signed}, {"text": "", "thoughtSignature": signed},
    ]  # fmt: skip
    out, found, _ = through([user(said()), model(*parts), user(answer())], GOOGLE)
    assert out["contents"][1]["parts"] == parts
    thought = found.rows[1].body.content[0]
    assert (thought.text, thought.signature) == ("hm", signed)


def test_thoughts_go_to_no_other_format():
    given = [user(said()), model({"text": "hm", "thought": True, "thoughtSignature": "c2ln"}, said("a"))]
    for fmt in (ANTHROPIC, CHAT, Format.OPENAI_RESPONSES):
        _, _, rendered = through(given, GOOGLE, fmt)
        assert b"c2ln" not in rendered.json
        assert codes(rendered.warnings).count(WarningCode.FORMAT_LOSS) == 1


def test_calls_of_another_model_carry_the_documented_signature():
    """Newer models refuse a step whose first call is unsigned; parallel calls after it have none."""
    rows = [UserRow(text("u")), AssistantRow((TextBlock("a"), ToolCallBlock("1", "f"), ToolCallBlock("2", "g")))]
    out, _ = render(*rows, ToolResultRow("1", text("r")), ToolResultRow("2", text("s")))
    assert out["contents"][1]["parts"] == [said("a"), {**call("f"), **DUMMY}, call("g")]
    assert google_faults(out) == []
    own, _, _ = through([user(said()), model(call("f")), user(answer())], GOOGLE)
    assert own["contents"][1]["parts"] == [call("f")]


def test_r5_placeholders_stand_where_their_call_does():
    """Without ids a response is matched by its place among those of its function."""
    rows = [
        UserRow(text("u")),
        AssistantRow((ToolCallBlock("1", "f"), ToolCallBlock("2", "f"), ToolCallBlock("3", "g"))),
    ]
    out, _ = render(*rows, ToolResultRow("3", text("third")), ToolResultRow("2", text("second")))
    told = [(p["functionResponse"]["name"], p["functionResponse"]["response"]) for p in out["contents"][2]["parts"]]
    assert told == [("g", {"output": "third"}), ("f", {"output": "no result yet"}), ("f", {"output": "second"})]


def test_r5_repeated_ids_are_unique_where_they_are_sent():
    turn = [model(call("f", id="a")), user(answer(id="a"))]
    out, _, rendered = through({"contents": [user(said()), *turn, *turn]}, GOOGLE)
    ids = [c["parts"][0]["functionCall"]["id"] for c in out["contents"] if c["role"] == "model"]
    assert google_faults(out, signed=False) == []
    assert (ids[0], len(set(ids))) == ("a", 2)
    assert codes(rendered.warnings) == [WarningCode.CALL_ID_RENAMED]


def test_one_content_becomes_a_row_a_response_and_one_for_the_rest():
    first, second, rest = bodies([user(answer("1", "f", id="a"), answer("2", "g", id="b"), said("go on"))])
    assert (first.call_id, second.call_id) == ("a", "b")
    assert rest == UserRow(text("go on"))


@pytest.mark.parametrize(
    ("response", "content", "is_error"),
    [
        ({"output": "r"}, text("r"), False),
        ({"result": "r"}, text("r"), False),
        ({"error": "no"}, text("no"), True),
        ({"output": ""}, (), False),
        ({}, (StructuredBlock("{}"),), False),
        ({"a": [1, 2.50]}, (StructuredBlock('{"a":[1,2.5]}'),), False),
        ({"error": {"code": 5}}, (StructuredBlock('{"error":{"code":5}}'),), True),
    ],
)
def test_a_response_holds_text_an_error_or_a_value(response, content, is_error):
    given = {"contents": [user(said()), model(call()), user({"functionResponse": {"name": "f", "response": response}})]}
    out, found, _ = through(given, GOOGLE)
    body = found.rows[2].body
    assert (body.content, body.is_error) == (content, is_error)
    assert out == given


def test_results_of_other_formats_become_responses():
    rows = [
        UserRow(text("u")), AssistantRow(tuple(ToolCallBlock(i, f"f{i}") for i in "1234")),
        ToolResultRow("1", (TextBlock("a"), TextBlock("b"))), ToolResultRow("2", text("no"), is_error=True),
        ToolResultRow("3", (StructuredBlock('{"n": 1}'),)),
        ToolResultRow("4", (TextBlock("see"), ImageBlock("image/png", "aWs="))),
    ]  # fmt: skip
    out, warnings = render(*rows)
    told = [p["functionResponse"] for p in out["contents"][2]["parts"]]
    assert [t["response"] for t in told] == [{"output": "a\nb"}, {"error": "no"}, {"n": 1}, {"output": "see"}]
    assert told[3]["parts"] == [{"inlineData": PNG}]
    assert not warnings


def test_shortened_results_are_text():
    given = [user(said()), model(call()), user({"functionResponse": {"name": "f", "response": {"a": "x" * 99}}})]
    rows = stored(parsed(given).rows)
    out = load(formats.render(GOOGLE, arrange(rows, open_run=None, calls=(), bounded={3: "x…"})).json)
    assert out["contents"][2]["parts"] == [answer("x…")]


@pytest.mark.parametrize(
    ("arguments", "expected", "lost"),
    [
        ('{"x": 1}', {"x": 1}, False),
        ("", {}, False),
        ("[1]", {"arguments": [1]}, True),
        ('{"x', {"arguments": '{"x'}, True),
    ],
)
def test_arguments_are_an_object(arguments, expected, lost):
    rows = [UserRow(text("u")), AssistantRow((ToolCallBlock("a", "f", arguments),)), ToolResultRow("a", text("1"))]
    out, warnings = render(*rows)
    assert out["contents"][1]["parts"][0]["functionCall"]["args"] == expected
    assert codes(warnings) == ([WarningCode.FORMAT_LOSS] if lost else [])


def test_tool_names_become_legal_ones_and_own_ones_stay():
    rows = [UserRow(text("u")), AssistantRow((ToolCallBlock("a", "mcp/file read"),)), ToolResultRow("a", text("1"))]
    out, _ = render(*rows)
    name = out["contents"][1]["parts"][0]["functionCall"]["name"]
    assert name.startswith("mcp_file_read_")
    assert out["contents"][2]["parts"][0]["functionResponse"]["name"] == name
    given = {
        "contents": [user(said()), model(call("default_api:search.v2")), user(answer("r", "default_api:search.v2"))]
    }
    assert through(given, GOOGLE)[0] == given


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (ImageBlock("image/png", "aWs="), {"inlineData": PNG}),
        (AudioBlock("audio/wav", "UklG"), {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}}),
        (VideoBlock("video/mp4", "AAAA"), {"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}),
        (DocumentBlock("application/pdf", "JVBE"), {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}}),
        (
            ImageBlock(url="https://example.org/a.jpg?x=1"),
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.org/a.jpg?x=1"}},
        ),
    ],
)
def test_media_go_where_the_api_takes_them(block, part):
    out, warnings = render(UserRow((TextBlock("see"), block)))
    assert out["contents"][0]["parts"] == [said("see"), part]
    assert not warnings


@pytest.mark.parametrize(
    "block",
    [
        ImageBlock("image/tiff", "SUkq"), AudioBlock("audio/midi", "TVRo"), DocumentBlock("application/zip", "UEsD"),
        ImageBlock(url="https://example.org/a"), ImageBlock(url="file:///a.png"),
    ],
)  # fmt: skip
def test_media_the_api_does_not_take_become_placeholders(block):
    out, warnings = render(UserRow((block,)))
    assert "not shown" in out["contents"][0]["parts"][0]["text"]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_r5_system_rows_are_hoisted():
    out, warnings = render(SystemRow(text("one")), UserRow(text("u")), SystemRow(text("two")), AssistantRow(text("a")))
    assert out["systemInstruction"] == {"parts": [said("one"), said("two")]}
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]
    assert "row 3" in warnings[0].message


def test_r5_roles_alternate_and_the_users_come_first():
    out, _ = render(AssistantRow(text("a")), AssistantRow(text("b")), UserRow(text("u")), UserRow(text("v")))
    assert [(c["role"], len(c["parts"])) for c in out["contents"]] == [("user", 1), ("model", 2), ("user", 2)]


def test_r5_late_results_and_summaries_are_user_text():
    summary = CompactionSummaryRow("what was done", "f1", SummarySource.EXTRACTIVE)
    late = ToolResultRow("c", text("late"), call_offset=1, late=True)
    rows = [Row(9, summary), Row(5, late), Row(6, UserRow(text("go on")))]
    out = load(formats.render(GOOGLE, arrange(rows, open_run=None, calls=())).json)
    assert google_faults(out) == []
    assert [c["role"] for c in out["contents"]] == ["user"]
    assert "what was done" in out["contents"][0]["parts"][0]["text"]


def test_an_answer_of_nothing_that_can_be_carried_is_left_out():
    out, warnings = render(UserRow(text("u")), AssistantRow((ReasoningBlock("hm"),)), UserRow(text("v")))
    assert [c["role"] for c in out["contents"]] == ["user"]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS] * 2


def test_reasoning_of_a_typed_row_of_google_is_a_thought():
    own = AssistantRow((ReasoningBlock("hm", signature="c2ln"), TextBlock("a")), ModelRef("google", "gemini-x"))
    out, warnings = render(UserRow(text("u")), own)
    assert out["contents"][1]["parts"] == [{"text": "hm", "thought": True, "thoughtSignature": "c2ln"}, said("a")]
    assert not warnings


def test_code_that_the_provider_ran_goes_back_to_it_only():
    code, result = {"executableCode": {"code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}
    given = {"contents": [user(said()), model(code, result, said("a")), user(said())]}
    assert through(given, GOOGLE)[0] == given
    assert [b.result for b in bodies(given)[1].content[:2]] == [False, True]
    foreign = AssistantRow((ServerToolBlock("ws_1", "web_search", "{}", result=True), TextBlock("a")))
    out, warnings = render(UserRow(text("u")), foreign)
    assert out["contents"][1]["parts"] == [said("a")]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_native_compaction_items_are_left_out():
    rows = [Row(5, ProviderCompactionRow("{}", ModelRef("openai", "m"))), Row(6, AssistantRow(text("a")))]
    rendered = formats.render(GOOGLE, arrange(rows, open_run=None, calls=()))
    assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS]
    assert [c["role"] for c in load(rendered.json)["contents"]] == ["user", "model"]


def test_spans_name_the_rows_of_each_content():
    bodies_ = [
        SystemRow(text("s")), UserRow(text("u")), AssistantRow((ToolCallBlock("a", "f"), ToolCallBlock("b", "g"))),
        ToolResultRow("b", text("2")), ToolResultRow("a", text("1")), UserRow(text("and")),
    ]  # fmt: skip
    rendered = formats.render(GOOGLE, arranged([NewRow(body) for body in bodies_]))
    assert rendered.spans == ((2,), (3,), (4, 5, 6))
    assert rendered.system == (1,)
    given = {
        "systemInstruction": {"parts": [said()]},
        "contents": [user(said()), model(call()), user(answer(), said())],
    }
    assert parsed(given).spans == ((-1, -1), (0, 0), (1, 1), (2, 2), (2, 2))


def response(*parts, finish="STOP", **more):
    candidate = {"index": 0, "finishReason": finish} | ({"content": model(*parts)} if parts else {})
    usage = {"promptTokenCount": 12, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 17}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-x", "responseId": "r", **more}


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        (response(said("yo")), StopReason.END_TURN),
        (response(said("yo"), call()), StopReason.TOOL_CALLS),
        (response(said("yo"), finish="MAX_TOKENS"), StopReason.MAX_TOKENS),
        (response(said("yo"), finish="SAFETY"), StopReason.REFUSAL),
        (response(said("yo"), finish="RECITATION"), StopReason.REFUSAL),
        (response(said("yo"), finish="MALFORMED_FUNCTION_CALL"), StopReason.ERROR),
        (response(said("yo"), finish="OTHER"), StopReason.OTHER),
        (response(said("yo"), finish=None), None),
    ],
)
def test_a_response_gives_row_model_and_stop(body, stop):
    found = formats.parse_response(GOOGLE, dump(body))
    (row,) = found.rows
    assert row.body.content[0].text == "yo"
    assert row.body.stop_reason is found.stop_reason is stop
    assert found.model == "gemini-x"
    assert not found.warnings


def test_a_response_in_snake_case_is_one_too():
    body = {
        "candidates": [{"content": {"parts": [{"function_call": {"name": "f"}}]}, "finish_reason": "STOP"}],
        "usage_metadata": {"prompt_token_count": 12}, "model_version": "gemini-x",
    }  # fmt: skip
    found = formats.parse_response(GOOGLE, dump(body))
    assert (found.stop_reason, found.model) == (StopReason.TOOL_CALLS, "gemini-x")


def test_an_answer_is_sent_again_as_its_content():
    content = model({"text": "hm", "thought": True}, {**call("f", id="a"), "thoughtSignature": "c2ln"})
    (row,) = formats.parse_response(GOOGLE, dump(response(*content["parts"]))).rows
    out, _ = render(UserRow(text("u")), row.body, ToolResultRow("a", text("r")))
    assert out["contents"][1] == content
    assert out["contents"][2]["parts"] == [answer("r", id="a")]


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        (response(), StopReason.END_TURN),
        (response(finish="MALFORMED_FUNCTION_CALL"), StopReason.ERROR),
        (response(candidates=[], promptFeedback={"blockReason": "SAFETY"}), StopReason.REFUSAL),
        (response(candidates=[]), None),
        ({"error": {"code": 503, "status": "UNAVAILABLE"}}, StopReason.ERROR),
    ],
)
def test_r4_an_answer_of_nothing_is_dropped(body, stop):
    found = formats.parse_response(GOOGLE, dump(body))
    assert (found.rows, found.stop_reason) == ((), stop)
    assert codes(found.warnings) == [WarningCode.MESSAGE_DROPPED]


def test_of_several_candidates_the_first_is_taken_and_the_others_named():
    given = response(said("one"))
    given["candidates"].append({"content": model(said("two"))})
    found = formats.parse_response(GOOGLE, dump(given))
    assert found.rows[0].body.content == text("one")
    assert codes(found.warnings) == [WarningCode.FORMAT_LOSS]


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"id": "x"}', b'{"candidates": 4}', b'{"candidates": [1]}'])
def test_what_is_no_response_is_refused(body):
    with pytest.raises(FoldlineError) as caught:
        formats.parse_response(GOOGLE, body)
    assert caught.value.reason is Reason.FORMAT_INVALID


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (4, "$"),
        ({"systemInstruction": {"parts": []}}, "$.contents"),
        ({"systemInstruction": "s", "contents": []}, "$.systemInstruction"),
        ([1], "$[0]"),
        ([{"role": "assistant", "parts": []}], "$[0].role"),
        ({"contents": [user(said()), {"role": "model", "parts": "x"}]}, "$.contents[1].parts"),
        ([user(4)], "$[0].parts[0]"),
        ([model({"functionCall": "f"})], "$[0].parts[0].functionCall"),
        ([model({"functionCall": {}})], "$[0].parts[0].functionCall.name"),
        ([user({"functionResponse": {"response": {}}})], "$[0].parts[0].functionResponse.name"),
        ([user({"functionResponse": {"name": "f", "response": "x"}})], "$[0].parts[0].functionResponse.response"),
        ([user(answer(parts=4))], "$[0].parts[0].functionResponse.parts"),
    ],
)
def test_contents_of_a_wrong_shape_are_refused_with_their_path(given, path):
    with pytest.raises(FoldlineError) as caught:
        parsed(given)
    assert caught.value.reason is Reason.FORMAT_INVALID
    assert caught.value.metadata["path"] == path


def test_fields_of_a_request_beside_its_contents_are_named():
    found = parsed({"tools": [], "generationConfig": {}, "contents": [user(said())]})
    assert codes(found.warnings) == [WarningCode.FORMAT_LOSS]
    assert "generationConfig, tools" in found.warnings[0].message


def test_r4_a_models_content_without_parts_is_dropped():
    found = parsed([user(said()), {"role": "model"}, model()])
    assert len(found.rows) == 1
    assert codes(found.warnings) == [WarningCode.MESSAGE_DROPPED] * 2


def test_an_empty_transcript_is_empty_contents():
    assert formats.render(GOOGLE, Arrangement(())).json == b'{"contents":[]}'


@pytest.mark.parametrize(
    "notes",
    [
        "5", '{"as": "thought", "message": 4, "+": 1, "-": 2, "~": 3}', '{"as": "functionCall", "id": 7, "key": 3}',
        '{"message": {"parts": 5}, "split": "x", "snake": 1}', '{"as": "verbatim", "name": "x"}',
        '{"as": "inlineData", "id": "yes"}', '{"message": {"parts": "absent"}}',
    ],
)  # fmt: skip
def test_r2_a_hosts_own_extra_of_any_shape_harms_nothing(notes):
    extra = f'{{"GOOGLE_GENAI": {notes}}}'
    render(
        SystemRow((TextBlock("s", extra),), extra=extra),
        UserRow((TextBlock("u", extra), StructuredBlock("{", extra)), extra=extra),
        AssistantRow((TextBlock("a", extra), ToolCallBlock("c", "f", "{", extra)), extra=extra),
        ToolResultRow("c", (TextBlock("r", extra),), extra=extra),
    )
