"""The wordings of providers (4.4), as patterns over one statement of an error body each.

Backticks, escapes and runs of white space are gone from a statement before it is matched.
"""

from __future__ import annotations

import re


def _words(pattern: str) -> re.Pattern[str]:
    """``<tokens>`` and ``<limit>`` stand for the numbers a refusal names."""
    for name in ("tokens", "limit"):
        pattern = pattern.replace(f"<{name}>", rf"(?P<{name}>\d[\d,_]*)")
    return re.compile(pattern, re.IGNORECASE)


RATE_CODES = frozenset((
    "insufficient_quota", "rate_limit_error", "rate_limit_exceeded", "resource_exhausted", "throttlingexception",
    "too_many_requests", "too_many_tokens_error", "usage_limit_reached",
))  # fmt: skip
CONTEXT_CODES = frozenset((
    "context_length_exceeded", "context_window_exceeded", "exceed_context_size_error", "model_context_window_exceeded",
    "model_max_prompt_tokens_exceeded", "tokens_limit_reached",
))  # fmt: skip
SILENT_ON_SIZE = frozenset(("cerebras", "mistral"))
"""Providers that were seen to answer a prompt that is too long with a bare 400."""

RATE_LIMIT = _words(
    r"rate[ _-]?limit|too many requests|throttl|resource_exhausted|resource (has been )?exhausted|quota|usage limit|"
    r"tokens?[ _]per[ _](min|day|hour|second)|\((tpm|rpm|tpd|rpd|itpm|otpm)\)|"
    r"too many tokens(,? please wait| per |[^.]{0,20}processed)|wait before trying|long context requests"
)
LARGER_THAN_MAX = _words(r"(message|body) (is )?larger than")
AUTHENTICATION = _words(
    r"authentication_error|invalid[ _]api[ _]key|incorrect api key|api key not valid|permission_error|"
    r"permission_denied|unauthenticated|accessdenied"
)
OVERLOADED = _words(r"overloaded|at capacity|service ?unavailable|model is (currently )?loading|^loading model$")
BODY = _words(
    r"request_too_large|(payload|request|body|entity|content) (size |body )*(is )?too large|payload size exceeds|"
    r"exceeds? the maximum (allowed )?(request |payload |body )?(size|number of bytes)|total text bytes|"
    r"(message|body) (is )?larger than|'(messages|input)[^']{0,40}': array too long"
)
LONG_STRING = _words(r"string too long\. expected a string with maximum length (\d+)")
BODY_STRING_CHARS = 100_000
MEDIA = _words(
    r"\b(images?|videos?|audio|pdfs?|documents?|files?)\b.{0,60}?"
    r"(exceeds?|exceeded|too (large|big|many)|larger than|at most)|"
    r"(too many|maximum of \d+) (total )?(images?|pdf|pages|documents|files)"
)
# Asks for less output only. Where the sum with the input is over, the words name the context or the input.
OUTPUT_ONLY = _words(
    r"max_?(completion_|output_?|new_)?tokens'?:? ?(is too large: ?\d+\. ?this model supports|\d+ ?> ?\d+,? which)|"
    r"supports at most \d+ (completion|output) tokens|maximum tokens you requested exceeds? the model|"
    r"max_?(completion_|output_?)?tokens must be (less than or equal to|at (least|most))|"
    r"maxoutputtokens value of \d+ but|valid range of max_tokens|exceeds model's maximum output tokens|"
    r"maximum (allowed )?number of output tokens"
)

