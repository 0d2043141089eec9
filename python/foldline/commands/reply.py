"""What PrepareRequest sends back: whole rows, rendered JSON or splices (W1), with results bounded (§9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foldline.commands.draft import Draft
from foldline.commands.list_rows import to_row
from foldline.commands.live import LiveSession
from foldline.commands.measuring import Exact, RequestShape
from foldline.commands.render_transcript import RenderedTranscript, render_rows
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.checkpoints import usage_text
from foldline.domain.enums import Format, ReadingSource, ReplyMode, RowKind, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import BoundedResult, Warning_
from foldline.domain.models import Factor
from foldline.domain.policy import Policy
from foldline.domain.ports import StoredRow, Tools
from foldline.domain.pressure import Limits, PressureReport
from foldline.domain.rows import ModelRef, Row, ToolResultRow, calls_of
from foldline.domain.session import OpenRun
from foldline.engine import bounding, factor
from foldline.engine.splices import Change, changes


@dataclass(frozen=True, slots=True)
class Reply:
    """How to answer. Without a format WHOLE gives rows, with one the provider's JSON, for ``model`` to read."""

    mode: ReplyMode = ReplyMode.WHOLE
    format: Format | None = None
    known_revision: int | None = None
    model: ModelRef = ModelRef()


@dataclass(frozen=True, slots=True)
class Splice:
    """Replaces ``delete_count`` rows at ``position`` by rows, or by the host's own rows of these offsets."""

    position: int
    delete_count: int
    rows: tuple[Row, ...] = ()
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """At most one of the three is set."""

    rows: tuple[Row, ...] | None = None
    splices: tuple[Splice, ...] | None = None
    rendered: bytes | None = None
    warnings: tuple[Warning_, ...] = ()


def own_rows(first: int, last: int) -> range:
    """Offsets of the rows that came with a call; 0 and 0 for none."""
    return range(first, last + 1) if first else range(0)


def content_of(
    services: Services, live: LiveSession, draft: Draft | None, reply: Reply, own: range, texts: Mapping[int, str],
    revision: int | None = None, rendered: RenderedTranscript | None = None,
) -> Content:  # fmt: skip
    """The content of an answer, of the draft's transcript or of an earlier ``revision``.

    Args:
        own: offsets of the rows that came with the call itself: the host has their bodies.
        texts: shortened results by offset; they are put into rendered JSON only.
        rendered: the very same request, where it was lowered for its bytes.
    """
    if reply.mode is ReplyMode.NONE:
        return Content()
    session = draft.session if draft else live.session
    if reply.mode is ReplyMode.EDITS:
        fast = _appended_only(live, draft, reply, own)
        if fast is not None:
            return fast
    if reply.mode is ReplyMode.WHOLE and rendered is not None:
        return Content(rendered=rendered.json, warnings=rendered.warnings)
    offsets = _offsets(services, live, draft, revision)
    if reply.mode is ReplyMode.EDITS:
        before, reason = _known(services, live, reply)
        if before is not None:
            return _splices(services, live, draft, changes(before, offsets), own)
        behind = (Warning_(WarningCode.HOST_BEHIND, reason),)
        return Content(rows=tuple(_rows(services, live, draft, offsets)), warnings=behind)
    rows = _rows(services, live, draft, offsets)
    if reply.format is None:
        return Content(rows=tuple(rows))
    lowered = render_rows(services, session, rows, reply.format, texts, reply.model)
    return Content(rendered=lowered.json, warnings=lowered.warnings)


def _appended_only(live: LiveSession, draft: Draft | None, reply: Reply, own: range) -> Content | None:
    """The hot path: the host knows the list as it was before its own rows, and those stand at its end."""
    if draft is None or reply.known_revision != live.session.revision:
        return None
    if any(r.place is not None or r.offset not in own for r in draft.rows):
        return None
    if not draft.rows:
        return Content(splices=())
    return Content(splices=(Splice(len(live.ledger), 0, offsets=tuple(r.offset for r in draft.rows)),))


def _offsets(services: Services, live: LiveSession, draft: Draft | None, revision: int | None) -> list[int]:
    if revision is not None and revision != live.session.revision:
        return services.store.active_offsets(live.session.key, revision)
    offsets = live.offsets()
    for row in draft.rows if draft else ():
        if row.place is None:
            offsets.append(row.offset)
        else:
            offsets.insert(offsets.index(row.place) + 1, row.offset)
    return offsets


