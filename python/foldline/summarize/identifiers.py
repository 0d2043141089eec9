"""Identifiers that matter in folded rows (S9): paths, URLs, ids, codes, names, numbers, quoted constraints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from foldline.domain.session import CALL_FAILED
from foldline.summarize.outcomes import gist
from foldline.summarize.reading import Reading


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
    """One identifier, exactly as written.

    Attributes:
        weight: salience; ``offset`` is the last row that names it.
        probe: what a text must hold to mention it: ``text``, or a shorter form of a path that was used too.
    """

    text: str
    kind: IdentifierKind
    weight: float
    offset: int
    probe: str


_EXTENSION = (
    r"(?:py|pyi|rs|go|ts|tsx|js|jsx|mjs|cjs|java|kt|rb|php|c|h|cc|cpp|hpp|cs|swift|scala|sh|sql|md|rst|txt|json|jsonl|yaml|yml|"
    r"toml|ini|cfg|conf|env|lock|xml|html|css|scss|csv|tsv|log|proto|ipynb|pdf|png|jpg|jpeg|svg|gz|zip|whl|dcm)"
)
_UNIT = r"(?:%|[kKMGT]i?[Bb]|ms|µs|s|min|h|px|rows|tokens|rps|USD|EUR)"
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,9}://[^\s<>\"'`)\]}|,]+")
_QUOTED = re.compile(r"`([^`\n]{2,60})`")
_GROUPED = re.compile(r"(?<![\w.,])[$€£¥]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w,])")
_MEASURED = re.compile(r"(?<![\w.])\d[\d,.]* " + _UNIT + r"(?!\w)")
WORDS = re.compile(r"[^\s\"'`<>(){}\[\],;|=!?*]{2,200}")
_PATTERN = re.compile(
    r"(?P<email>\b[\w.+-]+@[\w-]+\.[\w.-]*\w)"
    r"|(?P<path>(?<![\w/.~-])(?:~|\.{1,2})?/(?:[\w.@+-]+/)*[\w.@+-]*\w|(?<![\w/.@-])@?(?:[\w.@+-]+/)+[\w.+-]*\.[A-Za-z]\w{0,7}\b"
    r"|(?<![\w/.-])(?:[\w.+-]+/){2,}[\w.+-]*\w|\b[\w-]+(?:\.[\w-]+)*\." + _EXTENSION + r"\b)"
    r"|(?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?\b)"
    r"|(?P<code>\b[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+\b|\b[A-Z]\w*(?:Error|Exception)\b|\b[A-Z]{2,}-\d+\b"
    r"|\bE(?:NO[A-Z]+|ACCES|CONN[A-Z]+|TIMEDOUT|PERM|EXIST|INVAL|IO|ADDR[A-Z]+|PIPE|BUSY|AGAIN|MFILE|ISDIR|HOST[A-Z]+"
    r"|NET[A-Z]+)\b)"
    r"|(?P<id>\b(?=[A-Za-z_-]{0,40}\d)(?=\d{0,40}[-_]?[A-Za-z])[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*\b)"
    r"|(?P<name>\b_?[a-z]+(?:_[a-z0-9]+)+\b|\b[a-z]+[A-Z]\w+\b|\b[A-Z][a-z0-9]+[A-Z]\w+\b)"
    r"|(?P<number>(?<![\w.])[$€£¥]?\d[\d,.:/]*\d" + _UNIT + r"?(?!\w)|[$€£¥]\d\b|\b\d%)"
)
_KINDS = {
    "email": IdentifierKind.ID, "path": IdentifierKind.PATH, "uuid": IdentifierKind.ID,
    "date": IdentifierKind.NUMBER, "code": IdentifierKind.CODE, "id": IdentifierKind.ID, "name": IdentifierKind.NAME,
    "number": IdentifierKind.NUMBER,
}  # fmt: skip
_KIND_WEIGHT = {
    IdentifierKind.URL: 1.2, IdentifierKind.PATH: 1.2, IdentifierKind.ID: 1.1, IdentifierKind.CODE: 1.1,
    IdentifierKind.NAME: 0.7, IdentifierKind.NUMBER: 0.6, IdentifierKind.CONSTRAINT: 2.0,
}  # fmt: skip
_USER, _CLOSING, _PASTE, _ERROR, _ARGUMENT, _ASSISTANT, _RESULT = 3.0, 2.4, 1.6, 1.5, 1.0, 1.0, 0.25
MATTERS = {
    IdentifierKind.URL: 1.2, IdentifierKind.PATH: 1.7, IdentifierKind.ID: 1.5, IdentifierKind.CODE: 1.5,
    IdentifierKind.NAME: 1.7, IdentifierKind.NUMBER: 1.0, IdentifierKind.CONSTRAINT: 0.0,
}  # fmt: skip
_RESULT_SCAN, _TEXT_SCAN, _PASTED = 600, 6000, 1500
_LINE_NUMBERS = re.compile(r"^\s*\d+(?=[:|\t])", re.MULTILINE)
_NO_PATH = re.compile(r"\.\./|[A-Z]\w*\.js\Z")
_QUANTITY = re.compile(r"\d+[a-zA-Z]{1,2}\Z")
_BARE_NUMBER = re.compile(r"\d{1,3}(?:[:,]\d{1,3}|[a-zA-Z]{1,2})?\Z")
_SMALL_ORDINAL = re.compile(r"\d{1,2}(?:[.:,/]\d)?\Z")


def find_identifiers(text: str) -> dict[str, IdentifierKind]:
    """Identifiers of a text, each once, as they are written there."""
    found: dict[str, IdentifierKind] = {}
    if "://" in text:
        for url in _URL.findall(text):
            found[url.rstrip(".,;:!?")] = IdentifierKind.URL
        text = _URL.sub(" ", text)
    if "`" in text:
        for quoted in _QUOTED.findall(text):
            # A function is mentioned with and without its brackets.
            name = quoted.strip().removesuffix("()")
            inner = _identifiers_in(name)
            found.update(inner if name in dict(inner) or not name else {name: IdentifierKind.NAME})
    if "," in text:
        for grouped in _GROUPED.findall(text):
            found[grouped] = IdentifierKind.NUMBER
        text = _GROUPED.sub(" ", text)
    for measured in _MEASURED.findall(text):
        found[measured] = IdentifierKind.NUMBER
    for word in set(WORDS.findall(_LINE_NUMBERS.sub("", text))):
        found.update(_identifiers_in(word))
    return dict(sorted(found.items()))


@lru_cache(maxsize=1 << 16)
def _identifiers_in(word: str) -> tuple[tuple[str, IdentifierKind], ...]:
    """Identifiers in one word; words repeat, so that most are looked up."""
    found = []
    for match in _PATTERN.finditer(word):
        group, text = match.lastgroup or "", match.group()
        if group == "path":
            text = text.rstrip(".,;:!?").removeprefix("@")
            if _NO_PATH.match(text):
                continue
        elif group == "id" and _QUANTITY.match(text):
            group = "number"
        if len(text) > 1 and not (group == "number" and _SMALL_ORDINAL.match(text)):
            found.append((text, _KINDS[group]))
    return tuple(found)


@dataclass(slots=True)
class _Tally:
    kind: IdentifierKind
    source: float = 0.0
    said: int = 0
    shown: int = 0
    offset: int = 0

    def weight(self) -> float:
        return _KIND_WEIGHT[self.kind] * (self.source * 0.6 + math.log2(max(1, self.said)) + 0.1 * min(self.shown, 5))


def identifiers_of(reading: Reading, constraints: Iterable[tuple[int, str]] = ()) -> tuple[Identifier, ...]:
    """Identifiers that matter, by falling weight: said by the user, in a closing answer, in a
    failure, or more than once.

    Long tool output is not scanned whole, and what stands only in output does not matter: an identifier of a listing
    does when somebody speaks of it.
    """
    tallies: dict[str, _Tally] = {}

    def add(offset: int, text: str, source: float, scan: int = _TEXT_SCAN) -> None:
        if len(text) > scan:
            text = text[: scan * 2 // 3] + "\n" + text[-scan // 3 :]
        for found, kind in find_identifiers(text).items():
            if source != _USER and (_BARE_NUMBER.match(found) or (kind == IdentifierKind.ID and len(found) < 4)):
                continue
            tally = tallies.setdefault(found, _Tally(kind))
            tally.source = max(tally.source, source)
            tally.offset = max(tally.offset, offset)
            if source == _RESULT:
                tally.shown += 1
            else:
                tally.said += 1

    for request in reading.requests:
        users = request.speaker == "user" and len(request.text) <= _PASTED
        add(request.offset, request.text, _USER if users else _PASTE)
    for statement in reading.statements:
        add(statement.offset, statement.text, _CLOSING if statement.final else _ASSISTANT)
    for call in reading.calls:
        add(call.offset, call.arguments, _ARGUMENT)
        if call.outcome == CALL_FAILED:
            add(call.result_offset, gist(call.result, True, 300), _ERROR)
        else:
            add(call.result_offset, call.result, _RESULT, _RESULT_SCAN)
    found = [i for i in _merge_paths(tallies) if i.weight >= MATTERS[i.kind]]
    found += [Identifier(text, IdentifierKind.CONSTRAINT, 9.0, offset, text) for offset, text in constraints]
    return tuple(sorted(found, key=lambda i: (-i.weight, -i.offset, i.text)))


def _merge_paths(tallies: dict[str, _Tally]) -> list[Identifier]:
    """One identifier for a path and the longer and bare forms of it.

    It is named by the form written most, and found in a text by the shortest form with a directory that anybody
    wrote: every longer form ends with that.
    """
    tails: dict[str, list[str]] = {}
    for text, tally in tallies.items():
        if tally.kind == IdentifierKind.PATH:
            tails.setdefault(text.rstrip("/").rsplit("/", 1)[-1], []).append(text)
    merged: list[Identifier] = []
    for texts in tails.values():
        families: list[list[str]] = []
        for text in sorted(texts, key=lambda t: (t.count("/") == 0, len(t))):
            core = "/" + text.removeprefix("./").strip("/")
            home = [f for f in families if core == f[0] or f[-1].endswith(core) or ("/" + text).endswith(f[0])]
            if len(home) == 1:
                home[0].append(text)
            elif not home or "/" in core[1:]:
                families.append([core, text])
        for probe, *forms in families:
            own = [tallies[f] for f in forms]
            named = max(forms, key=lambda f: ("/" in f.removeprefix("./"), tallies[f].said, len(f)))
            whole = _Tally(IdentifierKind.PATH, max(t.source for t in own), sum(t.said for t in own))
            newest = max(t.offset for t in own)
            merged.append(Identifier(named, IdentifierKind.PATH, whole.weight(), newest, probe.strip("/")))
    others = ((text, t) for text, t in tallies.items() if t.kind != IdentifierKind.PATH)
    return merged + [Identifier(text, t.kind, t.weight(), t.offset, text) for text, t in others]
