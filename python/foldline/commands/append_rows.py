"""AppendRows: rows outside a model call."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.commands.answer_usage import keep
from foldline.commands.draft import Draft
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.inputs import RowsInput, read_input
from foldline.commands.ownership import sidecar_owned
from foldline.commands.services import Caller, Services
from foldline.commands.sessions import require_revision
from foldline.domain.changes import replace
from foldline.domain.enums import RowKind
from foldline.domain.events import Warning_


@dataclass(frozen=True, slots=True)
class Append:
    session_id: str
    rows: RowsInput
    run_id: str = ""
    request_id: str = ""
    expected_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """Revision after the append and the offsets given; both offsets are 0 where every message was dropped (R4)."""

    revision: int
    first_offset: int
    last_offset: int
    warnings: tuple[Warning_, ...] = ()


def append_rows(services: Services, caller: Caller, append: Append) -> Appended:
    """Appends rows, all or none (R1); durable when this returns.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REVISION_MISMATCH, REQUEST_ID_REUSED, FORMAT_INVALID and what
            ``engine.appending.accept`` refuses.
    """
    rows, warnings, usages = read_input(services, append.rows)
    with services.sessions.use(caller.tenant, append.session_id) as live, live.locked():
        sidecar_owned(live.session)
        found = repeated(services, caller, live.session.key, append.request_id)
        if found is not None:
            return answer_of(found, Appended)
        require_revision(live.session, append.expected_revision)
        draft = Draft(services, live)
        first, last = draft.append(rows, append.run_id)
        keep(draft, usages)
        count_imported(draft)
        _show_life(draft)
        answer = Appended(draft.session.revision, first, last, (*warnings, *draft.warnings))
        draft.commit(remember(services, caller, append.request_id, answer))
        return answer


def count_imported(draft: Draft) -> None:
    """A session that was never prepared counts the draft's assistant rows as boundaries (§1 boundary)."""
    imported = sum(1 for r in draft.rows if r.kind == RowKind.ASSISTANT)
    if imported and draft.session.last_prepared is None:
        record = draft.session.cadence
        draft.session = replace(draft.session, cadence=replace(record, boundaries=record.boundaries + imported))


def _show_life(draft: Draft) -> None:
    """Rows of the open run end its idling (L4)."""
    run = draft.session.open_run
    if run is not None and any(r.run_id == run.run_id for r in draft.rows):
        draft.session = replace(draft.session, open_run=replace(run, last_active=draft.now))
