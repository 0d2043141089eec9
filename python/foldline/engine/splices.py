"""The difference of two lists of offsets, as edits a host can apply to its own copy (W1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """Replaces ``deleted`` elements at ``position`` of the old list by ``inserted``."""

    position: int
    deleted: int
    inserted: tuple[int, ...]


def changes(before: Sequence[int], after: Sequence[int]) -> tuple[Change, ...]:
    """Changes that turn ``before`` into ``after``; positions are of ``before``, highest first.

    In that order no change moves the position of one still to come, so that applying them one by one is right. Elements
    in both lists stay where their order is the same in both; otherwise the span between them is replaced whole.
    """
    start = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if not old and not new:
        return ()
    common = set(old) & set(new)
    if [o for o in old if o in common] != [o for o in new if o in common]:
        common = set()
    found: list[Change] = []
    i = j = 0
    while i < len(old) or j < len(new):
        position, inserted = i, []
        while i < len(old) and old[i] not in common:
            i += 1
        while j < len(new) and new[j] not in common:
            inserted.append(new[j])
            j += 1
        if i > position or inserted:
            found.append(Change(start + position, i - position, tuple(inserted)))
        if i < len(old):
            i, j = i + 1, j + 1
    return tuple(reversed(found))
