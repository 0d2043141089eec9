"""CountTokens, ClassifyError, NormalizeUsage and the usage of messages, over gRPC (4.2-4.5, R4)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    estimate_service_pb2,
    model_pb2,
    pressure_pb2,
    row_pb2,
    session_pb2,
)

from tests.integration.host import SMALL, Host
from tests.integration.test_boundaries import LONG, codes
from tests.support.requests import assistant, raw, user
from tests.support.server import Client, refused

EXACT, ESTIMATED = pressure_pb2.SOURCE_EXACT, pressure_pb2.SOURCE_ESTIMATED


def count(client: Client, model: model_pb2.ModelRef, **given: Any) -> estimate_service_pb2.CountTokensResponse:
    return client.estimate.CountTokens(estimate_service_pb2.CountTokensRequest(model=model, **given))


def test_4_5_text_is_exact_where_the_vocabulary_is_embedded(client: Client) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    found = count(client, SMALL, text=text)
    assert (found.tokens, found.bytes, found.source, found.estimator_name) == (9, len(text), EXACT, "o200k_base")
    assert (found.estimator_factor, found.HasField("estimator_error")) == (1.0, False)
    other = count(client, model_pb2.ModelRef(provider="acme", model="own"), text=text)
    assert (other.source, other.estimator_name) == (ESTIMATED, "weighted_bytes")


def test_4_5_rows_and_tools_are_estimates_with_what_was_learned(client: Client, name: str) -> None:
    """4.5: the factor is that of the provider and model; a text by its own vocabulary needs none."""
    model = model_pb2.ModelRef(provider=f"provider-of-{name}", model="small")
    before = count(client, model, rows=raw(user(LONG), assistant("ok")))
    assert list(before.row_tokens) == [before.row_tokens[0], before.tokens - before.row_tokens[0]]
    tools = json.dumps([{"name": "read", "parameters": {}}] * 20).encode()
    plain = count(client, model, tools_json=tools)
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    outcome = host.answer(
        prepared, assistant("ok"), usage={"prompt_tokens": 2 * prepared.pressure_sent.forecast_tokens}
    )
    outcome.answer.model.CopyFrom(model)
    assert host.record("r1", outcome).usage.counted
    after = count(client, model, rows=raw(user(LONG), assistant("ok")))
    assert after.source == ESTIMATED
    assert 1.9 < after.estimator_factor < 2.1
    assert after.HasField("estimator_error")
    assert list(after.row_tokens) == pytest.approx([2 * n for n in before.row_tokens], rel=0.1)
    assert count(client, model, tools_json=tools).tokens == pytest.approx(2 * plain.tokens, rel=0.1)
    text = count(client, model, text=LONG)
    assert (text.source, text.estimator_factor) == (EXACT, 1.0)


def test_4_3_an_answer_of_another_model_teaches_that_model_alone(client: Client, name: str) -> None:
    asked, other = f"asked-{name}", f"other-{name}"
    host = Host(client, name)
    shape = compaction_service_pb2.RequestShape(model=model_pb2.ModelRef(provider=asked, model="small"))
    request = compaction_service_pb2.PrepareRequestRequest(session_id=name, run_id="r1", shape=shape)
    request.append.CopyFrom(raw(user(LONG)))
    prepared = client.compaction.PrepareRequest(request)
    outcome = host.answer(
        prepared, assistant("ok"), usage={"prompt_tokens": 2 * prepared.pressure_sent.forecast_tokens}
    )
    outcome.answer.model.CopyFrom(model_pb2.ModelRef(provider=other, model="wide"))
    assert host.record("r1", outcome).usage.counted
    factors = [
        count(client, model_pb2.ModelRef(provider=provider, model=model), rows=raw(user("x"))).estimator_factor
        for provider, model in ((asked, "small"), (other, "wide"))
    ]
    assert factors[0] == 1.0
    assert 1.9 < factors[1] < 2.1


def test_4_4_a_refusal_is_classified_with_its_numbers_and_delay(client: Client) -> None:
    request = estimate_service_pb2.ClassifyErrorRequest(
        http_status=400, raw_body=b'{"error": {"message": "prompt is too long: 207,791 tokens > 200_000 maximum"}}'
    )
    found = client.estimate.ClassifyError(request)
    assert (found.kind, found.request_tokens, found.limit_tokens) == (
        compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED, 207_791, 200_000,
    )  # fmt: skip
    assert not found.HasField("retry_after")
    limited = client.estimate.ClassifyError(
        estimate_service_pb2.ClassifyErrorRequest(http_status=429, raw_body=b"Please try again in 1m6.25s.")
    )
    assert limited.kind == compaction_pb2.REFUSAL_KIND_RATE_LIMITED
    assert limited.retry_after.ToTimedelta() == timedelta(seconds=66.25)
    assert not limited.HasField("request_tokens")


def test_4_4_a_provider_that_says_nothing_of_size_is_known_by_its_name(client: Client) -> None:
    kinds = [
        client.estimate.ClassifyError(
            estimate_service_pb2.ClassifyErrorRequest(provider=provider, http_status=400)
        ).kind
        for provider in ("cerebras", "openai", "")
    ]
    context, invalid = compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED, compaction_pb2.REFUSAL_KIND_INVALID_REQUEST
    assert kinds == [context, invalid, invalid]


def normalized(client: Client, usage: Any, model: str = "small") -> estimate_service_pb2.NormalizeUsageResponse:
    request = estimate_service_pb2.NormalizeUsageRequest(
        model=model_pb2.ModelRef(provider="x", model=model), usage_json=json.dumps(usage).encode()
    )
    return client.estimate.NormalizeUsage(request)


def test_4_3_usage_is_normalised_by_itself_and_in_its_response(client: Client) -> None:
    usage = {
        "prompt_tokens": 500, "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 400, "cache_write_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }  # fmt: skip
    for given in (usage, {"id": "x", "choices": [], "usage": usage}):
        found = normalized(client, given)
        assert found.usage == model_pb2.Usage(
            input_tokens=500, output_tokens=50, cached_input_tokens=400, cache_write_tokens=20, reasoning_tokens=30
        )
        assert not found.warnings


def test_xb6_xe3_what_is_no_reading_says_so(client: Client) -> None:
    assert codes(normalized(client, {"prompt_tokens": 0}).warnings) == {"USAGE_MISSING"}
    assert codes(normalized(client, {}).warnings) == {"USAGE_MISSING"}
    summed = normalized(client, {"requests": 12, "input_tokens": 931_000, "output_tokens": 1})
    assert summed.usage.aggregated
    assert codes(summed.warnings) == {"USAGE_AGGREGATED"}


def test_4_3_usage_that_is_no_object_is_refused(client: Client) -> None:
    for given in (b"[]", b"12", b"{", b'"x"', b"\xff"):
        request = estimate_service_pb2.NormalizeUsageRequest(model=SMALL, usage_json=given)
        assert refused(client.estimate.NormalizeUsage, request).reason == "FORMAT_INVALID"


def used(host: Host) -> tuple[int, model_pb2.Usage]:
    """Calls and usage of the host's own in a session's totals."""
    found = next(u for u in host.get().totals.usage if u.source == session_pb2.USAGE_SOURCE_HOST)
    return found.calls, found.usage


def test_r4_usage_of_appended_messages_is_kept_those_of_dropped_ones_too(client: Client, name: str) -> None:
    host = Host(client, name)
    empty = {"role": "assistant", "content": "", "usage": {"prompt_tokens": 900, "completion_tokens": 0}}
    whole = {**assistant("hello"), "usage": {"prompt_tokens": 100, "completion_tokens": 7}}
    answer = host.append(user("hi"), whole, user("again"), empty)
    assert "MESSAGE_DROPPED" in codes(answer.warnings)
    calls, usage = used(host)
    assert (calls, usage.input_tokens, usage.output_tokens) == (2, 1_000, 7)
    assert not host.get().cadence.HasField("count_tokens"), "nobody prepared those requests"
    host.prepare("r1", user("more"), {**assistant("said before"), "usage": {"prompt_tokens": 50}}, user("now"))
    assert used(host)[0] == 3
    assert used(host)[1].input_tokens == 1_050


def test_r4_usage_on_an_answers_message_is_its_reading_also_where_nothing_is_left_of_it(
    client: Client, name: str
) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    tokens = prepared.pressure_sent.forecast_tokens
    cut = {"role": "assistant", "content": "", "finish_reason": "error", "usage": {"prompt_tokens": tokens}}
    recorded = host.record("r1", host.answer(prepared, cut))
    assert recorded.first_offset == 0
    assert recorded.usage.counted
    assert recorded.usage.usage.input_tokens == tokens
    assert host.get().cadence.anchor_tokens == tokens
    assert used(host)[0] == 1


def test_xe3_usage_on_several_messages_of_an_answer_is_a_sum(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    tokens = prepared.pressure_sent.forecast_tokens
    said = [{**assistant(text), "usage": {"prompt_tokens": tokens}} for text in ("one", "two")]
    recorded = host.record("r1", host.answer(prepared, *said))
    assert not recorded.usage.counted
    assert recorded.usage.usage.aggregated
    assert "USAGE_AGGREGATED" in codes(recorded.warnings)
    assert used(host)[1].input_tokens == 2 * tokens


def test_xe3_a_host_that_says_aggregated_is_believed(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    usage = model_pb2.Usage(input_tokens=prepared.pressure_sent.forecast_tokens, aggregated=True)
    outcome = host.answer(prepared, assistant("ok"))
    outcome.answer.usage.CopyFrom(usage)
    recorded = host.record("r1", outcome)
    assert not recorded.usage.counted
    assert "USAGE_AGGREGATED" in codes(recorded.warnings)
    assert not host.get().cadence.HasField("count_tokens")


def test_l1_usage_that_comes_late_or_twice_is_one_call(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens, "completion_tokens": 4}
    assert not host.record("r1", host.answer(prepared, assistant("ok"))).usage.counted
    assert host.record("r1", host.answer(prepared, usage=usage)).usage.counted
    assert host.record("r1", host.answer(prepared, usage=usage)).usage.counted
    calls, total = used(host)
    assert (calls, total.input_tokens, total.output_tokens) == (1, usage["prompt_tokens"], 4)


RESPONSES = [
    (
        row_pb2.FORMAT_ANTHROPIC_MESSAGES,
        lambda text: {
            "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}] if text else [],
        },
        lambda tokens: {"usage": {"input_tokens": 5, "cache_read_input_tokens": tokens - 5, "output_tokens": 3}},
    ),
    (
        row_pb2.FORMAT_OPENAI_CHAT,
        lambda text: {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]},
        lambda tokens: {
            "usage": {
                "prompt_tokens": tokens, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": tokens - 5},
            }
        },
    ),
    (
        row_pb2.FORMAT_OPENAI_CHAT,
        lambda text: {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]},
        lambda tokens: {"usage": None, "timings": {"prompt_n": 5, "cache_n": tokens - 5, "predicted_n": 3}},
    ),
    (
        row_pb2.FORMAT_OPENAI_RESPONSES,
        lambda text: {
            "status": "completed", "object": "response",
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
            if text else [],
        },
        lambda tokens: {
            "usage": {"input_tokens": tokens, "output_tokens": 3, "input_tokens_details": {"cached_tokens": tokens - 5}}
        },
    ),
    (
        row_pb2.FORMAT_GOOGLE_GENAI,
        lambda text: {
            "candidates": [
                {"finishReason": "STOP", "content": {"role": "model", "parts": [{"text": text}] if text else []}}
            ]
        },
        lambda tokens: {
            "usageMetadata": {
                "promptTokenCount": tokens, "cachedContentTokenCount": tokens - 5, "candidatesTokenCount": 3,
            }
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", ["ok", ""])
@pytest.mark.parametrize("number", range(len(RESPONSES)))
def test_4_3_r4_the_usage_of_a_whole_response_is_read_in_its_format_also_where_it_is_dropped(
    client: Client, name: str, number: int, text: str
) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    tokens = prepared.pressure_sent.forecast_tokens
    fmt, body, usage = RESPONSES[number]
    outcome = compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id)
    outcome.answer.response.format = fmt
    outcome.answer.response.response_json = json.dumps({**body(text), **usage(tokens)}).encode()
    recorded = host.record("r1", outcome)
    assert bool(recorded.first_offset) == bool(text)
    assert ("MESSAGE_DROPPED" in codes(recorded.warnings)) == (not text)
    assert recorded.usage.counted
    read = recorded.usage.usage
    assert (read.input_tokens, read.cached_input_tokens, read.output_tokens) == (tokens, tokens - 5, 3)
    assert used(host)[1].input_tokens == tokens
