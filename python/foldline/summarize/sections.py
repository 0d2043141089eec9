"""Candidate lines of the six sections, built from what was read (S8)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foldline.domain.session import CALL_FAILED, CALL_RAN, CALL_UNANSWERED
from foldline.summarize.constraints import Constraint
from foldline.summarize.earlier import CARRIED, CarriedLine
from foldline.summarize.identifiers import Identifier, IdentifierKind, find_identifiers
from foldline.summarize.outcomes import changes_something, gist, is_path, only_reads, says_nothing
from foldline.summarize.packing import ACTIONS, DECISIONS, DETAILS, ERRORS, GOALS, OPEN, Line
from foldline.summarize.paths import Shortener
from foldline.summarize.reading import Call, Reading, Request
from foldline.summarize.salience import Sentence, is_filler, mmr, readable, weigh, words_of
from foldline.summarize.text import clip, clip_middle, one_line, quote, sentences

_DECIDES = re.compile(
    r"\b(?:decid\w+|decision|chose|choose|chosen|instead of|rather than|because|therefore|so that|root cause|turns out|the reason|"
    r"caused by|due to|agreed|we(?:['’]ll| will) (?:use|keep|go)|going with|switch(?:ed)? to|trade-?off|the (?:issue|problem|fix|plan|"
    r"approach|solution) (?:is|was)|means that|approach|recommend|proposal|weil|deshalb|entschieden|stattdessen|parce que|donc|"
    r"porque|entonces|decidimos|потому что|решили)\b|因为|所以|决定|原因|なので|ため|決定|때문",
    re.IGNORECASE,
)
_SETTLES = re.compile(
    r"\b(?:root cause|(?:real|actual) (?:cause|reason|problem|bug)|decided|ruled out|proven|confirmed|turns out|we agreed|conclusion|"
    r"Ursache|causa|cause première)\b|根本原因|原因は",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(r"(?:now |next,? |first,? |then )?(?:i|we)\b", re.IGNORECASE)
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
_TRIVIAL = re.compile(r"^\W*(?:ok(?:ay)?|yes|yep|yo|no|sure|thanks?|thank(?:s| you)[^.!?]{0,40}|continue|go on|wow|cool|nice|great|ls|hi|hello)\W*$", re.IGNORECASE)
_YES_NO = re.compile(r"\W*(?:yes|yep|no|nope|nah|ok|go ahead|do it|leave|keep|ja|nein|oui|non|sí|да|нет|是|不|はい|いいえ|\d)\b", re.IGNORECASE)
_SUBSTANTIAL = 0.35
_ALIKE = 3
_SHORT_SENTENCE = 40
_ROOT_PAYS = 512
_LOGS = re.compile(r"Traceback \(most recent|^\s*\w*(?:Error|Exception)\b:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Style:
    """How much room lines have: ``width`` in characters of an ordinary quote, and how paths are written."""

    width: int
    paths: Shortener


def style_for(room: int, identifiers: Sequence[Identifier]) -> Style:
    """Lines grow with the budget, so that a small one still holds some of each section."""
    return Style(max(80, min(260, 60 + room // 16)), Shortener(identifiers if room >= _ROOT_PAYS else ()))


def substance(request: Request) -> float:
    """How much a request says by itself, in [0, 1]: confirmations and pasted output say little."""
    text = one_line(request.text)
    if _TRIVIAL.match(text):
        return 0.0
    words = len(words_of(text))
    letters = sum(c.isalpha() or c.isspace() for c in text[:2000]) / max(1, len(text[:2000]))
    return min(1.0, words / 12) * (1.0 if letters > 0.72 else 0.5)


def _shape(text: str) -> str:
    """Requests that differ only in their numbers are one in a list."""
    return re.sub(r"\d+", "0", one_line(text).lower())[:200]


def request_lines(
    reading: Reading, last: Request | None, durable: Sequence[Constraint], shown: str, style: Style
) -> list[Line]:
    """Earlier requests in the user's words, the first before the others, short confirmations last.

    Where the last request says little, the newest that says enough comes before all others (XG11).
    """
    lines = []
    others = [r for r in reading.requests if r is not last and r.text]
    weak = last is not None and substance(last) < _SUBSTANTIAL
    leading = next((r for r in reversed(others) if weak and substance(r) >= _SUBSTANTIAL), None)
    alike = Counter(_shape(r.text) for r in others)
    met: Counter[str] = Counter()
    for index, request in enumerate(others):
        shape = _shape(request.text)
        met[shape] += 1
        if met[shape] < alike[shape]:
            continue
        times = f" (×{alike[shape]}, alike)" if alike[shape] > 1 else ""
        who = "Asked" if request.speaker == "user" else f"Notice {request.speaker}"
        room = style.width * (2 if index == 0 else 1)
        text = one_line(request.text)
        if len(text) > room * 1.3:
            text = clip(" ".join(sentences(request.text)) or text, room)
        worth = 0.1 + 0.6 * substance(request) * (0.5 + 0.5 * (index + 1) / len(others)) + (0.25 if index == 0 else 0)
        if request.speaker != "user":
            worth -= 0.1
        if request is leading:
            worth = 0.97
        stated = sum(len(c.text) for c in durable if c.offset == request.offset)
        if text in shown or stated > 0.6 * len(request.text):
            continue
        lines.append(Line(GOALS, f'- {who} [#{request.offset}]{times}: "{text}"', worth, (2, request.offset)))
    return lines


def last_request_line(request: Request, room: int) -> Line:
    """The last request verbatim in about ``room`` characters, and whether it was answered (XG11).

    Pasted output gets less room than words.
    """
    room = room if substance(request) > 0.5 or len(request.text) < 200 else room // 2
    state = f"answered in [#{request.answered}]" if request.answered else "not answered here"
    who = "Last request" if request.speaker == "user" else f"Last notice {request.speaker}"
    text = clip_middle(request.text, room)
    return Line(GOALS, f"- {who} [#{request.offset}] ({state}): {quote(text)}", 9.0, (3, request.offset))


def constraint_line(constraint: Constraint, age: int) -> Line:
    """A constraint in the user's words; the newest have the higher value, the oldest give way (F8)."""
    where = f" [#{constraint.offset}]" if constraint.offset else ""
    return Line(GOALS, f'- The user requires{where}: "{constraint.text}"', 2.0 + 1 / (2 + age), (0, -age))


