"""Actions and errors: calls with outcomes, failures with what followed (S8)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict

from foldline.domain.session import CALL_FAILED, CALL_RAN
from foldline.summarize.cues import PASTED_ERROR
from foldline.summarize.outcomes import (
    changes_something,
    gist,
    is_path,
    looks_failed,
    only_reads,
    prepares_only,
    says_nothing,
)
from foldline.summarize.packing import ACTIONS, ERRORS, Line
from foldline.summarize.reading import Call, Reading, Statement
from foldline.summarize.salience import readable
from foldline.summarize.style import Style, is_filler, pattern, shape
from foldline.summarize.text import clip

_ALIKE = 3
_SOON = 12
_LISTED, _A_LINE, _TARGET = 30, 6, 70


def action_lines(reading: Reading, style: Style) -> list[Line]:
    """Calls with outcomes: what changed something one by one, files and reads as lists, loops by their last call."""
    calls = reading.calls
    if not calls:
        return []
    lines = [_count_line(calls, style)]
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.name, call.target or call.brief), []).append(call)
    ran = sorted((g for g in groups.values() if g[-1].outcome == CALL_RAN), key=lambda g: g[-1].order)
    alike = Counter(pattern(g[-1].brief) for g in ran)
    met: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    looked: Counter[str] = Counter()
    for group in ran:
        last = group[-1]
        told = gist(last.result, False, style.width * 2 // 3)
        target = clip(style.paths.brief(f"- {last.target}")[2:], _TARGET)
        reads = only_reads(last.name, last.brief)
        if reads:
            looked[target] += len(group) * (" " not in target)
        elif is_path(last.target) and says_nothing(told, last.target):
            changed[target] += len(group)
            continue
        kind = pattern(last.brief)
        met[kind] += 1
        if alike[kind] > _ALIKE and met[kind] < alike[kind]:
            continue
        times = f" (×{len(group)})" if len(group) > 1 else ""
        times = f" (the last of {alike[kind]} alike)" if alike[kind] > _ALIKE else times
        told = "" if says_nothing(told, "") else f": {told}"
        worth = 0.3 + 0.3 * changes_something(last.name, last.brief) - 0.2 * reads
        worth += 0.25 * last.order / len(calls) + 0.05 * bool(told) - 0.3 * prepares_only(last.brief)
        lines.append(Line(ACTIONS, f"- [#{last.offset}] {style.call(last)}{times}{told}", worth, (2, last.offset)))
    lines += _listing("Changed, newest first", changed, 0.9, 3)
    return lines + _listing("Looked at, newest first", looked, 0.4, 4)


def _count_line(calls: list[Call], style: Style) -> Line:
    names = Counter(c.name for c in calls).most_common(max(3, style.width // 24))
    failed = sum(c.outcome == CALL_FAILED for c in calls)
    tail = f"; {failed} failed" if failed else ""
    return Line(ACTIONS, f"- {len(calls)} calls: {', '.join(f'{n} {k}' for n, k in names)}{tail}", 0.95, (0, 0))


def _listing(title: str, targets: Counter[str], worth: float, group: int) -> list[Line]:
    """Targets in lines of six, the newest first; only the first lines are worth much."""
    named = [t + (f" ×{n}" if n > 1 else "") for t, n in reversed(targets.items()) if t and n]
    return [
        Line(ACTIONS, f"- {title}: {', '.join(named[i : i + _A_LINE])}", worth / (1 + i / _A_LINE), (group, i))
        for i in range(0, min(len(named), _LISTED), _A_LINE)
    ]


def error_lines(reading: Reading, style: Style) -> list[Line]:
    """Failures with what followed: the words after them, and whether the same thing worked later."""
    calls = reading.calls
    failures = [c for c in calls if c.outcome == CALL_FAILED]
    worked: dict[tuple[str, str], list[int]] = defaultdict(list)
    for call in calls:
        if call.outcome == CALL_RAN:
            worked[(call.name, call.target)].append(call.order)
    offsets = [s.offset for s in reading.statements]
    newest = {f"{c.name}|{shape(gist(c.result, True))}": c for c in failures}
    lines = []
    for rank, call in enumerate(sorted(newest.values(), key=lambda c: c.order)):
        told = gist(call.result, True, style.width) or "no message"
        text = f"- [#{call.result_offset}] {style.aside(style.paths.brief(call.brief))} failed: {told}"
        position = bisect_right(offsets, call.offset)
        soon = reading.statements[position : position + 1]
        said = _first_words(soon[0]) if soon and soon[0].offset - call.offset < _SOON else ""
        if said:
            text += f' — then: "{style.aside(said)}"'
        orders = worked[(call.name, call.target)]
        later = bisect_right(orders, call.order)
        if later < len(orders):
            text += f"; worked in [#{calls[orders[later]].offset}]"
        elif not said and call.order + 1 < len(calls):
            text += f"; followed by {style.aside(style.paths.brief(calls[call.order + 1].brief))}"
        worth = 0.4 + 0.4 * (rank + 1) / len(newest) if told != "no message" else 0.1
        lines.append(Line(ERRORS, text, worth, (1, call.result_offset)))
    return lines + _reported_lines(reading, style)


def _reported_lines(reading: Reading, style: Style) -> list[Line]:
    """Errors that a user pasted, with the first words of the answer."""
    lines = []
    for request in reading.requests:
        if request.speaker == "user" and PASTED_ERROR.search(request.text):
            text = f"- [#{request.offset}] reported by the user: {gist(request.text, True, style.width)}"
            said = _first_words(request.reply) if request.reply else ""
            text += f' — then: "{style.quoted(said)}"' if said else ""
            lines.append(Line(ERRORS, text, 0.7, (1, request.offset)))
    return lines


def notice_lines(reading: Reading, style: Style) -> list[Line]:
    """What notices told beside a user's requests: those that read like a failure are errors, the others results."""
    notices = [r for r in reading.requests if r.speaker != "user" and r.text]
    if len(notices) == len(reading.requests):
        return []
    told = {request.offset: (looks_failed(request.text), request) for request in notices}
    newest = {shape(gist(request.text, failed)): offset for offset, (failed, request) in told.items()}
    lines = []
    for offset in newest.values():
        failed, request = told[offset]
        text = f"- [#{offset}] notice {request.speaker}: {gist(request.text, failed, style.width)}"
        worth = 0.2 + 0.3 * offset / max(1, reading.last) + 0.2 * failed
        lines.append(Line(ERRORS if failed else ACTIONS, text, worth, (1, offset)))
    return lines


def _first_words(statement: Statement) -> str:
    return next((s for s in statement.sentences if readable(s) and not is_filler(s)), "")
