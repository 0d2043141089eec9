"""K4: the marks of an edit's results."""

from __future__ import annotations

from collections import Counter

from foldline.commands.usage_marks import restated
from foldline.domain.rows import Row, TextBlock, ToolResultRow, UserRow
from hypothesis import given
from hypothesis import strategies as st

IDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8)


def results(ids: list[str], marks: list[str]) -> list[Row]:
    said = TextBlock("x")
    rows = [
        Row(n + 1, ToolResultRow(i, (said,), usage_mark=m)) for n, (i, m) in enumerate(zip(ids, marks, strict=True))
    ]
    return [*rows, Row(99, UserRow((said,)))]


@given(IDS, IDS)
def test_k4_no_mark_is_given_twice_invented_or_moved_to_another_call(old: list[str], new: list[str]) -> None:
    before = results(old, [f"{n + 1}" for n in range(len(old))])
    after = restated(results(new, [""] * len(new)), before)
    assert [type(r.body) for r in after] == [ToolResultRow] * len(new) + [UserRow]
    made = [(r.body.call_id, r.body.usage_mark) for r in after if isinstance(r.body, ToolResultRow)]
    assert [i for i, _ in made] == new
    known = [(i, m) for i, m in made if m != "unavailable"]
    had = [(r.body.call_id, r.body.usage_mark) for r in before if isinstance(r.body, ToolResultRow)]
    assert len(set(known)) == len(known)
    assert set(known) <= set(had)
    assert Counter(i for i, _ in known) == Counter(old) & Counter(new)
    for call_id in "abc":
        order = [int(m) for i, m in known if i == call_id]
        assert order == sorted(order)
