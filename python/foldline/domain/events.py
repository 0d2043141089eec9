"""Events (§13): persisted, ordered per session, one payload shape per kind."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.checkpoints import Checkpoint
from foldline.domain.enums import (
    EventKind,
    FailureKind,
    RefusalKind,
    SignalKind,
    SkipReason,
    SummarySource,
    Trigger,
    WarningCode,
)
from foldline.domain.folding import CheckFailure, CompactionRecord
from foldline.domain.models import Usage
from foldline.domain.rows import ModelRef


@dataclass(frozen=True, slots=True)
class Warning_:
    """A warning in an answer or event."""

    code: WarningCode
    message: str


@dataclass(frozen=True, slots=True)
class BoundedResult:
    """A result carried shortened in one request (B2, B3). Bytes of UTF-8 text."""

    offset: int
    call_id: str
    kept_bytes: int
    whole_bytes: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One event; which optional fields are set follows from ``kind``.

    Attributes:
        seq: position in the session's event log, from 1; given by the store at commit (0 before).
        fold_id: ties a start to its one terminal event.
        model: that is asked for the summary, or was; empty for none.
        rows, tokens, bytes: of the transcript before a fold; ``tokens`` estimated, or those a refusal named.
        cause: what set the did-not-fit fact: ``refused``, ``bounded`` or ``too_large``; what memory lacks, empty where
            it is whole again.
        limit: in tokens, or in bytes where ``cause`` of a bound is ``bytes``.
        other_run_id: the run that superseded ``run_id``.
        pending, quarantined: memory entries that wait for a vector, and that could not get one (M8, M9).
    """

    kind: EventKind
    time: float
    revision: int
    boundary: int
    seq: int = 0
    run_id: str = ""
    fold_id: str = ""
    trigger: Trigger | None = None
    signals: tuple[SignalKind, ...] = ()
    record: CompactionRecord | None = None
    failure: FailureKind | None = None
    checks: tuple[CheckFailure, ...] = ()
    source: SummarySource | None = None
    model: ModelRef = ModelRef()
    usage: Usage | None = None
    skip: SkipReason | None = None
    bounded: tuple[BoundedResult, ...] = ()
    limit: int | None = None
    warning: WarningCode | None = None
    message: str = ""
    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    duration: float | None = None
    cooldown_until: float | None = None
    cause: str = ""
    refusal: RefusalKind | None = None
    other_run_id: str = ""
    pending: int = 0
    quarantined: int = 0
    checkpoint: Checkpoint | None = None
