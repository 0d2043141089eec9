"""Sessions in memory: the last committed state, its ledger, and the lock under which both change.

A live session is a cache of the store: it is changed only after a commit, but for what it owes, and dropped when the
store disagrees.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foldline import _core
from foldline.commands.fold_parts import FoldInProgress
from foldline.domain.enums import RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event
from foldline.domain.ports import Store, StoredRow
from foldline.domain.rows import ProviderCompactionRow
from foldline.domain.session import Session

if TYPE_CHECKING:
    from foldline.commands.ahead import Ahead
    from foldline.commands.host_owned.views import Sizes

Column = tuple[int, int, str, int, int]
"""(offset, kind, run_id, tokens, bytes) of a row."""
_ROUND_KINDS = (RowKind.ASSISTANT, RowKind.TOOL_RESULT)


class LiveSession:
    """One session in memory. Every attribute is read and changed under ``lock`` only.

    Attributes:
        lock: a reentrant condition; notified when a fold ends.
        ledger: the active list as columns, sums kept (4.5).
        fold: the fold that holds the barrier, if any.
        ahead: the summary that is written ahead of need, or ready (A1); ``ahead_tried`` is (rewrites, tokens) of the
            list at the last try.
        host_sizes: of the rows of the last list that the host of a HOST_OWNED session sent.
        native: offset of the active native item, 0 for none: a fold takes in the one before it (F8). ``native_item``
            is what was read of one.
        owed: events of folds' ends that the store refused; it lacks what they, and maybe calls of sources, made of
            ``session`` as well. None where it lacks nothing.
        stale: memory may differ from the store; the next caller loads the session again.
    """

    def __init__(self, session: Session, columns: Iterable[Column]) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.session = session
        self.fold: FoldInProgress | None = None
        self.ahead: Ahead | None = None
        self.ahead_tried = (-1, 0)
        self.host_sizes: Sizes | None = None
        self.native_item: tuple[int, ProviderCompactionRow] | None = None
        self.owed: tuple[Event, ...] | None = None
        self.stale_reason = FoldlineError(
            Reason.SESSION_NOT_FOUND, f"session {session.session_id} was deleted", session_id=session.session_id
        )
        self.stale = False
        self._runs: dict[str, int] = {"": 0}
        self._run_names = [""]
        self.load(columns)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock; refuses a session that was deleted or went stale while the caller waited for it.

        Raises:
            FoldlineError: SESSION_NOT_FOUND after a delete, REVISION_MISMATCH after a write by another server.
        """
        with self.lock:
            if self.stale:
                raise self.stale_reason
            yield

    def load(self, columns: Iterable[Column]) -> None:
        """Rebuilds the ledger from the store's columns: after opening, and after a rewrite that is not a fold."""
        rows = list(columns)
        self.native = max((r[0] for r in rows if r[1] == RowKind.PROVIDER_COMPACTION), default=0)
        self.ledger = _core.Ledger()
        self._run_tokens: dict[str, list[int]] = {}
        self._run_rounds: dict[str, int] = {}
        run = self.session.open_run
        if run is not None:
            # Rounds that are folded already count on; those of closed runs are numbered from what is active.
            active = sum(1 for r in rows if r[1] == RowKind.ASSISTANT and r[2] == run.run_id)
            self._run_rounds[run.run_id] = max(0, run.rounds - active)
        self.ledger.append(*self._ledger_columns(rows, self._count(rows)))

    def _count_run(self, run_id: str, kind: int, tokens: int) -> None:
        if run_id and kind in _ROUND_KINDS:
            self._run_tokens.setdefault(run_id, [0, 0])[_ROUND_KINDS.index(kind)] += tokens

    def run_tokens(self, run_id: str) -> tuple[int, int]:
        """Raw tokens of a run's active assistant rows and of its results."""
        assistant, results = self._run_tokens.get(run_id, (0, 0))
        return assistant, results

    def run_index(self, run_id: str) -> int:
        index = self._runs.get(run_id)
        if index is None:
            index = self._runs[run_id] = len(self._run_names)
            self._run_names.append(run_id)
        return index

    def run_name(self, index: int) -> str:
        return self._run_names[index]

    def appended(self, rows: Sequence[StoredRow]) -> None:
        """Takes committed rows into the ledger, each at its place (R5)."""
        columns = [(r.offset, r.kind, r.run_id, r.tokens, r.bytes) for r in rows]
        rounds = self._count(columns)
        tail = [i for i, r in enumerate(rows) if r.place is None]
        if tail:
            self.ledger.append(*self._ledger_columns([columns[i] for i in tail], [rounds[i] for i in tail]))
        for index, row in enumerate(rows):
            if row.place is not None:
                position = self.ledger.position(row.place)
                at = len(self.ledger) if position is None else position + 1
                self.ledger.insert(at, *self._ledger_columns([columns[index]], [rounds[index]]))

    def _count(self, columns: Sequence[Column]) -> list[int]:
        """Adds rows to the sums by run; returns the round of its run that each row belongs to, 0 before the first."""
        rounds = []
        for _, kind, run_id, tokens, _ in columns:
            self._count_run(run_id, kind, tokens)
            if run_id and kind == RowKind.ASSISTANT:
                self._run_rounds[run_id] = self._run_rounds.get(run_id, 0) + 1
            rounds.append(self._run_rounds.get(run_id, 0))
        return rounds

    def _ledger_columns(
        self, columns: Sequence[Column], rounds: list[int]
    ) -> tuple[list[int], bytes, list[int], list[int], list[int], list[int]]:
        return (
            [c[0] for c in columns],
            bytes(c[1] for c in columns),
            [self.run_index(c[2]) for c in columns],
            rounds,
            [c[3] for c in columns],
            [c[4] for c in columns],
        )

    def folded(self, discarded: set[int], summary: StoredRow, insert_before: int | None) -> None:
        """Takes a committed fold into the ledger."""
        offsets = self.offsets()
        spans: list[tuple[int, int]] = []
        for position, offset in enumerate(offsets):
            if offset not in discarded:
                continue
            if spans and spans[-1][1] == position:
                spans[-1] = (spans[-1][0], position + 1)
            else:
                spans.append((position, position + 1))
        at = len(offsets) if insert_before is None else offsets.index(insert_before)
        row = (summary.offset, summary.kind, self.run_index(summary.run_id), 0, summary.tokens, summary.bytes)
        columns = self.ledger.slice()
        for position, offset in enumerate(offsets):
            if offset in discarded:
                run_id = self.run_name(columns[2][position])
                self._count_run(run_id, columns[1][position], -columns[4][position])
        self.ledger.replace(spans, at, row)
        if summary.kind == RowKind.PROVIDER_COMPACTION:
            self.native = summary.offset
        elif self.native in discarded:
            self.native = 0

    def offsets(self) -> list[int]:
        """The active list in list order."""
        return list(self.ledger.slice()[0])

    def size_of(self, offsets: Iterable[int]) -> tuple[int, int]:
        """(tokens, bytes) of some active rows; rows that are not active count nothing."""
        tokens = size = 0
        for offset in offsets:
            position = self.ledger.position(offset)
            if position is not None:
                columns = self.ledger.slice(position, position + 1)
                tokens += columns[4][0]
                size += columns[5][0]
        return tokens, size

    def transcript_size(self) -> tuple[int, int]:
        """(raw tokens, bytes) of the active transcript; superseded system rows count nothing (4.1)."""
        tokens = self.ledger.total_tokens() - sum(r.tokens for r in self.session.superseded)
        size = self.ledger.total_bytes() - sum(r.bytes for r in self.session.superseded)
        return tokens, size

    def last_of_other_kind(self, kind: RowKind) -> int:
        """Offset of the last active row that is not of ``kind``; 0 where there is none."""
        for position in range(len(self.ledger) - 1, -1, -1):
            columns = self.ledger.slice(position, position + 1)
            if columns[1][0] != kind:
                return int(columns[0][0])
        return 0

    def trailing_offsets(self) -> list[int]:
        """Offsets after the last assistant row, in list order, for finding a run's request (§1)."""
        end = len(self.ledger)
        start, step = end, 32
        while start > 0:
            start = max(0, start - step)
            offsets, kinds = self.ledger.slice(start, end)[:2]
            for index in range(len(offsets) - 1, -1, -1):
                if kinds[index] == RowKind.ASSISTANT:
                    return list(offsets[index + 1 :])
            step *= 4
        return self.offsets()

    def offsets_of_run(self, run_id: str) -> list[tuple[int, int]]:
        """(offset, kind) of the active rows of a run, in list order."""
        wanted = self.run_index(run_id)
        offsets, kinds, runs = self.ledger.slice()[:3]
        return [(o, k) for o, k, r in zip(offsets, kinds, runs, strict=True) if r == wanted]

    def uncarried_results(self, carried_through: int) -> list[int]:
        """Offsets of active results that no sent request carried (B7, V5)."""
        offsets, kinds = self.ledger.slice()[:2]
        return [o for o, k in zip(offsets, kinds, strict=True) if k == RowKind.TOOL_RESULT and o > carried_through]

    def last_run(self) -> str:
        """Run of the last active row that has one; empty if none has."""
        runs = self.ledger.slice()[2]
        index = next((r for r in reversed(runs) if r), 0)
        return self.run_name(index)


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    live: LiveSession | None = None


