"""When a tripped signal folds (§5), and every change of the cadence record.

``decide`` and ``veto`` read the record, the other functions return it changed; the caller commits it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import (
    OnFailure,
    RefusalKind,
    SignalKind,
    SkipReason,
    SummarySourcePolicy,
    Suppression,
    Trigger,
    TriggerClass,
    WarningCode,
)
from foldline.domain.folding import FoldPlan
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits, PressureReport, Signal
from foldline.domain.session import Cadence, DidNotFit, Spend
from foldline.engine.pressure import over_hard_limit

HOUR, HOURS_A_DAY = 3_600, 24
START_SECONDS = 0.1
"""A deadline nearer than this leaves no time to plan a fold and still answer (W9)."""
FORCED_ATTEMPTS = 2
"""Attempts after a refusal that C4 and C6 let pass, with no answered request between."""
SUMMARY_BYTES_A_TOKEN = 4
AHEAD_DROPS = 2
"""Ready summaries in a row that were of no use, after which none is written until the next run (A3)."""
_AHEAD_SIGNALS = (SignalKind.PROJECTION, SignalKind.HISTORY_ESTIMATE, SignalKind.FORECAST_THRESHOLD)
_MANUAL_TRIGGERS = (Trigger.MANUAL, Trigger.CHECKPOINT)
_SUPPRESSION_SKIPS = {
    Suppression.AFTER_RESTORE: SkipReason.AFTER_RESTORE,
    Suppression.FIRST_BOUNDARY: SkipReason.FIRST_BOUNDARY,
    Suppression.CADENCE: SkipReason.CADENCE,
}
_GATES = {Suppression.COOLDOWN: SkipReason.COOLDOWN, Suppression.BUDGET: SkipReason.BUDGET}


@dataclass(frozen=True, slots=True)
class Decision:
    """What a check decided.

    Attributes:
        trigger: what asks, also where the fold is skipped; None where nothing is due.
        signals: tripped signals that ask for the fold, or that the skip kept from it.
        skip: why a due fold is not tried.
        forced: by P6: no tail is kept (4.4).
        barred: the configured source is cooling or its budget is spent, and policy lets its successor write (S2).
        report: the report with what suppressed each signal.
        restates: the fold replaces native items that the request's model cannot read, and nothing else (N4).
    """

    fold: bool
    trigger: Trigger | None
    signals: tuple[SignalKind, ...]
    skip: SkipReason | None
    forced: bool
    report: PressureReport
    barred: SkipReason | None = None
    restates: bool = False


def decide(
    report: PressureReport,
    cadence: Cadence,
    policy: Policy,
    *,
    now: float,
    boundary: int | None = None,
    deadline_left: float | None = None,
    paid: bool = False,
    external: bool = False,
    manual_trigger: Trigger = Trigger.MANUAL,
) -> Decision:
    """Whether a boundary folds (§5): C1, C2, X2 and ``auto_compact`` per signal, then C5, C6 and the deadline.

    Args:
        boundary: number of this boundary; by default the one ``count_boundary`` counted last. ``CheckPressure``, which
            counts none, passes ``cadence.boundaries``.
        deadline_left: seconds until the host's deadline.
        paid: the configured source of the summary is a paid one (C6).
        external: it is a curator or compactor, which has no successor (S2).
        manual_trigger: what a tripped P7 stands for, MANUAL or CHECKPOINT.
    """
    if boundary is None:
        boundary = max(0, cadence.boundaries - 1)
    over = over_hard_limit(report)
    signals = [_suppressed(s, _suppression(s, cadence, policy, boundary, over)) for s in report.signals]
    live = [s for s in signals if s.tripped and s.suppressed_by is None]
    if not live:
        return _nothing_live(replace(report, signals=tuple(signals)))
    trigger = _trigger(live, manual_trigger)
    gate = _gate(trigger, cadence, policy, now, paid)
    barred = None
    if gate is not None and paid and not external and successor_may_write(policy, over):
        barred, gate = _GATES[gate], None
    skip = None if gate is None else _GATES[gate]
    if gate is not None:
        signals = [_suppressed(s, gate) if s in live else s for s in signals]
    elif trigger not in _MANUAL_TRIGGERS and deadline_left is not None and deadline_left < START_SECONDS:
        skip, barred = SkipReason.DEADLINE, None
    return Decision(
        fold=skip is None,
        trigger=trigger,
        signals=tuple(s.kind for s in live),
        skip=skip,
        forced=trigger == Trigger.DID_NOT_FIT,
        report=replace(report, signals=tuple(signals)),
        barred=barred,
    )


def restating(decision: Decision) -> Decision:
    """N4: a fold that no signal asks for, because the request cannot carry what an earlier one left."""
    return replace(
        decision, fold=True, trigger=Trigger.AUTOMATIC, signals=(), skip=None, forced=False, barred=None, restates=True
    )


def veto(
    plan: FoldPlan,
    decision: Decision,
    cadence: Cadence,
    policy: Policy,
    limits: Limits,
    *,
    tools_tokens: int,
    now: float,
    paid: bool = False,
    external: bool = False,
) -> SkipReason | None:
    """Whether a planned fold is skipped after all (C4, C7), before any source is called.

    C5 and C6 are read again: of the two folds that F3 may take at one boundary, the first may have failed or spent the
    budget.

    Args:
        tools_tokens: estimate of the tools, after the factor.
    """
    trigger = decision.trigger or Trigger.AUTOMATIC
    gate = None if decision.barred else barred_by(decision, cadence, policy, now=now, paid=paid)
    if gate is not None:
        succeeded = paid and not external and successor_may_write(policy, over_hard_limit(decision.report))
        if not succeeded:
            return gate
    if _is_progress(plan.predicted_saving, plan.transcript_tokens, policy):
        return None
    if trigger in _MANUAL_TRIGGERS or _fit_exempt(trigger, cadence):
        return None
    if _brings_under_hard_limits(plan, decision.report, limits, tools_tokens):
        return None
    return SkipReason.NO_PROGRESS


def barred_by(decision: Decision, cadence: Cadence, policy: Policy, *, now: float, paid: bool) -> SkipReason | None:
    """What keeps a source from being called by now (C5, C6): its successor writes, where one may (S2)."""
    gate = _gate(decision.trigger or Trigger.AUTOMATIC, cadence, policy, now, paid)
    return decision.barred or (None if gate is None else _GATES[gate])


def summary_size(cadence: Cadence, budget: int) -> int:
    """The usual summary size in tokens (C4): mean of the last three, first half of ``budget``, never over it."""
    sizes = cadence.summary_sizes
    usual = sum(sizes) // len(sizes) if sizes else budget // 2
    return min(usual, budget)


def count_boundary(cadence: Cadence) -> Cadence:
    """Counts a ``PrepareRequest``; its number is ``boundaries`` before."""
    return replace(cadence, boundaries=cadence.boundaries + 1)


def attempt_started(cadence: Cadence, boundary: int, *, trigger: Trigger, paid: bool, now: float) -> Cadence:
    """Records that a source is about to be called or a candidate built.

    It ends the did-not-fit fact, committed or not (4.4). One ahead of need counts for C5 and C6 only (A2).
    """
    if paid:
        recent = tuple(t for t in cadence.paid_attempts if now - t < HOUR)
        cadence = replace(cadence, paid_attempts=(*recent, now))
    if trigger == Trigger.BACKGROUND:
        return cadence
    forced = trigger == Trigger.DID_NOT_FIT
    return replace(
        cadence, last_attempt=boundary, did_not_fit=None, fit_attempts=cadence.fit_attempts + forced, last_skip=None
    )


def spent(cadence: Cadence, *, now: float, tokens: int, cost: float | None) -> Cadence:
    """Adds what an attempt cost, committed or not (C6, S5); hours older than a day are dropped."""
    hour = int(now // HOUR)
    kept = {s.hour: s for s in cadence.spending if hour - s.hour < HOURS_A_DAY}
    old = kept.get(hour, Spend(hour))
    kept[hour] = Spend(hour, old.tokens + tokens, old.cost + (cost or 0.0))
    return replace(cadence, spending=tuple(kept[h] for h in sorted(kept)))


def fold_committed(
    cadence: Cadence, *, boundary: int, left_tokens: int, threshold: int, summary_tokens: int, barred: bool = False
) -> Cadence:
    """Records a committed fold: C2 and C3 count from it, count and anchor are dropped (4.3), a restore's guard ends.

    Args:
        left_tokens: estimate of the transcript the fold left; ``threshold`` is the T it is judged by (C3).
        summary_tokens: size of its summary (C4).
        barred: a successor wrote it while the configured source cools (S2); the cooldown stays.
    """
    return replace(
        cadence,
        last_fold=boundary,
        count=None,
        anchor=None,
        did_not_fit=None,
        left_tokens=left_tokens,
        left_threshold=threshold,
        summary_sizes=(*cadence.summary_sizes, summary_tokens)[-3:],
        cooldown_until=cadence.cooldown_until if barred else None,
        cooldown_from=cadence.cooldown_from if barred else None,
        cooldown_absent=cadence.cooldown_absent and barred,
        restored_tokens=None,
        last_skip=None,
        ahead_drops=0,
    )


def attempt_failed(
    cadence: Cadence,
    *,
    now: float,
    policy: Policy,
    trigger: Trigger,
    retry_after: float | None = None,
    only_not_smaller: bool = False,
    absent: bool = False,
) -> Cadence:
    """Starts the cooldown of a failed automatic attempt (C5); ``retry_after`` in seconds, if the source named it.

    None starts for a manual one, nor for a P6 attempt that fails only "strictly smaller": there was nothing to fold.

    Args:
        absent: nobody was there to be asked: that spends nothing (C6), and the cooldown ends with ``source_came``.
    """
    if absent:
        cadence = replace(cadence, paid_attempts=cadence.paid_attempts[:-1])
    if trigger in _MANUAL_TRIGGERS or (trigger == Trigger.DID_NOT_FIT and only_not_smaller):
        return cadence
    until = now + max(policy.cooldown, retry_after or 0.0)
    if cadence.cooldown_until is not None and cools(cadence, now):
        until = max(until, cadence.cooldown_until)
        absent = absent and cadence.cooldown_absent
    return replace(cadence, cooldown_until=until, cooldown_from=now, cooldown_absent=absent)


def source_came(cadence: Cadence) -> Cadence:
    """The source is there that was not: nothing is known against it, and its cooldown ends (C5)."""
    if not cadence.cooldown_absent:
        return cadence
    return replace(cadence, cooldown_until=None, cooldown_from=None, cooldown_absent=False)


def skipped(cadence: Cadence, reason: SkipReason) -> tuple[Cadence, bool]:
    """Records a skip; the second value says that its reason is new, so that an event is due (C8)."""
    return replace(cadence, last_skip=reason), cadence.last_skip != reason


def nothing_to_fold(cadence: Cadence) -> Cadence:
    """A fold was due and there was nothing to fold: that ends the did-not-fit fact as an attempt does (4.4)."""
    return replace(cadence, did_not_fit=None)


def refused(cadence: Cadence, kind: RefusalKind, named_tokens: int | None = None) -> Cadence:
    """Sets the did-not-fit fact where a provider refused a request for its size (4.4), and for nothing else."""
    if kind not in (RefusalKind.CONTEXT_EXCEEDED, RefusalKind.BODY_TOO_LARGE):
        return cadence
    return replace(cadence, did_not_fit=DidNotFit("refused", named_tokens))


def did_not_fit(cadence: Cadence, cause: str) -> Cadence:
    """Sets the fact for a ``bounded`` (B4) or ``too_large`` (L3) request."""
    return replace(cadence, did_not_fit=DidNotFit(cause))


def system_changed(cadence: Cadence) -> Cadence:
    """A system row was superseded: what a provider counted no longer describes the request (4.3)."""
    return replace(cadence, count=None, anchor=None)


def trimmed(cadence: Cadence) -> Cadence:
    """Calls were trimmed (K2): a rewrite like a fold (4.3), but no fold and no attempt (C2)."""
    return replace(cadence, count=None, anchor=None)


def edited(cadence: Cadence) -> Cadence:
    """A host edit drops count, anchor and the did-not-fit fact (4.3, 4.4)."""
    return replace(cadence, count=None, anchor=None, did_not_fit=None)


def restored(cadence: Cadence, *, boundary: int, tokens: int) -> Cadence:
    """A restore must not be undone by the next boundary (X2).

    Args:
        boundary: the last one counted.
        tokens: raw tokens of the restored transcript, as later given to ``transcript_grew``.
    """
    return replace(
        edited(cadence),
        left_tokens=None,
        left_threshold=None,
        last_attempt=boundary,
        restored_tokens=tokens,
        last_skip=None,
    )


def transcript_grew(cadence: Cadence, tokens: int, policy: Policy) -> Cadence:
    """Ends a restore's guard once the transcript grew by ``min_progress`` (X2); ``tokens`` raw, as in ``restored``."""
    guarded = cadence.restored_tokens
    if guarded is None or not _is_progress(tokens - guarded, guarded, policy):
        return cadence
    return replace(cadence, restored_tokens=None)


