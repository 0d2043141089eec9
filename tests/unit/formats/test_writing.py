"""What becomes of rows in a format they did not come in (W4), and of what no row stands for (R5)."""

import base64

import pytest
from foldline import formats
from foldline.domain.arrangement import Arrangement
from foldline.domain.enums import Format, StopReason, SummarySource, WarningCode
from foldline.domain.rows import (
    AssistantRow,
    AudioBlock,
    CompactionSummaryRow,
    DocumentBlock,
    ImageBlock,
    InjectedContextRow,
    ModelRef,
    NewRow,
    NoticeRow,
    ProviderCompactionRow,
    ReasoningBlock,
    Row,
    ServerToolBlock,
    StructuredBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    VideoBlock,
)
from foldline.engine.render import arrange

from tests.unit.formats.transcripts import arranged, load, stored, through
from tests.validity import anthropic_faults, openai_chat_faults

CHAT, ANTHROPIC, CANONICAL = Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES, Format.CANONICAL
PNG, PDF = ImageBlock("image/png", "aWs="), DocumentBlock("application/pdf", "JVBERi0=", title="plan")


def text(said):
    return (TextBlock(said),)


def chat(*bodies):
    return render(CHAT, *bodies)


def anthropic(*bodies):
    return render(ANTHROPIC, *bodies)


def render(fmt, *bodies):
    """(JSON, warnings), checked to be what the endpoint takes."""
    rendered = formats.render(fmt, arranged([NewRow(body) for body in bodies]))
    out = load(rendered.json)
    assert (openai_chat_faults(out) if fmt is CHAT else anthropic_faults(out)) == []
    return out, rendered.warnings


def codes(warnings):
    return [w.code for w in warnings]


def test_every_row_type_has_its_message():
    bodies = [
        SystemRow(text("s")), InjectedContextRow(text("i")), UserRow(text("u")), AssistantRow(text("a")),
        NoticeRow(text("n"), "peer"),
    ]  # fmt: skip
    out, warnings = chat(*bodies)
    assert [m["role"] for m in out] == ["system", "user", "user", "assistant", "user"]
    assert not warnings
    out, warnings = anthropic(*bodies)
    assert out["system"] == "s"
    assert [m["role"] for m in out["messages"]] == ["user", "assistant", "user"]
    assert [b["text"] for b in out["messages"][0]["content"]] == ["i", "u"]
    assert not warnings


def test_r5_summaries_are_user_messages():
    summary = CompactionSummaryRow("what was done", "f1", SummarySource.EXTRACTIVE)
    rows = [Row(9, summary), Row(4, UserRow(text("go on")))]
    for fmt in (CHAT, ANTHROPIC):
        rendered = formats.render(fmt, arrange(rows, open_run=None, calls=()))
        out = load(rendered.json)
        messages = out if fmt is CHAT else out["messages"]
        assert {m["role"] for m in messages} == {"user"}
        assert "what was done" in str(messages[0]["content"])
        assert [offset for span in rendered.spans for offset in span] == [9, 4]


def test_spans_name_the_rows_of_each_message():
    bodies = [
        SystemRow(text("s")), UserRow(text("u")), AssistantRow((_call("a"), _call("b"))),
        ToolResultRow("b", text("2")), ToolResultRow("a", text("1")), UserRow(text("and")),
    ]  # fmt: skip
    arrangement = arranged([NewRow(body) for body in bodies])
    assert formats.render(CHAT, arrangement).spans == ((1,), (2,), (3,), (4,), (5,), (6,))
    rendered = formats.render(ANTHROPIC, arrangement)
    assert rendered.spans == ((2,), (3,), (4, 5, 6))
    assert rendered.system == (1,)


def test_r5_the_first_message_is_the_users_where_that_is_demanded():
    out, _ = anthropic(AssistantRow(text("hello")), UserRow(text("hi")))
    assert [m["role"] for m in out["messages"]] == ["user", "assistant", "user"]
    out, _ = chat(AssistantRow(text("hello")), UserRow(text("hi")))
    assert [m["role"] for m in out] == ["assistant", "user"]


def test_r5_calls_without_results_are_answered_by_placeholders():
    bodies = [UserRow(text("u")), AssistantRow((_call("a"), _call("b"))), ToolResultRow("b", text("2"))]
    out, _ = chat(*bodies)
    assert [m["tool_call_id"] for m in out[2:]] == ["b", "a"]
    out, _ = anthropic(*bodies)
    assert [b["tool_use_id"] for b in out["messages"][2]["content"]] == ["b", "a"]


