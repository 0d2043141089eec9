"""Usage of every provider as one shape (4.3): ``input_tokens`` is everything that occupied the window of one call.

An object's own field names say whose shape it is. ``model_type`` decides where two providers give one name two
meanings: ``input_tokens`` holds the cached tokens at OpenAI and leaves them out at Anthropic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foldline.domain.changes import replace
from foldline.domain.enums import ModelType
from foldline.domain.models import COUNT_MAX, Prices, Usage
from foldline.engine.spending import priced

Raw = Mapping[str, Any]

_PLACES = ("usage", "usageMetadata", "usage_metadata", "timings", "amazon-bedrock-invocationMetrics")
_HOLDERS = ("message", "response", "x_groq", "meta", "metadata")
_SERVER_CALLS = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")
_CALLS = ("requests", "num_turns")
"""Fields by which agent kits say how many calls a sum is of."""
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of the request as it was sent; ``billed`` are the counts of everything that was paid for, where they differ."""

    input: int | None
    output: int | None
    cached: int | None = None
    written: int | None = None
    reasoning: int | None = None
    aggregated: bool = False
    billed: _Counts | None = None


def normalize(model_type: ModelType, usage: Raw, prices: Prices | None = None) -> Usage:
    """Reads a provider's usage object; a count that is missing, or is none, is None. Zero input is unknown (XB6)."""
    counts = _read(model_type, usage)
    billed = counts.billed or counts
    paid = priced(Usage(billed.input, billed.output, billed.cached), prices)
    return Usage(
        input_tokens=counts.input,
        output_tokens=counts.output,
        cached_input_tokens=counts.cached,
        cost=paid.cost,
        currency=paid.currency,
        cache_write_tokens=counts.written,
        reasoning_tokens=counts.reasoning,
        aggregated=counts.aggregated or _many_calls(usage),
    )


def from_response(model_type: ModelType, body: Raw, prices: Prices | None = None) -> Usage | None:
    """The usage in a provider's whole response, or in the last event of its stream; None where it carries none.

    A usage object by itself is read as one.
    """
    usage = _find(body, 0)
    if usage is None:
        return None
    read = normalize(model_type, usage, prices)
    return replace(read, aggregated=True) if _many_calls(body) or _ran_server_tools(body) else read


def _find(body: Raw, depth: int) -> Raw | None:
    if any(shape(body) for shape, _ in _SHAPES):
        return body
    for place in _PLACES:
        found = body.get(place)
        if isinstance(found, Mapping) and found:
            return found
    if depth == 0:
        for holder in _HOLDERS:
            inner = body.get(holder)
            found = _find(inner, 1) if isinstance(inner, Mapping) else None
            if found is not None:
                return found
    return None


def _many_calls(said: Raw) -> bool:
    """Whether a sum over several calls says so: such a sum is no reading (XE3)."""
    return any((_count(said, name) or 0) > 1 for name in _CALLS)


def _ran_server_tools(body: Raw) -> bool:
    """Whether a response sums the calls that its own tools made in between."""
    output = body.get("output")
    items = output if isinstance(output, Sequence) else ()
    return any(isinstance(item, Mapping) and item.get("type") in _SERVER_CALLS for item in items)


def _read(model_type: ModelType, usage: Raw) -> _Counts:
    reader = next((reader for shape, reader in _SHAPES if shape(usage)), None)
    return _Counts(None, None) if reader is None else reader(model_type, usage)


def _openai_chat(_: ModelType, usage: Raw) -> _Counts:
    """``prompt_tokens`` holds the cached ones (XE1), also at DeepSeek, OpenRouter, LiteLLM and compatible servers."""
    details, answer = _part(usage, "prompt_tokens_details"), _part(usage, "completion_tokens_details")
    cached = _first(
        _count(details, "cached_tokens"),
        *(_count(usage, k) for k in ("prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens")),
    )
    written = _first(
        *(_count(details, k) for k in ("cache_write_tokens", "cache_creation_tokens")),
        _count(usage, "cache_creation_input_tokens"),
    )
    prompt, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    reasoning = _count(answer, "reasoning_tokens")
    # Some count reasoning beside the completion: the total tells.
    beside = _sum(prompt, output, reasoning)
    if output is not None and reasoning and beside is not None and _count(usage, "total_tokens") == beside:
        output = _sum(output, reasoning)
    return _Counts(_whole(prompt, cached, written), output, cached, written, reasoning)


