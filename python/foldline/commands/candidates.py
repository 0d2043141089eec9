"""A written summary as a candidate: its row, the list it would leave, and what its checks and its record say (§7)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from foldline.commands.draft import measured
from foldline.commands.fold_parts import Attempt, FoldRequest, Written
from foldline.commands.services import Services
from foldline.commands.snapshots import facts_of_stored
from foldline.commands.summarizing import account
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, WarningCode
from foldline.domain.events import Warning_
from foldline.domain.folding import CompactionRecord, FoldPlan, OffsetRange, RowFacts, Snapshot, to_ranges
from foldline.domain.memory import MemoryEntry
from foldline.domain.rows import CompactionSummaryRow, Row, RowBody
from foldline.domain.session import Session
from foldline.engine import cadence, ledger
from foldline.engine.checks import Candidate
from foldline.engine.coverage import held

_WHY_CHARS = 512


class Proposal:
    """What a plan and its summary would make of a list; nothing is written.

    Attributes:
        before: the list it would be committed to; ``after`` the one it would leave.
        digest: hex, of what the discarded rows hold (V7).
        row, facts: the summary row, at ``offset``.
    """

    def __init__(
        self, services: Services, session: Session, request: FoldRequest, attempt: Attempt, written: Written, *,
        plan: FoldPlan, before: Snapshot, digest: str, offset: int,
    ) -> None:  # fmt: skip
        self.services, self.session, self.request, self.attempt = services, session, request, attempt
        self.plan, self.before, self.digest, self.offset = plan, before, digest, offset
        self.summary, self.failed = written.summary, written.failed
        self.revision = session.revision + 1
        self.ledger = ledger.render(plan.ledger, request.policy.summary.ledger_tokens, self._count)
        self.body: RowBody = CompactionSummaryRow(
            text=self.summary.text, fold_id=attempt.fold.fold_id, source=self.summary.source, digest=digest,
            of_run=plan.covers_run, durable=self.summary.durable, ledger=self.ledger,
        )  # fmt: skip
        if self.summary.item is not None:
            self.body = replace(self.summary.item, fold_id=attempt.fold.fold_id)
        self.row = measured(services, session, [Row(offset, self.body)], self.revision, {})[0]
        self.facts = facts_of_stored(self.row, Row(offset, self.body), session, True)
        self.after = self._after()

    def _count(self, text: str) -> int:
        return self.services.count(text, self.session.model)

    def _after(self) -> tuple[RowFacts, ...]:
        """The retained rows with the summary at its place (V3)."""
        known = {f.offset: f for f in self.before.rows}
        after: list[RowFacts] = []
        for offset in self.plan.retain:
            if offset == self.plan.insert_before:
                after.append(self.facts)
            after.append(known[offset])
        return tuple(after) if self.plan.insert_before is not None else (*after, self.facts)

    @property
    def summary_tokens(self) -> int:
        """Estimate of the summary row, after the factor (C4)."""
        return int(self.row.tokens * self.before.factor)

    def candidate(self) -> Candidate:
        summary = self.summary
        return Candidate(
            plan=self.plan, summary=self.facts, text=summary.text, source=summary.source,
            # By the vocabulary that it was written by, also where the session moved to another model since.
            prose_tokens=self.services.count(summary.text, self.attempt.session.model) - summary.appendix_tokens,
            appendix_tokens=summary.appendix_tokens, ledger_tokens=self._count(self.ledger) if self.ledger else 0,
            discarded=to_ranges(self.plan.discard), digest=self.digest,
        )  # fmt: skip

    def published(self, entries: Sequence[MemoryEntry]) -> tuple[MemoryEntry, ...]:
        """What the fold publishes: nothing once the scope is dropped, also while it was under way (M7)."""
        if self.session.memory_dropped:
            return ()
        gone = set(self.plan.discard)
        return tuple(e for e in entries if e.offset in gone)

    def record(
        self, *, boundary: int, retained: tuple[OffsetRange, ...], entries: Sequence[MemoryEntry]
    ) -> CompactionRecord:
        """The record of the fold; before and after are estimated by one method.

        Args:
            entries: those that it publishes.
        """
        before, after = (
            sum(f.tokens for f in facts if not f.superseded) for facts in (self.before.rows, self.after)
        )  # fmt: skip
        summary, plan, attempt, factor = self.summary, self.plan, self.attempt, self.before.factor
        return CompactionRecord(
            fold_id=attempt.fold.fold_id,
            trigger=attempt.trigger,
            scope=plan.scope,
            signals=self.request.decision.signals,
            revision_before=self.session.revision,
            revision_after=self.revision,
            discarded=to_ranges(plan.discard),
            retained=retained,
            summary_offset=self.offset,
            rows_summarized=len(plan.source_rows) + len(plan.restated),
            tokens_before=int(before * factor),
            tokens_after=int(after * factor),
            bytes_before=sum(f.bytes for f in self.before.rows),
            bytes_after=sum(f.bytes for f in self.after),
            summary_source=summary.source,
            bound=summary.bound,
            coverage=replace(summary.coverage, memory=held(summary.named, entries) if entries else None),
            digest=self.digest,
            summary_text=summary.text,
            duration=time.monotonic() - attempt.started,
            boundary=boundary,
            model=summary.model,
            usage=summary.usage,
            memory_entries=len(entries),
            memory_dropped=self.session.memory_dropped,
            results_indexed=self.request.policy.memory.index_tool_results,
            time=self.services.clock(),
        )

    def paid(self, session: Session, *, folded: bool) -> Session:
        """The session with what the sources used (S5); one that failed cools, though its successor wrote (S2)."""
        now = self.services.clock()
        session = account(self.services, session, self.attempt.fold.spent, now=now, folded=folded)
        if self.failed is None or not self._cools:
            return session
        record = cadence.attempt_failed(
            session.cadence, now=now, policy=self.request.policy, trigger=self.attempt.trigger,
            retry_after=self.failed.retry_after,
        )  # fmt: skip
        return replace(session, cadence=record)

    @property
    def barred(self) -> bool:
        """Whether a successor wrote, so that the commit leaves the configured source's cooldown as it is (S2)."""
        return self._cools or self.attempt.barred is not None

    @property
    def _cools(self) -> bool:
        """Whether a source failed whose successor wrote: what is not there has not failed (N3)."""
        return self.failed is not None and self.failed.kind is not FailureKind.NATIVE_UNAVAILABLE

    def warnings(self) -> tuple[Warning_, ...]:
        found = []
        if self.failed is not None:
            why = f"{self.failed.kind}: {self.failed.detail}"[:_WHY_CHARS]
            message = f"the configured source failed ({why}); {self.summary.source} wrote the summary"
            found.append(Warning_(WarningCode.SOURCE_FAILED, message))
        if self.session.memory_dropped:
            found.append(Warning_(WarningCode.MEMORY_DROPPED, "the fold published no entries: memory was dropped"))
        elif problem := self.services.memory.problem:
            message = f"what folded is found by words alone until it can be embedded: {problem}"
            found.append(Warning_(WarningCode.MEMORY_PENDING, message))
        return tuple(found)
