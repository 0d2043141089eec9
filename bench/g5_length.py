"""G5: the call of G3 on sessions of 100, 1 000, 10 000 and 100 000 rows, in turn, against itself at 100."""

from __future__ import annotations

from typing import Any

from bench._prepare import Session
from bench._servers import percentile, product, spread, timed

CALLS, SIZES = 200, (100, 1_000, 10_000, 100_000)


def run(rounds: int) -> dict[str, Any]:
    """p50 at each length over p50 at 100 rows (goal 1.1)."""
    ratios: dict[int, list[float]] = {size: [] for size in SIZES[1:]}
    with product() as channel:
        sessions = {size: Session(channel, f"g5-{size}", size) for size in SIZES}
        for number in range(rounds + 1):
            times: dict[int, list[float]] = {size: [] for size in SIZES}
            for _ in range(CALLS):
                for size, session in sessions.items():
                    times[size].append(timed(session.prepare()))
            if number:
                base = percentile(times[SIZES[0]], 0.5)
                for size in ratios:
                    ratios[size].append(percentile(times[size], 0.5) / base)
    return {"goal": 1.1, **{f"{size}_rows_over_100": spread(values) for size, values in ratios.items()}}
