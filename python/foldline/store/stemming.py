"""English word stems, by the Porter stemmer that SQLite brings along."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Mapping

_REMEMBERED = 1 << 17
_SHORTEST = 3


class Stemmer:
    """Stems of words, remembered; thread-safe. Words of other scripts and words with digits are their own stem."""

    def __init__(self) -> None:
        self._stems: dict[str, str] = {}
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE text USING fts5 (word, content = '', tokenize = 'porter ascii')")
        self._db.execute("CREATE VIRTUAL TABLE stem USING fts5vocab (text, instance)")

    def stems(self, words: Iterable[str]) -> Mapping[str, str]:
        """The stem of each word."""
        found: dict[str, str] = {}
        unknown: list[str] = []
        for word in words:
            stem = self._stems.get(word)
            if stem is not None:
                found[word] = stem
            elif len(word) >= _SHORTEST and word.isascii() and word.isalpha():
                unknown.append(word)
            else:
                found[word] = word
        if unknown:
            found.update(self._stem(unknown))
        return found

    def _stem(self, words: list[str]) -> Mapping[str, str]:
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO text (rowid, word) VALUES (?, ?)", enumerate(words))
            stems = {words[at]: stem for stem, at in self._db.execute("SELECT term, doc FROM stem")}
            self._db.execute("ROLLBACK")
            if len(self._stems) + len(stems) > _REMEMBERED:
                self._stems = {}
            self._stems.update(stems)
        return stems
