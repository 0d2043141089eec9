"""Structured logs: one JSON object a line, to stderr. Payloads are never logged."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec
import structlog

REQUEST_ID: ContextVar[str] = ContextVar("foldline_request_id", default="")
"""Id of the call that the current thread serves; every line logged meanwhile carries it."""

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_encoder = msgspec.json.Encoder(enc_hook=str)
_sink: tuple[int, BinaryIO] | None = None


def configure(level: str, stream: BinaryIO | None = None, *, for_good: bool = True) -> None:
    """Sends structlog's and the standard library's records of at least ``level`` to ``stream``, stderr by default.

    ``for_good`` lets loggers keep what they find at their first line, which makes a line cheaper.
    """
    global _sink
    number, stream = _LEVELS[level], stream or sys.stderr.buffer
    _sink = number, stream
    structlog.configure(
        processors=[_line],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(stream),
        cache_logger_on_first_use=for_good,
    )
    # Libraries speak through the standard library; their debug lines may hold payloads.
    logging.basicConfig(handlers=[_Forward()], level=max(number, logging.WARNING), force=True)


def write(level: str, event: dict[str, Any]) -> None:
    """Writes one record past structlog, whose way to a line costs a small call as much as all else that it passes.

    Says nothing before ``configure``.
    """
    if _sink is not None and _LEVELS[level] >= _sink[0]:
        _sink[1].write(_line(None, level, event) + b"\n")
        _sink[1].flush()


def _line(logger: Any, level: str, event: structlog.typing.EventDict) -> bytes:
    """A record as JSON, with its level, its time and the call it belongs to."""
    event["level"] = level
    event["time"] = datetime.now(UTC).isoformat()
    request_id = REQUEST_ID.get()
    if request_id:
        event["request_id"] = request_id
    if "exc_info" in event:
        structlog.processors.format_exc_info(logger, level, event)
    return _encoder.encode(event)


class _Forward(logging.Handler):
    """Hands records of the standard library to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None
        )