def warn_once(cadence: Cadence, code: WarningCode) -> tuple[Cadence, bool]:
    """Marks a warning that a session gives once; the second value says whether to give it now."""
    if code in cadence.warned:
        return cadence, False
    return replace(cadence, warned=(*cadence.warned, code)), True


def _suppressed(signal: Signal, by: Suppression | None) -> Signal:
    return signal if signal.suppressed_by == by else replace(signal, suppressed_by=by)


def run_opened(cadence: Cadence) -> Cadence:
    """A new run may have summaries written ahead of need again (A3)."""
    return replace(cadence, ahead_drops=0) if cadence.ahead_drops else cadence


def ahead_dropped(cadence: Cadence) -> Cadence:
    """A summary that was written ahead of need was of no use (A3)."""
    return replace(cadence, ahead_drops=cadence.ahead_drops + 1)


def ahead_due(report: PressureReport, cadence: Cadence, policy: Policy, *, now: float, paid: bool) -> bool:
    """Whether summaries are to be written ahead of need (A1): near enough to T, and nothing speaks against a call.

    Boundary 0 is left alone as in C1, and one that has just had its fold; cooldown and budget hold (A2), and two drops
    in a row end it for the run (A3).
    """
    if not policy.auto_compact or cadence.boundaries <= 1 or cadence.ahead_drops >= AHEAD_DROPS:
        return False
    if cadence.boundaries - 1 in (cadence.last_fold, cadence.last_attempt):
        return False
    if cools(cadence, now) or (paid and budget_spent(cadence, policy, now=now)):
        return False
    near = policy.background.fraction * report.limits.threshold
    return any(s.value is not None and s.value >= near for s in report.signals if s.kind in _AHEAD_SIGNALS)


