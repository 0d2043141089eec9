"""What a fold is made of: facts of rows, plans, candidates, records (§6, §7)."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from foldline.domain.enums import (
    FailureKind,
    Format,
    Oversize,
    PromptCache,
    RowKind,
    SignalKind,
    SourceBoundKind,
    StopReason,
    SummarySource,
    TranscriptSource,
    Trigger,
)
from foldline.domain.models import Usage
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ModelRef,
    ProviderCompactionRow,
    Row,
    ServerToolBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    kind_of,
)
from foldline.domain.session import LedgerCall, OpenRun


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What planning and checking need to know of one active row; never its content.

    Attributes:
        tokens: raw estimate of the row, before the learned factor.
        call_ids: host tool calls of an assistant row, in order.
        call_id, call_offset: the call a tool result answers.
        derived_from: the row whose call identity a derived assistant row keeps (K2).
        paused: an assistant row that ends on a paused server-side tool (§1 round).
        resumes: an assistant row that holds the result of a server-side call made in an earlier row.
        system_key: key of a keyed system row.
        indexable: enters memory when it folds (§2, M2).
        summary_of_run: a summary that covers rounds of that run.
        digest: SHA-256 of the stored body, for V2.
    """

    offset: int
    kind: RowKind
    tokens: int
    bytes: int
    run_id: str = ""
    pinned: bool = False
    call_ids: tuple[str, ...] = ()
    call_id: str = ""
    call_offset: int | None = None
    is_error: bool = False
    interim: bool = False
    late: bool = False
    derived_from: int | None = None
    paused: bool = False
    resumes: bool = False
    system_key: str = ""
    superseded: bool = False
    indexable: bool = False
    summary_of_run: str = ""
    digest: builtins.bytes = b""


def facts_of(
    row: Row, tokens: int, size: int, *, superseded: bool = False, index_tool_results: bool = True, digest: bytes = b""
) -> RowFacts:
    """Reads the facts out of a row's body."""
    body = row.body
    facts = {
        "offset": row.offset, "kind": kind_of(body), "tokens": tokens, "bytes": size, "run_id": row.run_id,
        "pinned": row.pinned, "digest": digest,
    }  # fmt: skip
    if isinstance(body, AssistantRow):
        calls = tuple(b.call_id for b in body.content if isinstance(b, ToolCallBlock))
        speaks = any(isinstance(b, TextBlock | TranscriptBlock | ToolCallBlock) for b in body.content)
        made = {b.call_id for b in body.content if isinstance(b, ServerToolBlock) and not b.result}
        resumes = any(isinstance(b, ServerToolBlock) and b.result and b.call_id not in made for b in body.content)
        return RowFacts(
            **facts, call_ids=calls, derived_from=body.derived_from, paused=is_paused(body), resumes=resumes,  # type: ignore[arg-type]
            indexable=speaks and body.derived_from is None,
        )  # fmt: skip
    if isinstance(body, ToolResultRow):
        return RowFacts(
            **facts, call_id=body.call_id, call_offset=body.call_offset, is_error=body.is_error,  # type: ignore[arg-type]
            interim=body.interim, late=body.late, indexable=index_tool_results,
        )  # fmt: skip
    if isinstance(body, SystemRow):
        return RowFacts(**facts, system_key=body.key, superseded=superseded)  # type: ignore[arg-type]
    if isinstance(body, CompactionSummaryRow):
        return RowFacts(**facts, summary_of_run=body.of_run)  # type: ignore[arg-type]
    return RowFacts(**facts, indexable=isinstance(body, UserRow))  # type: ignore[arg-type]


def is_paused(body: AssistantRow) -> bool:
    """Whether a row waits for the continuation of a server-side tool (§1 round)."""
    if body.stop_reason is not None or not body.content:
        return body.stop_reason == StopReason.PAUSED
    last = body.content[-1]
    return isinstance(last, ServerToolBlock) and not last.result


