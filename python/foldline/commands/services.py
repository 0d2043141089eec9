"""What every command works with, and what it knows of its caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from foldline import _core
from foldline.commands.bell import EventBell
from foldline.commands.curators import Curators
from foldline.commands.live import Sessions
from foldline.commands.workers import Workers
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import Factor, ModelInfo
from foldline.domain.policy import CHOOSE_WRITER, Layer, Policy, Resolved, require_provider, resolve
from foldline.domain.ports import Formats, Memory, Rewrite, Sources, Store
from foldline.domain.rows import ModelRef
from foldline.domain.session import Session
from foldline.engine.catalog import Catalog
from foldline.engine.factor import within

WEIGHTED_BYTES = "weighted_bytes"
"""Estimator name where no vocabulary is embedded (4.5)."""


ANSWER_SECONDS = 0.2
"""What a caller that waits keeps of its deadline to be answered in (W9)."""
MAX_FACTORS = 4096
"""Learned factors held in memory; further ones are read when they are needed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls and how long it waits.

    Attributes:
        payload: SHA-256 of the request as received, for W2.
        deadline: ``time.monotonic()`` at which the host stops waiting, None for never.
        admin: whether it gave an admin key.
    """

    tenant: str = ""
    payload: bytes = b""
    method: str = ""
    deadline: float | None = None
    admin: bool = False

    def left(self) -> float | None:
        """Seconds until the host's deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def require_admin(self) -> None:
        """Refuses whoever may not administrate (M7).

        Raises:
            FoldlineError: ADMIN_ONLY.
        """
        if not self.admin:
            raise FoldlineError(
                Reason.ADMIN_ONLY,
                f"{self.method} needs an admin key, as metadata 'authorization: Bearer KEY'; the server's keys are "
                "those that its settings admin.keys_file or admin.keys_env name",
                method=self.method,
            )


@dataclass(frozen=True, slots=True)
class Services:
    """The parts a server is made of; built once in ``foldline.server.app`` (and by tests, with real parts)."""

    store: Store
    memory: Memory
    sources: Sources
    formats: Formats
    bell: EventBell
    catalog: Catalog
    sessions: Sessions
    curators: Curators
    workers: Workers = field(default_factory=Workers)
    config_policy: Mapping[str, object] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    model: Callable[[ModelRef], ModelInfo] = field(init=False)
    """What the catalog says of a model."""
    _factors: dict[tuple[str, ModelRef], Factor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", lru_cache(maxsize=4096)(self.catalog.lookup))

    def policy(self, session: Session, override: Layer | None = None) -> Resolved:
        """The effective policy: built-in < config file < session < this request.

        Raises:
            FoldlineError: FIELD_VALIDATION.
        """
        if not override:
            return _resolved(_frozen(self.config_policy), _frozen(session.policy))
        resolved = resolve({"config": self.config_policy, "session": session.policy, "request": override})
        self.require_provider(override, resolved.policy)
        return resolved

    def require_provider(self, changed: Layer, policy: Policy) -> None:
        """Refuses a choice of who writes that calls a provider that is not configured (S2).

        One that was made while it was configured stays, and says so with each fold that fails of it.

        Args:
            changed: what of the policy is chosen now.

        Raises:
            FoldlineError: FIELD_VALIDATION.
        """
        if changed.keys() & CHOOSE_WRITER:
            require_provider(policy, self.sources.providers)

    def factor(self, tenant: str, model: ModelRef) -> Factor:
        """The learned factor of a model, 1 before its first reading (4.5)."""
        known = self._factors.get((tenant, model))
        if known is None:
            known = self.store.factor(tenant, model) or Factor(model)
            if len(self._factors) < MAX_FACTORS:
                self._factors[tenant, model] = known
        return known

    def factor_of(self, session: Session, model: ModelRef) -> Factor:
        """The learned factor within the bounds of the session's policy: sessions that share it may bound it apart."""
        return within(self.factor(session.tenant, model), self.policy(session).policy)

    def rewrites(self, key: int) -> list[Rewrite]:
        """Every rewrite of a session, its creation first."""
        return self.store.rewrites(key, -1, 1 << 30)

    def learned(self, tenant: str, factor: Factor) -> None:
        """Takes a committed factor."""
        if (tenant, factor.model) in self._factors or len(self._factors) < MAX_FACTORS:
            self._factors[tenant, factor.model] = factor

    def encoding(self, model: ModelRef) -> str | None:
        """The embedded vocabulary of a model, None where its tokens are weighted bytes."""
        return self.model(model).encoding or None

    def count(self, text: str, model: ModelRef) -> int:
        """Raw estimate of a text's tokens (4.5)."""
        encoding = self.encoding(model)
        return _core.count_tokens(text, encoding) if encoding else _core.weighted_tokens(text)


def _frozen(layer: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in layer.items()))


@lru_cache(maxsize=1024)
def _resolved(config: tuple[tuple[str, object], ...], session: tuple[tuple[str, object], ...]) -> Resolved:
    return resolve({"config": dict(config), "session": dict(session)})
