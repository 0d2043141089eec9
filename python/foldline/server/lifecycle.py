"""A server's life as a process: start, serve, drain at SIGTERM or SIGINT, end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import structlog

from foldline import _core
from foldline.config import Config
from foldline.server import ENCODING, logs

log = structlog.get_logger(__name__)

FORCED = 130
"""Exit code after a second signal."""


def serve(config: Config, announce: Callable[[str], None]) -> int:
    """Serves until a signal; returns the exit code. ``announce`` is told where it listens, once it serves.

    A second signal ends the process at once: every acknowledged write is in the store, whose next start finds it sound.

    Raises:
        ConfigError, StoreLocked, FoldlineError: the server cannot start.
    """
    os.umask(0o077)
    logs.configure(config.log.level)
    if config.ignored:
        log.warning("environment variables that name no setting", variables=config.ignored)
    # Blocked here, before any thread starts, so that every thread inherits it and only sigwait takes them: a handler
    # could run where this thread holds a lock, and a signal that another thread receives does not wake this one.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    # The vocabulary takes as long as the imports and needs no interpreter lock: both at once.
    threading.Thread(target=_warm, name="warm", daemon=True).start()
    from foldline.server import app

    server = app.build(config)
    try:
        server.start()
        server.ready()
    except BaseException:
        server.stop(grace=0)
        raise
    announce(f"foldline {_core.__version__} serves {' and '.join(server.addresses)}")
    log.info("serving", addresses=server.addresses, data=str(config.data))
    stopped = threading.Event()
    upkeep = threading.Thread(target=server.upkeep, args=(stopped,), name="upkeep", daemon=True)
    upkeep.start()
    number = signal.sigwait(ends)
    threading.Thread(target=_force, args=(ends,), name="second-signal", daemon=True).start()
    log.info("stopping", signal=signal.Signals(number).name)
    stopped.set()
    upkeep.join(1.0)
    ended = server.stop(config.server.drain_delay)
    log.info("stopped", ended_calls=ended)
    if not ended:
        # A call that outlives its grace would hold the interpreter; the store is closed, so nothing is lost.
        sys.stdout.flush()
        os._exit(0)
    return 0


def _force(ends: set[signal.Signals]) -> None:
    signal.sigwait(ends)
    os._exit(FORCED)


def _warm() -> None:
    _core.warm(ENCODING)
