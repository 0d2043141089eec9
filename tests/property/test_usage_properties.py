"""4.3, 4.4: whatever a provider, or something in between, sends."""

import json
from typing import Any

from foldline.domain.enums import ModelType, RefusalKind
from foldline.domain.models import COUNT_MAX
from foldline.engine.refusals import classify
from foldline.engine.usage import from_response, normalize
from hypothesis import given
from hypothesis import strategies as st

KEYS = [
    "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens",
    "cache_creation_input_tokens", "promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount",
    "cachedContentTokenCount", "inputTokens", "cacheReadInputTokens", "prompt_n", "cache_n", "prompt_eval_count",
    "prompt_tokens_details", "input_tokens_details", "server_tool_use", "iterations", "requests", "type",
    "cached_tokens", "usage", "usageMetadata", "timings", "output", "tokens", "inputTokenDetails", "cacheReadTokens",
    "cachedInputTokens", "cache_creation", "eval_count", "completion_tokens_details", "reasoning_tokens",
    "total_tokens", "cacheRead",
]  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["message", "compaction", "12", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)


@given(st.sampled_from(ModelType), objects)
def test_4_3_any_object_gives_counts_or_says_that_there_are_none(model_type: ModelType, raw: dict[str, Any]) -> None:
    found = normalize(model_type, raw)
    counts = (
        found.input_tokens, found.output_tokens, found.cached_input_tokens, found.cache_write_tokens,
        found.reasoning_tokens,
    )  # fmt: skip
    for count in counts:
        assert count is None or 0 <= count <= COUNT_MAX


@given(st.sampled_from(ModelType), objects)
def test_4_3_any_body_is_read_without_a_failure(model_type: ModelType, body: dict[str, Any]) -> None:
    from_response(model_type, body)


@given(st.sampled_from(ModelType), objects)
def test_4_3_usage_reads_the_same_by_itself_and_in_a_response(model_type: ModelType, raw: dict[str, Any]) -> None:
    if raw:
        assert from_response(model_type, {"choices": [], "usage": raw}) == normalize(model_type, raw)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**4))
def test_4_3_cached_tokens_occupy_the_window_once(fresh: int, read: int, written: int, output: int) -> None:
    """XE1, XE4: one call, in the shapes of five providers, is one count."""
    total = fresh + read + written
    shapes: list[tuple[ModelType, dict[str, Any]]] = [
        (ModelType.OPENAI, {"prompt_tokens": total, "completion_tokens": output,
                            "prompt_tokens_details": {"cached_tokens": read}}),
        (ModelType.OPENAI, {"input_tokens": total, "output_tokens": output,
                            "input_tokens_details": {"cached_tokens": read}}),
        (ModelType.ANTHROPIC, {"input_tokens": fresh, "cache_read_input_tokens": read,
                               "cache_creation_input_tokens": written, "output_tokens": output}),
        (ModelType.GOOGLE, {"promptTokenCount": total, "cachedContentTokenCount": read,
                            "candidatesTokenCount": output}),
        (ModelType.OTHER, {"inputTokens": fresh, "cacheReadInputTokens": read, "cacheWriteInputTokens": written,
                           "outputTokens": output}),
        (ModelType.OPENAI, {"prompt_n": fresh + written, "cache_n": read, "predicted_n": output}),
        (ModelType.ANTHROPIC, {"inputTokens": total, "outputTokens": output,
                               "inputTokenDetails": {"cacheReadTokens": read, "cacheWriteTokens": written}}),
    ]  # fmt: skip
    for model_type, raw in shapes:
        usage = normalize(model_type, raw)
        assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (total, output, read)


@given(st.sampled_from([0, 200, 400, 401, 413, 422, 429, 500, 503]), st.binary(max_size=400))
def test_4_4_any_body_is_classified(status: int, body: bytes) -> None:
    found = classify(status, body)
    assert found.named_tokens is None or found.kind == RefusalKind.CONTEXT_EXCEEDED


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["prompt is too long: 9 tokens > 8 maximum", "rate limit", "context_length_exceeded", "1m2s"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["error", "message", "code", "input", "raw", "n_ctx", "retry_after", "headers", "retryDelay"]),
        inner, max_size=4,
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.sampled_from([0, 200, 400, 413, 429, 500]), json_values, st.integers(0, 3), st.data())
def test_4_4_a_classification_is_the_same_however_its_json_is_written(
    status: int, body: Any, nested: int, data: st.DataObject
) -> None:
    plain = json.dumps(body)
    found = classify(status, plain.encode())
    for _ in range(nested):
        layout = data.draw(st.sampled_from([{"indent": 1}, {"sort_keys": True}, {"separators": (",", ":")}, {}]))
        plain = json.dumps(json.loads(plain), **layout)
        assert classify(status, f"  {plain}\n".encode()) == found
        if isinstance(body, dict | list):
            assert classify(status, json.dumps({"raw": plain}).encode()) == found


@given(st.sampled_from([0, 400, 413, 500]), st.text(max_size=60), st.integers(0, 200))
def test_4_4_any_piece_of_a_body_is_classified(status: int, text: str, cut: int) -> None:
    whole = json.dumps({"error": {"message": text, "input": text}, "n_ctx": 12, "metadata": {"raw": text}})
    found = classify(status, whole.encode()[:cut])
    assert found.retry_after is None or found.retry_after >= 0


RATES = ["rate limit reached", "tokens per minute (TPM): Limit 60", "Too many tokens, please wait", "Too Many Requests"]
SIZES = ["prompt is too long: 9 tokens > 8 maximum", "context_length_exceeded", "request too large"]


@given(st.permutations([*RATES[:1], *SIZES[:2]]), st.sampled_from(RATES), st.sampled_from(SIZES), st.booleans())
def test_4_4_words_of_a_rate_limit_win_over_words_of_size(around: list[str], rate: str, size: str, first: bool) -> None:
    text = " ".join([rate, size] if first else [size, rate])
    for status in (0, 200, 400, 413, 429, 500):
        assert classify(status, f"{text} {' '.join(around)}".encode()).kind == RefusalKind.RATE_LIMITED
