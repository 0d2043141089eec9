"""One change of a session in the making: rules are applied to a copy, then everything is committed at once (V10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog

from foldline import _core
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.commands.usage_marks import as_sent, enabled, marked
from foldline.domain.changes import replace
from foldline.domain.checkpoints import Checkpoint
from foldline.domain.enums import EventKind, RevisionKind, WarningCode
from foldline.domain.errors import FoldlineError, Reason, RevisionConflict
from foldline.domain.events import Event, Warning_
from foldline.domain.folding import OffsetRange
from foldline.domain.models import Factor
from foldline.domain.ports import Batch, CallUpdate, StoredRequest, StoredRow, Tools
from foldline.domain.projections import Projection, Settled, StagedFold
from foldline.domain.rows import MEDIA, ModelRef, NewRow, Row, RowBody, UserRow, encode_body, kind_of
from foldline.domain.session import ClosedRun, Prepared, Session, SupersededRow
from foldline.engine import appending, cadence
from foldline.engine.factor import within

log = structlog.get_logger(__name__)

REVISION_KINDS = {kind: number for number, kind in enumerate(RevisionKind)}
"""The kind byte of the digest chain."""


def measured(
    services: Services, session: Session, rows: Sequence[Row], revision: int, places: Mapping[int, int]
) -> list[StoredRow]:
    """Encodes and measures rows, once, in one call (4.5)."""
    bodies = [encode_body(r.body) for r in rows]
    sent = [
        body if (as_said := as_sent(r.body)) is r.body else encode_body(as_said)
        for r, body in zip(rows, bodies, strict=True)
    ]
    sizes = _core.measure_rows(sent, services.encoding(session.model))
    return [
        StoredRow(
            offset=row.offset, kind=kind_of(row.body), run_id=row.run_id, pinned=row.pinned, tokens=tokens, bytes=size,
            revision=revision, body=body, place=places.get(row.offset),
        )
        for row, body, (tokens, size) in zip(rows, bodies, sizes, strict=True)
    ]  # fmt: skip


def media_tokens(bodies: Iterable[RowBody]) -> int:
    """The part of the rows' raw tokens that stands for media, which are counted high (4.5, B6)."""
    blocks = tuple(b for body in bodies for b in getattr(body, "content", ()) if isinstance(b, MEDIA))
    return _core.measure_rows([encode_body(UserRow(blocks))], None)[0][0] if blocks else 0