def _rows(services: Services, live: LiveSession, draft: Draft | None, offsets: Sequence[int]) -> list[Row]:
    fresh: dict[int, StoredRow] = {r.offset: r for r in draft.rows} if draft else {}
    stored = services.store.read_rows(live.session.key, [o for o in offsets if o not in fresh])
    by_offset = {r.offset: r for r in stored} | fresh
    return [to_row(by_offset[o]) for o in offsets]


def _known(services: Services, live: LiveSession, reply: Reply) -> tuple[list[int] | None, str]:
    """The list the host holds, or why it is not known (W1)."""
    if reply.known_revision is None:
        return None, "no known_revision was given"
    if reply.known_revision == live.session.revision:
        return live.offsets(), ""
    try:
        return services.store.active_offsets(live.session.key, reply.known_revision), ""
    except FoldlineError as error:
        if error.reason is not Reason.REVISION_NOT_FOUND:
            raise
        return None, f"revision {reply.known_revision} is not one of this session, which is at {live.session.revision}"


def _splices(
    services: Services, live: LiveSession, draft: Draft | None, found: Sequence[Change], own: range
) -> Content:
    splices = []
    for change in found:
        if all(o in own for o in change.inserted):
            splices.append(Splice(change.position, change.deleted, offsets=change.inserted))
        else:
            rows = tuple(_rows(services, live, draft, change.inserted))
            splices.append(Splice(change.position, change.deleted, rows=rows))
    return Content(splices=tuple(splices))


