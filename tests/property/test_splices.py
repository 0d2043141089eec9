"""W1: a host that applies the splices holds the server's list."""

from __future__ import annotations

from foldline.engine.splices import Change, changes
from hypothesis import given
from hypothesis import strategies as st

LISTS = st.lists(st.integers(1, 40), unique=True, max_size=40)


def applied(before: list[int], found: tuple[Change, ...]) -> list[int]:
    after = list(before)
    for change in found:
        after[change.position : change.position + change.deleted] = change.inserted
    return after


def test_w1_a_fold_in_the_middle_and_rows_at_the_end() -> None:
    found = changes([1, 2, 3, 4, 5], [1, 9, 4, 5, 6, 7])
    assert found == (Change(5, 0, (6, 7)), Change(1, 2, (9,)))


def test_w1_equal_lists_need_no_change() -> None:
    assert changes([1, 2], [1, 2]) == ()


@given(LISTS, LISTS)
def test_w1_any_list_becomes_any_other(before: list[int], after: list[int]) -> None:
    assert applied(before, changes(before, after)) == after


@given(LISTS, LISTS)
def test_w1_positions_are_of_the_old_list_highest_first(before: list[int], after: list[int]) -> None:
    found = changes(before, after)
    positions = [c.position for c in found]
    assert positions == sorted(set(positions), reverse=True)
    assert all(c.position + c.deleted <= len(before) for c in found)


@given(LISTS, st.data())
def test_w1_a_row_that_stays_is_never_sent_again(before: list[int], data: st.DataObject) -> None:
    kept = [o for o in before if data.draw(st.booleans())]
    sent = {o for c in changes(before, [*kept, 100, 101]) for o in c.inserted}
    assert sent == {100, 101}
