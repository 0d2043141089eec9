"""Recorded conversations as the model calls they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foldline.domain.enums import WarningCode
from foldline.domain.events import Warning_
from foldline.domain.rows import (
    AssistantRow,
    ModelRef,
    NewRow,
    NoticeRow,
    RowBody,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
)
from foldline.formats.losses import Losses

ORPHAN = "orphan_result"
"""Kind of the notice that a result becomes whose call the recording does not hold."""


@dataclass(frozen=True, slots=True)
class Step:
    """One model call of a recording.

    Attributes:
        rows: what was appended before the call, the results of the answer before it included.
        answer: what came back: empty where the call failed or was aborted with nothing to keep, None where the
            recording ends before a call.
        usage: the provider's usage of the call, as its own object.
        model: who answered; empty where the recording does not say.
    """

    rows: tuple[NewRow, ...]
    answer: tuple[NewRow, ...] | None
    usage: Mapping[str, Any] | None = None
    model: ModelRef = field(default_factory=ModelRef)


@dataclass(frozen=True, slots=True)
class Recording:
    """A conversation; ``warnings`` say what was not taken as it was."""

    name: str
    steps: tuple[Step, ...]
    warnings: tuple[Warning_, ...] = ()

    @property
    def rows(self) -> tuple[NewRow, ...]:
        """Every row in order."""
        return tuple(row for step in self.steps for row in (*step.rows, *(step.answer or ())))


class Recorder:
    """Builds a recording that an append takes: every result has its call, ids are unique in their row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.losses = Losses()
        self._warnings: list[Warning_] = []
        self._steps: list[Step] = []
        self._pending: list[NewRow] = []
        self._open: dict[str, list[str]] = {}

    def warn(self, *warnings: Warning_) -> None:
        self._warnings += warnings

    def add(self, body: RowBody) -> None:
        """Takes a row that is no answer."""
        if isinstance(body, ToolResultRow):
            body = self._with_call(body)
        self._pending.append(NewRow(body))

    def answer(
        self, body: AssistantRow | None, usage: Mapping[str, Any] | None = None, model: ModelRef | None = None
    ) -> None:
        """Takes the answer of a call; None where nothing of it can be kept."""
        kept = () if body is None else (NewRow(self._with_ids(body)),)
        self._steps.append(Step(tuple(self._pending), kept, usage, model or ModelRef()))
        self._pending = []

    def recording(self) -> Recording:
        if self._pending:
            self._steps.append(Step(tuple(self._pending), None))
            self._pending = []
        return Recording(self.name, tuple(self._steps), (*self._warnings, *self.losses.warnings()))

    def _with_ids(self, body: AssistantRow) -> AssistantRow:
        """Gives calls that share an id in one row ids of their own; notes which calls are open."""
        taken: set[str] = set()
        content = []
        opened: dict[str, list[str]] = {}
        for block in body.content:
            if isinstance(block, ToolCallBlock):
                given, number = block.call_id, 1
                while block.call_id in taken:
                    number += 1
                    block = msgspec.structs.replace(block, call_id=f"{given}_{number}")
                if block.call_id != given:
                    self.losses.note("call ids used twice in one answer are renamed", code=WarningCode.CALL_ID_RENAMED)
                taken.add(block.call_id)
                opened.setdefault(given, []).append(block.call_id)
            content.append(block)
        for given, actual in opened.items():
            # The newest row's calls are answered first (R3), those of one row in their order.
            self._open[given] = actual + self._open.get(given, [])
        return msgspec.structs.replace(body, content=tuple(content))

    def _with_call(self, body: ToolResultRow) -> ToolResultRow | NoticeRow:
        waiting = self._open.get(body.call_id)
        if waiting:
            return msgspec.structs.replace(body, call_id=waiting.pop(0))
        self.losses.note("results of calls that the recording does not hold are kept as notices")
        lead = TextBlock(f"[Result of the unknown call {body.call_id}:]")
        return NoticeRow((lead, *body.content), ORPHAN, body.create_time)