def _counted_apart(model_type: ModelType, usage: Raw) -> _Counts:
    """``input_tokens``: the whole input where details break it down or the type says so, else what no cache served."""
    details = _part(usage, "input_tokens_details") or _part(usage, "input_token_details")
    answer = _part(usage, "output_tokens_details") or _part(usage, "output_token_details")
    apart = "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage or "iterations" in usage
    if not details and (apart or (model_type == ModelType.ANTHROPIC and "cache_read_tokens" not in usage)):
        return _anthropic(usage)
    cached = _first(*(_count(details, k) for k in ("cached_tokens", "cache_read")), _count(usage, "cache_read_tokens"))
    written = _first(_count(details, "cache_creation"), _count(usage, "cache_write_tokens"))
    reasoning = _first(*(_count(answer, k) for k in ("reasoning_tokens", "reasoning")))
    total = _whole(_count(usage, "input_tokens"), cached, written)
    return _Counts(total, _count(usage, "output_tokens"), cached, written, reasoning)


def _anthropic(usage: Raw) -> _Counts:
    """Cache reads and writes stand beside ``input_tokens`` (XE4).

    ``iterations`` lists the inner calls, of which the first of type ``message`` read the request as sent; the top level
    sums those of that type. Compaction is paid for and is no size of this context. Without the list, an answer in which
    server tools ran is a sum (XE3).
    """
    listed = usage.get("iterations")
    steps = [s for s in listed if isinstance(s, Mapping)] if isinstance(listed, list | tuple) else []
    messages = [_anthropic_counts(s) for s in steps if s.get("type", "message") == "message"]
    if not messages:
        ran = _part(usage, "server_tool_use")
        return replace(_anthropic_counts(usage), aggregated=any(_count(ran, key) for key in ran))
    paid = [*messages, *(_anthropic_counts(s) for s in steps if s.get("type") == "compaction")]
    billed = _Counts(
        sum(c.input or 0 for c in paid), sum(c.output or 0 for c in paid), sum(c.cached or 0 for c in paid)
    )
    return replace(messages[0], output=_count(usage, "output_tokens"), billed=billed)


def _anthropic_counts(usage: Raw) -> _Counts:
    by_age = _part(usage, "cache_creation")
    written = _first(_count(usage, "cache_creation_input_tokens"), _sum(*(_count(by_age, key) for key in by_age)))
    cached = _count(usage, "cache_read_input_tokens")
    total = _sum(_count(usage, "input_tokens"), cached, written)
    return _Counts(total, _count(usage, "output_tokens"), cached, written)


def _google(_: ModelType, usage: Raw) -> _Counts:
    """Cached tokens are part of ``promptTokenCount``; tool-use prompts stand beside it, thoughts beside candidates."""

    def count(*names: str) -> int | None:
        return _first(*(_count(usage, n) for name in names for n in (name, _snake(name))))

    cached = count("cachedContentTokenCount")
    prompt = _sum(_whole(count("promptTokenCount"), cached), count("toolUsePromptTokenCount"))
    thoughts = count("thoughtsTokenCount")
    output = _sum(count("candidatesTokenCount", "responseTokenCount"), thoughts)
    return _Counts(prompt, output, cached, None, thoughts)


