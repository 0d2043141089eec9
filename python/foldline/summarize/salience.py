"""Which sentences say most with least repetition: scoring and maximal marginal relevance (S8)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_WORD = re.compile(r"[^\W_]{3,}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FILLER = re.compile(
    r"^(?:(?:ok(?:ay)?|great|perfect|good|excellent|sure|right|yes|no worries|alright|done|hmm|ah|oh|wow|hey)\b[^a-z]{0,3})*"
    r"(?:now |next,? |first,? |so |then )?(?:let me|let['’]s|i['’]ll|i will|i['’]m going to|i need to|i should|i can|i want to|"
    r"we need to|we should|here(?:['’]s| is| are)|you['’]re (?:absolutely )?right|good (?:question|point|idea|catch))\b",
    re.IGNORECASE,
)
_SHORTEST, _SHORT, _LONGEST = 20, 45, 420


@dataclass(slots=True)
class Sentence:
    """A sentence with the row it stands in; ``score`` ranks it before redundancy is weighed."""

    offset: int
    text: str
    score: float = 0.0
    words: frozenset[str] = field(default_factory=frozenset)


def words_of(text: str) -> frozenset[str]:
    """Content words in lower case; in scripts without spaces, pairs of characters."""
    words = _WORD.findall(text.lower())
    if _CJK.search(text):
        singles = [w for w in words if _CJK.match(w)]
        words = [w for w in words if not _CJK.match(w)] + [a + b for a, b in zip(singles, singles[1:], strict=False)]
    return frozenset(words)


def is_filler(text: str) -> bool:
    """Whether a sentence announces an act instead of saying something."""
    return bool(_FILLER.match(text))


def readable(text: str) -> bool:
    """Whether a sentence is prose of a useful length, not a table, a listing or code."""
    if not _SHORTEST <= len(text) <= _LONGEST:
        return bool(_CJK.search(text)) and 6 <= len(text) <= _LONGEST
    letters = sum(c.isalpha() or c.isspace() for c in text)
    return letters > 0.65 * len(text) and "|" not in text[:2]


def weigh(sentences: Sequence[Sentence], rows: int) -> None:
    """Sets ``words`` and adds to ``score`` how central a sentence is: its words' spread, common words discounted."""
    for sentence in sentences:
        sentence.words = words_of(sentence.text)
    spread = Counter(w for s in sentences for w in s.words)
    total = max(2, len(sentences))
    worth = {w: math.log1p(n) * math.log(total / n) for w, n in spread.items()}
    most = max(worth.values(), default=1.0) or 1.0
    for sentence in sentences:
        if sentence.words:
            central = sum(worth[w] for w in sentence.words) / (most * (len(sentence.words) + 4))
            sentence.score += 0.6 * central
        sentence.score += 0.15 * sentence.offset / max(1, rows)
        if is_filler(sentence.text):
            sentence.score -= 0.45
        if len(sentence.text) < _SHORT and not _CJK.search(sentence.text):
            sentence.score -= 0.15


def mmr(sentences: Sequence[Sentence], limit: int, against: Sequence[frozenset[str]] = (), pool: int = 250) -> list[Sentence]:
    """Picks ``limit`` sentences, best first, each judged by score less its likeness to what is already picked.

    Only the ``pool`` best by score take part, so that the cost does not grow with the square of the transcript.
    """
    rest = sorted(sentences, key=lambda s: (-s.score, s.offset, s.text))[:pool]
    likeness = [max((_alike(s.words, a) for a in against), default=0.0) for s in rest]
    picked: list[Sentence] = []
    while rest and len(picked) < limit:
        best = max(range(len(rest)), key=lambda i: (rest[i].score - 0.7 * likeness[i], -i))
        chosen = rest.pop(best)
        if likeness.pop(best) > 0.75:
            continue
        picked.append(chosen)
        for i, other in enumerate(rest):
            likeness[i] = max(likeness[i], _alike(other.words, chosen.words))
    return picked


def _alike(a: frozenset[str], b: frozenset[str]) -> float:
    if not a or not b:
        return 0.0
    common = len(a & b)
    return common / min(len(a), len(b)) if common > 1 else 0.0