def has_unmeasured_speech(row: Row) -> bool:
    """Whether the row holds a ``spoken_unmeasured`` transcript block (S7, S8)."""
    return isinstance(row.body, AssistantRow) and any(
        isinstance(b, TranscriptBlock) and b.source == TranscriptSource.SPOKEN_UNMEASURED for b in row.body.content
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The active transcript at one revision, as planning sees it.

    Attributes:
        rows: facts in list order.
        carried_through: highest offset a sent request carried; later results are not yet carried (V5, F6).
        prepared_through: highest offset at the last PrepareRequest (V5: trailing rows of no run after it stay).
        factor: learned factor to turn raw tokens into estimates.
    """

    revision: int
    rows: tuple[RowFacts, ...]
    open_run: OpenRun | None
    carried_through: int
    prepared_through: int
    factor: float = 1.0


class FoldScope(StrEnum):
    """What a fold takes (F3)."""

    WHOLE = "WHOLE"
    STAGE_1 = "STAGE_1"
    STAGE_2 = "STAGE_2"
    COMBINED = "COMBINED"


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """A decided fold, before its summary is written.

    Attributes:
        discard: offsets that fold, in list order, superseded system rows and earlier summaries included.
        retain: offsets that stay, in list order.
        insert_before: offset of the retained row the summary stands before, None for the end of the list (V3).
        source_rows: offsets whose content the summary is written from (no system rows, no summaries).
        earlier: offsets of earlier summaries that fold (F8).
        ledger: calls of the open run that this summary must list (F3), those of earlier folds first.
        budget: summary budget in tokens (V6), ledger and appendix apart.
        discarded_tokens: estimate of the discarded rows.
        predicted_saving: ``discarded_tokens`` less the usual summary size (C4).
        retained_tokens: estimate of the retained rows.
        discarded_bytes: body bytes of the discarded rows (C7).
        follow_up: stage 2 is due at the same check, as a fold of its own (F3, F5).
        restated: archived rows that native items stand for which are all that this fold discards (N4), and
            ``restated_tokens`` raw tokens of them.
    """

    scope: FoldScope
    discard: tuple[int, ...]
    retain: tuple[int, ...]
    insert_before: int | None
    source_rows: tuple[int, ...]
    earlier: tuple[int, ...]
    ledger: tuple[LedgerCall, ...]
    covers_run: str
    budget: int
    discarded_tokens: int
    retained_tokens: int
    predicted_saving: int
    transcript_tokens: int
    discarded_bytes: int = 0
    follow_up: bool = False
    restated: tuple[int, ...] = ()
    restated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """A failed rewrite check: its rule id and what was found."""

    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class SourceBound:
    """How much of the history the source carried (S1); numbers by kind: through, chunks, kept/of.

    Attributes:
        prompt_cache: how the model was asked, where the policy wants ``APPEND`` (S3); ``separate_because`` says why in
            a request of its own all the same.
    """

    kind: SourceBoundKind = SourceBoundKind.WHOLE
    through: int = 0
    chunks: int = 0
    kept: int = 0
    of: int = 0
    prompt_cache: PromptCache | None = None
    separate_because: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of identifiers of the folded rows in the summary, and with its appendix (S9); [0, 1].

    Attributes:
        memory: in what memory holds of these rows; None: not measured, or nothing was published.
    """

    summary: float = 1.0
    with_appendix: float = 1.0
    identifiers: int = 0
    memory: float | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """An identifier of the folded rows that matters, and the last row that names it (S9)."""

    offset: int
    text: str


ASKED_HERE = "[the instruction of the summary]"


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """The request that is sent anyway, up to the last row that folds: what a provider's cache holds (S3, APPEND).

    Attributes:
        model: who it goes to.
        rendered: the provider's JSON of ``format``: the rows, and a last user message that says ``ASKED_HERE``.
        tools: JSON array of the tools in sight, empty for none.
        tokens: raw estimate of both.
        separate_because: why there is none; then the rest is empty.
    """

    model: ModelRef = ModelRef()
    format: Format = Format.CANONICAL
    rendered: bytes = b""
    tools: bytes = b""
    tokens: int = 0
    separate_because: str = ""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a source writes a summary from.

    Attributes:
        rows: rows to summarize, in list order.
        earlier: earlier summaries that fold along (F8).
        budget: tokens of written prose (V6); ``appendix`` tokens come on top (S9).
        instructions: of the policy and of the request, joined.
        model: who is to write, where the source is a model (S2); ``window`` is its own, in tokens (S4), ``factor`` what
            it was learned to count for a raw token (4.5), None before any reading.
        timeout: seconds for the whole summary, retries included (S5); ``retries`` of transient errors.
        cancelled: whether nobody wants the summary any more; a source that can, stops.
        count: raw tokens of a text as the session estimates them, which V6 judges by; None: as the source counts.
        live: what the instruction is to be appended to (S3, APPEND); None where a request of its own is wanted.
    """

    rows: tuple[Row, ...]
    earlier: tuple[CompactionSummaryRow, ...]
    budget: int
    appendix: int
    coverage_floor: float
    redact: tuple[str, ...] = ()
    instructions: str = ""
    model: ModelRef = ModelRef()
    window: int = 0
    factor: float | None = None
    timeout: float = 60.0
    retries: int = 2
    oversize: Oversize = Oversize.TRIM
    cancelled: Callable[[], bool] = field(default=lambda: False)
    count: Callable[[str], int] | None = None
    live: LiveRequest | None = None


@dataclass(frozen=True, slots=True)
class SummaryResult:
    """A written summary: ``text`` includes the appendix, not the ledger. ``durable`` are constraints to carry (F8).

    Attributes:
        named: the identifiers that ``coverage`` is about.
        item: of a native fold: what is stored, of which ``text`` is the placeholder (N2).
    """

    text: str
    durable: tuple[str, ...]
    source: SummarySource
    bound: SourceBound = SourceBound()
    coverage: Coverage = Coverage()
    model: ModelRef = ModelRef()
    usage: Usage | None = None
    appendix_tokens: int = 0
    named: tuple[Named, ...] = ()
    item: ProviderCompactionRow | None = None


@dataclass(frozen=True, slots=True)
class CompactorTask:
    """What a compactor is handed (F12): every row before the run that may fold, and the summaries that do.

    Attributes:
        rows: in list order; the compactor answers with the offsets of those that stay.
        units: offsets that stay or fold together (F6).
        budget: tokens that the summary may take (V6).
        timeout: seconds until the sidecar gives up.
    """

    rows: tuple[Row, ...]
    units: tuple[tuple[int, ...], ...]
    earlier: tuple[CompactionSummaryRow, ...]
    budget: int
    instructions: str = ""
    timeout: float = 60.0
    cancelled: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compactor's answer (F12): what stays of the rows it was handed, and the summary of the others."""

    keep: tuple[int, ...]
    text: str
    model: ModelRef = ModelRef()
    usage: Usage | None = None


class SummaryFailed(Exception):
    """A source could not write a summary (S5, S8).

    Attributes:
        retry_after: seconds that the source asks to be left alone for (C5).
        model, usage: what the failed attempt used and cost all the same (S5); a call without usage is counted too.
        context_exceeded: the source refused its input for its size (S7).
        remember: of NATIVE_UNAVAILABLE: the capability is not there, for this summary and later ones (N3).
        absent: nobody was there to be asked, and nobody was (C5).
    """

    def __init__(
        self, kind: FailureKind, detail: str, retry_after: float | None = None, *, model: ModelRef = ModelRef(),
        usage: Usage | None = None, context_exceeded: bool = False, remember: bool = False, absent: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after
        self.model = model
        self.usage = usage
        self.context_exceeded = context_exceeded
        self.remember = remember
        self.absent = absent


OffsetRange = tuple[int, int]
"""First and last offset, both included."""


def to_ranges(offsets: tuple[int, ...]) -> tuple[OffsetRange, ...]:
    """Runs of consecutive offsets, in the given order (V7). ``(4, 5, 6, 9)`` gives ``((4, 6), (9, 9))``."""
    ranges: list[OffsetRange] = []
    for offset in offsets:
        if ranges and ranges[-1][1] + 1 == offset:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    """The record of one committed fold (V7, §13). Tokens are estimates by one method before and after (XE16).

    Attributes:
        time: seconds since the epoch when it was proven; its commit follows at once.
        duration: seconds from the snapshot on.
    """

    fold_id: str
    trigger: Trigger
    scope: FoldScope
    signals: tuple[SignalKind, ...]
    revision_before: int
    revision_after: int
    discarded: tuple[OffsetRange, ...]
    retained: tuple[OffsetRange, ...]
    summary_offset: int
    rows_summarized: int
    tokens_before: int
    tokens_after: int
    bytes_before: int
    bytes_after: int
    summary_source: SummarySource
    bound: SourceBound
    coverage: Coverage
    digest: str
    summary_text: str
    duration: float
    boundary: int
    model: ModelRef = ModelRef()
    usage: Usage | None = None
    memory_entries: int = 0
    memory_dropped: bool = False
    results_indexed: bool = True
    time: float = 0.0
