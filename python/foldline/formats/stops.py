"""Why a model stopped, in the providers' words."""

from __future__ import annotations

from foldline.domain.enums import StopReason
from foldline.formats.json_text import Json

_WORDS: dict[str, StopReason] = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "completed": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "max_output_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_CALLS,
    "tool_use": StopReason.TOOL_CALLS,
    "tooluse": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "content_filter": StopReason.REFUSAL,
    "refusal": StopReason.REFUSAL,
    "safety": StopReason.REFUSAL,
    "recitation": StopReason.REFUSAL,
    "language": StopReason.REFUSAL,
    "blocklist": StopReason.REFUSAL,
    "prohibited_content": StopReason.REFUSAL,
    "spii": StopReason.REFUSAL,
    "model_armor": StopReason.REFUSAL,
    "image_safety": StopReason.REFUSAL,
    "image_prohibited_content": StopReason.REFUSAL,
    "image_recitation": StopReason.REFUSAL,
    "pause_turn": StopReason.PAUSED,
    "error": StopReason.ERROR,
    "failed": StopReason.ERROR,
    "malformed_function_call": StopReason.ERROR,
    "malformed_response": StopReason.ERROR,
    "unexpected_tool_call": StopReason.ERROR,
    "too_many_tool_calls": StopReason.ERROR,
    "missing_thought_signature": StopReason.ERROR,
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
