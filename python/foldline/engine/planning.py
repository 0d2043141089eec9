"""What folds, what stays, and where the summary goes (F1-F11), before any source is called.

Choices where §6 is silent:

- A turn uses ``retention.turns`` when it holds a user, assistant or result row; those rows use
  ``retention.messages``.
- F2 first shortens the tail to fewer turns, of which the longer of them and ``retention.messages`` stays; below
  that it goes only until the request fits.
- Without an open run the prompt that the list ends on stays if no run answered it: the next may continue it.
- A summary of the open run's rounds is one of its rounds: stage 1 leaves it in place.
- The budget leaves room for ledger and appendix, and is at most half of what folds: more would save little.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from foldline.domain.enums import RowKind
from foldline.domain.folding import FoldPlan, FoldScope, RowFacts, Snapshot
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.domain.session import LedgerCall
from foldline.engine.appending import joins_request
from foldline.engine.ledger import merge
from foldline.engine.placement import insert_before
from foldline.engine.structure import Region, Structure, Unit, must_stay
from foldline.engine.units import SUMMARY_KINDS, UNSUMMARIZED_KINDS

MIN_BUDGET = 256
SUMMARY_BYTES_A_TOKEN = 4
_BUDGETED = frozenset({RowKind.USER, RowKind.ASSISTANT, RowKind.TOOL_RESULT})
"""Kinds that use the tail's budget (F1)."""


