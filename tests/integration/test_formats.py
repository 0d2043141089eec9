"""An agent that speaks one provider's own JSON, over gRPC: what it sends is what it would have sent, folds included."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from foldline.v1 import (
    admin_service_pb2,
    compaction_pb2,
    compaction_service_pb2,
    model_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.integration.host import SMALL
from tests.support.server import Client
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

Json = dict[str, Any]
FAULTS: dict[row_pb2.Format.ValueType, Callable[..., list[str]]] = {
    row_pb2.FORMAT_OPENAI_CHAT: openai_chat_faults,
    row_pb2.FORMAT_OPENAI_RESPONSES: openai_responses_faults,
    row_pb2.FORMAT_ANTHROPIC_MESSAGES: anthropic_faults,
    row_pb2.FORMAT_GOOGLE_GENAI: google_faults,
}
LONG = "The figs in row two are dry, those in row three are wet. " * 24


@dataclass(frozen=True, slots=True)
class Agent:
    """How one provider's agent writes.

    Attributes:
        field: of a request that holds the messages, empty where the request is their array.
        user: a message of the user.
        answer: the messages of an answer, and the whole response body that holds them, with this many input tokens.
        result: the message that answers its call.
    """

    format: row_pb2.Format.ValueType
    provider: str
    field: str
    user: Callable[[str], Json]
    answer: Callable[[int, int], tuple[list[Json], Json]]
    result: Callable[[int, str], Json]

    def messages(self, rendered: bytes) -> list[Json]:
        request = json.loads(rendered)
        found: list[Json] = request[self.field] if self.field else request
        return found


def chat_answer(number: int, tokens: int) -> tuple[list[Json], Json]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "soil", "arguments": '{"row": 2}'}}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": tokens, "completion_tokens": 9}
    return [message], {"object": "chat.completion", "model": "small", "choices": [choice], "usage": usage}


def responses_answer(number: int, tokens: int) -> tuple[list[Json], Json]:
    items: list[Json] = [
        {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"gAAA{number}=="},
        {
            "type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call", "id": f"fc_{number}", "call_id": f"c{number}", "name": "soil",
            "arguments": '{"row": 2}', "status": "completed",
        },
    ]  # fmt: skip
    usage = {"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 9}
    return items, {"object": "response", "status": "completed", "model": "small", "output": items, "usage": usage}


def anthropic_answer(number: int, tokens: int) -> tuple[list[Json], Json]:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": f"EqQ{number}"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": f"toolu_{number}", "name": "soil", "input": {"row": 2}},
    ]
    message = {"role": "assistant", "content": content}
    usage = {"input_tokens": tokens, "cache_read_input_tokens": 0, "output_tokens": 9}
    return [message], {"type": "message", "model": "small", "stop_reason": "tool_use", "usage": usage, **message}


def google_answer(number: int, tokens: int) -> tuple[list[Json], Json]:
    parts = [
        {"text": "hm", "thought": True},
        {"text": "I look."},
        {"functionCall": {"name": "soil", "args": {"row": 2}}, "thoughtSignature": f"c2lnbg{number}"},
    ]
    content = {"role": "model", "parts": parts}
    usage = {"promptTokenCount": tokens, "candidatesTokenCount": 9}
    return [content], {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}


def anthropic_result(number: int, text: str) -> Json:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}]}


def google_result(number: int, text: str) -> Json:
    return {"role": "user", "parts": [{"functionResponse": {"name": "soil", "response": {"output": text}}}]}


AGENTS = (
    Agent(
        row_pb2.FORMAT_OPENAI_CHAT, "openai", "", lambda text: {"role": "user", "content": text}, chat_answer,
        lambda number, text: {"role": "tool", "tool_call_id": f"c{number}", "content": text},
    ),
    Agent(
        row_pb2.FORMAT_OPENAI_RESPONSES, "openai", "input", lambda text: {"role": "user", "content": text},
        responses_answer,
        lambda number, text: {"type": "function_call_output", "call_id": f"c{number}", "output": text},
    ),
    Agent(
        row_pb2.FORMAT_ANTHROPIC_MESSAGES, "anthropic", "messages", lambda text: {"role": "user", "content": text},
        anthropic_answer, anthropic_result,
    ),
    Agent(
        row_pb2.FORMAT_GOOGLE_GENAI, "google", "contents", lambda text: {"role": "user", "parts": [{"text": text}]},
        google_answer, google_result,
    ),
)  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: row_pb2.Format.Name(agent.format))
def test_w4_what_an_agent_sends_in_its_own_format_is_its_own_list_until_it_folds(
    client: Client, name: str, agent: Agent
) -> None:
    """W4, R5, F7: requests are the host's messages back; after a fold they are still valid for each API."""
    model = model_pb2.ModelRef(provider=agent.provider, model="small")
    client.session.CreateSession(session_service_pb2.CreateSessionRequest(session_id=name, model=model))
    own = [agent.user("Water the figs.")]
    prepared = prepare(client, name, agent, own)
    folded = 0
    for number in range(14):
        if prepared.action == compaction_pb2.ACTION_SEND_FOLDED:
            folded += 1
        if not folded:
            assert agent.messages(prepared.rendered_json) == own
        sent, body = agent.answer(number, prepared.pressure_sent.forecast_tokens or 50)
        own += sent
        told = agent.result(number, f"{number}: {LONG}")
        own.append(told)
        prepared = prepare(client, name, agent, [told], outcome(prepared.prepare_id, agent, body))
        for fmt, faults in FAULTS.items():
            request = session_service_pb2.RenderTranscriptRequest(session_id=name, format=fmt)
            found = faults(json.loads(client.session.RenderTranscript(request).rendered_json))
            assert found == [], f"{row_pb2.Format.Name(fmt)} after {number}"
    assert folded
    tail = agent.messages(prepared.rendered_json)
    kept = next(n for n in range(len(own)) if own[n:] == tail[-len(own) + n :])
    assert kept < len(own) - 2, "what stayed is the host's own messages"
    assert client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=name)).ok


