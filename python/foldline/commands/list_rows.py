"""ListRows, ReadRow and ListRevisions: reading what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from foldline.commands.ownership import sidecar_owned
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.enums import RowView
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.native import placeholder
from foldline.domain.ports import Rewrite, StoredRow
from foldline.domain.rows import ProviderCompactionRow, Row, decode_body


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows, whether each is active, and the position to go on from; None at the end."""

    rows: tuple[Row, ...]
    active: tuple[bool, ...]
    revision: int
    next_position: int | None


def to_row(stored: StoredRow) -> Row:
    return Row(stored.offset, decode_body(stored.body), stored.run_id, stored.pinned)


def list_rows(
    services: Services, caller: Caller, session_id: str, view: RowView, revision: int | None, position: int, limit: int,
    max_bytes: int,
) -> RowPage:  # fmt: skip
    """One page: by list position of the active list (now or at ``revision``), or by offset of the archive.

    Args:
        position: where the page starts: a list position, or the last offset that was given.
        revision: for the active list: a page token pins it, so that a fold between two pages shifts nothing.
        max_bytes: where a page ends before ``limit``; a page holds at least one row.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REVISION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            if view is RowView.ACTIVE:
                sidecar_owned(live.session)
            session, offsets = live.session, live.offsets() if view is RowView.ACTIVE or revision is None else []
        at = session.revision if revision is None else revision
        if view is RowView.ARCHIVE:
            stored = services.store.archive(session.key, position, limit + 1)
            whole, stored = len(stored), _carried(stored[:limit], max_bytes)
            active = set(offsets)
            following = stored[-1].offset if len(stored) < whole else None
            return _page(stored, [r.offset in active for r in stored], at, following)
        if at != session.revision:
            offsets = services.store.active_offsets(session.key, at)
        stored = _carried(services.store.read_rows(session.key, offsets[position : position + limit]), max_bytes)
        end = position + len(stored)
        return _page(stored, [True] * len(stored), at, end if end < len(offsets) else None)


def _carried(stored: list[StoredRow], max_bytes: int) -> list[StoredRow]:
    """The rows of a page that one message carries, the first in any case (W5)."""
    sizes = accumulate(len(r.body) for r in stored)
    return [r for n, (r, size) in enumerate(zip(stored, sizes, strict=True)) if n == 0 or size <= max_bytes]


def _page(stored: Sequence[StoredRow], active: Sequence[bool], revision: int, following: int | None) -> RowPage:
    return RowPage(tuple(_shown(to_row(r)) for r in stored), tuple(active), revision, following)


def _shown(row: Row) -> Row:
    """N2: pages show that there is a native item, not what it holds."""
    if not isinstance(row.body, ProviderCompactionRow):
        return row
    shown = msgspec.json.encode(placeholder(row.body)).decode()
    return replace(row, body=replace(row.body, item_json=shown))


@dataclass(frozen=True, slots=True)
class RowText:
    """A row and the asked-for part of its text: bytes ``first_byte`` to ``last_byte`` of the ``total`` of its UTF-8."""

    row: Row
    active: bool
    text: str
    first_byte: int
    last_byte: int
    total: int


def read_row(
    services: Services, caller: Caller, session_id: str, offset: int, first_byte: int, last_byte: int | None
) -> RowText:
    """One archived row, whole or a byte range of its text (M6).

    A range that cuts a character gives the characters that lie wholly inside it.

    Args:
        last_byte: exclusive; None for the end.

    Raises:
        FoldlineError: SESSION_NOT_FOUND; FIELD_VALIDATION for an offset the archive does not hold or a range outside.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session, active = live.session, live.ledger.position(offset) is not None
        stored = services.store.read_rows(session.key, [offset])
        if not stored:
            raise FoldlineError(
                Reason.FIELD_VALIDATION,
                f"the archive holds offsets 1 to {session.next_offset - 1}, not {offset}",
                field="offset", value=offset, range=f"1-{session.next_offset - 1}",
            )  # fmt: skip
        row = to_row(stored[0])
        text = services.memory.row_text(row.body).encode()
        last = len(text) if last_byte is None else min(last_byte, len(text))
        if first_byte > last:
            raise FoldlineError(
                Reason.FIELD_VALIDATION,
                f"row {offset} has {len(text)} bytes of text; a range from {first_byte} to {last} is empty",
                field="range", value=f"{first_byte}-{last}", range=f"0-{len(text)}",
            )  # fmt: skip
        first, last = _whole_characters(text, first_byte, last)
        return RowText(row, active, text[first:last].decode(), first, last, len(text))


def _whole_characters(text: bytes, first: int, last: int) -> tuple[int, int]:
    """A range moved inward to whole characters."""
    while first < last and text[first] & 0xC0 == 0x80:
        first += 1
    while first < last < len(text) and text[last] & 0xC0 == 0x80:
        last -= 1
    return first, last


def list_revisions(
    services: Services, caller: Caller, session_id: str, before: int | None, limit: int
) -> tuple[list[Rewrite], int, int | None]:
    """Folds, edits and restores newest first, below revision ``before``, the current revision, where to go on.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session = live.session
        found = services.store.newest_rewrites(session.key, before, limit + 1)
        following = found[limit - 1].revision if len(found) > limit else None
        return found[:limit], session.revision, following
