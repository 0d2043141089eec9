"""Compaction items on the wire of the provider that made them, and nowhere else (N2, XI5, XI6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from foldline import formats
from foldline.domain.enums import Format, WarningCode
from foldline.domain.native import EDIT, PARAMETER, headers_of, is_readable
from foldline.domain.rows import (
    AssistantRow,
    ModelRef,
    ProviderCompactionRow,
    Row,
    RowBody,
    SystemRow,
    TextBlock,
    UserRow,
)
from foldline.engine.render import arrange

from tests.validity import anthropic_faults, openai_responses_faults

MODEL = ModelRef("claude", "opus")
SIGNED = {"type": "compaction", "content": "What was said.", "signature": "EuYB", "encrypted_content": None}
PLAIN = {"type": "compaction", "content": "What was said."}
OUTPUT = [
    {"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mind the gap."}]},
    {"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAA"},
]


def block(item: Any, beta: str) -> ProviderCompactionRow:
    return ProviderCompactionRow(json.dumps(item), MODEL, beta=beta)


def rendered(fmt: Format, *bodies: RowBody) -> tuple[dict[str, Any], list[WarningCode]]:
    rows = [Row(n, body) for n, body in enumerate(bodies, start=5)]
    made = formats.render(fmt, arrange(rows, open_run=None, calls=()))
    return json.loads(made.json), [w.code for w in made.warnings]


def says(kind: type[UserRow] | type[AssistantRow] | type[SystemRow], text: str) -> Any:
    return kind(content=(TextBlock(text),))


@pytest.mark.parametrize(("item", "beta"), [(SIGNED, PARAMETER), (PLAIN, EDIT)])
@pytest.mark.parametrize("first", [UserRow, AssistantRow])
def test_n2_anthropics_block_is_alone_in_a_message_that_comes_first(item: Any, beta: str, first: Any) -> None:
    """Also where an answer follows: two messages of one role in a row are taken there."""
    out, lost = rendered(
        Format.ANTHROPIC_MESSAGES, says(SystemRow, "Careful."), block(item, beta), says(first, "a"), says(UserRow, "b")
    )
    assert out["messages"][0] == {"role": "assistant", "content": [item]}
    assert [m["role"] for m in out["messages"]][1] == ("user" if first is UserRow else "assistant")
    assert lost == []
    assert anthropic_faults(out) == []


def test_n1_the_edit_goes_with_its_block_alone() -> None:
    out, _ = rendered(Format.ANTHROPIC_MESSAGES, block(PLAIN, EDIT), says(UserRow, "u"))
    (edit,) = out["context_management"]["edits"]
    assert edit["type"] == "compact_20260112"
    out, _ = rendered(Format.ANTHROPIC_MESSAGES, block(SIGNED, PARAMETER), says(UserRow, "u"))
    assert "context_management" not in out
    out, _ = rendered(Format.ANTHROPIC_MESSAGES, says(UserRow, "u"))
    assert "context_management" not in out


LEFT_OUT = [
    ("XI5 an empty string is illegal to send back", {**SIGNED, "content": ""}, PARAMETER),
    ("XI5 null is a no-op that says nothing", {**SIGNED, "content": None}, PARAMETER),
    ("another kind of block", {"type": "text", "text": "x"}, PARAMETER),
    ("no object", ["x"], PARAMETER),
    ("XI6 another provider's", OUTPUT, ""),
]


@pytest.mark.parametrize(("item", "beta"), [pytest.param(*case[1:], id=case[0]) for case in LEFT_OUT])
def test_what_anthropic_would_refuse_is_left_out_with_a_warning(item: Any, beta: str) -> None:
    out, lost = rendered(Format.ANTHROPIC_MESSAGES, block(item, beta), says(UserRow, "u"))
    assert [m["role"] for m in out["messages"]] == ["user"]
    assert lost == [WarningCode.FORMAT_LOSS]
    assert anthropic_faults(out) == []


def test_a_block_that_does_not_come_first_is_left_out() -> None:
    out, lost = rendered(Format.ANTHROPIC_MESSAGES, says(UserRow, "u"), block(SIGNED, PARAMETER), says(UserRow, "v"))
    assert "compaction" not in json.dumps(out)
    assert lost == [WarningCode.FORMAT_LOSS]


def test_n2_openais_output_starts_the_input_unpruned() -> None:
    item = ProviderCompactionRow(json.dumps(OUTPUT), ModelRef("openai", "m"))
    out, lost = rendered(Format.OPENAI_RESPONSES, says(SystemRow, "Careful."), item, says(UserRow, "u"))
    assert out["input"][:2] == OUTPUT
    assert out["instructions"] == "Careful."
    assert lost == []
    assert openai_responses_faults(out) == []


@pytest.mark.parametrize("body", [block(SIGNED, PARAMETER), ProviderCompactionRow("[]", MODEL),
                                  ProviderCompactionRow(json.dumps(OUTPUT[:1]), MODEL)])  # fmt: skip
def test_xi6_openai_gets_nobody_elses_item(body: ProviderCompactionRow) -> None:
    out, lost = rendered(Format.OPENAI_RESPONSES, body, says(UserRow, "u"))
    assert len(out["input"]) == 1
    assert lost == [WarningCode.FORMAT_LOSS]


def test_an_item_is_readable_by_its_model_through_its_own_api() -> None:
    theirs, ours = block(SIGNED, PARAMETER), ProviderCompactionRow(json.dumps(OUTPUT), MODEL)
    for item, fmt, other in (
        (theirs, Format.ANTHROPIC_MESSAGES, Format.OPENAI_RESPONSES),
        (ours, Format.OPENAI_RESPONSES, Format.ANTHROPIC_MESSAGES),
    ):
        assert all(is_readable(item, MODEL, f) for f in (None, Format.CANONICAL, fmt))
        assert not any(is_readable(item, MODEL, f) for f in (other, Format.OPENAI_CHAT, Format.GOOGLE_GENAI))
        assert not is_readable(item, ModelRef("claude", "sonnet"), fmt)
        assert not is_readable(item, ModelRef("other", "opus"), fmt)
    assert headers_of([theirs, says(UserRow, "u")]) == {"anthropic-beta": PARAMETER}
    assert headers_of([ours]) == {}