def test_r5_an_unanswered_legacy_call_is_answered_as_one():
    out, _, _ = through(
        [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": None, "function_call": {"name": "soil", "arguments": "{}"}},
            {"role": "user", "content": "well?"},
        ],
        CHAT,
    )
    assert (out[2]["role"], out[2]["name"]) == ("function", "soil")
    assert openai_chat_faults(out) == []


def test_r3_repeated_call_ids_are_unique_where_that_is_demanded():
    bodies = [
        UserRow(text("u")), AssistantRow((_call("c"),)), ToolResultRow("c", text("1")),
        AssistantRow((_call("c"),)), ToolResultRow("c", text("2")),
    ]  # fmt: skip
    out, warnings = anthropic(*bodies)
    ids = [m["content"][0]["id"] for m in out["messages"] if m["role"] == "assistant"]
    assert ids[0] == "c"
    assert len(set(ids)) == 2
    assert codes(warnings) == [WarningCode.CALL_ID_RENAMED]
    out, warnings = chat(*bodies)
    assert [m["tool_call_id"] for m in out if m["role"] == "tool"] == ["c", "c"]
    assert not warnings


def test_r3_ids_that_only_differ_where_a_format_may_not_stay_different():
    bodies = [
        UserRow(text("u")), AssistantRow((_call("a.1"), _call("a:1"), _call("a_1"))),
        ToolResultRow("a.1", text("1")), ToolResultRow("a:1", text("2")), ToolResultRow("a_1", text("3")),
    ]  # fmt: skip
    out, _ = anthropic(*bodies)
    uses = [b["id"] for b in out["messages"][1]["content"]]
    assert len(set(uses)) == 3
    assert [b["tool_use_id"] for b in out["messages"][2]["content"]] == uses
    assert uses[2] == "a_1"


def test_call_ids_too_long_for_chat_are_shortened_with_their_results():
    """Both ends get the same id, whichever of them came in by a provider's own message."""
    long = "toolu_" + "x" * 60
    rows = [NewRow(UserRow(text("u"))), NewRow(AssistantRow((_call(long), _call(long + "y"))))]
    given = [{"role": "tool", "tool_call_id": i, "content": i[-1]} for i in (long, long + "y")]
    rows += formats.parse(CHAT, str(given).replace("'", '"').encode()).rows
    rendered = formats.render(CHAT, arranged(rows))
    out = load(rendered.json)
    assert openai_chat_faults(out) == []
    assert [m["content"] for m in out[2:]] == ["x", "y"]
    assert codes(rendered.warnings) == [WarningCode.CALL_ID_RENAMED]


def test_tool_names_become_legal_ones():
    bodies = [UserRow(text("u")), AssistantRow((_call("a", "mcp/file.read"),)), ToolResultRow("a", text("1"))]
    assert chat(*bodies)[0][1]["tool_calls"][0]["function"]["name"].startswith("mcp_file_read_")
    assert anthropic(*bodies)[0]["messages"][1]["content"][0]["name"].startswith("mcp_file_read_")


@pytest.mark.parametrize(
    ("arguments", "expected", "lost"),
    [
        ('{"x": 1}', {"x": 1}, False),
        ("", {}, False),
        ("  ", {}, False),
        ("[1]", {"arguments": [1]}, True),
        ("null", {"arguments": None}, True),
        ('{"x": "ab', {"arguments": '{"x": "ab'}, True),
    ],
)
def test_arguments_are_an_object_for_anthropic(arguments, expected, lost):
    call = ToolCallBlock("a", "f", arguments)
    out, warnings = anthropic(UserRow(text("u")), AssistantRow((call,)), ToolResultRow("a", text("1")))
    assert out["messages"][1]["content"][0]["input"] == expected
    assert codes(warnings) == ([WarningCode.FORMAT_LOSS] if lost else [])


def test_xf5_half_a_surrogate_pair_in_arguments_is_repaired():
    """The text of arguments is JSON of its own: an escape in it becomes text only when it is read."""
    call = ToolCallBlock("a", "f", r'{"x": "\ud83d"}')
    out, warnings = anthropic(UserRow(text("u")), AssistantRow((call,)), ToolResultRow("a", text("1")))
    assert out["messages"][1]["content"][0]["input"] == {"x": "\ufffd"}
    assert codes(warnings) == [WarningCode.SURROGATE_REPLACED]