def half_of_budget(budget: int) -> int:
    """The usual summary size while no summary was written yet (C4)."""
    return budget // 2


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan is made by.

    Attributes:
        tools_tokens: estimate of tools and other overhead, after the factor; ``tools_bytes`` of them.
        forced: a P6 fold: no tail is kept, and in a continued run not even the newest round (4.4).
        in_run: the check is an in-run check (F3).
        usual_summary: usual summary size for a budget, both in estimated tokens (C4).
        external_source: a curator or compactor writes stage 1, so that stage 2 is a fold of its own (F3, F5).
        rounds_only: the second of the two folds of one check, which takes what stage 2 takes (F3).
    """

    policy: Policy
    limits: Limits
    tools_tokens: int = 0
    tools_bytes: int = 0
    forced: bool = False
    in_run: bool = False
    usual_summary: Callable[[int], int] = field(default=half_of_budget)
    external_source: bool = False
    rounds_only: bool = False


def plan(
    snapshot: Snapshot,
    structure: Structure,
    inputs: PlanInputs,
    calls: Mapping[int, tuple[LedgerCall, ...]],
) -> FoldPlan | None:
    """Decides a fold; None where nothing can fold (F4, NOTHING_TO_FOLD).

    Args:
        calls: ledger calls by the offset of their assistant row.
    """
    return _Planner(snapshot, structure, inputs, calls).plan()


def handed(snapshot: Snapshot, structure: Structure, inputs: PlanInputs) -> tuple[Unit, ...]:
    """The units before the run that may fold: what a curator or compactor is handed (F5, F12)."""
    return tuple(_Planner(snapshot, structure, inputs, {}).before)


def plan_keeping(snapshot: Snapshot, structure: Structure, inputs: PlanInputs, keep: Collection[int]) -> FoldPlan:
    """The plan of a compactor that keeps these offsets of what it was handed (F12); earlier summaries always fold (F8).

    Raises:
        ValueError: an offset that was not handed, half a unit (V4), or nothing left to fold (V1).
    """
    planner = _Planner(snapshot, structure, inputs, {})
    may = {o for u in planner.before for o in u.offsets if planner.rows[o].kind not in UNSUMMARIZED_KINDS}
    kept = set(keep)
    if not kept <= may:
        raise ValueError(f"rows {sorted(kept - may)} were not handed over")
    split = next((u.offsets for u in planner.before if 0 < len(kept.intersection(u.offsets)) < len(u.offsets)), None)
    if split is not None:
        raise ValueError(f"V4: rows {list(split)} are one unit and stay or fold together")
    scope = FoldScope.STAGE_1 if structure.rounds or inputs.in_run else FoldScope.WHOLE
    made = planner.build(scope, [u for u in planner.before if kept.isdisjoint(u.offsets)])
    if made is None:
        raise ValueError("V1: nothing is left to fold")
    return made


def plan_restating(
    snapshot: Snapshot, structure: Structure, inputs: PlanInputs, items: Collection[int], restated: Sequence[int],
    restated_tokens: int,
) -> FoldPlan:  # fmt: skip
    """N4: native items, and nothing else, give way to a summary of the archived rows that they stand for.

    Args:
        restated: offsets of those rows, of ``restated_tokens`` raw tokens.
    """
    return _Planner(snapshot, structure, inputs, {}).restating(frozenset(items), tuple(restated), restated_tokens)


@dataclass(frozen=True, slots=True)
class _Size:
    """Estimates of the request that a fold would leave, its summary and the tools included."""

    budget: int
    usual: int
    saving: int
    transcript: int
    retained: int
    request_tokens: int
    request_bytes: int


def would_fit(plan: FoldPlan, inputs: PlanInputs, *, summary_tokens: int, transcript_bytes: int) -> bool:
    """Whether the request fits (§1) once a plan is committed with its summary (A2, F3).

    Args:
        summary_tokens: estimate of the summary row, after the factor.
        transcript_bytes: body bytes of the transcript before the fold.
    """
    tokens = plan.retained_tokens + summary_tokens + inputs.tools_tokens
    size = transcript_bytes - plan.discarded_bytes + summary_tokens * SUMMARY_BYTES_A_TOKEN + inputs.tools_bytes
    return fits(inputs.limits, tokens, size)


def fits(limits: Limits, tokens: int, size: int) -> bool:
    """§1 fits: transcript + tools < T, with the reserve < W, body bytes under the P5 limit."""
    return (
        tokens < limits.threshold
        and tokens + limits.reserve < limits.ceiling
        and (limits.byte_limit is None or size < limits.byte_limit)
    )


class _Planner:
    def __init__(
        self,
        snapshot: Snapshot,
        structure: Structure,
        inputs: PlanInputs,
        calls: Mapping[int, tuple[LedgerCall, ...]],
    ) -> None:
        self.snapshot, self.structure, self.inputs, self.calls = snapshot, structure, inputs, calls
        rows = snapshot.rows
        self.rows = {r.offset: r for r in rows}
        self.tokens = sum(r.tokens for r in rows if not r.superseded)
        self.bytes = sum(r.bytes for r in rows if not r.superseded)
        stay = must_stay(snapshot, structure, newest_round=not inputs.forced)
        self.stays = stay | _unanswered_prompt(snapshot)
        free = [u for u in structure.units if self.stays.isdisjoint(u.offsets) and u.region is not Region.REQUEST]
        self.superseded = [u for u in free if rows[u.positions[0]].superseded]
        self.before = [u for u in free if u.region is Region.BEFORE and not rows[u.positions[0]].superseded]
        self.run = [u for u in free if u.region is Region.RUN and not rows[u.positions[0]].superseded]

    def plan(self) -> FoldPlan | None:
        before, run = self._substantive(self.before), self._substantive(self.run)
        if self.inputs.rounds_only:
            return self.build(FoldScope.STAGE_2, [*self._through_last_summary(), *self.run]) if run else None
        if not self.inputs.in_run and not self.structure.rounds and not self.run:
            return self.build(FoldScope.WHOLE, self._head(self._tail_start())) if before else None
        if not before:
            return self.build(FoldScope.STAGE_2, [*self.before, *self.run]) if run else None
        return self._staged(can_fold_rounds=run)

    def _staged(self, *, can_fold_rounds: bool) -> FoldPlan | None:
        """F3: stage 1, and stage 2 at the same check where stage 1 does not suffice."""
        no_tail = self._size(self.before)
        shrinks, suffices = no_tail.saving > 0, self._fits(no_tail) and not self.inputs.forced
        if not can_fold_rounds or (shrinks and suffices):
            return self.build(FoldScope.STAGE_1, self._head(self._tail_start()))
        if not self.inputs.external_source:
            return self.build(FoldScope.COMBINED, [*self.before, *self.run])
        if shrinks:
            return self.build(FoldScope.STAGE_1, self.before, follow_up=True)
        return self.build(FoldScope.STAGE_2, [*self._through_last_summary(), *self.run])

    def _through_last_summary(self) -> list[Unit]:
        """An earlier summary always folds, with every foldable row before it (F8)."""
        last = self._last_summary()
        return [u for u in self.before if u.positions[0] <= last]

    def _last_summary(self) -> int:
        rows = self.snapshot.rows
        return max((u.positions[0] for u in self.before if rows[u.positions[0]].kind in SUMMARY_KINDS), default=-1)

    def _substantive(self, units: Iterable[Unit]) -> bool:
        """V1: at least one row that is neither system nor summary."""
        return any(self.snapshot.rows[p].kind not in UNSUMMARIZED_KINDS for u in units for p in u.positions)

    def _head(self, start: int) -> list[Unit]:
        return [u for u in self.before if u.positions[0] < start]

    # The tail (F1, F2)

    def _tail_start(self) -> int:
        """Position at which the kept tail of the rows before the run begins."""
        end = self.structure.run_start
        if self.inputs.forced:
            return end
        floor = self._closed_forward(max(self._oldest_live_end(), self._last_summary() + 1))
        by_rows = max(floor, self._rows_start(end))
        turns = self._turn_starts(end)
        keep = self.inputs.policy.retention.turns
        newest_first = turns[::-1]
        wanted = [newest_first[n - 1] if n <= len(turns) else 0 for n in range(keep, 0, -1)]
        longer = sorted({max(floor, min(start, by_rows)) for start in (*wanted, by_rows)})
        shorter = sorted({s for s in (*turns, end) if s > by_rows})
        size_at = self._sizes()
        for start in longer:
            size = size_at(start)
            if self._fits(size) and self._under_target(size):
                return start
        return next((s for s in (by_rows, *shorter) if self._fits(size_at(s))), end)

    def _turn_starts(self, end: int) -> list[int]:
        """Starts of the turns before the run that use the turn budget."""
        rows = self.snapshot.rows
        return [
            t.start
            for t in self.structure.turns
            if t.start < end and any(rows[p].kind in _BUDGETED for p in range(t.start, min(t.end, end)))
        ]

    def _oldest_live_end(self) -> int:
        """End of the oldest turn before the run with a row that may fold; it always folds (F1)."""
        rows, end = self.snapshot.rows, self.structure.run_start
        live = next(
            (u.positions[0] for u in self.before if any(rows[p].kind not in UNSUMMARIZED_KINDS for p in u.positions)),
            0,
        )
        return next((min(t.end, end) for t in self.structure.turns if t.start <= live < t.end), end)

    def _rows_start(self, end: int) -> int:
        """Start of the shortest tail of ``retention.messages`` rows, widened to whole units."""
        left, start, rows = self.inputs.policy.retention.messages, end, self.snapshot.rows
        while left > 0 and start > 0:
            start -= 1
            left -= rows[start].kind in _BUDGETED
        return self._closed_backward(start) if start < end else end

    def _closed_backward(self, start: int) -> int:
        """The largest position at or before ``start`` that no unit stands across."""
        for unit in reversed(self.structure.units):
            if unit.positions[0] < start <= unit.positions[-1]:
                start = unit.positions[0]
        return start

    def _closed_forward(self, start: int) -> int:
        """The smallest position at or behind ``start`` that no unit stands across."""
        for unit in self.structure.units:
            if unit.positions[0] < start <= unit.positions[-1]:
                start = unit.positions[-1] + 1
        return min(start, self.structure.run_start)

    # Sizes (V6, C4)

    def _sizes(self) -> Callable[[int], _Size]:
        """Size by tail start, in logarithmic time a question."""
        firsts = [u.positions[0] for u in self.before]
        tokens = [0, *accumulate(self._raw(u) for u in self.before)]
        sizes = [0, *accumulate(self._unit_bytes(u) for u in self.before)]

        def at(start: int) -> _Size:
            n = bisect_left(firsts, start)
            return self._size_of(tokens[n], sizes[n], ())

        return at

    def _size(self, units: Sequence[Unit], ledger: Sequence[LedgerCall] = ()) -> _Size:
        return self._size_of(sum(map(self._raw, units)), sum(map(self._unit_bytes, units)), ledger)

    def _raw(self, unit: Unit) -> int:
        return sum(self.rows[o].tokens for o in unit.offsets)

    def _unit_bytes(self, unit: Unit) -> int:
        return sum(self.rows[o].bytes for o in unit.offsets)

    def _size_of(self, raw: int, size: int, ledger: Sequence[LedgerCall], told: int | None = None) -> _Size:
        """Args:
        told: raw tokens of what the summary is written from, where it is not the rows that fold.
        """
        inputs, factor = self.inputs, self.snapshot.factor
        limits, summary = inputs.limits, inputs.policy.summary
        transcript = self._estimate(self.tokens)
        retained = self._estimate(self.tokens - raw)
        extra = min(summary.ledger_tokens, sum(_ledger_tokens(c) for c in ledger))
        room = min(limits.threshold, limits.ceiling - limits.reserve) - 1 - inputs.tools_tokens - retained
        spare = math.floor(room / factor) - extra - summary.appendix_tokens
        quarter = math.floor(limits.threshold / 4 / factor)
        budget = max(MIN_BUDGET, min(summary.max_tokens, quarter, spare, (raw if told is None else told) // 2))
        usual = min(inputs.usual_summary(self._estimate(budget)), self._estimate(budget)) + self._estimate(extra)
        return _Size(
            budget=budget,
            usual=usual,
            saving=transcript - retained - usual,
            transcript=transcript,
            retained=retained,
            request_tokens=retained + usual + inputs.tools_tokens,
            request_bytes=self.bytes - size + usual * SUMMARY_BYTES_A_TOKEN + inputs.tools_bytes,
        )

    def _estimate(self, raw: int) -> int:
        return math.ceil(raw * self.snapshot.factor)

    def _fits(self, size: _Size) -> bool:
        """§1 fits."""
        return fits(self.inputs.limits, size.request_tokens, size.request_bytes)

    def _under_target(self, size: _Size) -> bool:
        limits, fraction = self.inputs.limits, self.inputs.policy.target_fraction
        return size.request_tokens < fraction * limits.threshold and (
            limits.byte_limit is None or size.request_bytes < fraction * limits.byte_limit
        )

    # The plan

    def restating(self, gone: frozenset[int], restated: tuple[int, ...], tokens: int) -> FoldPlan:
        rows = self.snapshot.rows
        folding = [r for r in rows if r.offset in gone]
        size = self._size_of(sum(r.tokens for r in folding), sum(r.bytes for r in folding), (), tokens)
        scope = FoldScope.STAGE_1 if self.structure.rounds or self.inputs.in_run else FoldScope.WHOLE
        return FoldPlan(
            scope=scope,
            discard=tuple(r.offset for r in folding),
            retain=tuple(r.offset for r in rows if r.offset not in gone),
            insert_before=insert_before(self.snapshot, self.structure, gone, scope),
            source_rows=(),
            earlier=tuple(r.offset for r in folding),
            ledger=(),
            covers_run="",
            budget=size.budget,
            discarded_tokens=size.transcript - size.retained,
            retained_tokens=size.retained,
            predicted_saving=size.saving,
            transcript_tokens=size.transcript,
            discarded_bytes=sum(r.bytes for r in folding),
            restated=restated,
            restated_tokens=tokens,
        )

    def build(self, scope: FoldScope, units: Sequence[Unit], *, follow_up: bool = False) -> FoldPlan | None:
        if not self._substantive(units):
            return None
        rows = self.snapshot.rows
        gone = {o for u in (*units, *self.superseded) for o in u.offsets}
        discard = tuple(r.offset for r in rows if r.offset in gone)
        run = self.snapshot.open_run
        covers = run if run is not None and scope in (FoldScope.STAGE_2, FoldScope.COMBINED) else None
        made = [c for u in units if u.region is Region.RUN for o in u.offsets for c in self.calls.get(o, ())]
        ledger = merge(covers.ledger, made) if covers else ()
        size = self._size(units, ledger)
        folding = [r for r in rows if r.offset in gone]
        return FoldPlan(
            scope=scope,
            discard=discard,
            retain=tuple(r.offset for r in rows if r.offset not in gone),
            insert_before=insert_before(self.snapshot, self.structure, gone, scope),
            source_rows=tuple(r.offset for r in folding if r.kind not in UNSUMMARIZED_KINDS),
            earlier=tuple(r.offset for r in folding if r.kind in SUMMARY_KINDS),
            ledger=ledger,
            covers_run=covers.run_id if covers else "",
            budget=size.budget,
            discarded_tokens=size.transcript - size.retained,
            retained_tokens=size.retained,
            predicted_saving=size.saving,
            transcript_tokens=size.transcript,
            discarded_bytes=sum(r.bytes for r in folding if not r.superseded),
            follow_up=follow_up,
        )


def _unanswered_prompt(snapshot: Snapshot) -> frozenset[int]:
    """Without an open run: the last run's prompt that the list ends on; a run without request continues it (§1)."""
    if snapshot.open_run is not None:
        return frozenset()
    found: list[RowFacts] = []
    for row in reversed(snapshot.rows):
        if row.kind == RowKind.SYSTEM:
            continue
        if not joins_request(row.kind, row.late) or not row.run_id or (found and row.run_id != found[0].run_id):
            break
        found.append(row)
    return frozenset(r.offset for r in found)


def _ledger_tokens(call: LedgerCall) -> int:
    """A rough size of a ledger line, to leave it room; its text is counted when it is rendered."""
    return (len(call.name) + len(call.arguments_json) + 24) // 3