class Draft:
    """Collects what one commit writes. Used under the live session's lock, and thrown away if it is not committed.

    Attributes:
        session: the state as it will be.
        warnings: for the answer.
        settle, stage: what becomes of a staged projection, and one to stage (H3).
        visible: which offsets' entries memory shows from now on (M2); None leaves that as it is.
        checkpoint: to save with it, where that changes no list (K1).
    """

    def __init__(self, services: Services, live: LiveSession) -> None:
        self.services = services
        self.live = live
        self.session = live.session
        self.warnings: list[Warning_] = []
        self.rows: list[StoredRow] = []
        self.events: list[Event] = []
        self._calls: list[CallUpdate] = []
        self.closed: list[ClosedRun] = []
        self._prepared: Prepared | None = None
        self._tools: Tools | None = None
        self._tools_json: bytes | None = None
        self._factor: Factor | None = None
        self.settle: Settled | None = None
        self.stage: tuple[Projection, StagedFold] | None = None
        self.visible: tuple[OffsetRange, ...] | None = None
        self.checkpoint: Checkpoint | None = None
        self._now = services.clock()

    @property
    def now(self) -> float:
        return self._now

    def append(self, rows: Sequence[NewRow], run_id: str) -> tuple[int, int]:
        """Appends rows as one revision; returns the first and last offset, (0, 0) for none.

        Raises:
            FoldlineError: what ``appending.accept`` refuses.
        """
        if not rows:
            return 0, 0
        before = self.session
        ids = appending.unknown_call_ids(before, rows)
        history = {call_id: self.services.store.find_calls(before.key, call_id) for call_id in ids}
        accepted = appending.accept(before, rows, run_id, history)
        revision, taken = before.revision + 1, accepted.rows
        if enabled(self.services, before):
            taken = marked(before, taken)
        stored = measured(self.services, before, taken, revision, accepted.places)
        self.session = replace(
            accepted.session,
            revision=revision,
            digest=chained(
                before.digest,
                RevisionKind.APPEND,
                _core.digest_rows([r.offset for r in stored], [r.body for r in stored]),
            ),
            pinned_tokens=before.pinned_tokens + sum(r.tokens for r in stored if r.pinned),
            media_tokens=before.media_tokens + media_tokens(r.body for r in taken),
        )
        self.rows += stored
        self._calls += accepted.calls
        self.warnings += accepted.warnings
        if accepted.superseded:
            self._supersede(accepted.superseded)
        self._weigh_request(before, stored)
        if accepted.system_changed:
            record = cadence.system_changed(self.session.cadence)
            self.session = replace(self.session, cadence=record, rewrites=self.session.rewrites + 1)
        return stored[0].offset, stored[-1].offset

    def _weigh_request(self, before: Session, stored: Sequence[StoredRow]) -> None:
        run, old = self.session.open_run, before.open_run
        if run is None or old is None or len(run.request) == len(old.request):
            return
        joined = set(run.request[len(old.request) :])
        tokens = run.request_tokens + sum(r.tokens for r in stored if r.offset in joined)
        self.session = replace(self.session, open_run=replace(run, request_tokens=tokens))

    def _supersede(self, offsets: Sequence[int]) -> None:
        fresh = {r.offset: (r.tokens, r.bytes) for r in self.rows}
        gone = tuple(SupersededRow(offset, *(fresh.get(offset) or self.live.size_of([offset]))) for offset in offsets)
        self.session = replace(self.session, superseded=self.session.superseded + gone)

    def close_run(self, closed: ClosedRun) -> None:
        self.closed.append(closed)

    def prepare(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self.session = replace(self.session, last_prepared=prepared)

    def learn(self, factor: Factor) -> None:
        self._factor = factor

    def factor_of(self, model: ModelRef) -> Factor:
        """The learned factor of a model, with what the answer in this draft taught."""
        if self._factor is not None and self._factor.model == model:
            return within(self._factor, self.services.policy(self.session).policy)
        return self.services.factor_of(self.session, model)

    def know_tools(self, tools: Tools, json: bytes | None = None) -> None:
        """Takes tools that the session does not know; ``json`` where it is to be kept (S3)."""
        self._tools, self._tools_json = tools, json

    def event(self, kind: EventKind, **fields: object) -> Event:
        event = Event(
            kind=kind, time=self._now, revision=self.session.revision,
            boundary=max(0, self.session.cadence.boundaries - 1), **fields,  # type: ignore[arg-type]
        )  # fmt: skip
        self.events.append(event)
        return event

    def warn(self, code: WarningCode, message: str, *, event: bool = False, once: bool = False) -> None:
        """Puts a warning into the answer, and into the log if asked; ``once`` gives it once a session."""
        if once:
            record, due = cadence.warn_once(self.session.cadence, code)
            if not due:
                return
            self.session = replace(self.session, cadence=record)
        self.warnings.append(Warning_(code, message))
        if event:
            self.event(EventKind.WARNING, warning=code, message=message)

    def size(self) -> tuple[int, int]:
        """(raw tokens, bytes) of the transcript as it will be; superseded rows count nothing."""
        tokens = self.live.ledger.total_tokens() + sum(r.tokens for r in self.rows)
        size = self.live.ledger.total_bytes() + sum(r.bytes for r in self.rows)
        gone = self.session.superseded
        return tokens - sum(r.tokens for r in gone), size - sum(r.bytes for r in gone)

    def size_of(self, offsets: Sequence[int]) -> tuple[int, int]:
        """(raw tokens, bytes) of some rows of the transcript as it will be."""
        fresh = {r.offset: r for r in self.rows}
        tokens, size = self.live.size_of(o for o in offsets if o not in fresh)
        mine = [fresh[o] for o in offsets if o in fresh]
        return tokens + sum(r.tokens for r in mine), size + sum(r.bytes for r in mine)

    def commit(self, request: StoredRequest | None = None) -> tuple[Event, ...]:
        """Writes everything, then takes it into memory; returns the events with their numbers.

        Raises:
            FoldlineError: REVISION_MISMATCH where another server wrote in between.
        """
        self.session = replace(self.session, update_time=self._now)
        batch = Batch(
            expected_revision=self.live.session.revision,
            session=self.session,
            rows=tuple(self.rows),
            calls=tuple(self._calls),
            events=tuple(self.events),
            closed_runs=tuple(self.closed),
            prepared=self._prepared,
            request=request,
            tools=self._tools,
            tools_json=self._tools_json,
            factor=self._factor,
            settle=self.settle,
            stage=self.stage,
            visible=self.visible,
            checkpoint=self.checkpoint,
            ledger_stands=self.session.call_ledger is self.live.session.call_ledger,
        )
        events = commit(self.services, self.live, batch)
        if self._factor is not None:
            self.services.learned(self.session.tenant, self._factor)
        self.live.session = self.session
        self.live.appended(self.rows)
        return events

    def conclude(self) -> None:
        """Commits how a fold has ended, or what it has cost, where nothing else changes (S5, C5, §13).

        What the store refuses then, a full disk say, is owed: it holds in memory at once, so that the same source is
        not paid for again, and the session's next commit writes it along.
        """
        try:
            self.commit()
        except FoldlineError as error:
            self.live.session = self.session
            self.live.owed = (*(self.live.owed or ()), *self.events)
            # Nothing slow, as a traceback is, under the session's lock.
            log.warning(
                "the end of a fold is yet to be written", session_id=self.session.session_id, reason=error.reason,
                cause=error.metadata.get("cause"),
            )  # fmt: skip


def commit(services: Services, live: LiveSession, batch: Batch) -> tuple[Event, ...]:
    """Commits a batch, and what the session owes; a session that another server changed is dropped from memory.

    Raises:
        FoldlineError: REVISION_MISMATCH with both numbers (W3).
    """
    if live.owed:
        batch = replace(batch, events=(*live.owed, *batch.events))
    try:
        events = services.store.commit(batch)
    except RevisionConflict as conflict:
        live.stale = True
        live.stale_reason = mismatch(conflict.expected, conflict.actual)
        raise live.stale_reason from conflict
    live.owed = None
    if events:
        services.bell.ring(live.session.key)
    return events


def mismatch(expected: int, actual: int) -> FoldlineError:
    return FoldlineError(
        Reason.REVISION_MISMATCH, f"expected revision {expected}, the session is at {actual}",
        expected=expected, actual=actual,
    )  # fmt: skip


def chained(parent: str, kind: RevisionKind, *payload: bytes) -> str:
    """Head of the digest chain after a revision: hex of SHA-256, see ``_core.chain``."""
    return _core.chain(bytes.fromhex(parent) or bytes(32), REVISION_KINDS[kind], list(payload)).hex()
