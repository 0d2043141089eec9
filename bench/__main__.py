"""Runs figures of the benchmark list, one or all: ``python -m bench [G3]``.

Every module ``bench/g<N>_….py`` and ``bench/r<N>_….py`` has ``run(rounds) -> dict``. A figure is a ratio against its
peer or floor, measured side by side in the same run; absolute times are printed and never claimed.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import platform
import sys
import time
from typing import Any

import bench

ROUNDS = 5


def modules() -> dict[str, str]:
    """Figure id to module name, in the order of the list."""
    names = [m.name for m in pkgutil.iter_modules(bench.__path__) if not m.name.startswith("_")]
    found = {n.split("_")[0].upper(): n for n in names if n[0] in "gr" and n[1:].split("_")[0].isdigit()}
    found.update({n.upper(): n for n in names if n.upper().split("_")[0] not in found})
    return dict(sorted(found.items(), key=lambda item: (len(item[0].split("_")[0]), item[0])))


def main(wanted: list[str]) -> int:
    known = modules()
    unknown = [w for w in wanted if w.upper() not in known]
    if unknown:
        print(f"no figure {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"machine": {"python": platform.python_version(), "machine": platform.machine()}}
    for figure in [w.upper() for w in wanted] or list(known):
        print(f"== {figure} ({known[figure]})", file=sys.stderr, flush=True)
        started = time.monotonic()
        result = importlib.import_module(f"bench.{known[figure]}").run(ROUNDS)
        result["seconds"] = round(time.monotonic() - started, 1)
        results[figure] = result
        _table(figure, result)
    print(json.dumps(results))
    return 0


def _table(figure: str, result: dict[str, Any]) -> None:
    """The result as lines of a table: nested mappings become dotted names."""
    for name, value in _flat(result, ""):
        print(f"{figure:<5} {name:<56} {value}", file=sys.stderr, flush=True)


def _flat(value: Any, prefix: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        inner = [_flat(below, f"{prefix}.{key}" if prefix else str(key)) for key, below in value.items()]
        return [line for lines in inner for line in lines]
    if isinstance(value, float):
        return [(prefix, f"{value:.4g}")]
    return [(prefix, str(value))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
