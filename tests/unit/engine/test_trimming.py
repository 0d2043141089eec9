"""Trims: what is left of a row, and what the checks catch (K2, V1-V7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from foldline import formats
from foldline.domain.checkpoints import TrimmedCall, TrimRecord
from foldline.domain.enums import Format, RowKind, StopReason
from foldline.domain.folding import RowFacts, Snapshot, is_paused
from foldline.domain.rows import (
    AssistantRow,
    ReasoningBlock,
    Row,
    ServerToolBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
)
from foldline.engine.render import arrange
from foldline.engine.trim_checks import check_trim
from foldline.engine.trimming import derive

from tests.validity import google_faults, openai_responses_faults


def call(call_id: str) -> ToolCallBlock:
    return ToolCallBlock(call_id, "read")


def thought(text: str) -> ReasoningBlock:
    return ReasoningBlock(text, signature="c2lnbmVk")


A, B, SAID = call("a"), call("b"), TextBlock("I look.")
SERVER = ServerToolBlock("s", "search", "{}")

LEFT = [
    # (case, blocks, what is left once ``a`` goes; None for nothing)
    ("a call alone", (A,), None),
    ("a call with its reasoning", (thought("1"), A), None),
    ("blank text is nothing", (TextBlock(" \n"), A), None),
    ("text stays", (SAID, A), (SAID,)),
    ("reasoning before text and call goes", (thought("1"), SAID, A), (SAID,)),
    ("another call stays", (A, B), (B,)),
    ("reasoning of both goes", (thought("1"), A, B), (B,)),
    ("reasoning of the other stays", (thought("1"), A, thought("2"), B), (thought("2"), B)),
    ("reasoning before it stays with what it led to", (thought("1"), B, thought("2"), A), (thought("1"), B)),
    ("a server tool stays", (SERVER, A), (SERVER,)),
]


@pytest.mark.parametrize(("blocks", "left"), [pytest.param(b, e, id=c) for c, b, e in LEFT])
def test_k2_what_is_left_of_a_row(blocks: Any, left: Any) -> None:
    made = derive(AssistantRow(blocks, stop_reason=StopReason.TOOL_CALLS), 7, {"a"})
    assert (made and made.content) == left
    assert made is None or made.derived_from == 7


@pytest.mark.parametrize("blocks", [(SERVER, A), (A, SERVER), (SERVER, A, SAID)])
def test_k2_a_row_pauses_as_it_did(blocks: Any) -> None:
    """§1 round: what the last block tells must not change with it."""
    body = AssistantRow(blocks)
    made = derive(body, 7, {"a"})
    assert made is not None
    assert is_paused(made) == is_paused(body)


def facts(offset: int, kind: RowKind, **fields: Any) -> RowFacts:
    return RowFacts(offset, kind, 10, 40, digest=bytes([offset]), **fields)


def result(offset: int, call_offset: int, call_id: str, **fields: Any) -> RowFacts:
    return facts(offset, RowKind.TOOL_RESULT, call_offset=call_offset, call_id=call_id, **fields)


USER = facts(1, RowKind.USER)
CALLER = facts(2, RowKind.ASSISTANT, call_ids=("a", "b"))
RESULT_A, RESULT_B = result(3, 2, "a"), result(4, 2, "b")
OTHER, RESULT_C = facts(5, RowKind.ASSISTANT, call_ids=("c",)), result(6, 5, "c")
LAST = facts(7, RowKind.ASSISTANT)
DERIVED = replace(CALLER, offset=8, tokens=5, call_ids=("b",), derived_from=2, digest=b"8")
BEFORE = Snapshot(7, (USER, CALLER, RESULT_A, RESULT_B, OTHER, RESULT_C, LAST), None, 7, 7)
AFTER = (USER, DERIVED, RESULT_B, OTHER, RESULT_C, LAST)
RECORD = TrimRecord("c", ((2, 3),), "digest", ((8, 2),), (TrimmedCall(2, "a"),))


def failed(before: Snapshot = BEFORE, after: Any = AFTER, record: TrimRecord = RECORD, count: int = 1) -> set[str]:
    return {f.rule for f in check_trim(before, after, record, count)}


def test_a_right_trim_passes() -> None:
    assert failed() == set()


def instead(**fields: Any) -> tuple[RowFacts, ...]:
    """The list after, with another derived row."""
    return (USER, replace(DERIVED, **fields), *AFTER[2:])


def of_run(rows: tuple[RowFacts, ...]) -> tuple[RowFacts, ...]:
    return tuple(replace(r, run_id="r") for r in rows)


def pinned(row: RowFacts) -> Snapshot:
    return replace(BEFORE, rows=tuple(replace(r, pinned=True) if r == row else r for r in BEFORE.rows))


WRONG: list[tuple[str, str, Callable[[], set[str]]]] = [
    ("V1", "more calls than asked for", lambda: failed(count=2)),
    ("V1", "a row of conversation goes", lambda: failed(after=AFTER[1:])),
    ("V1", "a row goes whole with a call that stays",
     lambda: failed(after=(USER, *AFTER[2:]), record=replace(RECORD, derived=()))),
    ("V1", "a result of another call goes", lambda: failed(after=(*AFTER[:4], LAST))),
    ("V2", "a kept row is changed", lambda: failed(after=(replace(USER, digest=b"x"), *AFTER[1:]))),
    ("V2", "rows change places", lambda: failed(after=(DERIVED, USER, *AFTER[2:]))),
    ("V3", "a derived row names no row", lambda: failed(after=instead(derived_from=5))),
    ("V3", "a derived row keeps the call", lambda: failed(after=instead(call_ids=("a", "b")))),
    ("V3", "a derived row would be indexed", lambda: failed(after=instead(indexable=True))),
    ("V3", "a row comes from nowhere", lambda: failed(after=(*AFTER, facts(9, RowKind.USER)))),
    ("V4", "a call loses its result", lambda: failed(after=(USER, DERIVED, *AFTER[3:]))),
    ("V4", "a result of a trimmed call stays", lambda: failed(after=(USER, DERIVED, RESULT_A, *AFTER[2:]))),
    ("V5", "a pinned unit", lambda: failed(before=pinned(RESULT_A))),
    ("V5", "a pin beside it in the unit", lambda: failed(before=pinned(RESULT_B))),
    ("V5", "a result not yet carried",
     lambda: failed(before=replace(BEFORE, carried_through=2, rows=of_run(BEFORE.rows)), after=of_run(AFTER))),
    ("V5", "the newest round", lambda: failed(before=replace(BEFORE, rows=BEFORE.rows[:4]), after=AFTER[:3])),
    ("V6", "no token is saved", lambda: failed(after=instead(tokens=40))),
    ("V7", "the record names other rows", lambda: failed(record=replace(RECORD, discarded=((3, 3),)))),
    ("V7", "the record has no digest", lambda: failed(record=replace(RECORD, digest=""))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "found"), [pytest.param(r, f, id=f"{r}-{c.replace(' ', '-')}") for r, c, f in WRONG])
def test_a_wrong_trim_is_caught(rule: str, found: Callable[[], set[str]]) -> None:
    assert rule in found()


def rendered(fmt: Format, messages: list[dict[str, Any]], trimmed: str) -> Any:
    """A request after the call ``trimmed`` went, as its endpoint takes it."""
    given = formats.parse(fmt, msgspec.json.encode(messages)).rows
    rows, caller = list[Row](), 0
    for offset, new in enumerate(given, 1):
        body = new.body
        if isinstance(body, AssistantRow) and any(isinstance(b, ToolCallBlock) for b in body.content):
            caller, left = offset, derive(body, offset, {trimmed})
            assert left is not None
            body = left
        elif isinstance(body, ToolResultRow):
            if body.call_id == trimmed:
                continue
            body = msgspec.structs.replace(body, call_offset=caller)
        rows.append(Row(offset if body is new.body else offset + 100, body))
    return msgspec.json.decode(formats.render(fmt, arrange(rows, open_run=None, calls=())).json)


def test_w4_items_whose_reasoning_was_trimmed_carry_no_ids() -> None:
    """The API refuses an item id whose reasoning is missing."""
    calls = [{"type": "function_call", "id": f"fc_{i}", "call_id": i, "name": "f", "arguments": "{}"} for i in "ab"]
    outputs = [{"type": "function_call_output", "call_id": i, "output": i} for i in "ab"]
    thinking = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eHg="}
    out = rendered(Format.OPENAI_RESPONSES, [{"role": "user", "content": "q"}, thinking, *calls, *outputs], "a")
    assert openai_responses_faults(out) == []
    assert [i.get("type") for i in out["input"]] == [None, "function_call", "function_call_output"]
    assert "id" not in out["input"][1]


def test_w4_a_step_whose_signed_call_was_trimmed_begins_with_the_documented_signature() -> None:
    """Newer models refuse a step that begins unsigned."""
    signed = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"}
    step = [signed, {"functionCall": {"name": "g", "args": {}}}]
    answers = [{"functionResponse": {"name": n, "response": {"output": n}}} for n in "fg"]
    messages = [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": step},
        {"role": "user", "parts": answers},
    ]
    out = rendered(Format.GOOGLE_GENAI, messages, "call_f_0")
    assert google_faults(out) == []
    assert out["contents"][1]["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"
