"""What proves a trim before it is written (K2: V1-V7 but for the summary's own rules).

As for folds (``engine.checks``), the two lists are read anew: planning's derivations are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foldline.domain.checkpoints import TrimRecord
from foldline.domain.enums import RowKind
from foldline.domain.folding import CheckFailure, RowFacts, Snapshot
from foldline.engine.links import links


def check_trim(
    before: Snapshot, after: Sequence[RowFacts], record: TrimRecord, count: int
) -> tuple[CheckFailure, ...]:  # fmt: skip
    """Every failed check of a trim of ``count`` calls; empty where it may be committed.

    Args:
        after: the list it would leave, in list order.
    """
    return tuple(CheckFailure(rule, detail) for rule, detail in _TrimChecks(before, after, record, count).run())


class _TrimChecks:
    def __init__(self, before: Snapshot, after: Sequence[RowFacts], record: TrimRecord, count: int) -> None:
        self.before, self.after, self.record, self.count = before, tuple(after), record, count
        self.old = {r.offset: r for r in before.rows}
        self.kept = {r.offset for r in self.after if r.offset in self.old}
        self.gone = [r for r in before.rows if r.offset not in self.kept]
        self.stands_for = dict(record.derived)
        self.trimmed = {(c.offset, c.call_id) for c in record.calls}

    def run(self) -> Iterator[tuple[str, str]]:
        for rule, found in (
            ("V1", self.accounts_for_all()),
            ("V2", self.keeps_rows_as_they_were()),
            ("V3", self.adds_derived_rows_alone()),
            ("V4", self.keeps_calls_with_their_results()),
            ("V5", self.keeps_what_must_stay()),
            ("V6", self.is_smaller()),
            ("V7", self.record_names_the_discarded()),
        ):
            for detail in found:
                yield rule, detail

    def accounts_for_all(self) -> Iterator[str]:
        """V1, K2."""
        if len(self.trimmed) != self.count or len(self.record.calls) != self.count:
            yield f"{len(self.record.calls)} calls go, {self.count} are to"
        replaced = set(self.stands_for.values())
        for row in self.gone:
            calls = {(_identity(row), i) for i in row.call_ids}
            if row.kind == RowKind.ASSISTANT:
                if not calls & self.trimmed:
                    yield f"row {row.offset} is discarded and holds no trimmed call"
                elif row.offset not in replaced and not calls <= self.trimmed:
                    yield f"row {row.offset} goes whole with calls that stay"
            elif row.kind != RowKind.TOOL_RESULT or (row.call_offset, row.call_id) not in self.trimmed:
                yield f"row {row.offset} is discarded and belongs to no trimmed call"

    def keeps_rows_as_they_were(self) -> Iterator[str]:
        """V2."""
        for row in self.after:
            was = self.old.get(row.offset)
            if was is not None and (was.digest, was.kind, was.bytes) != (row.digest, row.kind, row.bytes):
                yield f"row {row.offset} is not what it was"
        order = [self.stands_for.get(r.offset, r.offset) for r in self.after]
        standing = set(order)
        if len(standing) != len(order):
            yield "a row stands twice"
        elif order != [r.offset for r in self.before.rows if r.offset in standing]:
            yield "rows are not in order"

    def adds_derived_rows_alone(self) -> Iterator[str]:
        """V3: the new rows are what is left of rows that lost calls, each in its row's place."""
        new = [r for r in self.after if r.offset not in self.old]
        if [r.offset for r in new] != [offset for offset, _ in self.record.derived]:
            yield f"{len(new)} new rows, {len(self.record.derived)} are derived"
        for row in new:
            was = self.old.get(self.stands_for.get(row.offset, 0))
            if was is None or row.kind != RowKind.ASSISTANT or row.derived_from != _identity(was):
                yield f"row {row.offset} is derived from no row of the list"
                continue
            left = tuple(i for i in was.call_ids if (_identity(was), i) not in self.trimmed)
            if row.call_ids != left or (row.run_id, row.pinned, row.paused) != (was.run_id, was.pinned, was.paused):
                yield f"row {row.offset} is not row {was.offset} without its trimmed calls"
            if row.indexable:
                yield f"row {row.offset} is derived and would be indexed"

    def keeps_calls_with_their_results(self) -> Iterator[str]:
        """V4."""
        calls = {(_identity(r), i) for r in self.after for i in r.call_ids}
        made = {(_identity(r), i) for r in self.before.rows for i in r.call_ids}
        for row in self.before.rows:
            if row.kind != RowKind.TOOL_RESULT or row.call_offset is None:
                continue
            name = (row.call_offset, row.call_id)
            if name in made and (name in calls) != (row.offset in self.kept):
                yield f"result {row.offset} and its call {row.call_id} are separated"

    def keeps_what_must_stay(self) -> Iterator[str]:
        """V5, K2."""
        reason = self._reasons()
        for row in self.before.rows:
            names = [(_identity(row), i) for i in row.call_ids]
            if row.kind == RowKind.TOOL_RESULT and row.call_offset is not None:
                names = [(row.call_offset, row.call_id)]
            if row.offset in reason and not self.trimmed.isdisjoint(names):
                yield f"row {row.offset} must stay: {reason[row.offset]}"

    def _reasons(self) -> dict[int, str]:
        rows, run = self.before.rows, self.before.open_run
        pairs = links(rows)
        ahead = {b: a for a, b in pairs if self.old[a].kind == self.old[b].kind == RowKind.ASSISTANT}
        reason = {r.offset: "pinned" for r in rows if r.pinned}
        reason |= dict.fromkeys(run.request if run else (), "request of the open run")
        newest = next(
            (
                i
                for i in reversed(range(len(rows)))
                if rows[i].kind == RowKind.ASSISTANT and rows[i].offset not in ahead
            ),
            len(rows),
        )
        reason |= {r.offset: "newest round" for r in rows[newest:]}
        neighbours: dict[int, list[int]] = {}
        for a, b in pairs:
            neighbours.setdefault(a, []).append(b)
            neighbours.setdefault(b, []).append(a)
        todo = list(reason)
        while todo:
            offset = todo.pop()
            for other in neighbours.get(offset, ()):
                if other not in reason:
                    reason[other] = f"belongs to row {offset}"
                    todo.append(other)
        imported = max((r.offset for r in rows if r.kind == RowKind.ASSISTANT and not r.run_id), default=0)
        for row in rows:
            carried = row.offset <= self.before.carried_through or (not row.run_id and row.offset < imported)
            if row.kind == RowKind.TOOL_RESULT and not carried:
                reason.setdefault(row.offset, "result not yet carried")
        return reason

    def is_smaller(self) -> Iterator[str]:
        """V6."""
        was, left = (
            sum(r.tokens for r in rows if not r.superseded) for rows in (self.before.rows, self.after)
        )  # fmt: skip
        if left >= was:
            yield f"not smaller: {was} tokens before, {left} after"

    def record_names_the_discarded(self) -> Iterator[str]:
        """V7."""
        named = [o for first, last in self.record.discarded for o in range(first, last + 1)]
        if named != [r.offset for r in self.gone]:
            yield "the record's ranges are not the discarded offsets"
        if not self.record.digest:
            yield "the record holds no digest of what they held"


def _identity(row: RowFacts) -> int:
    return row.offset if row.derived_from is None else row.derived_from
