"""Candidate lines of the six sections, built from what was read (S8)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from foldline.domain.session import CALL_FAILED, CALL_RAN, CALL_UNANSWERED
from foldline.summarize.constraints import Constraint
from foldline.summarize.coverage import mentions
from foldline.summarize.earlier import CARRIED, CarriedLine
from foldline.summarize.identifiers import Identifier, IdentifierKind, find_identifiers
from foldline.summarize.outcomes import changes_something, gist, only_reads
from foldline.summarize.packing import ACTIONS, DECISIONS, DETAILS, ERRORS, GOALS, OPEN, Line
from foldline.summarize.reading import Call, Reading, Request
from foldline.summarize.salience import Sentence, is_filler, mmr, readable, weigh, words_of
from foldline.summarize.text import clip, clip_middle, one_line, sentences

_DECIDES = re.compile(
    r"\b(?:decid\w+|decision|chose|choose|chosen|instead of|rather than|because|therefore|so that|root cause|turns out|the reason|"
    r"caused by|due to|agreed|we(?:['’]ll| will) (?:use|keep|go)|going with|switch(?:ed)? to|trade-?off|the (?:issue|problem|fix|plan|"
    r"approach|solution) (?:is|was)|means that|approach|recommend|proposal|weil|deshalb|entschieden|stattdessen|parce que|donc|"
    r"porque|entonces|decidimos|потому что|решили)\b|因为|所以|决定|原因|なので|ため|決定|때문",
    re.IGNORECASE,
)
_AHEAD = re.compile(
    r"\b(?:todo|to do|next steps?|remaining|still (?:need|have|to|missing)|not yet|later|follow[- ]?up|pending|blocked|waiting|open question|"
    r"left to|outstanding|will (?:then|need)|should (?:then|also)|offen|nächste|reste à|pendiente|falta)\b|下一步|待办|尚未|次に|残り",
    re.IGNORECASE,
)
_ASKS = re.compile(r"[?？]\W*$")
_OUTCOME_CUE = re.compile(
    r"\b(?:done|fixed|created|added|removed|moved|updated|implemented|committed|pushed|works?|passes|passed|verified|confirmed|complete\w*|"
    r"booked|cancelled|canceled|refunded|changed|deployed|found|now|all)\b",
    re.IGNORECASE,
)
_TRIVIAL = re.compile(r"^\W*(?:ok(?:ay)?|yes|yep|yo|no|sure|thanks?|thank you|continue|go on|wow|cool|nice|great|ls|hi|hello)\W*$", re.IGNORECASE)
LONGEST_LIST = 40


def request_lines(reading: Reading, last: Request | None) -> list[Line]:
    """Earlier requests in the user's words, the first before the others, short confirmations last."""
    lines = []
    others = [r for r in reading.requests if r is not last and r.text]
    for index, request in enumerate(others):
        who = "Asked" if request.speaker == "user" else f"Notice {request.speaker}"
        text = one_line(request.text)
        shown = clip(text, 320) if len(text) <= 420 else clip(" ".join(sentences(request.text)[:3]) or text, 320)
        worth = 0.75 if index == 0 else 0.35 + 0.25 * (index + 1) / len(others)
        if _TRIVIAL.match(text):
            worth = 0.02
        elif len(text) < 25:
            worth -= 0.2
        if request.speaker != "user":
            worth -= 0.2
        lines.append(Line(GOALS, f'- {who} [#{request.offset}]: "{shown}"', worth, (2, request.offset)))
    return lines


def last_request_line(request: Request, room: int) -> Line:
    """The last request verbatim in about ``room`` characters, and whether it was answered (XG11)."""
    state = f"answered in [#{request.answered}]" if request.answered else "no closing answer among these rows"
    who = "Last request" if request.speaker == "user" else f"Last notice {request.speaker}"
    text = clip_middle(request.text, room)
    quoted = f'"""\n{text}\n"""' if "\n" in text else f'"{text}"'
    return Line(GOALS, f"- {who} [#{request.offset}] ({state}): {quoted}", 9.0, (3, request.offset))


def constraint_line(constraint: Constraint, age: int) -> Line:
    """A constraint in the user's words; the newest have the higher value, the oldest give way (F8)."""
    where = f" [#{constraint.offset}]" if constraint.offset else ""
    return Line(GOALS, f'- The user requires{where}: "{constraint.text}"', 2.0 + 1 / (2 + age), (0, -age))


