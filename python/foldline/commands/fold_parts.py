"""What the steps of a fold hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from foldline.domain.checkpoints import Checkpoint
from foldline.domain.enums import FailureKind, SkipReason, SummarySource, Trigger
from foldline.domain.events import Warning_
from foldline.domain.folding import (
    CheckFailure,
    CompactionRecord,
    FoldPlan,
    Snapshot,
    SummaryFailed,
    SummaryResult,
)
from foldline.domain.memory import MemoryEntry
from foldline.domain.models import Usage
from foldline.domain.policy import Memory, Policy
from foldline.domain.ports import StoredRequest, StoredRow
from foldline.domain.pressure import Limits
from foldline.domain.rows import ModelRef, Row
from foldline.domain.session import Session
from foldline.engine.cadence import Decision
from foldline.engine.planning import PlanInputs


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a fold: ``waiting`` for another caller's, ``planned``, ``summarizing``, ``summarized``, ``proven``."""

    step: str
    fold_id: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class FoldRequest:
    """What asks for a fold and by which limits it is planned. Tokens after the factor.

    Attributes:
        model: who the request goes to; empty where none is asked for.
        at_most: seconds the caller waits before the fold goes on without it (A5); None for as long as it can.
        remember: what to write with the fold so that a repeat of its request finds the record (W2).
        checkpoint: the checkpoint to save with it (K1).
    """

    decision: Decision
    policy: Policy
    limits: Limits
    tools_tokens: int = 0
    tools_bytes: int = 0
    model: ModelRef = ModelRef()
    instructions: str = ""
    at_most: float | None = None
    progress: Callable[[Progress], None] = field(default=lambda step: None)
    remember: Callable[[CompactionRecord], StoredRequest | None] = field(default=lambda record: None)
    checkpoint: Callable[[CompactionRecord], Checkpoint | None] = field(default=lambda record: None)

    @property
    def all_instructions(self) -> str:
        """The policy's and the request's own (S3)."""
        return "\n\n".join(filter(None, (self.policy.summary.instructions, self.instructions)))


@dataclass(frozen=True, slots=True)
class FoldOutcome:
    """A committed record, or why there is none.

    Attributes:
        joined: it is another caller's fold, which was waited for.
        pending: the fold goes on without its caller, who waited long enough (A5): it may have ended since.
        error: what a defect raised, for callers that asked for the fold itself.
        nothing: there was nothing whose fold would make the transcript smaller (F4). An item of the provider's own that
            is too large says nothing of that: another source may write less (V6).
    """

    record: CompactionRecord | None = None
    skip: SkipReason | None = None
    failure: FailureKind | None = None
    detail: str = ""
    checks: tuple[CheckFailure, ...] = ()
    warnings: tuple[Warning_, ...] = ()
    joined: bool = False
    pending: FoldInProgress | None = None
    error: BaseException | None = None
    nothing: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """One call of a source: what it used, as far as it said (S5)."""

    source: SummarySource
    usage: Usage | None = None
    model: ModelRef = ModelRef()


@dataclass(slots=True)
class FoldInProgress:
    """A fold between its snapshot and its end.

    Attributes:
        spent: calls of sources that are not in the session's totals yet.
        committed: set with the first commit, after which another fold may follow (F3).
        outcome: set at the end, for callers that wait for it.
    """

    fold_id: str
    cancelled: bool = False
    spent: list[Spent] = field(default_factory=list)
    committed: FoldOutcome | None = None
    outcome: FoldOutcome | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the snapshot gave: everything the summary and the checks need, out of the lock.

    Attributes:
        source: who is to write: of one that is ``barred`` by cooldown or budget, the successor (S2).
        rounds_only: the second of the two folds of one check (F3).
        ready: a summary written ahead of need that this one takes in as its earlier summary (A2).
        unavailable: why the provider's own compaction, which policy asks for, does not write (N3).
    """

    fold: FoldInProgress
    trigger: Trigger
    source: SummarySource
    inputs: PlanInputs
    snapshot: Snapshot
    plan: FoldPlan
    rows: Mapping[int, Row]
    stored: Mapping[int, StoredRow]
    boundary: int
    started: float
    session: Session
    rounds_only: bool = False
    ready: Written | None = None
    barred: SkipReason | None = None
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A summary and what will be committed with it.

    Attributes:
        plan: the attempt's, or a compactor's own (F12).
        entries: the memory projection of the rows that fold, staged (V8), as ``memory`` asked for it.
        failed: why the configured source did not write it, where its successor did (S2).
    """

    plan: FoldPlan
    summary: SummaryResult
    entries: tuple[MemoryEntry, ...]
    memory: Memory
    failed: SummaryFailed | None = None
