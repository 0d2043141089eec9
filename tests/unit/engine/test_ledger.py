"""F3: the call ledger."""

from __future__ import annotations

import pytest
from foldline.domain.rows import TextBlock
from foldline.domain.session import CALL_FAILED, CALL_RAN, CALL_UNANSWERED, LedgerCall
from foldline.engine.ledger import ARGUMENTS_CHARS, calls_of_rounds, merge, render
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import Host, count

ROOMY = 10_000


def ran(name: str = "read", arguments: str = "{}", times: int = 1) -> LedgerCall:
    return LedgerCall(name, arguments, CALL_RAN, times)


def failed(name: str = "read", arguments: str = "{}") -> LedgerCall:
    return LedgerCall(name, arguments, CALL_FAILED)


def unanswered(name: str = "read", arguments: str = "{}") -> LedgerCall:
    return LedgerCall(name, arguments, CALL_UNANSWERED)


def test_outcomes_of_calls() -> None:
    host = Host()
    host.user()
    host.prepare()
    calls = [host.call(name) for name in ("ok", "bad", "none", "interim", "late")]
    row = host.answer(*calls)
    host.result(calls[0].call_id)
    host.result(calls[1].call_id, is_error=True)
    host.result(calls[3].call_id, interim=True)
    host.prepare()
    host.result(calls[4].call_id)
    assert host.rows[-1].body.late  # type: ignore[union-attr]
    found = calls_of_rounds(host.rows, host.session.calls)
    assert {c.name: c.outcome for c in found[row.offset]} == {
        "ok": CALL_RAN,
        "bad": CALL_FAILED,
        "none": CALL_UNANSWERED,
        "interim": CALL_RAN,
        "late": CALL_RAN,
    }


def test_a_final_error_after_an_interim_result_counts() -> None:
    host = Host()
    host.user()
    host.prepare()
    call = host.call()
    row = host.answer(call)
    host.result(call.call_id, interim=True)
    host.result(call.call_id, is_error=True)
    assert calls_of_rounds(host.rows)[row.offset][0].outcome == CALL_FAILED


def test_ids_used_twice_keep_their_own_outcome() -> None:
    """R3."""
    host = Host()
    host.user()
    host.prepare()
    first = host.answer(host.call(call_id="c"))
    host.result("c", is_error=True)
    host.prepare()
    second = host.answer(host.call(call_id="c"))
    host.result("c")
    found = calls_of_rounds(host.rows)
    assert [found[r.offset][0].outcome for r in (first, second)] == [CALL_FAILED, CALL_RAN]


def test_rows_without_calls_have_no_entry() -> None:
    host = Host()
    host.user()
    host.prepare()
    host.answer(TextBlock("hi"))
    assert calls_of_rounds(host.rows) == {}


def test_long_arguments_keep_head_size_and_digest() -> None:
    host = Host()
    host.user()
    host.prepare()
    text = '{"content": "' + "é" * 1_000 + '"}'
    row = host.answer(host.call("write", text), host.call("write", text + " "))
    one, other = calls_of_rounds(host.rows)[row.offset]
    assert one.arguments_json.startswith(text[:ARGUMENTS_CHARS])
    assert f"({len(text.encode())} bytes" in one.arguments_json
    assert one.arguments_json != other.arguments_json


MERGES = [
    ("identical calls merge with a count", [ran(), ran()], [ran(times=2)]),
    ("across folds", [ran(times=3), failed(), ran()], [failed(), ran(times=4)]),
    ("other arguments do not", [ran(), ran(arguments='{"a":1}')], [ran(), ran(arguments='{"a":1}')]),
    ("other outcomes do not", [ran(), failed(), unanswered()], [ran(), failed(), unanswered()]),
]


@pytest.mark.parametrize(("rule", "calls", "merged"), MERGES, ids=[m[0] for m in MERGES])
def test_merge(rule: str, calls: list[LedgerCall], merged: list[LedgerCall]) -> None:
    for cut in range(len(calls) + 1):
        assert list(merge(merge((), calls[:cut]), calls[cut:])) == merged


def test_a_ledger_names_each_call_and_what_became_of_it() -> None:
    text = render([ran("read", '{"path": "a"}', 2), failed("run"), unanswered("ask")], ROOMY, count)
    assert text.splitlines()[1:] == [
        '- read({"path": "a"}) ×2: ran',
        "- run({}): ran and failed; may be made again",
        "- ask({}): no result came",
    ]


def test_a_failure_that_was_made_good_is_not_offered_again() -> None:
    assert "may be made again" not in render([failed(), ran()], ROOMY, count)
    assert "may be made again" in render([ran(), failed()], ROOMY, count)


def test_no_calls_no_ledger() -> None:
    assert render([], ROOMY, count) == ""


def test_over_the_budget_the_oldest_become_counts_and_failed_calls_go_last() -> None:
    calls = [failed("deploy"), unanswered("ask"), *(ran("read", f'{{"path": "{i}"}}') for i in range(50))]
    text = render(calls, 100, count)
    lines = text.splitlines()
    assert count(text) <= 100
    assert lines[1].startswith("- before those below: read ×")
    assert "- deploy({}): ran and failed; may be made again" in lines
    assert "- ask({}): no result came" in lines
    assert lines[-1] == '- read({"path": "49"}): ran'
    assert '- read({"path": "0"}): ran' not in lines


def test_failed_calls_become_counts_when_nothing_else_is_left() -> None:
    text = render([failed("deploy", f'{{"n": "{i:050}"}}') for i in range(9)], 60, count)
    assert "deploy ×" in text
    assert "ran and failed" in text


CALLS = st.lists(
    st.builds(
        LedgerCall,
        st.sampled_from(["read", "write", "run"]),
        st.text(max_size=20),
        st.sampled_from([CALL_RAN, CALL_FAILED, CALL_UNANSWERED]),
        st.integers(1, 3),
    ),
    max_size=30,
)


@given(CALLS, st.integers(1, 400))
def test_a_ledger_keeps_to_its_budget_and_loses_no_call(calls: list[LedgerCall], budget: int) -> None:
    text = render(calls, budget, count)
    assert count(text) <= budget
    assert text == render(calls, budget, count)
    if text.startswith("Calls already made"):
        named = sum(int(n) if n else 1 for n in _times(text))
        assert named == sum(c.count for c in calls)


def _times(text: str) -> list[str]:
    """The counts in a ledger: each line's, and each of the collapsed ones."""
    found: list[str] = []
    for line in text.splitlines()[1:]:
        if line.startswith("- before those below: "):
            found += [part.split("×")[1].split(" ")[0] for part in line.split("; ") if "×" in part]
        else:
            tail = line.rsplit(")", 1)[1]
            found.append(tail.split("×")[1].split(":")[0] if "×" in tail else "")
    return found


@given(CALLS)
def test_merging_conserves_counts(calls: list[LedgerCall]) -> None:
    merged = merge((), calls)
    assert sum(c.count for c in merged) == sum(c.count for c in calls)
    assert merge((), merged) == merged
