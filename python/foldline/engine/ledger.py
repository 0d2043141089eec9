"""The call ledger: which calls the folded rounds of the open run made, so that none is made again (F3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from foldline.domain.changes import replace
from foldline.domain.rows import Row, ToolResultRow, calls_of, identity_of
from foldline.domain.session import CALL_FAILED, CALL_RAN, CALL_UNANSWERED, CallState, LedgerCall

ARGUMENTS_CHARS = 240
"""Arguments are kept to this length; longer ones keep their head, size and digest, so that the ledger stays small
in the session's state and unlike calls stay apart."""

CallsByOffset = Mapping[int, tuple[LedgerCall, ...]]
"""Ledger calls of each assistant row, by its offset."""

_LEAD = "Calls already made for the request above, oldest first:"
_WORDS = {
    CALL_RAN: "ran",
    CALL_FAILED: "ran and failed; may be made again",
    CALL_UNANSWERED: "no result came",
}
_SUPERSEDED_FAILURE = "ran and failed; a later one ran"


def calls_of_rounds(rows: Sequence[Row], calls: Sequence[CallState] = ()) -> dict[int, tuple[LedgerCall, ...]]:
    """The calls of every assistant row with what became of them.

    A late result is an outcome like any other, an interim one says that the call runs already.

    Args:
        rows: the active rows, results included.
        calls: the session's call states; they know of answers that are no longer among ``rows``.
    """
    outcomes: dict[tuple[int, str], str] = {(c.offset, c.call_id): CALL_RAN for c in calls if c.answered or c.interim}
    for row in rows:
        body = row.body
        if isinstance(body, ToolResultRow) and body.call_offset is not None:
            outcomes[body.call_offset, body.call_id] = CALL_FAILED if body.is_error else CALL_RAN
    return {
        row.offset: tuple(
            LedgerCall(
                name=call.name,
                arguments_json=shorten_arguments(call.arguments_json),
                outcome=outcomes.get((identity_of(row), call.call_id), CALL_UNANSWERED),
            )
            for call in calls_of(row.body)
        )
        for row in rows
        if calls_of(row.body)
    }


def shorten_arguments(text: str) -> str:
    """Arguments as the ledger keeps them: whole, or their head with size and digest."""
    if len(text) <= ARGUMENTS_CHARS:
        return text
    data = text.encode()
    return f"{text[:ARGUMENTS_CHARS]}… ({len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:12]})"


def merge(earlier: Sequence[LedgerCall], new: Sequence[LedgerCall]) -> tuple[LedgerCall, ...]:
    """One entry a distinct call and outcome, with its count, standing where it was made last (F3)."""
    found: dict[tuple[str, str, str], LedgerCall] = {}
    for call in (*earlier, *new):
        key = (call.name, call.arguments_json, call.outcome)
        known = found.pop(key, None)
        found[key] = replace(call, count=call.count + known.count) if known else call
    return tuple(found.values())


def render(calls: Sequence[LedgerCall], max_tokens: int, count: Callable[[str], int]) -> str:
    """The ledger as text of at most ``max_tokens`` (F3); empty without calls, or where not even a count fits.

    Over the budget the oldest calls that ran become counts per tool, then the oldest unanswered and failed.
    """
    merged = merge((), calls)
    if not merged:
        return ""
    ran = [i for i, c in enumerate(merged) if c.outcome == CALL_RAN]
    ran_last = {(merged[i].name, merged[i].arguments_json): i for i in ran}
    rest = [i for i, c in enumerate(merged) if c.outcome != CALL_RAN]
    order = ran + rest
    # A line takes a token at least: no more of them are ever tried, however many calls there are.
    low, high = max(0, len(order) - max_tokens), len(order)
    while low < high:
        middle = (low + high) // 2
        if count(_text(merged, ran_last, frozenset(order[:middle]))) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    # Token counts do not shrink with every single collapsed line: the found place is tried, then the next.
    for collapsed in range(low, len(order) + 1):
        text = _text(merged, ran_last, frozenset(order[:collapsed]))
        if count(text) <= max_tokens:
            return text
    total = sum(c.count for c in merged)
    shortest = f"{total} calls were already made for the request above."
    return shortest if count(shortest) <= max_tokens else ""


def _text(calls: Sequence[LedgerCall], ran_last: Mapping[tuple[str, str], int], collapsed: frozenset[int]) -> str:
    lines = [_LEAD]
    if collapsed:
        lines.append("- before those below: " + _counts([calls[i] for i in sorted(collapsed)]))
    for index, call in enumerate(calls):
        if index in collapsed:
            continue
        words = _WORDS[call.outcome]
        if call.outcome == CALL_FAILED and ran_last.get((call.name, call.arguments_json), -1) > index:
            words = _SUPERSEDED_FAILURE
        times = f" ×{call.count}" if call.count > 1 else ""
        lines.append(f"- {call.name}({_one_line(call.arguments_json)}){times}: {words}")
    return "\n".join(lines)


def _counts(calls: Sequence[LedgerCall]) -> str:
    totals: dict[tuple[str, str], int] = {}
    for call in calls:
        totals[call.name, call.outcome] = totals.get((call.name, call.outcome), 0) + call.count
    short = {outcome: words.split(";")[0] for outcome, words in _WORDS.items()}
    return "; ".join(f"{name} ×{total} {short[outcome]}" for (name, outcome), total in totals.items())


def _one_line(arguments: str) -> str:
    return " ".join(arguments.split())
