"""G1: tokens counted a second, one thread, against the reference and the fast counters, on each kind of text."""

from __future__ import annotations

import math
from typing import Any

from foldline import _core

from bench import _counting
from tests.support.core_oracle import reference

GOAL = ">= 4 x tiktoken on each kind (o200k_base), >= 1 x toktok-rs over all kinds; exact"
#: Calls of a counter in a round, of which the fastest counts: the first pays for caches that the one before emptied.
REPEATS = 3


def run(rounds: int) -> dict[str, Any]:
    texts, sources = _counting.kinds()
    peers, absent = _counting.peers()
    result: dict[str, Any] = {"goal": GOAL, "inputs": sources}
    if absent:
        result["peers_absent"] = absent
    for encoding in ("o200k_base", "cl100k_base"):
        result[encoding] = _encoding(encoding, texts, peers, rounds)
    return result


def _encoding(encoding: str, texts: dict[str, str], peers: dict[str, _counting.Counter], rounds: int) -> dict[str, Any]:
    tiktoken = reference(encoding)
    counters: dict[str, _counting.Counter] = {
        "foldline": _core.count_tokens,
        "tiktoken": lambda text, _: len(tiktoken.encode_ordinary(text)),
        **peers,
    }
    kinds: dict[str, Any] = {}
    for kind, text in texts.items():
        counts = {name: count(text, encoding) for name, count in counters.items()}
        times: dict[str, list[float]] = {name: [] for name in counters}
        for _ in range(rounds):
            for name, count in counters.items():
                times[name].append(min(_counting.seconds(lambda: count(text, encoding)) for _ in range(REPEATS)))  # noqa: B023
        ours = times.pop("foldline")
        kinds[kind] = {
            "exact": counts["foldline"] == counts["tiktoken"],
            "megabytes_a_second": len(text.encode()) / 1e6 / min(ours),
        } | {
            f"over_{name}": _counting.spread([peer / own for peer, own in zip(theirs, ours, strict=True)])
            for name, theirs in times.items()
        }
    over_all = {
        f"over_{name}": math.exp(sum(math.log(kind[f"over_{name}"]["median"]) for kind in kinds.values()) / len(kinds))
        for name in counters
        if name != "foldline"
    }
    return {**kinds, "all_kinds_geometric_mean": over_all}
