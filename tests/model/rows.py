"""Rows that a host could send: words of many scripts, calls in every state, and the same in providers' own JSON."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from typing import Any

from foldline.v1 import model_pb2, row_pb2

_TEXT = (
    "deploy rollback migrate index query latency cache shard replica token budget invoice refund customer flight "
    "booking parser lexer schema column trigger socket thread mutex deadline retry must never always prefer keep "
    "error failed timeout refused panic fixed because therefore decided chose instead"
)
_WORDS = _TEXT.split()
_ODD = (
    "naïve",
    "数据库",
    "検索",
    "مرحبا",
    "שלום",
    "🚀",
    "👩‍👩‍👧",
    "e\u0301",
    "\u202eabc",
    "\u0000",
    "\u2028",
    "\t",
    "\r\n",
    "`x`",
    "\\",
    '"',
    "</s>",
    "<|im_end|>",
)


def words(rng: random.Random, size: int) -> str:
    """About ``size`` characters, with identifiers among them; never blank."""
    parts: list[str] = []
    length = 0
    while length < size:
        draw = rng.random()
        if draw < 0.06:
            part = f"src/{rng.choice(_WORDS)}/{rng.choice(_WORDS)}_{rng.randrange(10_000)}.py"
        elif draw < 0.10:
            part = f"{rng.choice(_WORDS).upper()}-{rng.randrange(100_000)}"
        elif draw < 0.14:
            part = rng.choice(_ODD)
        elif draw < 0.18:
            part = rng.choice((". ", "\n", "\n\n", ": ", "; "))
        else:
            part = rng.choice(_WORDS)
        parts.append(part)
        length += len(part) + 1
    return " ".join([rng.choice(_WORDS), *parts])


def size(rng: random.Random, *, big: int = 1_500) -> int:
    """Mostly short, now and then long, rarely very long."""
    draw = rng.random()
    if draw < 0.55:
        return rng.randrange(1, 160)
    if draw < 0.95:
        return rng.randrange(160, big)
    return rng.randrange(big, big * 6)


def text(value: str) -> row_pb2.ContentBlock:
    return row_pb2.ContentBlock(text=row_pb2.TextBlock(text=value))


def picture(rng: random.Random) -> row_pb2.ContentBlock:
    data = rng.randbytes(rng.randrange(1, 400))
    return row_pb2.ContentBlock(image=row_pb2.ImageBlock(mime_type="image/png", data=data))


def user(rng: random.Random) -> row_pb2.Row:
    blocks = [text(words(rng, size(rng)))]
    if rng.random() < 0.05:
        blocks.append(picture(rng))
    return row_pb2.Row(user=row_pb2.UserRow(content=blocks), pinned=rng.random() < 0.03)


def injected(rng: random.Random) -> row_pb2.Row:
    return row_pb2.Row(injected_context=row_pb2.InjectedContextRow(content=[text(words(rng, size(rng)))]))


def notice(rng: random.Random) -> row_pb2.Row:
    kind = rng.choice(("peer_message", "external_event", "background_job"))
    return row_pb2.Row(notice=row_pb2.NoticeRow(kind=kind, content=[text(words(rng, size(rng)))]))


def system(rng: random.Random, key: str = "", version: int = 0) -> row_pb2.Row:
    body = row_pb2.SystemRow(key=key, version=version, content=[text(words(rng, rng.randrange(5, 200)))])
    return row_pb2.Row(system=body)


def call(call_id: str, rng: random.Random) -> row_pb2.ContentBlock:
    arguments = {"path": words(rng, rng.randrange(1, 60)), "n": rng.randrange(9)}
    made = row_pb2.ToolCallBlock(
        call_id=call_id, name=rng.choice(("read", "write", "run_tests", "search")), arguments_json=json.dumps(arguments)
    )
    return row_pb2.ContentBlock(tool_call=made)


def assistant(rng: random.Random, call_ids: Sequence[str] = (), stop: int = 0) -> row_pb2.Row:
    blocks: list[row_pb2.ContentBlock] = []
    if rng.random() < 0.1:
        sealed = row_pb2.ReasoningBlock(text=words(rng, 40), signature=base64.b64encode(rng.randbytes(24)).decode())
        blocks.append(row_pb2.ContentBlock(reasoning=sealed))
    if not call_ids or rng.random() < 0.6:
        blocks.append(text(words(rng, size(rng, big=900))))
    blocks += [call(i, rng) for i in call_ids]
    reason = stop or (row_pb2.STOP_REASON_TOOL_CALLS if call_ids else row_pb2.STOP_REASON_END_TURN)
    body = row_pb2.AssistantRow(content=blocks, stop_reason=reason)
    if any(b.HasField("reasoning") for b in blocks):
        body.model.CopyFrom(model_pb2.ModelRef(provider="anthropic", model="claude"))
    return row_pb2.Row(assistant=body)


def result(rng: random.Random, call_id: str, *, interim: bool = False, big: int = 1_500) -> row_pb2.Row:
    content = [] if rng.random() < 0.03 else [text(words(rng, size(rng, big=big)))]
    body = row_pb2.ToolResultRow(call_id=call_id, content=content, is_error=rng.random() < 0.1, interim=interim)
    return row_pb2.Row(tool_result=body)


def paused(rng: random.Random, number: int, *, done: bool) -> tuple[row_pb2.Row, row_pb2.Row]:
    """A row that a server tool paused, and the row that continues it; with ``done`` its result is in the first."""
    call_id = f"srvtoolu_{number}"
    asked = {"query": words(rng, 20)}
    found: list[Any] = []
    first = [text(words(rng, 30)), _server(call_id, asked, result=False)]
    second = [text(words(rng, 60))]
    (first if done else second).insert(2 if done else 0, _server(call_id, found, result=True))
    model = model_pb2.ModelRef(provider="anthropic", model="claude")
    return (
        row_pb2.Row(assistant=row_pb2.AssistantRow(content=first, stop_reason=row_pb2.STOP_REASON_PAUSED, model=model)),
        row_pb2.Row(
            assistant=row_pb2.AssistantRow(content=second, stop_reason=row_pb2.STOP_REASON_END_TURN, model=model)
        ),
    )


def _server(call_id: str, value: Any, *, result: bool) -> row_pb2.ContentBlock:
    name = "web_search_tool_result" if result else "web_search"
    block = row_pb2.ServerToolBlock(call_id=call_id, name=name, json=json.dumps(value), result=result)
    return row_pb2.ContentBlock(server_tool=block)


def as_input(rng: random.Random, rows: Sequence[row_pb2.Row]) -> tuple[row_pb2.RowInput, bool]:
    """The rows typed, or in a provider's JSON where that can say the same; the second value says which."""
    fmt = rng.choice((0, 0, row_pb2.FORMAT_OPENAI_CHAT, row_pb2.FORMAT_ANTHROPIC_MESSAGES))
    if fmt and all(plain(r, fmt) for r in rows):
        json_bytes = json.dumps([lowered(r, fmt) for r in rows], ensure_ascii=rng.random() < 0.5).encode()
        return row_pb2.RowInput(raw=row_pb2.RawMessages(format=fmt, json=json_bytes)), False
    return row_pb2.RowInput(rows=row_pb2.RowList(rows=rows)), True


