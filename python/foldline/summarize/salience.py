"""Which sentences say most with least repetition: scoring and maximal marginal relevance (S8)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_WORD = re.compile(r"[^\W_]{3,}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_NO_LETTER = re.compile(r"[^\w\s]|[\d_]")
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
        words = [w for w in words if not _CJK.match(w)] + [a + b for a, b in pairwise(singles)]
    return frozenset(words)


def prose_share(text: str) -> float:
    """Share of letters and spaces."""
    return len(_NO_LETTER.sub("", text)) / max(1, len(text))


def readable(text: str) -> bool:
    """Whether a sentence is prose of a useful length, not a table, a listing or code."""
    if not _SHORTEST <= len(text) <= _LONGEST:
        return bool(_CJK.search(text)) and 6 <= len(text) <= _LONGEST
    return prose_share(text) > 0.65 and "|" not in text[:2]


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
        if len(sentence.text) < _SHORT and not _CJK.search(sentence.text):
            sentence.score -= 0.15


def mmr(sentences: Sequence[Sentence], limit: int, pool: int = 250) -> list[Sentence]:
    """Picks ``limit`` sentences, best first, each judged by score less its likeness to what is already picked.

    Only the ``pool`` best by score take part, so that the cost does not grow with the square of the transcript.
    """
    rest = sorted(sentences, key=lambda s: (-s.score, s.offset, s.text))[:pool]
    likeness = [0.0] * len(rest)
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
