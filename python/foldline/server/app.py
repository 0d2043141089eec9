"""Puts a server together: store, memory, summaries and formats behind the use cases, and the use cases behind gRPC."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import grpc
import structlog
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2_grpc

from foldline import _core, formats
from foldline.access import AdminKeys, Key, require_sdk
from foldline.commands.bell import EventBell
from foldline.commands.curators import Curators
from foldline.commands.fold import interrupted
from foldline.commands.host_owned.projections import expire_projections
from foldline.commands.live import Sessions
from foldline.commands.services import Services
from foldline.config import Config, ConfigError, Memory
from foldline.domain.enums import RefusalKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import DEFAULT_REDACT, resolve
from foldline.domain.ports import Compactor, Embedder, Sources, Store, Summarizer
from foldline.domain.rows import ModelRef
from foldline.engine.catalog import DEFAULT_CATALOG, Catalog
from foldline.engine.refusals import classify
from foldline.engine.summary_text import text_faults
from foldline.engine.usage import from_response
from foldline.memory.embed import MiniLm
from foldline.memory.endpoint import Endpoint
from foldline.memory.service import MemoryService
from foldline.server import ENCODING, listening, reflection, servicers
from foldline.server.chain import Chain
from foldline.server.compactors import compactor_named
from foldline.server.health import CORE, FOLDS, STORE, Readiness
from foldline.server.pools import Pools
from foldline.server.validation import compile_rules
from foldline.store.sqlite.store import SqliteStore
from foldline.summarize.curated import CuratedText
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.summarize.mechanical import MechanicalHandoff
from foldline.summarize.native import NativeCompactor, native_from
from foldline.summarize.providers import Judges, ProviderSummarizer, provider_from
from foldline.summarize.redact import Redactor
from foldline.summarize.source import scored
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

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 1024),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)


def _count(text: str) -> int:
    return _core.count_tokens(text, ENCODING)


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


_EMBEDDERS: dict[str, Callable[[Memory], str]] = {
    "minilm": lambda settings: MiniLm.identity,
    "openai": lambda settings: f"openai/{settings.model}",
    "none": lambda settings: "",
}
"""How ``GetServerInfo`` names the embedder."""


def _embedder(settings: Memory) -> Callable[[], Embedder] | None:
    """What makes the configured embedder, when it is first needed.

    Raises:
        ConfigError: no model, an SDK that is not installed, a key that is not there.
    """
    if settings.embedder == "minilm":
        return MiniLm
    if settings.embedder == "none":
        return None
    if not settings.model:
        raise ConfigError("memory.embedder is openai, which needs memory.model")
    require_sdk("memory.embedder", "openai", "openai")
    if settings.api_key_env and settings.api_key_file:
        raise ConfigError("memory names a key by api_key_env and by api_key_file: one of them")
    key = Key("memory", settings.api_key_env, settings.api_key_file, optional=bool(settings.base_url))
    return lambda: Endpoint(settings.model, settings.base_url, key.read)


def _masked(config: Config, store: Store) -> Callable[[int, str], str]:
    """S4: what a session's policy would hide from a model of others is hidden from an embedding endpoint too."""
    if config.memory.embedder != "openai":
        return lambda key, text: text

    @lru_cache(maxsize=256)
    def redactor(patterns: tuple[str, ...]) -> Redactor:
        try:
            return Redactor(patterns)
        except FoldlineError:  # A session's own, which fails its folds: what all hide is hidden all the same.
            return Redactor(DEFAULT_REDACT)

    def masked(key: int, text: str) -> str:
        policy = resolve({"config": config.policy, "session": store.policy_of(key)}).policy
        return redactor(tuple(policy.summary.redact)).mask(text)

    return masked


def _judges(catalog: Catalog) -> Judges:
    """What the rules know of models, refusals, usage and texts, for summaries by providers."""

    def count(text: str, model: ModelRef) -> int:
        encoding = catalog.lookup(model).encoding
        return _core.count_tokens(text, encoding) if encoding else _core.weighted_tokens(text)

    def refusal(status: int, body: bytes, provider: str) -> tuple[RefusalKind, float | None]:
        found = classify(status, body, provider)
        return found.kind, found.retry_after

    return Judges(
        count=count,
        window=lambda model: catalog.lookup(model).ceiling,
        refusal=refusal,
        usage=from_response,
        faults=text_faults,
    )


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
        self._memory = MemoryService(
            store, _embedder(config.memory), config.memory.cache_bytes, _count, bell.ring, masked=_masked(config, store)
        )
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
            embedder=_EMBEDDERS[self.config.memory.embedder](self.config.memory),
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
        self._memory.start()
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
        self._grpc.stop(grace).wait()
        ended = _until(lambda: self.pools.busy() == 0, 1.0)
        self.pools.shutdown()
        self.services.curators.stop()
        self.services.workers.stop(grace)
        self._memory.stop()
        self.services.store.close()
        return ended

    def upkeep(self, stopped: threading.Event) -> None:
        """Until ``stopped``: watches the store, and forgets what need not be repeated any more (W2).

        First it does what ``ready`` leaves out because no agent's loop waits for it yet: it compiles the rules of
        further requests and imports the SDKs of providers.
        """
        for kind in _request_kinds(self._names):
            compile_rules(kind)
        if isinstance(self.services.sources.provider, ProviderSummarizer):
            self.services.sources.provider.load()
        if isinstance(self.services.sources.native, NativeCompactor):
            self.services.sources.native.load()
        purged = float("-inf")
        while not stopped.wait(PING_SECONDS):
            try:
                self.services.store.ping()
                self.readiness.set(STORE, True)
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
    sources = Sources(
        extractive=summarizer or ExtractiveSummarizer(_count),
        mechanical=MechanicalHandoff(_count),
        provider=provider or provider_from(config, _judges(catalog)),
        compactor=compactor or (compactor_named(config.compactor) if config.compactor else None),
        carrying=lambda request: CuratedText(request, _count),
        scored=lambda request, written: scored(request, written, _count),
        native=native_from(config, _judges(catalog)),
    )
    store = _store(config, clock)
    try:
        return Server(config, store, catalog, sources, clock)
    except BaseException:
        store.close()
        raise
