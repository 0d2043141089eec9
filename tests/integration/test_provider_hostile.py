"""Providers that answer what no provider should, byte by byte, through the whole server (S4, S5, C5, V6, W8).

Whatever comes, a fold ends in one event, the server goes on serving, and neither memory nor time grow with the answer.
"""

from __future__ import annotations

import email.utils
import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from foldline.v1 import compaction_pb2, model_pb2, policy_pb2, row_pb2

from tests.integration.host import Host
from tests.integration.test_provider_summaries import LINE, PRICES, ended_once, events, spent
from tests.support.providers import HEADINGS
from tests.support.requests import assistant, user
from tests.support.server import Client, running_server, watched

KEY = "sk-live0123456789abcdefghijklmnop"
KINDS = ("openai", "openai_responses", "anthropic", "google")
NOW = 1_767_225_600.0
SUMMARY = "\n\n".join(f"## {head}\n- something of it" for head in HEADINGS)
_numbers = itertools.count(1)
Says = Callable[["Wire", socket.socket, str], None]


class Wire:
    """A TCP server that speaks by hand. ``paths`` are what it was asked, ``sent`` the bytes that it got rid of."""

    def __init__(self) -> None:
        self.says: Says = answered(SUMMARY)
        self.paths: list[str] = []
        self.requests: list[bytes] = []
        self.sent = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                made, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        with made:
            made.settimeout(30)
            try:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += made.recv(65536)
                head, _, body = data.partition(b"\r\n\r\n")
                lower = head.lower()
                size = int(lower.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                while len(body) < size:
                    body += made.recv(65536)
                path = head.split(b" ")[1].decode()
                self.paths.append(path)
                self.requests.append(head + b"\r\n\r\n" + body)
                self.says(self, made, path)
            except OSError:
                return

    def send(self, made: socket.socket, data: bytes) -> None:
        made.sendall(data)
        self.sent += len(data)

    def close(self) -> None:
        self._socket.close()


def body_of(path: str, text: str, usage: dict[str, Any] | None = None) -> bytes:
    """A whole answer of the API that the path names; ``usage`` by the names of that API."""
    if "chat/completions" in path:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        body: dict[str, Any] = {"choices": [choice], "usage": usage}
    elif "responses" in path:
        part = {"type": "output_text", "text": text}
        body = {"status": "completed", "output": [{"type": "message", "content": [part]}], "usage": usage}
    elif "generateContent" in path:
        candidate = {"finishReason": "STOP", "content": {"parts": [{"text": text}]}}
        body = {"candidates": [candidate], "usageMetadata": usage}
    else:
        body = {
            "type": "message",
            "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}],
            "usage": usage,
        }
    return json.dumps(body).encode()


def head(status: str = "200 OK", **fields: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in {"Connection": "close", **fields}.items()]
    return ("\r\n".join([f"HTTP/1.1 {status}", *lines]) + "\r\n\r\n").encode()


def whole(data: bytes, status: str = "200 OK", **fields: str) -> Says:
    def says(wire: Wire, made: socket.socket, path: str) -> None:
        wire.send(made, head(status, Content_Length=str(len(data)), **fields) + data)

    return says


def answered(text: str, usage: Callable[[str], dict[str, Any]] | None = None, **fields: str) -> Says:
    def says(wire: Wire, made: socket.socket, path: str) -> None:
        whole(body_of(path, text, usage(path) if usage else None), **fields)(wire, made, path)

    return says


def in_bytes(wire: Wire, made: socket.socket, path: str) -> None:
    """Chunks of one byte."""
    wire.send(made, head(Transfer_Encoding="chunked", Content_Type="text/html"))
    pieces = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in body_of(path, SUMMARY))
    wire.send(made, pieces + b"0\r\n\r\n")


def endless(wire: Wire, made: socket.socket, path: str) -> None:
    wire.send(made, head(Transfer_Encoding="chunked"))
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    while wire.sent < 1 << 30:
        wire.send(made, piece)


def bomb(wire: Wire, made: socket.socket, path: str) -> None:
    packed = gzip.compress(b" " * (256 << 20), 9)
    whole(packed, Content_Encoding="gzip")(wire, made, path)


