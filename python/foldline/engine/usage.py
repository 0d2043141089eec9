"""Usage of every provider as one shape (4.3): ``input_tokens`` is everything that occupied the window of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foldline.domain.changes import replace
from foldline.domain.enums import Format, ModelType
from foldline.domain.models import COUNT_MAX, Prices, Usage

_ANTHROPIC_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens")
_OLLAMA = ("prompt_eval_count", "eval_count")
_SERVER_CALLS = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")


@dataclass(frozen=True, slots=True)
class NormalizedUsage:
    """Usage and what is to be said of it.

    Attributes:
        aggregated: it sums several calls, so that it is no reading.
        missing: it names no input count, or zero, which is unknown.
    """

    usage: Usage
    aggregated: bool = False
    missing: bool = False


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of the request as it was sent; ``billed`` are the counts of everything that was paid for, where they differ."""

    input: int | None
    output: int | None
    cached: int | None = None
    aggregated: bool = False
    billed: _Counts | None = None


def normalize(model_type: ModelType, usage: Mapping[str, Any], prices: Prices | None = None) -> NormalizedUsage:
    """Reads a provider's usage object.

    The object's own field names say whose shape it is. ``model_type`` decides where two providers give one name two
    meanings: ``input_tokens`` holds the cached tokens at OpenAI and leaves them out at Anthropic.
    """
    counts = _read(model_type, usage)
    cost = None if prices is None else _cost(counts.billed or counts, prices)
    return NormalizedUsage(
        Usage(
            input_tokens=counts.input,
            output_tokens=counts.output,
            cached_input_tokens=counts.cached,
            cost=cost,
            currency=prices.currency if prices is not None and cost is not None else "",
        ),
        # Agent kits that sum a whole run say over how many requests (XE3).
        aggregated=counts.aggregated or (_optional(usage, "requests") or 0) > 1,
        missing=not counts.input,
    )


def from_response(
    shape: Format, body: Mapping[str, Any], model_type: ModelType, prices: Prices | None = None
) -> NormalizedUsage | None:
    """The usage in a provider's whole response body; None where it carries none."""
    usage = body.get("usageMetadata" if shape == Format.GOOGLE_GENAI else "usage")
    if usage is None and shape == Format.OPENAI_CHAT:
        # llama.cpp puts its counts into `timings` when asked for no usage, Ollama's own route beside the message.
        usage = body.get("timings") or {key: body[key] for key in _OLLAMA if key in body} or None
    if not isinstance(usage, Mapping):
        return None
    read = normalize(model_type, usage, prices)
    if shape == Format.OPENAI_RESPONSES and _ran_server_tools(body):
        return replace(read, aggregated=True)
    return read


def _ran_server_tools(body: Mapping[str, Any]) -> bool:
    """Whether a response sums the calls that its own tools made in between."""
    output = body.get("output")
    items = output if isinstance(output, Sequence) else ()
    return any(isinstance(item, Mapping) and item.get("type") in _SERVER_CALLS for item in items)


def _read(model_type: ModelType, usage: Mapping[str, Any]) -> _Counts:
    if "promptTokenCount" in usage or "totalTokenCount" in usage:
        return _google(usage)
    if "inputTokens" in usage:
        return _bedrock(usage)
    if "prompt_tokens" in usage:
        return _openai_chat(usage)
    if "prompt_n" in usage:
        # llama.cpp timings: `prompt_n` were evaluated, `cache_n` came from the slot's cache; both fill the window.
        cached = _optional(usage, "cache_n")
        return _Counts(_sum(_optional(usage, "prompt_n"), cached), _optional(usage, "predicted_n"), cached)
    if "prompt_eval_count" in usage:
        return _Counts(_optional(usage, "prompt_eval_count"), _optional(usage, "eval_count"))
    if any(key in usage for key in _ANTHROPIC_CACHE) or "iterations" in usage:
        return _anthropic(usage)
    if "input_tokens_details" in usage or model_type != ModelType.ANTHROPIC:
        return _openai_responses(usage)
    return _anthropic(usage)


