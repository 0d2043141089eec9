"""A model's answer as a summary (S3, S5, F8): its six sections under their own headings, within the budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from foldline.domain.markdown import title_of, unfenced
from foldline.summarize.constraints import MEMORY_LINE, Constraint
from foldline.summarize.goals import constraint_line
from foldline.summarize.packing import DETAILS, HEADINGS, NOTHING
from foldline.summarize.text import without_reasoning

Sections = list[list[str]]
"""The lines of the six sections, in order."""
SHORTENED = "- Further lines were left out to keep to the budget; memory_search finds what they were about."
_KEYS = ("goals", "decisions", "actions", "errors", "open questions", "technical details")
_FENCE_LINE = re.compile(r"^\s{0,3}(```+|~~~+)")


def bare(text: str) -> str:
    """The answer without reasoning that was written into it, and without a fence around all of it."""
    text = without_reasoning(text).strip()
    fenced = unfenced(text, ("", "markdown", "md"))
    return text if fenced is None else fenced


def sections_of(text: str) -> Sections | None:
    """The lines of the six sections in order, code blocks as one line each; None where a heading is missing.

    What stands before the first heading is a model's talk about its task.
    """
    found: Sections = []
    for block in _blocks(text):
        title = title_of(block)
        if title and len(found) < len(_KEYS) and _KEYS[len(found)] in title:
            found.append([])
        elif found and block.strip() and block.strip().strip("-*. ").lower() != NOTHING:
            found[-1].append(block.rstrip())
    return found if len(found) == len(HEADINGS) else None


def _blocks(text: str) -> list[str]:
    """Lines; those of a fenced code block are one, so that no half of it can be left out."""
    blocks: list[str] = []
    fence = ""
    for line in text.splitlines():
        opened = _FENCE_LINE.match(line)
        if fence:
            blocks[-1] += f"\n{line}"
            fence = "" if opened and opened[1].startswith(fence) else fence
        else:
            blocks.append(line)
            fence = opened[1] if opened else ""
    return blocks


def masked(sections: Sections, mask: Callable[[str], str]) -> Sections:
    """The sections with secrets hidden, also those of several lines."""
    return [_blocks(mask("\n".join(section))) for section in sections]


def render(sections: Sequence[Sequence[str]]) -> str:
    """The document with its headings as they must be, or ``none`` under one that has nothing."""
    bodies = ("\n".join(lines) or NOTHING for lines in sections)
    return "\n\n".join(f"## {heading}\n{body}" for heading, body in zip(HEADINGS, bodies, strict=True))


def composed(
    sections: Sections, durable: Sequence[Constraint], gave_way: bool, budget: int, count: Callable[[str], int]
) -> str | None:
    """The summary with the user's constraints word for word (F8), in at most ``budget`` tokens; None where none fits.

    A model counts badly: what is over the budget goes line by line, the last of the longest section first. Constraints
    are never among it.
    """
    said = render(sections)
    own = [constraint_line(c, 0).text for c in durable if c.text not in said]
    own += [f"- {MEMORY_LINE}"] * (gave_way and MEMORY_LINE not in said)
    lines = [list(section) for section in sections]
    sizes = [[count(line + "\n") for line in section] for section in lines]
    totals = [sum(section) for section in sizes]
    shortened = False
    while True:
        made = [own + lines[0], *lines[1:]] if own else lines
        if shortened:
            made = [*made[:DETAILS], [*made[DETAILS], SHORTENED]]
        text = render(made)
        over = count(text) - budget
        if over <= 0:
            # A constraint that a line held which is gone now is put back in its own.
            missing = [constraint_line(c, 0).text for c in durable if c.text not in text]
            if not missing:
                return text
            own = missing + own
            continue
        shortened = True
        while over > 0:
            longest = totals.index(max(totals))
            if not sizes[longest]:
                return None
            size = sizes[longest].pop()
            totals[longest] -= size
            over -= size
            lines[longest].pop()
