"""Identifiers that matter in folded rows (S9): paths, URLs, ids, codes, names, numbers, quoted constraints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from foldline.summarize.reading import Reading
from foldline.domain.session import CALL_FAILED


class IdentifierKind(StrEnum):
    URL = "url"
    PATH = "path"
    ID = "id"
    CODE = "code"
    NAME = "name"
    NUMBER = "number"
    CONSTRAINT = "constraint"


@dataclass(frozen=True, slots=True)
class Identifier:
    """One identifier, exactly as written. ``weight`` is its salience; ``offset`` the last row that names it."""

    text: str
    kind: IdentifierKind
    weight: float
    offset: int


_EXTENSION = (
    r"(?:py|pyi|rs|go|ts|tsx|js|jsx|mjs|cjs|java|kt|rb|php|c|h|cc|cpp|hpp|cs|swift|scala|sh|sql|md|rst|txt|json|jsonl|yaml|yml|"
    r"toml|ini|cfg|conf|env|lock|xml|html|css|scss|csv|tsv|log|proto|ipynb|pdf|png|jpg|jpeg|svg|gz|zip|whl|dcm)"
)
_PATTERN = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+.-]{1,9}://[^\s<>\"'`)\]}|,]+)"
    r"|(?P<email>\b[\w.+-]+@[\w-]+\.[\w.-]*\w)"
    r"|(?P<path>(?<![\w/.~-])(?:~|\.{1,2})?/(?:[\w.@+\[\]-]+/)*[\w.@+-]*\w|(?<![\w/.@-])@?(?:[\w.@+-]+/)+[\w.+-]*\.[A-Za-z]\w{0,7}\b"
    r"|(?<![\w/.-])(?:[\w.+-]+/){2,}[\w.+-]*\w|\b[\w-]+(?:\.[\w-]+)*\." + _EXTENSION + r"\b(?!\())"
    r"|(?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?\b)"
    r"|(?P<code>\b[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+\b|\bE[A-Z]{4,}\b|\b[A-Z]\w*(?:Error|Exception)\b|\b[A-Z]{2,}-\d+\b)"
    r"|(?P<id>\b(?=[A-Za-z_-]{0,40}\d)(?=\d{0,40}[-_]?[A-Za-z])[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*\b)"
    r"|(?P<name>`[^`\n]{2,60}`|\b_?[a-z]+(?:_[a-z0-9]+)+\b|\b[a-z]+[A-Z]\w+\b|\b[A-Z][a-z0-9]+[A-Z]\w+\b)"
    r"|(?P<number>(?<![\w.])[$€£¥]?\d[\d,.:/]*\d\s?(?:%|[kKMGT]i?[Bb]|ms|µs|s|min|h|px|rows|tokens|rps|USD|EUR)?(?![\w])|[$€£¥]\d\b|\b\d%)"
)
_KINDS = {
    "url": IdentifierKind.URL, "email": IdentifierKind.ID, "path": IdentifierKind.PATH, "uuid": IdentifierKind.ID,
    "date": IdentifierKind.NUMBER, "code": IdentifierKind.CODE, "id": IdentifierKind.ID, "name": IdentifierKind.NAME,
    "number": IdentifierKind.NUMBER,
}  # fmt: skip
_KIND_WEIGHT = {
    IdentifierKind.URL: 1.2, IdentifierKind.PATH: 1.2, IdentifierKind.ID: 1.1, IdentifierKind.CODE: 1.1,
    IdentifierKind.NAME: 0.7, IdentifierKind.NUMBER: 0.6, IdentifierKind.CONSTRAINT: 2.0,
}  # fmt: skip
_USER, _ERROR, _ARGUMENT, _ASSISTANT, _RESULT = 3.0, 1.5, 1.0, 1.0, 0.25
MATTERS = 1.3
_RESULT_SCAN, _TEXT_SCAN = 600, 6000
_SMALL_ORDINAL = re.compile(r"\d{1,2}(?:[.:,/]\d)?\Z")


def find_identifiers(text: str) -> Iterable[tuple[str, IdentifierKind]]:
    """Identifiers of a text in order, repeats included, as they are written there."""
    for match in _PATTERN.finditer(text):
        group = match.lastgroup or ""
        found = match.group()
        if group == "name":
            found = found.strip("`").strip()
            inner = next(_PATTERN.finditer(found), None)
            if inner is not None and inner.group() == found and inner.lastgroup:
                group = inner.lastgroup
        elif group in ("url", "path"):
            found = found.rstrip(".,;:!?").removeprefix("@")
        if len(found) < 2 or (group == "number" and _SMALL_ORDINAL.match(found)):
            continue
        yield found, _KINDS[group]


def identifiers_of(reading: Reading, constraints: Iterable[tuple[int, str]] = ()) -> tuple[Identifier, ...]:
    """Identifiers that matter, by falling weight: said by the user, in a failure, or named more than once.

    Long tool output is not scanned whole: an identifier that only stands inside a listing matters when somebody
    speaks of it.
    """
    seen: dict[str, list[float]] = {}
    kinds: dict[str, IdentifierKind] = {}

    def add(offset: int, text: str, source: float, scan: int = _TEXT_SCAN) -> None:
        if len(text) > scan:
            text = text[: scan * 2 // 3] + "\n" + text[-scan // 3 :]
        for found, kind in set(find_identifiers(text)):
            entry = seen.setdefault(found, [0.0, 0.0, 0.0])
            entry[0] = max(entry[0], source)
            entry[1] += 1
            entry[2] = offset
            kinds.setdefault(found, kind)

    for request in reading.requests:
        add(request.offset, request.text, _USER if request.speaker == "user" else _ASSISTANT)
    for statement in reading.statements:
        add(statement.offset, statement.text, _ASSISTANT)
    for call in reading.calls:
        add(call.offset, call.arguments, _ARGUMENT)
        failed = call.outcome == CALL_FAILED
        add(call.result_offset, call.result, _ERROR if failed else _RESULT, _RESULT_SCAN)
    found = [
        Identifier(text, kinds[text], _weight(kinds[text], best, times), int(offset))
        for text, (best, times, offset) in seen.items()
    ]
    kept = [i for i in _merge_paths(found) if i.weight >= MATTERS]
    kept += [Identifier(text, IdentifierKind.CONSTRAINT, 9.0, offset) for offset, text in constraints]
    return tuple(sorted(kept, key=lambda i: (-i.weight, -i.offset, i.text)))


def _weight(kind: IdentifierKind, best: float, times: float) -> float:
    return _KIND_WEIGHT[kind] * (best * 0.6 + math.log2(times))


def _merge_paths(found: list[Identifier]) -> list[Identifier]:
    """Counts a path and its longer forms (absolute, from the root of the project) as one, named by the shortest."""
    shorter: dict[str, Identifier] = {}
    merged: dict[str, Identifier] = {i.text: i for i in found}
    for item in found:
        if item.kind == IdentifierKind.PATH and "/" in item.text.strip("/."):
            shorter[item.text.removeprefix("./").lstrip("/")] = item
    for item in found:
        if item.kind != IdentifierKind.PATH or item.text not in merged:
            continue
        parts = item.text.strip("/").split("/")
        for start in range(len(parts) - 2, 0, -1):
            short = shorter.get("/".join(parts[start:]))
            if short is not None and short.text in merged and short.text != item.text:
                base = merged[short.text]
                weight = max(base.weight, item.weight) + 0.3
                merged[short.text] = Identifier(base.text, base.kind, weight, max(base.offset, item.offset))
                merged.pop(item.text)
                break
    return list(merged.values())