def told_lines(reading: Reading, identifiers: Sequence[Identifier], limit: int, style: Style) -> list[Line]:
    """What the assistant said: the sentence that tells most of each closed turn, then sentences by MMR.

    A sentence that gives a reason or a choice is a decision, one that reports is a result.
    """
    lines = []
    closing: set[tuple[int, str]] = set()
    weights = {i.text: i.weight for i in identifiers}
    replies: dict[str, tuple[int, Request, str]] = {}
    times: Counter[str] = Counter()
    for index, request in enumerate(reading.requests):
        told = [s for s in sentences(request.reply)[:25] if readable(s) and not is_filler(s) and not _ASKS.search(s)]
        if not told or request.answered is None or (request.answered, told[0]) in closing:
            continue
        best = max(told, key=lambda s: _telling(s, weights))
        closing |= {(request.answered, told[0]), (request.answered, best)}
        replies[_shape(best)] = (index, request, best)
        times[_shape(best)] += 1
    for shape, (index, request, best) in replies.items():
        section = DECISIONS if _DECIDES.search(best) else ACTIONS
        worth = 0.3 + 0.45 * _telling(best, weights) + 0.15 * (index + 1) / len(reading.requests) + 0.15 * substance(request)
        alike = f" (×{times[shape]}, alike)" if times[shape] > 1 else ""
        text = f"- [#{request.offset}→{request.answered}]{alike} {clip(best, style.width)}"
        lines.append(Line(section, text, min(worth, 0.96), (1, request.answered or 0)))
    pool: list[Sentence] = []
    for statement in reading.statements:
        split = [s for s in sentences(statement.text) if readable(s) and (statement.offset, s) not in closing]
        for position, text in enumerate(split[:60]):
            score = _telling(text, weights) + 0.25 * statement.final + 0.1 * (position == 0)
            score -= 0.3 * (not statement.final and bool(_ANNOUNCES.match(text)))
            pool.append(Sentence(statement.offset, text, score))
    weigh(pool, reading.last or 1)
    for rank, sentence in enumerate(mmr(pool, limit)):
        decides = bool(_DECIDES.search(sentence.text))
        worth = max(0.05, 0.8 * (1 - rank / limit)) * (1 if decides else 0.6)
        section = ACTIONS if not decides and _OUTCOME_CUE.search(sentence.text) else DECISIONS
        text = f"- [#{sentence.offset}] {clip(sentence.text, style.width)}"
        lines.append(Line(section, text, worth, (1, sentence.offset)))
    return lines


