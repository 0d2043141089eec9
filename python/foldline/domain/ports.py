"""The protocols through which commands meet the store, memory, summarizers and the tokenizer.

A store is correct when it passes ``tests/contract/store``; nothing else defines one.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from foldline.domain.arrangement import Arrangement
from foldline.domain.checkpoints import Checkpoint, TrimRecord
from foldline.domain.enums import Format, RevisionKind
from foldline.domain.events import Event, Warning_
from foldline.domain.folding import (
    Compacted,
    CompactionRecord,
    CompactorTask,
    OffsetRange,
    SummaryRequest,
    SummaryResult,
)
from foldline.domain.memory import (
    MemoryAnswer,
    MemoryEntry,
    MemoryFilter,
    MemoryHealth,
    MemoryQuery,
    MemoryReport,
    StoredEntry,
)
from foldline.domain.models import Factor
from foldline.domain.rows import ModelRef, NewRow, Row, RowBody
from foldline.domain.session import ClosedRun, Prepared, Session
from foldline.domain.tools import AgentTool

if TYPE_CHECKING:
    from foldline.domain.curators import Carrying, Lease
    from foldline.domain.native import Capability, NativeRoute, NativeSource
    from foldline.domain.projections import HostRow, Projection, Settled, StagedFold


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as the store keeps it.

    Attributes:
        revision: the revision its append made.
        tokens: raw estimate at append; ``bytes`` its estimated size in a request body (4.5).
        place: offset of the row it stands directly behind in the list, None for the end: a later version of a keyed
            system row stands behind the version it supersedes (R5). Summaries are placed by their rewrite's list.
    """

    offset: int
    kind: int
    run_id: str
    pinned: bool
    tokens: int
    bytes: int
    revision: int
    body: builtins.bytes
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A change of the active list that is not an append.

    Attributes:
        active: the whole list right after it, as offset ranges in list order; the list at any later revision is this
            one followed by the rows appended since (each at its ``place``).
        digest: hex, head of the chain at ``revision``.
        record: of a fold, else None; ``trim`` of a trim (K2).
        state: the session as it was right after, for restores and forks.
    """

    revision: int
    kind: RevisionKind
    parent_revision: int
    active: tuple[OffsetRange, ...]
    digest: str
    time: float
    record: CompactionRecord | None = None
    note: str = ""
    trim: TrimRecord | None = None

    @property
    def discarded(self) -> tuple[OffsetRange, ...]:
        """What a fold or trim took out of the list into memory (M2); nothing of other rewrites."""
        return self.record.discarded if self.record else self.trim.discarded if self.trim else ()

    @property
    def results_indexed(self) -> bool:
        """Whether memory took the results among ``discarded``."""
        done = self.record or self.trim
        return done is None or done.results_indexed


@dataclass(frozen=True, slots=True)
class CallUpdate:
    """Insert or update of a call (R3), keyed by (offset, call_id).

    ``result_offset`` is the final result; ``removed_by`` the revision of the edit or restore that removed it, None
    when it is (again) there.
    """

    offset: int
    call_id: str
    result_offset: int | None = None
    removed_by: int | None = None


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A first answer kept for a repeat of its ``request_id`` (W2). ``method`` and ``payload`` must match too."""

    request_id: str
    method: str
    payload: bytes
    answer: bytes
    time: float


