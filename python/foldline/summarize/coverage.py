"""Coverage of a summary and the appendix of what it misses (S9), for summaries of any source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foldline.domain.folding import Coverage
from foldline.summarize.identifiers import Identifier, IdentifierKind

APPENDIX_TITLE = "Also mentioned, exactly as written:"
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def mentions(text: str, identifier: Identifier) -> bool:
    """Whether the text holds the identifier exactly as written, not merely inside a longer word or number."""
    return _stands_in(text, identifier.probe, identifier.kind)


def _stands_in(text: str, wanted: str, kind: IdentifierKind) -> bool:
    if kind == IdentifierKind.CONSTRAINT:
        return wanted in text
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        before = text[start - 1] if start else " "
        after = text[end] if end < len(text) else " "
        more = text[end + 1] if end + 1 < len(text) else " "
        if not (before in _WORD and wanted[0] in _WORD) and not (after in _WORD and wanted[-1] in _WORD):
            if kind != IdentifierKind.NUMBER or not (after in ".,:" and more.isdigit() or before in ".," and start > 1 and text[start - 2].isdigit()):
                return True
        start = text.find(wanted, start + 1)
    return False


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
