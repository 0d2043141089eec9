"""Fills six headed sections with the worthiest lines that fit a token budget (S3, V6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

HEADINGS = (
    "Goals and constraints",
    "Decisions and rationale",
    "Actions and results",
    "Errors and resolutions",
    "Open questions and next steps",
    "Technical details",
)
GOALS, DECISIONS, ACTIONS, ERRORS, OPEN, DETAILS = range(6)
NOTHING = "none"
_SMALLEST_SHARE = 48


@dataclass(frozen=True, slots=True)
class Line:
    """A candidate line of a section.

    Attributes:
        value: worth; lines of value ≥ 1 come before every share, the others lie in [0, 1).
        order: place among the section's lines.
        age: 0 for lines of the rows, 1 for a line of an earlier summary, 2 for one that was carried before.
    """

    section: int
    text: str
    value: float
    order: tuple[int, int]
    age: int = 0


def render(preface: str, lines: Iterable[Line]) -> str:
    """The document: preface, then each heading with its lines, or ``none``."""
    own: list[list[Line]] = [[] for _ in HEADINGS]
    for line in lines:
        own[line.section].append(line)
    parts = [preface] if preface else []
    for heading, body in zip(HEADINGS, own, strict=True):
        text = "\n".join(line.text for line in sorted(body, key=lambda line: line.order))
        parts.append(f"## {heading}\n{text or NOTHING}")
    return "\n\n".join(parts)


class Packer:
    """Chooses lines under a budget of tokens, which are counted line by line and once more as a whole."""

    def __init__(self, preface: str, lines: Sequence[Line], budget: int, count: Callable[[str], int]) -> None:
        self._preface, self._lines, self._budget, self._count = preface, lines, budget, count
        self._cost = [count(line.text + "\n") for line in lines]
        self._by_value = sorted(range(len(lines)), key=lambda i: (-lines[i].value, -lines[i].order[1], i))
        self._chosen: set[int] = set()
        self._left = budget - count(render(preface, ()))

    def pack(self, shares: Sequence[float], aged_share: float) -> str | None:
        """Fills first the lines of value ≥ 1, then each section's share, then what is left.

        Lines of earlier summaries get ``aged_share`` of a section's share, half of it those carried before: what is
        old has less room with every fold and never vanishes at once (XG18). None when the bare headings do not fit.
        """
        if self._left < 0:
            return None
        self._fill([i for i in self._by_value if self._lines[i].value >= 1], self._left)
        pool = self._left
        for section, share in enumerate(shares):
            room = int(pool * share)
            if room < _SMALLEST_SHARE:
                continue
            own = [i for i in self._by_value if self._lines[i].section == section and i not in self._chosen]
            aged = int(room * aged_share)
            spent = self._fill([i for i in own if self._lines[i].age == 2], aged // 2)
            spent += self._fill([i for i in own if self._lines[i].age == 1], aged - spent)
            self._fill([i for i in own if not self._lines[i].age], room - spent)
        self._spend()
        return self._settle()

    def _spend(self) -> None:
        """Spends what is left on the best lines; a section that got many just now waits for the others."""
        rest: list[list[int]] = [[] for _ in HEADINGS]
        for i in reversed(self._by_value):
            if i not in self._chosen:
                rest[self._lines[i].section].append(i)
        factor = [1.0] * len(rest)
        while any(rest):
            section = max(
                (s for s, own in enumerate(rest) if own), key=lambda s: (self._lines[rest[s][-1]].value * factor[s], -s)
            )
            if self._fill([rest[section].pop()], self._left):
                factor[section] *= 0.7

    def _fill(self, indices: Iterable[int], room: int) -> int:
        spent = 0
        for i in indices:
            if self._cost[i] <= min(room - spent, self._left):
                self._chosen.add(i)
                self._left -= self._cost[i]
                spent += self._cost[i]
        return spent

    def _settle(self) -> str | None:
        """Lines counted alone may sum to less than the text they form: drops the least worthy until it fits."""
        while True:
            text = render(self._preface, (self._lines[i] for i in sorted(self._chosen)))
            over = self._count(text) - self._budget
            if over <= 0:
                return text
            for i in reversed(self._by_value):
                if i in self._chosen:
                    self._chosen.remove(i)
                    over -= self._cost[i]
                    if over <= 0:
                        break
            else:
                if not self._chosen and over > 0:
                    return None if self._count(render(self._preface, ())) > self._budget else render(self._preface, ())
