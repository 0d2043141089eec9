"""Projections (H3): what a fold of a host's transcript brings, staged until the host commits it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from foldline.domain.folding import CompactionRecord
from foldline.domain.memory import MemoryEntry
from foldline.domain.ports import CallUpdate, StoredRow
from foldline.domain.rows import CompactionSummaryRow


def summary_text(body: CompactionSummaryRow) -> str:
    """A summary as hosts are given it: its ledger included."""
    return "\n\n".join(filter(None, (body.text, body.ledger)))


def digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def projection_name(fold_id: str) -> str:
    """A projection is named after its fold, so that an import knows it again."""
    return f"pr-{fold_id}"


class ProjectionState(StrEnum):
    """What became of a projection; only a staged one has anything to publish."""

    STAGED = "STAGED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    EXPIRED = "EXPIRED"
    REPLACED = "REPLACED"


@dataclass(frozen=True, slots=True)
class HostRow:
    """Which offset a host's row has in the archive; ``part`` numbers the rows that one message made."""

    row_id: str
    part: int
    offset: int


@dataclass(frozen=True, slots=True)
class Projection:
    """What is remembered of every projection, so that its commit may be repeated.

    Attributes:
        expire: when it is removed unless it was committed, seconds since the epoch.
        digest: of the discarded rows, as its summary carries it (H2); ``text_digest`` is of the summary's text, for
            hosts that keep messages of a provider.
        entries: memory entries that it publishes or has published.
    """

    projection_id: str
    fold_id: str
    state: ProjectionState
    expire: float
    digest: str
    text_digest: str
    summary_offset: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class StagedFold:
    """What a commit writes.

    Attributes:
        record: its offsets are given for good: none of them is given again, committed or not.
        rows: new rows of the archive, the summary last; rows that an earlier fold brought there are left out.
        entries: the memory projection (V8), invisible until the commit.
        discarded: the host's ids of what folds, in order; ``before`` is that of the kept row that the summary stands
            before, empty for the end.
        list_rows, list_digest: the list that it was made from, its pins included; ``run_start`` and ``run_id`` are of
            the run that was open.
        threshold: T that what is left is judged by (C3); ``summary_tokens`` after the factor.
        barred: a successor wrote the summary (S2).
    """

    record: CompactionRecord
    rows: tuple[StoredRow, ...]
    entries: tuple[MemoryEntry, ...]
    calls: tuple[CallUpdate, ...]
    host_rows: tuple[HostRow, ...]
    discarded: tuple[str, ...]
    before: str
    list_rows: int
    list_digest: str
    threshold: int
    summary_tokens: int
    barred: bool = False
    run_start: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of a staged projection."""

    projection_id: str
    state: ProjectionState
