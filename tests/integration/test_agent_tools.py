"""The agent's own tools over gRPC, from their definitions to what they answer (K5)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import ToolParam
from foldline import _core
from foldline.v1 import memory_service_pb2, row_pb2, tool_service_pb2
from google.genai import types as genai
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import TypeAdapter

from tests.integration.host import Host
from tests.integration.test_folds import LONG, grown
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server

Answer = tool_service_pb2.CallAgentToolResponse


def call(host: Host, name: str, arguments: Any = None, **fields: Any) -> Answer:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    request = tool_service_pb2.CallAgentToolRequest(session_id=host.id, name=name, arguments_json=text, **fields)
    return host.client.tool.CallAgentTool(request)


def search(host: Host, query: str, **arguments: Any) -> str:
    answer = call(host, "memory_search", {"query": query, **arguments})
    assert not answer.is_error, answer.text
    return answer.text


def read(host: Host, **arguments: Any) -> str:
    answer = call(host, "read_result", arguments)
    assert not answer.is_error, answer.text
    return answer.text


def mistake(host: Host, name: str, arguments: Any) -> str:
    answer = call(host, name, arguments)
    assert answer.is_error, answer.text
    return answer.text


def listed(host: Host, fmt: str) -> tool_service_pb2.ListAgentToolsResponse:
    request = tool_service_pb2.ListAgentToolsRequest(session_id=host.id, format=row_pb2.Format.Value(f"FORMAT_{fmt}"))
    return host.client.tool.ListAgentTools(request)


@pytest.fixture(scope="module")
def host(client: Client) -> Host:
    """Folded; tests only read it."""
    host = grown(client, "tools")
    host.compact()
    return host


@pytest.fixture
def own(client: Client, name: str) -> Host:
    """Folded, for a test that changes it."""
    host = grown(client, name, 4)
    host.compact()
    return host


def _openai_chat(tools: Any) -> list[tuple[str, str, Any]]:
    TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(tools)
    return [(t["function"]["name"], t["function"]["description"], t["function"]["parameters"]) for t in tools]


def _openai_responses(tools: Any) -> list[tuple[str, str, Any]]:
    TypeAdapter(list[FunctionToolParam]).validate_python(tools)
    assert all(t["strict"] is False for t in tools), "strict schemas have no optional arguments"
    return [(t["name"], t["description"], t["parameters"]) for t in tools]


def _anthropic(tools: Any) -> list[tuple[str, str, Any]]:
    TypeAdapter(list[ToolParam]).validate_python(tools)
    return [(t["name"], t["description"], t["input_schema"]) for t in tools]


def _google(tools: Any) -> list[tuple[str, str, Any]]:
    (tool,) = [genai.Tool.model_validate(t) for t in tools]
    assert tool.function_declarations is not None
    for declaration in tool.function_declarations:
        assert declaration.parameters is not None
        assert declaration.parameters.type == genai.Type.OBJECT
    found = tools[0]["functionDeclarations"]
    return [(d["name"], d["description"], _lowered(d["parameters"])) for d in found]


def _lowered(schema: dict[str, Any]) -> dict[str, Any]:
    lowered = {**schema, "type": schema["type"].lower()}
    if "properties" in schema:
        lowered["properties"] = {k: _lowered(v) for k, v in schema["properties"].items()}
        lowered["additionalProperties"] = False
    return lowered


SHAPES: dict[str, Callable[[Any], list[tuple[str, str, Any]]]] = {
    "OPENAI_CHAT": _openai_chat,
    "OPENAI_RESPONSES": _openai_responses,
    "ANTHROPIC_MESSAGES": _anthropic,
    "GOOGLE_GENAI": _google,
    "CANONICAL": lambda tools: [(t["name"], t["description"], t["input_schema"]) for t in tools],
}


@pytest.mark.parametrize("fmt", SHAPES)
def test_k5_tools_are_handed_out_in_the_shape_of_each_api(host: Host, fmt: str) -> None:
    """As the SDK of each provider reads them; the same tools in all of them."""
    found = listed(host, fmt)
    told = [(t.name, t.description, json.loads(t.input_schema_json)) for t in found.tools]
    assert [t[0] for t in told] == ["memory_search", "read_result"]
    assert SHAPES[fmt](json.loads(found.tools_json)) == told


@pytest.mark.parametrize("tool", ["checkpoint_and_compact", "checkpoint_and_trim"])
def test_k5_there_are_no_checkpoint_tools_unless_enabled(host: Host, tool: str) -> None:
    assert not any("checkpoint" in t.name for t in listed(host, "OPENAI_CHAT").tools)
    refusal = refused(call, host, tool, {"description": "x"})
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "CHECKPOINTS_DISABLED")
    assert refusal.metadata["session_id"] == host.id


def test_m7_dropping_memory_is_no_tool_of_an_agent(host: Host) -> None:
    for name in ("DropScope", "drop_scope", "EnumerateScope", "enumerate_scope"):
        assert "there are memory_search and read_result" in mistake(host, name, {})


def test_k5_what_folded_is_found_and_read_in_full(host: Host) -> None:
    found = search(host, "E4001")
    number = re.search(r"^\[1\] #(\d+), tool, tool result, call c1:\n.*E4001", found)
    assert number is not None, found
    whole = read(host, row=int(number[1]))
    assert whole.startswith(f"#{number[1]}, tool result of call c1, bytes 0 to ")
    assert whole.endswith("worker-1.log: E4001 broken pipe in /srv/worker_1/queue.py")
    assert read(host, call_id="c1") == whole


def test_k5_a_search_can_be_narrowed(host: Host) -> None:
    assert {"user"} == set(re.findall(r"^\[\d\] #\d+, (\w+),", search(host, "worker", role="user"), re.M))
    assert len(re.findall(r"^\[\d+\]", search(host, "worker", limit=2), re.M)) == 2


def test_m4_a_search_can_be_bounded_in_time(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    for year in range(2020, 2027):
        said = row_pb2.Row(user=row_pb2.UserRow(content=[{"text": {"text": f"walnut {year} {LONG}"}}]))
        said.create_time.FromJsonString(f"{year}-05-01T12:00:00Z")
        host.rows(said)
        host.append(assistant(f"noted {year}"))
    host.compact()

    def years(**bounds: str) -> set[str]:
        return set(re.findall(r"user, text, (\d+)-05", search(host, "walnut", limit=20, **bounds)))

    assert {"2020", "2021", "2022"} <= years()
    assert years(before="2021-12-31T00:00:00Z") == {"2020", "2021"}
    assert years(after="2021-01-01", before="2021-12-31") == {"2021"}
    assert years(after="2021-05-01", before="2021-05-01") == {"2021"}, "a day alone is the whole of it"
    assert years(after="2021-05-02", before="2022-04-30") == set()
    assert "Nothing was found" in search(host, "walnut", before="2001-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("memory_search", {}, "missing required field `query`"),
        ("memory_search", "{", "JSON is malformed|Input data was truncated"),
        ("memory_search", "[]", "Expected `object`, got `array`"),
        ("memory_search", {"query": 5}, "Expected `str`, got `int`"),
        ("memory_search", {"query": "  "}, "the query is empty"),
        ("memory_search", {"query": "x", "limit": 0}, "limit is 0, allowed is 1-20"),
        ("memory_search", {"query": "x", "limit": 21}, "limit is 21, allowed is 1-20"),
        ("memory_search", {"query": "x", "top_k": 3}, "unknown field `top_k`.*query, limit, role, after, before"),
        ("memory_search", {"query": "x", "role": "system"}, "Invalid enum value"),
        ("memory_search", {"query": "x", "after": "yesterday"}, "not run: after is no time such as 2025-01-31T12"),
        ("read_result", {}, "give row or call_id"),
        ("read_result", {"row": 1, "call_id": "c1"}, "give row or call_id"),
        ("read_result", {"row": 0}, "Expected `int` >= 1"),
        ("read_result", {"row": 4711}, "the archive holds offsets 1 to"),
        ("read_result", {"row": 1, "start": -1}, "Expected `int` >= 0"),
        ("read_result", {"row": 1, "start": 10**9}, "has .* bytes of text"),
        ("read_result", {"call_id": "nobody"}, "there is no call nobody"),
        ("read_result", {"call_id": ""}, "there is no call"),
        ("read_result", '{"row": 99999999999999999999}', "Expected `int"),
        ("read_result", "[" * 100_000, "arguments do not fit"),
        ("", "x", None),
    ],
)
def test_k5_a_mistake_is_an_answer_that_says_what_to_do(
    host: Host, name: str, arguments: Any, said: str | None
) -> None:
    if said is None:
        assert refused(call, host, name, arguments).reason == "FIELD_VALIDATION"
        return
    text = mistake(host, name, arguments)
    assert re.search(said, text), text
    assert text.startswith(f"{name} was not run: ")
    assert len(text) < 600


def test_k5_numbers_may_come_as_text_and_nothing_as_null(host: Host) -> None:
    assert len(re.findall(r"^\[\d+\]", search(host, "worker", limit="3", role=None), re.M)) == 3


def test_k5_the_session_must_be_there(client: Client) -> None:
    gone = Host.__new__(Host)
    gone.client, gone.id = client, "nowhere"
    assert refused(call, gone, "memory_search", {"query": "x"}).reason == "SESSION_NOT_FOUND"
    assert refused(listed, gone, "OPENAI_CHAT").reason == "SESSION_NOT_FOUND"


def test_m1_a_tool_reads_its_own_session_only(client: Client, name: str, host: Host) -> None:
    """XL21: the scope is the session of the call, whatever the arguments say."""
    other = Host(client, f"{name}-other")
    other.append(user("hello"))
    assert "Nothing was found" in search(other, "E4001")
    assert "there is no call c1" in mistake(other, "read_result", {"call_id": "c1"})
    assert mistake(other, "memory_search", {"query": "E4001", "session_id": host.id}).count("session_id") == 1


def test_b2_a_shortened_result_is_read_to_its_end(client: Client, name: str) -> None:
    """In parts that follow one another without a gap or a double, by the call id that its marker names."""
    host = Host(client, name, auto_compact=False)
    text = "\n".join(f"{n:05d} café 日本語 line of a long log" for n in range(3000))
    host.append(user("read it"), calls("big"), result("big", text))
    parts, start = [], 0
    while True:
        said = read(host, call_id="big", start=start)
        head, part = said.split(":\n", 1)
        parts.append(part)
        assert _core.count_tokens(said, "o200k_base") <= 2000
        found = re.search(r"the rest starts at (\d+)$", head)
        if found is None:
            break
        assert int(found[1]) > start
        start = int(found[1])
    assert "".join(parts) == text
    assert len(parts) > 10


def test_r3_the_newest_answered_call_of_an_id_is_read(client: Client, name: str) -> None:
    """R5: or the one that a request names by its row."""
    host = Host(client, name, auto_compact=False)
    host.append(user("a"), calls("same"), result("same", "first"), user("b"), calls("same"), result("same", "second"))
    host.append(user("c"), calls("open"))
    assert read(host, call_id="same").endswith("second")
    rendered = host.rendered()
    unique = [m["tool_call_id"] for m in rendered if m["role"] == "tool"]
    assert unique[0] == "same"
    assert read(host, call_id=unique[1]).endswith("second")
    assert "has no result yet" in mistake(host, "read_result", {"call_id": "open"})


@settings(max_examples=25)
@given(budget=st.integers(1, 400), limit=st.integers(1, 20), word=st.sampled_from(["worker", "E4001", "acknowledged"]))
def test_m4_answers_keep_to_the_budget(client: Client, budget: int, limit: int, word: str) -> None:
    host = _budgeted(client, budget)
    for text in (search(host, word, limit=limit), read(host, row=1)):
        assert _core.count_tokens(text, "o200k_base") <= max(budget, 80)


def _budgeted(client: Client, budget: int) -> Host:
    host = Host.__new__(Host)
    host.client, host.id = client, f"budget-{budget}"
    try:
        host.get()
    except Exception:
        host = Host(client, host.id, auto_compact=False, memory={"max_answer_tokens": budget})
        host.append(*(m for n in range(3) for m in (user(f"worker-{n} {LONG}"), assistant(f"E{n} acknowledged"))))
        host.compact()
    return host


def test_m7_a_dropped_scope_says_so_and_rows_can_still_be_read(own: Host) -> None:
    host = own
    host.client.memory.DropScope(memory_service_pb2.DropScopeRequest(session_id=host.id))
    assert "was removed" in search(host, "E4001")
    assert "E4001" in read(host, call_id="c1")


def test_w2_a_repeat_gives_the_first_answer(own: Host) -> None:
    host = own
    first = call(host, "memory_search", {"query": "worker"}, request_id="once")
    host.append(user("worker " * 50), assistant("yes"))
    host.compact()
    assert call(host, "memory_search", {"query": "worker"}, request_id="once") == first
    assert refused(call, host, "memory_search", {"query": "other"}, request_id="once").reason == "REQUEST_ID_REUSED"
    wrong = call(host, "read_result", {}, request_id="wrong")
    assert wrong.is_error
    assert call(host, "read_result", {}, request_id="wrong") == wrong
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: call(host, "read_result", {"row": 1}, request_id="many"), range(16)))
    assert all(a == found[0] for a in found)
    assert host.verify().ok


def test_w2_a_repeat_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        host = grown(client, "s")
        host.compact()
        first = call(host, "memory_search", {"query": "E4001"}, request_id="r")
    with running_server(tmp_path) as client:
        host.client = client
        assert call(host, "memory_search", {"query": "E4001"}, request_id="r") == first


@pytest.fixture(scope="module")
def odd(client: Client) -> Host:
    host = Host(client, "odd-rows", auto_compact=False)
    picture = {"type": "image_url", "image_url": {"url": "https://pictures.example/1.png"}}
    host.append({"role": "user", "content": [picture]}, assistant("seen"), {"role": "system", "content": "be brief"})
    return host


@pytest.mark.parametrize(("row", "said"), [(1, "[image"), (2, "seen"), (3, "be brief")])
def test_m6_every_kind_of_row_can_be_read(odd: Host, row: int, said: str) -> None:
    assert said in read(odd, row=row)


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "x" * 16_385},
        {"x" * 500_000: 1},
        {"query": "walnut", "role": "x" * 500_000},
        {"query": "walnut", "limit": "9" * 4_000},
        {"query": "walnut", "after": "x" * 500_000},
    ],
)
def test_k5_what_is_said_of_a_mistake_is_short_however_long_the_mistake(tmp_path: Path, arguments: Any) -> None:
    with running_server(tmp_path) as client:
        text = mistake(grown(client, "s"), "memory_search", arguments)
    assert text.startswith("memory_search was not run: ")
    assert len(text) < 500
