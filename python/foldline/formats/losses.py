"""What a format could not carry (W4), gathered into one warning a kind."""

from __future__ import annotations

from foldline.domain.enums import WarningCode
from foldline.domain.events import Warning_

_NAMED = 10


class Losses:
    """Collects losses while a transcript is rendered."""

    def __init__(self) -> None:
        self._rows: dict[tuple[WarningCode, str], dict[int, None]] = {}

    def note(self, what: str, *offsets: int, code: WarningCode = WarningCode.FORMAT_LOSS) -> None:
        """Remembers ``what`` could not be carried, and of which rows."""
        self._rows.setdefault((code, what), {}).update(dict.fromkeys(offsets))

    def warnings(self) -> tuple[Warning_, ...]:
        return tuple(Warning_(code, f"{what}{_named(list(rows))}") for (code, what), rows in self._rows.items())


def _named(rows: list[int]) -> str:
    if not rows:
        return ""
    listed = ", ".join(map(str, rows[:_NAMED]))
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f" (row{'s' if len(rows) > 1 else ''} {listed}{more})"
