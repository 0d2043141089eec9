"""Constraints a user states: what later folds must carry on verbatim (F8, XG12, XG16)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foldline.summarize.cues import ASKS, PEP_TALK, REQUIRES, SMALL_TALK
from foldline.summarize.reading import Request
from foldline.summarize.text import one_line

MEMORY_LINE = "Older user constraints are not listed here; memory_search finds them."
REACH_LINE = (
    "This handoff holds no prose of the folded part: memory_search finds its rows by words, paths or ids, and "
    "read_result reads a row or a result whole."
)

_SHORTEST, _LONGEST, _PER_ROW = 6, 500, 12
_DATA = re.compile(
    r"[{}\[]\"|\":|\"\}|=>|;\s*$|\b\d+: |-{5}|``|lines (?:total|above|below)|\w\(\w*\)\s*[{;]"
    r"|^(?:\s*at |\[?\d{4}-\d\d-\d\d|Traceback|\w+(?:Error|Exception):|[{<|$>])"
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint in the user's words; ``offset`` 0 says that an earlier summary carried it."""

    offset: int
    text: str


def is_constraint(sentence: str) -> bool:
    """Whether a sentence of the user asks for something to hold from now on; questions and pasted data do not."""
    return (
        _SHORTEST <= len(sentence) <= _LONGEST
        and bool(REQUIRES.search(sentence))
        and not SMALL_TALK.search(sentence)
        and not PEP_TALK.search(sentence)
        and not ASKS.search(sentence)
        and not _DATA.search(sentence)
    )


def constraints_of(requests: Iterable[Request]) -> list[Constraint]:
    """Constraint sentences of user rows, oldest first, each once."""
    found: dict[str, Constraint] = {}
    for request in requests:
        if request.speaker != "user" or not request.text:
            continue
        stated = [s for s in request.sentences if is_constraint(s)]
        for sentence in stated[:_PER_ROW]:
            found[sentence] = Constraint(request.offset, sentence)
    return list(found.values())


def durable_part(earlier: Sequence[tuple[str, ...]], new: Sequence[Constraint]) -> list[Constraint]:
    """Carried and new constraints, oldest first; one that was stated again counts as new (F8)."""
    merged: dict[str, Constraint] = {}
    for carried in earlier:
        for text in carried:
            merged.setdefault(one_line(text), Constraint(0, one_line(text)))
    for constraint in new:
        merged.pop(constraint.text, None)
        merged[constraint.text] = constraint
    return list(merged.values())
