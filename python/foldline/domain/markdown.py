"""Headings and fences of a summary's markdown, in time linear in the text: it is a model's, and may be of any shape."""

from __future__ import annotations

import re
from collections.abc import Collection

_HEADING = re.compile(r"[^\S\n]{0,3}(?:#{1,6}[^\S\n]+(\S.*)|\*\*(.+)\*\*:?[^\S\n]*)")
_RULE = re.compile(r"[ \t]*(```+|~~~+)(.*)")


def title_of(line: str) -> str:
    """The title of a line that is a heading, in lower case; empty for any other line."""
    found = _HEADING.fullmatch(line)
    return (found[1] or found[2]).strip().lower() if found else ""


def unfenced(text: str, languages: Collection[str] | None = None) -> str | None:
    """What one fence around all of a text holds; None where there is none.

    Args:
        languages: that the fence may name, in lower case; any by default.
    """
    whole = text.strip()
    opened = _RULE.match(whole)
    first = whole.find("\n")
    if opened is None or first < 0 or (languages is not None and opened[2].strip().lower() not in languages):
        return None
    mark = opened[1][0]
    inner = whole[first + 1 :].rstrip(mark)
    return inner.strip() if len(whole) - first - 1 - len(inner) >= 3 else None


def without_fenced(text: str) -> str:
    """The text without the code blocks that are closed; where a fence is left open, what follows it is no code."""
    lines = text.split("\n")
    # By line: the longest closing fence from there on, so that no open one is looked for to the end again and again.
    longest = [{"`": 0, "~": 0}] * (len(lines) + 1)
    for at in range(len(lines) - 1, -1, -1):
        mark, size = _closing(lines[at])
        ahead = longest[at + 1]
        longest[at] = {**ahead, mark: size} if size > ahead.get(mark, 0) else ahead
    kept: list[str] = []
    at = 0
    while at < len(lines):
        opened = _RULE.match(lines[at])
        at += 1
        if opened is None or longest[at][opened[1][0]] < len(opened[1]):
            kept.append(lines[at - 1])
            continue
        kept.append(" ")
        while not _closes(lines[at], opened[1]):
            at += 1
        at += 1
    return "\n".join(kept)


def _closing(line: str) -> tuple[str, int]:
    """Mark and length of a line that is nothing but a fence; of any other line no mark and 0."""
    found = _RULE.match(line)
    return (found[1][0], len(found[1])) if found and not found[2].strip() else ("", 0)


def _closes(line: str, fence: str) -> bool:
    mark, size = _closing(line)
    return mark == fence[0] and size >= len(fence)
