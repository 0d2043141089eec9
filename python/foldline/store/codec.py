"""Stored form of the records that no query looks into: JSON, read back field by field.

Fields that a record does not have yet take their defaults, fields that it no longer has are passed over, so that a
newer server reads what an older one wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

import msgspec

from foldline.domain.changes import replace
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Event
from foldline.domain.folding import OffsetRange
from foldline.domain.policy import Policy
from foldline.domain.session import LedgerCall, Session

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(data: bytes, kind: type[T]) -> T:
    """Reads a stored record.

    Raises:
        FoldlineError: STORE_CORRUPT where the bytes are no such record.
    """
    try:
        return cast(T, _decoder(cast(Any, kind)).decode(data))
    except msgspec.MsgspecError as error:
        raise FoldlineError(
            Reason.STORE_CORRUPT,
            f"a stored {kind.__name__} of {len(data)} bytes cannot be read",
            record=kind.__name__,
        ) from error


def encode_session(session: Session) -> bytes:
    """A session's state without the call ledger, which is kept beside it."""
    run = session.open_run
    return encode(replace(session, open_run=replace(run, ledger=())) if run is not None and run.ledger else session)


def decode_session(data: bytes, key: int, memory_dropped: bool, calls: bytes | None = None) -> Session:
    """Reads a session's state; the store's own columns win over what the state says of them.

    Args:
        calls: the call ledger, which stands beside the state.
    """
    session = decode(data, Session)
    if calls is not None and session.open_run is not None:
        ledger = decode(calls, tuple[LedgerCall, ...])
        session = replace(session, open_run=replace(session.open_run, ledger=ledger))
    policy = {name: _typed(name, value) for name, value in session.policy.items()}
    return replace(session, key=key, memory_dropped=bool(memory_dropped), policy=policy)


def decode_event(data: bytes, seq: int) -> Event:
    return replace(decode(data, Event), seq=seq)


def decode_ranges(data: bytes) -> tuple[OffsetRange, ...]:
    try:
        return _decoder(tuple[tuple[int, int], ...]).decode(data)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        raise FoldlineError(Reason.STORE_CORRUPT, "a stored list of offsets cannot be read", record="ranges") from error


def _typed(name: str, value: Any) -> Any:
    kind = _knobs().get(name)
    if kind is None:
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FoldlineError(
            Reason.STORE_CORRUPT, f"the stored value of policy.{name} cannot be read", record="policy"
        ) from error


@cache
def _knobs() -> Mapping[str, Any]:
    """Type of every knob by its dotted name: JSON alone would give text for enums and lists for tuples."""
    return dict(_walk(Policy, ""))


def _walk(node: Any, prefix: str) -> list[tuple[str, Any]]:
    hints = get_type_hints(node)
    found: list[tuple[str, Any]] = []
    for item in fields(node):
        kind = hints[item.name]
        found += _walk(kind, f"{prefix}{item.name}.") if is_dataclass(kind) else [(prefix + item.name, kind)]
    return found
