"""How lines are written at a given budget, and how much a text has to say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.summarize.cues import ASKS, DECIDES, ENDED, FILLER, LABELLED, PLEADS, REPORTS, SETTLES, TRIVIAL
from foldline.summarize.identifiers import WORDS, Identifier
from foldline.summarize.packing import Line
from foldline.summarize.paths import Shortener
from foldline.summarize.reading import Call, Request
from foldline.summarize.salience import prose_share, words_of
from foldline.summarize.text import clip, one_line

_ROOT_PAYS = 512
_ORDINARY = {
    *("the", "and", "for", "with", "from", "that", "this", "all", "any", "not", "what", "which", "when", "where"),
    *("who", "keep", "focus", "summary", "summarize", "about", "please", "list", "include", "mention", "only", "into"),
    *("everything", "details", "important", "especially", "make", "sure", "leave", "out", "over", "each", "are", "how"),
}
_SHORT_SENTENCE = 40
_LABEL_WORDS = 12
_DIGITS = re.compile(r"\d+")
_WITH_DIGITS = re.compile(r"\S*\d\S*")


@dataclass(frozen=True, slots=True)
class Style:
    """How lines are written.

    Attributes:
        width: characters of an ordinary quote.
        focus: words of the instructions: lines that hold them are worth more.
    """

    width: int
    paths: Shortener
    focus: frozenset[str] = frozenset()

    def quoted(self, text: str) -> str:
        return clip(text, self.width)

    def aside(self, text: str) -> str:
        """Text beside the main one of a line."""
        return clip(text, self.width * 2 // 3)

    def call(self, call: Call) -> str:
        return clip(self.paths.brief(call.brief), self.width)

    def wanted(self, text: str) -> float:
        """How much of what the instructions ask for a text speaks of, in [0, 1]."""
        if not self.focus:
            return 0.0
        return min(1.0, len(self.focus & words_of(text)) / min(2, len(self.focus)))

    def focused(self, line: Line) -> Line:
        if not self.focus or line.value >= 1:
            return line
        return replace(line, value=min(0.99, line.value + 0.4 * self.wanted(line.text)))


def style_for(room: int, identifiers: Sequence[Identifier], instructions: str = "") -> Style:
    """Lines grow with the budget, so that a small one still holds some of each section."""
    focus = frozenset(w for w in words_of(instructions) if len(w) < 3 or w not in _ORDINARY)
    return Style(max(80, min(260, 60 + room // 16)), Shortener(identifiers if room >= _ROOT_PAYS else ()), focus)


def substance(request: Request) -> float:
    """How much a request says by itself, in [0, 1]: confirmations and pasted output say little."""
    text = one_line(request.text[:4000])
    if TRIVIAL.match(text):
        return 0.0
    return min(1.0, len(words_of(text)) / 12) * (1.0 if prose_share(text[:2000]) > 0.72 else 0.5)


def telling(text: str, weights: Mapping[str, float]) -> float:
    """How much a sentence tells: a reason, an outcome, salient identifiers; questions and lead-ins tell little."""
    named = sum(weights.get(w.rstrip(".,:;"), 0.0) for w in set(WORDS.findall(text)))
    score = min(0.3, 0.04 * named) + 0.1 * bool(REPORTS.search(text))
    score += 0.35 * bool(DECIDES.search(text)) + 0.25 * bool(SETTLES.search(text))
    return score - 0.5 * bool(ASKS.search(text)) - 0.2 * text.endswith(":") - 0.2 * (len(text) < _SHORT_SENTENCE)


def is_filler(text: str) -> bool:
    """Whether a sentence announces an act instead of saying something."""
    return bool(FILLER.match(text))


def says_little(text: str, weights: Mapping[str, float]) -> bool:
    """Whether a sentence means nothing apart from where it stood: announcements, questions, lead-ins, bare labels.

    A label or an item of a list has no end of a sentence and few words; what decides something is kept, and an
    item that names what matters.
    """
    if ASKS.search(text) or PLEADS.search(text) or text.endswith((":", "：", ":**")):
        return True
    if DECIDES.search(text) or SETTLES.search(text):
        return False
    if is_filler(text):
        return True
    if ENDED.search(text) or len(text.split()) > _LABEL_WORDS:
        return False
    return bool(LABELLED.match(text)) or not any(w.strip(".,:;`*") in weights for w in WORDS.findall(text))


def shape(text: str) -> str:
    """Sentences that differ only in their numbers are one in a list."""
    return _DIGITS.sub("0", one_line(text[:400]).lower())[:200]


def pattern(brief: str) -> str:
    """A call's words without what has digits: a loop over ids or pages is one action."""
    return _WITH_DIGITS.sub("#", brief)