def _suppression(signal: Signal, cadence: Cadence, policy: Policy, boundary: int, over: bool) -> Suppression | None:
    if not signal.tripped or signal.suppressed_by is not None or signal.trigger_class == TriggerClass.MANUAL:
        return signal.suppressed_by
    if not policy.auto_compact:
        return Suppression.AUTO_COMPACT_OFF
    if signal.trigger_class == TriggerClass.CAPACITY:
        return Suppression.AFTER_RESTORE if cadence.restored_tokens is not None and not over else None
    if signal.trigger_class == TriggerClass.DID_NOT_FIT:
        return None
    if boundary == 0:
        return Suppression.FIRST_BOUNDARY
    last = max((b for b in (cadence.last_fold, cadence.last_attempt) if b is not None), default=None)
    if last is not None and boundary - last < policy.min_boundaries_between:
        return Suppression.CADENCE
    return None


def _nothing_live(report: PressureReport) -> Decision:
    """A check that folds nothing; suppressed signals still name why (C8)."""
    kept = [s for s in report.signals if s.tripped and s.suppressed_by in _SUPPRESSION_SKIPS]
    skip = next((skip for by, skip in _SUPPRESSION_SKIPS.items() if any(s.suppressed_by == by for s in kept)), None)
    return Decision(
        fold=False,
        trigger=Trigger.AUTOMATIC if kept else None,
        signals=tuple(s.kind for s in kept),
        skip=skip,
        forced=False,
        report=report,
    )


