"""Goals and constraints: what the user asked and requires, in the user's words (S8, F8, XG11, XG16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from foldline.summarize.constraints import Constraint
from foldline.summarize.packing import GOALS, Line
from foldline.summarize.reading import Reading, Request
from foldline.summarize.style import Style, shape, substance
from foldline.summarize.text import clip, clip_middle, one_line, quote

LAST_VALUE = 9.0
_SUBSTANTIAL = 0.35
_MOSTLY_STATED = 0.6


def last_request(reading: Reading) -> Request | None:
    """The user's last request; the last notice where no user spoke."""
    said = [r for r in reading.requests if r.text]
    return next((r for r in reversed(said) if r.speaker == "user"), said[-1] if said else None)


def last_request_line(request: Request, room: int) -> Line:
    """The last request verbatim in about ``room`` characters, and whether it was answered (XG11).

    Pasted output gets less room than words.
    """
    room = room if substance(request) > 0.5 or len(request.text) < 200 else room // 2
    state = f"answered in [#{request.answered}]" if request.answered else "not answered here"
    who = "Last request" if request.speaker == "user" else f"Last notice {request.speaker}"
    text = quote(clip_middle(request.text, room))
    return Line(GOALS, f"- {who} [#{request.offset}] ({state}): {text}", LAST_VALUE, (3, request.offset))


def constraint_line(constraint: Constraint, age: int) -> Line:
    """A constraint in the user's words; the newest have the higher value, the oldest give way (F8)."""
    where = f" [#{constraint.offset}]" if constraint.offset else ""
    return Line(GOALS, f'- The user requires{where}: "{constraint.text}"', 2.0 + 1 / (2 + age), (0, -age))


def request_lines(
    reading: Reading, last: Request | None, durable: Sequence[Constraint], shown: str, style: Style
) -> list[Line]:
    """Earlier requests in the user's words, the first before the others, short confirmations last.

    Where the last request says little, the newest that says enough comes before all others (XG11). Requests that
    ``shown`` or the durable constraints hold already are left out, and so are notices beside a user's words: they are
    what came back, not what is wanted.
    """
    lines = []
    others = [r for r in reading.requests if r is not last and r.text]
    if any(r.speaker == "user" for r in others) or (last is not None and last.speaker == "user"):
        others = [r for r in others if r.speaker == "user"]
    weak = last is not None and substance(last) < _SUBSTANTIAL
    said = (r for r in reversed(others) if r.speaker == "user")
    leading = next((r for r in said if substance(r) >= _SUBSTANTIAL), None) if weak else None
    stated: Counter[int] = Counter()
    for constraint in durable:
        stated[constraint.offset] += len(constraint.text)
    alike = Counter(shape(r.text) for r in others)
    met: Counter[str] = Counter()
    for index, request in enumerate(others):
        kind = shape(request.text)
        met[kind] += 1
        if met[kind] < alike[kind] or stated[request.offset] > _MOSTLY_STATED * len(request.text):
            continue
        room = style.width * (2 if index == 0 else 1)
        text = one_line(request.text)
        if len(text) > room * 1.3:
            text = clip(" ".join(request.sentences) or text, room)
        if text in shown:
            continue
        who = "Asked" if request.speaker == "user" else f"Notice {request.speaker}"
        times = f" (×{alike[kind]}, alike)" if alike[kind] > 1 else ""
        worth = 0.1 + 0.3 * substance(request) * (1 + (index + 1) / len(others)) + (0.25 if index == 0 else 0)
        worth = 0.97 if request is leading else worth - 0.1 * (request.speaker != "user")
        lines.append(Line(GOALS, f'- {who} [#{request.offset}]{times}: "{text}"', worth, (2, request.offset)))
    return lines
