"""W4, R2: generated conversations go round without loss, and everything renders to what the endpoints take."""

import json
from itertools import groupby

from foldline import formats
from foldline.domain.arrangement import AssistantItem, ResultsItem, UserItem, UserKind
from foldline.domain.enums import Format, SummarySource, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import CompactionSummaryRow, Row, TextBlock, ToolResultRow, encode_body
from foldline.engine.render import arrange
from hypothesis import given
from hypothesis import strategies as st

from tests.property.provider_messages import (
    anthropic_requests,
    chat_messages,
    google_requests,
    responses_requests,
    row_lists,
)
from tests.unit.formats.transcripts import FIXTURES, arranged, canon, dump, load, stored, through
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

CHAT, ANTHROPIC, CANONICAL = Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES, Format.CANONICAL
RESPONSES, GOOGLE = Format.OPENAI_RESPONSES, Format.GOOGLE_GENAI
PROVIDERS = (CHAT, RESPONSES, ANTHROPIC, GOOGLE)
FAULTS = {
    CHAT: openai_chat_faults,
    RESPONSES: openai_responses_faults,
    ANTHROPIC: anthropic_faults,
    GOOGLE: google_faults,
}
requests = st.one_of(
    chat_messages().map(lambda given: (CHAT, given)),
    responses_requests().map(lambda given: (RESPONSES, given)),
    anthropic_requests().map(lambda given: (ANTHROPIC, given)),
    google_requests().map(lambda given: (GOOGLE, given)),
)
"""(format, what a host sends in it)"""


FILES = {CHAT: "openai_chat", RESPONSES: "openai_responses", ANTHROPIC: "anthropic_messages", GOOGLE: "google_genai"}
FIXED = [
    (fmt, given_) for fmt, name in FILES.items() for given_ in load((FIXTURES / f"{name}.json").read_bytes()).values()
]
"""(format, a request that its endpoint takes)"""


def messages_of(fmt, out):
    return out if fmt is CHAT else out[{RESPONSES: "input", ANTHROPIC: "messages", GOOGLE: "contents"}[fmt]]


def assert_valid(fmt, rendered):
    out = load(rendered.json)
    if messages_of(fmt, out):
        assert FAULTS[fmt](out) == [], out


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


@given(responses_requests())
def test_w4_responses_requests_go_round_without_loss(request):
    out, parsed, rendered = through(request, RESPONSES)
    assert canon(out) == canon(load(dump(request)))
    assert not parsed.warnings
    lost = [w.message for w in rendered.warnings if "errors" not in w.message]
    assert not lost


@given(google_requests())
def test_w4_google_requests_go_round_without_loss(request):
    out, parsed, rendered = through(request, GOOGLE)
    assert canon(out) == canon(load(dump(request)))
    assert not parsed.warnings
    assert not rendered.warnings


@given(requests)
def test_w4_requests_are_valid_for_every_other_api(request):
    source, given_ = request
    arrangement = arranged(formats.parse(source, dump(given_)).rows)
    for fmt in PROVIDERS:
        if fmt is not source:
            assert_valid(fmt, formats.render(fmt, arrangement))


@given(row_lists())
def test_r5_rows_of_every_type_render_validly_to_each(rows):
    arrangement = arranged(rows)
    for fmt in PROVIDERS:
        assert_valid(fmt, formats.render(fmt, arrangement))


@given(row_lists(), st.data())
def test_r5_what_a_fold_leaves_renders_validly_to_each(rows, data):
    arrangement = _folded(rows, data)
    for fmt in PROVIDERS:
        assert_valid(fmt, formats.render(fmt, arrangement))


@given(requests, st.data())
def test_r5_notes_of_messages_whose_neighbours_folded_do_no_harm(request, data):
    source, given_ = request
    arrangement = _folded(formats.parse(source, dump(given_)).rows, data)
    for fmt in PROVIDERS:
        rendered = formats.render(fmt, arrangement)
        if fmt is not source:
            assert_valid(fmt, rendered)
        elif fmt in (ANTHROPIC, GOOGLE):
            assert messages_of(fmt, load(rendered.json))[0]["role"] == "user"


@given(st.lists(st.sampled_from(FIXED), min_size=1, max_size=4), st.data())
def test_r5_a_session_that_changed_its_provider_renders_validly_to_each(parts, data):
    """Notes of one format stand beside those of another, and between them no content of either may be refused."""
    rows = [row for source, given_ in parts for row in formats.parse(source, dump(given_)).rows]
    for fmt, faults in {**FAULTS, ANTHROPIC: _anthropic_or_neighbours, GOOGLE: _google_or_unsigned}.items():
        for arrangement in (arranged(rows), _folded(rows, data)):
            out = load(formats.render(fmt, arrangement).json)
            assert not messages_of(fmt, out) or faults(out) == [], out


def _anthropic_or_neighbours(request):
    return anthropic_faults(request, alternating=False)


def _google_or_unsigned(request):
    return google_faults(request, alternating=False, signed=False)


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
    for fmt in PROVIDERS:
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
    """In responses an answer is several items, each of which names its row."""
    arrangement = arranged(rows)
    sent = sorted(offset for item in arrangement.items for offset in item.offsets)
    for fmt in PROVIDERS:
        rendered = formats.render(fmt, arrangement)
        assert len(rendered.spans) == len(messages_of(fmt, load(rendered.json)))
        spans = [span for span, _ in groupby(rendered.spans)] if fmt is RESPONSES else rendered.spans
        named = sorted([offset for span in spans for offset in span] + list(rendered.system))
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


@given(requests, st.data())
def test_r2_damaged_messages_are_refused_or_read_never_worse(request, data):
    """Whatever a byte of the JSON becomes, the answer is rows or FORMAT_INVALID."""
    raw = bytearray(dump(request[1]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for fmt in (*PROVIDERS, CANONICAL):
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
def test_what_is_sent_comes_back_as_it_was_sent(rows):
    """Rendering and parsing meet: a request read again renders to itself."""
    for fmt in PROVIDERS:
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
    if fmt is RESPONSES:
        return sum(item.get("type") == "function_call" for item in out["input"])
    if fmt is GOOGLE:
        return sum("functionCall" in part for content in out["contents"] for part in content["parts"])
    blocks = (b for m in out["messages"] if isinstance(m["content"], list) for b in m["content"])
    return sum(b["type"] == "tool_use" for b in blocks)
