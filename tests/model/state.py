"""What must be true of one session, in the plainest form: lists, sets and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from foldline.v1 import compaction_pb2, row_pb2

REQUEST_KINDS = frozenset({"user", "injected_context", "notice"})


class Broken(AssertionError):
    """A rule that does not hold; the message begins with its id."""


def require(holds: object, rule: str, detail: object = "") -> None:
    if not holds:
        raise Broken(f"{rule}: {detail}")


def stored_form(row: row_pb2.Row) -> bytes:
    """The bytes of a row that may never change: everything but the pin and where it is."""
    same = row_pb2.Row()
    same.CopyFrom(row)
    same.ClearField("pinned")
    same.ClearField("archived")
    return same.SerializeToString(deterministic=True)


def sent_form(row: row_pb2.Row) -> bytes:
    """What of a row the host decides: everything but what the sidecar sets."""
    same = row_pb2.Row()
    same.CopyFrom(row)
    for name in ("offset", "run_id", "pinned", "archived", "create_time"):
        same.ClearField(name)
    if same.HasField("tool_result"):
        for name in ("late", "usage_mark", "call_offset"):
            same.tool_result.ClearField(name)
    if same.HasField("assistant"):
        same.assistant.ClearField("model")
        same.assistant.ClearField("derived_from")
    return same.SerializeToString(deterministic=True)


@dataclass
class Known:
    """What the model keeps of an archived row."""

    stored: bytes
    row: row_pb2.Row

    @property
    def kind(self) -> str:
        return str(self.row.WhichOneof("body"))

    @property
    def calls(self) -> list[str]:
        return [b.tool_call.call_id for b in self.row.assistant.content if b.HasField("tool_call")]

    @property
    def origin(self) -> int:
        """Offset that results of its calls name: of the row that it is what trims left of, else its own (K2)."""
        return self.row.assistant.derived_from or self.row.offset

    @property
    def paused(self) -> bool:
        return self.kind == "assistant" and self.row.assistant.stop_reason == row_pb2.STOP_REASON_PAUSED


@dataclass
class State:
    """One session as its host and an onlooker know it.

    Attributes:
        active: the list; ``lists`` holds it, and what was folded, at each revision.
        replica: the list a host keeps by splices, of ``replica_revision``.
        sent: what each format's last request looked like, piece by piece; None once something may change it.
        ahead: folds whose summary is written ahead of need (A1); at most one has no end.
        tops: highest offset and number of folds at each revision.
        seen_folds: folds that an answer told of; ``unseen_folds`` committed without their caller (A5).
        cools_until, fruitless: of automatic attempts that called a paid source and folded nothing (C4, C5).
        asked: rows of the open run's request that the model is sure of.
        dropped: whether memory was dropped for good (M7).
        carried: results that a request answered SEND carried; ``maybe_carried``: those of which the model is not sure.
    """

    id: str
    model: str
    policy: dict[str, object] = field(default_factory=dict)
    revision: int = 0
    active: list[int] = field(default_factory=list)
    folded: frozenset[int] = frozenset()
    lists: dict[int, tuple[tuple[int, ...], frozenset[int]]] = field(default_factory=lambda: {0: ((), frozenset())})
    archive: dict[int, Known] = field(default_factory=dict)
    pinned: set[int] = field(default_factory=set)
    replica: list[int] = field(default_factory=list)
    replica_revision: int | None = None
    open_run: str = ""
    asked: list[int] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    prepared: str = ""
    prepared_run: str = ""
    carried: set[int] = field(default_factory=set)
    maybe_carried: set[int] = field(default_factory=set)
    sent: dict[int, list[object]] = field(default_factory=dict)
    last_asked: list[int] = field(default_factory=list)
    folds: int = 0
    tops: dict[int, tuple[int, int]] = field(default_factory=lambda: {0: (0, 0)})
    event: int = 0
    started: dict[str, int] = field(default_factory=dict)
    ahead: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    seen_folds: set[str] = field(default_factory=set)
    unseen_folds: list[compaction_pb2.CompactionRecord] = field(default_factory=list)
    cools_until: float = 0.0
    fruitless: int = 0
    tools: list[str] = field(default_factory=list)
    numbers: int = 0
    dropped: bool = False
    checkpoints: set[str] = field(default_factory=set)

    @property
    def writes_ahead(self) -> bool:
        """Whether summaries may be written in the background, so that counts and cadence change by themselves."""
        background = self.policy.get("background")
        return isinstance(background, dict) and bool(background.get("enabled"))

    @property
    def checkpointed(self) -> bool:
        """Whether the session's policy lets its agent save checkpoints."""
        asked = self.policy.get("checkpoints")
        return isinstance(asked, dict) and bool(asked.get("enabled"))

    def next(self, prefix: str) -> str:
        self.numbers += 1
        return f"{prefix}{self.numbers}"

    def log_copy(self) -> tuple[int, dict[str, int], set[str], set[str]]:
        """How far the events were read, and which folds they started, wrote ahead of need, and ended."""
        return self.event, dict(self.started), set(self.ahead), set(self.ended)

    def kind(self, offset: int) -> str:
        return self.archive[offset].kind

    def systems(self) -> dict[str, tuple[int, int]]:
        """Current version and offset by key of the active keyed system rows."""
        found: dict[str, tuple[int, int]] = {}
        for offset in self.active:
            row = self.archive[offset].row
            if row.HasField("system") and row.system.key:
                found[row.system.key] = max(found.get(row.system.key, (-1, 0)), (row.system.version, offset))
        return found

    def current_system(self, offset: int) -> bool:
        row = self.archive[offset].row
        return row.HasField("system") and (not row.system.key or self.systems()[row.system.key][1] == offset)

    def calls(self) -> dict[tuple[int, str], tuple[bool, bool]]:
        """Whether each standing call (active, or folded in this lineage) has a final and an interim result."""
        standing = sorted({*self.active, *self.folded})
        found: dict[tuple[int, str], tuple[bool, bool]] = {}
        for offset in standing:
            for call_id in self.archive[offset].calls if self.kind(offset) == "assistant" else ():
                found[self.archive[offset].origin, call_id] = (False, False)
        for offset in standing:
            if self.kind(offset) == "tool_result":
                body = self.archive[offset].row.tool_result
                key = (body.call_offset, body.call_id)
                if key in found:
                    final, interim = found[key]
                    found[key] = (final or not body.interim, interim or body.interim)
        return found

    def unanswered(self) -> list[tuple[int, str]]:
        return [key for key, (final, _) in self.calls().items() if not final]

    def placed(self, rows: Iterable[row_pb2.Row]) -> list[int]:
        """The list after an append (R5): a later version of a system row stands behind the one before."""
        after = list(self.active)
        current = {key: offset for key, (_, offset) in self.systems().items()}
        for row in rows:
            key = row.system.key if row.HasField("system") else ""
            if key and key in current:
                after.insert(after.index(current[key]) + 1, row.offset)
            else:
                after.append(row.offset)
            if key:
                current[key] = row.offset
        return after

    def trailing_request(self, run_id: str, before: Sequence[int]) -> list[int]:
        """Rows that are surely part of the request of a run that opens on the list ``before`` (§1 request)."""
        found: list[int] = []
        for offset in reversed(before):
            known = self.archive[offset]
            if known.kind == "system" or (known.kind == "tool_result" and known.row.tool_result.late):
                continue
            if known.kind not in REQUEST_KINDS:
                break
            if known.row.run_id in ("", run_id):
                found.append(offset)
        return found[::-1]

    def late_behind(self) -> bool:
        """Whether late results that no request carried stand last: they are a request, and continue no run (§1)."""
        for offset in reversed(self.active):
            known = self.archive[offset]
            if known.kind == "tool_result" and known.row.tool_result.late:
                if offset not in self.carried:
                    return True
            elif known.kind not in REQUEST_KINDS | {"system"}:
                return False
        return False

    def change(self, revision: int, active: Sequence[int]) -> None:
        self.revision, self.active = revision, list(active)
        self.lists[revision] = (tuple(active), self.folded)
        self.tops[revision] = (max(self.archive, default=0), self.folds)

    def forked(self, session_id: str, revision: int) -> State:
        """What a fork of this session at a revision must be (X3)."""
        top, folds = self.tops[revision]
        active, folded = self.lists[revision]
        archive = {o: known for o, known in self.archive.items() if o <= top}
        return State(
            id=session_id,
            model=self.model,
            policy=self.policy,
            revision=revision,
            active=list(active),
            folded=folded,
            lists={r: listed for r, listed in self.lists.items() if r <= revision},
            tops={r: at for r, at in self.tops.items() if r <= revision},
            archive=dict(archive),
            pinned={o for o in self.pinned if o <= top},
            maybe_carried={o for o, known in archive.items() if known.kind == "tool_result"},
            folds=folds,
            numbers=self.numbers + 10_000,
            dropped=self.dropped,
        )


def expanded(ranges: Iterable[row_pb2.OffsetRange]) -> list[int]:
    return [o for r in ranges for o in range(r.first, r.last + 1)]


def spliced(before: Sequence[int], splices: compaction_pb2.SpliceList) -> list[int]:
    """A host's list after splices, each applied to what the one before left."""
    after = list(before)
    for splice in splices.splices:
        inserted = [r.offset for r in splice.rows.rows] or list(splice.offsets.offsets)
        require(splice.position + splice.delete_count <= len(after), "W1", f"{splice} beyond {len(after)} rows")
        after[splice.position : splice.position + splice.delete_count] = inserted
    return after
