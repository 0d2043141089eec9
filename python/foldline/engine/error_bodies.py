"""What a provider says in the body of a refusal, without what it echoes of the request (4.4).

A body may be JSON, JSON inside strings of JSON, lines of an event stream, HTML of a proxy, an exception that a gateway
printed, or a piece of any of these. Prompts, tool results and answers that it repeats are no words of the provider.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 1 << 20
STATEMENT_CHARS, ALL_CHARS = 16_384, 65_536
"""Errors are short: of longer texts the rest is the request again."""
_DEPTH = 32

_ECHOES = frozenset((
    "arguments", "candidates", "choices", "content", "contents", "delta", "failedgeneration", "flaggedinput", "input",
    "inputs", "messages", "originalrequest", "output", "prompt", "request", "requestbody", "requestbodyvalues", "tools",
))  # fmt: skip
_HEADERS = frozenset(("headers", "responseheaders"))
_FIELDS = frozenset(("nprompttokens", "nctx", "retryafter", "retryaftersecs", "retryafterseconds", "retrydelay"))

_ECHO_KEY = re.compile(
    rf'"(?:{"|".join([*_ECHOES, *_HEADERS, "failed_generation", "flagged_input", "request_body"])})"\s*:\s*',
    re.IGNORECASE,
)
_QUOTED_VALUE = re.compile(
    r"(invalid value: ?)['\"].*['\"](?=\. (?:supported|expected)|\.?$)", re.IGNORECASE | re.DOTALL
)
_TRUNCATED_FIELD = re.compile(r'"(n_prompt_tokens|n_ctx|retry_after|retryDelay)" *: *"?([\d.]+s?)', re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*+>")
_ESCAPED = re.compile(r"(?<!\\)\\+u([0-9a-fA-F]{4})")
_DECODER = json.JSONDecoder()
_BREAKS = re.compile(r"(?<!\\)\\+[nrt]")


@dataclass(slots=True)
class Said:
    """Attributes:
    statements: what is said, white space made single, escapes undone.
    fields: numbers that stand as fields of their own, by name in lower case without separators.
    """

    statements: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    _chars: int = 0

    def say(self, text: str) -> None:
        plain = _plain(text[: min(STATEMENT_CHARS, ALL_CHARS - self._chars)])
        if plain:
            self._chars += len(plain)
            self.statements.append(plain)


def read(body: bytes) -> Said:
    """Reads a body of any kind; the same statements whatever its white space and order of fields."""
    said = Said()
    data = body[:READ_BYTES]
    _text(said, data.decode(json.detect_encoding(data), errors="replace"), 0)
    said.statements.sort()
    return said


def _text(said: Said, text: str, depth: int) -> None:
    text = text.strip().removeprefix("\ufeff")
    if depth > _DEPTH or not text:
        return
    value = _json(text)
    if value is not None:
        _value(said, value, depth + 1)
        return
    lines = list(_stream(text))
    if lines:
        for line in lines:
            _value(said, line, depth + 1)
        return
    if text.startswith("<"):
        text = html.unescape(_TAG.sub(" ", text))
    elif '"' in text:
        for name, number in _TRUNCATED_FIELD.findall(text):
            said.fields.setdefault(_name(name), number)
        text = _without_echoes(text)
    said.say(_QUOTED_VALUE.sub(r"\1", text[:STATEMENT_CHARS]))


def _without_echoes(text: str) -> str:
    """A piece of JSON without the values that repeat the request; where one is cut off, so is the rest."""
    kept, at = [], 0
    while found := _ECHO_KEY.search(text, at):
        kept.append(text[at : found.start()])
        try:
            at = _DECODER.raw_decode(text, found.end())[1]
        except (ValueError, RecursionError):
            return "".join(kept)
    return "".join([*kept, text[at:]])


def _value(said: Said, value: Any, depth: int) -> None:
    if depth > _DEPTH:
        return
    if isinstance(value, str):
        _text(said, value, depth + 1)
    elif isinstance(value, Mapping):
        for key in sorted(value):
            name = _name(key)
            if name in _FIELDS and isinstance(value[key], str | int | float):
                said.fields.setdefault(name, str(value[key]))
            elif name in _HEADERS and isinstance(value[key], Mapping):
                after = next((v for k, v in value[key].items() if _name(k) == "retryafter"), None)
                if isinstance(after, str | int | float):
                    said.fields.setdefault("retryafter", str(after))
            elif name not in _ECHOES and name not in _HEADERS:
                _value(said, value[key], depth + 1)
    elif isinstance(value, list):
        for item in value:
            _value(said, item, depth + 1)


def _json(text: str) -> Any:
    """The value of a JSON object, array or string; None for anything else."""
    if not text.startswith(("{", "[", '"')):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _stream(text: str) -> Iterator[Any]:
    """The JSON values of an event stream, or of lines that are JSON each."""
    for line in text.splitlines():
        value = _json(line.strip().removeprefix("data:").strip())
        if isinstance(value, Mapping):
            yield value


def _name(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _plain(text: str) -> str:
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    text = _BREAKS.sub(" ", text).replace("\\", "").replace("\u2019", "'").replace("`", "").replace("\u00a0", " ")
    return " ".join(text.split())
