"""The texts of G1 and G2, and the peers of the counter, called the same way: one Python call for one text."""

from __future__ import annotations

import base64
import importlib.machinery
import importlib.util
import json
import random
import shutil
import statistics
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from foldline import _core

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
SEED = 7
MOST_CHARS = 1_000_000

Counter = Callable[[str, str], int]


def peers() -> tuple[dict[str, Counter], str]:
    """``toktok-rs`` and ``bpe-openai`` from ``rust/bench``, and why they are absent if they are."""
    if shutil.which("cargo") is None:
        return {}, "cargo is not installed: rust/bench cannot be built"
    manifest = ROOT / "rust" / "bench" / "Cargo.toml"
    command = ["cargo", "build", "-q", "--release", "--locked", "--lib", "--message-format=json", "--manifest-path"]
    built = subprocess.run([*command, str(manifest)], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        return {}, f"rust/bench does not build: {built.stderr.strip()[-300:]}"
    files = [
        file
        for message in map(json.loads, built.stdout.splitlines())
        if message.get("target", {}).get("name") == "foldline_peers"
        for file in message.get("filenames", [])
    ]
    library = next(file for file in files if Path(file).suffix in {".so", ".dylib", ".pyd"})
    loader = importlib.machinery.ExtensionFileLoader("foldline_peers", library)
    spec = importlib.util.spec_from_loader("foldline_peers", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return {"toktok-rs": module.count_toktok, "bpe-openai": module.count_bpe_openai}, ""


def kinds() -> tuple[dict[str, str], dict[str, str]]:
    """Texts by kind, and where each comes from. A kind whose input is not at hand is left out and said so."""
    makers: dict[str, tuple[str, Callable[[], str]]] = {
        "prose": ("dialogues of locomo10.json", _prose),
        "code": ("this Python's standard library", _code),
        "json": ("airline-runs.json", lambda: (DATA / "airline-runs.json").read_text("utf-8")),
        "tool_output": ("tool results of coding-session.jsonl", _tool_output),
        "cjk": (f"words of the vocabulary by falling rank, seed {SEED}", _cjk),
        "base64": (f"random bytes, seed {SEED}", _base64),
    }
    texts, sources = {}, {}
    for kind, (source, make) in makers.items():
        try:
            texts[kind] = make()[:MOST_CHARS]
            sources[kind] = source
        except FileNotFoundError as absent:
            sources[kind] = f"left out: no {absent.filename}"
    return texts, sources


def _prose() -> str:
    dialogues = json.loads((DATA / "locomo10.json").read_text("utf-8"))
    sessions = [part for talk in dialogues for part in talk["conversation"].values() if isinstance(part, list)]
    return "\n".join(turn["text"] for session in sessions for turn in session)


def _code() -> str:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return "".join(file.read_text("utf-8") for file in files)


def _tool_output() -> str:
    lines = (DATA / "coding-session.jsonl").read_text("utf-8").splitlines()
    return "\n".join(text for line in lines for text in _results(json.loads(line)))


def _results(entry: dict[str, Any]) -> Iterator[str]:
    message = entry.get("message", {})
    if message.get("role") == "toolResult":
        yield from (part["text"] for part in message["content"] if part["type"] == "text")


def _cjk() -> str:
    """Harder than real text: words follow each other at random, so more of them do not stand together as tokens."""
    words = [word for token in _core.ranks("o200k_base") if (word := token.decode("utf-8", "ignore")) and _is_han(word)]
    weights = [1 / (place + 20) for place in range(len(words))]
    rng = random.Random(SEED)
    parts = []
    for _ in range(40_000):
        parts += rng.choices(words, weights, k=rng.randint(3, 14))
        parts.append(rng.choice("，，，。。？！\n"))
    return "".join(parts)[: MOST_CHARS // 3]


def _is_han(word: str) -> bool:
    return all("\u4e00" <= char <= "\u9fff" for char in word)


def _base64() -> str:
    return base64.b64encode(random.Random(SEED).randbytes(600_000)).decode()


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread, where all counters work: other load on the machine stretches wall time alone."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def spread(ratios: list[float]) -> dict[str, float]:
    """Median, least and most of the rounds' ratios."""
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
