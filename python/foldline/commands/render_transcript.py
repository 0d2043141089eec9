"""The active transcript as a provider's JSON (R5, W4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foldline.commands.list_rows import to_row
from foldline.commands.ownership import sidecar_owned
from foldline.commands.services import Caller, Services
from foldline.domain.changes import replace
from foldline.domain.enums import Format, WarningCode
from foldline.domain.events import Warning_
from foldline.domain.native import headers_of, is_readable
from foldline.domain.rows import ModelRef, ProviderCompactionRow, Row, SystemRow
from foldline.domain.session import Session
from foldline.engine.render import archived_calls, arrange

ENDS_ON_ASSISTANT = "the transcript ends on an assistant row"
_FOREIGN = "a compaction item that this request cannot carry is left out"
_MESSAGES = {WarningCode.ENDS_ON_ASSISTANT: ENDS_ON_ASSISTANT}


@dataclass(frozen=True, slots=True)
class RenderedTranscript:
    """``headers``: of HTTP, which the request needs beside the host's own (§12)."""

    json: bytes
    revision: int
    warnings: tuple[Warning_, ...]
    headers: Mapping[str, str] = field(default_factory=dict)


def render_rows(
    services: Services, session: Session, rows: Sequence[Row], fmt: Format, bounded: Mapping[int, str] | None = None,
    model: ModelRef = ModelRef(),
) -> RenderedTranscript:  # fmt: skip
    """Lowers rows to a format; ``bounded`` replaces the text of results by offset (B2).

    Args:
        model: who reads it: native items of others, or that do not lead, are left out (N4); empty: nobody's are.
    """
    foreign = _foreign(rows, model, fmt) if model.model else set()
    rows = [r for r in rows if r.offset not in foreign] if foreign else rows
    folded = services.store.read_rows(session.key, archived_calls(rows))
    arrangement = arrange(
        rows, open_run=session.open_run, calls=session.calls, bounded=bounded or {},
        archived={r.offset: to_row(r) for r in folded},
    )  # fmt: skip
    rendered = services.formats.render(fmt, arrangement)
    codes = tuple(Warning_(code, _MESSAGES.get(code, code)) for code in arrangement.warnings)
    headers = headers_of(r.body for r in rows) if fmt is Format.ANTHROPIC_MESSAGES else {}
    lost = tuple(Warning_(WarningCode.FORMAT_LOSS, f"row {o}: {_FOREIGN}") for o in sorted(foreign))
    return RenderedTranscript(rendered.json, session.revision, (*codes, *rendered.warnings, *lost), headers)


def _foreign(rows: Sequence[Row], model: ModelRef, fmt: Format) -> set[int]:
    """Offsets of native items that a model cannot read, or that do not lead."""
    found: set[int] = set()
    leads = True
    for row in rows:
        if isinstance(row.body, ProviderCompactionRow) and not (leads and is_readable(row.body, model, fmt)):
            found.add(row.offset)
        leads = leads and isinstance(row.body, SystemRow | ProviderCompactionRow)
    return found


def render_transcript(
    services: Services, caller: Caller, session_id: str, fmt: Format, revision: int | None = None
) -> RenderedTranscript:
    """Renders what the next request would be built from, or the list of an earlier revision; changes nothing.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REVISION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            sidecar_owned(live.session)
            session, offsets = live.session, live.offsets()
        if revision is not None and revision != session.revision:
            offsets = services.store.active_offsets(session.key, revision)
        rows = [to_row(r) for r in services.store.read_rows(session.key, offsets)]
        last = session.last_prepared.model if session.last_prepared else ModelRef()
        rendered = render_rows(services, session, rows, fmt, model=last if last.model else session.model)
        return rendered if revision is None else replace(rendered, revision=revision)
