"""Rows as hosts send them: canonical, or a provider's own JSON (``RowInput``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foldline.commands.services import Services
from foldline.domain.enums import Format
from foldline.domain.events import Warning_
from foldline.domain.rows import NewRow


@dataclass(frozen=True, slots=True)
class RawMessages:
    """An array of provider messages, or one, as UTF-8 JSON."""

    format: Format
    json: bytes


RowsInput = tuple[NewRow, ...] | RawMessages


def read_input(services: Services, given: RowsInput | None) -> tuple[Sequence[NewRow], Sequence[Warning_]]:
    """The rows of an input and what could not be taken as it was.

    Raises:
        FoldlineError: FORMAT_INVALID.
    """
    if given is None:
        return (), ()
    if isinstance(given, tuple):
        return given, ()
    parsed = services.formats.parse(given.format, given.json)
    return parsed.rows, parsed.warnings
