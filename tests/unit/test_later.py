"""Parts that are made when they are first used."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from foldline.server.later import is_made, later, made


class Part:
    made = 0

    def __init__(self, gate: threading.Event | None = None) -> None:
        if gate:
            gate.wait(10)
        Part.made += 1
        self.number = Part.made


def test_a_part_is_made_once_whoever_asks_first() -> None:
    gate, seen = threading.Event(), list[int]()
    Part.made = 0
    part = later(lambda: Part(gate))
    threads = [threading.Thread(target=lambda: seen.append(part.number)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not is_made(part)
    gate.set()
    for thread in threads:
        thread.join()
    assert seen == [1] * 8
    assert is_made(part)
    assert isinstance(made(part), Part)
    assert made(made(part)) is made(part)


def test_a_part_that_cannot_be_made_says_so_each_time() -> None:
    tries = list[int]()

    def fail() -> Part:
        tries.append(1)
        raise ImportError("no such module")

    part = later(fail)
    for _ in range(2):
        with pytest.raises(ImportError, match="no such module"):
            _ = part.number
    assert (len(tries), is_made(part)) == (2, False)


def test_a_server_is_put_together_without_what_only_folds_and_searches_need() -> None:
    """G16: each of these would be a good part of the time until it is ready."""
    code = "import sys, foldline.server.app; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "grpc" in loaded
    assert not {"numpy", "hnswlib", "onnxruntime", "re2", "openai", "anthropic", "google.genai"} & set(loaded)
