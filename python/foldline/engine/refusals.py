"""What a provider refused a request for (4.4), from its status and its words.

A rate limit is looked for first: several providers speak of "too many tokens" or "request too large" when they mean
tokens a minute, and folding would cost a summary and cure nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from foldline.domain.enums import RefusalKind
from foldline.domain.models import COUNT_MAX

READ_BYTES = 16_384
"""More of a body than this is not read: errors are short, and what follows may be the prompt."""
_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Classified:
    """A refusal: its kind, the tokens it says the prompt had, the limit it names, and when to come back in seconds."""

    kind: RefusalKind
    named_tokens: int | None = None
    named_limit: int | None = None
    retry_after: float | None = None


def classify(http_status: int, body: bytes, retry_after: float | None = None) -> Classified:
    """Classifies a refusal by status and raw body.

    Args:
        http_status: 0 where the transport knows none; 200 for an error inside a stream.
        retry_after: seconds of the ``Retry-After`` header, if the host passed it on.
    """
    text = _readable(body)
    if http_status == 429 or _RATE_LIMIT.search(text):
        return Classified(RefusalKind.RATE_LIMITED, retry_after=retry_after)
    if http_status in (401, 403) or _AUTHENTICATION.search(text):
        return Classified(RefusalKind.AUTHENTICATION)
    if _OUTPUT_ONLY.search(text):
        return Classified(RefusalKind.INVALID_REQUEST)
    for wording in _CONTEXT:
        if found := wording.search(text):
            return _context(found, text)
    if http_status == 413 or _BODY.search(text):
        return Classified(RefusalKind.BODY_TOO_LARGE)
    if http_status in (503, 529) or _OVERLOADED.search(text):
        return Classified(RefusalKind.OVERLOADED, retry_after=retry_after)
    if http_status in (400, 404, 405, 409, 415, 422):
        return Classified(RefusalKind.INVALID_REQUEST)
    return Classified(RefusalKind.OTHER, retry_after=retry_after)


def _words(pattern: str) -> re.Pattern[str]:
    """``<tokens>`` and ``<limit>`` stand for the numbers a refusal names."""
    for name in ("tokens", "limit"):
        pattern = pattern.replace(f"<{name}>", rf"(?P<{name}>\d[\d,_]*)")
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_RATE_LIMIT = _words(
    r"rate[ _-]?limit|too many requests|throttl|resource_exhausted(?!.{0,200}larger than max)|quota|usage limit|"
    r"tokens?[ _]per[ _](min|day|hour|second)|\((tpm|rpm|tpd|rpd|itpm|otpm)\)|"
    r"too many tokens(,? please wait| per |[^.]{0,20}processed)|wait before trying|long context requests"
)
_AUTHENTICATION = _words(
    r"authentication_error|invalid[ _]api[ _]key|incorrect api key|api key not valid|permission_error|"
    r"permission_denied|unauthenticated|accessdenied"
)
_OVERLOADED = _words(r"overloaded|at capacity|service ?unavailable|model is (currently )?loading")
_BODY = _words(
    r"request_too_large|(payload|request|body|entity|content) (size |body )*(is )?too large|payload size exceeds|"
    r"exceeds? the maximum (allowed )?(request |payload |body )?size|string_above_max_length|total text bytes|"
    r"(message|body) (is )?larger than"
)
# Asks for less output only; where the sum with the input is over, the words speak of the context.
_OUTPUT_ONLY = _words(
    r"max_(completion_|output_)?tokens[`'\"]*( is too large|:? ?\d+ ?> ?\d+)(?!.*context)|"
    r"supports at most \d+ completion tokens|maximum tokens you requested exceed"
)
_CONTEXT = (
    # Anthropic, also through Bedrock and Vertex
    _words(r"prompt is too long:? *<tokens> tokens > <limit>"),
    _words(r"exceed context limit: <tokens> \+ \d+ > <limit>"),
    # OpenAI, vLLM, SGLang, OpenRouter, DeepSeek and other compatible servers name the limit first
    _words(r"maximum context length (is|of) <limit>.{0,120}?prompt contains (at least )?<tokens> (input )?tokens"),
    _words(
        r"maximum context length (is|of) <limit>.{0,80}?(requested|resulted in|has|have|contains?|got)"
        r" (about |at least )?<tokens> (input )?tokens"
    ),
    _words(r"maximum context length of <limit> tokens\. you requested a total of <tokens> tokens"),
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
    # Together, Fireworks, Mistral, xAI, TGI
    _words(r"input length <tokens> exceeds the maximum allowed input length of <limit>"),
    _words(r"prompt contains <tokens> tokens.{0,60}?model with <limit> maximum context length"),
    _words(r"maximum prompt length is <limit> but the request contains <tokens>"),
    _words(r"must have less than <limit> tokens\. given: <tokens>"),
    _words(r"tokens \+ .max_new_tokens. must be <= <limit>\. given: <tokens>"),
    _words(r"prompt is <tokens> tokens but the (model )?context window is <limit>"),
    # without the count, or without any number
    _words(r"max(imum)? context (length|window) (is|of) <limit>"),
    _words(
        r"context_length_exceeded|context_window_exceeded|exceed_context_size|"
        r"exceed(s|ed)? (the )?(model'?s? )?(available |max(imum)? )?context (window|length|limit|size)|"
        r"context size has been exceeded|(greater|larger|longer) than the (model'?s )?context (window|length|size)|"
        r"input is too long|prompt (is )?too long|prompt exceeds max(imum)? length|"
        r"longer than the maximum model length|input length exceeds|input tokens exceed|too many input tokens|"
        r"token limit exceeded|exceeds? (the )?(model'?s )?maximum (input )?(number of )?tokens|"
        r"reduce the length of the (messages|prompt|input)"
    ),
)
_PART = re.compile(r"([\d,]+) (?:in (?:the|your) (?!completion|output)\w+|of \w+ input)")


def _context(found: re.Match[str], text: str) -> Classified:
    groups = found.groupdict()
    tokens, limit = _number(groups.get("tokens")), _number(groups.get("limit"))
    # A total is broken down in brackets behind it; the output asked for is no part of the prompt.
    parts = [_number(part) or 0 for part in _PART.findall(text[found.end() : found.end() + 200].split(")", 1)[0])]
    if tokens is not None and parts:
        tokens = sum(parts)
    # llama.cpp states both as fields beside its message.
    return Classified(
        RefusalKind.CONTEXT_EXCEEDED,
        _field(text, "n_prompt_tokens") if tokens is None else tokens,
        _field(text, "n_ctx") if limit is None else limit,
    )


def _field(text: str, name: str) -> int | None:
    found = re.search(rf'"{name}" *: *(\d+)', text)
    return _number(found[1]) if found else None


def _number(digits: str | None) -> int | None:
    if digits is None:
        return None
    plain = digits.replace(",", "").replace("_", "")
    return min(int(plain), COUNT_MAX) if len(plain) <= _DIGITS else COUNT_MAX


def _readable(body: bytes) -> str:
    """The body's text with errors that are nested as JSON inside JSON strings laid bare (OpenRouter's ``raw``)."""
    text = body[:READ_BYTES].decode("utf-8", errors="replace")
    try:
        parts = _strings(json.loads(text))
    except (ValueError, RecursionError):
        parts = []
    return " ".join(" ".join([text, *parts]).split())


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        nested = value.strip().startswith(("{", "["))
        try:
            return [value, *(_strings(json.loads(value)) if nested else [])]
        except (ValueError, RecursionError):
            return [value]
    if isinstance(value, dict):
        return [part for item in value.values() for part in _strings(item)]
    if isinstance(value, list):
        return [part for item in value for part in _strings(item)]
    return []
