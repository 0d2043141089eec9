"""An embeddings endpoint at the wire: an HTTP server that answers as OpenAI's API does, and misbehaves as told."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np

PATIENCE = 30.0


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    model: str
    texts: tuple[str, ...]
    key: str
    body: dict[str, Any]


def vector_of(text: str, width: int) -> list[float]:
    """A vector, not of unit length, in which each word is a direction of its own."""
    total = np.full(width, 1e-3)
    for word in text.lower().split():
        seed = int.from_bytes(hashlib.sha256(word.strip(".,?!").encode()).digest()[:8], "big")
        total = total + np.random.default_rng(seed).standard_normal(width)
    return [float(value) for value in 3 * total]


class FakeEmbeddings:
    """``POST /v1/embeddings``.

    Attributes:
        width: of the vectors.
        status: answered instead of vectors, with an error body; 0 for none.
        refuses: a text that holds this is refused with 400, with all that came in the same call.
        change: makes the answer another one, after it is made.
        gate: waited for before answering.
        asked: every request, in the order in which they came.
    """

    def __init__(self, width: int = 48) -> None:
        self.width = width
        self.status = 0
        self.refuses = ""
        self.change: Callable[[dict[str, Any]], Any] = lambda answer: answer
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[Asked] = []
        self._start(0)

    def _start(self, port: int) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                endpoint._serve(self)

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def go_down(self) -> None:
        """Nobody listens any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def come_back(self) -> None:
        """On the same address."""
        self._start(self._port)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers.get("Content-Length") or 0)))
        texts = tuple([body["input"]] if isinstance(body["input"], str) else body["input"])
        key = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.asked.append(Asked(body["model"], texts, key, body))
        self.gate.wait(PATIENCE)
        status, answer = 200, self._answer(body, texts)
        if handler.path != "/v1/embeddings":
            status, answer = 404, {"error": {"message": "no such path"}}
        elif self.status or (self.refuses and any(self.refuses in text for text in texts)):
            status = self.status or 400
            answer = {"error": {"message": f"refused with {key}: {texts[0]}", "type": "invalid_request_error"}}
        data = json.dumps(answer).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(data)))
            # A connection that lasted would outlive the server.
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def _answer(self, body: dict[str, Any], texts: tuple[str, ...]) -> Any:
        items = [
            {"object": "embedding", "index": index, "embedding": vector_of(text, self.width)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return self.change({"object": "list", "data": items, "model": body["model"], "usage": usage})

    def __enter__(self) -> FakeEmbeddings:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
