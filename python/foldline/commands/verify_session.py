"""VerifySession: replays everything from the archive and lists every fault (V10)."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from foldline import _core
from foldline.commands.draft import chained
from foldline.commands.list_rows import to_row
from foldline.commands.services import Caller, Services
from foldline.domain.checkpoints import TrimRecord
from foldline.domain.enums import Ownership, RevisionKind, RowKind
from foldline.domain.folding import to_ranges
from foldline.domain.ports import Archive, Rewrite, StoredRow
from foldline.domain.rows import AssistantRow, ToolResultRow, identity_of
from foldline.domain.session import Session
from foldline.engine.lineage import expand, folded_offsets, lineage
from foldline.engine.trimming import derive
from foldline.engine.units import SUMMARY_KINDS

PAGE = 2000


@dataclass(frozen=True, slots=True)
class VerifyFault:
    """One thing that does not hold; ``offset`` and ``revision`` are 0 where none applies."""

    rule: str
    detail: str
    offset: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Verification:
    """Counts of rows, each counted once, and every fault found."""

    rows_total: int
    rows_active: int
    folds: int
    faults: tuple[VerifyFault, ...]

    @property
    def rows_archived(self) -> int:
        return self.rows_total - self.rows_active


def verify_session(services: Services, caller: Caller, session_id: str) -> Verification:
    """Checks rows, digest chain, every rewrite, and memory against the archive. Reads only.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session, offsets = live.session, live.offsets()
            tokens = live.ledger.total_tokens()
        visible = services.store.visible_offsets(session.key)
        replay = _Replay(services, session, _rows(services, session), services.rewrites(session.key), visible)
        replay.run()
        replay.compare(offsets, tokens)
        replay.memory(offsets)
        return Verification(len(replay.rows), len(offsets), session.folds, tuple(replay.faults))


def verify_archive(services: Services, archive: Archive) -> tuple[VerifyFault, ...]:
    """The same, of what is to be imported."""
    session, visible = archive.session, {entry.offset for entry, shown in archive.entries if shown}
    replay = _Replay(services, session, archive.rows, list(archive.rewrites), visible)
    replay.run()
    replay.memory(replay.list)
    return tuple(replay.faults)


def _rows(services: Services, session: Session) -> Iterator[StoredRow]:
    after = 0
    while page := services.store.archive(session.key, after, PAGE, session.next_offset - 1):
        yield from page
        after = page[-1].offset


