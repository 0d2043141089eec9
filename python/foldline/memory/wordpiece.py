"""WordPiece as BERT's uncased models were trained on it.

Own code because the library that does it brings an HTTP client and a downloader along; its output is the reference of
the tests. Text that spells a special token (``[SEP]``) is plain text here, since rows are data.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence

MAX_WORD = 100
"""Longer words become one unknown token, as in the original."""
MAX_CHARS = 8192
"""Of a text that are looked at; far more than ``max_tokens`` of it hold in any but blank or unbroken text."""

_PUNCTUATION = frozenset(map(ord, string.punctuation))
_CHINESE = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class _Clean(dict[int, str]):
    """What becomes of a decomposed character; fills itself as characters appear."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if char in "\t\n\r" or category[0] == "Z":
            clean = " "
        elif category in ("Mn", "Cc", "Cf", "Co") or code == 0xFFFD:
            clean = ""
        elif code in _PUNCTUATION or category[0] == "P" or any(low <= code <= high for low, high in _CHINESE):
            clean = f" {char} "
        else:
            clean = char.lower()
        self[code] = clean
        return clean


class WordPiece:
    """Splits text into ids of a vocabulary.

    Args:
        vocabulary: tokens by id.
        max_tokens: ids of a text at most, the two marks around it included.
    """

    def __init__(self, vocabulary: Sequence[str], max_tokens: int) -> None:
        self._ids = {token: i for i, token in enumerate(vocabulary)}
        self._start, self._end, self._unknown = (self._ids[mark] for mark in ("[CLS]", "[SEP]", "[UNK]"))
        self._room = max_tokens - 2
        self._clean = _Clean()

    def encode(self, text: str) -> list[int]:
        words = unicodedata.normalize("NFD", text[:MAX_CHARS]).translate(self._clean).split()
        ids: list[int] = []
        for word in words:
            ids += self._pieces(word)
            if len(ids) >= self._room:
                break
        return [self._start, *ids[: self._room], self._end]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > MAX_WORD:
            return [self._unknown]
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                found = self._ids.get(prefix + word[start:end])
                if found is not None:
                    break
            else:
                return [self._unknown]
            ids.append(found)
            start = end
        return ids
