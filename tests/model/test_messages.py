"""Any message of the contract, sent to any method: refused with a reason or served, never a defect (W8)."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import grpc
import pytest
from foldline.v1 import row_pb2, session_service_pb2
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from tests.integration.host import Host
from tests.model.messages import Messages
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refusal_of, running_server

SERVICES = ("session", "compaction", "memory", "event", "estimate", "admin", "tool", "curator")
SESSIONS = ("s1", "s2", "s3")
_DEFECTS = ("UNKNOWN", "INTERNAL", "DATA_LOSS")


def used(client: Client, name: str, messages: Messages) -> None:
    """A session with a bit of everything, and its ids for the messages to come."""
    host = Host(client, name)
    host.append(user("deploy"), calls("call_1"), result("call_1", "out " * 200), assistant("done"), calls("call_2"))
    messages.prepared.append(host.prepare("r1", user("x")).prepare_id)
    page = client.session.ListRows(session_service_pb2.ListRowsRequest(session_id=name, page_size=1))
    messages.tokens.append(page.next_page_token)


def readable(client: Client, name: str) -> None:
    """Whatever was taken can be read, rendered and verified."""
    try:
        client.session.GetSession(session_service_pb2.GetSessionRequest(session_id=name))
    except grpc.RpcError as error:
        assert refusal_of(error).reason == "SESSION_NOT_FOUND", refusal_of(error)
        return
    assert client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=name)).ok
    for view in (1, 2):
        client.session.ListRows(session_service_pb2.ListRowsRequest(session_id=name, view=view, page_size=1000))
    for fmt in (row_pb2.FORMAT_OPENAI_CHAT, row_pb2.FORMAT_ANTHROPIC_MESSAGES, row_pb2.FORMAT_CANONICAL):
        client.session.RenderTranscript(session_service_pb2.RenderTranscriptRequest(session_id=name, format=fmt))


def send(folder: Path, seed: int, count: int) -> Counter[str]:
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4_000, "type": "openai", "encoding": "o200k_base"}}))
    rng, reasons = random.Random(seed), Counter[str]()
    messages = Messages(rng, SESSIONS)
    with running_server(folder, {"catalog": str(catalog)}) as client:
        for name in SESSIONS:
            used(client, name, messages)
        pool = descriptor_pool.Default()
        methods = [
            (getattr(client, name), method)
            for name in SERVICES
            for method in pool.FindServiceByName(f"foldline.v1.{name.capitalize()}Service").methods
        ]
        for number in range(count):
            stub, method = rng.choice(methods)
            if method.name == "WatchEvents" or (method.name == "DeleteSession" and rng.random() < 0.95):
                continue
            request = messages.fill(GetMessageClass(method.input_type)())
            try:
                answer = getattr(stub, method.name)(iter([request]) if method.client_streaming else request, timeout=30)
                if method.server_streaming:
                    list(answer)
                reasons["OK"] += 1
            except grpc.RpcError as error:
                refusal = refusal_of(error)
                assert refusal.code not in _DEFECTS, f"seed {seed}, {number}: {method.name} {request}: {refusal}"
                assert refusal.reason, f"seed {seed}, {number}: {method.name} {request}: {refusal}"
                reasons[refusal.reason] += 1
            if number % 200 == 0:
                for name in SESSIONS:
                    readable(client, name)
        for name in SESSIONS:
            readable(client, name)
    return reasons


def test_w8_any_message_is_served_or_refused_with_a_reason(tmp_path: Path) -> None:
    reasons = send(tmp_path, 7, 1_500)
    assert reasons["OK"] > 100
    assert reasons["FIELD_VALIDATION"] > 100


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", range(100, 110))
def test_w8_any_of_many_messages_is_served_or_refused_with_a_reason(tmp_path: Path, seed: int) -> None:
    send(tmp_path, seed, 10_000)
