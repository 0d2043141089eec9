"""ExportSession and ImportSession: a whole session as JSON lines, lossless.

The first line names the format and its version, the last counts the lines and carries their SHA-256, so that a cut file
is refused. Row bodies stand in the lines byte for byte as they are stored: digests still hold after an import.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.services import Caller, Services
from foldline.commands.sessions import SessionView, get_session
from foldline.commands.verify_session import verify_archive
from foldline.domain.changes import replace
from foldline.domain.checkpoints import Checkpoint
from foldline.domain.enums import EventKind, FailureKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event
from foldline.domain.memory import MemoryEntry
from foldline.domain.models import COUNT_MAX
from foldline.domain.ports import Archive, CallUpdate, Rewrite, StoredRow
from foldline.domain.projections import HostRow
from foldline.domain.rows import decode_body, kind_of
from foldline.domain.session import ClosedRun, Session

VERSION = 1
CHUNK_BYTES = 256 * 1024
_TERMINAL = (EventKind.COMPACTION_COMPLETED, EventKind.COMPACTION_FAILED)


class _Header(msgspec.Struct, tag="foldline", tag_field="line"):
    version: int


class _Session(msgspec.Struct, tag="session", tag_field="line"):
    session: Session


class _Row(msgspec.Struct, tag="row", tag_field="line", omit_defaults=True):
    offset: int
    kind: int
    tokens: int
    bytes: int
    revision: int
    body: msgspec.Raw
    run_id: str = ""
    pinned: bool = False
    place: int | None = None


class _Rewrite(msgspec.Struct, tag="rewrite", tag_field="line"):
    rewrite: Rewrite


class _Call(msgspec.Struct, tag="call", tag_field="line"):
    call: CallUpdate


class _Run(msgspec.Struct, tag="run", tag_field="line"):
    run: ClosedRun


class _Event(msgspec.Struct, tag="event", tag_field="line"):
    event: Event


class _Entry(msgspec.Struct, tag="entry", tag_field="line"):
    entry: MemoryEntry
    visible: bool


class _HostRow(msgspec.Struct, tag="host_row", tag_field="line"):
    row: HostRow


class _End(msgspec.Struct, tag="end", tag_field="line"):
    lines: int
    sha256: str


class _Checkpoint(msgspec.Struct, tag="checkpoint", tag_field="line"):
    checkpoint: Checkpoint


_Line = _Header | _Session | _Row | _Rewrite | _Call | _Run | _Event | _Entry | _HostRow | _Checkpoint | _End


def export_session(services: Services, caller: Caller, session_id: str) -> Iterator[bytes]:
    """Chunks of JSON lines; a chunk may end in the middle of a line.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live, live.locked():
        archive = services.store.export_session(live.session.key)
    encoder, digest, count = msgspec.json.Encoder(), hashlib.sha256(), 0
    buffer = bytearray()
    for line in _lines(archive):
        encoded = encoder.encode(line) + b"\n"
        digest.update(encoded)
        count += 1
        buffer += encoded
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    buffer += encoder.encode(_End(count, digest.hexdigest())) + b"\n"
    yield bytes(buffer)


def _lines(archive: Archive) -> Iterator[_Line]:
    yield _Header(VERSION)
    yield _Session(archive.session)
    for row in archive.rows:
        yield _Row(
            row.offset,
            row.kind,
            row.tokens,
            row.bytes,
            row.revision,
            msgspec.Raw(row.body),
            row.run_id,
            row.pinned,
            row.place,
        )
    yield from map(_Rewrite, archive.rewrites)
    yield from map(_Call, archive.calls)
    yield from map(_Run, archive.closed_runs)
    yield from map(_Event, archive.events)
    for entry, visible in archive.entries:
        yield _Entry(entry, visible)
    yield from map(_HostRow, archive.host_rows)
    yield from map(_Checkpoint, archive.checkpoints)


def import_session(
    services: Services, caller: Caller, chunks: Iterable[bytes], session_id: str, request_id: str
) -> SessionView:
    """Writes an exported session, under ``session_id`` if given, in one transaction, once it verifies (V10).

    Raises:
        FoldlineError: FORMAT_INVALID naming the line, or the first thing that does not hold; SESSION_EXISTS,
            REQUEST_ID_REUSED.
    """
    found = repeated(services, caller, 0, request_id)
    if found is not None:
        return get_session(services, caller, answer_of(found, str))
    archive = _archive(_split(chunks))
    name = session_id or archive.session.session_id
    archive = with_ends(archive)
    faults = verify_archive(services, archive)
    if faults:
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"the export does not hold: {faults[0].rule}: {faults[0].detail}",
            rule=faults[0].rule, faults=len(faults),
        )  # fmt: skip
    session = replace(archive.session, key=0, tenant=caller.tenant, session_id=name)
    try:
        services.store.import_session(replace(archive, session=session), remember(services, caller, request_id, name))
        services.sessions.forget(caller.tenant, name)
    except OverflowError as error:
        raise FoldlineError(Reason.FORMAT_INVALID, "the export holds a number of over 64 bits") from error
    except FoldlineError as error:
        # As for a session created twice at once (W2).
        found = repeated(services, caller, 0, request_id)
        if found is None and error.reason is Reason.INTERNAL:
            raise FoldlineError(Reason.FORMAT_INVALID, "the export says one thing twice") from error
        if found is None:
            raise
    services.memory.wake()
    return get_session(services, caller, name)


