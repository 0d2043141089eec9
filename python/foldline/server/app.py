"""Puts a server together: store, memory, summaries and formats behind the use cases, and the use cases behind gRPC."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc
import structlog
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2_grpc

from foldline import _core, formats
from foldline.access import AdminKeys
from foldline.commands.bell import EventBell
from foldline.commands.curators import Curators
from foldline.commands.fold import interrupted, write_owed
from foldline.commands.host_owned.projections import expire_projections
from foldline.commands.live import Sessions
from foldline.commands.services import Services
from foldline.config import Config, ConfigError
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import resolve
from foldline.domain.ports import Compactor, Sources, Summarizer
from foldline.domain.rows import ModelRef
from foldline.engine.catalog import DEFAULT_CATALOG, Catalog
from foldline.server import ENCODING, listening, parts, reflection, servicers
from foldline.server.chain import Chain
from foldline.server.health import CORE, FOLDS, STORE, Readiness
from foldline.server.later import is_made, made
from foldline.server.pools import Pools
from foldline.server.validation import compile_rules
from foldline.store.sqlite.store import SqliteStore
from foldline.v1 import compaction_service_pb2, session_service_pb2

log = structlog.get_logger(__name__)

_HOT = (
    compaction_service_pb2.PrepareRequestRequest,
    compaction_service_pb2.RecordAnswerRequest,
    session_service_pb2.AppendRowsRequest,
)
"""Requests of every model call."""

# The largest request that is refused with its size by us; gRPC itself refuses beyond, also with both sizes.
_TAKEN_BEYOND_LIMIT = 4
PING_SECONDS = 5.0
PURGE_SECONDS = 3600.0

_ANSWER = 0.5
"""Seconds of the grace in which calls that wait for a fold are answered."""
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 1024),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)


def _catalog(path: Path | None) -> Catalog:
    if path is None:
        return DEFAULT_CATALOG
    try:
        return DEFAULT_CATALOG.overlaid(Catalog.from_json(json.loads(path.read_text("utf-8"))))
    except OSError as error:
        raise ConfigError(f"the catalog {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"the catalog {path} is not JSON: {error}") from None
    except FoldlineError as error:
        raise ConfigError(f"{path}: {error.message}") from None


class Server:
    """A server on its addresses. ``start`` listens, ``ready`` lets calls in, ``stop`` drains.

    Attributes:
        addresses: what it listens on, as clients of grpcio dial it.
    """

    def __init__(
        self, config: Config, store: SqliteStore, catalog: Catalog, sources: Sources, clock: Callable[[], float]
    ) -> None:
        self.config = config
        bell = EventBell()
        self._memory = parts.memory_of(config, store, bell.ring)
        self.services = Services(
            store=store,
            memory=self._memory,
            sources=sources,
            formats=formats,
            bell=bell,
            catalog=catalog,
            sessions=Sessions(store),
            curators=Curators(store, config.server.heartbeat_interval, clock),
            config_policy=config.policy,
            clock=clock,
        )
        self.addresses: tuple[str, ...] = ()
        self._waking: threading.Thread | None = None
        self.readiness = Readiness((STORE, FOLDS, CORE))
        self.pools = Pools(config.server)
        limit = config.server.max_message_bytes
        self._grpc = grpc.server(
            self.pools.calls,
            interceptors=[Chain(self.pools, self.readiness, limit, config.server.max_wait)],
            options=[
                *_OPTIONS,
                ("grpc.max_receive_message_length", min(limit * _TAKEN_BEYOND_LIMIT, 2**31 - 1)),
                ("grpc.max_send_message_length", limit),
            ],
        )
        health_pb2_grpc.add_HealthServicer_to_server(self.readiness.servicer, self._grpc)
        self._names = names = servicers.register(self._grpc, self.services, self._settings())
        self.readiness.serve(names)
        if config.server.reflection:
            reflection.add(self._grpc, (*names, "grpc.health.v1.Health"))

    def _settings(self) -> servicers.Settings:
        catalog = self.services.catalog
        models = (*catalog.models.items(), ("default", catalog.default))
        return servicers.Settings(
            version=_core.__version__,
            core_version=_core.__version__,
            max_message_bytes=self.config.server.max_message_bytes,
            heartbeat_interval=self.config.server.heartbeat_interval,
            start_time=time.time(),
            embedder=lambda: parts.embedder_name(self.config.memory),
            config=tuple(self.config.describe()),
            admin_keys=AdminKeys(self.config.admin.keys_env, self.config.admin.keys_file),
            policy=resolve({"config": self.config.policy}),
            models=tuple((ModelRef(info.type.value.lower(), name), info) for name, info in models),
        )

    def start(self) -> None:
        """Listens; calls are NOT_READY until ``ready``.

        Raises:
            ConfigError: an address that cannot be listened on, or none.
        """
        addresses: list[str] = []
        if self.config.listen:
            addresses.append(listening.tcp(self._grpc, self.config.listen))
        if self.config.socket_path:
            addresses += listening.unix(self._grpc, self.config.socket_path, wanted=self.config.socket is not None)
        if not addresses:
            raise ConfigError("listen and socket are both empty: there is nothing to listen on")
        self.addresses = tuple(addresses)
        self._grpc.start()

    def ready(self) -> None:
        """Ends what a crash cut off, warms the core, and lets calls in."""
        self.readiness.set(STORE, True)
        self.services.store.clear_leases()
        ended = interrupted(self.services)
        if ended:
            log.warning("ended folds that a crash cut off", folds=ended)
        expire_projections(self.services)
        self.readiness.set(FOLDS, True)
        _core.warm(ENCODING)
        for kind in _HOT:
            compile_rules(kind)
        # It starts as it is made: by this thread, or by the first call that needs it.
        self._waking = threading.Thread(target=lambda: made(self._memory), name="memory-start", daemon=True)
        self._waking.start()
        self.readiness.set(CORE, True)

    def stop(self, delay: float = 0.0, grace: float | None = None) -> bool:
        """NOT_SERVING, then no more calls, then what is under way gets ``grace`` seconds; closes the store.

        Returns:
            Whether every call had ended.
        """
        grace = self.config.server.drain_grace if grace is None else grace
        self.readiness.drain()
        if delay:
            time.sleep(delay)
        self.services.bell.wake()
        stopped = self._grpc.stop(grace)
        if not stopped.wait(grace - min(_ANSWER, grace / 2)):
            # Who still waits for a fold is told so, instead of being cut off without a reason.
            self.services.workers.ending.set()
            self.services.curators.stop()
            self.services.sessions.wake()
            stopped.wait()
        ended = _until(lambda: self.pools.busy() == 0, 1.0)
        self.pools.shutdown()
        self.services.curators.stop()
        self.services.workers.stop(grace)
        if self._waking:
            self._waking.join()
        if is_made(self._memory):
            self._memory.stop()
        try:
            write_owed(self.services)
        except FoldlineError as error:
            log.error("the ends of folds are lost", reason=error.reason, exc_info=error)
        self.services.store.close()
        return ended

    def upkeep(self, stopped: threading.Event) -> None:
        """Until ``stopped``: watches the store, and forgets what need not be repeated any more (W2).

        First it does what ``ready`` leaves out because no agent's loop waits for it yet: it compiles the rules of
        further requests, and imports what writes summaries and the SDKs of providers.
        """
        for kind in _request_kinds(self._names):
            compile_rules(kind)
        sources = self.services.sources
        for source in (sources.extractive, sources.mechanical, sources.provider, sources.native):
            load = getattr(made(source), "load", None)
            if load is not None:
                load()
        purged = float("-inf")
        while not stopped.wait(PING_SECONDS):
            try:
                self.services.store.ping()
                self.readiness.set(STORE, True)
                write_owed(self.services)
                expire_projections(self.services)
                if time.monotonic() - purged > PURGE_SECONDS:
                    self.services.store.purge()
                    purged = time.monotonic()
            except FoldlineError as error:
                if stopped.is_set():
                    return
                log.error("the store failed", reason=error.reason, data=str(self.config.data), exc_info=error)
                self.readiness.set(STORE, error.reason not in (Reason.NOT_READY, Reason.STORE_CORRUPT))
            except Exception as error:
                log.error("upkeep failed", exc_info=error)


def _request_kinds(services: Iterable[str]) -> Iterator[type[Message]]:
    pool = descriptor_pool.Default()
    for name in services:
        for method in pool.FindServiceByName(name).methods:
            yield GetMessageClass(method.input_type)


def _until(done: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


_UNUSABLE = {"SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH"}


def _store(config: Config, clock: Callable[[], float]) -> SqliteStore:
    path = config.data.absolute() / "foldline.db"
    try:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SqliteStore(path, config.store.synchronous, clock)
    except OSError as error:
        at = f": {error.filename}" if error.filename else ""
        raise ConfigError(f"data is {config.data}, which cannot be used: {error.strerror}{at}") from None
    except FoldlineError as error:
        if error.metadata.get("cause", "").startswith(tuple(_UNUSABLE)):
            raise ConfigError(f"data is {config.data}, which cannot be used: {error.message}: {path}") from error
        # An error's own text names no path, since clients may see it (W8); whoever starts the server may.
        error.add_note(str(path))
        raise


def build(
    config: Config, summarizer: Summarizer | None = None, clock: Callable[[], float] = time.time,
    compactor: Compactor | None = None, provider: Summarizer | None = None,
) -> Server:  # fmt: skip
    """A server on an open and migrated store, not listening yet. Its summaries are extractive by default.

    Args:
        summarizer: writes in the place of the extractive one.
        provider: in the place of those that the settings name (S2).
        compactor: in the place of the one that the settings name (F12).
        clock: seconds since the epoch, for run_ttl, cooldowns and how long repeats are remembered.

    Raises:
        ConfigError: a data directory that cannot be used, the catalog file, a compactor or a provider's SDK that is
            not installed, a key that is not there, admin keys that are none.
        StoreLocked: another process serves the data directory.
        FoldlineError: STORE_CORRUPT, NOT_READY.
    """
    catalog = _catalog(config.catalog)
    sources = parts.sources_of(config, catalog, summarizer, provider, compactor)
    store = _store(config, clock)
    try:
        return Server(config, store, catalog, sources, clock)
    except BaseException:
        store.close()
        raise
