"""Rows and content blocks (semantics §2) and their stored form.

A row's **body** is the canonical JSON of these structs: fields in declaration order, defaults omitted, bytes as
base64. It is written once, at append; digests, token counts and byte counts are taken from exactly these bytes. What
may change after the append (offset, pin, run) stands beside the body in the store, never in it.
"""

from __future__ import annotations

import msgspec

from foldline.domain.enums import RowKind, StopReason, SummarySource, TranscriptSource


class _Block(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """Base of content blocks; ``extra`` keeps provider fields this model has no name for, as JSON text (R2)."""


class TextBlock(_Block, frozen=True, tag="text"):
    text: str
    extra: str = ""


class ImageBlock(_Block, frozen=True, tag="image"):
    """One image: inline ``data`` (base64 text) or a ``url``; ``tokens_hint`` is the provider's formula, if known."""

    mime_type: str = ""
    data: str = ""
    url: str = ""
    tokens_hint: int = 0
    extra: str = ""


class VideoBlock(_Block, frozen=True, tag="video"):
    mime_type: str = ""
    data: str = ""
    url: str = ""
    duration_seconds: float = 0.0
    extra: str = ""


class AudioBlock(_Block, frozen=True, tag="audio"):
    mime_type: str = ""
    data: str = ""
    url: str = ""
    extra: str = ""


class DocumentBlock(_Block, frozen=True, tag="document"):
    mime_type: str = ""
    data: str = ""
    url: str = ""
    title: str = ""
    extra: str = ""


class StructuredBlock(_Block, frozen=True, tag="structured"):
    """Structured JSON content, kept as the JSON text the host sent."""

    json: str
    extra: str = ""


class ReasoningBlock(_Block, frozen=True, tag="reasoning"):
    """Model reasoning; ``state`` and ``signature`` are opaque and kept byte-exact (F7)."""

    text: str = ""
    state: str = ""
    signature: str = ""
    redacted: bool = False
    extra: str = ""


class ToolCallBlock(_Block, frozen=True, tag="tool_call"):
    """A call of a host tool; ``arguments_json`` is the text the model produced, valid JSON or not."""

    call_id: str
    name: str
    arguments_json: str = "{}"
    extra: str = ""


class ServerToolBlock(_Block, frozen=True, tag="server_tool"):
    """A tool run by the provider: the call (``json``), or its result when ``result`` is set."""

    call_id: str = ""
    name: str = ""
    json: str = ""
    result: bool = False
    extra: str = ""


class TranscriptBlock(_Block, frozen=True, tag="transcript"):
    text: str
    source: TranscriptSource = TranscriptSource.SPOKEN
    extra: str = ""


ContentBlock = (
    TextBlock
    | ImageBlock
    | VideoBlock
    | AudioBlock
    | DocumentBlock
    | StructuredBlock
    | ReasoningBlock
    | ToolCallBlock
    | ServerToolBlock
    | TranscriptBlock
)
MEDIA = (ImageBlock, VideoBlock, AudioBlock, DocumentBlock)


class ModelRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model as the catalog names it; ``provider`` is free text such as ``openai``."""

    provider: str = ""
    model: str = ""


class _Row(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """Base of rows. ``create_time`` is RFC 3339 UTC, empty when unknown; ``extra`` is JSON text (R2)."""


class SystemRow(_Row, frozen=True, tag="system"):
    content: tuple[ContentBlock, ...]
    key: str = ""
    version: int = 0
    create_time: str = ""
    extra: str = ""


class NoticeRow(_Row, frozen=True, tag="notice"):
    content: tuple[ContentBlock, ...]
    kind: str = ""
    create_time: str = ""
    extra: str = ""


class UserRow(_Row, frozen=True, tag="user"):
    content: tuple[ContentBlock, ...]
    create_time: str = ""
    extra: str = ""


class InjectedContextRow(_Row, frozen=True, tag="injected_context"):
    content: tuple[ContentBlock, ...]
    create_time: str = ""
    extra: str = ""


class AssistantRow(_Row, frozen=True, tag="assistant"):
    content: tuple[ContentBlock, ...]
    model: ModelRef = ModelRef()
    stop_reason: StopReason | None = None
    derived_from: int | None = None
    create_time: str = ""
    extra: str = ""


class ToolResultRow(_Row, frozen=True, tag="tool_result"):
    """A result. ``call_offset`` is the offset of the assistant row it answers (R3), set by the sidecar."""

    call_id: str
    content: tuple[ContentBlock, ...] = ()
    call_offset: int | None = None
    is_error: bool = False
    interim: bool = False
    late: bool = False
    usage_mark: str = ""
    create_time: str = ""
    extra: str = ""


class CompactionSummaryRow(_Row, frozen=True, tag="compaction_summary"):
    """A summary. ``of_run`` says that it covers rounds of the run that was open when it was written (R5, F3)."""

    text: str
    fold_id: str
    source: SummarySource
    digest: str = ""
    of_run: str = ""
    durable: tuple[str, ...] = ()
    ledger: str = ""
    create_time: str = ""
    extra: str = ""


class ProviderCompactionRow(_Row, frozen=True, tag="provider_compaction"):
    """An opaque native item, bound to the model that made it (§12, N2).

    ``item_json`` is as the provider gave it: OpenAI's array ``output``, Anthropic's block. ``beta`` is the one that
    requests which hold the item must name; empty for none.
    """

    item_json: str
    model: ModelRef
    fold_id: str = ""
    create_time: str = ""
    extra: str = ""
    beta: str = ""


RowBody = (
    SystemRow
    | NoticeRow
    | UserRow
    | InjectedContextRow
    | AssistantRow
    | ToolResultRow
    | CompactionSummaryRow
    | ProviderCompactionRow
)

_KINDS: dict[type, RowKind] = {
    SystemRow: RowKind.SYSTEM,
    NoticeRow: RowKind.NOTICE,
    UserRow: RowKind.USER,
    InjectedContextRow: RowKind.INJECTED_CONTEXT,
    AssistantRow: RowKind.ASSISTANT,
    ToolResultRow: RowKind.TOOL_RESULT,
    CompactionSummaryRow: RowKind.COMPACTION_SUMMARY,
    ProviderCompactionRow: RowKind.PROVIDER_COMPACTION,
}


class Row(msgspec.Struct, frozen=True):
    """One archived row: its body and what the sidecar gave it. ``offset`` 0 is never given to a row."""

    offset: int
    body: RowBody
    run_id: str = ""
    pinned: bool = False


class NewRow(msgspec.Struct, frozen=True):
    """A row on its way in: no offset yet."""

    body: RowBody
    run_id: str = ""
    pinned: bool = False


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[RowBody] = msgspec.json.Decoder(RowBody)  # type: ignore[type-abstract,unused-ignore]


def kind_of(body: RowBody) -> RowKind:
    return _KINDS[type(body)]


def encode_body(body: RowBody) -> bytes:
    """Canonical JSON of a body: what is stored, counted and digested."""
    return _encoder.encode(body)


def decode_body(data: bytes) -> RowBody:
    """Reads a stored body.

    Raises:
        msgspec.ValidationError: the bytes are not a body this version knows.
    """
    return _decoder.decode(data)


def identity_of(row: Row) -> int:
    """The offset that results of the row's calls name: of a derived row, that of the row which made them (R3, K2)."""
    derived = row.body.derived_from if isinstance(row.body, AssistantRow) else None
    return row.offset if derived is None else derived


def calls_of(body: RowBody) -> tuple[ToolCallBlock, ...]:
    """The host tool calls of a row, in order; empty for every row but an assistant's."""
    if not isinstance(body, AssistantRow):
        return ()
    return tuple(b for b in body.content if isinstance(b, ToolCallBlock))
