"""4.3 and faults E: usage of every provider as one shape."""

from typing import Any

import pytest
from foldline.domain.enums import Format, ModelType
from foldline.domain.models import COUNT_MAX, Prices, Usage
from foldline.engine.usage import NormalizedUsage, from_response, normalize

OPENAI, ANTHROPIC, GOOGLE, OTHER = ModelType.OPENAI, ModelType.ANTHROPIC, ModelType.GOOGLE, ModelType.OTHER

SHAPES: list[tuple[str, ModelType, dict[str, Any], tuple[int | None, int | None, int | None]]] = [
    (
        "XE1 openai chat: cached tokens are among the prompt's", OPENAI,
        {"prompt_tokens": 9_000, "completion_tokens": 40, "total_tokens": 9_040,
         "prompt_tokens_details": {"cached_tokens": 8_000}, "completion_tokens_details": {"reasoning_tokens": 30}},
        (9_000, 40, 8_000),
    ),
    (
        "XE1 llama.cpp usage with the cache's count beside it", OPENAI,
        {"prompt_tokens": 9_000, "completion_tokens": 40, "cache_n": 8_000}, (9_000, 40, None),
    ),
    ("llama.cpp timings: evaluated and reused", OPENAI,
     {"cache_n": 8_000, "prompt_n": 1_000, "predicted_n": 40, "prompt_ms": 12.5}, (9_000, 40, 8_000)),
    ("ollama", OTHER, {"prompt_eval_count": 812, "eval_count": 33}, (812, 33, None)),
    ("deepseek names the cache's part its own way", OPENAI,
     {"prompt_tokens": 500, "completion_tokens": 9, "prompt_cache_hit_tokens": 384, "prompt_cache_miss_tokens": 116},
     (500, 9, 384)),
    ("openai responses", OPENAI,
     {"input_tokens": 9_000, "input_tokens_details": {"cached_tokens": 8_000}, "output_tokens": 40,
      "output_tokens_details": {"reasoning_tokens": 30}, "total_tokens": 9_040}, (9_000, 40, 8_000)),
    ("openai responses without details", OPENAI, {"input_tokens": 9_000, "output_tokens": 40}, (9_000, 40, None)),
    ("XE4 anthropic: cache reads and writes stand beside the input", ANTHROPIC,
     {"input_tokens": 206, "cache_read_input_tokens": 98_432, "cache_creation_input_tokens": 78, "output_tokens": 503},
     (98_716, 503, 98_432)),
    ("anthropic without a cache", ANTHROPIC, {"input_tokens": 2_775, "output_tokens": 141}, (2_775, 141, None)),
    ("anthropic with null cache fields", ANTHROPIC,
     {"input_tokens": 12, "cache_read_input_tokens": None, "cache_creation_input_tokens": None, "output_tokens": 1},
     (12, 1, None)),
    ("a reported zero is a number", OPENAI,
     {"prompt_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}, (5, 0, 0)),
    ("openai responses' shape from an anthropic entry", ANTHROPIC,
     {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 90}, "output_tokens": 5}, (100, 5, 90)),
    ("anthropic's shape from an entry of another type", OPENAI,
     {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 0, "output_tokens": 5},
     (100, 5, 90)),
    ("openai's shape from an anthropic entry behind a compatible server", ANTHROPIC,
     {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 90}}, (100, 5, 90)),
    ("google: cached tokens are among the prompt's, thoughts beside the candidates", GOOGLE,
     {"promptTokenCount": 5_000, "cachedContentTokenCount": 4_000, "candidatesTokenCount": 100,
      "thoughtsTokenCount": 300, "totalTokenCount": 5_400}, (5_000, 400, 4_000)),
    ("google: tool-use prompts occupied the window too", GOOGLE,
     {"promptTokenCount": 5_000, "toolUsePromptTokenCount": 250, "candidatesTokenCount": 100, "totalTokenCount": 5_350},
     (5_250, 100, None)),
    ("bedrock converse", ANTHROPIC,
     {"inputTokens": 206, "outputTokens": 5, "cacheReadInputTokens": 900, "cacheWriteInputTokens": 10,
      "totalTokens": 1_121}, (1_116, 5, 900)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "model_type", "raw", "counts"), SHAPES, ids=[s[0] for s in SHAPES])
def test_4_3_input_is_everything_that_occupied_the_window(
    name: str, model_type: ModelType, raw: dict[str, Any], counts: tuple[int | None, int | None, int | None]
) -> None:
    assert normalize(model_type, raw) == NormalizedUsage(Usage(*counts))


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"input_tokens": 0, "output_tokens": 12},
        {"promptTokenCount": 0, "totalTokenCount": 0},
        {"prompt_tokens": None, "completion_tokens": 5},
        {"prompt_tokens": "many"},
        {"input_tokens": True},
        {"input_tokens": -5},
        {"total_tokens": 100},
    ],
)
@pytest.mark.parametrize("model_type", list(ModelType))
def test_4_3_zero_or_missing_is_unknown(model_type: ModelType, raw: dict[str, Any]) -> None:
    """XB6: a zero must not read as an empty window."""
    assert normalize(model_type, raw).missing


