"""Vectors of a scope as one matrix (M3): a cache over the store, never the only copy.

Exact search below the size where building a graph would pay; scores of every entry are what fusion wants anyway.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foldline.domain.memory import MemoryFilter
from foldline.domain.ports import StoreReads
from foldline.domain.session import Session

Floats = npt.NDArray[np.float32]
_UNIT_TOLERANCE = 0.01


@dataclass(frozen=True)
class Scope:
    """Visible entries of a session in (offset, chunk) order.

    Attributes:
        rewrites: of the session it was read for; folds, edits and restores change what is visible, nothing else does.
        pending: entries that a vector may still come for.
        positions: place of an entry id in the order.
        matrix: (entries, width) unit vectors; all zero where ``embedded`` is False.
    """

    rewrites: int
    pending: int
    ids: npt.NDArray[np.int64]
    positions: dict[int, int]
    matrix: Floats
    embedded: npt.NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Bytes held, the dictionary counted at what CPython takes for one item."""
        return self.matrix.nbytes + self.ids.nbytes + self.embedded.nbytes + 100 * len(self.positions)


class ScopeCache:
    """Scopes read from the store, least recently searched evicted over ``budget`` bytes. Thread-safe."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._scopes: OrderedDict[tuple[int, str], Scope] = OrderedDict()
        self._held = 0

    def get(self, reads: StoreReads, session: Session, identity: str, width: int) -> Scope:
        """The scope as ``reads`` has it; what is already here is not read again.

        No embedder is an empty identity and width 0.
        """
        name = (session.key, identity)
        with self._lock:
            known = self._scopes.get(name)
            if known:
                self._scopes.move_to_end(name)
        if known and known.rewrites == session.rewrites and not known.pending:
            return known
        entries, pending = reads.memory_count(session.key, identity)
        if known and (known.rewrites, len(known.ids), known.pending) == (session.rewrites, entries, pending):
            return known
        scope = _read(reads, session, identity, width, pending, known)
        with self._lock:
            self._drop(name)
            if scope.size <= self._budget:
                self._scopes[name] = scope
                self._held += scope.size
            while self._held > self._budget:
                self._drop(next(iter(self._scopes)))
        return scope

    def forget(self, key: int) -> None:
        """Lets go of a session's vectors."""
        with self._lock:
            for name in [name for name in self._scopes if name[0] == key]:
                self._drop(name)

    @property
    def held(self) -> int:
        """Bytes of all cached scopes."""
        return self._held

    def _drop(self, name: tuple[int, str]) -> None:
        scope = self._scopes.pop(name, None)
        if scope:
            self._held -= scope.size


def _read(reads: StoreReads, session: Session, identity: str, width: int, pending: int, known: Scope | None) -> Scope:
    ids = np.array(reads.memory_ids(session.key, MemoryFilter()), np.int64)
    positions = {int(entry_id): i for i, entry_id in enumerate(ids)}
    matrix = np.zeros((len(ids), width), np.float32)
    embedded = np.zeros(len(ids), np.bool_)
    missing: list[int] | None = None
    if known:
        kept = [(positions[i], at) for i, at in known.positions.items() if known.embedded[at] and i in positions]
        if kept:
            new, old = (list(places) for places in zip(*kept, strict=True))
            matrix[new], embedded[new] = known.matrix[old], True
        missing = [int(i) for i in ids[~embedded]]
    found = reads.memory_vectors(session.key, identity, missing)
    _place(found, positions, matrix, embedded)
    return Scope(session.rewrites, pending, ids, positions, matrix, embedded)


def _place(
    found: Sequence[tuple[int, bytes]],
    positions: dict[int, int],
    matrix: Floats,
    embedded: npt.NDArray[np.bool_],
) -> None:
    """Puts stored vectors in their rows; one of the wrong width or length stays out and fails nothing (M9)."""
    found = [(positions[i], vector) for i, vector in found if i in positions and len(vector) == matrix.shape[1] * 4]
    if not found:
        return
    rows = np.array([row for row, _ in found])
    vectors = np.frombuffer(b"".join(vector for _, vector in found), "<f4").reshape(len(found), matrix.shape[1])
    unit = _units(vectors)
    matrix[rows[unit]] = vectors[unit]
    embedded[rows[unit]] = True


def _units(vectors: Floats) -> npt.NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        unit: npt.NDArray[np.bool_] = np.abs(np.einsum("ij,ij->i", vectors, vectors) - 1) < _UNIT_TOLERANCE
    return unit


def is_unit(vector: bytes, width: int) -> bool:
    """Whether bytes are a unit vector of ``width`` float32."""
    return len(vector) == width * 4 > 0 and bool(_units(np.frombuffer(vector, "<f4").reshape(1, width))[0])