@pytest.mark.parametrize(
    ("block", "fmt", "kind"),
    [
        (PNG, CHAT, "image_url"),
        (PNG, ANTHROPIC, "image"),
        (ImageBlock(url="https://example.org/a"), CHAT, "image_url"),
        (ImageBlock(url="https://example.org/a"), ANTHROPIC, "image"),
        (PDF, CHAT, "file"),
        (PDF, ANTHROPIC, "document"),
        (DocumentBlock("text/plain", base64.b64encode(b"figs").decode()), ANTHROPIC, "document"),
        (AudioBlock("audio/wav", "UklG"), CHAT, "input_audio"),
    ],
)
def test_media_go_where_a_format_takes_them(block, fmt, kind):
    out, warnings = render(fmt, UserRow((TextBlock("see"), block)))
    message = out[0] if fmt is CHAT else out["messages"][0]
    assert message["content"][1]["type"] == kind
    assert not warnings


@pytest.mark.parametrize(
    ("block", "fmt", "mime"),
    [
        (AudioBlock("audio/wav", "UklG"), ANTHROPIC, "audio/wav"),
        (AudioBlock("audio/flac", "ZkxhQw=="), CHAT, "audio/flac"),
        (VideoBlock("video/mp4", "AAAA"), ANTHROPIC, "video/mp4"),
        (VideoBlock("video/mp4", "AAAA"), CHAT, "video/mp4"),
        (ImageBlock("image/tiff", "SUkq"), ANTHROPIC, "image/tiff"),
        (DocumentBlock("application/zip", "UEsD", title="pack"), ANTHROPIC, "application/zip"),
        (DocumentBlock("application/zip", "UEsD", title="pack"), CHAT, "application/zip"),
    ],
)
def test_media_a_format_does_not_take_become_placeholders_with_their_type(block, fmt, mime):
    out, warnings = render(fmt, UserRow((block,)))
    content = (out[0] if fmt is CHAT else out["messages"][0])["content"]
    assert mime in content
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]
    assert "row 1" in warnings[0].message


def test_images_in_results_are_kept_by_anthropic_and_named_by_chat():
    bodies = [UserRow(text("u")), AssistantRow((_call("a"),)), ToolResultRow("a", (TextBlock("wall"), PNG))]
    out, warnings = anthropic(*bodies)
    assert [b["type"] for b in out["messages"][2]["content"][0]["content"]] == ["text", "image"]
    assert not warnings
    out, warnings = chat(*bodies)
    assert out[2]["content"].startswith("wall\n[image")
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_text_documents_and_structured_content_are_carried_as_text():
    document = DocumentBlock("text/markdown", base64.b64encode("# Füße".encode()).decode(), title="shoes.md")
    out, warnings = chat(UserRow((document, StructuredBlock('{"a": 1}'))))
    assert [part["text"] for part in out[0]["content"]] == ["shoes.md\n# Füße", '{"a": 1}']
    assert not warnings


def test_reasoning_goes_back_to_its_own_format_only():
    own = AssistantRow((ReasoningBlock("hm", signature="c2ln"), TextBlock("a")))
    out, warnings = anthropic(UserRow(text("u")), own, UserRow(text("v")))
    assert [b["type"] for b in out["messages"][1]["content"]] == ["thinking", "text"]
    assert not warnings
    out, warnings = chat(UserRow(text("u")), own)
    assert out[1] == {"role": "assistant", "content": "a"}
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_reasoning_of_another_provider_is_left_out_of_anthropic():
    """A signature is valid for its provider only."""
    foreign = AssistantRow((ReasoningBlock("hm", signature="c2ln"), TextBlock("a")), ModelRef("google", "gemini-x"))
    out, warnings = anthropic(UserRow(text("u")), foreign, UserRow(text("v")))
    assert [b["type"] for b in out["messages"][1]["content"]] == ["text"]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]
    given = [{"role": "user", "content": "u"}, {"role": "assistant", "reasoning_content": "hm", "content": "a"}]
    out, _, rendered = through(given, CHAT, ANTHROPIC)
    assert [b["type"] for b in out["messages"][1]["content"]] == ["text"]
    assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS]


def test_an_answer_of_nothing_that_can_be_carried_is_left_out_and_named():
    only_thoughts = AssistantRow((ReasoningBlock("hm"),), stop_reason=StopReason.ABORTED)
    for fmt in (CHAT, ANTHROPIC):
        out, warnings = render(fmt, UserRow(text("u")), only_thoughts, UserRow(text("v")))
        roles = [m["role"] for m in (out if fmt is CHAT else out["messages"])]
        assert "assistant" not in roles
        assert codes(warnings) == [WarningCode.FORMAT_LOSS] * 2