def _trigger(live: list[Signal], manual_trigger: Trigger) -> Trigger:
    kinds = {s.kind for s in live}
    if SignalKind.MANUAL in kinds:
        return manual_trigger
    return Trigger.DID_NOT_FIT if SignalKind.DID_NOT_FIT in kinds else Trigger.AUTOMATIC


def _gate(trigger: Trigger, cadence: Cadence, policy: Policy, now: float, paid: bool) -> Suppression | None:
    """C5, which a manual fold ignores, then C6, which the first two P6 attempts pass."""
    if cools(cadence, now) and trigger not in _MANUAL_TRIGGERS:
        return Suppression.COOLDOWN
    if paid and not _fit_exempt(trigger, cadence) and budget_spent(cadence, policy, now=now):
        return Suppression.BUDGET
    return None


def cools(cadence: Cadence, now: float) -> bool:
    start = cadence.cooldown_from
    return cadence.cooldown_until is not None and now < cadence.cooldown_until and (start is None or start <= now)


def budget_spent(cadence: Cadence, policy: Policy, *, now: float) -> bool:
    """Whether no further paid source may be called (C6)."""
    return bool(_spent(cadence, policy, now))


def why_gated(reason: SkipReason | None, cadence: Cadence, policy: Policy, *, now: float) -> str:
    """What keeps a source from being called, with its numbers (C5, C6, C8); empty of any other reason."""
    if reason is SkipReason.BUDGET:
        return f"the budget of paid folds is spent: {_spent(cadence, policy, now)}"
    if reason is SkipReason.COOLDOWN and cadence.cooldown_until is not None:
        left = math.ceil(max(0.0, cadence.cooldown_until - now))
        return f"after a failure no source is asked for another {left} s"
    return ""


