"""The active list of a revision, from a rewrite's list and the rows appended since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from foldline.domain.folding import OffsetRange


def listed(base: Iterable[OffsetRange], appended: Iterable[int], places: Mapping[int, int]) -> list[int]:
    """Offsets in list order.

    Args:
        base: the list right after the rewrite, as ranges in list order.
        appended: offsets appended since, ascending.
        places: of appended rows that stand directly behind another row (R5): their offset to that row's. A row whose
            place is not in the list stands at the end.
    """
    offsets = [offset for first, last in base for offset in range(first, last + 1)]
    if not places:
        offsets.extend(appended)
        return offsets
    known = set(offsets)
    behind: dict[int, list[int]] = {}
    for offset in appended:
        place = places.get(offset)
        if place is not None and place in known:
            behind.setdefault(place, []).append(offset)
        else:
            offsets.append(offset)
        known.add(offset)
    found: list[int] = []
    # Each row is followed by those placed behind it, the newest nearest, and each of these by its own.
    stack = offsets[::-1]
    while stack:
        offset = stack.pop()
        found.append(offset)
        stack.extend(behind.get(offset, ()))
    return found
