"""G5: the call of G3 on sessions of 100 to 100 000 rows, and in runs of 100 to 10 000 folded rounds.

Each is measured in turn against itself at 100. Of every folded round the run's ledger keeps the call (F3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench._prepare import LongRun, Session
from bench._servers import percentile, product, spread, timed

CALLS, SIZES, ROUNDS = 200, (100, 1_000, 10_000, 100_000), (100, 1_000, 10_000)


def run(rounds: int) -> dict[str, Any]:
    """p50 at each length over p50 at 100 (goal 1.1)."""
    with product() as channel:
        rows = _measure({size: Session(channel, f"g5-{size}", size) for size in SIZES}, rounds)
        folded = _measure({size: LongRun(channel, f"g5-rounds-{size}", size) for size in ROUNDS}, rounds)
    return {
        "goal": 1.1,
        **{f"{size}_rows_over_100": spread(values) for size, values in rows.items()},
        **{f"{size}_folded_rounds_over_100": spread(values) for size, values in folded.items()},
    }


def _measure(sessions: Mapping[int, Session], rounds: int) -> dict[int, list[float]]:
    least, *longer = sessions
    ratios: dict[int, list[float]] = {size: [] for size in longer}
    for number in range(rounds + 1):
        times: dict[int, list[float]] = {size: [] for size in sessions}
        for _ in range(CALLS):
            for size, session in sessions.items():
                times[size].append(timed(session.prepare()))
        if number:
            base = percentile(times[least], 0.5)
            for size in longer:
                ratios[size].append(percentile(times[size], 0.5) / base)
    return ratios