def prepare(
    client: Client,
    name: str,
    agent: Agent,
    messages: list[Json],
    previous: compaction_service_pb2.Outcome | None = None,
) -> compaction_service_pb2.PrepareRequestResponse:
    raw = row_pb2.RawMessages(format=agent.format, json=json.dumps(messages).encode())
    request = compaction_service_pb2.PrepareRequestRequest(
        session_id=name, run_id="r", append=row_pb2.RowInput(raw=raw), format=agent.format,
        reply=compaction_pb2.REPLY_MODE_WHOLE, previous_answer=previous,
    )  # fmt: skip
    return client.compaction.PrepareRequest(request)


def outcome(prepare_id: str, agent: Agent, body: Json) -> compaction_service_pb2.Outcome:
    response = compaction_service_pb2.ResponseBody(format=agent.format, response_json=json.dumps(body).encode())
    return compaction_service_pb2.Outcome(
        prepare_id=prepare_id, answer=compaction_service_pb2.Answer(response=response)
    )


def test_the_server_lists_every_format(client: Client) -> None:
    info = client.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest()).server
    assert sorted(info.formats) == [v for v in sorted(row_pb2.Format.values()) if v]


def test_n_compaction_items_of_hosts_come_back_in_their_answer(client: Client, name: str) -> None:
    """A provider may compact by itself; its item is a part of the answer, and no row that only the sidecar writes."""
    client.session.CreateSession(session_service_pb2.CreateSessionRequest(session_id=name, model=SMALL))
    agent = AGENTS[1]
    items = [
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    first = prepare(client, name, agent, [agent.user("Go on.")])
    body = {"object": "response", "status": "completed", "output": items, "usage": {"input_tokens": 9}}
    again = prepare(client, name, agent, [agent.user("And now?")], outcome(first.prepare_id, agent, body))
    assert agent.messages(again.rendered_json) == [agent.user("Go on."), *items, agent.user("And now?")]
    request = session_service_pb2.ListRowsRequest(session_id=name, view=session_pb2.ROW_VIEW_ACTIVE)
    assert [r.WhichOneof("body") for r in client.session.ListRows(request).rows] == ["user", "assistant", "user"]
