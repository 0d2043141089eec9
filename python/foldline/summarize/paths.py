"""One root for the many absolute paths of a session, so that each is written once in full and then short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from foldline.summarize.identifiers import Identifier, IdentifierKind

_CHANGE_DIRECTORY = re.compile(r"^(?:cd [^&;|]+ (?:&&|;) )+")
_FEWEST, _SHORTEST_ROOT = 3, 8


def is_file(path: str) -> bool:
    """Whether a path names more than one step: ``/clear`` is a command of some program."""
    return "/" in path.strip("/") or "." in path.strip(".")


def common_root(identifiers: Sequence[Identifier]) -> str:
    """The directory, with its slash, whose removal shortens the listed paths most; empty when it saves little."""
    saved: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for item in identifiers:
        if item.kind != IdentifierKind.PATH or not item.text.startswith(("/", "~/")):
            continue
        directory = item.text.rsplit("/", 1)[0] + "/"
        while len(directory) >= _SHORTEST_ROOT:
            saved[directory] += len(directory)
            used[directory] += 1
            directory = directory[:-1].rsplit("/", 1)[0] + "/"
    roots = [(saved[d] - len(d), d) for d in saved if used[d] >= _FEWEST]
    return max(roots, default=(0, ""))[1]


class Shortener:
    """Writes paths relative to the root that the summary names once."""

    def __init__(self, identifiers: Sequence[Identifier]) -> None:
        self.root = common_root(identifiers)
        parts = self.root.strip("/").split("/")
        self._starts = [self.root, *("/".join(parts[i:]) + "/" for i in range(1, len(parts)))] if self.root else []

    def path(self, identifier: Identifier) -> str:
        """The path below the root, unless that would lose the form it is known by."""
        text = identifier.text.removeprefix("./")
        short = next((text.removeprefix(s) for s in self._starts if text.startswith(s)), text)
        return short if identifier.probe in short else text

    def brief(self, text: str) -> str:
        """A call's words without its changes of directory and without the root."""
        name, _, rest = text.partition(" ")
        rest = _CHANGE_DIRECTORY.sub("", rest) or rest
        return f"{name} {rest.replace(self.root, '') if self.root else rest}".strip()