@dataclass(slots=True)
class Sessions:
    """Live sessions by tenant and id; beyond ``capacity`` those not in use go, least recently used first."""

    store: Store
    capacity: int = 4096
    _slots: OrderedDict[tuple[str, str], _Slot] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def use(self, tenant: str, session_id: str) -> Iterator[LiveSession]:
        """The live session, loaded if it is not in memory, and kept there for the length of the block.

        Raises:
            FoldlineError: SESSION_NOT_FOUND.
        """
        key = (tenant, session_id)
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            slot.users += 1
        try:
            # Loading holds the slot's lock alone: a long transcript delays no other session.
            with slot.lock:
                if slot.live is None or slot.live.stale:
                    slot.live = self._load(tenant, session_id)
                live = slot.live
            yield live
        finally:
            self._leave(key, slot)

    def hold(self, live: LiveSession) -> Callable[[], None]:
        """Keeps a session that is in use in memory until the returned function is called, once."""
        key = (live.session.tenant, live.session.session_id)
        with self._lock:
            slot = self._slots[key]
            slot.users += 1

        def release() -> None:
            self._leave(key, slot)

        return release

    def _leave(self, key: tuple[str, str], slot: _Slot) -> None:
        with self._lock:
            slot.users -= 1
            gone = slot.users == 0 and (slot.live is None or slot.live.stale)
            if gone and self._slots.get(key) is slot:
                self._slots.pop(key)
            self._evict()

    def owing(self) -> list[tuple[str, str]]:
        """(tenant, session id) of those that owe the store something."""
        with self._lock:
            return [key for key, slot in self._slots.items() if slot.live and slot.live.owed is not None]

    def wake(self) -> None:
        """Has everybody who waits for something of a session look again."""
        with self._lock:
            found = [slot.live for slot in self._slots.values() if slot.users and slot.live is not None]
        for live in found:
            with live.lock:
                live.lock.notify_all()

    def forget(self, tenant: str, session_id: str) -> None:
        """Lets go of what was in memory under an id that has just become another session."""
        with self._lock:
            slot = self._slots.get((tenant, session_id))
        if slot is not None:
            with slot.lock:
                slot.live = None

    def _load(self, tenant: str, session_id: str) -> LiveSession:
        session = self.store.load_session(tenant, session_id)
        if session is None:
            raise FoldlineError(Reason.SESSION_NOT_FOUND, f"no session {session_id}", session_id=session_id)
        return LiveSession(session, self.store.active_columns(session.key))

    def _evict(self) -> None:
        surplus = len(self._slots) - self.capacity
        if surplus <= 0:
            return
        idle = [k for k, slot in self._slots.items() if slot.users == 0 and not (slot.live and _is_needed(slot.live))]
        for key in idle[:surplus]:
            del self._slots[key]


def _is_needed(live: LiveSession) -> bool:
    """Whether it holds what was paid for and is in memory only: a summary that is ready, or what is owed."""
    return live.ahead is not None or live.owed is not None
