"""One server a data directory: an advisory lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from foldline.domain.errors import StoreLocked

LOCK_NAME = "foldline.lock"

_HINT = (
    "The first line is the process that serves this directory.\n"
    "The lock ends with that process; deleting this file does not take it away.\n"
)


class DirectoryLock:
    """Holds the lock of a data directory until ``release`` or the end of the process.

    Raises:
        StoreLocked: another process, or another store of this one, holds it; the message names its pid.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK_NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 32, 0).split(b"\n")[0].decode(errors="replace")
            os.close(self._fd)
            raise StoreLocked(
                f"the data directory {directory} is served by process {holder or 'unknown'}; "
                "stop it first, or start with another data directory"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n{_HINT}".encode(), 0)

    def release(self) -> None:
        """Gives the directory free; a second call does nothing."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
