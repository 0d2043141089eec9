"""G11: recall@10 of the graph against exact search at 100 000 entries, and where a graph begins to pay.

``G11_ENTRIES`` (100000) makes it smaller. The vectors are made up to lie as those of texts do; those of all LoCoMo
turns, embedded by the model, are measured beside them where the file is there and ``G11_REAL`` is set.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from foldline.memory.embed import MiniLm
from foldline.memory.graph import Graph
from foldline.memory.index import CROSSOVER, NEAREST

from bench._scope import DATA, Floats, texts, vectors
from bench._servers import percentile, timed

ENTRIES = int(os.environ.get("G11_ENTRIES", "100000"))
QUERIES, BEST = 100, 10
COPIES = 20
"""Of the nearest so many times ``BEST`` are looked at, for equal ones among them."""
SIZES = (10_000, 40_000, 100_000)


def run(rounds: int) -> dict[str, Any]:
    """Recall (goal 0.98), and milliseconds of exact search, of the graph and of embedding a query, by entries."""
    model = MiniLm()
    held = vectors(ENTRIES + QUERIES, model.width)
    found = {"made_up": _measured(held[:ENTRIES], held[ENTRIES:], model, rounds)}
    if DATA.exists() and os.environ.get("G11_REAL"):
        said = texts(5_800)
        real = np.frombuffer(b"".join(model.embed(said)), "<f4").reshape(len(said), model.width)
        found["locomo"] = _measured(real[QUERIES:], real[:QUERIES], model, rounds)
    return {"goal": 0.98, "crossover": CROSSOVER, **found}


def _measured(held: Floats, asked: Floats, model: MiniLm, rounds: int) -> dict[str, Any]:
    graph, by_size = Graph(held.shape[1], len(held)), {}
    labels = np.empty(0, np.int32)
    for size in sorted({min(size, len(held)) for size in (*SIZES, len(held))}):
        labels = np.concatenate([labels, graph.add(held[len(labels) : size])])
        part = held[:size]
        recalls, times = [], {"exact": [], "graph": [], "embed": []}  # type: ignore[var-annotated]
        for question in asked:
            # Of what the graph tells apart: equal vectors share a label.
            best = labels[np.argsort(-(part @ question))[: BEST * COPIES]]
            exact = list(dict.fromkeys(best.tolist()))[:BEST]
            near, _ = graph.nearest(question, NEAREST)
            recalls.append(len(set(exact) & set(near[:BEST].tolist())) / len(exact))
        for _ in range(rounds):
            for question in asked[:20]:
                times["exact"].append(timed(lambda q=question, p=part: p @ q))
                times["graph"].append(timed(lambda q=question: graph.nearest(q, NEAREST)))
                times["embed"].append(timed(lambda: model.query("what did the parser say about the trailing comma")))
        middle = {f"{name}_ms": round(percentile(values, 0.5) * 1e3, 3) for name, values in times.items()}
        by_size[str(size)] = {"recall_at_10": round(float(np.mean(recalls)), 4), **middle}
    return {"entries": len(held), "by_entries": by_size, "worst_recall": round(min(recalls), 4)}
