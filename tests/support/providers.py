"""Model providers at the wire: HTTP servers that answer as the real APIs do, by a script, and keep what they were sent.

The shapes of answers and errors are in ``tests/data/providers``, one file an API, one entry a behaviour.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

SHAPES = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parents[1] / "data" / "providers").glob("*.json"))
}
STATUS = {
    "rate_limited": 429,
    "server_error": 500,
    "overloaded": 503,
    "context_exceeded": 400,
    "too_large": 413,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unsupported_parameter": 400,
    "not_taken": 400,
    "unanswered": 400,
    "compaction_unavailable": 529,
}
"""HTTP status of behaviours that are errors."""
HEADINGS = (
    "Goals and constraints",
    "Decisions and rationale",
    "Actions and results",
    "Errors and resolutions",
    "Open questions and next steps",
    "Technical details",
)
_PATHS = (
    (re.compile(r"/v1/chat/completions"), "openai"),
    (re.compile(r"/v1/responses/compact"), "openai_compact"),
    (re.compile(r"/v1/responses"), "openai_responses"),
    (re.compile(r"/v1/messages"), "anthropic"),
    (re.compile(r"/v1(?:beta)?/models/[^/:]+:generateContent"), "google"),
    (re.compile(r"/v1/models/[^/:]+"), "anthropic_models"),
)
NATIVE = ("openai_compact", "anthropic_parameter", "anthropic_edit")
"""APIs of providers' own compaction (N1)."""
_PATIENCE = 30.0
"""Seconds after which a gate that nobody opens fails the test instead of hanging it."""


@dataclass(frozen=True)
class Does:
    """One behaviour: an entry of the shapes, and how it is sent.

    Attributes:
        what: name of an entry of the shapes, or ``empty`` (200 without a body), ``cut`` (half of an answer, then the
            connection is closed), ``stall`` (half of an answer, the rest behind the gate), ``drop`` (closed without a
            word).
        text: what the model says, in place of a summary of its prompt; None writes one.
        status: in place of the behaviour's own.
        body: raw bytes in place of the shape.
        headers: sent along, as ``Retry-After``.
        gate: waited for before anything, or the rest, is sent; ``seconds`` at most.
    """

    what: str = "success"
    text: str | None = None
    status: int | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: threading.Event | None = None
    seconds: float = _PATIENCE


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    api: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def system(self) -> str:
        if self.api in (*NATIVE, "anthropic_models"):
            return str(self.body.get("system") or self.body.get("instructions") or "")
        if self.api == "openai":
            return str(self.body["messages"][0]["content"])
        if self.api == "openai_responses":
            return str(self.body.get("instructions", ""))
        if self.api == "google":
            return "".join(part["text"] for part in self.body.get("systemInstruction", {"parts": []})["parts"])
        return str(self.body.get("system", ""))

    @property
    def user(self) -> str:
        if self.api in (*NATIVE, "anthropic_models"):
            return json.dumps(self.body.get("messages") or self.body.get("input"))
        if self.api == "openai":
            return str(self.body["messages"][1]["content"])
        if self.api == "openai_responses":
            return str(self.body["input"])
        if self.api == "google":
            return "".join(part.get("text", "") for part in self.body["contents"][0]["parts"])
        return str(self.body["messages"][0]["content"])

    @property
    def most(self) -> int:
        """The most tokens of an answer that were asked for."""
        if self.api == "google":
            return int(self.body["generationConfig"]["maxOutputTokens"])
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        return int(next(self.body[n] for n in names if n in self.body))


def summary_of(prompt: str) -> str:
    """A real summary of what a prompt holds: six headings, the requests quoted, the calls counted."""
    spoken = re.findall(r"^\[#(\d+)\] ([^\n:]+):\n(.*)$", prompt, re.MULTILINE)
    asked = [(n, text[:160]) for n, who, text in spoken if who == "user"]
    called = [f"- [#{n}] {who.removeprefix('assistant ')}" for n, who, _ in spoken if who.startswith("assistant calls")]
    failed = [f"- [#{n}] {who}: {text[:120]}" for n, who, text in spoken if who.endswith("(failed)")]
    names = sorted(set(re.findall(r"[\w./-]+/[\w.-]+\.\w+", prompt)))[:20]
    sections = (
        [f'- Asked [#{n}]: "{text}"' for n, text in (*asked[:1], *asked[1:][-3:])],
        [],
        called[:12],
        failed[:6],
        [f'- The last request [#{asked[-1][0]}]: "{asked[-1][1]}"'] if asked else [],
        [f"- {', '.join(names)}"] if names else [],
    )
    return "\n\n".join(
        f"## {head}\n{chr(10).join(body) or 'none'}" for head, body in zip(HEADINGS, sections, strict=True)
    )