@dataclass(frozen=True, slots=True)
class Tools:
    """Tool definitions a host sent once, known by digest (``TOOLS_UNKNOWN`` asks again).

    Attributes:
        kept: the store has their JSON.
    """

    digest: str
    tokens: int
    bytes: int
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one commit writes, in one transaction (V10): all of it or nothing.

    Attributes:
        expected_revision: revision the store must still hold, else RevisionConflict.
        session: the state after the commit.
        ledger_stands: the store holds the open run's call ledger as it is in ``session``: it grows with the run's
            rounds, and is not written again (4.5).
        pins: (offset, pinned) changes, which make no revision (R6).
        publish: memory entries of the folded rows, visible with the commit (M2, V8).
        visible: replaces which offsets' entries the scope shows, as the folded (inactive, in lineage) offsets; None
            leaves it unchanged. Restores use it.
        settle: the end of the staged projection (H3); one that commits brings ``rows`` whose offsets were given when
            it was staged.
        stage: a projection to stage, after ``settle``; a session has one at a time.
        host_rows: which of ``rows`` are which of the host's.
        tools_json: of ``tools``, to be kept with them (S3); None leaves what is kept of them.
    """

    expected_revision: int
    session: Session
    rows: tuple[StoredRow, ...] = ()
    rewrite: Rewrite | None = None
    calls: tuple[CallUpdate, ...] = ()
    pins: tuple[tuple[int, bool], ...] = ()
    events: tuple[Event, ...] = ()
    closed_runs: tuple[ClosedRun, ...] = ()
    prepared: Prepared | None = None
    request: StoredRequest | None = None
    tools: Tools | None = None
    tools_json: bytes | None = None
    factor: Factor | None = None
    publish: tuple[MemoryEntry, ...] = ()
    visible: tuple[OffsetRange, ...] | None = None
    settle: Settled | None = None
    stage: tuple[Projection, StagedFold] | None = None
    host_rows: tuple[HostRow, ...] = ()
    checkpoint: Checkpoint | None = None
    ledger_stands: bool = False


@dataclass(frozen=True, slots=True)
class Archive:
    """Everything there is of one session: what an export carries and an import writes."""

    session: Session
    rows: tuple[StoredRow, ...]
    rewrites: tuple[Rewrite, ...]
    calls: tuple[CallUpdate, ...]
    closed_runs: tuple[ClosedRun, ...]
    events: tuple[Event, ...]
    entries: tuple[tuple[MemoryEntry, bool], ...]
    """Memory entries and whether each is visible; vectors are made again."""
    host_rows: tuple[HostRow, ...] = ()
    """Which rows are which of a host's (H1)."""
    checkpoints: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """A new session that holds what another held at a revision (X3).

    Attributes:
        source: key of the other session.
        session: the fork's state, at the fork point: its revision and its next offset say what it takes.
        calls: calls that stood otherwise at the fork point than their newest record says.
        closed_runs: runs that the source has open; those that the fork has no row of are left out.
        visible: which offsets' entries its scope shows.
    """

    source: int
    session: Session
    calls: tuple[CallUpdate, ...] = ()
    closed_runs: tuple[ClosedRun, ...] = ()
    visible: tuple[OffsetRange, ...] = ()