class World:
    def __init__(self, client: Client, wire: Wire) -> None:
        self.client, self.wire = client, wire

    def host(self, kind: str, **summary: Any) -> Host:
        """A host whose history is worth a fold, and whose summaries the wire writes by this API."""
        summary = {"retries": 0, "fast_model": model_pb2.ModelRef(provider=kind, model="m"), **summary}
        host = Host(
            self.client, f"hostile-{next(_numbers)}", summary=policy_pb2.SummaryPolicy(**summary), min_progress=0.0,
            output_reserve_tokens=100,
        )  # fmt: skip
        host.append(*(m for n in range(29) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
        return host


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hostile")
    wire = Wire()
    with running_server(folder, settings(folder, wire), clock=lambda: NOW) as client:
        yield World(client, wire)
    wire.close()


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.wire.says = answered(SUMMARY)
    world.wire.paths.clear()
    world.wire.requests.clear()
    world.wire.sent = 0


def settings(folder: Path, wire: Wire) -> dict[str, str]:
    catalog, key = folder / "models.json", folder / "key"
    model = {"context_window": 8000, "type": "openai", "encoding": "o200k_base", "prices": PRICES}
    catalog.write_text(json.dumps({"small": model, "m": {**model, "context_window": 128_000}}))
    key.write_text(KEY)
    made = {"catalog": str(catalog)}
    for kind in KINDS:
        base = f"{wire.root}/v1" if kind.startswith("openai") else wire.root
        made |= {
            f"providers.{kind}.type": kind, f"providers.{kind}.base_url": base,
            f"providers.{kind}.api_key_file": str(key),
        }  # fmt: skip
    return made


def tried(host: Host) -> tuple[str, str]:
    """Folds; who wrote, or the failure and its words."""
    run = f"run-{next(_numbers)}"
    prepared = host.turn(run, LINE.format(n=1), LINE.format(n=2))
    for _ in range(20):
        if prepared.action == compaction_pb2.ACTION_SEND_FOLDED or prepared.skip:
            break
        prepared = host.turn(f"run-{next(_numbers)}", LINE.format(n=1), LINE.format(n=2))
    assert ended_once(host)
    assert host.verify().ok
    done, failed = events(host, "COMPACTION_COMPLETED"), events(host, "COMPACTION_FAILED")
    if done:
        source = done[-1].compaction_completed.record.summary_source
        return row_pb2.SummarySource.Name(source).removeprefix("SUMMARY_SOURCE_"), ""
    end = failed[-1].compaction_failed
    return compaction_pb2.FailureKind.Name(end.failure).removeprefix("FAILURE_KIND_"), end.message


@pytest.mark.parametrize("kind", KINDS)
class TestBytes:
    def test_s5_an_answer_in_chunks_of_one_byte_and_of_another_content_type_is_an_answer(
        self, world: World, kind: str
    ) -> None:
        world.wire.says = in_bytes
        assert tried(world.host(kind)) == ("PROVIDER", "")

    @pytest.mark.parametrize("says", [endless, bomb])
    def test_s5_an_answer_without_end_is_given_up_and_fills_no_memory(
        self, world: World, kind: str, says: Says
    ) -> None:
        world.wire.says = says
        started = time.monotonic()
        failure, why = tried(world.host(kind, retries=2))
        assert (failure, "more than" in why) == ("SUMMARIZER_FAILED", True), why
        assert world.wire.sent < 64 << 20, "as much as was read, and what the sockets hold"
        assert len(world.wire.paths) == 1, "it would do the same again"
        assert time.monotonic() - started < 30

    @pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
    def test_w8_an_answer_that_points_elsewhere_is_not_followed(self, world: World, kind: str, status: str) -> None:
        other = Wire()
        try:
            world.wire.says = whole(b"", status, Location=f"{other.root}/v1/chat/completions")
            failure, _ = tried(world.host(kind))
            assert failure == "SUMMARIZER_FAILED"
            assert other.requests == [], "neither rows nor the key went there"
        finally:
            other.close()

    def test_s5_what_is_no_answer_is_a_failure(self, world: World, kind: str) -> None:
        for body in NO_ANSWERS:
            world.wire.says = whole(body)
            assert tried(world.host(kind))[0] in ("SUMMARIZER_FAILED", "SUMMARY_REJECTED"), body[:80]

    def test_s5_what_is_no_http_is_a_failure(self, world: World, kind: str) -> None:
        for raw in NO_HTTP:
            world.wire.says = lambda wire, made, path, raw=raw: wire.send(made, raw)  # type: ignore[misc]
            assert tried(world.host(kind))[0] == "SUMMARIZER_FAILED", raw[:80]


NO_ANSWERS = [
        b"[" * 100_000, b'{"a":' * 100_000, b'{"usage": NaN}', b"null", b"[]", b"\xff\xfe{", b'"text"', b"{}",
        b'{"choices": {"0": 1}, "output": 7, "candidates": "x", "content": {"a": 1}, "status": "completed"}',
        b'{"choices": [null, 3], "output": [null], "candidates": [[]], "content": [1], "status": ["completed"]}',
        b'data: {"choices": []}\n\ndata: [DONE]\n\n',
]  # fmt: skip
NO_HTTP = [
        b"", b"HTTP/1.1 200 OK\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 999 No\r\n\r\n", b"HTTP/1.1 204 None\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}", b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
]  # fmt: skip
HUGE = 10**30
USAGES = [-5, HUGE, 2**63, 1e308, "9" * 40, True, None, [], {"a": 1}, 1.5, "-1", 0]


@pytest.mark.parametrize(("kind", "count"), [*zip(KINDS * 3, USAGES, strict=True)])
def test_s5_usage_of_any_shape_commits_and_can_be_read(world: World, kind: str, count: Any) -> None:
    names = (
        "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "promptTokenCount",
        "candidatesTokenCount", "thoughtsTokenCount", "cache_read_input_tokens", "reasoning_tokens",
    )  # fmt: skip
    own = {
        "openai": names[:3],
        "openai_responses": names[3:5],
        "google": names[5:8],
        "anthropic": (*names[3:5], names[8]),
    }
    world.wire.says = answered(SUMMARY, lambda path: dict.fromkeys(own[kind], count))
    host = world.host(kind)
    assert tried(host) == ("PROVIDER", "")
    used = spent(host).usage
    assert 0 <= used.input_tokens <= 2**56
    assert 0 <= used.output_tokens <= 2**56
    assert 0 <= used.cost < float("inf")


def at(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


MONTH = 30 * 86_400
AFTERS = [
    ("-5", 600), ("1000000000", MONTH), ("1e400", MONTH), ("inf", MONTH), ("-inf", 600), ("nan", 600), ("", 600),
    ("soon", 600), ("0x10", 600), ("1_000", 1000), ("9" * 400, MONTH), ("1800, 5", 600), (lambda: at(7200), 7200),
    (lambda: at(-7200), 600), ("Fri, 31 Dec 9999 23:59:59 GMT", MONTH), ("Mon, 01 Jan 0001 00:00:00 GMT", 600),
    ("Mon, 99 Foo 2026 99:99:99 GMT", 600), ("Mon, 01 Jan 99999 00:00:00 GMT", 600),
    ("Mon, 01 Jan 2026 00:00:00 +9999", 600), ("Thu, 01 Jan 1970 00:00:00 -0000", 600),
]  # fmt: skip


@pytest.mark.parametrize(("given", "seconds"), AFTERS, ids=[str(a)[:24] for a, _ in AFTERS])
def test_c5_retry_after_of_any_shape_cools_for_at_least_the_cooldown_and_a_month_at_most(
    world: World, given: Any, seconds: float
) -> None:
    value = given() if callable(given) else given
    for kind in ("openai", "google"):
        world.wire.says = whole(b'{"error": {"message": "slow down"}}', "429 Too Many", Retry_After=value)
        host = world.host(kind)
        failure, _ = tried(host)
        assert failure == "SUMMARIZER_FAILED"
        until = events(host, "COMPACTION_FAILED")[-1].compaction_failed.cooldown_until
        assert abs(until.ToMilliseconds() / 1000 - NOW - seconds) < 60


TEXTS = {
    "a heading of spaces": "# a" + " " * 100_000 + "x",
    "bold of spaces": "**a" + " " * 100_000 + "x",
    "a fence of spaces": "```\n" + " " * 100_000 + "x",
    "open fences": "```a\n" * 40_000 + SUMMARY,
    "open thoughts": "<think " * 30_000 + SUMMARY,
    "open calls": "<invoke " * 30_000 + SUMMARY,
    "many lines": SUMMARY + "\n- x" * 80_000,
    "one line": SUMMARY + "\n" + "word " * 60_000,
    "nul and others": SUMMARY + "\x00\x1b[31m\u2028\ufeff\x85",
    "ten megabytes": SUMMARY + "y" * 10_000_000,
    "headings alone": "\n".join(f"## {h}" for h in HEADINGS) + "\n##" * 50_000,
}


@pytest.mark.parametrize("case", TEXTS)
def test_v6_a_text_of_any_shape_is_judged_while_the_server_serves(world: World, case: str) -> None:
    world.wire.says = answered(TEXTS[case])
    host, other = world.host("openai"), Host(world.client, f"other-{next(_numbers)}")
    started = time.monotonic()
    with watched(other.offsets) as waits:
        ended, why = tried(host)
    assert ended in ("PROVIDER", "SUMMARY_REJECTED"), why
    assert time.monotonic() - started < 15
    assert max(waits, default=0.0) < 5, "others wait for no answer of a provider"


@pytest.mark.parametrize("kind", KINDS)
def test_w8_a_key_that_an_answer_repeats_is_in_no_event_summary_or_log(world: World, kind: str) -> None:
    text = SUMMARY.replace("something of it", f"the header was Authorization: Bearer {KEY}")
    world.wire.says = answered(text)
    host = world.host(kind)
    with structlog.testing.capture_logs() as logs:
        assert tried(host) == ("PROVIDER", "")
        world.wire.says = whole(json.dumps({"error": KEY, "headers": {"x": KEY}}).encode(), "400 Bad")
        tried(world.host(kind))
    everything = repr([str(e) for e in host.events()]) + repr([str(r) for r in host.active()]) + repr(logs)
    assert KEY not in everything
    assert KEY[:20] not in everything
    assert "the header was" in everything


def test_s4_a_secret_of_several_lines_that_an_answer_repeats_is_masked(world: World) -> None:
    secret = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\nqhWnMfhTQ0aXy\n-----END RSA PRIVATE KEY-----"
    world.wire.says = answered(SUMMARY + f"\n```\n{secret}\n```\n- kept apart")
    host = world.host("openai")
    assert tried(host) == ("PROVIDER", "")
    shown = repr([str(e) for e in host.events()]) + repr([str(r) for r in host.active()])
    assert "qhWnMfhTQ0aXy" not in shown
    assert "kept apart" in shown


SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123"
HIDDEN_IN = {
    "nested": json.dumps({"headers": {"Authorization": f"Bearer {SECRET}", "list": [[SECRET], {"a": SECRET}]}}),
    "a key": json.dumps({"env": {SECRET: 1}, SECRET: {"x": 2}}),
    "escaped": '{"token": "' + SECRET.replace("-", "\\u002d").replace("a", "\\u0061") + '"}',
    "no JSON": f"curl -H '{SECRET}",
}


@pytest.mark.parametrize("source", ["provider", "extractive"])
@pytest.mark.parametrize("where", HIDDEN_IN)
def test_s4_no_secret_in_arguments_reaches_a_summary_or_who_writes_it(world: World, where: str, source: str) -> None:
    own = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source.upper()}")
    host = Host(
        world.client, f"secret-{next(_numbers)}", min_progress=0.0, output_reserve_tokens=100,
        summary=policy_pb2.SummaryPolicy(
            source=own, retries=0, fast_model=model_pb2.ModelRef(provider="openai", model="m"), coverage_floor=1.0,
            instructions=f"Never tell {SECRET} to anybody.",
        ),
    )  # fmt: skip
    for n in range(12):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "fetch", "arguments": HIDDEN_IN[where]}}
        host.append(
            user(LINE.format(n=n)), {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"401 for line {n}"}, assistant("It failed."),
            run_id=f"old-{n}",
        )  # fmt: skip
    host.turn("carries", "And now?", "Nothing new.")  # Results that no request carried do not fold (F6).
    host.compact()
    assert (len(world.wire.requests) > 0) == (source == "provider")
    sent = b"".join(world.wire.requests).decode()
    told = "".join(sent.split("\r\n\r\n")[1:])
    (summary,) = [r.compaction_summary.text for r in host.active() if r.HasField("compaction_summary")]
    for shown in (told, summary, repr([str(e) for e in host.events()])):
        assert SECRET not in shown
        assert SECRET[3:] not in shown
        assert SECRET.replace("-", "\\u002d").replace("a", "\\u0061") not in shown.replace("\\\\", "\\")
    assert "fetch" in (told or summary)
