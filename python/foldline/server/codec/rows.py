"""Rows and content blocks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from foldline import formats
from foldline.commands.inputs import RawMessages, RowsInput
from foldline.domain import rows as domain
from foldline.domain.enums import Format, StopReason, SummarySource, TranscriptSource
from foldline.server.codec.basics import (
    duration,
    enum_map,
    invalid,
    model_ref,
    seconds,
    time_text,
    timestamp_of,
    wire_model,
)
from foldline.server.validation import validate
from foldline.v1 import row_pb2

FORMATS = enum_map(row_pb2.Format, Format, "FORMAT")
STOP_REASONS = enum_map(row_pb2.StopReason, StopReason, "STOP_REASON")
SPEECH = enum_map(row_pb2.TranscriptSource, TranscriptSource, "TRANSCRIPT_SOURCE")
SOURCES = enum_map(row_pb2.SummarySource, SummarySource, "SUMMARY_SOURCE")


def rows_input(value: row_pb2.RowInput | None, field: str) -> RowsInput | None:
    """A ``RowInput``: canonical rows decoded, provider JSON passed on.

    Raises:
        FoldlineError: FIELD_VALIDATION for ``extra`` that is no JSON.
    """
    if value is None:
        return None
    if value.WhichOneof("kind") == "raw":
        if value.raw.format == row_pb2.FORMAT_CANONICAL:
            _check_canonical(value.raw.json, f"{field}.raw.json")
        return RawMessages(FORMATS.domain(value.raw.format), value.raw.json)
    return tuple(new_row(r, f"{field}.rows.rows[{i}]") for i, r in enumerate(value.rows.rows))


def _check_canonical(data: bytes, field: str) -> None:
    """Rows in Foldline's own JSON keep the limits of typed ones: whatever is stored can be sent back.

    Raises:
        FoldlineError: FORMAT_INVALID, FIELD_VALIDATION.
    """
    for index, row in enumerate(formats.parse(Format.CANONICAL, data).rows):
        at = f"{field}[{index}]"
        try:
            wire = wire_row(domain.Row(0, row.body))
            new_row(wire, at)
        except ValueError as error:
            raise invalid(at, type(row.body).__name__, "numbers that fit their fields", f"{at}: {error}") from error
        validate(wire, f"{at}.")
        if row.body.create_time and not wire.HasField("create_time"):
            given = row.body.create_time
            raise invalid(f"{at}.create_time", given, "RFC 3339", f"{at}.create_time is no time: {given[:64]}")


def new_row(row: row_pb2.Row, field: str) -> domain.NewRow:
    """A row as a host sends it; what only the sidecar sets is ignored."""
    kind = row.WhichOneof("body")
    if kind is None:
        raise invalid(f"{field}.body", "", "one of the row types", f"{field} has no body")
    common = {
        "create_time": time_text(row.create_time, f"{field}.create_time") if row.HasField("create_time") else "",
        "extra": _extra(row.extra, field),
    }
    return domain.NewRow(_BODIES[kind](getattr(row, kind), common, field), row.run_id, row.pinned)


def _extra(value: bytes, field: str) -> str:
    if not value:
        return ""
    try:
        msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(
            f"{field}.extra", f"{len(value)} bytes", "UTF-8 JSON", f"{field}.extra is no JSON: {error}"
        ) from error
    return value.decode()


def _content(blocks: Iterable[row_pb2.ContentBlock], field: str) -> tuple[Any, ...]:
    return tuple(_block(b, f"{field}.content[{i}]") for i, b in enumerate(blocks))


def _block(block: row_pb2.ContentBlock, field: str) -> Any:
    kind = block.WhichOneof("kind")
    if kind == "text" and not block.extra:
        return domain.TextBlock(block.text.text)
    if kind is None:
        raise invalid(field, "", "one of the block kinds", f"{field} is empty")
    return _BLOCKS[kind](getattr(block, kind), _extra(block.extra, field))


def _media(value: Any) -> dict[str, str]:
    source = value.WhichOneof("source")
    return {
        "mime_type": value.mime_type,
        "data": base64.b64encode(value.data).decode() if source == "data" else "",
        "url": value.url if source == "url" else "",
    }


_BLOCKS: dict[str, Callable[[Any, str], Any]] = {
    "text": lambda v, x: domain.TextBlock(v.text, x),
    "image": lambda v, x: domain.ImageBlock(**_media(v), tokens_hint=v.tokens_hint, extra=x),
    "video": lambda v, x: domain.VideoBlock(**_media(v), duration_seconds=seconds(v.duration), extra=x),
    "audio": lambda v, x: domain.AudioBlock(**_media(v), extra=x),
    "document": lambda v, x: domain.DocumentBlock(**_media(v), title=v.title, extra=x),
    "structured": lambda v, x: domain.StructuredBlock(v.json, x),
    "reasoning": lambda v, x: domain.ReasoningBlock(v.text, v.state, v.signature, v.redacted, x),
    "tool_call": lambda v, x: domain.ToolCallBlock(v.call_id, v.name, v.arguments_json or "{}", x),
    "server_tool": lambda v, x: domain.ServerToolBlock(v.call_id, v.name, v.json, v.result, x),
    "transcript": lambda v, x: domain.TranscriptBlock(v.text, SPEECH.domain(v.source) or TranscriptSource.SPOKEN, x),
}

_BODIES: dict[str, Callable[[Any, dict[str, Any], str], domain.RowBody]] = {
    "system": lambda v, c, f: domain.SystemRow(_content(v.content, f), v.key, v.version, **c),
    "notice": lambda v, c, f: domain.NoticeRow(_content(v.content, f), v.kind, **c),
    "user": lambda v, c, f: domain.UserRow(_content(v.content, f), **c),
    "injected_context": lambda v, c, f: domain.InjectedContextRow(_content(v.content, f), **c),
    "assistant": lambda v, c, f: domain.AssistantRow(
        _content(v.content, f),
        model_ref(v.model),
        STOP_REASONS.domain(v.stop_reason),
        **c,
    ),
    "tool_result": lambda v, c, f: domain.ToolResultRow(
        v.call_id,
        _content(v.content, f),
        is_error=v.is_error,
        interim=v.interim,
        **c,
    ),
    "compaction_summary": lambda v, c, f: domain.CompactionSummaryRow(
        v.text, v.fold_id, SOURCES.domain(v.source) or SummarySource.EXTRACTIVE, v.digest, **c
    ),
    "provider_compaction": lambda v, c, f: domain.ProviderCompactionRow(
        v.item_json.decode(errors="replace"),
        model_ref(v.model),
        v.fold_id,
        beta=v.beta,
        **c,
    ),
}


def wire_row(row: domain.Row) -> row_pb2.Row:
    """A stored row."""
    body = row.body
    made = row_pb2.Row(
        offset=row.offset,
        run_id=row.run_id,
        pinned=row.pinned,
        create_time=timestamp_of(body.create_time),
        extra=body.extra.encode(),
    )
    match body:
        case domain.SystemRow():
            made.system.CopyFrom(
                row_pb2.SystemRow(key=body.key, version=body.version, content=_wire_content(body.content))
            )
        case domain.NoticeRow():
            made.notice.CopyFrom(row_pb2.NoticeRow(kind=body.kind, content=_wire_content(body.content)))
        case domain.UserRow():
            made.user.CopyFrom(row_pb2.UserRow(content=_wire_content(body.content)))
        case domain.InjectedContextRow():
            made.injected_context.CopyFrom(row_pb2.InjectedContextRow(content=_wire_content(body.content)))
        case domain.AssistantRow():
            made.assistant.CopyFrom(
                row_pb2.AssistantRow(
                    content=_wire_content(body.content),
                    model=wire_model(body.model),
                    stop_reason=STOP_REASONS.wire(body.stop_reason),
                    derived_from=body.derived_from or 0,
                )
            )
        case domain.ToolResultRow():
            made.tool_result.CopyFrom(
                row_pb2.ToolResultRow(
                    call_id=body.call_id,
                    content=_wire_content(body.content),
                    is_error=body.is_error,
                    interim=body.interim,
                    late=body.late,
                    usage_mark=body.usage_mark,
                    call_offset=body.call_offset or 0,
                )
            )
        case domain.CompactionSummaryRow():
            made.compaction_summary.CopyFrom(
                row_pb2.CompactionSummaryRow(
                    text="\n\n".join(filter(None, (body.text, body.ledger))),
                    fold_id=body.fold_id,
                    digest=body.digest,
                    source=SOURCES.wire(body.source),
                    of_run=body.of_run,
                )
            )
        case domain.ProviderCompactionRow():
            made.provider_compaction.CopyFrom(
                row_pb2.ProviderCompactionRow(
                    item_json=body.item_json.encode(),
                    fold_id=body.fold_id,
                    model=wire_model(body.model),
                    beta=body.beta,
                )
            )
    return made


def wire_rows(rows: Iterable[domain.Row]) -> row_pb2.RowList:
    return row_pb2.RowList(rows=[wire_row(r) for r in rows])


def _wire_content(blocks: Iterable[Any]) -> list[row_pb2.ContentBlock]:
    return [_wire_block(b) for b in blocks]


def _wire_block(block: Any) -> row_pb2.ContentBlock:
    name, make = _WIRE_BLOCKS[type(block)]
    return row_pb2.ContentBlock(**{name: make(block)}, extra=block.extra.encode())


def _wire_media(block: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"mime_type": block.mime_type}
    if block.data:
        fields["data"] = base64.b64decode(block.data)
    elif block.url:
        fields["url"] = block.url
    return fields


_WIRE_BLOCKS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    domain.TextBlock: ("text", lambda b: row_pb2.TextBlock(text=b.text)),
    domain.ImageBlock: ("image", lambda b: row_pb2.ImageBlock(**_wire_media(b), tokens_hint=b.tokens_hint)),
    domain.VideoBlock: (
        "video",
        lambda b: row_pb2.VideoBlock(**_wire_media(b), duration=duration(b.duration_seconds or None)),
    ),
    domain.AudioBlock: ("audio", lambda b: row_pb2.AudioBlock(**_wire_media(b))),
    domain.DocumentBlock: ("document", lambda b: row_pb2.DocumentBlock(**_wire_media(b), title=b.title)),
    domain.StructuredBlock: ("structured", lambda b: row_pb2.StructuredBlock(json=b.json)),
    domain.ReasoningBlock: (
        "reasoning",
        lambda b: row_pb2.ReasoningBlock(text=b.text, signature=b.signature, state=b.state, redacted=b.redacted),
    ),
    domain.ToolCallBlock: (
        "tool_call",
        lambda b: row_pb2.ToolCallBlock(call_id=b.call_id, name=b.name, arguments_json=b.arguments_json),
    ),
    domain.ServerToolBlock: (
        "server_tool",
        lambda b: row_pb2.ServerToolBlock(call_id=b.call_id, name=b.name, json=b.json, result=b.result),
    ),
    domain.TranscriptBlock: (
        "transcript",
        lambda b: row_pb2.TranscriptBlock(text=b.text, source=SPEECH.wire(b.source)),
    ),
}
