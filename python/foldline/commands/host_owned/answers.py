"""What a provider said of a request whose rows the host keeps: usage and refusals, never rows (L1, 4.3, 4.4)."""

from __future__ import annotations

from foldline.commands.draft import Draft
from foldline.domain.changes import replace
from foldline.domain.enums import Ownership
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.projections import ProjectionState
from foldline.domain.session import Cadence, Prepared, Session


def keeps_rows(session: Session) -> bool:
    """Whether the host keeps the transcript: of an answer only its usage is taken here."""
    return session.ownership is Ownership.HOST_OWNED


def refuse_rows() -> FoldlineError:
    return FoldlineError(
        Reason.FIELD_VALIDATION, "the host keeps the transcript: the answer's rows come with the next list",
        field="outcome.answer.input", value="rows", range="absent",
    )  # fmt: skip


def describes_list(draft: Draft, prepared: Prepared) -> bool:
    """Whether a count is one of the list that was prepared.

    One that a projection makes is only sent once that is committed. Whether the list still begins with what was counted
    is seen when the host sends it again.
    """
    if not prepared.projection_id:
        return True
    found = draft.services.store.find_projection(draft.session.key, prepared.projection_id)
    return found is not None and found.state is ProjectionState.COMMITTED


def covering(record: Cadence, prepared: Prepared, before: Cadence) -> Cadence:
    """The record with the rows that a new anchor covers."""
    anchor = record.anchor
    if anchor is None or anchor == before.anchor:
        return record
    return replace(record, anchor=replace(anchor, list_rows=prepared.rows, list_digest=prepared.list_digest))
