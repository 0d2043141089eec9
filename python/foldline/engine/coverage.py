"""How much of what mattered in folded rows memory holds (S9), beside how much of it their summary does."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.domain.folding import Named
from foldline.domain.memory import MemoryEntry


def held(named: Sequence[Named], entries: Sequence[MemoryEntry]) -> float | None:
    """Share of the identifiers that stand in the entries, [0, 1]; None where there are none.

    An identifier is looked for where its row has its entries, which is where it stands unless that row is not indexed.
    """
    if not named:
        return None
    at: dict[int, str] = {}
    for entry in entries:
        at[entry.offset] = f"{at[entry.offset]}\n{entry.text}" if entry.offset in at else entry.text
    flat: dict[int, str] = {}
    elsewhere = [n for n in named if n.text not in _flat(at, flat, n.offset)]
    whole = "\n".join(at.values()) if elsewhere else ""
    absent = sum(n.text not in whole for n in elsewhere)
    return 1.0 - absent / len(named)


def _flat(at: dict[int, str], flat: dict[int, str], offset: int) -> str:
    """A row's text in one line, as the sentences of a constraint are quoted."""
    if offset not in flat:
        flat[offset] = " ".join(at.get(offset, "").split())
    return flat[offset]
