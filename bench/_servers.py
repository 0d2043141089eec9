"""Servers to measure: the product as a process of its own, and an echo on the same server stack beside it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

WINDOW = 1_000_000_000
MODEL = "bench"
ECHO, PING_PONG = "/bench.Echo/Unary", "/bench.Echo/PingPong"


@contextlib.contextmanager
def product(*args: str) -> Iterator[grpc.Channel]:
    """``foldline serve`` with a model whose window nothing fills, over TCP on loopback."""
    with tempfile.TemporaryDirectory(prefix="foldline-bench-") as folder:
        catalog = Path(folder) / "models.json"
        entry = {"context_window": WINDOW, "type": "openai", "encoding": "o200k_base"}
        catalog.write_text(json.dumps({MODEL: entry}))
        command = [sys.executable, "-m", "foldline", "serve", "--data", folder, "--listen", "127.0.0.1:0"]
        settings = ["--socket", "", "--set", f"catalog={catalog}", "--set", "log.level=error", *args]
        with _process([*command, *settings]) as line, _channel(line.split(" serves ")[1].split()[0]) as channel:
            yield channel


@contextlib.contextmanager
def echo() -> Iterator[grpc.Channel]:
    """Echoes on grpcio's threaded server, unary and over a stream: no interceptor, no message class, no work."""
    with _process([sys.executable, "-m", "bench._servers"]) as line, _channel(line.strip()) as channel:
        yield channel


def _channel(target: str) -> grpc.Channel:
    sizes = [(f"grpc.max_{way}_message_length", 64 * 1024 * 1024) for way in ("receive", "send")]
    return grpc.insecure_channel(target, options=sizes)


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOLDLINE_")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the server did not start"
        yield line
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest of a ratio over the counted rounds."""
    ordered = sorted(values)
    return {"median": ordered[len(ordered) // 2], "min": ordered[0], "max": ordered[-1]}


def _serve_echo() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
        # The first four bytes say how long the answer is: the floor carries the same bytes both ways.
        return bytes(int.from_bytes(request[:4], "big"))

    def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield handle(request, context)

    server = grpc.server(ThreadPoolExecutor(16))
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(handle),
        "PingPong": grpc.stream_stream_rpc_method_handler(answer),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    _serve_echo()
