"""What servicers share: the caller, and page tokens."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import msgspec
import structlog
from google.protobuf.message import Message

from foldline.access import AdminKeys
from foldline.commands.services import Caller, Services
from foldline.config import ConfigError
from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import ModelInfo
from foldline.domain.policy import Resolved
from foldline.domain.rows import ModelRef

log = structlog.get_logger(__name__)

PAGE = (50, 500)
LONG_PAGE = (100, 1000)
"""Default and largest page of lists of records, and of lists of rows, events or models."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What servicers need of the server around them.

    Attributes:
        heartbeat_interval: seconds that a stream may be silent.
        embedder: its name.
        config: (key, value, origin) of every server setting, secrets left out.
        admin_keys: of those who may call what needs one (M7).
    """

    version: str
    core_version: str
    max_message_bytes: int
    heartbeat_interval: float
    start_time: float = field(default_factory=time.time)
    store: str = "sqlite"
    embedder: Callable[[], str] = lambda: ""
    config: tuple[tuple[str, str, str], ...] = ()
    admin_keys: AdminKeys = field(default_factory=AdminKeys)
    policy: Resolved | None = None
    models: tuple[tuple[ModelRef, ModelInfo], ...] = ()


class Servicer:
    """Base of the servicers: decode, call a use case, encode."""

    def __init__(self, services: Services, settings: Settings) -> None:
        self.services = services
        self.settings = settings

    def admin_of(self, request: Message, context: grpc.ServicerContext, method: str) -> Caller:
        """The caller of a request that needs an admin key; ``Caller.admin`` says whether it gave one (M7)."""
        given = _bearer(context)
        try:
            admin = bool(given) and self.settings.admin_keys.admit(given)
        except ConfigError as error:
            admin = False
            log.error("admin keys cannot be read: who needs one is refused", problem=str(error))
        return replace(caller_of(request, context, method), admin=admin)


def _bearer(context: grpc.ServicerContext) -> str:
    """The key of a call's metadata (RFC 6750); empty for none."""
    for name, value in context.invocation_metadata():
        if name == "authorization" and isinstance(value, str):
            scheme, _, key = value.partition(" ")
            return key.strip() if scheme.lower() == "bearer" else ""
    return ""


class Waiting(Protocol):
    """What waits for an answer: a call, or a step of a stream."""

    def time_remaining(self) -> float:
        """Seconds that it still waits."""


def caller_of(request: Message, context: Waiting, method: str, apart_from: tuple[str, ...] = ()) -> Caller:
    """The caller of a request; its payload is identified by the request as it came, some fields left out (W2)."""
    if apart_from:
        same = type(request)()
        same.CopyFrom(request)
        for name in apart_from:
            same.ClearField(name)
        request = same
    return Caller(
        payload=hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
        method=method,
        deadline=time.monotonic() + context.time_remaining(),
    )


def optional(request: Any, name: str) -> Any:
    """A field that may be absent: its value, or None."""
    return getattr(request, name) if request.HasField(name) else None


class _Token(msgspec.Struct, array_like=True):
    version: int
    parameters: str
    position: Any
    revision: int = 0


def page_size(asked: int, page: tuple[int, int] = PAGE) -> int:
    """W6, AIP-158: 0 is the default, more than the maximum is the maximum."""
    default, most = page
    return min(asked or default, most)


def page_token(request: Message, position: Any, revision: int = 0) -> str:
    """An opaque token that goes on at ``position`` with the same parameters."""
    token = msgspec.json.encode(_Token(1, _parameters(request), position, revision))
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def read_token(request: Any, of: type = int) -> tuple[Any, int] | None:
    """Position, of the type that the list pages by, and revision of a request's page token; None for the first page.

    Raises:
        FoldlineError: PAGE_TOKEN_MISMATCH for a token of other parameters, or of none this server made.
    """
    if not request.page_token:
        return None
    try:
        raw = base64.urlsafe_b64decode(request.page_token + "=" * (-len(request.page_token) % 4))
        token = msgspec.json.decode(raw, type=_Token)
    except (ValueError, RecursionError) as error:
        raise FoldlineError(Reason.PAGE_TOKEN_MISMATCH, "page_token is none of this server's") from error
    position = token.position
    if type(position) is not of or (isinstance(position, int) and not 0 <= position < 1 << 63):
        raise FoldlineError(Reason.PAGE_TOKEN_MISMATCH, "page_token is none of this server's")
    if token.version != 1 or token.parameters != _parameters(request):
        raise FoldlineError(
            Reason.PAGE_TOKEN_MISMATCH,
            f"page_token belongs to a request with other parameters: only {' and '.join(_sizes(request))} may change",
        )
    return token.position, token.revision


def _sizes(request: Message) -> list[str]:
    return [size for size in ("page_size", "limit") if size in request.DESCRIPTOR.fields_by_name]


def _parameters(request: Message) -> str:
    same = type(request)()
    same.CopyFrom(request)
    same.ClearField("page_token")
    for size in _sizes(request):
        same.ClearField(size)
    return hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()[:16]
