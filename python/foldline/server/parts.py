"""The parts of a server that settings choose: what writes summaries, and memory with its embedder.

Most of them are first needed by a fold or a search, long after a start, and are imported then or by the threads that
warm a server up: numpy, the embedder and the summaries would be a third of the time until it is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from foldline import _core
from foldline.access import Key, require_sdk
from foldline.config import Config, ConfigError
from foldline.config import Memory as MemorySettings
from foldline.domain.changes import replace
from foldline.domain.curators import Carried
from foldline.domain.enums import SummarySourcePolicy
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.domain.policy import DEFAULT_REDACT, require_provider, resolve
from foldline.domain.ports import Compactor, Embedder, Sources, Store, Summarizer
from foldline.domain.rows import ModelRef
from foldline.engine.catalog import Catalog
from foldline.engine.refusals import classify
from foldline.engine.summary_text import text_faults
from foldline.engine.usage import from_response
from foldline.server import ENCODING
from foldline.server.compactors import compactor_named
from foldline.server.later import later

if TYPE_CHECKING:
    from foldline.domain.native import NativeSource
    from foldline.memory.service import MemoryService
    from foldline.summarize.providers import Judges, ProviderSummarizer


def sources_of(
    config: Config, catalog: Catalog, extractive: Summarizer | None, provider: Summarizer | None,
    compactor: Compactor | None,
) -> Sources:  # fmt: skip
    """Who writes summaries; what is given stands in the place of what the settings name.

    Raises:
        ConfigError: a compactor or an SDK that is not installed, a key that is not there, a policy that no fold could
            follow.
    """
    native: NativeSource | None = None
    written_by: ProviderSummarizer | None = None
    if config.providers:
        from foldline.summarize.native import native_from
        from foldline.summarize.providers import provider_from

        judges = _judges(catalog)
        written_by = None if provider else provider_from(config, judges)
        provider, native = provider or written_by, native_from(config, judges)
    _refuse_settings(config, provider)
    sources = Sources(
        extractive=extractive or later(_extractive),
        mechanical=later(_mechanical),
        provider=provider,
        compactor=compactor or (compactor_named(config.compactor) if config.compactor else None),
        carrying=_carrying,
        scored=_scored,
        native=native,
        providers=tuple(config.providers),
    )
    return replace(sources, called=written_by.model_for) if written_by else sources


def _refuse_settings(config: Config, provider: Summarizer | None) -> None:
    """What would fail every fold of a server is said at its start (S2, S4).

    Raises:
        ConfigError: it is there.
    """
    origin = {key: config.origins.get(f"policy.{key}", "file") for key in config.policy}
    if provider is None and config.policy.get("summary.source") is SummarySourcePolicy.PROVIDER:
        raise ConfigError(
            f"policy.summary.source is PROVIDER (from {origin['summary.source']}), which needs a table [providers.NAME]"
        )
    try:
        require_provider(resolve({"config": config.policy}).policy, tuple(config.providers))
    except FoldlineError as error:
        raise ConfigError(f"{error.message} (from {origin['summary.fast_model']})") from None
    if "summary.redact" in config.policy:
        from foldline.summarize.redact import Redactor

        try:
            Redactor(tuple(config.policy["summary.redact"]))
        except FoldlineError as error:
            raise ConfigError(f"policy.{error.message} (from {origin['summary.redact']})") from None


def _extractive() -> Summarizer:
    from foldline.summarize.extractive import ExtractiveSummarizer

    return ExtractiveSummarizer(_count)


def _mechanical() -> Summarizer:
    from foldline.summarize.mechanical import MechanicalHandoff

    return MechanicalHandoff(_count)


def _carrying(request: SummaryRequest) -> Carried:
    from foldline.summarize.curated import CuratedText

    return CuratedText(request, _count)


def _scored(request: SummaryRequest, written: SummaryResult) -> SummaryResult:
    from foldline.summarize.source import scored

    return scored(request, written, _count)


def _count(text: str) -> int:
    return _core.count_tokens(text, ENCODING)


def memory_of(config: Config, store: Store, ring: Callable[[int], None]) -> MemoryService:
    """Memory that starts as it is made, by whoever first asks it anything.

    Raises:
        ConfigError: an endpoint without a model, its SDK, or a key that is not there.
    """
    embedder = _embedder(config.memory)

    def make() -> MemoryService:
        from foldline.memory.index import ScopeCache
        from foldline.memory.service import MemoryService

        cache = ScopeCache(config.memory.cache_bytes)
        memory = MemoryService(store, embedder, cache, _count, ring, masked=_masked(config, store))
        memory.start()
        return memory

    return later(make)


def embedder_name(settings: MemorySettings) -> str:
    """What ``GetServerInfo`` calls the embedder; empty for none."""
    if settings.embedder == "minilm":
        from foldline.memory.embed import MiniLm

        return MiniLm.identity
    return f"openai/{settings.model}" if settings.embedder == "openai" else ""


def _embedder(settings: MemorySettings) -> Callable[[], Embedder] | None:
    """What makes the configured embedder, when it is first needed.

    Raises:
        ConfigError: no model, an SDK that is not installed, a key that is not there.
    """
    if settings.embedder == "minilm":
        return _minilm
    if settings.embedder == "none":
        return None
    if not settings.model:
        raise ConfigError("memory.embedder is openai, which needs memory.model")
    require_sdk("memory.embedder", "openai", "openai")
    if settings.api_key_env and settings.api_key_file:
        raise ConfigError("memory names a key by api_key_env and by api_key_file: one of them")
    key = Key("memory", settings.api_key_env, settings.api_key_file, optional=bool(settings.base_url))

    def endpoint() -> Embedder:
        from foldline.memory.endpoint import Endpoint

        return Endpoint(settings.model, settings.base_url, key.read)

    return endpoint


def _minilm() -> Embedder:
    from foldline.memory.embed import MiniLm

    return MiniLm()


def _masked(config: Config, store: Store) -> Callable[[int, str], str]:
    """S4: what a session's policy would hide from a model of others is hidden from an embedding endpoint too."""
    if config.memory.embedder != "openai":
        return lambda key, text: text
    from foldline.summarize.redact import Redactor

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
    from foldline.summarize.providers import Judges, Refused

    def count(text: str, model: ModelRef) -> int:
        encoding = catalog.lookup(model).encoding
        return _core.count_tokens(text, encoding) if encoding else _core.weighted_tokens(text)

    def refusal(status: int, body: bytes, provider: str) -> Refused:
        found = classify(status, body, provider)
        return Refused(found.kind, found.retry_after, found.named_tokens, found.named_limit)

    return Judges(
        count=count,
        exact=lambda model: bool(catalog.lookup(model).encoding),
        window=lambda model: catalog.lookup(model).ceiling,
        refusal=refusal,
        usage=from_response,
        faults=text_faults,
    )
