"""The state of a session: small, immutable, persisted whole with every change.

Everything that grows with the transcript lives in the archive and in the ledger; what stands here is bounded by the
number of unanswered calls, keyed system rows and rounds of the open run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from foldline.domain.enums import Format, Ownership, RunOutcome, SkipReason, SummarySource
from foldline.domain.models import Usage
from foldline.domain.rows import ModelRef


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """P1: the provider's input count of the last answered request, which was of ``revision``."""

    input_tokens: int
    model: ModelRef
    revision: int = 0


class Anchor(msgspec.Struct, frozen=True, omit_defaults=True):
    """P2: a provider count and the raw token sum of the transcript it covered (4.3).

    Attributes:
        output_tokens: what the provider counted of the answer, where its rows came with it; ``output_covered`` is the
            raw token sum of those rows, which it stands for.
        list_rows, list_digest: where the host keeps the transcript, the leading rows that it covered.
    """

    input_tokens: int
    revision: int
    covered_tokens: int
    model: ModelRef
    output_tokens: int = 0
    output_covered: int = 0
    list_rows: int = 0
    list_digest: str = ""


class DidNotFit(msgspec.Struct, frozen=True, omit_defaults=True):
    """P6: why the last request did not fit: ``refused``, ``bounded`` or ``too_large`` (4.4)."""

    cause: str
    named_tokens: int | None = None


class Spend(msgspec.Struct, frozen=True, omit_defaults=True):
    """What attempts that called a paid source cost within one clock hour since the epoch (C6)."""

    hour: int
    tokens: int = 0
    cost: float = 0.0


