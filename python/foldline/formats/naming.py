"""Call ids and tool names within what an API accepts; what is renamed stays recognisable and unique."""

from __future__ import annotations

import hashlib
import re

_LEGAL = re.compile(r"[a-zA-Z0-9_-]+")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_HASH = 8


def legal_name(name: str, longest: int) -> str:
    """``name`` where it is made of letters, digits, ``_`` and ``-`` and is not too long, else a name of that kind.

    Different names stay different: what is changed carries a hash of the whole.
    """
    if _LEGAL.fullmatch(name) and len(name) <= longest:
        return name
    return short_name(_ILLEGAL.sub("_", name), longest, name)


def short_name(name: str, longest: int, whole: str | None = None) -> str:
    """``name`` cut to ``longest`` characters, its hash included; unchanged where it is short and ``whole`` is it."""
    if whole is None and len(name) <= longest:
        return name
    digest = hashlib.sha256((whole or name).encode()).hexdigest()[:_HASH]
    return f"{name[: longest - _HASH - 1]}_{digest}"