def plain(row: row_pb2.Row, fmt: int) -> bool:
    """Whether a format can carry the row without losing what the model of the test knows of it."""
    kind = row.WhichOneof("body")
    body = getattr(row, kind)
    if row.pinned or kind in ("notice", "injected_context") or (kind == "system" and body.key):
        return False
    if kind == "system" and fmt == row_pb2.FORMAT_ANTHROPIC_MESSAGES:
        return False
    # What a host sends in a format goes back as it came (W4), white space that the API refuses at the end included.
    if kind == "assistant" and _texts(row) != _texts(row).rstrip():
        return False
    if kind == "assistant" and body.stop_reason == row_pb2.STOP_REASON_PAUSED:
        return False
    if kind == "tool_result" and (body.interim or not body.content):
        return False
    if kind == "tool_result" and body.is_error and fmt == row_pb2.FORMAT_OPENAI_CHAT:
        return False
    return all(b.WhichOneof("kind") in ("text", "tool_call") for b in body.content)


def _texts(row: row_pb2.Row) -> str:
    return "".join(b.text.text for b in getattr(row, row.WhichOneof("body")).content if b.HasField("text"))


def _calls(row: row_pb2.Row) -> list[row_pb2.ToolCallBlock]:
    return [b.tool_call for b in row.assistant.content if b.HasField("tool_call")]


def lowered(row: row_pb2.Row, fmt: int) -> dict[str, Any]:
    """The row as a message of a format; it must be plain."""
    return _openai(row) if fmt == row_pb2.FORMAT_OPENAI_CHAT else _anthropic(row)


def _openai(row: row_pb2.Row) -> dict[str, Any]:
    kind = row.WhichOneof("body")
    if kind == "tool_result":
        return {"role": "tool", "tool_call_id": row.tool_result.call_id, "content": _texts(row)}
    made: dict[str, Any] = {"role": kind, "content": _texts(row) or None}
    if kind == "assistant" and _calls(row):
        made["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_json}}
            for c in _calls(row)
        ]
    return made


def _anthropic(row: row_pb2.Row) -> dict[str, Any]:
    kind = row.WhichOneof("body")
    if kind == "tool_result":
        body = row.tool_result
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": body.call_id, "content": _texts(row)}
        if body.is_error:
            block["is_error"] = True
        return {"role": "user", "content": [block]}
    blocks: list[dict[str, Any]] = [{"type": "text", "text": _texts(row)}] if _texts(row) else []
    blocks += (
        [
            {"type": "tool_use", "id": c.call_id, "name": c.name, "input": json.loads(c.arguments_json)}
            for c in _calls(row)
        ]
        if kind == "assistant"
        else []
    )
    return {"role": kind, "content": blocks}
