"""What proves a rewrite before anything is written (V1-V7, V9).

Every check reads the two lists and the open run for itself: it shares no derivation with planning, so that a wrong
plan is caught here. ``engine.summary_text`` holds the text rules of V6.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foldline.domain.enums import RowKind, SummarySource
from foldline.domain.folding import (
    CheckFailure,
    FoldPlan,
    FoldScope,
    OffsetRange,
    RowFacts,
    Snapshot,
)
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.engine.links import inside_units, links, waits
from foldline.engine.summary_text import text_faults

_SUMMARIES = (RowKind.COMPACTION_SUMMARY, RowKind.PROVIDER_COMPACTION)
LEAST_BUDGET = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fold whose summary is written.

    Attributes:
        plan: as rebased on the list it is to be committed to.
        summary: facts of the new row, with its raw tokens.
        text: the summary as written, appendix included, ledger apart.
        complete: the source said that it finished; a length-stopped summary is not (S5).
        prose_tokens: raw tokens of ``text`` without its appendix; ``appendix_tokens`` and ``ledger_tokens`` have
            budgets of their own.
        discarded, digest: what the record says of the discarded rows (V7).
    """

    plan: FoldPlan
    summary: RowFacts
    text: str
    source: SummarySource
    complete: bool = True
    prose_tokens: int = 0
    appendix_tokens: int = 0
    ledger_tokens: int = 0
    discarded: tuple[OffsetRange, ...] = ()
    digest: str = ""


def check(
    before: Snapshot,
    after: Sequence[RowFacts],
    candidate: Candidate,
    policy: Policy,
    limits: Limits,
    *,
    tools_tokens: int = 0,
    forced: bool = False,
    planned: tuple[Snapshot, FoldPlan] | None = None,
) -> tuple[CheckFailure, ...]:
    """Every failed check of a candidate; empty where it may be committed.

    Args:
        before: the list it would be committed to; ``after`` is the list it would leave, in list order.
        tools_tokens: estimate of the tools, after the factor.
        forced: a P6 fold, which in a continued run takes the newest round too (4.4).
        planned: snapshot and plan that the summary was written by, where ``before`` is a later list (V9).
    """
    checks = _Checks(before, after, candidate, policy, limits, tools_tokens, forced, planned)
    return tuple(CheckFailure(rule, detail) for rule, detail in checks.run())


def over_budget(
    before: Snapshot, candidate: Candidate, policy: Policy, limits: Limits, *, tools_tokens: int,
    planned: tuple[Snapshot, FoldPlan],
) -> bool:  # fmt: skip
    """Whether a summary fails V6 by the length of its parts alone; arguments as of ``check``."""
    return any(_Checks(before, (), candidate, policy, limits, tools_tokens, False, planned).over_budget())