ITERATIONS = {
    "input_tokens": 23_000, "output_tokens": 1_000, "cache_read_input_tokens": 0,
    "iterations": [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    ],
}  # fmt: skip


def test_4_3_compaction_inside_a_call_is_paid_for_and_no_context() -> None:
    found = normalize(ANTHROPIC, ITERATIONS, Prices(1.0, 0.1, 10.0))
    assert (found.usage.input_tokens, found.usage.output_tokens) == (23_000, 1_000)
    assert found.usage.cost == pytest.approx((203_000 * 1.0 + 4_500 * 10.0) / 1e6)
    assert not found.aggregated


def test_4_3_of_several_inner_calls_the_first_read_the_request() -> None:
    steps = [{"type": "message", "input_tokens": n, "output_tokens": 10} for n in (1_000, 1_500, 2_100)]
    found = normalize(ANTHROPIC, {"input_tokens": 4_600, "output_tokens": 30, "iterations": steps})
    assert (found.usage.input_tokens, found.usage.output_tokens, found.aggregated) == (1_000, 30, False)


def test_4_3_xe3_usage_over_several_calls_is_aggregated() -> None:
    tools = {"input_tokens": 9_000, "cache_read_input_tokens": 900_000, "output_tokens": 10}
    assert normalize(ANTHROPIC, {**tools, "server_tool_use": {"web_search_requests": 3}}).aggregated
    assert not normalize(ANTHROPIC, {**tools, "server_tool_use": {"web_search_requests": 0}}).aggregated
    assert not normalize(ANTHROPIC, {**tools, "server_tool_use": None}).aggregated
    assert normalize(OPENAI, {"requests": 12, "input_tokens": 931_000, "output_tokens": 10}).aggregated
    assert not normalize(OPENAI, {"requests": 1, "input_tokens": 931, "output_tokens": 10}).aggregated


def test_4_2_cost_by_catalog_prices_and_unset_without() -> None:
    raw = {"prompt_tokens": 10_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 8_000}}
    priced = normalize(OPENAI, raw, Prices(2.0, 0.5, 8.0, "EUR")).usage
    assert (priced.cost, priced.currency) == (pytest.approx((2_000 * 2 + 8_000 * 0.5 + 100 * 8) / 1e6), "EUR")
    bare = normalize(OPENAI, raw).usage
    assert (bare.cost, bare.currency) == (None, "")
    without_output = normalize(OPENAI, {"prompt_tokens": 10}, Prices(1, 1, 1)).usage
    assert (without_output.cost, without_output.currency) == (None, "")


BODIES: list[tuple[Format, ModelType, dict[str, Any], int | None]] = [
    (Format.OPENAI_CHAT, OPENAI, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}, 7),
    (Format.OPENAI_CHAT, OPENAI, {"choices": [], "timings": {"prompt_n": 3, "cache_n": 4, "predicted_n": 1}}, 7),
    (Format.OPENAI_CHAT, OTHER, {"message": {}, "prompt_eval_count": 7, "eval_count": 2}, 7),
    (Format.OPENAI_CHAT, OPENAI, {"choices": [], "usage": None}, None),
    (Format.OPENAI_RESPONSES, OPENAI, {"output": [], "usage": {"input_tokens": 7, "output_tokens": 1}}, 7),
    (Format.ANTHROPIC_MESSAGES, ANTHROPIC, {"content": [], "usage": {"input_tokens": 7, "output_tokens": 1}}, 7),
    (Format.GOOGLE_GENAI, GOOGLE, {"candidates": [], "usageMetadata": {"promptTokenCount": 7}}, 7),
    (Format.GOOGLE_GENAI, GOOGLE, {"candidates": []}, None),
]


@pytest.mark.parametrize(("shape", "model_type", "body", "count"), BODIES)
def test_4_3_usage_is_taken_from_a_whole_response(
    shape: Format, model_type: ModelType, body: dict[str, Any], count: int | None
) -> None:
    found = from_response(shape, body, model_type)
    assert (None if found is None else found.usage.input_tokens) == count


def test_4_3_a_response_whose_own_tools_ran_sums_its_inner_calls() -> None:
    usage = {"input_tokens": 50_000, "output_tokens": 9}
    ran = {"output": [{"type": "web_search_call"}, {"type": "message"}], "usage": usage}
    own = {"output": [{"type": "function_call"}, {"type": "reasoning"}], "usage": usage}
    assert from_response(Format.OPENAI_RESPONSES, ran, OPENAI).aggregated  # type: ignore[union-attr]
    assert not from_response(Format.OPENAI_RESPONSES, own, OPENAI).aggregated  # type: ignore[union-attr]


def test_4_3_absurd_counts_are_held_to_what_the_contract_can_say() -> None:
    used = {"input_tokens": 1e30, "cache_read_input_tokens": 2**63, "output_tokens": 2**70}
    found = normalize(ANTHROPIC, used).usage
    assert (found.input_tokens, found.output_tokens) == (COUNT_MAX, COUNT_MAX)
