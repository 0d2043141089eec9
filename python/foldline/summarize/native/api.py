"""What the compaction of all providers has in common: a call, its item, and what says that it is not there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from foldline.domain.enums import ModelType
from foldline.domain.native import NativeRoute, NativeTask
from foldline.domain.rows import ModelRef
from foldline.summarize.providers.endpoint import Answer, Call

NOT_SERVED = (404, 405, 501)
"""HTTP statuses of an API that a gateway does not serve (XI3)."""


class Incapable(Exception):
    """The endpoint, or its model, has no such compaction (N3); its text says why.

    Attributes:
        body: the response where one came: an answer to something else is paid for too (XI7).
    """

    def __init__(self, why: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(why)
        self.body = body


class NotCompacted(Exception):
    """The provider compacted nothing this time; its text says why.

    Attributes:
        unfit: these rows are nothing for its call, as too many or too few.
    """

    def __init__(self, why: str, *, unfit: bool = False) -> None:
        super().__init__(why)
        self.unfit = unfit


@dataclass(frozen=True, slots=True)
class Opened:
    """A client for the calls of one compaction.

    Attributes:
        call: asks for the item, by the fields of ``Ask``.
    """

    call: Call

    async def probe(self, model: str) -> None:
        """Asks without cost whether the capability is there.

        Raises:
            Incapable: it is not.
            CallFailed: no answer came.
        """


class NativeApi(Protocol):
    """One provider's compaction as configured.

    Attributes:
        kind: how its usage is read (4.3).
        beta: what requests that hold its items must name; empty for nothing.
    """

    kind: ModelType
    beta: str

    def load(self) -> object:
        """Imports the SDK, which takes a second or more once: before the call's time counts."""

    def route(self, model: ModelRef) -> NativeRoute:
        """The way to a model."""

    def most(self, task: NativeTask) -> int:
        """Tokens of answer to ask for."""

    def fields(self, task: NativeTask) -> dict[str, Any]:
        """The fields of the call."""

    def open(self, key: str) -> AbstractAsyncContextManager[Opened]:
        """A client; nothing stays open after it."""

    def item(self, answer: Answer) -> str:
        """The item of an answer, as JSON.

        Raises:
            Incapable: there is no item, or several.
            NotCompacted: the provider said that it did not compact.
        """
