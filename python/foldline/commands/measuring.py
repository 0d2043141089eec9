"""Measuring a request for the pressure check: what the ledger knows and what the host stated (4.1, 4.5)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from foldline.commands.draft import Draft
from foldline.commands.live import LiveSession
from foldline.commands.render_transcript import RenderedTranscript
from foldline.commands.services import WEIGHTED_BYTES, Services
from foldline.domain.enums import ReadingSource, RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import Factor
from foldline.domain.ports import Tools
from foldline.domain.pressure import Breakdown
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
from foldline.engine.pressure import Measurement

NO_TOOLS = Tools("", 0, 0)
BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What the host says of the request it will send. Tokens and bytes.

    Attributes:
        input_tokens, body_bytes: of the whole request at ``known_revision`` + append.
        overhead_tokens, overhead_bytes: everything but rows, for hosts that lower last.
    """

    model: ModelRef = ModelRef()
    tools_json: bytes | None = None
    tools_digest: str = ""
    output_reserve_tokens: int | None = None
    body_bytes: int | None = None
    input_tokens: int | None = None
    overhead_bytes: int | None = None
    overhead_tokens: int | None = None

    def beside_bytes(self, tools: Tools) -> int:
        """Bytes of everything but the rows: the host's figure, else an estimate from its tokens, else the tools'."""
        if self.overhead_bytes is not None:
            return self.overhead_bytes
        return max(tools.bytes, BYTES_A_TOKEN * (self.overhead_tokens or 0))

    @property
    def knows_bytes(self) -> bool:
        """Whether ``beside_bytes`` is no estimate."""
        return self.overhead_bytes is not None or self.overhead_tokens is None

    def beside_tokens(self, tools: Tools, factor: Factor) -> int:
        """Raw tokens of everything but the rows; the host's figure is divided by the factor it needs none of."""
        return tools.tokens if self.overhead_tokens is None else round(self.overhead_tokens / factor.value)


@dataclass(frozen=True, slots=True)
class Exact:
    """Exact readings of the request at hand, or exact ones carried over a fold (source ANCHORED).

    Attributes:
        rendered: the request whose bytes these are, where the renderer lowered it: what is sent if nothing changes.
    """

    tokens: int | None = None
    bytes: int | None = None
    tokens_source: ReadingSource = ReadingSource.EXACT
    bytes_source: ReadingSource = ReadingSource.EXACT
    rendered: RenderedTranscript | None = None

    def shifted(self, tokens: int, size: int) -> Exact:
        """After rows were removed and added: exact - removed + added (4.1)."""
        return Exact(
            None if self.tokens is None else max(0, self.tokens + tokens),
            None if self.bytes is None else max(0, self.bytes + size),
            ReadingSource.ANCHORED if tokens else self.tokens_source,
            ReadingSource.ANCHORED if size else self.bytes_source,
        )


def tools_of(services: Services, session: Session, shape: RequestShape) -> tuple[Tools, bool]:
    """The tool definitions in sight and whether they are new to the session; tools travel once.

    A digest is the hex of SHA-256 over the JSON as the host sent it.

    Raises:
        FoldlineError: TOOLS_UNKNOWN for a digest whose JSON never came.
    """
    if shape.tools_json is None and not shape.tools_digest:
        return NO_TOOLS, False
    digest = shape.tools_digest or hashlib.sha256(shape.tools_json or b"").hexdigest()
    known = services.store.find_tools(session.key, digest)
    if known is not None:
        return known, False
    if shape.tools_json is None:
        raise FoldlineError(
            Reason.TOOLS_UNKNOWN, f"no tools with the digest {digest}: send them as tools_json once", digest=digest
        )
    text = shape.tools_json.decode(errors="replace")
    return Tools(digest, services.count(text, session.model), len(shape.tools_json)), True


def measurement(
    services: Services, draft: Draft, shape: RequestShape, tools: Tools, exact: Exact, *, manual: bool = False
) -> Measurement:
    """Everything known of the request that the draft's transcript would make; constant time in its length."""
    session, model = draft.session, shape.model if shape.model.model else draft.session.model
    tokens, size = draft.size()
    run = session.open_run
    in_run = run is not None and run.rounds > 0
    return Measurement(
        model=model,
        factor=draft.factor_of(model),
        transcript_tokens=tokens,
        transcript_bytes=size,
        tools_tokens=tools.tokens,
        tools_bytes=shape.beside_bytes(tools),
        parts=_parts(draft, tools),
        exact_tokens=exact.tokens,
        exact_bytes=exact.bytes,
        exact_source=exact.tokens_source,
        exact_bytes_source=exact.bytes_source,
        overhead_tokens=shape.overhead_tokens,
        overhead_bytes=shape.overhead_bytes,
        in_run=in_run,
        first_check_of_continued_run=bool(
            run and run.continues and run.opened_boundary >= session.cadence.boundaries - 1
        ),
        manual=manual,
        estimator=services.encoding(session.model) or WEIGHTED_BYTES,
    )


def _parts(draft: Draft, tools: Tools) -> Breakdown:
    session, live = draft.session, draft.live
    total, _ = draft.size()
    system = _of_kind(live, draft, RowKind.SYSTEM) - sum(r.tokens for r in session.superseded)
    run = session.open_run
    request = rounds = results = 0
    if run is not None:
        request = run.request_tokens
        rounds, results = _rounds(draft, run.run_id)
    return Breakdown(
        system=system, tools=tools.tokens, request=request, rounds=rounds, results=results,
        pinned=session.pinned_tokens, history=max(0, total - system - request - rounds),
    )  # fmt: skip


def _of_kind(live: LiveSession, draft: Draft, kind: RowKind) -> int:
    return int(live.ledger.totals_by_kind(kind)[1]) + sum(r.tokens for r in draft.rows if r.kind == kind)


def _rounds(draft: Draft, run_id: str) -> tuple[int, int]:
    """(tokens of the run's assistant and result rows, of its results alone)."""
    assistant, results = draft.live.run_tokens(run_id)
    for row in draft.rows:
        if row.run_id == run_id:
            assistant += row.tokens if row.kind == RowKind.ASSISTANT else 0
            results += row.tokens if row.kind == RowKind.TOOL_RESULT else 0
    return assistant + results, results
