"""Masking of secrets before any text leaves a row (S4), shared by every source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import re2

from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import MASK

_MAX_PROGRAM_BYTES = 8 << 20


class Redactor:
    """Replaces what the policy's RE2 patterns match by ``[redacted]``.

    RE2 runs in time linear in the text whatever the pattern, so that no pattern of a host can stall a fold. Spans of
    all patterns are found in the original text and merged before any is replaced: one pattern's mask never hides the
    rest of another's match.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        """Compiles the patterns.

        Raises:
            FoldlineError: FIELD_VALIDATION, naming the pattern that RE2 does not accept.
        """
        given = [p for p in patterns if p]
        self._patterns = [_compile(p) for p in given]
        self._any = _compile("|".join(f"(?:{p})" for p in given)) if given else None

    def mask(self, text: str) -> str:
        """The text with every match masked; empty matches mask nothing."""
        if not text or self._any is None or not self._any.search(text):
            return text
        pieces: list[str] = []
        end = 0
        for start, stop in self._spans(text):
            pieces += (text[end:start], MASK)
            end = stop
        pieces.append(text[end:])
        return "".join(pieces)

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        found = sorted(m.span() for p in self._patterns for m in p.finditer(text) if m.end() > m.start())
        if not found:
            return
        start, stop = found[0]
        for s, e in found[1:]:
            if s > stop:
                yield start, stop
                start, stop = s, e
            else:
                stop = max(stop, e)
        yield start, stop


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        cause = error.args[0] if error.args else b""
        detail = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            f"summary.redact: RE2 does not accept {pattern!r}: {detail}",
            field="summary.redact", value=pattern, detail=detail,
        ) from error  # fmt: skip
