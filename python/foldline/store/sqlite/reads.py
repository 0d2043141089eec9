"""Reads of sessions, rows and everything kept beside them."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from foldline.domain.checkpoints import Checkpoint, TrimRecord
from foldline.domain.curators import Lease
from foldline.domain.enums import RevisionKind, RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event
from foldline.domain.folding import CompactionRecord, to_ranges
from foldline.domain.memory import MemoryFilter, MemoryHealth, StoredEntry
from foldline.domain.models import Factor
from foldline.domain.native import Capability, NativeRoute
from foldline.domain.ports import Archive, CallUpdate, Rewrite, StoredRequest, StoredRow, Tools
from foldline.domain.projections import HostRow, Projection, StagedFold
from foldline.domain.rows import ModelRef
from foldline.domain.session import ClosedRun, Prepared, Session
from foldline.store.codec import decode, decode_event, decode_ranges, decode_session
from foldline.store.listing import listed
from foldline.store.sqlite import checkpoints, leases, memory, native, projections
from foldline.store.sqlite.writes import REPEAT_SECONDS

_STATE = "state, key, memory_dropped, (SELECT calls FROM call_ledger WHERE session_key = key)"
_ROW = (
    "offset, kind, run_id, pinned, tokens, bytes, revision, "
    "iif(origin IS NULL, body, (SELECT o.body FROM archive_row o WHERE o.id = archive_row.origin)), place"
)
_REWRITE = "revision, kind, parent_revision, active, digest, time, record, note"


class SqliteReads:
    """The reading half of a store, over whatever connection ``_reading`` gives."""

    _clock: Callable[[], float]

    @abstractmethod
    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for one statement."""

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection on which all statements see one state."""

    # Sessions

    def load_session(self, tenant: str, session_id: str) -> Session | None:
        with self._reading() as db:
            found = db.execute(
                f"SELECT {_STATE} FROM session WHERE tenant = ? AND session_id = ? AND deleting = 0",
                (tenant, session_id),
            ).fetchone()
        return decode_session(*found) if found else None

    def policy_of(self, key: int) -> Mapping[str, Any]:
        with self._reading() as db:
            found = db.execute(f"SELECT {_STATE} FROM session WHERE key = ?", (key,)).fetchone()
        return decode_session(*found).policy if found else {}

    def list_sessions(self, tenant: str, after: str, limit: int) -> list[Session]:
        """Sessions in order of id (by code point), after ``after``."""
        with self._reading() as db:
            found = db.execute(
                f"SELECT {_STATE} FROM session WHERE tenant = ? AND session_id > ? AND deleting = 0 "
                "ORDER BY session_id LIMIT ?",
                (tenant, after, limit),
            ).fetchall()
        return [decode_session(*row) for row in found]

    # Rows and the active list

    def active_offsets(self, key: int, revision: int | None = None) -> list[int]:
        """The active list in list order, now or at a revision; empty list for revision 0.

        Raises:
            FoldlineError: REVISION_NOT_FOUND, with the revision asked for and the newest; SESSION_NOT_FOUND.
        """
        with self._snapshot() as db:
            return _active(db, key, revision)

    def active_columns(self, key: int) -> list[tuple[int, int, str, int, int]]:
        """(offset, kind, run_id, tokens, bytes) of the active list now, in list order, without bodies."""
        with self._snapshot() as db:
            offsets = _active(db, key, None)
            found: dict[int, tuple[int, int, str, int, int]] = {}
            for first, last in to_ranges(tuple(sorted(offsets))):
                rows = db.execute(
                    "SELECT offset, kind, run_id, tokens, bytes FROM archive_row "
                    "WHERE session_key = ? AND offset BETWEEN ? AND ?",
                    (key, first, last),
                )
                found.update((row[0], row) for row in rows)
        return [found[offset] for offset in offsets]

    def read_rows(self, key: int, offsets: Sequence[int]) -> list[StoredRow]:
        """Rows in the order asked for; offsets that do not exist are left out."""
        found: dict[int, StoredRow] = {}
        with self._snapshot() as db:
            for first, last in to_ranges(tuple(sorted(set(offsets)))):
                rows = db.execute(
                    f"SELECT {_ROW} FROM archive_row WHERE session_key = ? AND offset BETWEEN ? AND ?",
                    (key, first, last),
                )
                found.update((row[0], _row(row)) for row in rows)
        return [found[offset] for offset in offsets if offset in found]

    def archive(self, key: int, after: int, limit: int, through: int | None = None) -> list[StoredRow]:
        """Rows by offset, after ``after``; ``through`` is the last offset to give."""
        last = 2**63 - 1 if through is None else through
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {_ROW} FROM archive_row WHERE session_key = ? AND offset > ? AND offset <= ? "
                "ORDER BY offset LIMIT ?",
                (key, after, last, limit),
            ).fetchall()
        return [_row(row) for row in rows]

    def last_offset(self, key: int, revision: int) -> int:
        """The last offset that was given up to a revision; 0 for none."""
        with self._snapshot() as db:
            return _last_offset(db, key, revision)

    def answers(self, key: int) -> list[tuple[int, str]]:
        """(offset, run) of every assistant row, by offset; the run is empty for none."""
        with self._reading() as db:
            return db.execute(
                "SELECT offset, run_id FROM archive_row WHERE session_key = ? AND kind = ? ORDER BY offset",
                (key, int(RowKind.ASSISTANT)),
            ).fetchall()

    def count_rows(self, key: int) -> int:
        with self._reading() as db:
            (rows,) = db.execute("SELECT count(*) FROM archive_row WHERE session_key = ?", (key,)).fetchone()
        return int(rows)

    def rewrites(self, key: int, after: int, limit: int) -> list[Rewrite]:
        """Rewrites by revision, after ``after`` (-1 for all); the first is the creation."""
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {_REWRITE} FROM rewrite WHERE session_key = ? AND revision > ? ORDER BY revision LIMIT ?",
                (key, after, limit),
            ).fetchall()
        return [_rewrite(row) for row in rows]

    def newest_rewrites(self, key: int, before: int | None, limit: int) -> list[Rewrite]:
        """Rewrites newest first, of revisions below ``before``, from the newest on without one."""
        last = 2**63 - 1 if before is None else before
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {_REWRITE} FROM rewrite WHERE session_key = ? AND revision < ? ORDER BY revision DESC LIMIT ?",
                (key, last, limit),
            ).fetchall()
        return [_rewrite(row) for row in rows]

    # What is kept beside the rows

    def calls(self, key: int) -> list[CallUpdate]:
        """Every call of the session."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT offset, call_id, result_offset, removed_by FROM call WHERE session_key = ?", (key,)
            ).fetchall()
        return [CallUpdate(*row) for row in rows]

    def find_calls(self, key: int, call_id: str) -> list[CallUpdate]:
        """Every call of that id, oldest first."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT offset, call_id, result_offset, removed_by FROM call WHERE session_key = ? AND call_id = ? "
                "ORDER BY offset",
                (key, call_id),
            ).fetchall()
        return [CallUpdate(*row) for row in rows]

    def find_run(self, key: int, run_id: str) -> ClosedRun | None:
        with self._reading() as db:
            found = db.execute(
                "SELECT body FROM closed_run WHERE session_key = ? AND run_id = ?", (key, run_id)
            ).fetchone()
        return decode(found[0], ClosedRun) if found else None

    def find_prepared(self, key: int, prepare_id: str) -> Prepared | None:
        with self._reading() as db:
            found = db.execute(
                "SELECT body FROM prepared WHERE session_key = ? AND prepare_id = ?", (key, prepare_id)
            ).fetchone()
        return decode(found[0], Prepared) if found else None

    def find_request(self, tenant: str, key: int, request_id: str) -> StoredRequest | None:
        """The first answer of a request id of the last 24 h (W2); ``key`` 0 is the tenant's own scope."""
        with self._reading() as db:
            found = db.execute(
                "SELECT request_id, method, payload, answer, time FROM request "
                "WHERE session_key = ? AND tenant = ? AND request_id = ? AND time > ?",
                (key, "" if key else tenant, request_id, self._clock() - REPEAT_SECONDS),
            ).fetchone()
        return StoredRequest(*found) if found else None

    def find_tools(self, key: int, digest: str) -> Tools | None:
        with self._reading() as db:
            found = db.execute(
                "SELECT digest, tokens, bytes, json IS NOT NULL FROM tools WHERE session_key = ? AND digest = ?",
                (key, digest),
            ).fetchone()
        return Tools(found[0], found[1], found[2], bool(found[3])) if found else None

    def tools_json(self, key: int, digest: str) -> bytes | None:
        with self._reading() as db:
            found = db.execute("SELECT json FROM tools WHERE session_key = ? AND digest = ?", (key, digest)).fetchone()
        return found[0] if found else None

    def factor(self, tenant: str, model: ModelRef) -> Factor | None:
        with self._reading() as db:
            found = db.execute(
                "SELECT body FROM factor WHERE tenant = ? AND provider = ? AND model = ?",
                (tenant, model.provider, model.model),
            ).fetchone()
        return decode(found[0], Factor) if found else None

    # Events

    def events(self, key: int, after: int, limit: int) -> list[Event]:
        """Events by ``seq``, after ``after``."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT body, seq FROM event WHERE session_key = ? AND seq > ? ORDER BY seq LIMIT ?",
                (key, after, limit),
            ).fetchall()
        return [decode_event(*row) for row in rows]

    def unfinished_folds(self) -> list[tuple[str, str, Event]]:
        """(tenant, session id, start event) of every fold without a terminal event, staged ones apart (§13, V10)."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT s.tenant, s.session_id, e.body, e.seq FROM open_fold f "
                "JOIN session s ON s.key = f.session_key AND s.deleting = 0 "
                "JOIN event e ON e.session_key = f.session_key AND e.seq = f.seq "
                f"WHERE NOT {projections.IS_STAGED} ORDER BY f.session_key, f.seq"
            ).fetchall()
        return [(tenant, session_id, decode_event(body, seq)) for tenant, session_id, body, seq in rows]

    def export_session(self, key: int) -> Archive:
        """Everything of a session, read from one snapshot.

        Raises:
            FoldlineError: SESSION_NOT_FOUND.
        """
        with self._snapshot() as db:
            state = db.execute(f"SELECT {_STATE} FROM session WHERE key = ? AND deleting = 0", (key,)).fetchone()
            if state is None:
                raise _no_session()
            return Archive(
                session=decode_session(*state),
                rows=tuple(
                    map(
                        _row,
                        db.execute(f"SELECT {_ROW} FROM archive_row WHERE session_key = ? ORDER BY offset", (key,)),
                    )
                ),
                rewrites=tuple(
                    map(
                        _rewrite,
                        db.execute(f"SELECT {_REWRITE} FROM rewrite WHERE session_key = ? ORDER BY revision", (key,)),
                    )
                ),
                calls=tuple(
                    CallUpdate(*row)
                    for row in db.execute(
                        "SELECT offset, call_id, result_offset, removed_by FROM call WHERE session_key = ? "
                        "ORDER BY offset, call_id",
                        (key,),
                    )
                ),
                closed_runs=tuple(
                    decode(body, ClosedRun)
                    for (body,) in db.execute(
                        "SELECT body FROM closed_run WHERE session_key = ? ORDER BY run_id", (key,)
                    )
                ),
                events=tuple(
                    decode_event(*row)
                    for row in db.execute("SELECT body, seq FROM event WHERE session_key = ? ORDER BY seq", (key,))
                ),
                entries=tuple(memory.all_entries(db, key)),
                host_rows=tuple(projections.host_rows(db, key, None)),
                checkpoints=tuple(c for _, c in reversed(checkpoints.newest(db, key, None, -1))),
            )

    # Checkpoints

    def checkpoints(self, key: int, before: int | None, limit: int) -> list[tuple[int, Checkpoint]]:
        """(number, checkpoint), newest first, of numbers below ``before``, from the newest on without one (K3)."""
        with self._reading() as db:
            return checkpoints.newest(db, key, before, limit)

    def find_checkpoint(self, key: int, checkpoint_id: str) -> Checkpoint | None:
        with self._reading() as db:
            return checkpoints.find(db, key, checkpoint_id)

    # Transcripts that hosts keep

    def find_projection(self, key: int, projection_id: str) -> Projection | None:
        with self._reading() as db:
            return projections.find(db, key, projection_id)

    def staged_projection(self, key: int) -> tuple[Projection, StagedFold] | None:
        """The session's staged projection with all that it holds (H3)."""
        with self._reading() as db:
            return projections.staged(db, key)

    def issued_projections(self, key: int, digests: Sequence[str], texts: Sequence[str]) -> list[Projection]:
        """Staged and committed projections by the digest of what they discarded or of their text (H2), newest first."""
        with self._reading() as db:
            return projections.issued(db, key, digests, texts)

    def expired_projections(self) -> list[tuple[str, str, str]]:
        """(tenant, session id, projection id) of staged projections that have run out."""
        with self._reading() as db:
            return projections.expired(db, self._clock())

    def leases(self) -> list[Lease]:
        """Tasks that hosts work on, oldest first (S6)."""
        with self._reading() as db:
            return leases.every(db)

    def native_capability(self, route: NativeRoute) -> Capability | None:
        """What is known of a model's own compaction (N3)."""
        with self._reading() as db:
            return native.read(db, route)

    def host_rows(self, key: int, row_ids: Sequence[str]) -> list[HostRow]:
        """Archived rows by the ids that their host gave them."""
        with self._reading() as db:
            return projections.host_rows(db, key, row_ids)

    # Memory

    def search_lexical(
        self, key: int, terms: Sequence[str], where: MemoryFilter, limit: int
    ) -> list[tuple[int, float]]:
        """(entry id, BM25 score, higher is better) of visible entries, best first, ties by id (M4)."""
        with self._snapshot() as db:
            return memory.search(db, key, terms, where, limit)

    def memory_entries(self, key: int, ids: Sequence[int]) -> list[StoredEntry]:
        """Visible entries in the order asked for; others are left out."""
        with self._reading() as db:
            return memory.entries_by_id(db, key, ids)

    def memory_at(self, key: int, offset: int) -> list[StoredEntry]:
        """Entries of one offset, visible or not, by chunk."""
        with self._reading() as db:
            return memory.entries_at(db, key, offset)

    def memory_ids(self, key: int, where: MemoryFilter) -> list[int]:
        """Ids of visible entries that pass ``where``, by (offset, chunk)."""
        with self._reading() as db:
            return memory.ids(db, key, where)

    def visible_offsets(self, key: int) -> set[int]:
        """Offsets whose entries the scope shows."""
        with self._reading() as db:
            return memory.visible_offsets(db, key)

    def enumerate_memory(self, key: int, where: MemoryFilter, after: tuple[int, int], limit: int) -> list[StoredEntry]:
        """Visible entries that pass ``where``, by (offset, chunk), after ``after`` (M7)."""
        with self._reading() as db:
            return memory.enumerate_entries(db, key, where, after, limit)

    def memory_vectors(self, key: int, identity: str, ids: Sequence[int] | None = None) -> list[tuple[int, bytes]]:
        """(entry id, vector) of visible entries, of these ``ids`` only if given, whose vector is of ``identity``."""
        with self._snapshot() as db:
            return memory.vectors(db, key, identity, ids)

    def memory_count(self, key: int, identity: str) -> tuple[int, int]:
        """(visible entries, of these without a vector of ``identity``)."""
        with self._snapshot() as db:
            return memory.count(db, key, identity)

    def memory_told(self) -> bool:
        """Whether the event log of some session says that its memory does less than it should."""
        with self._reading() as db:
            return memory.told(db)

    def memory_health(self, identity: str, every: bool = False) -> list[MemoryHealth]:
        """Sessions of which there is something to tell, or every one with visible entries."""
        with self._reading() as db:
            return memory.health(db, identity, every)

    def pending_vectors(self, identity: str, limit: int) -> list[tuple[int, StoredEntry]]:
        """(session key, entry) of entries without a vector of ``identity``, visible or not (M8)."""
        with self._snapshot() as db:
            return memory.pending(db, identity, limit)


