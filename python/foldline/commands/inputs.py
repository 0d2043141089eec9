"""Rows as hosts send them: canonical, or a provider's own JSON (``RowInput``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foldline.commands.services import Services
from foldline.domain.enums import Format
from foldline.domain.events import Warning_
from foldline.domain.ports import MessageUsage
from foldline.domain.rows import NewRow


@dataclass(frozen=True, slots=True)
class RawMessages:
    """An array of provider messages, or one, as UTF-8 JSON."""

    format: Format
    json: bytes


RowsInput = tuple[NewRow, ...] | RawMessages


class Input(NamedTuple):
    """The rows of an input, what could not be taken as it was, and the usage that stood on its messages (R4)."""

    rows: Sequence[NewRow] = ()
    warnings: Sequence[Warning_] = ()
    usages: Sequence[MessageUsage] = ()


def read_input(services: Services, given: RowsInput | None) -> Input:
    """Reads what a host appends.

    Raises:
        FoldlineError: FORMAT_INVALID.
    """
    if given is None:
        return Input()
    if isinstance(given, tuple):
        return Input(given)
    parsed = services.formats.parse(given.format, given.json)
    return Input(parsed.rows, parsed.warnings, parsed.usages)
