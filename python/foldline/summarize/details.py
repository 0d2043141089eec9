"""Technical details, and what earlier summaries told."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.summarize.earlier import CARRIED, CarriedLine
from foldline.summarize.identifiers import Identifier, IdentifierKind, find_identifiers
from foldline.summarize.packing import DETAILS, GOALS, Line
from foldline.summarize.paths import is_file
from foldline.summarize.style import Style

_TITLES = {
    IdentifierKind.PATH: "Paths",
    IdentifierKind.URL: "URLs",
    IdentifierKind.ID: "Ids",
    IdentifierKind.CODE: "Codes",
    IdentifierKind.NAME: "Names",
    IdentifierKind.NUMBER: "Numbers",
}
_A_LINE = 6


def detail_lines(identifiers: Sequence[Identifier], style: Style) -> list[Line]:
    """Identifiers by salience, grouped by kind, in lines short enough that a small budget takes some of each."""
    lines = []
    if style.paths.root:
        lines.append(Line(DETAILS, f"- Relative paths are under {style.paths.root}", 1.2, (0, 0)))
    most = max((i.weight for i in identifiers if i.kind in _TITLES), default=1.0)
    for place, (kind, title) in enumerate(_TITLES.items(), 1):
        own = [i for i in identifiers if _kind(i) == kind]
        weights: dict[str, float] = {}
        for item in own:
            weights.setdefault(style.paths.path(item) if item.kind == IdentifierKind.PATH else item.text, item.weight)
        shown = list(weights)
        for start in range(0, len(shown), _A_LINE):
            part = shown[start : start + _A_LINE]
            worth = 0.9 * weights[part[0]] / most
            lines.append(Line(DETAILS, f"- {title}: {', '.join(part)}", worth, (place, start)))
    return lines


def _kind(item: Identifier) -> IdentifierKind:
    return IdentifierKind.NAME if item.kind == IdentifierKind.PATH and not is_file(item.text) else item.kind


def carried(lines: Sequence[CarriedLine]) -> list[Line]:
    """Lines of earlier summaries: what was asked first, then those that name identifiers, then those that only tell."""
    found = []
    first = next((line for line in lines if line.section == GOALS and line.text.startswith("Asked")), None)
    for line in lines:
        kinds = find_identifiers(line.text).values()
        named = sum(0.01 if kind == IdentifierKind.NUMBER else 0.05 for kind in kinds)
        worth = min(0.6, 0.25 + named + 0.15 * line.order / len(lines))
        worth = 0.97 if line is first else worth
        found.append(Line(line.section, f"- {CARRIED}{line.text}", worth, (-1, line.order), line.age))
    return found
