"""Measuring a host's list and deciding on it (§4, §5): the same signals and rules as for a list that is kept here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foldline.commands.fold_parts import FoldRequest
from foldline.commands.host_owned.views import View
from foldline.commands.list_rows import to_row
from foldline.commands.measuring import RequestShape, tools_of
from foldline.commands.ownership import writable
from foldline.commands.services import WEIGHTED_BYTES, Services
from foldline.commands.sources import EXTERNAL, PAID, awake, is_external, is_paid, writer_of
from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, SkipReason, SummarySource
from foldline.domain.folding import FoldPlan, Snapshot
from foldline.domain.models import Factor
from foldline.domain.policy import Layer, Policy
from foldline.domain.ports import Tools
from foldline.domain.pressure import Breakdown, Limits, PressureReport
from foldline.domain.rows import CompactionSummaryRow, ModelRef, Row
from foldline.domain.session import Cadence, OpenRun, Session
from foldline.engine import cadence, ledger
from foldline.engine.cadence import Decision
from foldline.engine.hosted import plan_whole
from foldline.engine.limits import limits as limits_of
from foldline.engine.lineage import expand
from foldline.engine.planning import PlanInputs
from foldline.engine.pressure import Measurement, measure


@dataclass(frozen=True, slots=True)
class Measured:
    """What a boundary measured and decided.

    Attributes:
        record: the cadence record, less count and anchor where the list is no continuation of what they cover (4.3).
        run: the open run, as it is kept between calls.
        tools_new: the definitions in sight came for the first time.
    """

    record: Cadence
    run: OpenRun | None
    decision: Decision
    policy: Policy
    limits: Limits
    tools: Tools
    tools_new: bool
    model: ModelRef
    factor: Factor
    beside_tokens: int

    @property
    def report(self) -> PressureReport:
        return self.decision.report

    def fold_request(self, shape: RequestShape, instructions: str = "") -> FoldRequest:
        return FoldRequest(
            decision=self.decision, policy=self.policy, limits=self.limits, tools_tokens=self.report.parts.tools,
            tools_bytes=shape.beside_bytes(self.tools), model=self.model, instructions=instructions,
        )  # fmt: skip


def measured(
    services: Services, session: Session, view: View, shape: RequestShape, override: Layer | None, *, boundary: int,
    manual: bool = False, deadline_left: float | None = None,
) -> Measured:  # fmt: skip
    """Measures a list at a boundary.

    Args:
        session: its cadence record as it is at this boundary.
        boundary: its number.

    Raises:
        FoldlineError: TOOLS_UNKNOWN, FIELD_VALIDATION.
    """
    model = shape.model if shape.model.model else session.model
    policy = services.policy(session, override).policy
    writable(session.ownership, policy)
    session = awake(services, policy, session)
    limits = limits_of(policy, services.model(model), shape.output_reserve_tokens)
    tools, tools_new = tools_of(services, session, shape)
    record, run = counted(session.cadence, view), run_of(session, view, boundary)
    factor = services.factor_of(session, model)
    tokens, size = view.size()
    report = measure(
        Measurement(
            model=model,
            factor=factor,
            transcript_tokens=tokens,
            transcript_bytes=size,
            tools_tokens=tools.tokens,
            tools_bytes=shape.beside_bytes(tools),
            parts=_parts(view, tools),
            exact_tokens=shape.input_tokens,
            exact_bytes=shape.body_bytes,
            overhead_tokens=shape.overhead_tokens,
            overhead_bytes=shape.overhead_bytes,
            in_run=view.transcript.in_run,
            first_check_of_continued_run=bool(run and run.continues and run.opened_boundary >= boundary),
            manual=manual,
            estimator=services.encoding(session.model) or WEIGHTED_BYTES,
        ),
        record, limits,
    )  # fmt: skip
    decision = cadence.decide(
        report, record, policy, now=services.clock(), boundary=boundary, deadline_left=deadline_left,
        paid=is_paid(services, policy), external=is_external(services, policy),
    )  # fmt: skip
    return Measured(
        record, run, decision, policy, limits, tools, tools_new, model, factor, shape.beside_tokens(tools, factor)
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """A fold that is to be made. ``snapshot`` is what the plan is of: messages that it may not split are held."""

    plan: FoldPlan
    snapshot: Snapshot
    inputs: PlanInputs
    source: SummarySource


def plan_of(
    services: Services, session: Session, view: View, found: Measured, shape: RequestShape, now: float
) -> Planned | SkipReason:
    """Plans the fold that a boundary decided on; the reason where none is made (F4, C4, C7)."""
    transcript, policy, record = view.transcript, found.policy, session.cadence
    inputs = PlanInputs(
        policy=policy, limits=found.limits, tools_tokens=found.report.parts.tools,
        tools_bytes=shape.beside_bytes(found.tools), forced=found.decision.forced, in_run=transcript.in_run,
        usual_summary=lambda budget: cadence.summary_size(record, budget),
        external_source=is_external(services, policy),
    )  # fmt: skip
    calls = ledger.calls_of_rounds(transcript.rows, transcript.calls)
    planned, snapshot = plan_whole(view.snapshot(session.revision, found.factor.value), inputs, calls, transcript.bound)
    if planned is None:
        return SkipReason.NOTHING_TO_FOLD
    source = writer_of(services, policy, planned.scope, session)
    vetoed = cadence.veto(
        planned, found.decision, record, policy, found.limits, tools_tokens=found.report.parts.tools, now=now,
        paid=source in PAID, external=source in EXTERNAL,
    )  # fmt: skip
    return Planned(planned, snapshot, inputs, source) if vetoed is None else vetoed


def counted(record: Cadence, view: View) -> Cadence:
    """4.3, L1: count and anchor hold while the list only grew behind the rows that they cover."""
    anchor = record.anchor
    if anchor is None and record.count is None:
        return record
    grew = anchor is not None and view.begins_with(anchor.list_rows, anchor.list_digest)
    if anchor is not None and grew and view.transcript.system_changed <= anchor.list_rows:
        return record
    return cadence.system_changed(record)


def run_of(session: Session, view: View, boundary: int) -> OpenRun | None:
    """The open run as it is kept between calls: by name, with the boundary that it was first seen at.

    One that is first seen with rounds in it continues an earlier one (§1 continued run).
    """
    run, known = view.transcript.open_run, session.open_run
    if run is None:
        return None
    if known is not None and known.run_id == run.run_id:
        return replace(known, rounds=run.rounds, last_active=run.last_active)
    continues = (known.run_id if known else run.run_id) if view.transcript.in_run else ""
    return OpenRun(
        run.run_id, opened_boundary=boundary, opened_offset=0, last_active=run.last_active, continues=continues,
        rounds=run.rounds,
    )  # fmt: skip


def _parts(view: View, tools: Tools) -> Breakdown:
    run = view.transcript.open_run
    asked = set(run.request) if run else set[int]()
    begun = False
    system = request = rounds = results = pinned = total = 0
    for fact in view.facts:
        begun = begun or (run is not None and fact.offset == run.opened_offset)
        if fact.superseded:
            continue
        total += fact.tokens
        pinned += fact.tokens if fact.pinned else 0
        if fact.kind is RowKind.SYSTEM:
            system += fact.tokens
        elif fact.offset in asked:
            request += fact.tokens
        elif run is not None and begun and fact.run_id == run.run_id:
            results += fact.tokens if fact.kind is RowKind.TOOL_RESULT else 0
            rounds += fact.tokens if fact.kind in (RowKind.TOOL_RESULT, RowKind.ASSISTANT) else 0
    return Breakdown(
        system=system, tools=tools.tokens, request=request, rounds=rounds, results=results, pinned=pinned,
        history=max(0, total - system - request - rounds),
    )  # fmt: skip


def with_ledger(services: Services, session: Session, view: View) -> View:
    """The view with the open run's ledger: the calls of its folded rounds, known from the archive (F3, H2)."""
    run = view.transcript.open_run
    if run is None:
        return view
    rows = view.transcript.rows
    begun = next((i for i, r in enumerate(rows) if r.offset == run.opened_offset), len(rows))
    summaries = [r.offset for r in rows[begun:] if isinstance(r.body, CompactionSummaryRow)]
    folded = _folded_rounds(services, session, summaries)
    if not folded:
        return view
    made = ledger.calls_of_rounds([*folded, *rows], view.transcript.calls)
    calls = ledger.merge((), [call for r in folded for call in made.get(r.offset, ())])
    return replace(view, transcript=replace(view.transcript, open_run=replace(run, ledger=calls)))


def _folded_rounds(services: Services, session: Session, summaries: Sequence[int]) -> list[Row]:
    """The rows of the rounds that summaries stand for; earlier summaries among these are taken apart again."""
    rows: list[Row] = []
    for stored in services.store.read_rows(session.key, summaries):
        body = to_row(stored).body
        found = services.store.rewrites(session.key, stored.revision - 1, 1)
        record = found[0].record if found else None
        if not isinstance(body, CompactionSummaryRow) or not body.of_run or record is None:
            continue
        folded = services.store.read_rows(session.key, list(expand(record.discarded)))
        rows += _folded_rounds(
            services, session, [r.offset for r in folded if r.kind == RowKind.COMPACTION_SUMMARY]
        )  # fmt: skip
        rows += [to_row(r) for r in folded if r.run_id == body.of_run]
    return rows
