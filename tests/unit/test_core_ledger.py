"""The ledger of an active transcript: list order, sums, and what it refuses."""

import resource
from pathlib import Path

import pytest
from foldline import _core

Columns = tuple[list[int], bytes, list[int], list[int], list[int], list[int]]


STATM = Path("/proc/self/statm")


def resident() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def ledger_of(count: int) -> _core.Ledger:
    ledger = _core.Ledger()
    rows = range(1, count + 1)
    ledger.append(list(rows), bytes(3 for _ in rows), [1] * count, [0] * count, [10] * count, [100] * count)
    return ledger


def test_a_summary_stands_in_an_old_place_with_a_new_offset() -> None:
    ledger = ledger_of(5)
    assert ledger.replace([(1, 4)], 1, (6, 7, 0, 0, 3, 30)) == (3, 30, 300)
    offsets, kinds, runs, _, tokens, sizes = ledger.slice()
    assert (offsets, kinds, runs) == ([1, 6, 5], bytes([3, 7, 3]), [1, 0, 1])
    assert (sum(tokens), sum(sizes)) == (ledger.total_tokens(), ledger.total_bytes()) == (23, 230)
    assert [ledger.position(offset) for offset in (1, 5, 6, 2)] == [0, 2, 1, None]
    assert ledger.totals_by_run(1) == (2, 20, 200)
    assert ledger.totals_by_kind(7) == (1, 3, 30)
    assert ledger.suffix_totals(1) == (2, 13, 130)


def test_an_empty_ledger_has_no_sums() -> None:
    ledger = _core.Ledger()
    assert (len(ledger), ledger.total_tokens(), ledger.totals_by_run(1), ledger.position(1)) == (0, 0, (0, 0, 0), None)
    assert ledger.suffix_totals(0) == (0, 0, 0)


def test_removing_all_rows_leaves_none() -> None:
    ledger = ledger_of(4)
    assert ledger.replace([(0, 2), (2, 4)]) == (4, 40, 400)
    assert (len(ledger), ledger.total_bytes()) == (0, 0)


def test_what_it_refuses_changes_nothing() -> None:
    ledger = ledger_of(3)
    before = ledger.slice()
    for call, reason in (
        (lambda: ledger.append([1], b"", [], [], [], []), "LENGTH_MISMATCH"),
        (lambda: ledger.insert(4, [], b"", [], [], [], []), "RANGE_INVALID"),
        (lambda: ledger.replace([(2, 4)]), "RANGE_INVALID"),
        (lambda: ledger.replace([(0, 2), (1, 3)]), "RANGE_INVALID"),
        (lambda: ledger.replace([], 4, (9, 7, 0, 0, 1, 1)), "RANGE_INVALID"),
        (lambda: ledger.slice(2, 1), "RANGE_INVALID"),
        (lambda: ledger.suffix_totals(4), "RANGE_INVALID"),
    ):
        with pytest.raises(_core.CoreError) as raised:
            call()
        assert raised.value.reason == reason
    assert ledger.slice() == before
    with pytest.raises(OverflowError):
        ledger.append([-1], b"\x01", [0], [0], [0], [0])


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from procfs")
def test_a_row_takes_at_most_sixty_bytes() -> None:
    """G14: a session of 1 000 rows is to take little; columns with their growing room, not objects."""
    block = 100_000
    columns = (list(range(block)), bytes(block), [0] * block, [0] * block, [1] * block, [1] * block)
    _core.Ledger().append(*columns)
    ledger = _core.Ledger()
    before = resident()
    for _ in range(11):
        ledger.append(*columns)
    assert (resident() - before) / len(ledger) <= 60
