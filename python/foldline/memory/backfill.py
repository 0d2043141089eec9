"""Embeds pending entries in the background (M8), a few at a time, so that neither appends nor answers wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from foldline.domain.errors import FoldlineError
from foldline.domain.ports import Embedder, Store
from foldline.memory.index import is_unit

BATCH = 16
"""Entries a write: a restart repeats at most these, and the write lock is held for less than a millisecond."""
RETRY_SECONDS = 30.0
"""Wait after the embedder or the store failed as a whole."""
PROBE = "probe"
"""Embedded after a failure, to tell a bad entry from a bad embedder."""
UNAVAILABLE = "embedder unavailable, memory is searched by words alone"
QUARANTINED = "memory entry quarantined, it is found by words alone"

log = structlog.get_logger(__name__)


class EmbedderHolder:
    """The embedder, made once, on the backfill's thread; a failure is remembered and said (M8).

    Args:
        factory: makes the embedder; None means that there is none by configuration.
    """

    def __init__(self, factory: Callable[[], Embedder] | None) -> None:
        self._factory = factory
        self._done = threading.Event()
        self.embedder: Embedder | None = None
        self.problem = "" if factory else "no embedder is configured"
        if factory is None:
            self._done.set()

    def load(self) -> Embedder | None:
        """Makes the embedder if that was not tried yet; None when it is unavailable. For one thread."""
        if self._factory is None or self._done.is_set():
            return self.embedder
        started = time.monotonic()
        try:
            self.embedder = self._factory()
            log.info("embedder ready", identity=self.embedder.identity, seconds=round(time.monotonic() - started, 3))
        except FoldlineError as error:
            self.problem = error.message
            log.error(UNAVAILABLE, problem=error.message, **error.metadata)
        except Exception as error:
            self.problem = "the embedder failed to start"
            log.error(UNAVAILABLE, exc_info=error)
        self._done.set()
        return self.embedder

    def wait(self, seconds: float) -> Embedder | None:
        """The embedder if it is, or gets, ready within ``seconds``."""
        self._done.wait(seconds)
        return self.embedder


class Backfill:
    """One thread that loads the embedder when first needed and embeds what is pending, also after a restart."""

    def __init__(self, store: Store, holder: EmbedderHolder) -> None:
        self._store = store
        self._holder = holder
        self._changed = threading.Condition()
        self._asked = self._done = 0
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

    def settle(self, seconds: float) -> bool:
        """Waits until everything that was pending at the call has been tried; False if that took longer."""
        with self._changed:
            asked = self._asked
            return self._changed.wait_for(lambda: self._done >= asked, seconds)

    def stop(self) -> None:
        """Ends the thread after the text it is at; what is not stored yet stays pending."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._asked > self._done)
                asked = self._asked
            if self._stopping:
                return
            try:
                self._drain()
            except Exception as error:
                log.warning("memory backfill paused", retry_seconds=RETRY_SECONDS, exc_info=error)
                self._pause(asked)
            else:
                with self._changed:
                    self._done = asked
                    self._changed.notify_all()

    def _drain(self) -> None:
        # Nothing at all is stored: the embedder can wait, and the memory it takes.
        if self._holder.embedder is None and not self._store.pending_vectors("", 1):
            return
        embedder = self._holder.load()
        while embedder and not self._stopping and self._step(embedder):
            pass

    def _pause(self, asked: int) -> None:
        """Waits before another try, unless somebody asks again."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._asked > asked, RETRY_SECONDS)

    def _step(self, embedder: Embedder) -> bool:
        """Embeds one batch; False when nothing is pending.

        Raises:
            FoldlineError: EMBEDDER_UNAVAILABLE, when not the entry but the embedder is at fault.
        """
        pending = self._store.pending_vectors(embedder.identity, BATCH)
        vectors: list[tuple[int, bytes]] = []
        for key, stored in pending:
            if self._stopping:
                break
            vectors.append((stored.id, self._vector(embedder, key, stored.id, stored.entry.text)))
        if vectors:
            self._store.put_vectors(embedder.identity, vectors)
        return bool(pending)

    def _vector(self, embedder: Embedder, key: int, entry_id: int, text: str) -> bytes:
        """The vector of a text; empty, which quarantines the entry (M9), when only this text cannot be embedded."""
        try:
            vector = embedder.embed([text])[0]
            if is_unit(vector, embedder.width):
                return vector
            log.warning(QUARANTINED, session=key, entry=entry_id, vector_bytes=len(vector), width=embedder.width)
        except Exception as error:
            embedder.embed([PROBE])
            log.warning(QUARANTINED, session=key, entry=entry_id, exc_info=error)
        return b""
