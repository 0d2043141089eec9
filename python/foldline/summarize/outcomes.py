"""Calls and results in one line each, for any tool: what was asked, and the line of the result that tells most."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from foldline.summarize.text import clip, one_line

_MAIN_KEYS = (
    "command", "cmd", "script", "path", "file_path", "filepath", "filename", "file", "url", "uri", "query", "pattern",
    "sql", "expression", "id", "name", "title", "text", "message",
)  # fmt: skip
_FAILED = re.compile(
    r"\A\W*(?:error|exception|fatal|failed|traceback)\b|Traceback \(most recent call last\)|command not found"
    r"|\b(?:exit(?:ed)?|return(?:ed)?)(?: with)?(?: code| status)?:? [1-9]\d{0,2}\b|\bpanicked at\b|\bsyntax error",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(
    r"\b\w*(?:Error|Exception|Panic)\b"
    r"|\b(?:error|fatal|failed|failure|denied|refused|not found|cannot|unable|timed? ?out)\b"
    r"|\b[45]\d\d [A-Z]",
    re.IGNORECASE,
)
_TELLING = re.compile(
    r"\b(?:passed|failed|success\w*|created|updated|deleted|written|replaced|applied|committed|total|done|ok|error\w*|"
    r"warnings?|finished|completed|changed|insertions?)\b",
    re.IGNORECASE,
)
_CHANGES = re.compile(
    r"(?:^|[_\W])(?:write|edit|create|update|delete|remove|insert|append|apply|patch|replace|move|rename|book|cancel|send|"
    r"modify|commit|push|deploy|submit|set|add|put|post|transfer|refund|restart|rollback|migrate|merge|install|run)(?:$|[_\W])",
    re.IGNORECASE,
)
_READS = re.compile(
    r"(?:^|[_\W])(?:read|get|list|search|find|grep|ls|cat|open|view|fetch|show|look\w*|scroll\w*|goto|describe|head|tail|"
    r"wc|sed|status|log|diff|echo|think|calculate)(?:$|[_\W])",
    re.IGNORECASE,
)
_CHANGING_COMMAND = re.compile(
    r"\b(?:git (?:commit|push|checkout|merge|rebase|revert|mv|rm|reset|tag|branch)|rm|mv|cp|mkdir|touch|"
    r"npm (?:i|install)|pip install|psql|alembic|kubectl (?:apply|delete|rollout|scale|set)|helm|terraform|docker|"
    r"curl -X|chmod|tee)\b"
    r"|(?<![-0-9&=])>{1,2}\s?(?!&|/dev/null)"
)
_PREPARES = re.compile(r"\S+ (?:(?:mkdir|touch|cd|chmod|sleep|wait)\b[^;&|]*(?:&&|;|$)\s*)+", re.IGNORECASE)
_PATH = re.compile(r"[\w@.~+-]*(?:/[\w@.+\[\]() -]+)+/?|[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,7}")
_NAMED_ERROR = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception)\b|\berror(?:\[\w+\]| [A-Z]+\d+)?:|\w:\d+(?::\d+)?\b.*\berror\b"
    r"|\bE[A-Z]{4,}:|\b[45]\d\d\b"
)
_EMPTY_ERROR = re.compile(r"exited with code|^npm (?:err|error)|^Traceback|exit (?:code|status)|^at ", re.IGNORECASE)
_CONFIRMS = re.compile(r"\W*(?:no output|ok|done|success\w*|true|null|none|ran)?\W*$", re.IGNORECASE)
_SUCCESS = re.compile(
    r"success|wrote|written|updated|edited|replaced|applied|file (?:was )?(?:written|updated|created)", re.IGNORECASE
)
_JSON_MARKS = re.compile(r"[\[\]{}\"]+")
_JSON_START = re.compile(r"[\[{\s]*\"")
_TABLE_RULE = re.compile(r"[-+|: ]{3,}")
_ROW_COUNT = re.compile(r"\(\d+ rows?\)")
_LINE_NUMBER = re.compile(r"^\s*\d+[:|\t]\s?")


def camel_apart(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def changes_something(name: str, brief: str) -> bool:
    """Whether a call most likely changed the world: by the verb in its name, else by the command it ran."""
    words = camel_apart(name)
    if _READS.search(words):
        return False
    if _runs_commands(words):
        return bool(_CHANGING_COMMAND.search(brief))
    return bool(_CHANGES.search(words))


def only_reads(name: str, brief: str) -> bool:
    words = camel_apart(name)
    if _runs_commands(words):
        first = re.sub(r"^\S+ (?:cd \S+ (?:&&|;) )?", "", brief).split(" ", 1)[0]
        return bool(_READS.fullmatch(first)) and not _CHANGING_COMMAND.search(brief)
    return bool(_READS.search(words))


def prepares_only(brief: str) -> bool:
    """Whether a command only made room for others: a directory, an empty file, a change of place."""
    return bool(_PREPARES.fullmatch(brief))


def _runs_commands(words: str) -> bool:
    return bool(re.search(r"(?:^|_)(?:bash|shell|sh|exec\w*|terminal|command|run)(?:$|_)", words, re.IGNORECASE))


def main_argument(arguments: Mapping[str, object] | str) -> str:
    """The argument that says what a call was about, in one line; empty when there is none."""
    if isinstance(arguments, str):
        return clip(one_line(arguments), 160)
    for key in _MAIN_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return clip(one_line(value), 200)
    for key, value in arguments.items():
        if key.endswith("id") and isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    for value in arguments.values():
        if isinstance(value, str) and 0 < len(value) <= 120:
            return one_line(value)
    return ""


def brief_call(name: str, arguments: Mapping[str, object] | str) -> str:
    """``name target key=value …`` as words, not as a call an endpoint would parse; long values are left out."""
    target = main_argument(arguments)
    words = [name, target] if target else [name]
    if isinstance(arguments, Mapping):
        room = 3
        for key, value in arguments.items():
            if isinstance(value, dict | list) or value is None:
                continue
            text = one_line(str(value).lower() if isinstance(value, bool) else str(value))
            if text and len(text) <= 40 and text != target and room and "\n" not in str(value):
                words.append(f"{key}={text}")
                room -= 1
    return " ".join(words)


def is_path(target: str) -> bool:
    return bool(_PATH.fullmatch(target))


def looks_failed(text: str) -> bool:
    """Whether a result that no flag marks reads like a failure."""
    return bool(_FAILED.search(text[:400]) or _FAILED.search(text[-400:]))


def gist(text: str, failed: bool, limit: int = 140) -> str:
    """The part of a result that tells most, in one line: error line, scalars of JSON, totals, else the first line."""
    stripped = text.strip()
    if stripped[:1] in "{[":
        brief = _json_gist(stripped, limit)
        if brief:
            return brief
        if _JSON_START.match(stripped):
            # JSON that is cut: its words without its marks.
            words = one_line(_JSON_MARKS.sub(" ", stripped[: 4 * limit]))
            return clip(words.replace(" :", ":").replace(" ,", ","), limit)
    lines = [one_line(_LINE_NUMBER.sub("", line)) for line in stripped.splitlines()]
    lines = [line for line in lines if len(line) > 1]
    if not lines:
        return ""
    if failed:
        return clip(_worst(lines), limit)
    if len(lines) > 2 and _TABLE_RULE.fullmatch(lines[1]):
        return clip(_table_gist(lines), limit)
    if sum(len(line) + 2 for line in lines) <= limit:
        return "; ".join(lines)
    telling = [line for line in lines[-12:] if _TELLING.search(line) and len(line) < 200]
    return clip(telling[-1] if telling else lines[0], limit)


def _table_gist(lines: list[str]) -> str:
    """Header with the only row of a printed table, or with its first row and how many there are."""
    names = [n.strip() for n in lines[0].strip("| ").split("|")]
    rows = [line for line in lines[2:] if not _ROW_COUNT.fullmatch(line)]
    if not rows:
        return "no rows"
    values = [v.strip() for v in rows[0].strip("| ").split("|")]
    first = ", ".join(f"{n} {v}" for n, v in zip(names, values, strict=False) if v)
    return first if len(rows) == 1 else f"{len(rows)} rows, first: {first}"


def _worst(lines: list[str]) -> str:
    """The line that names the failure: the last of a traceback, the first error of a compiler or test run."""
    named = [2 * bool(_NAMED_ERROR.search(line)) - 2 * bool(_EMPTY_ERROR.search(line)) for line in lines]
    scores = [score + bool(_ERROR_LINE.search(line)) for score, line in zip(named, lines, strict=True)]
    best = max(scores)
    found = [line for line, score in zip(lines, scores, strict=True) if score == best]
    return found[-1] if best <= 0 or any(line.startswith("Traceback") for line in lines) else found[0]


def says_nothing(told: str, target: str) -> bool:
    """Whether a result only confirms that the call was done."""
    return not told or bool(_CONFIRMS.match(told)) or bool(target and _SUCCESS.match(told))


def _json_gist(text: str, limit: int) -> str:
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, list):
            while len(value) == 1 and isinstance(value[0], list):
                value = value[0]
            heads = [_one_json(item, 60) for item in value[:3]]
            return clip(": ".join(filter(None, (f"{len(value)} items", "; ".join(filter(None, heads))))), limit)
        return clip(_one_json(value, limit), limit)
    except (msgspec.DecodeError, RecursionError):
        return ""


def _one_json(value: object, limit: int) -> str:
    if not isinstance(value, dict):
        return clip(one_line(str(value)), limit)
    words: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            inner = ", ".join(f"{k} {v}" for k, v in item.items() if isinstance(v, str | int | float))
            if inner:
                words.append(f"{key}: {clip(one_line(inner), 60)}")
        elif isinstance(item, list):
            flat = ", ".join(str(v) for v in item if isinstance(v, str | int | float))
            words.append(f"{key}: {clip(one_line(flat), 60) or f'{len(item)} items'}")
        elif item is not None:
            words.append(f"{key}: {clip(one_line(str(item)), 80)}")
    return "; ".join(words)[: limit * 2]
