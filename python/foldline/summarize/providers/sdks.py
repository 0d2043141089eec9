"""What the providers' SDKs have in common: that they are there, a client for one summary, and how they say no (S5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

from foldline.access import ASYNC_HTTP, TooLong, require_sdk, sdk
from foldline.config import Provider
from foldline.summarize.providers.endpoint import CallFailed, refused_by_status

LONG = 86_400.0
"""Seconds a client waits at most; a summary's own time is shorter, and kept over all its calls."""


class Sdk:
    """An endpoint as configured, reached by its provider's SDK.

    Attributes:
        module: what is imported.
        extra: of this package, that installs it.
        url: the provider's own endpoint.
        base_url: the endpoint.
    """

    module: ClassVar[str]
    extra: ClassVar[str]
    url: ClassVar[str]

    def __init__(self, name: str, settings: Provider) -> None:
        """Refuses a missing SDK.

        Raises:
            ConfigError: with the command that installs it.
        """
        require_sdk(f"providers.{name}", self.module, self.extra)
        self.base_url = settings.base_url or self.url

    def load(self) -> Any:
        """The SDK."""
        return sdk(self.module)


class _Twin(Sdk):
    """The SDKs of OpenAI and Anthropic are of one make."""

    client: ClassVar[str]

    @asynccontextmanager
    async def connected(self, key: str) -> AsyncIterator[Any]:
        """A client, which makes each call once; the calls are made again elsewhere."""
        loaded = self.load()
        made, http = getattr(loaded, self.client), loaded.DefaultAsyncHttpxClient(**ASYNC_HTTP)
        async with made(api_key=key, base_url=self.base_url, max_retries=0, timeout=LONG, http_client=http) as client:
            yield client

    @contextmanager
    def failing(self, refusal: Callable[[Any], Exception] | None = None) -> Iterator[None]:
        """As ``failing`` of this module; ``refusal`` tells an HTTP error otherwise than by its status."""
        loaded = self.load()
        with failing(loaded.APIStatusError, refusal or refused, loaded.APIConnectionError):
            yield


class OpenAISdk(_Twin):
    module, extra, client = "openai", "openai", "AsyncOpenAI"
    url = "https://api.openai.com/v1"


class AnthropicSdk(_Twin):
    module, extra, client = "anthropic", "anthropic", "AsyncAnthropic"
    url = "https://api.anthropic.com"


class GoogleSdk(Sdk):
    module, extra = "google.genai", "google"
    url = "https://generativelanguage.googleapis.com"


@contextmanager
def failing(
    error: type[Exception], refusal: Callable[[Any], Exception], broken: type[Exception] | tuple[type[Exception], ...]
) -> Iterator[None]:
    """Has an SDK's errors raised as what they say, without their chain, which holds what was sent (W8).

    Args:
        error: of an HTTP status; ``refusal`` says what it becomes.
        broken: those of a connection.
    """
    try:
        yield
    except error as raised:
        raise refusal(raised) from None
    except TooLong as raised:
        raise CallFailed(str(raised)) from None
    except broken as raised:
        if isinstance(raised.__cause__, TooLong):
            raise CallFailed(str(raised.__cause__)) from None
        raise CallFailed("could not be reached, or broke off", again=True) from None


def refused(error: Any) -> CallFailed:
    """What an error of the twins says about trying again."""
    return refused_by_status(error.status_code, error.response.content, error.response.headers)
