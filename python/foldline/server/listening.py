"""Addresses a server listens on: TCP, and a Unix socket that only its owner may use."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from pathlib import Path

import grpc
import structlog

from foldline.config import ConfigError

log = structlog.get_logger(__name__)

_MAX_SOCKET_PATH = 107


def tcp(server: grpc.Server, address: str) -> str:
    """Listens on ``host:port``; returns it with the port that was taken. Beyond loopback it warns loudly.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    host = address.rpartition(":")[0]
    if not _loopback(host.strip("[]")):
        log.warning(
            "listening beyond this machine without TLS or keys: whoever reaches the port reads and writes every "
            "session; bind to 127.0.0.1 or use the Unix socket",
            listen=address,
        )
    return f"{host}:{_bind(server, address, 'listen')}"


def unix(server: grpc.Server, name: str, *, wanted: bool) -> list[str]:
    """Listens on a Unix socket of mode 0600; a stale one is replaced. A missing directory is made with mode 0700.

    Args:
        wanted: the socket was asked for; otherwise a path that is too long for one is passed over with a warning.

    Raises:
        ConfigError: something else is in its place, somebody answers there, or the path is too long.
    """
    path = Path(name).absolute()
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        text = f"socket is {path}, which has over {_MAX_SOCKET_PATH} bytes"
        if wanted:
            raise ConfigError(text)
        log.warning(f"{text}: there is no Unix socket")
        return []
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _clear_stale(path)
    # The mode of the socket follows the mask of the process, which nothing else relies on while it starts.
    before = os.umask(0o177)
    try:
        _bind(server, f"unix:{path}", "socket")
    finally:
        os.umask(before)
    return [f"unix:{path}"]


def _bind(server: grpc.Server, address: str, key: str) -> int:
    try:
        port: int = server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(f"{key} is {address}: it cannot be listened on; is it taken?") from None
    return port


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _clear_stale(path: Path) -> None:
    """Removes a socket that nobody answers; anything else in the way is refused."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"socket is {path}, which exists and is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"socket is {path}, which cannot be probed: {error.strerror}") from None
    raise ConfigError(f"socket is {path}, which another process answers")
