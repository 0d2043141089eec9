"""Models that write summaries, through their providers' SDKs (S2-S5): one file an API, and what they share."""

from __future__ import annotations

from foldline.access import Key
from foldline.config import Config, Provider
from foldline.summarize.providers.anthropic import Anthropic
from foldline.summarize.providers.conversation import Judges, Refused
from foldline.summarize.providers.endpoint import Endpoint
from foldline.summarize.providers.google import Google
from foldline.summarize.providers.openai import OpenAI
from foldline.summarize.providers.summarizer import Configured, ProviderSummarizer

__all__ = ["Judges", "ProviderSummarizer", "Refused", "key_of", "provider_from"]


def provider_from(config: Config, judges: Judges, backoff: float = 0.5) -> ProviderSummarizer | None:
    """The source ``PROVIDER`` as configured (S2); None where no provider is.

    Args:
        backoff: seconds before the first retry of a call whose refusal names none; each further one doubles them.

    Raises:
        ConfigError: an SDK that is not installed, with the command that installs it; a key that is not there.
    """
    if not config.providers:
        return None
    made = {
        name: Configured(name, settings, _endpoint(name, settings), key_of(name, settings))
        for name, settings in config.providers.items()
    }
    return ProviderSummarizer(made, judges, backoff)


def key_of(name: str, settings: Provider) -> Key:
    """Where a provider's key lies; one with a ``base_url`` of its own may go without.

    Raises:
        ConfigError: it is not there.
    """
    optional = bool(settings.base_url)
    return Key(f"providers.{name}", settings.api_key_env, settings.api_key_file, optional=optional)


def _endpoint(name: str, settings: Provider) -> Endpoint:
    if settings.type == "anthropic":
        return Anthropic(name, settings)
    if settings.type == "google":
        return Google(name, settings)
    return OpenAI(name, settings)
