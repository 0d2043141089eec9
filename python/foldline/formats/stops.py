"""Why a model stopped, in the providers' words."""

from __future__ import annotations

from foldline.domain.enums import StopReason
from foldline.formats.json_text import Json

_WORDS: dict[str, StopReason] = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_CALLS,
    "tool_use": StopReason.TOOL_CALLS,
    "tooluse": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "content_filter": StopReason.REFUSAL,
    "refusal": StopReason.REFUSAL,
    "pause_turn": StopReason.PAUSED,
    "error": StopReason.ERROR,
    "aborted": StopReason.ABORTED,
    "abort": StopReason.ABORTED,
    "cancelled": StopReason.ABORTED,
    "canceled": StopReason.ABORTED,
}
FAILED = (StopReason.ERROR, StopReason.ABORTED)


def stop_reason(word: Json) -> StopReason | None:
    """The reason for a provider's word; None where it names none."""
    if not isinstance(word, str) or not word:
        return None
    return _WORDS.get(word.lower(), StopReason.OTHER)
