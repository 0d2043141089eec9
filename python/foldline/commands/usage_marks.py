"""Usage marks of tool results (K4): what the provider counted of the request that made the call, one request behind."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from foldline.commands.services import Services
from foldline.domain.changes import replace
from foldline.domain.checkpoints import UNAVAILABLE, usage_text
from foldline.domain.rows import Row, RowBody, ToolResultRow
from foldline.domain.session import Session


def enabled(services: Services, session: Session) -> bool:
    """Whether the session's policy has checkpoints, and with them the marks."""
    return services.policy(session).policy.checkpoints.enabled


def made_by(session: Session, first: int, last: int, prepare_id: str) -> Session:
    """The session whose calls of the rows from ``first`` to ``last`` know which request made them."""
    calls = tuple(replace(c, prepare_id=prepare_id) if first <= c.offset <= last else c for c in session.calls)
    return replace(session, calls=calls)


def reported(session: Session, prepare_id: str, input_tokens: int) -> Session:
    """The session whose open calls of a request know its count; it may come after the answer (L1)."""
    calls = tuple(
        replace(c, input_tokens=input_tokens) if c.prepare_id == prepare_id and c.input_tokens is None else c
        for c in session.calls
    )
    return replace(session, calls=calls)


def marked(session: Session, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Accepted rows, each result with its mark, which nothing changes any more.

    Args:
        session: as it was before they came: a call that came with its result was reported by nobody.
    """
    known = {(c.offset, c.call_id): c.input_tokens for c in session.calls}
    return tuple(_marked(row, known) for row in rows)


def restated(rows: Sequence[Row], replaced: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of an edit: a result keeps the mark of the one that it replaces, by call id and order among equal ids.

    Which request made a call is not changed by what is said of it; of one that is new nobody has reported.
    """
    marks: dict[str, list[str]] = {}
    for row in replaced:
        if isinstance(row.body, ToolResultRow):
            marks.setdefault(row.body.call_id, []).append(row.body.usage_mark)
    made = []
    for row in rows:
        body = row.body
        if isinstance(body, ToolResultRow):
            found = marks.get(body.call_id)
            mark = (found.pop(0) if found else "") or UNAVAILABLE
            row = msgspec.structs.replace(row, body=msgspec.structs.replace(body, usage_mark=mark))
        made.append(row)
    return tuple(made)


def _marked(row: Row, known: dict[tuple[int, str], int | None]) -> Row:
    body = row.body
    if not isinstance(body, ToolResultRow):
        return row
    tokens = known.get((body.call_offset or 0, body.call_id))
    mark = UNAVAILABLE if tokens is None else str(tokens)
    return msgspec.structs.replace(row, body=msgspec.structs.replace(body, usage_mark=mark))


def as_sent(body: RowBody) -> RowBody:
    """The body that counts as the row is sent: with the mark as the text it becomes (4.5)."""
    if isinstance(body, ToolResultRow) and body.usage_mark:
        return msgspec.structs.replace(body, usage_mark=usage_text(body.usage_mark))
    return body
