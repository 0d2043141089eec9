"""Addresses a server listens on: TCP, and a Unix socket that only its owner may use."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path

import grpc
import structlog

from foldline.config import ConfigError, split_address

log = structlog.get_logger(__name__)

_MAX_SOCKET_PATH = 107


def tcp(server: grpc.Server, address: str) -> str:
    """Listens on ``host:port``; returns it with the port that was taken. Beyond loopback it warns loudly.

    Raises:
        ConfigError: the address is none, or cannot be listened on, and why.
    """
    split = split_address(address)
    if split is None:
        raise ConfigError(f"listen is {address}, allowed is HOST:PORT with a port of 0-65535")
    _try_tcp(address, *split)
    host = address.rpartition(":")[0]
    if not _loopback(split[0]):
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
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear_stale(path)
        _try_unix(path)
    except OSError as error:
        raise ConfigError(f"socket is {path}, which cannot be made: {error.strerror}") from None
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
        raise ConfigError(f"{key} is {address}: it cannot be listened on") from None
    return port


# gRPC says of an address only that it failed, and says so on stderr itself. So each is tried before, for the reason.


def _try_tcp(address: str, host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name"
        raise ConfigError(f"listen is {address}: the host {host} is not known: {reason}") from None
    failed: OSError | None = None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                return
        except OSError as error:
            failed = failed or error
    reason = failed.strerror if failed else "it has no address"
    raise ConfigError(f"listen is {address}, which cannot be listened on: {reason}")


def _try_unix(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(path))
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


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
