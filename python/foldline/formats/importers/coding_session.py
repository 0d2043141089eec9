"""Coding-agent sessions: one JSON object a line, of type ``session``, ``message``, ``compaction``, ``model_change``.

What becomes of a message: ``user`` a user row, ``bashExecution`` (a command the user ran beside the agent) a notice,
``assistant`` an answer, ``toolResult`` a result. An answer that was aborted keeps its text, thinking and whole calls
(L1), and is dropped where that is nothing (R4); its usage stays. The recording's own compactions are not replayed: the
rows they folded are all there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foldline.domain.enums import StopReason, WarningCode
from foldline.domain.events import Warning_
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    ImageBlock,
    ModelRef,
    NoticeRow,
    ReasoningBlock,
    StructuredBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
)
from foldline.formats.codec import expect_object, expect_text, invalid
from foldline.formats.importers.recording import Recorder, Recording
from foldline.formats.json_text import Json, plain, text
from foldline.formats.reading import is_json
from foldline.formats.stops import FAILED, stop_reason

BASH = "bash_execution"
_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cache_read_input_tokens",
    "cacheWrite": "cache_creation_input_tokens",
}
_SILENT = frozenset({"session", "message", "compaction", "model_change", "thinking_level_change"})


def is_session(entries: list[Json]) -> bool:
    return bool(entries) and isinstance(entries[0], dict) and entries[0].get("type") == "session"


def load(name: str, entries: list[Json]) -> list[Recording]:
    """Raises:
    FoldlineError: FORMAT_INVALID with the line.
    """
    recorder = _Session(name)
    for number, entry in enumerate(entries, 1):
        recorder.take(expect_object(entry, f"line {number}"), f"line {number}")
    return [recorder.recording()]


class _Session(Recorder):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.model = ModelRef()

    def take(self, entry: dict[str, Json], path: str) -> None:
        kind = str(entry.get("type"))
        if kind == "message":
            self._message(expect_object(entry.get("message"), f"{path}.message"), f"{path}.message", _time(entry))
        elif kind in ("session", "model_change"):
            self.model = ModelRef(str(entry.get("provider") or ""), str(entry.get("modelId") or ""))
        elif kind == "compaction":
            self.losses.note("compactions of the recording are not replayed, the rows they folded are")
        elif kind not in _SILENT:
            self.losses.note(f"entries of type {kind} are no messages and are left out")

    def _message(self, message: dict[str, Json], path: str, time: str) -> None:
        role = expect_text(message, "role", path)
        if role == "user":
            self.add(UserRow(self._content(message.get("content"), path), time))
        elif role == "toolResult":
            call_id = expect_text(message, "toolCallId", path)
            content = self._content(message.get("content"), path)
            self.add(ToolResultRow(call_id, content, is_error=message.get("isError") is True, create_time=time))
        elif role == "bashExecution":
            self.add(NoticeRow((TextBlock(_bash(message)),), BASH, time))
        elif role == "assistant":
            self._answer(message, path, time)
        else:
            raise invalid(f"{path}.role", "user, assistant, toolResult or bashExecution", role)

    def _answer(self, message: dict[str, Json], path: str, time: str) -> None:
        stopped = stop_reason(message.get("stopReason"))
        content = self._content(message.get("content"), path)
        if stopped in FAILED:
            content = self._whole(content, message, path, stopped)
        model = ModelRef(
            str(message.get("provider") or self.model.provider), str(message.get("model") or self.model.model)
        )
        body = AssistantRow(content, model, stopped, create_time=time) if content else None
        if body is None:
            why = message.get("errorMessage") or "no content"
            self.warn(
                Warning_(WarningCode.MESSAGE_DROPPED, f"{path}: an answer without blocks is dropped ({str(why)[:80]})")
            )
        self.answer(body, _usage(message.get("usage")), model)

    def _whole(
        self, content: tuple[ContentBlock, ...], message: dict[str, Json], path: str, stopped: StopReason | None
    ) -> tuple[ContentBlock, ...]:
        """The blocks of a failed answer less calls whose arguments were cut off; those never ran."""
        partial = {
            part.get("id")
            for part in message.get("content") or ()
            if isinstance(part, dict) and isinstance(part.get("partialJson"), str) and not is_json(part["partialJson"])
        }
        kept = tuple(b for b in content if not (isinstance(b, ToolCallBlock) and b.call_id in partial))
        if len(kept) < len(content):
            lost = ", ".join(str(call_id) for call_id in partial)
            self.warn(
                Warning_(
                    WarningCode.PARTIAL_CALLS_DROPPED,
                    f"{path}: calls {lost} of an answer that ended as {stopped} have no complete arguments",
                )
            )
        return kept

    def _content(self, content: Json, path: str) -> tuple[ContentBlock, ...]:
        if isinstance(content, str):
            return (TextBlock(content),) if content else ()
        if not isinstance(content, list | None):
            raise invalid(f"{path}.content", "a string or an array of parts", content)
        parts = (expect_object(part, f"{path}.content[{i}]") for i, part in enumerate(content or ()))
        return tuple(_block(part, path) for part in parts)


def _block(part: dict[str, Json], path: str) -> ContentBlock:
    kind = part.get("type")
    if kind == "text":
        return TextBlock(expect_text(part, "text", path, filled=False))
    if kind == "thinking":
        signature = part.get("thinkingSignature")
        spoken = expect_text(part, "thinking", path, filled=False)
        return ReasoningBlock(spoken, signature=signature if isinstance(signature, str) else "")
    if kind == "toolCall":
        call_id, name = expect_text(part, "id", path), expect_text(part, "name", path)
        return ToolCallBlock(call_id, name, text(part.get("arguments", {})))
    if kind == "image":
        return ImageBlock(expect_text(part, "mimeType", path), expect_text(part, "data", path))
    return StructuredBlock(text(part))


def _bash(message: Mapping[str, Json]) -> str:
    """The command and its output, as the user's terminal showed them, and how it ended where that is news."""
    lines = [f"$ {message.get('command', '')}", str(message.get("output", "")).rstrip("\n")]
    if message.get("cancelled") is True:
        lines.append("(cancelled)")
    elif message.get("exitCode") not in (0, None):
        lines.append(f"(exit code {message['exitCode']})")
    if message.get("truncated") is True:
        lines.append("(output truncated)")
    return "\n".join(lines)


def _usage(usage: Json) -> dict[str, Any] | None:
    """Usage in the names of the messages API, whose counting it follows: cached tokens stand beside the input."""
    if not isinstance(usage, dict):
        return None
    return plain({name: usage[key] for key, name in _USAGE.items() if key in usage})  # type: ignore[no-any-return]


def _time(entry: Mapping[str, Json]) -> str:
    stamp = entry.get("timestamp")
    return stamp if isinstance(stamp, str) else ""
