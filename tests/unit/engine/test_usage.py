"""4.3 and faults E: usage of every provider as one shape.

A fixture names where its shape was seen, as those of ``tests/data/refusals`` do.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from foldline.domain.enums import ModelType
from foldline.domain.models import COUNT_MAX, Prices, Usage
from foldline.engine.usage import from_response, normalize

OPENAI, ANTHROPIC, GOOGLE, OTHER = ModelType.OPENAI, ModelType.ANTHROPIC, ModelType.GOOGLE, ModelType.OTHER
FIXTURES = Path(__file__).parents[2] / "data" / "usage"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(FIXTURES.glob("*.json"))
    for case in json.loads(path.read_text())
]


def expected(case: dict[str, Any]) -> Usage:
    return Usage(
        case["input"], case["output"], case["cached"], cache_write_tokens=case["written"],
        reasoning_tokens=case["reasoning"], aggregated=case["aggregated"],
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_4_3_input_is_everything_that_occupied_the_window(case: dict[str, Any]) -> None:
    assert normalize(ModelType(case["type"]), case["usage"]) == expected(case)


@pytest.mark.parametrize("case", CASES)
def test_4_3_parts_are_never_larger_than_what_they_are_part_of(case: dict[str, Any]) -> None:
    found = normalize(ModelType(case["type"]), case["usage"])
    parts = (found.cached_input_tokens or 0) + (found.cache_write_tokens or 0)
    assert found.input_tokens is None or parts <= found.input_tokens
    assert found.output_tokens is None or (found.reasoning_tokens or 0) <= found.output_tokens


HOLDERS: list[tuple[str, Any]] = [
    ("the object itself", lambda usage: usage),
    ("a whole response", lambda usage: {"id": "x", "model": "m", "choices": [], "usage": usage}),
    ("google's place", lambda usage: {"candidates": [], "usageMetadata": usage}),
    ("google's place as its client writes it", lambda usage: {"candidates": [], "usage_metadata": usage}),
    ("llama.cpp's place, where usage was not asked for", lambda usage: {"usage": None, "timings": usage}),
    ("bedrock's place", lambda usage: {"type": "message_stop", "amazon-bedrock-invocationMetrics": usage}),
    ("the first event of anthropic's stream", lambda usage: {"type": "message_start", "message": {"usage": usage}}),
    (
        "the last event of a responses stream",
        lambda usage: {"type": "response.completed", "response": {"usage": usage}},
    ),
    ("groq's place in a stream", lambda usage: {"choices": [], "x_groq": {"id": "r", "usage": usage}}),
]


@pytest.mark.parametrize(("place", "held"), HOLDERS, ids=[name for name, _ in HOLDERS])
def test_4_3_usage_is_found_wherever_a_response_has_it(place: str, held: Any) -> None:
    for case in CASES:
        given = case.values[0]
        assert from_response(ModelType(given["type"]), held(given["usage"])) == expected(given), case.id


@pytest.mark.parametrize(
    "body", [{}, {"usage": None}, {"usage": {}}, {"usage": 5}, {"choices": []}, {"message": {"content": "x"}}]
)
def test_4_3_a_response_without_usage_has_none(body: dict[str, Any]) -> None:
    assert from_response(OPENAI, body) is None


def test_4_3_ollama_counts_beside_the_message() -> None:
    body = {"model": "m", "message": {"role": "assistant", "content": "x"}, "prompt_eval_count": 7, "eval_count": 2}
    assert from_response(OTHER, body) == Usage(7, 2)


def test_xe3_a_response_whose_own_tools_ran_sums_its_inner_calls() -> None:
    usage = {"input_tokens": 50_000, "output_tokens": 9}
    ran = {"output": [{"type": "web_search_call"}, {"type": "message"}], "usage": usage}
    own = {"output": [{"type": "function_call"}, {"type": "reasoning"}], "usage": usage}
    assert from_response(OPENAI, ran) == Usage(50_000, 9, aggregated=True)
    assert from_response(OPENAI, own) == Usage(50_000, 9)


def test_xe3_a_result_over_several_turns_is_a_sum() -> None:
    body = {"type": "result", "num_turns": 12, "usage": {"input_tokens": 9, "cache_read_input_tokens": 931_000}}
    assert from_response(ANTHROPIC, body) == Usage(931_009, None, 931_000, aggregated=True)
    once = from_response(ANTHROPIC, {**body, "num_turns": 1})
    assert once is not None
    assert not once.aggregated


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"input_tokens": 0, "output_tokens": 12},
        {"promptTokenCount": 0, "totalTokenCount": 0},
        {"prompt_tokens": None, "completion_tokens": 5},
        {"total_tokens": 100},
        {"eval_count": 33},
    ],
)
@pytest.mark.parametrize("model_type", list(ModelType))
def test_xb6_zero_or_missing_is_unknown(model_type: ModelType, raw: dict[str, Any]) -> None:
    """A zero must not read as an empty window: it is no count."""
    assert not normalize(model_type, raw).input_tokens


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("many", None), (True, None), (-5, None), (-0.5, None), (float("nan"), None), (float("inf"), None),
        ([], None), ({}, None), ("", None), ("-5", None), ("1e3", None), ("9" * 19, None), ("\u0663", None),
        (12.0, 12), (12.9, 12), ("12", 12), (0, 0), (1e30, COUNT_MAX), (2**70, COUNT_MAX), ("9" * 18, COUNT_MAX),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", ["prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens", "prompt_n"])
def test_4_3_what_is_no_number_of_tokens_is_none(shape: str, value: Any, count: int | None) -> None:
    assert normalize(OPENAI, {shape: value}).input_tokens == count


def test_4_3_sums_are_held_to_what_the_contract_can_say() -> None:
    used = {"input_tokens": 1e30, "cache_read_input_tokens": 2**63, "output_tokens": 2**70}
    found = normalize(ANTHROPIC, used)
    assert (found.input_tokens, found.output_tokens) == (COUNT_MAX, COUNT_MAX)


def test_4_2_cost_by_catalog_prices_and_unset_without() -> None:
    raw = {"prompt_tokens": 10_000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 8_000}}
    priced = normalize(OPENAI, raw, Prices(2.0, 0.5, 8.0, "EUR"))
    assert (priced.cost, priced.currency) == (pytest.approx((2_000 * 2 + 8_000 * 0.5 + 100 * 8) / 1e6), "EUR")
    bare = normalize(OPENAI, raw)
    assert (bare.cost, bare.currency) == (None, "")
    without_output = normalize(OPENAI, {"prompt_tokens": 10}, Prices(1, 1, 1))
    assert (without_output.cost, without_output.currency) == (None, "")


def test_4_3_compaction_inside_a_call_is_paid_for() -> None:
    steps = [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
    ]
    usage = {"input_tokens": 23_000, "output_tokens": 1_000, "iterations": steps}
    assert normalize(ANTHROPIC, usage, Prices(1.0, 0.1, 10.0)).cost == pytest.approx((203_000 + 4_500 * 10) / 1e6)
