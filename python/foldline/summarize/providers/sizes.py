"""How large texts are for the model that summarizes them (S4): guessed at first, then as its answers and refusals say.

Nothing of it is stored: a process that starts guesses again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from foldline.domain.changes import replace
from foldline.domain.rows import ModelRef

log = structlog.get_logger(__name__)

UNKNOWN = 1.4
"""Tokens that a model counts for one of ours where its vocabulary is not embedded. Measured on real sessions against a
vocabulary of 49 000 that splits digits: 1.2 to 1.4, one piece of text in twenty 1.5."""
LEAST, MOST = 1.0, 2.5
"""A larger ratio says nothing of a vocabulary."""
LEAST_LIMIT = 512
REFUSAL_SECONDS = 3600.0
"""How long a refusal is heeded: servers are started anew with other windows."""
_FALL = 0.1
"""How far a smaller reading lowers a scale; a larger one raises it at once, since what is too large is refused."""
_MODELS = 1024


@dataclass(frozen=True, slots=True)
class Known:
    """What calls of one model have shown.

    Attributes:
        scale: tokens that it counts for one of ours.
        limit: tokens that it takes, as a refusal said; None where none did lately.
        until: by the clock, when all this is forgotten.
    """

    scale: float
    limit: int | None = None
    until: float = math.inf


class Sizes:
    """Of all models of a source. May be used by several threads.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._known: dict[ModelRef, Known] = {}

    def of(self, model: ModelRef, prior: float) -> Known:
        """What is known; without a reading the ``prior`` scale."""
        with self._lock:
            known = self._known.get(model)
        if known is None or known.until <= self._clock():
            return Known(min(max(prior, LEAST), MOST))
        return known

    def answered(self, model: ModelRef, known: Known, counted: int, reported: int) -> None:
        """Learns from the input tokens that an answer reported for what we counted."""
        if counted <= 0 or reported <= 0 or reported > MOST * counted:
            return
        ratio = max(reported / counted, LEAST)
        scale = ratio if ratio >= known.scale else known.scale - _FALL * (known.scale - ratio)
        self._keep(model, replace(known, scale=scale))

    def refused(
        self, model: ModelRef, known: Known, counted: int, window: int, tokens: int | None, limit: int | None
    ) -> None:
        """Learns from a refusal for size: from the count that it names, else that the window was not enough (4.4).

        Args:
            window: tokens that the model was taken to take.
            tokens, limit: as the refusal names them.
        """
        smaller = limit if limit is not None and LEAST_LIMIT <= limit < window else None
        at_least = tokens or (window if smaller is None else 0)
        scale = known.scale if at_least > MOST * counted else max(known.scale, at_least / max(1, counted))
        now = self._clock()
        if smaller is not None and not self._knows(model, smaller, now):
            log.warning(
                "a model takes less than was known", provider=model.provider, model=model.model, window=window,
                takes=smaller,
            )  # fmt: skip
        self._keep(model, Known(scale, smaller or known.limit, now + REFUSAL_SECONDS))

    def _knows(self, model: ModelRef, limit: int, now: float) -> bool:
        """Whether another call has learned it meanwhile: some are made side by side."""
        with self._lock:
            known = self._known.get(model)
        return known is not None and known.limit == limit and known.until > now

    def _keep(self, model: ModelRef, known: Known) -> None:
        with self._lock:
            self._known.pop(model, None)
            self._known[model] = known
            if len(self._known) > _MODELS:
                del self._known[next(iter(self._known))]
