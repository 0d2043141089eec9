"""G2: worst inputs are counted in time linear in their length, and nothing panics."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from foldline import _core

from bench import _counting

GOAL = "10 x the bytes <= 12 x the time on each input; no panic"
BYTES = 1_000_000
#: Seconds that the reference gets for one megabyte before it is stopped.
PATIENCE = 20
REFERENCE = """
import sys, time
from bench.g2_worst_inputs import BYTES, inputs
from tests.support.core_oracle import reference
encoding = reference("o200k_base")
text = inputs()[sys.argv[1]](BYTES)
start = time.perf_counter()
encoding.encode_ordinary(text)
sys.stdout.write(str(time.perf_counter() - start))
"""


def inputs() -> dict[str, Callable[[int], str]]:
    """Makers of texts of about so many bytes."""

    def of(chars: str) -> Callable[[int], str]:
        return lambda size: "".join(random.Random(_counting.SEED).choices(chars, k=size // len(chars[0].encode())))

    return {
        "one letter": lambda size: "a" * size,
        "spaces": lambda size: " " * size,
        "newlines": lambda size: "\n" * size,
        "equals signs": lambda size: "=" * size,
        "two letters in turn": lambda size: "ab" * (size // 2),
        "random small letters": of("abcdefghijklmnopqrstuvwxyz"),
        "random capitals": of("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        "random Han": of("".join(map(chr, range(0x4E00, 0x9FFF)))),
        "emoji": of("😀🎉🚀🔥👍🏽"),
        "combining marks": lambda size: "a" + "\u0301" * (size // 2),
        "spaces after a newline": lambda size: "\n" + " " * size + "x",
        "capitals around a Han": lambda size: "A" * (size // 2) + "日" + "A" * (size // 2),
    }


def run(rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"goal": GOAL, "seed": _counting.SEED}
    for name, make in inputs().items():
        short, long = make(BYTES), make(10 * BYTES)
        entry: dict[str, Any] = {}
        for encoding in _core.encodings():
            _core.count_tokens(long, encoding)
            times = [
                (
                    _counting.seconds(lambda: _core.count_tokens(long, encoding)),  # noqa: B023
                    _counting.seconds(lambda: _core.count_tokens(short, encoding)),  # noqa: B023
                )
                for _ in range(rounds)
            ]
            entry[encoding] = {
                "times_for_ten_times": _counting.spread([longer / shorter for longer, shorter in times]),
                "milliseconds_a_megabyte": 1e3 * min(shorter for _, shorter in times),
            }
        entry["tiktoken_o200k_base"] = _reference(name)
        result[name] = entry
    return result


def _reference(name: str) -> str:
    """What the reference does with one megabyte, in a process of its own: it may abort or take minutes."""
    command = [sys.executable, "-c", REFERENCE, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=_counting.ROOT)
    except subprocess.TimeoutExpired:
        return f"not done after {PATIENCE} s"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"fails: {lines[-1][:120]}"
    return f"{1e3 * float(done.stdout):.0f} ms"
