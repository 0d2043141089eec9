"""Keys, and what it takes to call a provider's API: where they lie, its SDK, and how much of an answer is read."""

from __future__ import annotations

import hashlib
import hmac
import importlib
import importlib.util
import math
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from foldline.config import ConfigError
from foldline.domain.policy import MASK

NO_KEY = "none"
"""What servers that ask for no key are sent, since the SDKs want one."""
_CONVENTIONAL = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
ADMIN_KEY_LENGTH = 16
"""Least characters of an admin key: shorter ones can be guessed."""


class Key:
    """Where a key lies (W8): read when it is needed, so that it can be rotated, and never shown.

    Args:
        where: the settings that name it, for messages.
        variable, file: what holds it; neither is no key, where ``optional``.
    """

    def __init__(self, where: str, variable: str, file: Path | None, *, optional: bool) -> None:
        """Reads the key once.

        Raises:
            ConfigError: it is not there, or is no key.
        """
        self._where, self._variable, self._file = where, variable, file
        if not variable and file is None and not optional:
            raise ConfigError(f"{where} needs api_key_env or api_key_file; only a base_url of its own may go without")
        self.read()

    def read(self) -> str:
        """The key.

        Raises:
            ConfigError: as at the start; the message holds no part of it.
        """
        if not self._variable and self._file is None:
            return NO_KEY
        text, place = _held(self._where, self._variable, self._file, "api_key_file")
        key = text.strip()
        if not key:
            raise ConfigError(f"{self._where}: {place} holds no key")
        if not _is_key(key):
            raise ConfigError(f"{self._where}: {place} holds characters that no key has")
        return key


def hidden(text: str, key: str) -> str:
    """The text without the key in it."""
    return text if key == NO_KEY else text.replace(key, MASK)


class AdminKeys:
    """The keys of administrators (M7): any of them is one, so that a new one is valid before the old one goes.

    Args:
        variable, file: what holds them, spaces or lines between them; neither is no key, and nobody is admitted.
    """

    def __init__(self, variable: str = "", file: Path | None = None) -> None:
        """Reads the keys once.

        Raises:
            ConfigError: they are named twice, are not there, or are no keys.
        """
        if variable and file:
            raise ConfigError("admin names its keys by keys_env and by keys_file: one of them")
        self._variable, self._file = variable, file
        self._read()

    def admit(self, given: str) -> bool:
        """Whether this is one of the keys, as they are now; it takes as long for any that is none.

        Raises:
            ConfigError: they cannot be read any more.
        """
        name = _digest(given)
        same = [hmac.compare_digest(name, _digest(key)) for key in self._read()]
        return any(same)

    def _read(self) -> list[str]:
        if not self._variable and self._file is None:
            return []
        text, place = _held("admin", self._variable, self._file, "keys_file")
        keys = text.split()
        if not keys:
            raise ConfigError(f"admin: {place} holds no key")
        if not all(_is_key(key) for key in keys):
            raise ConfigError(f"admin: {place} holds characters that no key has")
        if any(len(key) < ADMIN_KEY_LENGTH for key in keys):
            raise ConfigError(f"admin: {place} holds a key of fewer than {ADMIN_KEY_LENGTH} characters")
        return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _is_key(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _held(where: str, variable: str, file: Path | None, name: str) -> tuple[str, str]:
    """What a variable or a file holds, and how to call it.

    Raises:
        ConfigError: the file cannot be read.
    """
    if variable or file is None:
        text = os.environ.get(variable, "")
        # A key that was pasted in the place of its variable's name is not shown.
        named = variable if text or _CONVENTIONAL.fullmatch(variable) else "that is named"
        return text, f"the environment variable {named}"
    try:
        return file.read_text("utf-8"), f"the file of {name}"
    except OSError as error:
        raise ConfigError(f"{where}: the file of {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: the file of {name} is no text") from None


def require_sdk(where: str, module: str, extra: str) -> None:
    """Refuses settings whose SDK is not installed, without the second that importing it takes.

    Raises:
        ConfigError: with the command that installs it.
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(f"{where} needs the package of its SDK: pip install 'foldline[{extra}]'")


def sdk(module: str) -> Any:
    """The SDK, imported when it is first needed."""
    return importlib.import_module(module)


ANSWER_BYTES = 32 << 20
"""Of a response, packed and unpacked: twice the largest item that can be stored. One that sends on without end fills no
memory."""


class TooLong(Exception):
    """A response of more bytes, or that took longer to read, than any answer has."""


class _Limit:
    """What of a response is read: ``ANSWER_BYTES``, within the time that the client gives to a single read of it."""

    def __init__(self, response: Any) -> None:
        seconds = response.request.extensions.get("timeout", {}).get("read")
        self._until = math.inf if seconds is None else time.monotonic() + seconds

    def parts(self, source: Any) -> Any:
        def read(*args: Any, **named: Any) -> Iterator[bytes]:
            size = 0
            for part in source(*args, **named):
                size = self._added(size, part)
                yield part

        return read

    def parts_async(self, source: Any) -> Any:
        async def read(*args: Any, **named: Any) -> AsyncIterator[bytes]:
            size = 0
            async for part in source(*args, **named):
                size = self._added(size, part)
                yield part

        return read

    def _added(self, size: int, part: bytes) -> int:
        size += len(part)
        if size > ANSWER_BYTES:
            raise TooLong(f"answered with more than {ANSWER_BYTES} bytes")
        if time.monotonic() > self._until:
            raise TooLong("took too long over its answer")
        return size


def _bounded(response: Any) -> None:
    limit = _Limit(response)
    response.iter_raw, response.iter_bytes = limit.parts(response.iter_raw), limit.parts(response.iter_bytes)


async def _bounded_async(response: Any) -> None:
    limit = _Limit(response)
    response.aiter_raw = limit.parts_async(response.aiter_raw)
    response.aiter_bytes = limit.parts_async(response.aiter_bytes)


HTTP: dict[str, Any] = {"follow_redirects": False, "event_hooks": {"response": [_bounded]}}
"""Of every client, of models and of embedders (S5, M8): a response that is too long fails where it is read, and one
that sends it elsewhere is none, since rows and, in a header of its own, the key would go there too (W8)."""
ASYNC_HTTP: dict[str, Any] = {"follow_redirects": False, "event_hooks": {"response": [_bounded_async]}}
"""``HTTP`` of asynchronous clients."""
