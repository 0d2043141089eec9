"""What a provider refused a request for (4.4), from its status and its words.

A rate limit is looked for first: several providers speak of "too many tokens" or "request too large" when they mean
tokens a minute, and folding would cost a summary and cure nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from foldline.domain.enums import RefusalKind
from foldline.domain.models import COUNT_MAX
from foldline.engine import error_bodies
from foldline.engine.error_bodies import Said
from foldline.engine.refusal_words import (
    AUTHENTICATION,
    BODY,
    BODY_STRING_CHARS,
    CONTEXT,
    CONTEXT_CODES,
    DURATION,
    LARGER_THAN_MAX,
    LONG_STRING,
    MEDIA,
    OUTPUT_ONLY,
    OVER_BY,
    OVERLOADED,
    PART,
    RATE_CODES,
    RATE_LIMIT,
    RETRY_IN,
    SILENT_ON_SIZE,
    UNIT_SECONDS,
)

RETRY_MAX = 30 * 86_400.0
"""Seconds; nobody waits longer, and a contract's duration must hold it."""
_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Classified:
    """A refusal: its kind, the tokens it says the prompt had, the limit it names, and when to come back in seconds."""

    kind: RefusalKind
    named_tokens: int | None = None
    named_limit: int | None = None
    retry_after: float | None = None


def classify(http_status: int, body: bytes, provider: str = "") -> Classified:
    """Classifies a refusal by status and raw body.

    Args:
        http_status: 0 where the transport knows none; 200 for an error inside a stream.
        provider: who refused, where that is known: some say nothing at all of a prompt that is too long.
    """
    said = error_bodies.read(body)
    if _is_rate_limit(http_status, said):
        return Classified(RefusalKind.RATE_LIMITED, retry_after=_retry_after(said))
    if http_status in (401, 403) or _any(AUTHENTICATION, said):
        return Classified(RefusalKind.AUTHENTICATION)
    if _any(OUTPUT_ONLY, said):
        return Classified(RefusalKind.INVALID_REQUEST)
    context = _context(said)
    if context is not None:
        return context
    if not said.statements and http_status == 400 and provider.lower() in SILENT_ON_SIZE:
        return Classified(RefusalKind.CONTEXT_EXCEEDED)
    if http_status == 413 or (not _any(MEDIA, said) and (_any(BODY, said) or _is_long_string(said))):
        return Classified(RefusalKind.BODY_TOO_LARGE)
    if http_status in (503, 529) or _any(OVERLOADED, said):
        return Classified(RefusalKind.OVERLOADED, retry_after=_retry_after(said))
    if http_status in (400, 404, 405, 409, 415, 422):
        return Classified(RefusalKind.INVALID_REQUEST)
    return Classified(RefusalKind.OTHER, retry_after=_retry_after(said))


def _is_rate_limit(http_status: int, said: Said) -> bool:
    codes = {s.lower() for s in said.statements}
    if http_status == 429 or codes & RATE_CODES:
        return not (codes & {"resource_exhausted"} and _any(LARGER_THAN_MAX, said))
    # A provider's own code says more than a word that its message happens to hold.
    return not codes & CONTEXT_CODES and _any(RATE_LIMIT, said) and not _any(LARGER_THAN_MAX, said)


def _context(said: Said) -> Classified | None:
    for wording in CONTEXT:
        matches = [(found, s) for s in said.statements if (found := wording.search(s))]
        if matches:
            return _named(matches, said)
    if {s.lower() for s in said.statements} & CONTEXT_CODES:
        return _named([], said)
    return None


def _named(matches: Iterable[tuple[re.Match[str], str]], said: Said) -> Classified:
    """The numbers of the first statement; llama.cpp states both as fields beside its message."""
    tokens = limit = None
    for found, statement in matches:
        groups = found.groupdict()
        tokens, limit = _number(groups.get("tokens")), _number(groups.get("limit"))
        # A total is broken down behind it; the output asked for is no part of the prompt.
        parts = [_number(part) or 0 for part in PART.findall(statement[found.end() : found.end() + 200])]
        if tokens is not None and parts:
            tokens = min(sum(parts), COUNT_MAX)
        over = OVER_BY.search(statement)
        if tokens is None and over and limit is not None:
            tokens = min(limit + (_number(over[1]) or 0), COUNT_MAX)
        break
    return Classified(
        RefusalKind.CONTEXT_EXCEEDED,
        _number(said.fields.get("nprompttokens")) if tokens is None else tokens,
        _number(said.fields.get("nctx")) if limit is None else limit,
    )


def _is_long_string(said: Said) -> bool:
    """Whether a text is over the length that one string may have, which only a prompt can reach."""
    found = [match for s in said.statements if (match := LONG_STRING.search(s))]
    return any((_number(match[1]) or 0) >= BODY_STRING_CHARS for match in found)


def _any(words: re.Pattern[str], said: Said) -> bool:
    return any(words.search(s) for s in said.statements)


def _number(digits: str | None) -> int | None:
    if digits is None:
        return None
    plain = digits.replace(",", "").replace("_", "")
    if not plain.isdecimal() or not plain.isascii():
        return None
    return min(int(plain), COUNT_MAX) if len(plain) <= _DIGITS else COUNT_MAX


def _retry_after(said: Said) -> float | None:
    """Seconds that a body names: in a field of its own, else in its words; the longest where there are several."""
    stated = [_seconds(said.fields[name]) for name in ("retrydelay", "retryafter") if name in said.fields]
    stated += [_seconds(said.fields[n]) for n in ("retryafterseconds", "retryaftersecs") if n in said.fields]
    stated += [_seconds(match[1]) for s in said.statements for match in RETRY_IN.finditer(s)]
    known = [s for s in stated if s is not None]
    return max(known, default=None)


def _seconds(text: str) -> float | None:
    """Of a plain number, or of numbers with units such as ``1m30.5s``."""
    text = text.strip()
    if re.fullmatch(r"\d{1,18}(\.\d{1,18})?", text):
        return min(float(text), RETRY_MAX)
    if not re.fullmatch(DURATION, text, re.IGNORECASE):
        return None
    parts = re.findall(r"(\d[\d.]*) ?([a-z]+)", text.lower())
    return min(sum(float(number) * _unit_seconds(unit) for number, unit in parts), RETRY_MAX)


def _unit_seconds(unit: str) -> float:
    return UNIT_SECONDS["ms" if unit.startswith(("ms", "milli")) else unit[0]]
