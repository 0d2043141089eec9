"""Repeats of a ``request_id`` (W2): the first answer again, never the change again."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from foldline.commands.services import Caller, Services
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.ports import StoredRequest

T = TypeVar("T")


def repeated(services: Services, caller: Caller, key: int, request_id: str) -> StoredRequest | None:
    """What was stored under ``request_id`` in the last 24 h, None if nothing or if there is no id.

    Raises:
        FoldlineError: REQUEST_ID_REUSED with another method or payload.
    """
    if not request_id:
        return None
    found = services.store.find_request(caller.tenant, key, request_id)
    if found is not None and (found.method != caller.method or found.payload != caller.payload):
        raise FoldlineError(
            Reason.REQUEST_ID_REUSED,
            f"request id {request_id} was used by {found.method} with "
            + ("another payload" if found.method == caller.method else "another method"),
            request_id=request_id, method=found.method,
        )  # fmt: skip
    return found


def remember(services: Services, caller: Caller, request_id: str, answer: object) -> StoredRequest | None:
    """The record to write with the change itself; None without an id."""
    if not request_id:
        return None
    return StoredRequest(request_id, caller.method, caller.payload, msgspec.json.encode(answer), services.clock())


def answer_of(request: StoredRequest, kind: type[T]) -> T:
    """The first answer of a repeated request."""
    return msgspec.json.decode(request.answer, type=kind)