def _spent(cadence: Cadence, policy: Policy, now: float) -> str:
    """The guard that is reached, by attempts of the last hour, or tokens or cost of the day (C6); empty if none is."""
    attempts = sum(0 <= now - t < HOUR for t in cadence.paid_attempts)
    if attempts >= policy.max_paid_folds_per_hour:
        return f"{attempts} attempts within an hour, max_paid_folds_per_hour is {policy.max_paid_folds_per_hour}"
    today = [s for s in cadence.spending if 0 <= int(now // HOUR) - s.hour < HOURS_A_DAY]
    tokens, cost = sum(s.tokens for s in today), sum(s.cost for s in today)
    if policy.max_tokens_per_day is not None and tokens >= policy.max_tokens_per_day:
        return f"{tokens} tokens within 24 hours, max_tokens_per_day is {policy.max_tokens_per_day}"
    if policy.max_cost_per_day is not None and cost >= policy.max_cost_per_day:
        return f"{cost:.6g} within 24 hours, max_cost_per_day is {policy.max_cost_per_day:.6g}"
    return ""


def _fit_exempt(trigger: Trigger, cadence: Cadence) -> bool:
    return trigger == Trigger.DID_NOT_FIT and cadence.fit_attempts < FORCED_ATTEMPTS


def successor_may_write(policy: Policy, over: bool) -> bool:
    """S2: NEXT always, RESCUE only for a request that would go out over W or the byte limit, never for a curator."""
    summary = policy.summary
    if summary.source in (SummarySourcePolicy.CURATOR, SummarySourcePolicy.EXTRACTIVE):
        return False
    return summary.on_failure == OnFailure.NEXT or (summary.on_failure == OnFailure.RESCUE and over)


def _brings_under_hard_limits(plan: FoldPlan, report: PressureReport, limits: Limits, tools_tokens: int) -> bool:
    """C7: the request is over W or the byte limit now, and under both after the fold."""
    # A second fold of F3 is planned on what the first left, which the report does not describe.
    measured = plan.transcript_tokens == report.transcript_tokens
    before = report.forecast_tokens if measured else plan.transcript_tokens + tools_tokens
    after = before - plan.predicted_saving
    summary_tokens = max(0, plan.discarded_tokens - plan.predicted_saving)
    bytes_after = report.body_bytes - plan.discarded_bytes + summary_tokens * SUMMARY_BYTES_A_TOKEN
    over_bytes = limits.byte_limit is not None and report.body_bytes >= limits.byte_limit
    under_bytes = limits.byte_limit is None or bytes_after < limits.byte_limit
    over = before + limits.reserve >= limits.ceiling or over_bytes
    return over and after + limits.reserve < limits.ceiling and under_bytes


def _is_progress(change: int, whole: int, policy: Policy) -> bool:
    # The product of a decimal fraction may come out a hair above the whole number that is meant.
    return change >= policy.min_progress * whole - 1e-6