def _openai_chat(usage: Mapping[str, Any]) -> _Counts:
    """``prompt_tokens`` holds the cached ones (XE1), also at OpenRouter and compatible servers."""
    details = _part(usage, "prompt_tokens_details")
    cached = _optional(details, "cached_tokens")
    if cached is None:
        cached = _optional(usage, "prompt_cache_hit_tokens")
    return _Counts(_optional(usage, "prompt_tokens"), _optional(usage, "completion_tokens"), cached)


def _openai_responses(usage: Mapping[str, Any]) -> _Counts:
    cached = _optional(_part(usage, "input_tokens_details"), "cached_tokens")
    return _Counts(_optional(usage, "input_tokens"), _optional(usage, "output_tokens"), cached)


def _anthropic(usage: Mapping[str, Any]) -> _Counts:
    """Cache reads and writes stand beside ``input_tokens`` (XE4).

    ``iterations`` lists the inner calls, of which the first of type ``message`` read the request as sent; the top level
    sums those of that type. Compaction is paid for and is no size of this context. Without the list, an answer in which
    server tools ran is a sum (XE3).
    """
    listed = usage.get("iterations")
    steps = [s for s in listed if isinstance(s, Mapping)] if isinstance(listed, list | tuple) else []
    messages = [_anthropic_counts(s) for s in steps if s.get("type", "message") == "message"]
    if not messages:
        searches = sum(_optional(_part(usage, "server_tool_use"), key) or 0 for key in _part(usage, "server_tool_use"))
        return replace(_anthropic_counts(usage), aggregated=searches > 0)
    paid = [*messages, *(_anthropic_counts(s) for s in steps if s.get("type") == "compaction")]
    billed = _Counts(
        sum(c.input or 0 for c in paid), sum(c.output or 0 for c in paid), sum(c.cached or 0 for c in paid)
    )
    return replace(messages[0], output=_optional(usage, "output_tokens"), billed=billed)


def _anthropic_counts(usage: Mapping[str, Any]) -> _Counts:
    cached = _optional(usage, "cache_read_input_tokens")
    total = _sum(_optional(usage, "input_tokens"), cached, _optional(usage, "cache_creation_input_tokens"))
    return _Counts(total, _optional(usage, "output_tokens"), cached)


def _google(usage: Mapping[str, Any]) -> _Counts:
    """Cached tokens are part of ``promptTokenCount``; tool-use prompts stand beside it, thoughts beside candidates."""
    prompt = _sum(_optional(usage, "promptTokenCount"), _optional(usage, "toolUsePromptTokenCount"))
    candidates = _optional(usage, "candidatesTokenCount")
    if candidates is None:
        candidates = _optional(usage, "responseTokenCount")
    output = _sum(candidates, _optional(usage, "thoughtsTokenCount"))
    return _Counts(prompt, output, _optional(usage, "cachedContentTokenCount"))


def _bedrock(usage: Mapping[str, Any]) -> _Counts:
    """Converse: cache reads and writes stand beside ``inputTokens``."""
    cached = _optional(usage, "cacheReadInputTokens")
    total = _sum(_optional(usage, "inputTokens"), cached, _optional(usage, "cacheWriteInputTokens"))
    return _Counts(total, _optional(usage, "outputTokens"), cached)


def _cost(counts: _Counts, prices: Prices) -> float | None:
    if counts.input is None or counts.output is None:
        return None
    cached = min(counts.cached or 0, counts.input)
    millionths = (counts.input - cached) * prices.input + cached * prices.cached_input + counts.output * prices.output
    return millionths / 1_000_000


def _part(usage: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = usage.get(key)
    return value if isinstance(value, Mapping) else {}


def _optional(usage: Mapping[str, Any], key: str) -> int | None:
    value = usage.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        return None
    return int(min(value, COUNT_MAX))


def _sum(*parts: int | None) -> int | None:
    """Of the parts that are known; None where the first, the main count, is not."""
    if parts[0] is None:
        return None
    return min(sum(part or 0 for part in parts), COUNT_MAX)
