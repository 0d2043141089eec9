"""Checkpoints that agents save, and what a trim took out of the list (§11)."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.enums import CheckpointKind
from foldline.domain.folding import OffsetRange

UNAVAILABLE = "unavailable"
"""The usage mark of a result whose request no provider reported (K4)."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A point the agent saved (K1-K3).

    Attributes:
        time: seconds since the epoch.
        revision_before, revision_after: the same where nothing folded.
        fold_id: the fold it ran; empty for a trim, and where nothing folded.
        discarded: offsets that it took out of the list.
    """

    checkpoint_id: str
    description: str
    kind: CheckpointKind
    time: float
    revision_before: int
    revision_after: int
    fold_id: str = ""
    trimmed_calls: int = 0
    discarded: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class TrimmedCall:
    """A call that a trim took (K2), by the row that made it first.

    Attributes:
        history: it stood before the run that was open, so that no ledger of it has the call (F3).
    """

    offset: int
    call_id: str
    history: bool = False


@dataclass(frozen=True, slots=True)
class TrimRecord:
    """What a trim did to the list (K2, V7): enough to replay it.

    Attributes:
        discarded: rows that left the list: results, and assistant rows that went or gave their place.
        digest: of what these rows held.
        derived: (new row, row whose place it took) of assistant rows that lost some of what they held.
        results_indexed: whether memory holds the results too.
    """

    checkpoint_id: str
    discarded: tuple[OffsetRange, ...]
    digest: str
    derived: tuple[tuple[int, int], ...]
    calls: tuple[TrimmedCall, ...]
    results_indexed: bool = True


def usage_text(mark: str) -> str:
    """What is sent behind a result's text (K4); empty for no mark."""
    if not mark:
        return ""
    return f"[input tokens: {mark}]" if mark == UNAVAILABLE else f"[input tokens: {mark}, one request behind]"