class StoreReads(Protocol):
    """What a store answers. Every read sees committed data only."""

    def load_session(self, tenant: str, session_id: str) -> Session | None: ...

    def policy_of(self, key: int) -> Mapping[str, Any]:
        """The policy that a session states itself, by dotted names; empty where it is gone."""

    def list_sessions(self, tenant: str, after: str, limit: int) -> list[Session]:
        """Sessions in order of id, after ``after``."""

    def active_offsets(self, key: int, revision: int | None = None) -> list[int]:
        """The active list in list order, now or at a revision; empty list for revision 0.

        Raises:
            FoldlineError: REVISION_NOT_FOUND, with the newest revision.
        """

    def active_columns(self, key: int) -> list[tuple[int, int, str, int, int]]:
        """(offset, kind, run_id, tokens, bytes) of the active list now, in list order, without bodies."""

    def read_rows(self, key: int, offsets: Sequence[int]) -> list[StoredRow]:
        """Rows in the order asked for; offsets that do not exist are left out."""

    def archive(self, key: int, after: int, limit: int, through: int | None = None) -> list[StoredRow]:
        """Rows by offset, after ``after``; ``through`` is the last offset to give."""

    def last_offset(self, key: int, revision: int) -> int:
        """The last offset that was given up to a revision; 0 for none."""

    def answers(self, key: int) -> list[tuple[int, str]]:
        """(offset, run) of every assistant row, by offset; the run is empty for none."""

    def count_rows(self, key: int) -> int: ...

    def rewrites(self, key: int, after: int, limit: int) -> list[Rewrite]:
        """Rewrites by revision, after ``after`` (-1 for all); the first is the creation."""

    def newest_rewrites(self, key: int, before: int | None, limit: int) -> list[Rewrite]:
        """Rewrites newest first, of revisions below ``before``, from the newest on without one."""

    def export_session(self, key: int) -> Archive:
        """Everything of a session, read from one snapshot."""

    def calls(self, key: int) -> list[CallUpdate]:
        """Every call of the session."""

    def find_calls(self, key: int, call_id: str) -> list[CallUpdate]:
        """Every call of that id, oldest first."""

    def find_run(self, key: int, run_id: str) -> ClosedRun | None: ...

    def find_prepared(self, key: int, prepare_id: str) -> Prepared | None: ...

    def find_request(self, tenant: str, key: int, request_id: str) -> StoredRequest | None:
        """The first answer of a request id of the last 24 h (W2); ``key`` 0 for requests of no session yet."""

    def find_tools(self, key: int, digest: str) -> Tools | None: ...
    def tools_json(self, key: int, digest: str) -> bytes | None:
        """The JSON of tools as their host sent it, None where it is not kept."""

    def factor(self, tenant: str, model: ModelRef) -> Factor | None: ...

    def events(self, key: int, after: int, limit: int) -> list[Event]: ...

    def unfinished_folds(self) -> list[tuple[str, str, Event]]:
        """(tenant, session id, start event) of every fold without a terminal event, staged ones apart (§13, V10)."""

    def find_projection(self, key: int, projection_id: str) -> Projection | None: ...

    def staged_projection(self, key: int) -> tuple[Projection, StagedFold] | None:
        """The session's staged projection with all that it holds (H3)."""

    def issued_projections(self, key: int, digests: Sequence[str], texts: Sequence[str]) -> list[Projection]:
        """Staged and committed projections whose summaries carry one of ``digests``, or read as one of ``texts``, which
        are digests as well (H2), newest first."""

    def expired_projections(self) -> list[tuple[str, str, str]]:
        """(tenant, session id, projection id) of staged projections that have run out."""

    def leases(self) -> list[Lease]:
        """Tasks that hosts work on, oldest first (S6)."""

    def native_capability(self, route: NativeRoute) -> Capability | None:
        """What is known of a model's own compaction (N3)."""

    def host_rows(self, key: int, row_ids: Sequence[str]) -> list[HostRow]:
        """Archived rows by the ids that their host gave them."""

    def checkpoints(self, key: int, before: int | None, limit: int) -> list[tuple[int, Checkpoint]]:
        """(number, checkpoint), newest first, of numbers below ``before``, from the newest on without one (K3)."""

    def find_checkpoint(self, key: int, checkpoint_id: str) -> Checkpoint | None: ...

    def search_lexical(
        self, key: int, terms: Sequence[str], where: MemoryFilter, limit: int
    ) -> list[tuple[int, float]]:
        """(entry id, BM25 score, higher is better) of visible entries, best first, ties by id.

        Terms are matched whole, OR-ed, stemmed, over two columns: ``terms`` weighs 4, ``context`` 1. Rarity and length
        are counted over the session's visible entries alone (M1). An empty list of terms matches nothing.
        """

    def memory_entries(self, key: int, ids: Sequence[int]) -> list[StoredEntry]:
        """Visible entries in the order asked for; others are left out."""

    def memory_at(self, key: int, offset: int) -> list[StoredEntry]:
        """Entries of one offset, visible or not, by chunk."""

    def memory_ids(self, key: int, where: MemoryFilter) -> list[int]:
        """Ids of visible entries that pass ``where``, by (offset, chunk)."""

    def enumerate_memory(self, key: int, where: MemoryFilter, after: tuple[int, int], limit: int) -> list[StoredEntry]:
        """Visible entries that pass ``where``, by (offset, chunk), after ``after``; (0, 0) starts (M7)."""

    def memory_vectors(self, key: int, identity: str, ids: Sequence[int] | None = None) -> list[tuple[int, bytes]]:
        """(entry id, vector) of visible entries, of these ``ids`` only if given, whose vector is of ``identity``,
        in any order.

        Quarantined entries have an empty vector (M9).
        """

    def visible_offsets(self, key: int) -> set[int]:
        """Offsets whose entries the scope shows."""

    def memory_count(self, key: int, identity: str) -> tuple[int, int]:
        """(visible entries, of these without a vector of ``identity``). A quarantined entry has one.

        An empty identity is none that is known: entries without any vector are counted.
        """

    def memory_told(self) -> bool:
        """Whether the event log of some session says that its memory does less than it should."""

    def memory_health(self, identity: str, every: bool = False) -> list[MemoryHealth]:
        """Sessions with entries that ``identity`` has not embedded, or could not, or whose event log says so.

        An empty identity is none that is known: entries without any vector are pending. ``every``: all sessions with
        visible entries.
        """

    def pending_vectors(self, identity: str, limit: int) -> list[tuple[int, StoredEntry]]:
        """(session key, entry) of entries without a vector of ``identity``, visible or not, over all sessions.

        An entry that sessions share comes once; its vector is for all of them.
        Entries embedded by another model are among them and keep their old vector until put_vectors replaces it (M8).
        """


