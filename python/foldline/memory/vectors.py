"""Unit vectors as bytes and as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
_UNIT_TOLERANCE = 0.01


def units(vectors: Floats) -> Bools:
    """Which rows are of unit length; none that holds what is no number is."""
    with np.errstate(all="ignore"):
        unit: Bools = np.abs(np.einsum("ij,ij->i", vectors, vectors) - 1) < _UNIT_TOLERANCE
    return unit


def is_unit(vector: bytes, width: int) -> bool:
    """Whether bytes are a unit vector of ``width`` float32."""
    return len(vector) == width * 4 > 0 and bool(units(np.frombuffer(vector, "<f4").reshape(1, width))[0])


def stacked(found: Sequence[tuple[int, bytes]], width: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Ids and vectors of what a store gave, as arrays; what is of another width or length is left out (M9)."""
    sound = [(entry_id, vector) for entry_id, vector in found if len(vector) == width * 4]
    ids = np.array([entry_id for entry_id, _ in sound], np.int64)
    vectors = np.frombuffer(b"".join(vector for _, vector in sound), "<f4").reshape(len(sound), width)
    unit = units(vectors)
    return (ids, vectors) if unit.all() else (ids[unit], vectors[unit])