def _telling(text: str, weights: Mapping[str, float]) -> float:
    """How much a sentence tells: a reason, an outcome, salient identifiers; questions and lead-ins tell little."""
    named = sum(weights.get(t, 0.0) for t in {t for t, _ in find_identifiers(text)})
    score = 0.35 * bool(_DECIDES.search(text)) + 0.25 * bool(_SETTLES.search(text)) + 0.1 * bool(_OUTCOME_CUE.search(text)) + min(0.3, 0.04 * named)
    return score - 0.5 * bool(_ASKS.search(text)) - 0.2 * text.endswith(":") - 0.2 * (len(text) < _SHORT_SENTENCE)


def answer_lines(reading: Reading, style: Style) -> list[Line]:
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
            text = f'- [#{request.offset}] To "{clip(asked[-1], style.width * 2 // 3)}" the user said: "{clip(one_line(request.text), style.width)}"'
            worth = 0.5 if _YES_NO.match(request.text) else 0.1 + 0.5 * substance(request)
            lines.append(Line(DECISIONS, text, worth, (1, request.offset)))
    return lines


def action_lines(reading: Reading, style: Style) -> list[Line]:
    """Calls with outcomes: what changed something one by one, commands by their last outcome, reads as a list."""
    calls = reading.calls
    if not calls:
        return []
    names = Counter(c.name for c in calls)
    failed = sum(c.outcome == CALL_FAILED for c in calls)
    told = ", ".join(f"{name} {n}" for name, n in names.most_common(max(3, style.width // 24)))
    tail = f"; {failed} failed" if failed else ""
    lines = [Line(ACTIONS, f"- {len(calls)} calls: {told}{tail}", 0.95, (0, 0))]
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.name, call.target or call.brief), []).append(call)
    changed: dict[str, int] = {}
    looked: dict[str, int] = {}
    alike = Counter(_pattern(g[-1].brief) for g in groups.values() if g[-1].outcome == CALL_RAN)
    met: Counter[str] = Counter()
    for group in sorted(groups.values(), key=lambda g: g[-1].order):
        last = group[-1]
        if last.outcome != CALL_RAN:
            continue
        told = gist(last.result, False, style.width * 2 // 3)
        target = clip(style.paths.brief(f"- {last.target}")[2:], 70)
        if only_reads(last.name, last.brief):
            looked[target or last.name] = len(group)
        elif is_path(last.target) and says_nothing(told, last.target):
            changed[target] = changed.get(target, 0) + len(group)
            continue
        told = "" if says_nothing(told, "") else f": {told}"
        pattern = _pattern(last.brief)
        met[pattern] += 1
        if alike[pattern] > _ALIKE and met[pattern] < alike[pattern]:
            continue
        times = f" (×{len(group)})" if len(group) > 1 else ""
        times = f" (the last of {alike[pattern]} alike)" if alike[pattern] > _ALIKE else times
        worth = 0.3 + 0.3 * changes_something(last.name, last.brief) - 0.2 * only_reads(last.name, last.brief)
        worth += 0.25 * last.order / len(calls) + 0.05 * bool(told)
        text = f"- [#{last.offset}] {clip(style.paths.brief(last.brief), style.width)}{times}{told}"
        lines.append(Line(ACTIONS, text, worth, (2, last.offset)))
    lines += _listing("Changed, newest first", changed, 0.9, 3)
    return lines + _listing("Looked at, newest first", looked, 0.4, 4)


def _pattern(brief: str) -> str:
    """A call's words with what has digits left out: a loop over ids or pages is one action."""
    return re.sub(r"\S*\d\S*", "#", brief)


def _listing(title: str, targets: dict[str, int], worth: float, group: int) -> list[Line]:
    """Targets in lines of six, the newest first; only the first lines are worth much."""
    named = [t + (f" ×{n}" if n > 1 else "") for t, n in reversed(targets.items()) if t]
    return [
        Line(ACTIONS, f"- {title}: {', '.join(named[i : i + 6])}", worth / (1 + i / 6), (group, i))
        for i in range(0, min(len(named), 30), 6)
    ]


def error_lines(reading: Reading, style: Style) -> list[Line]:
    """Failures with what followed: the words after them, and whether the same thing worked later."""
    lines = []
    calls = reading.calls
    seen: dict[str, int] = {}
    failures = [c for c in calls if c.outcome == CALL_FAILED]
    statements = reading.statements
    position = 0
    for rank, call in enumerate(failures):
        told = gist(call.result, True, style.width) or "failed without a message"
        key = f"{call.name}|{re.sub(r'[0-9]+', '0', told)[:80]}"
        while position < len(statements) and statements[position].offset <= call.offset:
            position += 1
        said = ""
        if position < len(statements) and statements[position].offset - call.offset < 12:
            said = next((s for s in sentences(statements[position].text) if readable(s) and not is_filler(s)), "")
        later = next((c for c in calls[call.order + 1 :] if c.name == call.name and c.target == call.target), None)
        after = next((c for c in calls[call.order + 1 :] if c.offset > call.offset), None)
        text = f"- [#{call.result_offset}] {clip(style.paths.brief(call.brief), style.width * 2 // 3)} failed: {told}"
        if said:
            text += f' — then: "{clip(said, style.width * 2 // 3)}"'
        if later is not None and later.outcome == CALL_RAN:
            text += f"; worked in [#{later.offset}]"
        elif not said and after is not None:
            text += f"; followed by {clip(style.paths.brief(after.brief), style.width // 2)}"
        worth = 0.4 + 0.4 * (rank + 1) / len(failures)
        if key in seen:
            worth = 0.1
        seen[key] = rank
        lines.append(Line(ERRORS, text, worth, (1, call.result_offset)))
    for request in reading.requests:
        if request.speaker == "user" and _LOGS.search(request.text):
            told = gist(request.text, True, style.width)
            text = f'- [#{request.offset}] reported by the user: {told}'
            reply = next((s for s in sentences(request.reply) if readable(s) and not is_filler(s)), "")
            if reply:
                text += f' — then: "{clip(reply, style.width)}"'
            lines.append(Line(ERRORS, text, 0.7, (1, request.offset)))
    return lines


def open_lines(reading: Reading, last: Request | None, style: Style) -> list[Line]:
    """What was left open: unanswered calls, questions to the user, announced steps of the last turns."""
    lines = []
    newest = max((r.offset for r in reading.requests), default=0)
    for call in reading.calls:
        if call.outcome == CALL_UNANSWERED:
            brief = clip(style.paths.brief(call.brief), style.width)
            worth = 0.9 if call.offset > newest else 0.1
            lines.append(Line(OPEN, f"- [#{call.offset}] {brief}: no result among these rows", worth, (1, call.offset)))
    if last is not None and last.answered is None:
        lines.append(Line(OPEN, f"- The last request [#{last.offset}] has no closing answer in these rows", 0.5, (3, 0)))
    for back, statement in enumerate(reversed(reading.statements[-8:])):
        settled = statement.offset < newest
        for text in sentences(statement.text):
            announces = is_filler(text) and back == 0 and not statement.final
            if 12 <= len(text) <= 400 and (_ASKS.search(text) or _AHEAD.search(text) or announces):
                worth = (0.2 if settled else 0.85) - 0.02 * back
                lines.append(Line(OPEN, f"- [#{statement.offset}] {clip(text, style.width)}", worth, (2, statement.offset)))
    return lines


def detail_lines(identifiers: Sequence[Identifier], style: Style) -> list[Line]:
    """Identifiers by salience, grouped by kind, in lines short enough that a small budget takes some of each."""
    titles = {
        IdentifierKind.PATH: "Paths", IdentifierKind.URL: "URLs", IdentifierKind.ID: "Ids", IdentifierKind.CODE: "Codes",
        IdentifierKind.NAME: "Names", IdentifierKind.NUMBER: "Numbers",
    }  # fmt: skip
    lines = []
    root = style.paths.root
    most = max((i.weight for i in identifiers if i.kind in titles), default=1.0)
    for place, (kind, title) in enumerate(titles.items()):
        own = [i for i in identifiers if i.kind == kind]
        if kind == IdentifierKind.PATH:
            shown = list(dict.fromkeys(style.paths.path(i) for i in own))
            if root:
                lines.append(Line(DETAILS, f"- Relative paths are under {root}", 1.2, (0, 0)))
        else:
            shown = [i.text for i in own]
        for start in range(0, len(shown), 6):
            worth = 0.9 * own[start].weight / most
            lines.append(Line(DETAILS, f"- {title}: {', '.join(shown[start : start + 6])}", worth, (1 + place, start)))
    return lines


def carried(lines: Sequence[CarriedLine]) -> list[Line]:
    """Lines of earlier summaries, those that name identifiers before those that only tell."""
    found = []
    total = len(lines) or 1
    for line in lines:
        names = len({t for t, _ in find_identifiers(line.text)})
        worth = min(0.6, 0.25 + 0.05 * names + 0.15 * line.order / total)
        found.append(Line(line.section, f"- {CARRIED}{line.text}", worth, (-1, line.order), line.age))
    return found