def _active(db: sqlite3.Connection, key: int, revision: int | None) -> list[int]:
    found = db.execute("SELECT revision FROM session WHERE key = ? AND deleting = 0", (key,)).fetchone()
    if found is None:
        raise _no_session()
    newest = found[0]
    at = newest if revision is None else revision
    base = db.execute(
        "SELECT revision, active FROM rewrite WHERE session_key = ? AND revision <= ? ORDER BY revision DESC LIMIT 1",
        (key, at),
    ).fetchone()
    if at == 0:
        return []
    if base is None or not 0 < at <= newest:
        raise FoldlineError(
            Reason.REVISION_NOT_FOUND,
            f"no revision {at}; the newest is {newest}",
            revision=at,
            newest=newest,
        )
    rewritten, active = base
    after = _last_offset(db, key, rewritten)
    through = 2**63 - 1 if at == newest else _last_offset(db, key, at)
    appended = db.execute(
        "SELECT offset FROM archive_row WHERE session_key = ? AND offset > ? AND offset <= ? ORDER BY offset",
        (key, after, through),
    )
    places = db.execute(
        "SELECT offset, place FROM archive_row WHERE session_key = ? AND offset > ? AND offset <= ? "
        "AND place IS NOT NULL",
        (key, after, through),
    )
    return listed(decode_ranges(active), [offset for (offset,) in appended], dict(places.fetchall()))