class _Checks:
    def __init__(
        self,
        before: Snapshot,
        after: Sequence[RowFacts],
        candidate: Candidate,
        policy: Policy,
        limits: Limits,
        tools_tokens: int,
        forced: bool,
        planned: tuple[Snapshot, FoldPlan] | None,
    ) -> None:
        self.before, self.after, self.candidate = before, tuple(after), candidate
        self.policy, self.limits, self.tools_tokens, self.forced = policy, limits, tools_tokens, forced
        self.planned = planned
        self.plan = candidate.plan
        self.old = {r.offset: r for r in before.rows}
        self.kept = {r.offset for r in self.after if r.offset in self.old}
        self.gone = [r for r in before.rows if r.offset not in self.kept]
        self.links = links(before.rows)
        self.ahead: dict[int, list[int]] = {}
        for a, b in self.links:
            self.ahead.setdefault(b, []).append(a)

    def run(self) -> Iterator[tuple[str, str]]:
        for rule, found in (
            ("V1", self.accounts_for_all()),
            ("V2", self.keeps_rows_as_they_were()),
            ("V3", self.adds_one_summary_in_its_place()),
            ("V4", self.splits_nothing()),
            ("V5", self.keeps_what_must_stay()),
            ("V6", self.summary_holds()),
            ("V7", self.record_names_the_discarded()),
            ("V9", self.follows_the_snapshot()),
        ):
            for detail in found:
                yield rule, detail

    def accounts_for_all(self) -> Iterator[str]:
        """V1."""
        discard, retain = set(self.plan.discard), set(self.plan.retain)
        if len(discard) != len(self.plan.discard) or len(retain) != len(self.plan.retain):
            yield "an offset stands twice in the plan"
        for row in self.before.rows:
            if (row.offset in discard) == (row.offset in retain):
                yield f"row {row.offset} is {'both' if row.offset in discard else 'neither'} retained and discarded"
        for offset in sorted((discard | retain) - self.old.keys()):
            yield f"row {offset} is not active"
        for row in self.gone:
            if row.offset not in discard and row.offset in retain:
                yield f"retained row {row.offset} is missing"
        for offset in sorted(discard & self.kept):
            yield f"discarded row {offset} is still there"
        gone = [r for r in self.before.rows if r.offset in discard]
        items = any(r.kind == RowKind.PROVIDER_COMPACTION for r in gone) and bool(self.plan.restated)
        if not items and all(r.kind == RowKind.SYSTEM or r.kind in _SUMMARIES for r in gone):
            yield "no discarded row is other than system and summary"

    def keeps_rows_as_they_were(self) -> Iterator[str]:
        """V2, and with it F10: media of a kept row are part of its bytes."""
        for row in self.after:
            was = self.old.get(row.offset)
            if was is not None and (was.digest, was.kind, was.bytes) != (row.digest, row.kind, row.bytes):
                yield f"row {row.offset} is not what it was"
        order = [r.offset for r in self.after if r.offset in self.old]
        if len(set(order)) != len(order):
            yield "a retained row stands twice"
        elif order != [r.offset for r in self.before.rows if r.offset in self.kept]:
            yield "retained rows are not in order"

    def adds_one_summary_in_its_place(self) -> Iterator[str]:
        """V3."""
        new = [(i, r) for i, r in enumerate(self.after) if r.offset not in self.old]
        if len(new) != 1:
            yield f"{len(new)} new rows, one is due"
            return
        index, row = new[0]
        if row.kind not in _SUMMARIES or row.offset != self.candidate.summary.offset:
            yield f"the new row {row.offset} is no summary of this fold"
        native = self.candidate.source == SummarySource.NATIVE
        if row.kind in _SUMMARIES and (row.kind == RowKind.PROVIDER_COMPACTION) != native:
            yield f"a {row.kind.name.lower()} from source {self.candidate.source}"
        if self.plan.scope in (FoldScope.WHOLE, FoldScope.STAGE_1):
            yield from self._head_place(index)
        else:
            yield from self._run_place(index)

    def _head_place(self, index: int) -> Iterator[str]:
        kept = [r.offset for r in self.after if r.offset in self.old]
        wanted = 0
        for row in self.before.rows:
            if row.offset in self.kept:
                wanted += 1
            elif row.kind != RowKind.SYSTEM:
                break
        place = {offset: i for i, offset in enumerate(kept)}
        inside = inside_units(kept, place, self.links)
        while wanted in inside:
            wanted -= 1
        if index != wanted:
            yield f"the summary stands at {index}, its place is {wanted}"

    def _run_place(self, index: int) -> Iterator[str]:
        run = self.before.open_run
        covers = self.plan.covers_run
        if run is None or not covers or covers not in (run.run_id, run.continues):
            # Its run was closed meanwhile: the summary stands where its plan put it (A5).
            following = self.after[index + 1].offset if index + 1 < len(self.after) else None
            if following != self.plan.insert_before:
                yield f"the summary stands before {following}, not before {self.plan.insert_before}"
            return
        wanted = _last_request_row(self.before)
        if wanted is None:
            # Its request has folded: the run's work begins with the first row that came once it was open.
            begun = _run_position(self.before)
            first = next((r.offset for r in self.before.rows[begun:] if r.offset in self.kept), None)
            following = self.after[index + 1].offset if index + 1 < len(self.after) else None
            if following != first:
                yield f"the summary stands before {following}, the run's rows begin at {first}"
            return
        if index == 0 or self.after[index - 1].offset != wanted:
            yield f"the summary does not stand directly after row {wanted}, where the run's request ends"

    def splits_nothing(self) -> Iterator[str]:
        """V4."""
        for a, b in self.links:
            if (a in self.kept) != (b in self.kept):
                yield f"rows {a} and {b} belong together, only {a if a in self.kept else b} stays"

    def keeps_what_must_stay(self) -> Iterator[str]:
        """V5."""
        neighbours: dict[int, list[int]] = {}
        for a, b in self.links:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        reason = dict(self._reasons())
        todo = deque(reason)
        while todo:
            offset = todo.popleft()
            for other in neighbours.get(offset, ()):
                if other not in reason:
                    reason[other] = f"belongs to row {offset}"
                    todo.append(other)
        for row in self.gone:
            # A unit split is V4's to report: here only rows that are themselves named count, or all of their unit.
            if row.offset in reason and not self._split(row.offset, neighbours):
                yield f"row {row.offset} must stay: {reason[row.offset]}"

    def _split(self, offset: int, neighbours: dict[int, list[int]]) -> bool:
        return any(n in self.kept for n in neighbours.get(offset, ()))

    def _reasons(self) -> Iterator[tuple[int, str]]:
        rows, run = self.before.rows, self.before.open_run
        imported = max((r.offset for r in rows if r.kind == RowKind.ASSISTANT and not r.run_id), default=0)
        for row in rows:
            if row.kind == RowKind.SYSTEM and not row.superseded:
                yield row.offset, "current system row"
            if row.pinned:
                yield row.offset, "pinned"
            carried = row.offset <= self.before.carried_through or (not row.run_id and row.offset < imported)
            if row.kind == RowKind.TOOL_RESULT and not carried:
                yield row.offset, "result not yet carried"
        for row in reversed(rows):
            if row.kind == RowKind.SYSTEM:
                continue
            if row.run_id or row.offset <= self.before.prepared_through or not waits(row):
                break
            yield row.offset, "appended by no run since the last request"
        if run is None:
            return
        asked = set(run.request)
        yield from ((r.offset, "request of the open run") for r in rows if r.offset in asked)
        last = _last_request_row(self.before)
        begun, newest = False, list[int]()
        start = _run_position(self.before) if last is None else None
        for position, row in enumerate(rows):
            begun = begun or position == start
            if begun:
                if row.kind == RowKind.USER:
                    yield row.offset, "user row of the open run"
                newest = self._newest_round(row, newest)
            begun = begun or row.offset == last
        if not self.forced:
            yield from ((offset, "newest round") for offset in newest)

    def _newest_round(self, row: RowFacts, newest: list[int]) -> list[int]:
        """Rows behind the last assistant row that continues no other, itself included; system rows apart."""
        ahead = self.ahead.get(row.offset, ())
        continued = any(self.old[a].kind == RowKind.ASSISTANT for a in ahead)
        if row.kind == RowKind.ASSISTANT and not continued:
            return [row.offset]
        older = any(a not in newest for a in ahead)
        if not newest or row.kind == RowKind.SYSTEM or row.kind in _SUMMARIES or older:
            return newest
        return [*newest, row.offset]

    def summary_holds(self) -> Iterator[str]:
        """V6."""
        candidate = self.candidate
        if candidate.source != SummarySource.NATIVE:
            if not candidate.complete:
                yield "the source did not finish"
            yield from text_faults(candidate.text, candidate.source)
            yield from self.over_budget()
        # As the record says it: a token that the factor takes away again is no saving. A native item that is all that
        # is discarded counts as the rows it stands for: the next model cannot read it (N4).
        items = sum(r.tokens for r in self.gone) if self.plan.restated else 0
        more = (max(0, self.plan.restated_tokens - items), 0)
        was, left = (
            int((sum(r.tokens for r in rows if not r.superseded) + extra) * self.before.factor)
            for rows, extra in zip((self.before.rows, self.after), more, strict=True)
        )
        if left >= was:
            yield f"not smaller: {was} tokens before, {left} after"

    def over_budget(self) -> Iterator[str]:
        candidate, summary, budget = self.candidate, self.policy.summary, self._budget()
        if candidate.prose_tokens > budget:
            yield f"{candidate.prose_tokens} tokens of prose, the budget is {budget}"
        if candidate.appendix_tokens > summary.appendix_tokens:
            yield f"{candidate.appendix_tokens} tokens of appendix, allowed are {summary.appendix_tokens}"
        if candidate.ledger_tokens > summary.ledger_tokens:
            yield f"{candidate.ledger_tokens} tokens of ledger, allowed are {summary.ledger_tokens}"

    def _budget(self) -> int:
        """Raw tokens: min of ``max_tokens``, T/4 and the room that the rows the plan kept leave under T and W."""
        limits, factor = self.limits, self.before.factor
        if self.planned is None:
            base = [r for r in self.after if r.offset in self.old]
        else:
            # Rows appended since took no room when the summary was asked for.
            first = set(self.planned[1].discard)
            base = [r for r in self.planned[0].rows if r.offset not in first]
        rows = math.ceil(sum(r.tokens for r in base if not r.superseded) * factor)
        room = min(limits.threshold, limits.ceiling - limits.reserve) - rows - self.tools_tokens
        written = self.policy.summary.max_tokens
        if self.candidate.source == SummarySource.MECHANICAL:
            written = self.policy.summary.mechanical_tokens
        return max(LEAST_BUDGET, min(written, int(limits.threshold / 4 / factor), int(room / factor)))

    def record_names_the_discarded(self) -> Iterator[str]:
        """V7."""
        named = [o for first, last in self.candidate.discarded for o in range(first, last + 1)]
        if named != list(self.plan.discard):
            yield "the record's ranges are not the discarded offsets"
        if not self.candidate.digest:
            yield "the record holds no digest of what they held"

    def follows_the_snapshot(self) -> Iterator[str]:
        """V9."""
        if self.planned is not None and not appends_only(self.planned[0], self.before):
            yield f"revision {self.before.revision} differs from {self.planned[0].revision} by more than appends"