def test_thinking_does_not_end_an_anthropic_message():
    thought = ReasoningBlock("hm", signature="c2ln")
    out, warnings = anthropic(UserRow(text("u")), AssistantRow((TextBlock("a"), thought)), UserRow(text("v")))
    assert [b["type"] for b in out["messages"][1]["content"]] == ["text"]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_tools_that_the_provider_ran_go_back_to_it_only():
    use = ServerToolBlock("srvtoolu_1", "web_search", '{"query":"figs"}')
    result = ServerToolBlock("srvtoolu_1", "web_search_tool_result", "[]", result=True)
    answer = AssistantRow((use, result, TextBlock("sun")))
    out, warnings = anthropic(UserRow(text("u")), answer, UserRow(text("v")))
    assert [b["type"] for b in out["messages"][1]["content"]] == ["server_tool_use", "web_search_tool_result", "text"]
    assert not warnings
    out, warnings = chat(UserRow(text("u")), answer)
    assert out[1]["content"] == "sun"
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_r5_a_paused_answer_and_its_continuation_are_one_message():
    use = ServerToolBlock("srvtoolu_1", "web_search", "{}")
    result = ServerToolBlock("srvtoolu_1", "web_search_tool_result", "[]", result=True)
    paused = AssistantRow((TextBlock("I search."), use), stop_reason=StopReason.PAUSED)
    out, _ = anthropic(UserRow(text("u")), paused, AssistantRow((result, TextBlock("Found."))), UserRow(text("v")))
    assert [len(m["content"]) for m in out["messages"][1:2]] == [4]


def test_error_results_say_so_where_a_format_has_a_field_for_it():
    bodies = [UserRow(text("u")), AssistantRow((_call("a"), _call("b"))),
              ToolResultRow("a", text("no"), is_error=True), ToolResultRow("b", is_error=True)]  # fmt: skip
    out, warnings = anthropic(*bodies)
    assert [b["is_error"] for b in out["messages"][2]["content"]] == [True, True]
    assert not warnings
    _, warnings = chat(*bodies)
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]


def test_blank_texts_are_left_out_of_anthropic():
    out, warnings = anthropic(
        UserRow((TextBlock("u"), TextBlock(" \n"))), AssistantRow((TextBlock(""), _call("a"))),
        ToolResultRow("a", text("  ")), UserRow(text("\t")),
    )  # fmt: skip
    assert out["messages"][0]["content"] == [{"type": "text", "text": "u"}] or out["messages"][0]["content"] == "u"
    assert WarningCode.FORMAT_LOSS in codes(warnings)


def test_white_space_at_the_end_of_a_request_is_left_out():
    out, warnings = anthropic(UserRow(text("u")), AssistantRow(text("figs \n")))
    assert out["messages"][1]["content"] == [{"type": "text", "text": "figs"}]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]
    out, warnings = anthropic(UserRow(text("u")), AssistantRow(text("figs \n")), UserRow(text("v")))
    assert out["messages"][1]["content"][0]["text"] == "figs \n"
    assert not warnings


def test_r5_system_rows_inside_are_hoisted_where_a_format_has_none():
    bodies = [SystemRow(text("one")), UserRow(text("u")), SystemRow(text("two")), AssistantRow(text("a"))]
    out, warnings = anthropic(*bodies)
    assert [b["text"] for b in out["system"]] == ["one", "two"]
    assert codes(warnings) == [WarningCode.FORMAT_LOSS]
    assert "row 3" in warnings[0].message
    out, warnings = chat(*bodies)
    assert [m["role"] for m in out] == ["system", "user", "system", "assistant"]
    assert not warnings


def test_an_inline_system_message_is_hoisted_where_its_place_is_gone():
    """Anthropic takes it after a user turn only; a fold may have taken that."""
    given = [
        {"role": "user", "content": "u"}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "v"}, {"role": "system", "content": "night"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
    ]  # fmt: skip
    rows = stored(formats.parse(ANTHROPIC, str(given).replace("'", '"').encode()).rows)
    whole = load(formats.render(ANTHROPIC, arrange(rows, open_run=None, calls=())).json)
    assert [m["role"] for m in whole["messages"]] == ["user", "assistant", "user", "system", "assistant"]
    without = [row for row in rows if row.offset != 3]
    out = load(formats.render(ANTHROPIC, arrange(without, open_run=None, calls=())).json)
    assert out["system"] == "night"
    assert anthropic_faults(out) == []


