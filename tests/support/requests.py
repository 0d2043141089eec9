"""Short ways to write requests in tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    model_pb2,
    row_pb2,
    session_service_pb2,
)

MODEL = model_pb2.ModelRef(provider="openai", model="gpt-4o")


def pages(call: Callable[[Any], Any], request: Any) -> Iterator[Any]:
    """The answers of a list call from the request's page on, to the last; the request is changed on the way."""
    while True:
        page = call(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def raw(*messages: dict[str, Any]) -> row_pb2.RowInput:
    """OpenAI chat messages."""
    data = json.dumps(messages).encode()
    return row_pb2.RowInput(raw=row_pb2.RawMessages(format=row_pb2.FORMAT_OPENAI_CHAT, json=data))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(*ids: str) -> dict[str, Any]:
    made = [{"id": i, "type": "function", "function": {"name": "read", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def append(session_id: str, *messages: dict[str, Any], **fields: Any) -> session_service_pb2.AppendRowsRequest:
    return session_service_pb2.AppendRowsRequest(session_id=session_id, input=raw(*messages), **fields)


def prepare(
    session_id: str, run_id: str, *messages: dict[str, Any], **fields: Any
) -> compaction_service_pb2.PrepareRequestRequest:
    made = compaction_service_pb2.PrepareRequestRequest(
        session_id=session_id, run_id=run_id, reply=compaction_pb2.REPLY_MODE_NONE, **fields
    )
    if messages:
        made.append.CopyFrom(raw(*messages))
    return made


def answer(prepare_id: str, *messages: dict[str, Any], **fields: Any) -> compaction_service_pb2.Outcome:
    return compaction_service_pb2.Outcome(
        prepare_id=prepare_id, answer=compaction_service_pb2.Answer(input=raw(*messages)), **fields
    )


def create(session_id: str, **fields: Any) -> session_service_pb2.CreateSessionRequest:
    return session_service_pb2.CreateSessionRequest(session_id=session_id, model=MODEL, **fields)
