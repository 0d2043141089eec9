"""Plain message files: chat messages or Anthropic messages, as JSON or as lines of it."""

from __future__ import annotations

from collections.abc import Mapping

from foldline.domain.enums import Format
from foldline.domain.rows import AssistantRow, ModelRef, RowBody
from foldline.formats import anthropic_messages, openai_chat
from foldline.formats.importers.recording import Recorder, Recording
from foldline.formats.json_text import Json, dumps
from foldline.formats.reading import Reading, messages_of, usage_of

_ANTHROPIC_BLOCKS = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "document"}
)


class ChatRecorder(Recorder):
    """Takes chat messages one by one."""

    def read(self, message: dict[str, Json], path: str) -> RowBody:
        return openai_chat.read_message(message, path)

    def take(self, body: RowBody, path: str, message: Mapping[str, Json]) -> None:
        """Takes the row of ``message``; an answer ends a step, empty ones are dropped with a warning (R4)."""
        if not isinstance(body, AssistantRow):
            self.add(body)
            return
        reading = Reading()
        reading.take_assistant(body, path)
        self.warn(*reading.warnings)
        kept = reading.rows[0].body if reading.rows else None
        model = message.get("model")
        ref = ModelRef("", model) if isinstance(model, str) else None
        self.answer(kept if isinstance(kept, AssistantRow) else None, usage_of(message.get("usage")), ref)


def record_chat(name: str, messages: Json) -> Recording:
    """A recording of an array of chat messages.

    Raises:
        FoldlineError: FORMAT_INVALID with the path.
    """
    recorder = ChatRecorder(name)
    for message, path in messages_of(messages):
        recorder.take(recorder.read(message, path), path, message)
    return recorder.recording()


def record_anthropic(name: str, request: Json) -> Recording:
    """A recording of Anthropic messages, or of ``{system, messages}``.

    Raises:
        FoldlineError: FORMAT_INVALID with the path.
    """
    parsed = anthropic_messages.parse(dumps(request))
    recorder = Recorder(name)
    recorder.warn(*parsed.warnings)
    used = {usage.row: usage for usage in parsed.usages}
    for index, row in enumerate(parsed.rows):
        if isinstance(row.body, AssistantRow):
            found = used.get(index)
            model = ModelRef("", found.model) if found and found.model else None
            recorder.answer(row.body, found.usage if found else None, model)
        else:
            recorder.add(row.body)
    return recorder.recording()


def format_of(value: Json) -> Format | None:
    """Which format an array of messages or a request is in; None where it is neither."""
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        return None
    if isinstance(value, dict) and "system" in value:
        return Format.ANTHROPIC_MESSAGES
    blocks = (b for m in messages for b in (m["content"] if isinstance(m.get("content"), list) else ()))
    if any(isinstance(b, dict) and b.get("type") in _ANTHROPIC_BLOCKS for b in blocks):
        return Format.ANTHROPIC_MESSAGES
    return Format.OPENAI_CHAT


def record(name: str, value: Json) -> Recording | None:
    """A recording of messages in whichever format they are; None where ``value`` holds none."""
    found = format_of(value)
    if found is Format.ANTHROPIC_MESSAGES:
        return record_anthropic(name, value)
    if found is Format.OPENAI_CHAT:
        return record_chat(name, value["messages"] if isinstance(value, dict) else value)
    return None
