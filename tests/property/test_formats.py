"""W4, R2: generated conversations go round without loss, and everything renders to what the endpoints take."""

import json

from foldline import formats
from foldline.domain.arrangement import AssistantItem, ResultsItem, UserItem, UserKind
from foldline.domain.enums import Format, SummarySource, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import CompactionSummaryRow, Row, TextBlock, ToolResultRow, encode_body
from foldline.engine.render import arrange
from hypothesis import given
from hypothesis import strategies as st

from tests.property.provider_messages import anthropic_requests, chat_messages, row_lists
from tests.unit.formats.transcripts import arranged, canon, dump, load, stored, through
from tests.validity import anthropic_faults, openai_chat_faults

CHAT, ANTHROPIC, CANONICAL = Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES, Format.CANONICAL


@given(chat_messages())
def test_w4_chat_messages_go_round_without_loss(messages):
    out, parsed, rendered = through(messages, CHAT)
    assert canon(out) == canon(load(dump(messages)))
    assert not parsed.warnings
    assert not rendered.warnings


@given(anthropic_requests())
def test_w4_anthropic_requests_go_round_without_loss(request):
    out, parsed, _ = through(request, ANTHROPIC)
    assert canon(out) == canon(load(dump(request)))
    assert not parsed.warnings


@given(chat_messages())
def test_w4_chat_messages_are_valid_for_anthropic(messages):
    out, _, _ = through(messages, CHAT, ANTHROPIC)
    if out["messages"]:
        assert anthropic_faults(out) == []


@given(anthropic_requests())
def test_w4_anthropic_requests_are_valid_for_chat(request):
    out, _, _ = through(request, ANTHROPIC, CHAT)
    assert openai_chat_faults(out) == []


@given(row_lists())
def test_r5_rows_of_every_type_render_validly_to_both(rows):
    arrangement = arranged(rows)
    chat = load(formats.render(CHAT, arrangement).json)
    anthropic = load(formats.render(ANTHROPIC, arrangement).json)
    if chat:
        assert openai_chat_faults(chat) == []
    if anthropic["messages"]:
        assert anthropic_faults(anthropic) == []


@given(row_lists(), st.data())
def test_r5_what_a_fold_leaves_renders_validly_to_both(rows, data):
    arrangement = _folded(rows, data)
    assert openai_chat_faults(load(formats.render(CHAT, arrangement).json)) == []
    assert anthropic_faults(load(formats.render(ANTHROPIC, arrangement).json)) == []


@given(chat_messages(), anthropic_requests(), st.data())
def test_r5_notes_of_messages_whose_neighbours_folded_do_no_harm(chat, request, data):
    of_chat = _folded(formats.parse(CHAT, dump(chat)).rows, data)
    assert anthropic_faults(load(formats.render(ANTHROPIC, of_chat).json)) == []
    of_anthropic = _folded(formats.parse(ANTHROPIC, dump(request)).rows, data)
    assert openai_chat_faults(load(formats.render(CHAT, of_anthropic).json)) == []
    messages = load(formats.render(ANTHROPIC, of_anthropic).json)["messages"]
    assert messages[0]["role"] == "user"


def _folded(rows, data):
    """The transcript after a fold of its first units: a summary, then what stayed."""
    before = stored(rows)
    starts = [i for i, row in enumerate(before) if not isinstance(row.body, ToolResultRow)]
    cut = data.draw(st.sampled_from([*starts, len(before)]))
    summary = Row(len(before) + 1, CompactionSummaryRow("what was done", "f1", SummarySource.EXTRACTIVE))
    return arrange([summary, *before[cut:]], open_run=None, calls=())


@given(row_lists())
def test_w4_nothing_is_lost_silently(rows):
    """Every text and call stands in the request, or a warning names its row's loss."""
    arrangement = arranged(rows)
    for fmt in (CHAT, ANTHROPIC):
        rendered = formats.render(fmt, arrangement)
        lost = " ".join(w.message for w in rendered.warnings if w.code is WarningCode.FORMAT_LOSS)
        strings = set(_strings(load(rendered.json)))
        joined = "\n".join(strings)
        for item in arrangement.items:
            if isinstance(item, UserItem) and item.kind is UserKind.PLACEHOLDER:
                continue
            blocks = [b for r in item.results for b in r.content] if isinstance(item, ResultsItem) else item.content
            for block in blocks:
                if isinstance(block, TextBlock) and block.text not in joined:
                    assert not block.text.strip()
                    assert "texts are left out" in lost
        calls = sum(len(item.calls) for item in arrangement.items if isinstance(item, AssistantItem))
        assert calls == _calls(fmt, load(rendered.json))


@given(row_lists())
def test_spans_name_every_row_once(rows):
    arrangement = arranged(rows)
    sent = sorted(offset for item in arrangement.items for offset in item.offsets)
    for fmt in (CHAT, ANTHROPIC):
        rendered = formats.render(fmt, arrangement)
        out = load(rendered.json)
        assert len(rendered.spans) == len(out if fmt is CHAT else out["messages"])
        named = sorted([offset for span in rendered.spans for offset in span] + list(rendered.system))
        left_out = set(sent) - set(named)
        assert len(named) == len(set(named))
        assert not left_out or any("left out" in w.message for w in rendered.warnings)


@given(row_lists())
def test_w4_rows_go_round_as_rows(rows):
    given = [json.loads(encode_body(row.body)) for row in rows]
    parsed = formats.parse(CANONICAL, dump(given))
    assert [row.body for row in parsed.rows] == [row.body for row in rows]
    arrangement = arranged(parsed.rows)
    # A server call that nothing continued is no part of what is sent.
    sent = sorted(offset for item in arrangement.items for offset in item.offsets)
    rendered = formats.render(CANONICAL, arrangement)
    by_offset = dict(zip((span[0] for span in rendered.spans), load(rendered.json), strict=True))
    assert [by_offset[offset] for offset in sent] == [given[offset - 1] for offset in sent]


@given(st.one_of(chat_messages(), anthropic_requests()), st.data())
def test_r2_damaged_messages_are_refused_or_read_never_worse(messages, data):
    """Whatever a byte of the JSON becomes, the answer is rows or FORMAT_INVALID."""
    raw = bytearray(dump(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for fmt in (CHAT, ANTHROPIC, CANONICAL):
        try:
            rows = formats.parse(fmt, bytes(raw)).rows
        except FoldlineError as error:
            refused = error.reason
        else:
            refused = Reason.FORMAT_INVALID
            for row in rows:
                encode_body(row.body)
        assert refused is Reason.FORMAT_INVALID


@given(row_lists())
def test_what_chat_sends_comes_back_as_it_was_sent(rows):
    """Rendering and parsing meet: a request read again renders to itself."""
    for fmt in (CHAT, ANTHROPIC):
        sent = load(formats.render(fmt, arranged(rows)).json)
        again, _, _ = through(sent, fmt)
        assert canon(again) == canon(sent)


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _calls(fmt, out):
    if fmt is CHAT:
        return sum(len(m.get("tool_calls") or []) for m in out)
    blocks = (b for m in out["messages"] if isinstance(m["content"], list) for b in m["content"])
    return sum(b["type"] == "tool_use" for b in blocks)