def _is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hex."""
    return len(text) == 64 and all(c in string.hexdigits for c in text)


class _Replay:
    """Builds the list again, revision by revision, from rows and rewrites alone."""

    def __init__(
        self, services: Services, session: Session, rows: Iterable[StoredRow], rewrites: list[Rewrite],
        visible: set[int],
    ) -> None:  # fmt: skip
        self.services = services
        self.session = session
        self.hosted = session.ownership is Ownership.HOST_OWNED
        self.faults: list[VerifyFault] = []
        self.list: list[int] = []
        self.rows = {row.offset: row for row in rows}
        self.rewrites = rewrites
        self.visible = visible
        self._digest = ""
        self._lists: dict[int, list[int]] = {}

    def fault(self, rule: str, detail: str, offset: int = 0, revision: int = 0) -> None:
        self.faults.append(VerifyFault(rule, detail, offset, revision))

    def run(self) -> None:
        for made in self.rewrites:
            held = (made.digest, *(r.digest for r in (made.record, made.trim) if r is not None))
            if not all(_is_digest(digest) for digest in held):
                self.fault("V10", f"revision {made.revision} holds no digest", revision=made.revision)
        if self.faults:
            return  # Nothing can be chained to what is no digest.
        # Of a list that the host keeps only what has folded is here (§14).
        for offset in () if self.hosted else range(1, self.session.next_offset):
            if offset not in self.rows:
                self.fault("R1", f"row {offset} is missing from the archive", offset)
        for beyond in (r.revision for r in self.rewrites if r.revision > self.session.revision):
            detail = f"rewrite {beyond} is beyond the session's revision {self.session.revision}"
            self.fault("V10", detail, revision=beyond)
        by_revision = {r.revision: r for r in self.rewrites if r.kind is not RevisionKind.CREATED}
        appended: dict[int, list[StoredRow]] = {}
        for row in self.rows.values():
            appended.setdefault(row.revision, []).append(row)
        self._digest = chained("", RevisionKind.CREATED)
        targets = {r.parent_revision for r in self.rewrites if r.kind is RevisionKind.RESTORE}
        for revision in range(1, self.session.revision + 1):
            rewrite, rows = by_revision.get(revision), appended.get(revision, [])
            if rewrite is None:
                self._append(revision, rows)
            else:
                self._rewrite(rewrite, rows)
            if revision in targets:
                self._lists[revision] = list(self.list)
        if self._digest != self.session.digest:
            self.fault(
                "V10", f"the digest chain ends in {self._digest[:12]}, the session holds {self.session.digest[:12]}"
            )

    def _append(self, revision: int, rows: Sequence[StoredRow]) -> None:
        if not rows:
            self.fault("V10", f"nothing made revision {revision}", revision=revision)
        for row in rows:
            if row.place is None:
                self.list.append(row.offset)
            elif row.place in self.list:
                self.list.insert(self.list.index(row.place) + 1, row.offset)
            else:
                self.fault(
                    "R5", f"row {row.offset} stands behind {row.place}, which is not in the list", row.offset, revision
                )
        self._chain(RevisionKind.APPEND, self._digest_rows([r.offset for r in rows]))

    def _chain(self, kind: RevisionKind, *payload: bytes) -> None:
        self._digest = chained(self._digest, kind, *payload)

    def _digest_rows(self, offsets: Sequence[int]) -> bytes:
        rows = [self.rows[o] for o in offsets if o in self.rows]
        return _core.digest_rows([r.offset for r in rows], [r.body for r in rows])

    def _rewrite(self, rewrite: Rewrite, rows: Sequence[StoredRow]) -> None:
        after = list(expand(rewrite.active))
        handle: dict[RevisionKind, Callable[[Rewrite, list[int], Sequence[StoredRow]], None]] = {
            RevisionKind.FOLD: self._hosted_fold if self.hosted else self._fold,
            RevisionKind.EDIT: self._edit,
            RevisionKind.RESTORE: self._restore,
            RevisionKind.TRIM: self._trim,
        }
        handle[rewrite.kind](rewrite, after, rows)
        if self._digest != rewrite.digest:
            self.fault(
                "V10", f"revision {rewrite.revision} has another digest than its rows", revision=rewrite.revision
            )
            self._digest = rewrite.digest
        self.list = after

    def _fold(self, rewrite: Rewrite, after: list[int], rows: Sequence[StoredRow]) -> None:
        record, revision = rewrite.record, rewrite.revision
        if record is None or len(rows) != 1 or rows[0].kind not in SUMMARY_KINDS:
            self.fault("V3", f"fold {revision} made {len(rows)} rows, not one summary", revision=revision)
            return
        discarded = list(expand(record.discarded))
        gone = set(discarded)
        if not gone.issubset(self.list):
            self.fault("V1", f"fold {revision} discards rows that were not active", revision=revision)
        kept = [o for o in self.list if o not in gone]
        if [o for o in after if o != rows[0].offset] != kept:
            self.fault("V2", f"fold {revision} does not keep the other rows in order", revision=revision)
        digest = self._digest_rows(discarded)
        if digest.hex() != record.digest:
            self.fault("V7", f"fold {revision} discarded other rows than its digest says", revision=revision)
        self._chain(
            RevisionKind.FOLD, self._digest_rows([rows[0].offset]), digest, msgspec.json.encode(to_ranges(tuple(after)))
        )

    def _hosted_fold(self, rewrite: Rewrite, after: list[int], rows: Sequence[StoredRow]) -> None:
        """H3: a projection that was committed: its rows are in the archive, and its summary stands for all of them."""
        record, revision = rewrite.record, rewrite.revision
        summaries = [r.offset for r in rows if r.kind == RowKind.COMPACTION_SUMMARY]
        if record is None or summaries != [record.summary_offset]:
            self.fault("V3", f"fold {revision} made {len(summaries)} summaries, not one", revision=revision)
            return
        discarded = list(expand(record.discarded))
        for offset in discarded:
            if offset not in self.rows:
                self.fault("V10", f"row {offset}, which fold {revision} discards, is missing", offset, revision)
        expected = {*discarded, record.summary_offset}
        for row in rows:
            if row.offset not in expected:
                self.fault("V1", f"row {row.offset} came with fold {revision} and is none of its", row.offset, revision)
        digest = self._digest_rows(discarded)
        if digest.hex() != record.digest:
            self.fault("V7", f"fold {revision} discarded other rows than its digest says", revision=revision)
        self._chain(RevisionKind.FOLD, self._digest_rows(summaries), digest, msgspec.json.encode(()))

    def _trim(self, rewrite: Rewrite, after: list[int], rows: Sequence[StoredRow]) -> None:
        """K2: the list without the calls; a derived row is its row without them, and nothing else."""
        record, revision = rewrite.trim, rewrite.revision
        if record is None or [r.offset for r in rows] != [new for new, _ in record.derived]:
            self.fault("V3", f"trim {revision} made other rows than it says", revision=revision)
            return
        gone, stands_for = list(expand(record.discarded)), dict(record.derived)
        if not set(gone).issubset(self.list) or not set(stands_for.values()).issubset(gone):
            self.fault("V1", f"trim {revision} discards rows that were not active", revision=revision)
        left = set(self.list).difference(gone).union(stands_for.values())
        if [stands_for.get(o, o) for o in after] != [o for o in self.list if o in left]:
            self.fault("V2", f"trim {revision} does not keep the other rows in order", revision=revision)
        self._trimmed_rows(record, revision)
        digest = self._digest_rows(gone)
        if digest.hex() != record.digest:
            self.fault("V7", f"trim {revision} discarded other rows than its digest says", revision=revision)
        self._chain(
            RevisionKind.TRIM, self._digest_rows([r.offset for r in rows]), digest,
            msgspec.json.encode(to_ranges(tuple(after))),
        )  # fmt: skip

    def _trimmed_rows(self, record: TrimRecord, revision: int) -> None:
        made_of = {old: new for new, old in record.derived}
        taken: dict[int, set[str]] = {}
        for call in record.calls:
            taken.setdefault(call.offset, set()).add(call.call_id)
        for offset in expand(record.discarded):
            if offset not in self.rows or made_of.get(offset, offset) not in self.rows:
                continue  # It is reported as missing.
            row = to_row(self.rows[offset])
            body, ids = row.body, taken.get(identity_of(row), set())
            if isinstance(body, ToolResultRow):
                if body.call_id not in taken.get(body.call_offset or 0, ()):
                    self.fault("V4", f"trim {revision} took result {offset} without its call", offset, revision)
                continue
            left = to_row(self.rows[made_of[offset]]).body if offset in made_of else None
            if not isinstance(body, AssistantRow) or left != derive(body, identity_of(row), ids):
                self.fault("V2", f"trim {revision} took more of row {offset} than its calls", offset, revision)

    def _edit(self, rewrite: Rewrite, after: list[int], rows: Sequence[StoredRow]) -> None:
        new = [r.offset for r in rows]
        if not set(after).issubset({*self.list, *new}):
            self.fault("V10", f"edit {rewrite.revision} brings rows back", revision=rewrite.revision)
        self._chain(RevisionKind.EDIT, self._digest_rows(new), msgspec.json.encode(to_ranges(tuple(after))))

    def _restore(self, rewrite: Rewrite, after: list[int], rows: Sequence[StoredRow]) -> None:
        target = self._lists.get(rewrite.parent_revision, [])
        if after != target:
            self.fault(
                "V10",
                f"restore {rewrite.revision} is not the list of {rewrite.parent_revision}",
                revision=rewrite.revision,
            )
        self._chain(RevisionKind.RESTORE, msgspec.json.encode(to_ranges(tuple(after))))

    def compare(self, offsets: Sequence[int], tokens: int) -> None:
        """The list in memory and the sums it keeps, against the replay."""
        if list(offsets) != self.list:
            self.fault("V10", f"{len(offsets)} rows are active, the replay gives {len(self.list)}")
        counted = sum(self.rows[o].tokens for o in self.list if o in self.rows)
        if counted != tokens:
            self.fault("4.5", f"the ledger holds {tokens} tokens, the rows sum to {counted}")

    def memory(self, offsets: Sequence[int]) -> None:
        """V8, M2: every folded row that memory holds is found there, and no active one."""
        if self.session.memory_dropped:
            return
        again = set(expand(self.session.again))
        folded = folded_offsets(self.rewrites, self.session.revision).difference(offsets) - again
        # By what held when the row folded: the policy may have changed since.
        indexed: dict[int, bool] = {}
        for fold in reversed(lineage(self.rewrites, self.session.revision)):
            indexed.update(dict.fromkeys(expand(fold.discarded), fold.results_indexed))
        for offset in sorted(self.visible.difference(folded)):
            self.fault("M2", f"memory shows row {offset}, which is not folded", offset)
        for offset in sorted(folded.difference(self.visible)):
            if offset not in self.rows:
                continue
            body = to_row(self.rows[offset]).body
            if self.services.memory.indexable(body, indexed[offset]) and self.services.memory.row_text(body).strip():
                self.fault("V8", f"folded row {offset} is not in memory", offset)