def appends_only(then: Snapshot, now: Snapshot) -> bool:
    """Whether ``now`` is ``then`` with rows appended (V9); keyed system rows may stand at their inherited place."""
    highest = max((r.offset for r in then.rows), default=0)
    old = [r for r in now.rows if r.offset <= highest]
    if [(r.offset, r.digest) for r in old] != [(r.offset, r.digest) for r in then.rows]:
        return False
    keys = {r.system_key for r in then.rows if r.system_key}
    seen_new = False
    for row in now.rows:
        if row.offset > highest:
            seen_new = seen_new or not (row.kind == RowKind.SYSTEM and row.system_key in keys)
        elif seen_new:
            return False
    return True


def _run_position(snapshot: Snapshot) -> int:
    """Where the rows of an open run begin whose request is not in the list any more."""
    assert snapshot.open_run is not None
    opened = snapshot.open_run.opened_offset
    # What a trim left of a row is as old as the row (K2).
    return next((p for p, r in enumerate(snapshot.rows) if (r.derived_from or r.offset) >= opened), len(snapshot.rows))


def _last_request_row(snapshot: Snapshot) -> int | None:
    """The last row of the request as it stood when the run's first assistant row, or a summary of it, came."""
    run = snapshot.open_run
    assert run is not None
    asked, last = set(run.request), None
    for row in snapshot.rows:
        if row.offset in asked:
            last = row.offset
        elif last is not None and (row.kind == RowKind.ASSISTANT or row.kind in _SUMMARIES):
            break
    return last
