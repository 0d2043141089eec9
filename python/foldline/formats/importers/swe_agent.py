"""Software-engineering trajectories: ``{trajectory, history, info}``; ``history`` holds what the model saw.

Actions come as function calls, or as text in the answer with the observation as the next user message. An observation
is the runtime's and no request of a user: it becomes a notice, so that the whole trajectory stays one turn. A
demonstration is context that was injected before the task. ``thought`` and ``action`` repeat what the answer says.
"""

from __future__ import annotations

from foldline.domain.rows import InjectedContextRow, NoticeRow, UserRow
from foldline.formats.codec import expect_object, expect_text
from foldline.formats.importers.messages import ChatRecorder
from foldline.formats.importers.recording import Recording
from foldline.formats.json_text import Json
from foldline.formats.reading import messages_of

OBSERVATION = "observation"
_KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")


def is_trajectory(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("history"), list)


def load(name: str, value: dict[str, Json]) -> list[Recording]:
    """Raises:
    FoldlineError: FORMAT_INVALID with the path.
    """
    recorder = ChatRecorder(name)
    answered = False
    for entry, path in messages_of(value["history"], "$.history"):
        message = {key: entry[key] for key in _KEPT if key in entry}
        role = expect_text(message, "role", path)
        ids = entry.get("tool_call_ids")
        if role == "tool" and isinstance(ids, list) and ids and "tool_call_id" not in message:
            message["tool_call_id"] = ids[0]
        body = recorder.read(expect_object(message, path), path)
        if isinstance(body, UserRow) and entry.get("is_demo") is True:
            body = InjectedContextRow(body.content, extra=body.extra)
        elif isinstance(body, UserRow) and answered:
            body = NoticeRow(body.content, OBSERVATION, extra=body.extra)
        answered = answered or role == "assistant"
        recorder.take(body, path, entry)
    return [recorder.recording()]
