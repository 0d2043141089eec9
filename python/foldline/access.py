"""What it takes to call a provider's API, for whatever calls one: its key and its SDK."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from foldline.config import ConfigError

NO_KEY = "none"
"""What servers that ask for no key are sent, since the SDKs want one."""


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
        if self._variable:
            key, place = os.environ.get(self._variable, ""), f"the environment variable {self._variable}"
        elif self._file is not None:
            key, place = self._read(self._file), "the file of api_key_file"
        else:
            return NO_KEY
        key = key.strip()
        if not key:
            raise ConfigError(f"{self._where}: {place} holds no key")
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(f"{self._where}: {place} holds characters that no key has")
        return key

    def _read(self, file: Path) -> str:
        try:
            return file.read_text("utf-8")
        except OSError as error:
            text = f"{self._where}: the file of api_key_file cannot be read: {error.strerror}"
            raise ConfigError(text) from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self._where}: the file of api_key_file is no text") from None


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