def with_ends(archive: Archive) -> Archive:
    """§13: a fold that ran when the session was exported goes on there; in the copy it has failed.

    So has one whose projection is staged there (H3).
    """
    session = archive.session
    kind, message = FailureKind.INTERRUPTED, "the session was exported during the fold"
    if session.staged:
        kind, message = FailureKind.CANCELLED, "its projection was staged when the session was exported"
    ended = {e.fold_id for e in archive.events if e.kind in _TERMINAL}
    started = [e for e in archive.events if e.kind is EventKind.COMPACTION_STARTED and e.fold_id not in ended]
    last = archive.events[-1].seq if archive.events else 0
    ends = tuple(
        Event(
            kind=EventKind.COMPACTION_FAILED, time=e.time, revision=e.revision, boundary=e.boundary, seq=last + number,
            run_id=e.run_id, fold_id=e.fold_id, trigger=e.trigger, signals=e.signals, source=e.source,
            model=e.model, failure=kind, message=message,
        )
        for number, e in enumerate(started, 1)
    )  # fmt: skip
    return replace(archive, session=replace(session, staged=""), events=(*archive.events, *ends))


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest.strip():
        raise FoldlineError(Reason.FORMAT_INVALID, "the export is cut off inside its last line")


def _stored(line: _Row, number: int, before: StoredRow | None) -> StoredRow:
    """A row that can be read back.

    Raises:
        FoldlineError: FORMAT_INVALID for a body that is no row, sizes that are none, and rows out of order.
    """
    row = StoredRow(
        line.offset, line.kind, line.run_id, line.pinned, line.tokens, line.bytes, line.revision, bytes(line.body),
        line.place,
    )  # fmt: skip
    try:
        kind = kind_of(decode_body(row.body))
    except msgspec.MsgspecError as error:
        raise FoldlineError(Reason.FORMAT_INVALID, f"line {number}: the body is no row: {error}", line=number) from None
    sized = 0 <= row.tokens <= COUNT_MAX and 0 <= row.bytes <= COUNT_MAX
    offset, revision = (before.offset, before.revision) if before else (0, 0)
    if row.kind != kind or not sized or row.offset <= offset or row.revision < revision:
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"line {number}: row {row.offset} is out of order, or not what its body is",
            line=number,
        )  # fmt: skip
    return row


def _archive(lines: Iterable[bytes]) -> Archive:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Line)
    digest, number, ended = hashlib.sha256(), 0, False
    session: Session | None = None
    rows: list[StoredRow] = []
    rewrites: list[Rewrite] = []
    calls: list[CallUpdate] = []
    runs: list[ClosedRun] = []
    events: list[Event] = []
    entries: list[tuple[MemoryEntry, bool]] = []
    host_rows: list[HostRow] = []
    checkpoints: list[Checkpoint] = []
    for raw in lines:
        number += 1
        try:
            line = decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise FoldlineError(Reason.FORMAT_INVALID, f"line {number}: {error}", line=number) from error
        if number == 1 and not isinstance(line, _Header):
            raise FoldlineError(Reason.FORMAT_INVALID, "line 1 names no export format", line=1)
        match line:
            case _Header() if line.version != VERSION:
                raise FoldlineError(
                    Reason.FORMAT_INVALID, f"export version {line.version}, this server reads {VERSION}", line=number
                )
            case _Session():
                session = line.session
            case _Row():
                rows.append(_stored(line, number, rows[-1] if rows else None))
            case _Rewrite():
                rewrites.append(line.rewrite)
            case _Call():
                calls.append(line.call)
            case _Run():
                runs.append(line.run)
            case _Event():
                events.append(line.event)
            case _Entry():
                entries.append((line.entry, line.visible))
            case _HostRow():
                host_rows.append(line.row)
            case _Checkpoint():
                checkpoints.append(line.checkpoint)
            case _End():
                if line.lines != number - 1 or line.sha256 != digest.hexdigest():
                    raise FoldlineError(
                        Reason.FORMAT_INVALID, f"{number - 1} lines came, the export had {line.lines}, or they differ",
                        line=number, lines=line.lines,
                    )  # fmt: skip
                ended = True
        digest.update(raw + b"\n")
    if session is None or not ended:
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"the export ends after {number} lines, without its last", line=number
        )
    last = rows[-1] if rows else None
    if last is not None and (last.offset >= session.next_offset or last.revision > session.revision):
        raise FoldlineError(
            Reason.FORMAT_INVALID, f"row {last.offset} of revision {last.revision} is not the session's, which is at "
            f"{session.revision}", line=number,
        )  # fmt: skip
    return Archive(
        session, tuple(rows), tuple(rewrites), tuple(calls), tuple(runs), tuple(events), tuple(entries),
        tuple(host_rows), tuple(checkpoints),
    )  # fmt: skip
