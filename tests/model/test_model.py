"""Random hosts against the model; a failure prints its seed and its last steps.

R1-R6, V1-V10, L1-L5, C4, C5, C7, W1-W4, F5, F6, M2, M4-M7, K5, H1-H3, S6, §13.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.driver import Driver
from tests.model.server import Backend

NEW, LONG = 20_261_130, 1_000
"""Seeds of the short and of the long runs."""


def drive(folder: Path, seed: int, operations: int, *, separate: bool, seconds: float = float("inf")) -> Driver:
    backend = Backend(folder, separate=separate, seed=seed)
    try:
        driver = Driver(backend, seed)
        driver.run(operations, seconds)
    finally:
        backend.close()
    return driver


def test_what_must_hold_holds_after_every_step(tmp_path: Path) -> None:
    driver = drive(tmp_path, NEW, 350, separate=False, seconds=18)
    assert driver.counts["ACTION_SEND_FOLDED"], "no step folded: the run shows nothing"


def test_what_must_hold_holds_across_kills(tmp_path: Path) -> None:
    drive(tmp_path, NEW + 1, 60, separate=True, seconds=8)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(LONG, LONG + 8))
def test_what_must_hold_holds_for_long(tmp_path: Path, seed: int) -> None:
    drive(tmp_path, seed, 2_500, separate=False)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(LONG, LONG + 4))
def test_what_must_hold_holds_across_many_kills(tmp_path: Path, seed: int) -> None:
    drive(tmp_path, seed, 600, separate=True)
