"""What a proven fold of a host's list becomes: a staged projection, of which nothing is visible yet (H3, V8)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from foldline import _core
from foldline.commands.candidates import Proposal
from foldline.commands.draft import Draft
from foldline.commands.fold_parts import Attempt, FoldOutcome, FoldRequest, Progress, Written
from foldline.commands.host_owned.views import View
from foldline.commands.live import LiveSession
from foldline.commands.proving import fail, rejected
from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.enums import EventKind, FailureKind, RowKind
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import CheckFailure
from foldline.domain.ports import CallUpdate, StoredRow
from foldline.domain.projections import (
    HostRow,
    Projection,
    ProjectionState,
    Settled,
    StagedFold,
    digest_of_text,
    projection_name,
    summary_text,
)
from foldline.domain.rows import CompactionSummaryRow, RowBody, ToolResultRow, calls_of, encode_body
from foldline.domain.session import Session
from foldline.engine.checks import check
from foldline.engine.hosted import HostList, discarded_messages, row_name, split_messages


def stage(
    services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, view: View, written: Written
) -> FoldOutcome:
    """Proves the rewrite and stages it; a projection that was staged before gives way. Under the session's lock."""
    if attempt.fold.cancelled:
        return fail(services, live, request, attempt, FailureKind.CANCELLED, "nobody wants the fold any more")
    if live.session.revision != attempt.session.revision:
        # V9: the rows that the other one archived would be archived again, and the host's list is another by now.
        detail = "another projection was committed meanwhile"
        return fail(services, live, request, attempt, FailureKind.REBASE_LOST, detail)
    try:
        return _Stage(services, live, request, attempt, view, written).run()
    except FoldlineError as error:
        return fail(services, live, request, attempt, FailureKind.COMMIT_FAILED, error.message, error=error)


class _Stage:
    """One candidate: what it brings to the archive, its summary, the checks, and the batch that stages it."""

    def __init__(
        self, services: Services, live: LiveSession, request: FoldRequest, attempt: Attempt, view: View,
        written: Written,
    ) -> None:  # fmt: skip
        self.services, self.live, self.request, self.attempt = services, live, request, attempt
        self.view, self.plan = view, written.plan
        self.session: Session = live.session
        self.revision = self.session.revision + 1
        self.rows = {r.offset: r for r in view.transcript.rows}
        self.facts = {f.offset: f for f in view.facts}
        self.gone = frozenset(self.plan.discard)
        self.new = self._new_rows()
        self.proposal = Proposal(
            services, self.session, request, attempt, written, plan=self.plan, before=attempt.snapshot,
            digest=self._digest(), offset=view.next_offset,
        )  # fmt: skip
        self.entries = self.proposal.published(written.entries)

    def _new_rows(self) -> list[StoredRow]:
        made = []
        for offset in self.plan.discard:
            if offset in self.view.archived:
                continue
            row, fact = self.rows[offset], self.facts[offset]
            made.append(
                StoredRow(
                    offset=offset, kind=fact.kind, run_id=row.run_id, pinned=row.pinned, tokens=fact.tokens,
                    bytes=fact.bytes, revision=self.revision, body=encode_body(self._archived(row.body)),
                )
            )  # fmt: skip
        return made

    def _archived(self, body: RowBody) -> RowBody:
        """A body as the archive keeps it: a result names its call there, or none while the call is not there."""
        if isinstance(body, ToolResultRow) and not self._is_archived(body.call_offset):
            return msgspec.structs.replace(body, call_offset=None)
        return body

    def _is_archived(self, offset: int | None) -> bool:
        """Whether the archive holds a row once this fold is committed."""
        return offset in self.gone or (offset is not None and offset not in self.rows) or offset in self.view.archived

    def _digest(self) -> str:
        """V7: over the rows as the archive holds them."""
        known = [o for o in self.plan.discard if o in self.view.archived]
        bodies = {r.offset: r.body for r in self.services.store.read_rows(self.session.key, known)}
        bodies |= {r.offset: r.body for r in self.new}
        return _core.digest_rows(list(self.plan.discard), [bodies[o] for o in self.plan.discard]).hex()

    def run(self) -> FoldOutcome:
        failures = self._check()
        if failures:
            return rejected(self.services, self.live, self.request, self.attempt, failures)
        self.request.progress(Progress("proven", self.attempt.fold.fold_id, len(self.plan.discard)))
        fold = self._staged()
        draft = Draft(self.services, self.live)
        replace_staged(self.services, draft)
        session = self.proposal.paid(draft.session, folded=False)
        draft.session = replace(
            session, next_offset=self.proposal.offset + 1, staged=projection_name(fold.record.fold_id)
        )
        draft.stage = (self._projection(fold), fold)
        draft.commit()
        self.attempt.fold.spent.clear()
        return FoldOutcome(fold.record, warnings=self.proposal.warnings())

    def _check(self) -> tuple[CheckFailure, ...]:
        request, proposal = self.request, self.proposal
        found = check(
            proposal.before, proposal.after, proposal.candidate(), request.policy, request.limits,
            tools_tokens=request.tools_tokens, forced=request.decision.forced,
        )  # fmt: skip
        split = split_messages(self.plan, self.view.transcript.bound)
        # A compactor may ask for what no host can do: to keep a part of one of its messages.
        return (*found, *(CheckFailure("V4", f"rows {g} are one message, only a part of it stays") for g in split))

    def _staged(self) -> StagedFold:
        plan, view = self.plan, self.view
        discarded = sorted(discarded_messages(view.sent, view.transcript.rows, plan.discard))
        return StagedFold(
            record=self.proposal.record(boundary=self.attempt.boundary, retained=(), entries=self.entries),
            rows=(*self.new, self.proposal.row),
            entries=self.entries,
            calls=self._calls(),
            host_rows=tuple(
                HostRow(*key, row.offset)
                for key, row in zip(view.transcript.keys, view.transcript.rows, strict=True)
                if row.offset in self.gone and row.offset not in view.archived and key[0]
            ),
            discarded=tuple(view.sent.row_ids[i] for i in discarded),
            before=self._id_before(),
            list_rows=len(view.names),
            list_digest=view.pinned_digest(len(view.names)),
            threshold=self.request.limits.threshold,
            summary_tokens=self.proposal.summary_tokens,
            barred=self.proposal.barred,
            run_start=view.sent.open_run_start,
            run_id=view.transcript.open_run.run_id if view.transcript.open_run else "",
        )

    def _id_before(self) -> str:
        """Id of the first kept row that the summary stands before; rows of no message have none."""
        kept = [
            (row.offset, key[0])
            for key, row in zip(self.view.transcript.keys, self.view.transcript.rows, strict=True)
            if row.offset not in self.gone
        ]
        at = next((i for i, (offset, _) in enumerate(kept) if offset == self.plan.insert_before), len(kept))
        return next((row_id for _, row_id in kept[at:] if row_id), "")

    def _calls(self) -> tuple[CallUpdate, ...]:
        """R3: calls that enter the archive, and results of archived calls that do."""
        found: dict[tuple[int, str], CallUpdate] = {}
        for offset in self.plan.discard:
            for call in calls_of(self.rows[offset].body):
                found[offset, call.call_id] = CallUpdate(offset, call.call_id)
        for offset in self.plan.discard:
            body = self.rows[offset].body
            if isinstance(body, ToolResultRow) and not body.interim and self._is_archived(body.call_offset):
                assert body.call_offset is not None
                found[body.call_offset, body.call_id] = CallUpdate(body.call_offset, body.call_id, offset)
        return tuple(found.values())

    def _projection(self, fold: StagedFold) -> Projection:
        fold_id, body = fold.record.fold_id, self.proposal.body
        assert isinstance(body, CompactionSummaryRow)
        return Projection(
            projection_name(fold_id), fold_id, ProjectionState.STAGED,
            self.services.clock() + self.request.policy.memory.projection_ttl, self.proposal.digest,
            digest_of_text(summary_text(body)), self.proposal.offset, len(fold.entries),
        )  # fmt: skip


