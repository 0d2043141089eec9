"""G4: the call of G3 over AttachSession against a ping-pong of echoes over one stream, the same bytes, in turn."""

from __future__ import annotations

from typing import Any

from bench._prepare import AttachedSession, ping_pong
from bench._servers import echo, percentile, product, spread, timed

CALLS, ROWS = 400, 1000


def run(rounds: int) -> dict[str, Any]:
    """Ratios of p50 (goal 1.5), with ``synchronous`` FULL, the default, and NORMAL."""
    return {"goal": {"p50": 1.5}, "FULL": _measure(rounds, "FULL"), "NORMAL": _measure(rounds, "NORMAL")}


def _measure(rounds: int, synchronous: str) -> dict[str, Any]:
    p50, p99, times = [], [], []
    with product("--set", f"store.synchronous={synchronous}") as ours, echo() as floor:
        for number in range(rounds + 1):
            session = AttachedSession(ours, f"g4-{number}", ROWS)
            stream, floor_call = ping_pong(floor, session.request_bytes, session.answer_bytes)
            mine, theirs = [], []
            for _ in range(CALLS):
                mine.append(timed(session.prepare()))
                theirs.append(timed(floor_call))
            session.stream.close()
            stream.close()
            if number == 0:
                continue
            p50.append(percentile(mine, 0.5) / percentile(theirs, 0.5))
            p99.append(percentile(mine, 0.99) / percentile(theirs, 0.99))
            times.append((percentile(mine, 0.5), percentile(theirs, 0.5)))
    middle = sorted(times)[len(times) // 2]
    return {
        "p50_ratio": spread(p50),
        "p99_ratio": spread(p99),
        "p50_microseconds": {"prepare": middle[0] * 1e6, "ping_pong": middle[1] * 1e6},
        "bytes": {"request": session.request_bytes, "answer": session.answer_bytes},
    }
