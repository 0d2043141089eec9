"""Coverage of a summary and the appendix of what it misses (S9), for summaries of any source."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from foldline.domain.folding import Coverage
from foldline.summarize.identifiers import Identifier, IdentifierKind

APPENDIX_TITLE = "Also mentioned, exactly as written:"
_DIGITS_BEFORE, _DIGITS_AFTER = re.compile(r"\d[.,]"), re.compile(r"[.,:]\d")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def mentions(text: str, identifier: Identifier) -> bool:
    """Whether the text holds the identifier exactly as written, not merely inside a longer word or number."""
    wanted = identifier.probe
    if identifier.kind == IdentifierKind.CONSTRAINT:
        return wanted in text
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        inside = _joins(text[start - 1 : start], wanted[0]) or _joins(wanted[-1], text[end : end + 1])
        if not inside and (identifier.kind != IdentifierKind.NUMBER or not _longer_number(text, start, end)):
            return True
        start = text.find(wanted, start + 1)
    return False


def _joins(left: str, right: str) -> bool:
    return left in _WORD and right in _WORD if left and right else False


def _longer_number(text: str, start: int, end: int) -> bool:
    """Whether digits go on beyond a point, comma or colon: 3.5 does not mention 5."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    return bool(_DIGITS_BEFORE.fullmatch(before) or _DIGITS_AFTER.fullmatch(after))


def missing(identifiers: Sequence[Identifier], text: str) -> list[Identifier]:
    return [i for i in identifiers if not mentions(text, i)]


def share(identifiers: Sequence[Identifier], absent: Sequence[Identifier]) -> float:
    return 1.0 - len(absent) / len(identifiers) if identifiers else 1.0


def appendix_of(absent: Sequence[Identifier], room: int, count: Callable[[str], int]) -> str:
    """The weightiest missing identifiers as one list of at most ``room`` tokens, or empty when none fits."""
    parts = [i.text for i in absent if i.kind != IdentifierKind.CONSTRAINT]
    low, high = 0, min(len(parts), room)
    while low < high:
        middle = (low + high + 1) // 2
        if count(_render(parts[:middle])) <= room:
            low = middle
        else:
            high = middle - 1
    return _render(parts[:low]) if low else ""


def _render(parts: Sequence[str]) -> str:
    return f"{APPENDIX_TITLE} {', '.join(parts)}"


def cover(
    prose: str, identifiers: Sequence[Identifier], floor: float, room: int, count: Callable[[str], int]
) -> tuple[str, Coverage, int]:
    """Scores prose and, under ``floor``, appends what it misses.

    Returns:
        The text with its appendix, both scores, and the tokens the appendix added: at most ``room``.
    """
    absent = missing(identifiers, prose)
    before = share(identifiers, absent)
    if before >= floor or room <= 0 or not absent:
        return prose, Coverage(before, before, len(identifiers)), 0
    base = count(prose)
    spare = room
    while spare > 0:
        appendix = appendix_of(absent, spare, count)
        if not appendix:
            break
        text = f"{prose}\n\n{appendix}"
        added = count(text) - base
        if added <= room:
            after = share(identifiers, missing(absent, appendix))
            return text, Coverage(before, after, len(identifiers)), max(0, added)
        spare -= max(1, added - room)
    return prose, Coverage(before, before, len(identifiers)), 0
