"""Search terms of a text, made here alone, for index and query alike (M4).

A term is lower-case letters and digits, so that no tokenizer of any store cuts it differently. An identifier gives its
whole (separators removed: ``get_user``, ``getUser`` and ``get-user`` meet), each segment of a path, and its words.
Scripts without spaces give overlapping pairs of characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from foldline._core import ascii_terms

MAX_TERM = 64
MAX_QUERY_TERMS = 64
_MAX_SPLIT_WORD = 40
_MAX_PARTS = 6
_REMEMBERED_RUN = 128

# Marks that are part of a word although they are no letters (Arabic, Indic and South-East Asian vowel signs).
_MARKS = (
    "\u0591-\u05c7\u064b-\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff\u0e31-\u0eff\u0f71-\u0fbc"
    "\u102b-\u109f\u17b4-\u17d3"
)
_WORD = rf"(?:[^\W_]|[{_MARKS}])+"
_RUN = re.compile(rf"{_WORD}(?:(?:[_.\-/\\:@'’]{{1,3}}|(?<=\d),(?=\d{{3}})){_WORD})*")
_PATH = re.compile(r"[/\\:@]+")
_JOIN = re.compile(r"[_.\-,]+")
_POSSESSIVE = re.compile(r"['’][sS](?![^\W_])|['’]")
_ESCAPED = re.compile(r"\\[nrt](\w+)")
"""A word after an escaped line break or tab, as quoted text in code and JSON has it."""
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
# A name has no digits: ``Question 13:`` numbers what follows, and the number is what tells it apart.
_LABEL = re.compile(r"\s*([^\s:\d]{1,32}(?: [^\s:\d]{1,32})?):\s")
_SPEAKER = "speaker0"
_ACCENTS = re.compile("[\u0300-\u036f]")

_GRAMMAR = (
    "a about all also am an and any are as at be been being but by can could did do does doing for from had has have "
    "having he her hers him his how i if in into is it its me my of on or our ours she should so some than that the "
    "their theirs them then there these they this those to us was we were what when where which while who whom whose "
    "why will with would you your yours"
)
STOP_WORDS = frozenset(_GRAMMAR.split())
"""Words of questions and grammar: left in the index, left out of queries unless nothing else remains."""


def terms(text: str) -> list[str]:
    """Terms of a text, in order, repeats included."""
    return joined_terms(text).split()


def joined_terms(text: str, most: int | None = None) -> str:
    """Terms of a text, in order, repeats included, between spaces; of the last ones no more than ``most``."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    found = ascii_terms(text, most)
    if found is not None:
        return found
    general = general_terms(text)
    return " ".join(general if most is None else general[max(0, len(general) - most) :])


def general_terms(text: str) -> list[str]:
    """Terms of a normalized text of any script; what ``ascii_terms`` gives where it is ASCII."""
    return [term for run in _RUN.findall(text) for term in _of_run(run)]


def query_terms(text: str) -> list[str]:
    """Distinct terms to search for, at most ``MAX_QUERY_TERMS``, in order of appearance."""
    found = list(dict.fromkeys(terms(text)))
    return ([term for term in found if term not in STOP_WORDS] or found)[:MAX_QUERY_TERMS]


def without_label(text: str) -> str:
    """A text without the name it starts with (``Ann: …``), as group chats and transcripts label who speaks."""
    label = _LABEL.match(text)
    return text[label.end() :] if label else text


def speaker_terms(text: str) -> list[str]:
    """Terms that say who speaks, from the label of a text; none without one. Hardly a word of a text is like them."""
    label = _LABEL.match(text)
    return naming(terms(label[1])) if label else []


def naming(names: Iterable[str]) -> list[str]:
    """The terms of entries whose speaker goes by one of these names."""
    return [f"{_SPEAKER}{name}" for name in names]


def coverage(wanted: Sequence[str], held: Collection[str]) -> float:
    """The share of ``wanted`` terms among ``held`` ones; for a longer term one of roughly its stem will do."""
    held = frozenset(held)
    found = sum(term in held or (len(term) > 4 and any(_akin(term, other) for other in held)) for term in wanted)
    return found / len(wanted) if wanted else 0.0


def _akin(term: str, other: str) -> bool:
    stem = term[: max(4, len(term) - 3)]
    return len(other) <= len(term) + 3 and other.startswith(stem)


def _of_run(run: str) -> tuple[str, ...]:
    return _expand_known(run) if len(run) <= _REMEMBERED_RUN else _expand(run)


def _expand(run: str) -> tuple[str, ...]:
    run = _POSSESSIVE.sub("", run)
    if _UNSPACED.search(run):
        return tuple(_pairs(run))
    found = [run]
    segments = _PATH.split(run)
    for segment in segments:
        words = _JOIN.split(segment)
        found += [segment, *words]
        for word in words:
            found += _parts(word)
    for word in _ESCAPED.findall(run):
        found += [word, *_JOIN.split(word)]
    wholes = (_JOIN.sub("", _PATH.sub("", item)).lower()[:MAX_TERM] for item in found)
    unique = list(dict.fromkeys(wholes))
    return tuple(term for term in unique if len(term) > 1) or tuple(unique[:1])


_expand_known = lru_cache(maxsize=1 << 14)(_expand)


def _parts(word: str) -> list[str]:
    """Words inside a camelCase or letter-digit word; none of a hash or blob, whose parts would be noise."""
    parts = _CAMEL.findall(word) if len(word) <= _MAX_SPLIT_WORD else []
    return parts if 1 < len(parts) <= _MAX_PARTS else []


def _pairs(run: str) -> list[str]:
    found: list[str] = []
    end = 0
    for match in _UNSPACED.finditer(run):
        found += [term for part in _RUN.findall(run[end : match.start()]) for term in _of_run(part)]
        end = match.end()
        piece = match.group()
        found += [piece[i : i + 2] for i in range(len(piece) - 1)] or [piece]
    return found + [term for part in _RUN.findall(run[end:]) for term in _of_run(part)]
