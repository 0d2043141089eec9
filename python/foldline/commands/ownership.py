"""Which RPCs are for which sessions (§14, H1)."""

from __future__ import annotations

from foldline.domain.enums import Ownership, SummarySourcePolicy
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import Policy
from foldline.domain.session import Session


def sidecar_owned(session: Session) -> None:
    """Refuses a session whose host keeps the transcript: there is no list here to read or change.

    Raises:
        FoldlineError: FIELD_VALIDATION naming the ownership that is needed.
    """
    why = "its host keeps the transcript and sends it to CompactTranscript or CheckPressure"
    _require(session, Ownership.SIDECAR_OWNED, why)


def host_owned(session: Session) -> None:
    """Refuses a session whose transcript is kept here.

    Raises:
        FoldlineError: FIELD_VALIDATION naming the ownership that is needed.
    """
    _require(session, Ownership.HOST_OWNED, "its transcript is kept here")


def writable(ownership: Ownership, policy: Policy) -> None:
    """Refuses the provider's own compaction for lists that their hosts keep: nothing would tell its items (H2, N2).

    Raises:
        FoldlineError: FIELD_VALIDATION.
    """
    if ownership is Ownership.HOST_OWNED and policy.summary.source is SummarySourcePolicy.NATIVE:
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            "policy.summary.source is NATIVE, and the session is HOST_OWNED: an item of a provider could not be told "
            "in a list that its host keeps",
            field="policy.summary.source", value=policy.summary.source, range="AUTO, CURATOR, PROVIDER or EXTRACTIVE",
        )  # fmt: skip


def _require(session: Session, wanted: Ownership, why: str) -> None:
    if session.ownership is not wanted:
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"session {session.session_id} is {session.ownership}: {why}",
            field="session_id", value=session.session_id, range=f"a session that is {wanted}",
        )  # fmt: skip
