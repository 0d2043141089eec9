"""Providers' own compaction (§12): one file an API, and what they share."""

from __future__ import annotations

from foldline.config import Config
from foldline.domain.native import NativeSource
from foldline.summarize.native.anthropic import AnthropicCompaction
from foldline.summarize.native.api import NativeApi
from foldline.summarize.native.compactor import Native, NativeCompactor
from foldline.summarize.native.openai import OpenAICompaction
from foldline.summarize.providers import Judges, key_of

__all__ = ["NativeCompactor", "native_from"]


def native_from(config: Config, judges: Judges, backoff: float = 0.5) -> NativeSource | None:
    """The source ``NATIVE`` as configured: providers of the types ``openai_responses`` and ``anthropic``; None without.

    Args:
        backoff: seconds before the first retry of a call whose refusal names none; each further one doubles them.

    Raises:
        ConfigError: an SDK that is not installed, a key that is not there.
    """
    made: dict[str, Native] = {}
    for name, settings in config.providers.items():
        api: NativeApi
        if settings.type == "openai_responses":
            api = OpenAICompaction(name, settings)
        elif settings.type == "anthropic":
            api = AnthropicCompaction(name, settings)
        else:
            continue
        made[name] = Native(name, api, key_of(name, settings))
    return NativeCompactor(made, judges, backoff) if made else None
