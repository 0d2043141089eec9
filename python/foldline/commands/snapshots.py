"""The active transcript as planning sees it, read from the store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from foldline.commands.services import Services
from foldline.domain.folding import RowFacts, Snapshot, facts_of
from foldline.domain.ports import StoredRow
from foldline.domain.rows import Row
from foldline.domain.session import Session


def facts_of_stored(stored: StoredRow, row: Row, session: Session, index_tool_results: bool) -> RowFacts:
    """Facts of one stored row; its digest is of the stored bytes (V2)."""
    return facts_of(
        row,
        stored.tokens,
        stored.bytes,
        superseded=any(s.offset == row.offset for s in session.superseded),
        index_tool_results=index_tool_results,
        digest=hashlib.sha256(stored.body).digest(),
    )


def snapshot_of(
    services: Services, session: Session, stored: Sequence[StoredRow], rows: Sequence[Row], factor: float = 1.0
) -> Snapshot:
    """The snapshot of a session whose active list is ``stored``, decoded as ``rows``.

    Args:
        factor: learned factor of the model that the request goes to.
    """
    index = services.policy(session).policy.memory.index_tool_results
    return Snapshot(
        revision=session.revision,
        rows=tuple(facts_of_stored(s, r, session, index) for s, r in zip(stored, rows, strict=True)),
        open_run=session.open_run,
        carried_through=session.carried_through,
        prepared_through=session.prepared_through,
        factor=factor,
    )