CONTEXT = (
    # Anthropic, also through Bedrock and Vertex
    _words(r"prompt is too long:? *<tokens> tokens > <limit>"),
    _words(r"exceeds? context limit: <tokens> \+ \d+ > <limit>"),
    # OpenAI, vLLM, SGLang, OpenRouter, DeepSeek and other compatible servers name the limit first
    _words(r"configured limit of <limit> tokens.{0,40}?resulted in <tokens>"),
    _words(r"maximum context length (is|of) <limit>.{0,120}?prompt contains (at least )?<tokens> (input )?tokens"),
    _words(
        r"maximum context length (is|of) <limit>.{0,80}?(requested|resulted in|has|have|contains?|got)"
        r" (about |at least |a total of )?<tokens> (input )?tokens"
    ),
    _words(r"passed <tokens> input tokens.{0,80}?context length is only <limit>"),
    # vLLM's engine
    _words(r"prompt \((total )?length <tokens>\).{0,60}?(maximum model length of|context length) <limit>"),
    _words(r"input prompt \(<tokens> tokens\) is too long and exceeds limit of <limit>"),
    # Google, Vertex
    _words(r"input token count \(?<tokens>\)? exceeds the maximum[^(]{0,40}\(?<limit>"),
    _words(r"input token count is <tokens> but (the )?model only supports up to <limit>"),
    # llama.cpp, llama-cpp-python, LM Studio
    _words(r"request \(<tokens> tokens\) exceeds the available context size \(<limit>"),
    _words(r"requested tokens \(<tokens>\) exceed context window of <limit>"),
    _words(r"n_keep: <tokens> ?>= ?n_ctx: <limit>"),
    _words(r"keep the first <tokens> tokens when.{0,80}?context length of only <limit>"),
    # Ollama
    _words(r"input length \(?<tokens>.{0,20}? exceeds.{0,40}?context length \(?<limit>"),
    # Bedrock's own models
    _words(r"too many input tokens\. max input tokens: <limit>, request input token count: <tokens>"),
    # Together, Fireworks, Mistral, xAI, TGI, Poolside, Cerebras, Cohere, Copilot, Kimi, MLX
    _words(r"input length <tokens> exceeds the maximum allowed input length of <limit>"),
    _words(r"input \(<tokens> tokens\) is longer than the model's context length \(<limit>"),
    _words(r"prompt is too long: <tokens>, model maximum context length: <limit>"),
    _words(r"prompt contains <tokens> tokens.{0,60}?model with <limit> maximum context length"),
    _words(r"prompt <tokens> > <limit> maximum context length"),
    _words(r"maximum prompt length is <limit> but the request contains <tokens>"),
    _words(r"must have less than <limit> tokens\. given: <tokens>"),
    _words(r"tokens \+ max_new_tokens must be <= <limit>\. given: <tokens>"),
    _words(r"prompt (is|has) <tokens> tokens,? but the ([a-z]+ )?context (window|size) is <limit>"),
    _words(r"current length is <tokens> while limit is <limit>"),
    _words(r"prompt cannot exceed <limit> - received <tokens>"),
    _words(r"prompt token count of <tokens> exceeds the limit of <limit>"),
    _words(r"exceeded model token limit: <limit>( \(requested: <tokens>\))?"),
    _words(r"prompt too long: <tokens> tokens exceeds max context window of <limit>"),
    # without the count, or without any number
    _words(r"request body too large for .{1,80}? model\. max size: <limit> tokens"),
    _words(r"range of input length should be \[\d+, ?<limit>\]"),
    _words(r"size limit exceeded by \d+ tokens.{0,80}?limit for this model is <limit>"),
    _words(r"tokens exceed the configured limit of <limit> tokens"),
    _words(r"tokens in the prompt cannot exceed <limit>"),
    _words(r"max(imum)? context (length|window)('?s)? (is|of) (only )?<limit>"),
    _words(r"context (length|window|size) \(<limit>"),
    _words(r"(exceeds?|longer than) (the )?(model's )?context (length|window|size) of <limit>"),
    _words(
        r"context_length_exceeded|context_window_exceeded|exceed_context_size|contextwindowexceeded|"
        r"exceed(s|ed)? (the |this )?(model'?s? )?(available |max(imum)? )?context (window|length|limit|size)|"
        r"context (window|length|size|limit) (has been )?exceed(s|ed)|"
        r"(greater|larger|longer) than the (model'?s )?context (window|length|size)|"
        r"input is too long|(input )?prompt (is |tokens )?too long|prompt exceeds max(imum)? length|"
        r"longer than the maximum model length|input length exceeds|number of input tokens exceeds|"
        r"input tokens exceed(ed)?\b|too many input tokens|too many tokens in (the )?(request|prompt|input)|"
        r"token limit exceeded|exceeds? (the )?(model'?s )?maximum (input )?(number of )?tokens|"
        r"reduce the length of the (messages|prompt|input)|length of all messages is too long|"
        r"\u8d85\u8fc7(\u4e86)?\u6a21\u578b|\u8d85\u51fa(\u4e86)?\u6a21\u578b|prompt ?\u8d85\u957f"
    ),
)
PART = re.compile(
    r"(\d[\d,_]*) (?:in (?:the|your) (?!completion|output)\w+|of \w+ input|tokens from the input)", re.IGNORECASE
)
OVER_BY = re.compile(r"exceeded by (\d[\d,_]*) tokens", re.IGNORECASE)

_UNIT = r"(?:ms|milliseconds?|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?)(?![a-z])"
DURATION = rf"(?:\d{{1,9}}(?:\.\d{{1,18}})? ?{_UNIT} ?)+"
RETRY_IN = re.compile(
    rf"(?:try again|retry(?:ing)?|resets?|available again) (?:after|in) (?:about )?({DURATION})", re.IGNORECASE
)
UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
