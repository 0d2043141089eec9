"""Embeds pending entries in the background (M8), a few at a time, so that neither appends nor answers wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import StoredEntry
from foldline.domain.ports import Embedder, Store
from foldline.memory.condition import Condition
from foldline.memory.endpoint import EmbedderDown
from foldline.memory.vectors import is_unit

BATCH = 16
"""Entries a write: a restart repeats at most these, and the write lock is held for less than a millisecond."""
RETRY_SECONDS = 30.0
"""Wait after the embedder or the store failed as a whole."""
STOP_SECONDS = 5.0
"""What stopping waits for a call that is under way."""
PROBE = "probe"
"""Embedded after a failure, to tell a bad entry from a bad embedder."""
UNAVAILABLE = "embedder unavailable, memory is searched by words alone"
QUARANTINED = "memory entry quarantined, it is found by words alone"

log = structlog.get_logger(__name__)


class EmbedderHolder:
    """The embedder, made on the backfill's thread; a failure is remembered and said (M8).

    Args:
        factory: makes the embedder; None means that there is none by configuration.

    Attributes:
        problem: why there is no embedder, or none that answers; empty while nothing is known against it.
    """

    def __init__(self, factory: Callable[[], Embedder] | None) -> None:
        self._factory = factory
        self._done = threading.Event()
        self._told = ""
        self.embedder: Embedder | None = None
        self.problem = "" if factory else "no embedder is configured"
        if factory is None:
            self._done.set()

    @property
    def configured(self) -> bool:
        return self._factory is not None

    def load(self) -> Embedder | None:
        """Makes the embedder if that was not tried yet; None when it is unavailable. For one thread.

        Raises:
            EmbedderDown: it may be back later; asked again it is tried again.
        """
        if self._factory is None or self._done.is_set():
            return self.embedder
        started = time.monotonic()
        try:
            self.embedder = self._factory()
            log.info("embedder ready", identity=self.embedder.identity, seconds=round(time.monotonic() - started, 3))
            self.works()
        except EmbedderDown as error:
            self.fails(error)
            raise
        except FoldlineError as error:
            self.fails(error)
        except Exception as error:
            self.problem = "the embedder failed to start"
            log.error(UNAVAILABLE, exc_info=error)
        self._done.set()
        return self.embedder

    def works(self) -> None:
        """It has just answered."""
        if self._told:
            log.info("embedder available again")
        self.problem = self._told = ""

    def fails(self, error: FoldlineError) -> None:
        """It has just failed as a whole; said in the log once for each cause."""
        self.problem = error.message
        if error.message != self._told:
            self._told = error.message
            log.error(UNAVAILABLE, problem=error.message, **error.metadata)

    def discard(self) -> None:
        """The model behind it has become another: it is made anew when it is next needed."""
        self._done.clear()
        self.embedder = None

    def wait(self, seconds: float) -> Embedder | None:
        """The embedder if it is, or gets, ready within ``seconds``."""
        self._done.wait(seconds)
        return self.embedder


class Backfill:
    """One thread that loads the embedder when first needed and embeds what is pending, also after a restart.

    Args:
        condition: told of whatever changes what search can do.
        masked: a text of a session as its embedder may see it.
    """

    def __init__(
        self, store: Store, holder: EmbedderHolder, condition: Condition, masked: Callable[[int, str], str]
    ) -> None:
        self._store = store
        self._holder = holder
        self._condition = condition
        self._masked = masked
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._suspected = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopping = False
        self.wake()
        self._thread = threading.Thread(target=self._run, name="memory-backfill", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def suspect(self) -> None:
        """Says that the embedder did not answer a search: it is tried, and sessions are told."""
        self._suspected = True
        self.wake()

    def settle(self, seconds: float) -> bool:
        """Waits until everything that was pending at the call has been tried; False if that took longer."""
        with self._changed:
            asked = self._asked
            return self._changed.wait_for(lambda: self._done >= asked, seconds)

    def stop(self) -> None:
        """Ends the thread after the call it is at; what is not stored yet stays pending."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._asked > self._done)
                asked = self._asked
            if self._stopping:
                return
            try:
                self._store.merge_segments(lambda: self._stopping)
                self._drain()
            except Exception as error:
                if self._stopping:
                    return
                self._failed(error)
                self._pause(asked)
            else:
                with self._changed:
                    self._done = asked
                    self._changed.notify_all()

    def _drain(self) -> None:
        if not self._holder.configured:
            return
        # Nothing at all is stored: the embedder can wait, and the memory it takes.
        if self._holder.embedder is None and not self._condition.told() and not self._store.pending_vectors("", 1):
            return
        embedder = self._holder.load()
        if embedder and self._suspected:
            self._probe(embedder)
            self._holder.works()
            self._suspected = False
        self._condition.report(embedder, self._holder.problem)
        while embedder and not self._stopping and self._step(embedder):
            pass
        if embedder and not self._stopping:
            self._condition.report(embedder, "")

    def _failed(self, error: Exception) -> None:
        """What failed as a whole; sessions are told where that is the embedder."""
        if not isinstance(error, FoldlineError) or error.reason not in (
            Reason.EMBEDDER_UNAVAILABLE,
            Reason.EMBEDDING_MISMATCH,
        ):
            log.warning("memory backfill paused", retry_seconds=RETRY_SECONDS, exc_info=error)
            return
        self._holder.fails(error)
        if error.reason is Reason.EMBEDDING_MISMATCH:
            self._holder.discard()
        try:
            self._condition.report(self._holder.embedder, error.message)
        except Exception as other:
            log.warning("the state of memory was not told", exc_info=other)

    def _probe(self, embedder: Embedder) -> None:
        """Embeds a text that every embedder can.

        Raises:
            FoldlineError: EMBEDDING_MISMATCH where the vector has another width; else EMBEDDER_UNAVAILABLE.
        """
        try:
            (vector,) = embedder.embed([PROBE])
        except FoldlineError:
            raise
        except Exception as error:
            raise FoldlineError(
                Reason.EMBEDDER_UNAVAILABLE, "the embedder fails on every text", embedder=embedder.identity
            ) from error
        if not is_unit(vector, embedder.width):
            raise FoldlineError(
                Reason.EMBEDDER_UNAVAILABLE, "the embedder answers what is no vector", embedder=embedder.identity
            )

    def _pause(self, asked: int) -> None:
        """Waits before another try, unless somebody asks again."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._asked > asked, RETRY_SECONDS)

    def _step(self, embedder: Embedder) -> bool:
        """Embeds one batch; False when nothing is pending.

        Raises:
            FoldlineError: EMBEDDER_UNAVAILABLE, when not the entry but the embedder is at fault; EMBEDDING_MISMATCH.
        """
        pending = self._store.pending_vectors(embedder.identity, max(BATCH, embedder.batch))
        vectors: list[tuple[int, bytes]] = []
        for start in range(0, len(pending), embedder.batch):
            if self._stopping:
                break
            vectors += self._vectors(embedder, pending[start : start + embedder.batch])
            self._holder.works()
        if vectors:
            self._store.put_vectors(embedder.identity, vectors)
        return bool(pending)

    def _vectors(self, embedder: Embedder, pending: Sequence[tuple[int, StoredEntry]]) -> list[tuple[int, bytes]]:
        """Vectors of entries; those that cannot be embedded get an empty one, which quarantines them (M9)."""
        try:
            found = embedder.embed([self._masked(key, stored.entry.text) for key, stored in pending])
        except FoldlineError:
            raise
        except Exception as error:
            if len(pending) > 1:
                return [each for one in pending for each in self._vectors(embedder, [one])]
            self._probe(embedder)
            ((key, stored),) = pending
            log.warning(QUARANTINED, session=key, entry=stored.id, exc_info=error)
            return [(stored.id, b"")]
        # Whole memories are not given up, nor their older vectors, for an embedder that answers nothing else.
        if not all(is_unit(vector, embedder.width) for vector in found):
            self._probe(embedder)
        vectors: list[tuple[int, bytes]] = []
        for (key, stored), vector in zip(pending, found, strict=True):
            if not is_unit(vector, embedder.width):
                log.warning(
                    QUARANTINED, session=key, entry=stored.id, vector_bytes=len(vector), width=embedder.width
                )  # fmt: skip
                vector = b""
            vectors.append((stored.id, vector))
        return vectors
