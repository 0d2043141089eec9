"""Memory entries, queries and hits (§10)."""

from __future__ import annotations

from dataclasses import dataclass, field

from foldline.domain.enums import EntryKind, EntryRole, MemoryFusion, MemoryIndex


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One chunk of a folded row, keyed by (offset, chunk) within its session (M2).

    Attributes:
        text: what a hit returns.
        terms: search terms of ``text``, space-separated, letters and digits only; never returned.
        context: terms of what search may also match (call, neighbours, time); never returned.
        byte_start, byte_end: where ``text`` stands in the row's own text, UTF-8 bytes.
        create_time: the row's, as RFC 3339 UTC of one width, so that text order is time order; empty when unknown.
    """

    offset: int
    chunk: int
    kind: EntryKind
    role: EntryRole
    text: str
    terms: str = ""
    context: str = ""
    byte_start: int = 0
    byte_end: int = 0
    call_id: str = ""
    create_time: str = ""


@dataclass(frozen=True, slots=True)
class MemoryFilter:
    """Restrictions of a search or enumeration (M4); empty fields restrict nothing. Bounds are inclusive.

    An entry of unknown time passes no time bound.
    """

    roles: tuple[EntryRole, ...] = ()
    kinds: tuple[EntryKind, ...] = ()
    first_offset: int | None = None
    last_offset: int | None = None
    after_time: str = ""
    before_time: str = ""


@dataclass(frozen=True, slots=True)
class MemoryQuery:
    """A question. ``fusion`` is how the lexical and the semantic ranking are joined (M4), ``index`` how vectors are
    searched (M3)."""

    text: str
    limit: int = 5
    min_score: float | None = None
    filter: MemoryFilter = field(default_factory=MemoryFilter)
    max_tokens: int = 2000
    include_neighbors: bool = False
    fusion: MemoryFusion = MemoryFusion.MIN_MAX
    index: MemoryIndex = MemoryIndex.AUTO


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A published entry with its store id, and the identity of the embedder that made its vector, empty for none."""

    id: int
    entry: MemoryEntry
    embedder: str = ""


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """A hit: ``score`` in [0, 1] (M4) and its parts; neighbours are the texts of the entries around, if asked for."""

    entry: MemoryEntry
    score: float
    lexical: float
    semantic: float
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    hits: tuple[MemoryHit, ...]
    degraded: str = ""
    scope_dropped: bool = False


@dataclass(frozen=True, slots=True)
class MemoryHealth:
    """How the memory of a session is.

    Attributes:
        told: what its event log says last, as ``memory.condition`` names it; empty for whole.
        pending: visible entries without a vector of the embedder; ``stale`` of them have another embedder's.
        quarantined: visible entries that could not be embedded (M9).
    """

    key: int
    told: str
    pending: int
    stale: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a session's event log is to say of its memory from now on (§13)."""

    key: int
    state: str
    message: str
    pending: int
    quarantined: int
