"""Readiness from named components, told to health checks and held against every call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import HealthServicer

from foldline.domain.errors import FoldlineError, Reason

STORE, FOLDS, CORE = "store", "interrupted folds", "core"
"""Components of a server."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """What a server waits for. It serves while nothing is missing; ``drain`` is for good.

    Attributes:
        servicer: answers ``grpc.health.v1.Health`` for every service and for the empty name.
        draining: the server has been told to stop; calls under way go on, open streams end.
        closed: calls are refused, since a component is missing.
    """

    def __init__(self, components: Iterable[str]) -> None:
        self.servicer = HealthServicer()
        self.draining = False
        self.closed = True
        self._missing = set(components)
        self._names = [""]
        self._lock = threading.Lock()
        self._at_drain: set[Callable[[], object]] = set()
        self._tell()

    def serve(self, services: Iterable[str]) -> None:
        """Names the services that health checks may ask for."""
        with self._lock:
            self._names += services
            self._tell()

    def set(self, component: str, ready: bool) -> None:
        with self._lock:
            before = len(self._missing)
            (self._missing.discard if ready else self._missing.add)(component)
            if len(self._missing) != before:
                self._tell()

    def drain(self) -> None:
        """NOT_SERVING from now on."""
        with self._lock:
            self.draining = True
            self.servicer.enter_graceful_shutdown()
            told = tuple(self._at_drain)
        for tell in told:
            tell()

    @contextmanager
    def at_drain(self, tell: Callable[[], object]) -> Iterator[None]:
        """Within the block, ``tell`` is called when draining begins; the block looks for itself whether it has."""
        with self._lock:
            self._at_drain.add(tell)
        try:
            yield
        finally:
            with self._lock:
                self._at_drain.discard(tell)

    def require(self) -> None:
        """Refuses a call while a component is missing.

        Raises:
            FoldlineError: NOT_READY, naming the component.
        """
        if self.closed:
            raise not_ready(min(self._missing, default="server"))

    def _tell(self) -> None:
        self.closed = bool(self._missing)
        for name in self._names:
            self.servicer.set(name, _NOT_SERVING if self._missing else _SERVING)


def not_ready(component: str) -> FoldlineError:
    return FoldlineError(Reason.NOT_READY, f"the server is not ready: {component}; try again", component=component)
