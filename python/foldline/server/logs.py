"""Structured logs: one JSON object a line, to stderr. Payloads are never logged."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from typing import Any, BinaryIO

import msgspec
import structlog

REQUEST_ID: ContextVar[str] = ContextVar("foldline_request_id", default="")
"""Id of the call that the current thread serves; every line logged meanwhile carries it."""

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_encoder = msgspec.json.Encoder(enc_hook=str)


def configure(level: str, stream: BinaryIO | None = None, *, for_good: bool = True) -> None:
    """Sends structlog's and the standard library's records of at least ``level`` to ``stream``, stderr by default.

    ``for_good`` lets loggers keep what they find at their first line, which makes a line cheaper.
    """
    number = _LEVELS[level]
    structlog.configure(
        processors=[
            _add_request_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(stream or sys.stderr.buffer),
        cache_logger_on_first_use=for_good,
    )
    # Libraries speak through the standard library; their debug lines may hold payloads.
    logging.basicConfig(handlers=[_Forward()], level=max(number, logging.WARNING), force=True)


def _add_request_id(_logger: Any, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    request_id = REQUEST_ID.get()
    if request_id:
        event.setdefault("request_id", request_id)
    return event


def _render(_logger: Any, _name: str, event: structlog.typing.EventDict) -> bytes:
    return _encoder.encode(event)


class _Forward(logging.Handler):
    """Hands records of the standard library to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None
        )
