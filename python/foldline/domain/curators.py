"""Hosts that write summaries, or fold in the sidecar's place, over a stream that they open (S6, F12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from foldline.domain.enums import Trigger
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.domain.models import Usage
from foldline.domain.rows import CompactionSummaryRow, ModelRef, Row


class CuratorRole(StrEnum):
    """What a host offers to write."""

    CURATOR = "CURATOR"
    COMPACTOR = "COMPACTOR"


@dataclass(frozen=True, slots=True)
class Registration:
    """What a host says of itself.

    Attributes:
        labels: which a session must have, all of them.
        max_tasks: that it takes at once.
        background: it also takes tasks of folds ahead of need (A4).
    """

    role: CuratorRole
    tenant: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    max_tasks: int = 1
    background: bool = False

    def takes(self, role: CuratorRole, tenant: str, labels: Mapping[str, str], *, background: bool) -> bool:
        """Whether tasks of such a session are its own to do; room apart."""
        own = self.role is role and self.tenant == tenant and (self.background or not background)
        return own and all(labels.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class Work:
    """A summary to write.

    Attributes:
        key: of the session, in the store.
        rows: to summarize or to choose from, in list order; none of the open run (F5).
        units: of a compactor's rows, offsets that stay or fold together (F6).
        budget: tokens that the text may take (V6).
        timeout: seconds until the answer is too late.
    """

    role: CuratorRole
    tenant: str
    session_id: str
    key: int
    fold_id: str
    trigger: Trigger
    rows: Sequence[Row]
    earlier: Sequence[CompactionSummaryRow]
    budget: int
    timeout: float
    instructions: str = ""
    model: ModelRef = ModelRef()
    labels: Mapping[str, str] = field(default_factory=dict)
    units: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Handed:
    """Work as it is handed to one host: times in seconds since the epoch, ``attempt`` from 1."""

    task_id: str
    work: Work
    attempt: int
    deadline: float
    lease_expire: float


@dataclass(frozen=True, slots=True)
class Curated:
    """A curator's answer (S6)."""

    text: str
    model: ModelRef = ModelRef()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Who works on a task, and until when unless it says that it lives. Times in seconds since the epoch."""

    task_id: str
    session_key: int
    fold_id: str
    curator_id: str
    curator: str
    attempt: int
    time: float
    expire: float


class Link(Protocol):
    """The way to a connected host. No call waits: what cannot be sent is lost, and the lease with it."""

    def welcome(self, curator_id: str) -> None:
        """Comes before all others."""

    def hand(self, task: Handed) -> None: ...
    def cancel(self, task_id: str, reason: str) -> None: ...


class Carried(Protocol):
    """What a text has to carry beside what its author wrote: the user's constraints (F8), and the appendix (S9).

    Attributes:
        tokens: of the budget that are kept for it.
    """

    tokens: int

    def into(self, answer: Curated) -> SummaryResult:
        """The summary of a curator's text.

        Raises:
            SummaryFailed: SUMMARY_REJECTED where the text is over the budget.
        """


Carrying = Callable[[SummaryRequest], Carried]
