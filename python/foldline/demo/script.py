"""Plays the story of ``story.txt``: who spoke, which calls went out together, what came back, and when."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any

from foldline.demo.incident import Incident
from foldline.demo.outputs import PRINTERS
from foldline.domain.enums import StopReason
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    ImageBlock,
    ModelRef,
    NewRow,
    NoticeRow,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)

MODEL = ModelRef("openai", "demo-large")
Turn = tuple[tuple[NewRow, ...], NewRow]
"""Rows appended before a model call, and the assistant row that answered."""

_FIELDS = {
    "run_command": ("command",), "query_replica": ("sql",), "read_file": ("path",), "edit_file": ("path", "change"),
    "write_file": ("path", "text"), "cardnet_events": ("merchant", "type", "day"), "pod_logs": ("pod", "since"),
    "metrics": ("name", "selector"), "list_deploys": ("service", "since"), "canary_report": ("release", "hour"),
}  # fmt: skip
_CALL = re.compile(r"\$(!?) (\w+): (.*?) => (.*)")
_FACT = re.compile(r"\{\{([\w.]+)\}\}")
_IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFUlEQVR42mNgYGD4jxUzMDAwDFIJADdyP8HzqgvPAAAAAElFTkSuQmCC"


def play(story: str, incident: Incident, random: Random) -> list[Turn]:
    """The story as model calls, every fact filled in."""
    beats = [b.splitlines() for b in re.split(r"\n\s*\n", story) if b.strip() and not b.startswith("#")]
    player = _Player(incident, random)
    position = 0
    while position < len(beats):
        head, *lines = beats[position]
        position += 1
        if head.startswith("repeat "):
            end = beats.index(["end"], position)
            for item in incident.facts[head.split()[1]]:
                for inner_head, *inner_lines in beats[position:end]:
                    player.beat(inner_head, inner_lines, item)
            position = end + 1
        else:
            player.beat(head, lines, None)
    return player.turns


class _Player:
    def __init__(self, incident: Incident, random: Random) -> None:
        self._incident, self._random = incident, random
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._pending: list[NewRow] = []
        self._calls = 0
        self.turns: list[Turn] = []

    def beat(self, head: str, lines: list[str], item: Any) -> None:
        actor, _, rest = head.partition(" ")
        text = "\n".join(self._fill(line, item) for line in lines if line[:2] not in ("$ ", "$!", "? ", "+ "))
        if actor == "day":
            self._now = datetime.fromisoformat(rest).replace(tzinfo=UTC)
        elif actor == "user":
            picture = (ImageBlock("image/png", _IMAGE),) if "+ image" in lines else ()
            self._pending.append(NewRow(UserRow((TextBlock(text), *picture), self._tick(20, 400))))
        elif actor == "notice":
            self._pending.append(NewRow(NoticeRow((TextBlock(text),), rest, self._tick(5, 60))))
        elif actor == "say":
            self._answer([TextBlock(text)], StopReason.END_TURN)
        else:
            self._act(text, lines, item)

    def _act(self, text: str, lines: list[str], item: Any) -> None:
        blocks: list[ContentBlock] = [
            ReasoningBlock(line[2:], signature=sha256(line.encode()).hexdigest()) for line in lines if line[0] == "?"
        ]
        if text:
            blocks.append(TextBlock(text))
        results = []
        for failed, tool, words, output in (m.groups() for m in map(_CALL.fullmatch, lines) if m):
            self._calls += 1
            names = _FIELDS[tool]
            arguments = dict(zip(names, self._fill(words, item).split(" ", len(names) - 1), strict=True))
            call_id = f"call_{self._calls:04d}"
            blocks.append(ToolCallBlock(call_id, tool, json.dumps(arguments, ensure_ascii=False)))
            results.append((call_id, self._print(output, item), bool(failed)))
        self._answer(blocks, StopReason.TOOL_CALLS)
        for call_id, output, is_error in results:
            row = ToolResultRow(call_id, (TextBlock(output),), is_error=is_error, create_time=self._tick(1, 12))
            self._pending.append(NewRow(row))

    def _answer(self, blocks: list[ContentBlock], stop: StopReason) -> None:
        answer = NewRow(AssistantRow(tuple(blocks), MODEL, stop, create_time=self._tick(3, 25)))
        self.turns.append((tuple(self._pending), answer))
        self._pending = []

    def _print(self, output: str, item: Any) -> str:
        if not output.startswith("@"):
            return self._fill(output, item)
        name, *words = output[1:].split()
        return PRINTERS[name](self._incident, item, self._random, *words)

    def _fill(self, text: str, item: Any) -> str:
        return _FACT.sub(lambda m: str(self._fact(m.group(1), item)), text).replace("\\n", "\n")

    def _fact(self, path: str, item: Any) -> Any:
        value: Any = {**self._incident.facts, "it": item}
        for part in path.split("."):
            key: Any = int(part) if part.isdigit() else part
            value = getattr(value, part) if hasattr(value, part) else value[key]
        return value

    def _tick(self, least: int, most: int) -> str:
        self._now += timedelta(seconds=self._random.randrange(least, most))
        return self._now.strftime("%Y-%m-%dT%H:%M:%SZ")