def decision_lines(reading: Reading, identifiers: Sequence[Identifier], limit: int) -> tuple[list[Line], list[Line]]:
    """Decisions from what both sides said, and further sentences worth keeping as results."""
    weights = {i.text: i.weight for i in identifiers}
    pool: list[Sentence] = []
    kind: dict[int, str] = {}
    for statement in reading.statements:
        split = [s for s in sentences(statement.text) if readable(s)]
        for index, text in enumerate(split[:60]):
            score = 0.35 * (bool(_DECIDES.search(text))) + 0.15 * statement.final
            score += min(0.3, 0.04 * sum(weights.get(t, 0.0) for t in {t for t, _ in find_identifiers(text)}))
            outcome = statement.final and bool(_OUTCOME_CUE.search(text))
            score += 0.1 * outcome + 0.1 * (index == 0) - 0.5 * bool(_ASKS.search(text)) - 0.2 * text.endswith(":")
            sentence = Sentence(statement.offset, text, score)
            kind[id(sentence)] = "decision" if _DECIDES.search(text) else "outcome" if outcome else ""
            pool.append(sentence)
    weigh(pool, reading.last or 1)
    decisions, results = [], []
    for rank, sentence in enumerate(mmr(pool, limit)):
        worth = max(0.05, 0.8 * (1 - rank / limit))
        text = f"- [#{sentence.offset}] {clip(sentence.text, 300)}"
        if kind[id(sentence)] == "decision":
            decisions.append(Line(DECISIONS, text, worth, (1, sentence.offset)))
        elif kind[id(sentence)] == "outcome":
            results.append(Line(ACTIONS, text, worth, (1, sentence.offset)))
        else:
            decisions.append(Line(DECISIONS, text, worth * 0.5, (1, sentence.offset)))
    return decisions, results


def answer_lines(reading: Reading) -> list[Line]:
    """Short answers of the user to a question: decisions that only read with the question before them."""
    lines = []
    statements = {s.offset: s for s in reading.statements}
    offsets = sorted(statements)
    position = 0
    for request in reading.requests:
        while position < len(offsets) and offsets[position] < request.offset:
            position += 1
        if not position or request.speaker != "user" or not 1 < len(request.text) <= 300:
            continue
        asked = [s for s in sentences(statements[offsets[position - 1]].text) if _ASKS.search(s)]
        if asked and not _ASKS.search(request.text):
            text = f'- [#{request.offset}] To "{clip(asked[-1], 160)}" the user said: "{clip(one_line(request.text), 200)}"'
            lines.append(Line(DECISIONS, text, 0.55, (1, request.offset)))
    return lines


def action_lines(reading: Reading) -> list[Line]:
    """Calls with outcomes: what changed something one by one, commands by their last outcome, reads as a list."""
    calls = reading.calls
    if not calls:
        return []
    names = Counter(c.name for c in calls)
    failed = sum(c.outcome == CALL_FAILED for c in calls)
    told = ", ".join(f"{name} {n}" for name, n in names.most_common(12))
    tail = f"; {failed} failed" if failed else ""
    lines = [Line(ACTIONS, f"- {len(calls)} calls: {told}{tail}", 0.95, (0, 0))]
    groups: dict[tuple[str, str], list[Call]] = {}
    reads: dict[str, int] = {}
    for call in calls:
        if only_reads(call.name, call.brief) and call.outcome == CALL_RAN:
            target = call.target or call.brief
            reads[target] = reads.pop(target, 0) + 1
        groups.setdefault((call.name, call.target or call.brief), []).append(call)
    total = len(calls)
    for group in groups.values():
        last = group[-1]
        changing = changes_something(last.name, last.brief)
        reading_only = only_reads(last.name, last.brief)
        if last.outcome != CALL_RAN:
            continue
        told = gist(last.result, False) or "ran"
        times = f" (×{len(group)})" if len(group) > 1 else ""
        worth = (0.6 if changing else 0.15 if reading_only else 0.35) + 0.25 * last.order / total + min(0.1, 0.02 * len(group))
        lines.append(Line(ACTIONS, f"- [#{last.offset}] {clip(last.brief, 160)}{times}: {told}", min(worth, 0.94), (2, last.offset)))
    if len(reads) > 1:
        newest = list(reads)[::-1][:LONGEST_LIST]
        for size, worth in ((8, 0.6), (LONGEST_LIST, 0.0)):
            shown = ", ".join(clip(t, 80) + (f" ×{reads[t]}" if reads[t] > 1 else "") for t in newest[:size])
            if worth:
                lines.append(Line(ACTIONS, f"- Looked at, newest first: {shown}", worth, (3, 0)))
    return lines


