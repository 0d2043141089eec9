"""Searches for calls after which the ledger is not the list that they describe."""

from typing import NamedTuple

from foldline import _core
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule


class Entry(NamedTuple):
    offset: int
    kind: int
    run: int
    round: int
    tokens: int
    bytes: int


ENTRIES = st.builds(
    Entry,
    offset=st.integers(0, 50),
    kind=st.integers(1, 8),
    run=st.integers(0, 3),
    round=st.integers(0, 5),
    tokens=st.integers(0, 2**32 - 1),
    bytes=st.integers(0, 2**40),
)


def sums(entries: list[Entry]) -> tuple[int, int, int]:
    return len(entries), sum(entry.tokens for entry in entries), sum(entry.bytes for entry in entries)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = _core.Ledger()
        self.rows: list[Entry] = []

    @rule(rows=st.lists(ENTRIES, max_size=6))
    def append(self, rows: list[Entry]) -> None:
        offsets, kinds, runs, rounds, tokens, sizes = ([row[at] for row in rows] for at in range(6))
        self.ledger.append(offsets, kinds, runs, rounds, tokens, sizes)
        self.rows += rows

    @rule(data=st.data(), rows=st.lists(ENTRIES, max_size=3))
    def insert(self, data: st.DataObject, rows: list[Entry]) -> None:
        position = data.draw(st.integers(0, len(self.rows)))
        offsets, kinds, runs, rounds, tokens, sizes = ([row[at] for row in rows] for at in range(6))
        self.ledger.insert(position, offsets, bytes(kinds), runs, rounds, tokens, sizes)
        self.rows[position:position] = rows

    @rule(data=st.data(), row=st.none() | ENTRIES)
    def replace(self, data: st.DataObject, row: Entry | None) -> None:
        ends = sorted(data.draw(st.lists(st.integers(0, len(self.rows)), max_size=6)))
        ranges = list(zip(ends[::2], ends[1::2], strict=False))
        position = data.draw(st.integers(0, len(self.rows)))
        gone = {at for start, end in ranges for at in range(start, end)}
        removed = self.ledger.replace(ranges, position if row else None, row)
        assert removed == sums([self.rows[at] for at in gone])
        before = [row for at, row in enumerate(self.rows) if at not in gone and at < position]
        after = [row for at, row in enumerate(self.rows) if at not in gone and at >= position]
        self.rows = [*before, *([row] if row else []), *after]

    @invariant()
    def is_the_list(self) -> None:
        columns = [list(column) for column in self.ledger.slice()]
        assert columns == [[row[at] for row in self.rows] for at in range(6)]
        assert (len(self.ledger), self.ledger.total_tokens(), self.ledger.total_bytes()) == sums(self.rows)
        for run in range(4):
            assert self.ledger.totals_by_run(run) == sums([row for row in self.rows if row.run == run])
        for kind in range(1, 9):
            assert self.ledger.totals_by_kind(kind) == sums([row for row in self.rows if row.kind == kind])
        for at in range(len(self.rows) + 1):
            assert self.ledger.suffix_totals(at) == sums(self.rows[at:])
        offsets = [row.offset for row in self.rows]
        for offset in range(51):
            position = self.ledger.position(offset)
            assert (position is None) == (offset not in offsets)
            assert position is None or offsets[position] == offset


TestLedger = LedgerMachine.TestCase