class FakeProvider:
    """A server of every API at once. Behaviours are taken from ``script`` in turn; ``otherwise`` answers the rest.

    Attributes:
        received: every request, in the order in which they came.
        models: what the Models API does; ``probes`` are the paths that it was asked, which are none of ``received``.
    """

    def __init__(self, *script: Does, otherwise: Does | Callable[[Received], Does] = Does()) -> None:
        self.script = list(script)
        self.models = Does()
        self.probes: list[str] = []
        self.otherwise = otherwise
        self.received: list[Received] = []
        self._arrived = threading.Condition()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                provider._serve(self)

            def do_GET(self) -> None:
                provider._probe(self)

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def base_url(self, kind: str) -> str:
        """What ``providers.NAME.base_url`` is for a type of provider."""
        return f"{self.root}/v1" if kind.startswith("openai") else self.root

    @property
    def calls(self) -> int:
        return len(self.received)

    def wait_for_calls(self, count: int, seconds: float = 10.0) -> bool:
        """Waits until so many requests have come; False if they do not."""
        with self._arrived:
            return self._arrived.wait_for(lambda: len(self.received) >= count, seconds)

    def _probe(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.split("?")[0]
        if _api(path) != "anthropic_models":
            handler.send_error(404)
            return
        self.probes.append(path)
        headers = {k.lower(): v for k, v in handler.headers.items()}
        self._answer(
            handler, Received("anthropic_models", path, headers, {"model": path.rpartition("/")[2]}), self.models
        )

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        api = _api(handler.path.split("?")[0])
        if not api:
            handler.send_error(404)
            return
        body = json.loads(content)
        if api == "anthropic" and "compaction" in body:
            api = "anthropic_parameter"
        elif api == "anthropic" and any(e.get("pause_after_compaction") for e in _edits(body)):
            api = "anthropic_edit"
        received = Received(api, handler.path, {k.lower(): v for k, v in handler.headers.items()}, body)
        with self._arrived:
            self.received.append(received)
            does = self.script.pop(0) if self.script else None
            self._arrived.notify_all()
        if does is None:
            does = self.otherwise(received) if callable(self.otherwise) else self.otherwise
        if does.gate is not None and does.what != "stall":
            does.gate.wait(does.seconds)
        try:
            self._answer(handler, received, does)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True  # The caller went away, as one that is cancelled does.

    def _answer(self, handler: BaseHTTPRequestHandler, received: Received, does: Does) -> None:
        if does.what == "drop":
            handler.close_connection = True
            return
        name = "success" if does.what in ("cut", "stall") else does.what
        body = b"" if name == "empty" else does.body
        body = _shaped(received, name, does.text) if body is None else body
        handler.send_response(does.status or STATUS.get(name, 200))
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        for key, value in does.headers.items():
            handler.send_header(key, value)
        handler.end_headers()
        half = len(body) // 2 if does.what in ("cut", "stall") else len(body)
        handler.wfile.write(body[:half])
        if does.what == "stall" and does.gate is not None:
            handler.wfile.flush()
            does.gate.wait(does.seconds)
            handler.wfile.write(body[half:])
        handler.close_connection = does.what == "cut" or handler.close_connection

    def __enter__(self) -> FakeProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _api(path: str) -> str:
    return next((name for pattern, name in _PATHS if pattern.fullmatch(path)), "")


def _edits(body: dict[str, Any]) -> list[dict[str, Any]]:
    return list(body.get("context_management", {}).get("edits", ()))


def _shaped(received: Received, name: str, text: str | None) -> bytes:
    text = summary_of(received.user) if text is None else text
    key = received.headers.get("authorization", "").removeprefix("Bearer ")
    key = key or received.headers.get("x-api-key") or received.headers.get("x-goog-api-key") or ""
    items = received.body.get("input") if received.api == "openai_compact" else ()
    users = [i for i in items or () if isinstance(i, dict) and i.get("role") == "user"]
    taken, given = len(received.system + received.user) // 4, len(text) // 4 + 1
    words: dict[str, Any] = {
        "{text}": text, "{cut}": text[: len(text) // 2], "{model}": str(received.body.get("model", "a-model")),
        "{input}": taken, "{output}": given, "{total}": taken + given, "{opaque}": "gAAAAABn" + "Zm9sZGxpbmU" * 8,
        "{*users}": users,
    }  # fmt: skip
    return json.dumps(_filled(SHAPES[received.api][name], words, key)).encode()


def _filled(shape: Any, words: Mapping[str, Any], key: str) -> Any:
    if isinstance(shape, dict):
        return {k: _filled(v, words, key) for k, v in shape.items()}
    if isinstance(shape, list):
        parts = [words[v] if v == "{*users}" else [_filled(v, words, key)] for v in shape]
        return [value for part in parts for value in part]
    if isinstance(shape, str):
        return words[shape] if shape in words else shape.replace("{key}", key)
    return shape