def _camel(model_type: ModelType, usage: Raw) -> _Counts:
    """Converse counts cache reads and writes beside ``inputTokens``, client kits mostly inside.

    Kits that pass on ``cachedInputTokens`` pass on ``inputTokens`` as the provider counts it.
    """
    inner, answer = _part(usage, "inputTokens"), _part(usage, "outputTokens")
    details = _part(usage, "inputTokenDetails") or inner
    output = _first(_count(usage, "outputTokens"), _count(usage, "outputTokenCount"), _count(answer, "total"))
    reasoning = _first(
        _count(_part(usage, "outputTokenDetails") or answer, "reasoningTokens"), _count(answer, "reasoning"),
        _count(usage, "reasoningTokens"),
    )  # fmt: skip
    total = _first(_count(usage, "inputTokens"), _count(usage, "inputTokenCount"), _count(inner, "total"))
    if details or "cachedInputTokens" in usage:
        cached = _first(*(_count(details, k) for k in ("cacheReadTokens", "cacheRead")))
        cached = _first(cached, _count(usage, "cachedInputTokens"))
        written = _first(*(_count(details, k) for k in ("cacheWriteTokens", "cacheWrite")))
        apart = not details and model_type == ModelType.ANTHROPIC
        whole = _sum(total, cached) if apart else _whole(total, cached, written)
        return _Counts(whole, output, cached, written, reasoning)
    cached = _first(_count(usage, "cacheReadInputTokens"), _count(usage, "cacheReadInputTokenCount"))
    names = ("cacheWriteInputTokens", "cacheWriteInputTokenCount", "cacheCreationInputTokens")
    written = _first(*(_count(usage, name) for name in names))
    return _Counts(_sum(total, cached, written), output, cached, written, reasoning)


def _prompt_camel(_: ModelType, usage: Raw) -> _Counts:
    return _Counts(_count(usage, "promptTokens"), _count(usage, "completionTokens"))


def _llama_timings(_: ModelType, usage: Raw) -> _Counts:
    """``prompt_n`` were evaluated, ``cache_n`` came from the slot's cache; both fill the window."""
    cached = _count(usage, "cache_n")
    return _Counts(_sum(_count(usage, "prompt_n"), cached), _count(usage, "predicted_n"), cached)


def _ollama(_: ModelType, usage: Raw) -> _Counts:
    """``prompt_eval_count`` is left out where a cache served the whole prompt: unknown then."""
    return _Counts(_count(usage, "prompt_eval_count"), _count(usage, "eval_count"))


def _cohere(_: ModelType, usage: Raw) -> _Counts:
    """``billed_units`` are what is paid for, ``tokens`` what was read."""
    read = _part(usage, "tokens")
    return _Counts(_count(read, "input_tokens"), _count(read, "output_tokens"), _count(usage, "cached_tokens"))


def _plain(_: ModelType, usage: Raw) -> _Counts:
    """``input`` without what a cache served, as agents' recordings have it."""
    cached, written = _count(usage, "cacheRead"), _count(usage, "cacheWrite")
    return _Counts(_sum(_count(usage, "input"), cached, written), _count(usage, "output"), cached, written)


def _has(*names: str) -> Callable[[Raw], bool]:
    return lambda usage: any(name in usage for name in names)


_SHAPES: tuple[tuple[Callable[[Raw], bool], Callable[[ModelType, Raw], _Counts]], ...] = (
    (_has("promptTokenCount", "prompt_token_count", "totalTokenCount", "total_token_count"), _google),
    (_has("inputTokens", "inputTokenCount"), _camel),
    (_has("prompt_tokens", "completion_tokens"), _openai_chat),
    (_has("promptTokens"), _prompt_camel),
    (_has("prompt_n"), _llama_timings),
    (_has("prompt_eval_count", "eval_count"), _ollama),
    (_has("input_tokens", "output_tokens", "iterations"), _counted_apart),
    (lambda usage: isinstance(usage.get("tokens"), Mapping), _cohere),
    (_has("cacheRead", "cacheWrite"), _plain),
)


def _whole(total: int | None, *parts: int | None) -> int | None:
    """A total of which the parts are part; parts that are larger than it were counted beside it after all."""
    known = sum(part or 0 for part in parts)
    return _sum(total, known) if total is not None and known > total else total


def _part(usage: Raw, key: str) -> Raw:
    value = usage.get(key)
    return value if isinstance(value, Mapping) else {}


def _count(usage: Raw, key: str) -> int | None:
    value = usage.get(key)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or value == math.inf:
        return None
    return int(min(value, COUNT_MAX))


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _sum(*parts: int | None) -> int | None:
    """Of the parts that are known; None where the first, the main count, is not."""
    if not parts or parts[0] is None:
        return None
    return min(sum(part or 0 for part in parts), COUNT_MAX)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