def _last_offset(db: sqlite3.Connection, key: int, revision: int) -> int:
    """The last offset that was given up to a revision: offsets and revisions ascend together."""
    newest = db.execute("SELECT max(offset) FROM archive_row WHERE session_key = ?", (key,)).fetchone()[0]
    low, high = 0, newest or 0
    while low < high:
        middle = (low + high + 1) // 2
        offset, made = db.execute(
            "SELECT offset, revision FROM archive_row WHERE session_key = ? AND offset >= ? ORDER BY offset LIMIT 1",
            (key, middle),
        ).fetchone()
        if made <= revision:
            low = offset
        else:
            high = middle - 1
    return low


def _no_session() -> FoldlineError:
    return FoldlineError(Reason.SESSION_NOT_FOUND, "the session is no longer there")


def _row(row: tuple[int, int, str, int, int, int, int, bytes, int | None]) -> StoredRow:
    offset, kind, run_id, pinned, tokens, size, revision, body, place = row
    return StoredRow(offset, kind, run_id, bool(pinned), tokens, size, revision, body, place)


def _rewrite(row: tuple[int, str, int, bytes, str, float, bytes | None, str]) -> Rewrite:
    revision, kind, parent, active, digest, time, record, note = row
    return Rewrite(
        revision, RevisionKind(kind), parent, decode_ranges(active), digest, time,
        decode(record, CompactionRecord) if record and kind != RevisionKind.TRIM else None, note,
        decode(record, TrimRecord) if record and kind == RevisionKind.TRIM else None,
    )  # fmt: skip
