"""Sessions for property tests: a host that appends, prepares, answers, pins and folds by the engine's own rules.

``operations()`` draws what happens; ``Host.apply`` does it, and skips what the rules would refuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, RunOutcome, StopReason, SummarySource
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import CheckFailure, FoldPlan, RowFacts, Snapshot, facts_of, to_ranges
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ContentBlock,
    InjectedContextRow,
    ModelRef,
    NewRow,
    NoticeRow,
    ReasoningBlock,
    Row,
    RowBody,
    ServerToolBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
    encode_body,
    kind_of,
)
from foldline.domain.session import Session
from foldline.engine import ledger
from foldline.engine.appending import accept, mark_sent
from foldline.engine.checks import Candidate, check
from foldline.engine.planning import PlanInputs, plan
from foldline.engine.rebase import rebase
from foldline.engine.runs import close_run, open_run
from foldline.engine.structure import analyze
from hypothesis import strategies as st

POLICY = Policy()
TOKENS_A_CHARACTER = 4


def limits(threshold: int, *, reserve: int = 0, byte_limit: int | None = None) -> Limits:
    """Limits with W = T / 0.8."""
    ceiling = int(threshold / 0.8)
    return Limits(threshold, ceiling, ceiling - reserve, reserve, byte_limit, byte_limit)


def count(text: str) -> int:
    """A stand-in for the tokenizer: deterministic, monotone, never 0 for text."""
    return -(-len(text) // TOKENS_A_CHARACTER)


def measure(row: Row, *, superseded: bool = False) -> RowFacts:
    """Facts of a row, counted by ``count`` over its body."""
    body = encode_body(row.body)
    return facts_of(
        row, count(body.decode()) + 4, len(body), superseded=superseded, digest=hashlib.sha256(body).digest()
    )


@dataclass(frozen=True)
class Operation:
    """One thing that happens; ``n`` and the flags mean what ``kind`` makes of them."""

    kind: str
    n: int = 0
    size: int = 1
    flag: bool = False
    other: bool = False


@dataclass(frozen=True)
class Folded:
    """A fold as it was decided and judged; nothing is committed where a check failed."""

    snapshot: Snapshot
    plan: FoldPlan
    after: tuple[RowFacts, ...]
    candidate: Candidate
    failures: tuple[CheckFailure, ...]

    @property
    def saves(self) -> bool:
        """Whether the summary is smaller than what it stands for; tiny transcripts leave it no room."""
        gone = set(self.plan.discard)
        held = sum(r.tokens for r in self.snapshot.rows if r.offset in gone and not r.superseded)
        return self.candidate.summary.tokens < held


@dataclass
class Host:
    """A session in memory, its active list and its archive."""

    policy: Policy = POLICY
    factor: float = 1.0
    session: Session = field(
        default_factory=lambda: Session(key=1, tenant="t", session_id="s", create_time="", model=ModelRef())
    )
    rows: list[Row] = field(default_factory=list)
    archive: dict[int, Row] = field(default_factory=dict)
    superseded: set[int] = field(default_factory=set)
    requests: dict[str, tuple[int, ...]] = field(default_factory=dict)
    runs: int = 0
    call_number: int = 0
    waiting: bool = False
    ends_paused: bool = False

    # What a host does

    def append(self, *bodies: RowBody, run_id: str = "", pinned: bool = False) -> tuple[Row, ...]:
        accepted = accept(self.session, [NewRow(b, "", pinned) for b in bodies], run_id, {})
        self.session = replace(accepted.session, revision=self.session.revision + 1)
        self.superseded.update(accepted.superseded)
        for row in accepted.rows:
            self.archive[row.offset] = row
            behind = accepted.places.get(row.offset)
            at = next((i + 1 for i, r in enumerate(self.rows) if r.offset == behind), len(self.rows))
            self.rows.insert(at, row)
        return accepted.rows

    def user(self, text: str = "do it", run_id: str = "") -> Row:
        return self.append(UserRow((TextBlock(text),)), run_id=run_id)[0]

    def prepare(self, run_id: str = "") -> None:
        """Opens a run if none is open, and sends the request (PrepareRequest)."""
        if self.session.open_run is None:
            self.runs += not run_id
            self._open(run_id or f"r{self.runs}")
        self.ends_paused = bool(self.rows) and measure(self.rows[-1]).paused
        self.session = replace(mark_sent(self.session), prepared_through=self.session.next_offset - 1)
        self.waiting = True

    def _open(self, run_id: str) -> None:
        facts = [measure(r) for r in self.rows]
        last = max(
            (
                i
                for i, f in enumerate(facts)
                if f.kind == RowKind.ASSISTANT or (f.kind == RowKind.TOOL_RESULT and not f.late)
            ),
            default=-1,
        )
        aside = (RowKind.SYSTEM, RowKind.COMPACTION_SUMMARY, RowKind.PROVIDER_COMPACTION)
        trailing = [f for f in facts[last + 1 :] if f.kind not in aside]
        last_run = next((r.run_id for r in reversed(self.rows) if r.run_id), "")
        known = set(self.requests.get(last_run, ()))
        again = tuple(
            f.offset
            for f in facts
            if f.offset in known or (last_run and f.run_id == last_run and f.kind == RowKind.USER)
        )
        self.session = open_run(self.session, trailing, run_id, last_run_id=last_run, last_request=again, now=0.0)

    def answer(self, *blocks: ContentBlock, stop: StopReason | None = None) -> Row:
        run = self.session.open_run
        assert run is not None
        self.waiting = False
        return self.append(AssistantRow(tuple(blocks), stop_reason=stop), run_id=run.run_id)[0]

    def result(
        self, call_id: str, text: str = "ok", *, is_error: bool = False, interim: bool = False, run_id: str = ""
    ) -> Row:
        body = ToolResultRow(call_id, (TextBlock(text),), is_error=is_error, interim=interim)
        return self.append(body, run_id=run_id)[0]

    def finish(self, outcome: RunOutcome = RunOutcome.COMPLETED) -> None:
        self.session, closed = close_run(self.session, outcome)
        self.requests[closed.run_id] = closed.request
        self.waiting = False

    def pin(self, offset: int, pinned: bool = True) -> None:
        self.rows = [msgspec.structs.replace(r, pinned=pinned) if r.offset == offset else r for r in self.rows]

    def call(self, name: str = "read", arguments: str = "{}", call_id: str = "") -> ToolCallBlock:
        self.call_number += 1
        return ToolCallBlock(call_id or f"c{self.call_number}", name, arguments)

    # Folding

    def snapshot(self) -> Snapshot:
        session = self.session
        return Snapshot(
            revision=session.revision,
            rows=tuple(measure(r, superseded=r.offset in self.superseded) for r in self.rows),
            open_run=session.open_run,
            carried_through=session.carried_through,
            prepared_through=session.prepared_through,
            factor=self.factor,
        )

    def calls(self) -> ledger.CallsByOffset:
        return ledger.calls_of_rounds(self.rows, self.session.calls)

    def inputs(self, threshold: int, **changes: object) -> PlanInputs:
        run = self.session.open_run
        inputs = PlanInputs(self.policy, limits(threshold), in_run=run is not None and run.rounds > 0)
        return replace(inputs, **changes)

    def plan(self, inputs: PlanInputs) -> FoldPlan | None:
        snapshot = self.snapshot()
        return plan(snapshot, analyze(snapshot), inputs, self.calls())

    def fold(self, inputs: PlanInputs, between: Sequence[Operation] = ()) -> Folded | None:
        """Plans, lets ``between`` happen while the summary is written, rebases, checks, and commits what holds."""
        then = self.snapshot()
        planned = plan(then, analyze(then), inputs, self.calls())
        if planned is None:
            return None
        if between:
            return self._fold_later(then, planned, inputs, between)
        # No rebase, which would mend a wrong plan before the checks see it.
        return self._commit_if_sound(self.judge(then, planned, inputs))

    def _fold_later(
        self, then: Snapshot, planned: FoldPlan, inputs: PlanInputs, between: Sequence[Operation]
    ) -> Folded | None:
        for operation in between:
            self.apply(operation)
        now = self.snapshot()
        rebased = rebase(planned, then, now, min_progress=0.0, forced=inputs.forced, calls=self.calls())
        if rebased is None:
            return None
        return self._commit_if_sound(self.judge(now, rebased, inputs, (then, planned)))

    def _commit_if_sound(self, folded: Folded) -> Folded:
        if not folded.failures:
            self.commit(folded)
        return folded

    def judge(
        self, now: Snapshot, planned: FoldPlan, inputs: PlanInputs, before: tuple[Snapshot, FoldPlan] | None = None
    ) -> Folded:
        """Writes a summary as long as its budget and what folds allow, and checks the rewrite."""
        gone = set(planned.discard)
        held = sum(r.tokens for r in now.rows if r.offset in gone and not r.superseded)
        prose = max(1, min(planned.budget, held // 3))
        text_ledger = ledger.render(planned.ledger, self.policy.summary.ledger_tokens, count)
        offset = self.session.next_offset
        row = CompactionSummaryRow(
            "what happened", f"f{offset}", SummarySource.EXTRACTIVE, of_run=planned.covers_run, ledger=text_ledger
        )
        summary = replace(measure(Row(offset, row)), tokens=prose + count(text_ledger))
        facts = {r.offset: r for r in now.rows} | {offset: summary}
        order = list(planned.retain)
        at = len(order) if planned.insert_before is None else order.index(planned.insert_before)
        after = tuple(facts[o] for o in (*order[:at], offset, *order[at:]))
        candidate = Candidate(
            planned,
            summary,
            row.text,
            row.source,
            prose_tokens=prose,
            ledger_tokens=count(text_ledger),
            discarded=to_ranges(planned.discard),
            digest="digest",
        )
        failures = check(
            now,
            after,
            candidate,
            self.policy,
            inputs.limits,
            tools_tokens=inputs.tools_tokens,
            forced=inputs.forced,
            planned=before,
        )
        self._pending = Row(offset, row)
        return Folded(now, planned, after, candidate, failures)

    def commit(self, folded: Folded) -> None:
        gone = set(folded.plan.discard)
        live = {r.offset: r for r in self.rows} | {self._pending.offset: self._pending}
        self.rows = [live[r.offset] for r in folded.after]
        self.archive[self._pending.offset] = self._pending
        self.superseded -= gone
        calls = tuple(
            replace(c, folded=True) if c.offset in gone else c
            for c in self.session.calls
            if not (c.offset in gone and c.answered)
        )
        run = self.session.open_run
        if run is not None and folded.plan.covers_run == run.run_id:
            run = replace(run, ledger=folded.plan.ledger)
        self.session = replace(
            self.session,
            calls=calls,
            open_run=run,
            next_offset=self._pending.offset + 1,
            revision=self.session.revision + 1,
        )

    # Operations

    def apply(self, op: Operation) -> Folded | None:
        """Does one operation; what the rules refuse or what makes no sense now is skipped."""
        text = "x" * (op.size * 40)
        match op.kind:
            case "user" | "injected" | "notice":
                shape = {"user": UserRow, "injected": InjectedContextRow, "notice": NoticeRow}[op.kind]
                run = self.session.open_run
                run_id = run.run_id if run and op.flag else "elsewhere" if op.other and op.n == 3 else ""
                self.append(shape((TextBlock(text),)), run_id=run_id, pinned=op.other and op.n == 2)
            case "system":
                key = f"k{op.n}" if op.flag else ""
                known = next((k.version for k in self.session.system_keys if k.key == key), 0)
                self.append(SystemRow((TextBlock(text),), key=key, version=known + 1 if key else 0))
            case "prepare":
                self._try_prepare()
            case "answer":
                self._answer(op, text)
            case "result":
                self._result(op, text)
            case "finish":
                if self.session.open_run is not None:
                    self.finish(RunOutcome.COMPLETED if op.flag else RunOutcome.FAILED)
            case "pin":
                if self.rows and kind_of(self.rows[op.n % len(self.rows)].body) != RowKind.COMPACTION_SUMMARY:
                    self.pin(self.rows[op.n % len(self.rows)].offset, not op.other)
            case "fold":
                threshold = 300 * (1 + op.n * op.size)
                inputs = self.inputs(threshold, forced=op.flag and op.other, external_source=op.other)
                return self.fold(inputs)
        return None

    def _try_prepare(self) -> None:
        if self.waiting:
            return
        try:
            self.prepare()
        except FoldlineError:
            return

    def _answer(self, op: Operation, text: str) -> None:
        if not self.waiting or self.session.open_run is None:
            return
        blocks: list[ContentBlock] = []
        if self.ends_paused:
            blocks.append(ServerToolBlock("s", "search", text, result=True))
        if op.other:
            blocks.append(ReasoningBlock("hm", signature="sig"))
        ids = {f"c{i}" for i in range(op.n)} if op.flag else set[str]()
        blocks += [self.call(call_id=i) for i in sorted(ids)] if ids else [self.call() for _ in range(op.n)]
        if op.n == 0 or op.size > 2:
            blocks.insert(0, TextBlock(text))
        pauses = op.n == 0 and op.flag and op.other
        if pauses:
            blocks.append(ServerToolBlock("s", "search", "{}"))
        self.answer(*blocks, stop=StopReason.PAUSED if pauses else None)

    def _result(self, op: Operation, text: str) -> None:
        open_calls = [c for c in self.session.calls if not c.answered]
        if open_calls:
            call = open_calls[-1 - op.n % len(open_calls)]
            self.result(call.call_id, text, is_error=op.flag, interim=op.other and op.n == 1)


def operations(*, folds: bool = True, least: int = 12) -> st.SearchStrategy[list[Operation]]:
    """What happens in a session; steps of a run come often enough for long transcripts.

    Args:
        least: drawn entries at least; hypothesis draws short lists otherwise, and short sessions do not fold.
    """
    rare = ["injected", "notice", "system", "finish", "pin"] + (["fold"] * 3 if folds else [])
    one = st.builds(
        Operation,
        kind=st.sampled_from(["prepare", "answer", "result", "result", "user", *rare]),
        n=st.integers(0, 3),
        size=st.integers(1, 6),
        flag=st.booleans(),
        other=st.booleans(),
    )
    turn = st.builds(_turn, st.lists(_ROUND, min_size=1, max_size=4), st.booleans(), st.integers(1, 6))
    entries = st.lists(st.one_of(one.map(lambda o: [o]), turn), min_size=least, max_size=3 * least)
    return entries.map(lambda parts: [o for part in parts for o in part])


_ROUND = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 6), st.booleans(), st.booleans())
"""Calls, results given before the next request, size, repeated ids, an error or a pause."""


def _turn(rounds: Sequence[tuple[int, int, int, bool, bool]], finishes: bool, size: int) -> list[Operation]:
    """A user row and the rounds that answer it: one draw, so that sessions get long before they are large."""
    done = [Operation("user", size=size)]
    for calls, results, length, flag, other in rounds:
        done += [Operation("prepare"), Operation("answer", calls, length, flag, other)]
        done += [Operation("result", i, length, other and i == 0) for i in range(min(calls, results))]
    return [*done, Operation("finish", flag=True)] if finishes else done


def play(ops: Sequence[Operation], **host: object) -> Host:
    """A host after ``ops``."""
    played = Host(**host)  # type: ignore[arg-type]
    for op in ops:
        played.apply(op)
    return played