class Share(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one result of the open run may take (B1, B9); None leaves an axis free.

    Kept in units that no later reading changes, so that an unchanged share gives the same text again.

    Attributes:
        bytes: of its row in the request body.
        tokens: of its row, raw, before the learned factor.
        head_bytes: UTF-8 bytes of a shortened text, where the model's vocabulary is not embedded.
    """

    bytes: int | None = None
    tokens: int | None = None
    head_bytes: int | None = None


class Cadence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cadence record of §5. Boundaries count from 0; times are seconds since the epoch.

    Attributes:
        boundaries: number of the next boundary.
        left_tokens: estimate the last fold left; ``left_threshold`` is the T it was judged by (C3).
        fit_attempts: P6 attempts since the last answered request (C4).
        cooldown_from: when the cooldown started: a clock that is set back behind it ends it.
        cooldown_absent: it is of a source that was not there, and ends when that comes.
        restored_tokens: estimate at the last restore while X2 still holds.
        paid_attempts: times of attempts of the last hour that called a paid source, newest last (C6).
        spending: what they cost, by hour, of the last day.
        warned: codes of warnings that are given once a session.
        ahead_drops: summaries ahead of need in a row that were of no use (A3).
    """

    boundaries: int = 0
    last_fold: int | None = None
    last_attempt: int | None = None
    count: Reading | None = None
    anchor: Anchor | None = None
    did_not_fit: DidNotFit | None = None
    fit_attempts: int = 0
    left_tokens: int | None = None
    left_threshold: int | None = None
    summary_sizes: tuple[int, ...] = ()
    cooldown_until: float | None = None
    cooldown_from: float | None = None
    cooldown_absent: bool = False
    restored_tokens: int | None = None
    last_skip: SkipReason | None = None
    paid_attempts: tuple[float, ...] = ()
    spending: tuple[Spend, ...] = ()
    warned: tuple[str, ...] = ()
    ahead_drops: int = 0


class LedgerCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of folded rounds of the open run, for the call ledger (F3)."""

    name: str
    arguments_json: str
    outcome: str
    count: int = 1


CALL_RAN, CALL_FAILED, CALL_UNANSWERED = "ran", "failed", "unanswered"


class OpenRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """The open run (§1).

    Attributes:
        request: offsets of the run's request, in list order; never folds while the run is open. ``request_tokens`` is
            their raw sum.
        continues: the run whose request this one took over, or empty.
        steering: offsets of user rows that came behind its first assistant row, with its id or none (§1 turn).
        rounds: assistant rows of this run so far; 0 means that its checks are whole.
        paused: the assistant row that waits for the continuation of a server tool, 0 for none: what comes while it
            waits stands behind its continuation (R5).
        opened_offset: first offset that could be this run's own.
        ledger: calls of this run's rounds that are already folded, oldest first; those of a run it continues too.
        share: what the run's results were last bounded to (B9).
        bounded: results of other runs that its requests carry shortened: they stay so, as its own do (B7, B9).
    """

    run_id: str
    opened_boundary: int
    opened_offset: int
    last_active: float
    request: tuple[int, ...] = ()
    request_tokens: int = 0
    continues: str = ""
    rounds: int = 0
    paused: int = 0
    ledger: tuple[LedgerCall, ...] = ()
    share: Share | None = None
    bounded: tuple[int, ...] = ()
    steering: tuple[int, ...] = ()

    @property
    def asked(self) -> tuple[int, ...]:
        """What a run that continues this one takes over: its request and the user rows that steered it (§1)."""
        return (*self.request, *self.steering)


class CallState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that has no final result, or that was sent without one (R3, R5).

    Attributes:
        offset: the assistant row; with ``call_id`` it identifies the call.
        placeholder: text kind first sent in place of a result: empty, ``pending`` or ``not_completed``.
        closed: its run ended before a result came.
        prepare_id, input_tokens: the request that made it, and what the provider counted of it; known where
            checkpoints are on (K4).
    """

    offset: int
    call_id: str
    name: str
    run_id: str = ""
    placeholder: str = ""
    interim: bool = False
    closed: bool = False
    folded: bool = False
    answered: bool = False
    prepare_id: str = ""
    input_tokens: int | None = None


class SystemKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current version of a keyed system row (§2, R5); ``place`` is the offset of the key's first version."""

    key: str
    version: int
    offset: int
    place: int


class SupersededRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A superseded system row that is still in the list: counts nothing, folds along (4.1, F11)."""

    offset: int
    tokens: int
    bytes: int


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a prepared request was, so that its answer can be judged when it comes (L1, 4.3).

    Attributes:
        rows: length of the list it was built from.
        covered_tokens: raw token sum of its transcript; ``request_tokens`` with tools; ``media_tokens`` the part of it
            that stands for media.
        beside_tokens, beside_bytes: of everything but the rows; tokens raw.
        first_bounded: list position of the first row it carried shortened.
        paused: list position of an assistant row that waited for its continuation, None for none (R5).
        list_digest: of the list, where the host keeps it (§14); ``revision`` is then its boundary.
        projection_id: the list is one that this projection makes.
        window: context window of its model; ``ceiling`` is its W.
        answered, metered: it has an answer, and that answer's usage, which a session's totals count once.
    """

    prepare_id: str
    run_id: str
    revision: int
    boundary: int
    rewrites: int
    rows: int
    covered_tokens: int
    request_tokens: int
    request_bytes: int
    bounded: bool
    model: ModelRef
    window: int
    media_tokens: int = 0
    beside_tokens: int = 0
    beside_bytes: int = 0
    first_bounded: int | None = None
    paused: int | None = None
    list_digest: str = ""
    projection_id: str = ""
    ceiling: int = 0
    answered: bool = False
    metered: bool = False


class Wire(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a session's requests reach their model, as its host said last (S3, N1).

    Attributes:
        format: that the host has its requests rendered in, or sends its messages in; None where neither was ever said.
        tools_digest: of the tools in sight, empty for none; ``tools_tokens`` is their raw estimate.
    """

    model: ModelRef
    format: Format | None = None
    tools_digest: str = ""
    tools_tokens: int = 0


class SourceTotals(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage and cost of summarizing, by source, committed or not (S5)."""

    source: SummarySource
    attempts: int = 0
    folds: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """One session's state. ``key`` is the store's; ``rewrites`` counts what voids a count: folds, edits, restores
    and system row updates (4.3).

    Attributes:
        update_time: seconds since the epoch of the last commit; 0 before the first.
        digest: hex of the digest chain's head at ``revision``.
        carried_through: highest offset that a sent request carried (§1 carried).
        prepared_through: highest offset at the last PrepareRequest (V5).
        superseded: superseded system rows that are still active.
        policy: the session's own partial policy, dotted names.
        staged: the projection that waits for the host of a HOST_OWNED session (H3), empty for none; ``again`` are
            archived rows that the host holds active again (M2).
        last_prepared: offsets count and revision of the last prepared request, for ``stable_prefix_rows``.
        wire: how requests reach their model; None where policy asks for nothing that needs it.
        forked_from: id of the session that this one was forked from, empty for none (X3).
    """

    key: int
    tenant: str
    session_id: str
    create_time: str
    model: ModelRef
    update_time: float = 0.0
    ownership: Ownership = Ownership.SIDECAR_OWNED
    policy: dict[str, Any] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    revision: int = 0
    digest: str = ""
    next_offset: int = 1
    rewrites: int = 0
    folds: int = 0
    cadence: Cadence = Cadence()
    open_run: OpenRun | None = None
    calls: tuple[CallState, ...] = ()
    system_keys: tuple[SystemKey, ...] = ()
    superseded: tuple[SupersededRow, ...] = ()
    carried_through: int = 0
    prepared_through: int = 0
    last_prepared: Prepared | None = None
    wire: Wire | None = None
    staged: str = ""
    again: tuple[tuple[int, int], ...] = ()
    pinned_tokens: int = 0
    media_tokens: int = 0
    answers: int = 0
    answer_usage: Usage = Usage()
    summary_totals: tuple[SourceTotals, ...] = ()
    memory_dropped: bool = False
    forked_from: str = ""

    @property
    def call_ledger(self) -> tuple[LedgerCall, ...]:
        """The open run's call ledger (F3); empty without a run."""
        return self.open_run.ledger if self.open_run is not None else ()


class ClosedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run id that is spent; never reopened (§1). ``request`` is what a run that continues it takes over."""

    run_id: str
    outcome: RunOutcome
    request: tuple[int, ...] = ()