def error_lines(reading: Reading) -> list[Line]:
    """Failures with what followed: the words after them, and whether the same thing worked later."""
    lines = []
    calls = reading.calls
    seen: dict[str, int] = {}
    failures = [c for c in calls if c.outcome == CALL_FAILED]
    statements = reading.statements
    position = 0
    for rank, call in enumerate(failures):
        told = gist(call.result, True, 200) or "failed without a message"
        key = f"{call.name}|{re.sub(r'[0-9]+', '0', told)[:80]}"
        while position < len(statements) and statements[position].offset <= call.offset:
            position += 1
        said = ""
        if position < len(statements) and statements[position].offset - call.offset < 12:
            said = next((s for s in sentences(statements[position].text) if readable(s)), "")
        later = next((c for c in calls[call.order + 1 :] if c.name == call.name and c.target == call.target), None)
        after = next((c for c in calls[call.order + 1 :] if c.offset > call.offset), None)
        text = f"- [#{call.result_offset}] {clip(call.brief, 120)} failed: {told}"
        if said:
            text += f' — then: "{clip(said, 160)}"'
        if later is not None and later.outcome == CALL_RAN:
            text += f"; worked in [#{later.offset}]"
        elif not said and after is not None:
            text += f"; followed by {clip(after.brief, 80)}"
        worth = 0.4 + 0.4 * (rank + 1) / len(failures)
        if key in seen:
            worth = 0.1
        seen[key] = rank
        lines.append(Line(ERRORS, text, worth, (1, call.result_offset)))
    for request in reading.requests:
        if request.speaker == "user" and re.search(r"Traceback \(most recent|^\s*\w*(?:Error|Exception)\b:", request.text, re.MULTILINE):
            told = gist(request.text, True, 200)
            text = f'- [#{request.offset}] reported by the user: {told}'
            reply = next((s for s in sentences(request.reply) if readable(s) and not is_filler(s)), "")
            if reply:
                text += f' — then: "{clip(reply, 160)}"'
            lines.append(Line(ERRORS, text, 0.7, (1, request.offset)))
    return lines


def open_lines(reading: Reading, last: Request | None) -> list[Line]:
    """What was left open: unanswered calls, questions to the user, announced steps of the last turns."""
    lines = []
    for call in reading.calls:
        if call.outcome == CALL_UNANSWERED:
            lines.append(Line(OPEN, f"- [#{call.offset}] {clip(call.brief, 160)}: no result among these rows", 0.9, (1, call.offset)))
    recent = reading.statements[-6:]
    for back, statement in enumerate(reversed(recent)):
        for text in sentences(statement.text):
            asks, ahead = bool(_ASKS.search(text)), bool(_AHEAD.search(text))
            closing = is_filler(text) and back == 0 and not statement.final
            if len(text) < 12 or not (asks or ahead or closing):
                continue
            answered = statement.offset < (last.offset if last else 0)
            worth = (0.85 if not answered else 0.25) - 0.1 * back
            lines.append(Line(OPEN, f"- [#{statement.offset}] {clip(text, 260)}", max(worth, 0.05), (2, statement.offset)))
    return lines


def detail_lines(identifiers: Sequence[Identifier]) -> list[Line]:
    """Identifiers by salience, grouped by kind, in lines short enough that a small budget takes some of each."""
    titles = {
        IdentifierKind.PATH: "Paths", IdentifierKind.URL: "URLs", IdentifierKind.ID: "Ids", IdentifierKind.CODE: "Codes",
        IdentifierKind.NAME: "Names", IdentifierKind.NUMBER: "Numbers",
    }  # fmt: skip
    lines = []
    most = max((i.weight for i in identifiers if i.kind in titles), default=1.0)
    for place, (kind, title) in enumerate(titles.items()):
        own = [i for i in identifiers if i.kind == kind]
        if kind == IdentifierKind.PATH:
            own = _without_tails(own)
        size = 6
        for start in range(0, len(own), size):
            part = own[start : start + size]
            worth = 0.9 * part[0].weight / most
            text = ", ".join(i.text for i in part)
            lines.append(Line(DETAILS, f"- {title}: {text}", worth, (1 + place, start)))
    return lines


def _without_tails(paths: list[Identifier]) -> list[Identifier]:
    """Leaves out a path that a listed one ends with: the longer names both."""
    kept: list[Identifier] = []
    for item in paths:
        if not any(k.text != item.text and mentions(k.text, item) for k in kept):
            kept.append(item)
    longer = {k.text for k in kept}
    return [k for k in kept if not any(o != k.text and o.endswith("/" + k.text) for o in longer)]


def carried(lines: Sequence[CarriedLine]) -> list[Line]:
    """Lines of earlier summaries, those that name identifiers before those that only tell."""
    found = []
    total = len(lines) or 1
    for line in lines:
        names = len({t for t, _ in find_identifiers(line.text)})
        worth = min(0.6, 0.25 + 0.05 * names + 0.15 * line.order / total)
        found.append(Line(line.section, f"- {CARRIED}{line.text}", worth, (-1, line.order), line.age))
    return found


__all__ = [
    "action_lines", "answer_lines", "carried", "constraint_line", "decision_lines", "detail_lines", "error_lines",
    "last_request_line", "open_lines", "request_lines", "words_of",
]  # fmt: skip
