"""Recorded conversations from files, as the model calls they were made of.

Shapes: coding-agent sessions (JSONL), customer-service runs (JSON), software-engineering trajectories, chat messages
and Anthropic messages (JSON, or JSONL of messages or of conversations). Nothing is dropped without a warning.
"""

from __future__ import annotations

from pathlib import Path

from foldline.domain.errors import FoldlineError, Reason
from foldline.formats.importers import chat_runs, coding_session, messages, swe_agent
from foldline.formats.importers.recording import Recording, Step
from foldline.formats.json_text import Json, loads

_SHAPES = (
    "a coding-agent session (JSONL), customer-service runs ({traj}), a trajectory ({history}), "
    "chat messages or Anthropic messages (JSON or JSONL)"
)


def load(path: str | Path) -> list[Recording]:
    """The recordings of a file, in its order; its shape is told by its content.

    Raises:
        FoldlineError: FORMAT_INVALID: not of a shape that is read, with the place.
        OSError: the file cannot be read.
    """
    file = Path(path)
    return load_bytes(file.stem, file.read_bytes())


def load_bytes(name: str, data: bytes) -> list[Recording]:
    """Like ``load``, for a file's content.

    Raises:
        FoldlineError: FORMAT_INVALID: not of a shape that is read, with the place.
    """
    entries = _lines(data)
    if entries is None:
        return _recordings(name, loads(data, "file")[0])
    if coding_session.is_session(entries):
        return coding_session.load(name, entries)
    if messages.format_of(entries) is not None:
        return _recordings(name, entries)
    found = [messages.record(f"{name}-{i}", entry) for i, entry in enumerate(entries)]
    kept = [recording for recording in found if recording is not None]
    if len(kept) < len(entries):
        raise _unknown(name)
    return kept


def _recordings(name: str, value: Json) -> list[Recording]:
    if chat_runs.is_runs(value):
        return chat_runs.load(name, value)
    if swe_agent.is_trajectory(value):
        return swe_agent.load(name, value)
    recording = messages.record(name, value)
    if recording is None:
        raise _unknown(name)
    return [recording]


def _lines(data: bytes) -> list[Json] | None:
    """The values of a file of JSON lines; None for a file that is one JSON value."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    if not lines or (len(lines) > 1 and not lines[1].lstrip().startswith(b"{")):
        return None
    try:
        first, _ = loads(lines[0])
    except FoldlineError:
        return None
    if not isinstance(first, dict) or (len(lines) == 1 and first.get("type") != "session"):
        return None
    return [loads(line, f"line {number}")[0] for number, line in enumerate(lines, 1)]


def _unknown(name: str) -> FoldlineError:
    return FoldlineError(Reason.FORMAT_INVALID, f"{name} is none of: {_SHAPES}", file=name, expected=_SHAPES)


__all__ = ["Recording", "Step", "load", "load_bytes"]
