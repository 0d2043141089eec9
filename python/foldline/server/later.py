"""Stands in for a part of the server until it is first used, so that it is imported after the start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _Later:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(made(self), name)


def later(make: Callable[[], T]) -> T:
    """What ``make`` returns, which is called once, by the first who asks for an attribute; the others wait for it."""
    return cast(T, _Later(make))


def made(part: Any) -> Any:
    """A part itself, made now if it was not yet."""
    if not isinstance(part, _Later):
        return part
    if part._made is None:
        with part._lock:
            if part._made is None:
                part._made = part._make()
    return part._made


def is_made(part: Any) -> bool:
    return not isinstance(part, _Later) or part._made is not None
