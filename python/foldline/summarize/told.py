"""Decisions, reported results and open ends: what both sides said, by sentences (S8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from foldline.domain.session import CALL_UNANSWERED
from foldline.summarize.cues import AHEAD, ANNOUNCES, ASKS, DECIDES, ENDED, PLEADS, REPORTS, SETTLES, YES_NO
from foldline.summarize.identifiers import Identifier
from foldline.summarize.packing import ACTIONS, DECISIONS, OPEN, Line
from foldline.summarize.reading import Reading, Request, Statement
from foldline.summarize.salience import Sentence, mmr, readable, weigh
from foldline.summarize.style import Style, is_filler, says_little, shape, substance, telling
from foldline.summarize.text import one_line

_REPLY_SENTENCES, _STATEMENT_SENTENCES, _LAST_STATEMENTS = 25, 60, 8
_SHORT_ANSWER = 300


def told_lines(reading: Reading, identifiers: Sequence[Identifier], limit: int, style: Style) -> list[Line]:
    """What the assistant said: the sentence that tells most of each closed turn, then ``limit`` sentences by MMR.

    A sentence that gives a reason or a choice is a decision, one that reports is a result.
    """
    weights = {i.text: i.weight for i in identifiers}
    closing: set[tuple[int, str]] = set()
    lines = _closing_lines(reading, weights, closing, style)
    pool: list[Sentence] = []
    for statement in reading.statements:
        split = [s for s in statement.sentences if readable(s) and (statement.offset, s) not in closing]
        for position, text in enumerate(split[:_STATEMENT_SENTENCES]):
            if says_little(text, weights):
                continue
            score = telling(text, weights) + 0.25 * statement.final + 0.1 * (position == 0) + 0.4 * style.wanted(text)
            score -= 0.3 * (not statement.final and bool(ANNOUNCES.match(text))) + 0.3 * (not ENDED.search(text))
            pool.append(Sentence(statement.offset, text, score))
    weigh(pool, reading.last or 1)
    for rank, sentence in enumerate(mmr(pool, limit)):
        decides = bool(DECIDES.search(sentence.text) or SETTLES.search(sentence.text))
        worth = max(0.05, 0.8 * (1 - rank / limit)) * (1 if decides else 0.6)
        section = ACTIONS if not decides and REPORTS.search(sentence.text) else DECISIONS
        text = f"- [#{sentence.offset}] {style.quoted(sentence.text)}"
        lines.append(Line(section, text, worth, (1, sentence.offset)))
    return lines


def _closing_lines(
    reading: Reading, weights: Mapping[str, float], closing: set[tuple[int, str]], style: Style
) -> list[Line]:
    """The best sentence of each turn's last words; turns that end alike are one line."""
    replies: dict[str, tuple[int, Request, str]] = {}
    times: Counter[str] = Counter()
    for index, request in enumerate(reading.requests):
        if request.answered is None or request.reply is None:
            continue
        told = [s for s in request.reply.sentences[:_REPLY_SENTENCES] if readable(s) and not says_little(s, weights)]
        if not told or (request.answered, told[0]) in closing:
            continue
        best = max(told, key=lambda s: telling(s, weights) + 0.4 * style.wanted(s))
        closing |= {(request.answered, told[0]), (request.answered, best)}
        replies[shape(best)] = (index, request, best)
        times[shape(best)] += 1
    lines = []
    for kind, (index, request, best) in replies.items():
        late = (index + 1) / len(reading.requests)
        worth = 0.3 + 0.45 * telling(best, weights) + 0.15 * late + 0.15 * substance(request)
        alike = f" (×{times[kind]}, alike)" if times[kind] > 1 else ""
        text = f"- [#{request.offset}→{request.answered}]{alike} {style.quoted(best)}"
        section = DECISIONS if DECIDES.search(best) or SETTLES.search(best) else ACTIONS
        lines.append(Line(section, text, min(worth, 0.96), (1, request.answered or 0)))
    return lines


def answer_lines(reading: Reading, style: Style) -> list[Line]:
    """Short answers of the user to a question: decisions that only read with the question before them."""
    lines = []
    position = 0
    before: Statement | None = None
    for request in reading.requests:
        while position < len(reading.statements) and reading.statements[position].offset < request.offset:
            before = reading.statements[position]
            position += 1
        if before is None or request.speaker != "user" or not 1 < len(request.text) <= _SHORT_ANSWER:
            continue
        asked = [s for s in before.sentences if ASKS.search(s)]
        if asked and not ASKS.search(request.text):
            said = style.quoted(one_line(request.text))
            text = f'- [#{request.offset}] To "{style.aside(asked[-1])}" the user said: "{said}"'
            worth = 0.5 if YES_NO.search(request.text) else 0.3 + 0.4 * substance(request)
            lines.append(Line(DECISIONS, text, worth, (1, request.offset)))
    return lines


def open_lines(reading: Reading, last: Request | None, style: Style) -> list[Line]:
    """What was left open: unanswered calls, questions that no user has answered since, steps that were announced."""
    lines = []
    newest = max((r.offset for r in reading.requests), default=0)
    for call in reading.calls:
        if call.outcome == CALL_UNANSWERED:
            worth = 0.9 if call.offset > newest else 0.1
            text = f"- [#{call.offset}] {style.call(call)}: no result among these rows"
            lines.append(Line(OPEN, text, worth, (1, call.offset)))
    if last is not None and last.answered is None:
        text = f"- The last request [#{last.offset}] has no closing answer in these rows"
        lines.append(Line(OPEN, text, 0.5, (3, 0)))
    for back, statement in enumerate(reversed(reading.statements[-_LAST_STATEMENTS:])):
        for sentence in statement.sentences:
            since = statement.offset >= newest
            announces = is_filler(sentence) and back == 0 and not statement.final and since
            asks = since and bool(ASKS.search(sentence) or PLEADS.search(sentence))
            ahead = not ASKS.search(sentence) and bool(AHEAD.search(sentence))
            if 12 <= len(sentence) <= 400 and (announces or asks or ahead):
                worth = (0.85 if since else 0.2) - 0.02 * back
                text = f"- [#{statement.offset}] {style.quoted(sentence)}"
                lines.append(Line(OPEN, text, worth, (2, statement.offset)))
    return lines