def settle_expired(services: Services, draft: Draft) -> bool:
    """Removes the staged projection if its time is over (H3); whether it was."""
    staged = draft.session.staged
    found = services.store.find_projection(draft.session.key, staged) if staged else None
    if found is None or found.expire > services.clock():
        return False
    settle(services, draft, ProjectionState.EXPIRED, "the projection was not committed in time")
    return True


def replace_staged(services: Services, draft: Draft) -> None:
    """A session has one projection at a time: of one list only one fold can be applied."""
    if draft.session.staged:
        settle(services, draft, ProjectionState.REPLACED, "another fold was staged in its place")


def settle(services: Services, draft: Draft, state: ProjectionState, message: str) -> None:
    """Ends the staged projection without a commit, and its fold in the log (§13).

    No cooldown starts: nothing is known against the source (C5).
    """
    staged = services.store.staged_projection(draft.session.key)
    draft.session = replace(draft.session, staged="")
    if staged is None:
        return
    projection, record = staged[0], staged[1].record
    draft.settle = Settled(projection.projection_id, state)
    draft.event(
        EventKind.COMPACTION_FAILED, fold_id=projection.fold_id, trigger=record.trigger, signals=record.signals,
        failure=FailureKind.CANCELLED, source=record.summary_source, run_id=staged[1].run_id, message=message,
    )  # fmt: skip


def discarded_positions(sent: HostList, discarded: Sequence[str]) -> frozenset[int]:
    """Positions of the rows of the messages that fold."""
    gone = set(discarded)
    messages = {i for i, row_id in enumerate(sent.row_ids) if row_id in gone}
    return frozenset(i for i, row in enumerate(sent.rows) if row.first in messages)


def summary_name(body: bytes) -> bytes:
    """What stands for a summary in the digest of a list."""
    return row_name(("", 0), RowKind.COMPACTION_SUMMARY, hashlib.sha256(body).digest())