class Store(StoreReads, Protocol):
    """Durable state. Every write is one transaction; every method may be called by any thread."""

    def create_session(self, session: Session, request: StoredRequest | None) -> Session:
        """Writes a new session and its CREATED rewrite; returns it with its key.

        The request is kept in the tenant's own scope (key 0).

        Raises:
            FoldlineError: SESSION_EXISTS.
        """

    def import_session(self, archive: Archive, request: StoredRequest | None) -> Session:
        """Writes a whole exported session in one transaction; returns its state with its new key.

        Raises:
            FoldlineError: SESSION_EXISTS.
        """

    def fork_session(self, fork: Fork, request: StoredRequest | None) -> Session:
        """Writes a fork in one transaction: rows, calls, rewrites, runs, memory of the source up to the fork point.

        Bodies of rows, and text, vectors and postings of memory entries are shared, not copied; entries keep their
        ids. Pins are as they are now; events, requests and prepared requests stay behind. Returns the state with its
        key, and with ``memory_dropped`` where the source's scope is closed.

        Raises:
            FoldlineError: SESSION_EXISTS; SESSION_NOT_FOUND where the source is gone.
        """

    def delete_session(self, key: int, request: StoredRequest | None = None) -> None:
        """Removes rows, archive, memory, events, requests of the session; remembers ``request`` for the tenant.

        What forks share with it stays theirs, and goes with the last of them.
        """

    def commit(self, batch: Batch) -> tuple[Event, ...]:
        """Writes a batch durably; returns its events as stored, with their ``seq``.

        Offsets ascend over all batches of a session, and the revisions of its rows with them.

        Raises:
            RevisionConflict: the stored revision is not ``expected_revision``; nothing was written.
            FoldlineError: SESSION_NOT_FOUND; REQUEST_ID_REUSED where another request has just been answered under the
                id; PROJECTION_NOT_FOUND where the projection to settle is staged no more; INTERNAL where rows are out
                of order.
        """

    def drop_scope(self, key: int, request: Callable[[int], StoredRequest | None] = lambda entries: None) -> int:
        """Removes a session's memory in one transaction and closes its scope for good; returns how many entries (M7).

        Sessions loaded from then on say ``memory_dropped``; a commit with ``publish`` publishes nothing, and its
        record and events say so.

        Args:
            request: the answer to remember, by the number of entries.

        Raises:
            FoldlineError: SESSION_NOT_FOUND.
        """

    def put_vectors(self, identity: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Stores vectors, float32 little-endian, by entry id. Ids that are gone are ignored; empty is quarantine."""

    def merge_segments(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Upkeep of the lexical index, in short transactions: searches of a scope then cost what it holds, whatever
        the number of folds that published it. For one thread at a time."""

    def tell_memory(self, reports: Sequence[MemoryReport]) -> list[int]:
        """Writes a MEMORY_DEGRADED event for each session whose log says something else yet; returns their keys (§13).

        The event and what it says of the session are one; the session's own state is not touched.
        """

    def put_native_capability(self, route: NativeRoute, found: Capability) -> None:
        """Writes what is known of a model's own compaction, in place of what was (N3)."""

    def put_lease(self, lease: Lease) -> bool:
        """Writes who works on a task, in place of who did before (S6); False where its session is gone."""

    def renew_leases(self, task_ids: Sequence[str], curator_id: str, expire: float) -> None:
        """Lets leases run on, held by ``curator_id``; those that have ended are left out."""

    def end_lease(self, task_id: str) -> None: ...

    def clear_leases(self) -> int:
        """Removes every lease: none outlives its process. Returns how many there were."""

    def purge(self, now: float | None = None) -> None:
        """Forgets answers to requests, and prepared requests, older than 24 h (W2), a bounded number at a time."""

    def snapshot(self) -> AbstractContextManager[StoreReads]:
        """Reads that all see the store as it is now, for the calling thread and the length of a block."""

    def ping(self) -> None: ...

    def close(self) -> None: ...


class Summarizer(Protocol):
    """A source of summaries (§8)."""

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        """Writes a summary.

        Raises:
            SummaryFailed: with the failure kind; nothing was written.
        """


class Compactor(Protocol):
    """Plans and writes the fold of what stands before the run, in the sidecar's place (F12).

    A Python package offers one as an entry point of the group ``foldline.compactors``: a callable without arguments
    that returns it. The setting ``compactor`` names it.

    Attributes:
        background: whether it may be asked ahead of need (A4).
    """

    background: bool

    def compact(self, task: CompactorTask) -> Compacted:
        """Decides what stays and writes the summary of the rest. Called by any thread, several at once.

        Raises:
            Exception: any; the fold fails, the transcript stays as it was.
        """


@dataclass(frozen=True, slots=True)
class Sources:
    """Who can write summaries here (S2). ``provider`` is the configured one, None without."""

    extractive: Summarizer
    mechanical: Summarizer
    provider: Summarizer | None = None
    compactor: Compactor | None = None
    carrying: Carrying | None = None
    """What the texts of connected curators carry beside their own words (F8, S9); None: they are not asked."""
    scored: Callable[[SummaryRequest, SummaryResult], SummaryResult] = field(default=lambda request, written: written)
    """A compactor's text with its coverage (S9)."""
    native: NativeSource | None = None
    providers: tuple[str, ...] = ()
    """Names of the configured providers, where these are who ``provider`` calls (S2)."""
    called: Callable[[ModelRef], ModelRef] = field(default=lambda asked: asked)
    """The model that ``provider`` calls where one is asked for (S2)."""


class Embedder(Protocol):
    """Turns text into unit vectors of ``width`` float32; ``identity`` names model and version (M8).

    Attributes:
        batch: texts that one call takes best.
    """

    identity: str
    width: int
    batch: int

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """One little-endian float32 vector of unit length a text.

        Raises:
            FoldlineError: EMBEDDER_UNAVAILABLE, which says nothing of the texts; EMBEDDING_MISMATCH where the model has
                become another.
            Exception: any other, where it may be a text that cannot be embedded (M9).
        """

    def query(self, text: str) -> bytes:
        """The vector of a question that somebody waits for.

        Raises:
            Exception: any; the search goes on by words alone.
        """


class Memory(Protocol):
    """Recall (§10) over what folds have published."""

    @property
    def problem(self) -> str:
        """Why nothing can be embedded now; empty where it can, or is not meant to be (M8)."""

    def project(
        self, rows: Sequence[Row], context: Sequence[Row], chunk_tokens: int, index_tool_results: bool
    ) -> tuple[MemoryEntry, ...]:
        """Entries of ``rows``; ``context`` is the list they stand in, for what search may also match."""

    def search(self, session: Session, query: MemoryQuery) -> MemoryAnswer:
        """Ranks visible entries (M4).

        Raises:
            FoldlineError: EMPTY_QUERY, MEMORY_LIMIT_EXCEEDED, FIELD_VALIDATION.
        """

    def checked(self, where: MemoryFilter) -> MemoryFilter:
        """The filter with its time bounds in the form entries have.

        Raises:
            FoldlineError: FIELD_VALIDATION.
        """

    def wake(self) -> None:
        """Says that new entries are pending their vectors."""

    def forget(self, key: int) -> None:
        """Lets go of what is in memory of a session whose scope is gone."""

    def is_pending(self, stored: StoredEntry) -> bool:
        """Whether an entry waits for its vector (M8)."""

    def counts(self, key: int) -> tuple[int, int]:
        """(entries that search can show, of these without a vector of the current embedder)."""

    def row_text(self, body: RowBody) -> str:
        """The searchable text of a row, which byte ranges of entries and of ``ReadRow`` refer to (M6)."""

    def indexable(self, body: RowBody, index_tool_results: bool) -> bool:
        """Whether a row enters memory when it folds (M2)."""


class MessageUsage(Protocol):
    """A provider's usage object that stood on a message, and the model that the message names, if it does."""

    @property
    def usage(self) -> Mapping[str, Any]: ...
    @property
    def model(self) -> str: ...


class Parsed(Protocol):
    """Provider messages as rows, what could not be taken as it was, and usage, also of messages that were dropped."""

    @property
    def rows(self) -> tuple[NewRow, ...]: ...
    @property
    def warnings(self) -> tuple[Warning_, ...]: ...
    @property
    def usages(self) -> Sequence[MessageUsage]: ...
    @property
    def spans(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def messages(self) -> int: ...


class ParsedResponse(Protocol):
    """A provider's whole response body: the answer's rows, and its model."""

    @property
    def rows(self) -> tuple[NewRow, ...]: ...
    @property
    def warnings(self) -> tuple[Warning_, ...]: ...
    @property
    def model(self) -> str: ...


class Rendered(Protocol):
    """A request's messages in a provider's JSON."""

    @property
    def json(self) -> bytes: ...
    @property
    def warnings(self) -> tuple[Warning_, ...]: ...


class Formats(Protocol):
    """Provider formats both ways (W4); the module ``foldline.formats`` is one.

    Raises:
        FoldlineError: FORMAT_INVALID with the position.
    """

    def parse(self, fmt: Format, data: bytes) -> Parsed: ...
    def parse_response(self, fmt: Format, body: bytes) -> ParsedResponse: ...
    def render(self, fmt: Format, arrangement: Arrangement) -> Rendered: ...
    def tools_json(self, fmt: Format, tools: Sequence[AgentTool]) -> bytes: ...