def stable_prefix(services: Services, live: LiveSession, draft: Draft, first_bounded: int | None) -> int:
    """Leading rows that are sent as in the last prepared request: where a prompt-cache mark belongs."""
    last = live.session.last_prepared
    if last is None:
        return 0
    if last.rewrites == draft.session.rewrites:
        stable = last.rows
    else:
        before = services.store.active_offsets(live.session.key, last.revision)
        now = _offsets(services, live, draft, None)
        stable = next(
            (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
        )
    if last.first_bounded != first_bounded:
        stable = min([stable, *(p for p in (last.first_bounded, first_bounded) if p is not None)])
    # Rows that were sent behind a paused row may stand behind its continuation now (R5).
    return stable if last.paused is None else min(stable, last.paused + 1)


def host_exact(services: Services, live: LiveSession, reply: Reply, shape: RequestShape) -> Exact:
    """What the host stated, moved to the current list where it knew an older one (4.1)."""
    exact = Exact(tokens=shape.input_tokens, bytes=shape.body_bytes)
    known = reply.known_revision
    if known is None or known == live.session.revision or (exact.tokens is None and exact.bytes is None):
        return exact
    before, _ = _known(services, live, reply)
    if before is None:
        return exact
    now = live.offsets()
    added = live.size_of(set(now).difference(before))
    gone = services.store.read_rows(live.session.key, sorted(set(before).difference(now)))
    learned = services.factor_of(live.session, shape.model if shape.model.model else live.session.model)
    tokens = round((added[0] - sum(r.tokens for r in gone)) * learned.value)
    return exact.shifted(tokens, added[1] - sum(r.bytes for r in gone))


def exact_of(
    services: Services, draft: Draft, reply: Reply, limits: Limits, shape: RequestShape, tools: Tools, exact: Exact,
    bounded: Mapping[int, str] | None = None,
) -> Exact:  # fmt: skip
    """Exact body bytes where the renderer lowers the request itself and the provider has a cap (P5)."""
    renders = reply.mode is ReplyMode.WHOLE and reply.format is not None and limits.body_cap is not None
    if not renders or reply.format is None or (exact.bytes is not None and exact.bytes_source is ReadingSource.EXACT):
        return exact
    rows = _rows(services, draft.live, draft, _offsets(services, draft.live, draft, None))
    rendered = render_rows(services, draft.session, rows, reply.format, bounded, reply.model)
    size = len(rendered.json) + shape.beside_bytes(tools)
    source = ReadingSource.EXACT if shape.knows_bytes else ReadingSource.ESTIMATED
    return replace(exact, bytes=size, bytes_source=source, rendered=rendered)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shortened results and what they save; raw tokens and body bytes. ``limit`` is bytes where ``by_bytes`` (B3)."""

    results: tuple[BoundedResult, ...] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    tokens_saved: int = 0
    bytes_saved: int = 0
    limit: int = 0
    by_bytes: bool = False


def bound_results(
    services: Services, draft: Draft, run: OpenRun | None, policy: Policy, limits: Limits, report: PressureReport,
    model: ModelRef,
) -> Bounds:  # fmt: skip
    """Shortens the run's own results, and others no request carried yet (B7), if the request is over a limit (§9).

    A continued run's own are those of the run that it continues too (§1). Without an open run nothing is shortened.
    """
    session = draft.session
    over = report.forecast_tokens > limits.input_budget or (
        limits.body_cap is not None and report.body_bytes > limits.body_cap
    )
    if run is None or not (over or run.share is not None):
        return Bounds()
    runs = {run.run_id, run.continues} - {""}
    own = {o for r in runs for o, kind in draft.live.offsets_of_run(r) if kind == RowKind.TOOL_RESULT}
    others = {*draft.live.uncarried_results(session.carried_through), *run.bounded} - own
    own |= {o for o in others if draft.live.ledger.position(o) is not None}
    sizes = {o: draft.live.size_of([o]) for o in sorted(own)}
    fresh = {r.offset: r for r in draft.rows if r.kind == RowKind.TOOL_RESULT}
    sizes |= {o: (r.tokens, r.bytes) for o, r in fresh.items()}
    if not sizes:
        return Bounds()
    known = Factor(session.model, report.factor)
    # Rows are counted by the session's vocabulary, which may not be that of the model that is asked.
    counted = services.encoding(session.model)
    asked = services.encoding(model)
    # A rewrite since the last request left no prefix that a provider could have cached (B9).
    last = session.last_prepared
    previous = run.share if last is not None and last.rewrites == session.rewrites else None
    rest_tokens = report.forecast_tokens - factor.apply(known, sum(tokens for tokens, _ in sizes.values()))
    rest_bytes = report.body_bytes - sum(size for _, size in sizes.values())
    planned = bounding.plan(
        [bounding.BoundableResult(o, *size) for o, size in sizes.items()],
        token_budget=limits.input_budget - rest_tokens,
        byte_budget=None if limits.body_cap is None else limits.body_cap - rest_bytes,
        bounding=policy.bounding, previous=previous, encoding=counted if counted and counted == asked else "",
        factor=known.value,
    )  # fmt: skip
    if planned is None or not planned.offsets:
        return Bounds()
    stored = {
        r.offset: r for r in services.store.read_rows(session.key, [o for o in planned.offsets if o not in fresh])
    }
    rows = [to_row(fresh.get(o) or stored[o]) for o in planned.offsets]
    bodies = {r.offset: body for r in rows if isinstance(body := r.body, ToolResultRow)}
    names = _call_names(services, draft, bodies.values())
    long = [
        bounding.LongResult(
            bounding.text_of(b.content), bounding.whole_size(b.content), b.call_id,
            names.get((b.call_offset or 0, b.call_id), ""), usage_text(b.usage_mark),
        )
        for b in bodies.values()
    ]  # fmt: skip
    short = bounding.shorten(long, planned.share, policy.bounding.cut, counted)
    kept = tuple(sorted({*run.bounded, *others.intersection(planned.offsets)}))
    draft.session = replace(session, open_run=replace(run, share=planned.share, bounded=kept))
    return Bounds(
        results=tuple(
            BoundedResult(o, r.call_id, s.kept_bytes, r.whole_bytes, s.text)
            for o, r, s in zip(bodies, long, short, strict=True)
        ),
        texts={o: s.text for o, s in zip(bodies, short, strict=True)},
        tokens_saved=max(0, sum(sizes[o][0] - s.tokens for o, s in zip(bodies, short, strict=True))),
        bytes_saved=max(0, sum(sizes[o][1] - s.bytes for o, s in zip(bodies, short, strict=True))),
        limit=limits.body_cap if planned.by_bytes and limits.body_cap is not None else limits.input_budget,
        by_bytes=planned.by_bytes,
    )


def _call_names(services: Services, draft: Draft, bodies: Iterable[ToolResultRow]) -> dict[tuple[int, str], str]:
    rows = _rows(services, draft.live, draft, sorted({b.call_offset for b in bodies if b.call_offset}))
    return {(r.offset, c.call_id): c.name for r in rows for c in calls_of(r.body)}