def test_an_inline_system_message_is_hoisted_where_the_answer_after_it_is_left_out():
    night = formats.parse(ANTHROPIC, b'{"role": "system", "content": "night"}').rows[0].body
    thought = AssistantRow((ReasoningBlock("hm"),))
    out, _ = anthropic(UserRow(text("u")), night, thought, UserRow(text("v")))
    assert out["system"] == "night"


def test_at_most_four_cache_marks_go_out():
    """Hosts mark the newest message of each request; their rows keep every mark."""
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = []
    for i in range(6):
        messages.append({"role": "user", "content": [{"type": "text", "text": f"u{i}", **mark}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": f"a{i}"}]})
    out, _, rendered = through({"system": [{"type": "text", "text": "s", **mark}], "messages": messages}, ANTHROPIC)
    assert anthropic_faults(out) == []
    assert out["system"][0]["cache_control"] == {"type": "ephemeral"}
    marked = [i for i, m in enumerate(out["messages"]) if "cache_control" in m["content"][0]]
    assert marked == [6, 8, 10]
    assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS]


def test_bounded_results_and_usage_marks_are_written_in_place_of_the_rows_own():
    given = [
        {"role": "user", "content": "u"}, {"role": "assistant", "content": None, "tool_calls": [_chat_call("a")]},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": [{"type": "text", "text": "long " * 50}]},
    ]  # fmt: skip
    rows = stored(formats.parse(CHAT, str(given).replace("'", '"').replace("None", "null").encode()).rows)
    rendered = formats.render(CHAT, arrange(rows, open_run=None, calls=(), bounded={3: "long…"}))
    assert load(rendered.json)[2] == {
        "role": "tool",
        "tool_call_id": "a",
        "name": "f",
        "content": [{"type": "text", "text": "long…"}],
    }
    marked = chat(UserRow(text("u")), AssistantRow((_call("a"),)), ToolResultRow("a", text("r"), usage_mark="9"))
    assert marked[0][2]["content"] == "r\n[input tokens: 9, one request behind]"


def test_transcripts_of_speech_are_text():
    out, _ = chat(UserRow(text("u")), AssistantRow((TranscriptBlock("spoken"),)))
    assert out[1]["content"] == "spoken"


def test_native_compaction_items_are_named_where_they_cannot_go():
    rows = [Row(5, ProviderCompactionRow("{}", ModelRef("openai", "m"))), Row(6, UserRow(text("u")))]
    for fmt in (CHAT, ANTHROPIC):
        rendered = formats.render(fmt, arrange(rows, open_run=None, calls=()))
        assert codes(rendered.warnings) == [WarningCode.FORMAT_LOSS]


def test_canonical_renders_rows_and_nothing_else():
    bodies = [
        UserRow(text("u")),
        AssistantRow((_call("a"),)),
        ToolResultRow("a", text("r")),
        AssistantRow((_call("b"),)),
    ]
    rendered = formats.render(CANONICAL, arranged([NewRow(body) for body in bodies]))
    out = load(rendered.json)
    assert [row["type"] for row in out] == ["user", "assistant", "tool_result", "assistant"]
    assert "call_offset" not in out[2]
    assert rendered.spans == ((1,), (2,), (3,), (4,))


@pytest.mark.parametrize(
    "extra",
    [
        "no json",
        "[1]",
        '{"OPENAI_CHAT": 5}',
        '{"OPENAI_CHAT": {"as": "object", "content": 4, "+": 1, "-": 2, "~": 3}}',
        '{"OPENAI_CHAT": {"as": "message.reasoning_details"}, "ANTHROPIC_MESSAGES": {"as": "verbatim"}}',
        '{"ANTHROPIC_MESSAGES": {"message": [], "split": "x", "+": [1]}}',
    ],
)
def test_r2_a_hosts_own_extra_of_any_shape_harms_nothing(extra):
    bodies = [
        SystemRow((TextBlock("s", extra),), extra=extra), UserRow((TextBlock("u", extra),), extra=extra),
        AssistantRow((TextBlock("a", extra), ToolCallBlock("c", "f", "{", extra)), extra=extra),
        ToolResultRow("c", (TextBlock("r", extra),), extra=extra),
    ]  # fmt: skip
    chat(*bodies)
    anthropic(*bodies)


def test_an_empty_transcript_is_empty_messages():
    assert formats.render(CHAT, Arrangement(())).json == b"[]"
    assert formats.render(ANTHROPIC, Arrangement(())).json == b'{"messages":[]}'


def _call(call_id, name="f"):
    return ToolCallBlock(call_id, name)


def _chat_call(call_id):
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
