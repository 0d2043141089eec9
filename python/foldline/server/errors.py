"""Errors as clients see them: one place from reasons to gRPC codes and details (W8).

The text of an unknown exception never leaves the process: it is logged under the request id that the client gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2

from foldline.domain.errors import FoldlineError, Reason

DOMAIN = "foldline.dev"
REQUEST_ID_KEY = "x-request-id"
DETAILS_KEY = "grpc-status-details-bin"
INTERNAL_TEXT = "internal error; the server's log has the details under the request id"

_C = grpc.StatusCode
CODES: dict[Reason, grpc.StatusCode] = {
    **dict.fromkeys(
        (
            Reason.FIELD_VALIDATION, Reason.REQUEST_ID_REUSED, Reason.SUMMARY_ROW_REFUSED, Reason.EMPTY_ASSISTANT_ROW,
            Reason.MEMORY_LIMIT_EXCEEDED, Reason.EMPTY_QUERY, Reason.PAGE_TOKEN_MISMATCH, Reason.FORMAT_INVALID,
        ),
        _C.INVALID_ARGUMENT,
    ),
    **dict.fromkeys(
        (
            Reason.SESSION_NOT_FOUND, Reason.REVISION_NOT_FOUND, Reason.PREPARE_NOT_FOUND, Reason.PROJECTION_NOT_FOUND,
        ),
        _C.NOT_FOUND,
    ),
    Reason.SESSION_EXISTS: _C.ALREADY_EXISTS,
    **dict.fromkeys(
        (
            Reason.REVISION_MISMATCH, Reason.FOLD_IN_PROGRESS, Reason.SUMMARIZER_FAILED, Reason.CURATOR_FAILED,
            Reason.REWRITE_REJECTED,
        ),
        _C.ABORTED,
    ),
    **dict.fromkeys(
        (
            Reason.RUN_NOT_OPEN, Reason.RUN_ALREADY_OPEN, Reason.UNKNOWN_TOOL_CALL, Reason.DUPLICATE_TOOL_RESULT,
            Reason.STALE_SYSTEM_VERSION, Reason.EDIT_SPLITS_UNIT, Reason.TOOLS_UNKNOWN, Reason.NOTHING_TO_FOLD,
            Reason.CURATOR_UNAVAILABLE, Reason.PROJECTION_EXPIRED, Reason.EMBEDDING_MISMATCH,
            Reason.CHECKPOINTS_DISABLED, Reason.TRIM_COUNT_TOO_LARGE,
        ),
        _C.FAILED_PRECONDITION,
    ),
    Reason.MESSAGE_TOO_LARGE: _C.RESOURCE_EXHAUSTED,
    Reason.OVERLOADED: _C.RESOURCE_EXHAUSTED,
    Reason.UNAUTHENTICATED: _C.UNAUTHENTICATED,
    **dict.fromkeys((Reason.TENANT_DENIED, Reason.READ_ONLY, Reason.ADMIN_ONLY), _C.PERMISSION_DENIED),
    Reason.NOT_READY: _C.UNAVAILABLE,
    Reason.EMBEDDER_UNAVAILABLE: _C.UNAVAILABLE,
    Reason.NOT_YET: _C.UNIMPLEMENTED,
    Reason.STORE_CORRUPT: _C.DATA_LOSS,
    Reason.INTERNAL: _C.INTERNAL,
}  # fmt: skip
"""gRPC code of every reason; as ``error_reason.proto`` states it."""

RETRY_SECONDS = {Reason.OVERLOADED: 0.25, Reason.NOT_READY: 1.0, Reason.EMBEDDER_UNAVAILABLE: 5.0}
"""What ``RetryInfo`` proposes. A message that is too large stays too large: no retry is proposed."""

# Headers of an answer are 8 KiB with most clients, and details travel as base64.
_MAX_TEXT = 512
_MAX_VALUE = 256
_MAX_VIOLATIONS = 8
_MAX_STATUS = 4096


class InvalidRequest(FoldlineError):
    """FIELD_VALIDATION that names every field: (path, what is allowed) of each violation."""

    def __init__(self, message: str, violations: Sequence[tuple[str, str]], **metadata: object) -> None:
        super().__init__(Reason.FIELD_VALIDATION, message, **metadata)
        self.violations = tuple(violations)


def too_large(what: str, size: int, maximum: int) -> FoldlineError:
    """MESSAGE_TOO_LARGE with both sizes in bytes (W5)."""
    return FoldlineError(
        Reason.MESSAGE_TOO_LARGE, f"the {what} has {size} bytes, allowed are {maximum}", size=size, maximum=maximum
    )


class Status(grpc.Status):
    """What ``abort_with_status`` of grpcio takes."""

    def __init__(self, code: grpc.StatusCode, text: str, trailing: tuple[tuple[str, Any], ...]) -> None:
        self.code = code
        self.details = text
        self.trailing_metadata = trailing


def published(error: BaseException, request_id: str) -> FoldlineError:
    """The error a client may see: one with a reason as it is, everything else INTERNAL with a fixed text."""
    if isinstance(error, FoldlineError) and error.reason is not Reason.INTERNAL:
        return error
    return FoldlineError(Reason.INTERNAL, INTERNAL_TEXT, x_request_id=request_id)


def status(error: FoldlineError, request_id: str) -> Status:
    """Code, text, and ``google.rpc`` details of an error, as the trailers of a call carry them."""
    made = rpc_status(error)
    trailing = ((DETAILS_KEY, made.SerializeToString()), (REQUEST_ID_KEY, request_id))
    return Status(CODES[error.reason], made.message, trailing)


def rpc_status(error: FoldlineError) -> status_pb2.Status:
    """Code, text, and details of an error, within what headers may carry."""
    code = CODES[error.reason]
    text = _clipped(error.message, _MAX_TEXT)
    metadata = {key: _clipped(value, _MAX_VALUE) for key, value in error.metadata.items()}
    parts = [_pack(details.ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=metadata))]
    if error.reason is Reason.FIELD_VALIDATION:
        parts.append(_pack(_bad_request(error)))
    if error.reason in RETRY_SECONDS:
        parts.append(_pack(_retry(RETRY_SECONDS[error.reason])))
    made = status_pb2.Status(code=code.value[0], message=text, details=parts)
    if made.ByteSize() > _MAX_STATUS:
        made = status_pb2.Status(code=code.value[0], message=text, details=parts[:1])
    return made


def _bad_request(error: FoldlineError) -> details.BadRequest:
    if isinstance(error, InvalidRequest):
        found = error.violations[:_MAX_VIOLATIONS]
    else:
        found = ((error.metadata.get("field", ""), error.message),)
    return details.BadRequest(
        field_violations=[
            details.BadRequest.FieldViolation(field=_clipped(path, _MAX_VALUE), description=_clipped(text, _MAX_VALUE))
            for path, text in found
        ]
    )


def _retry(seconds: float) -> details.RetryInfo:
    made = details.RetryInfo()
    made.retry_delay.FromMilliseconds(round(seconds * 1000))
    return made


def _pack(message: Any) -> AnyMessage:
    made = AnyMessage()
    made.Pack(message)
    return made


def _clipped(text: str, most: int) -> str:
    """At most ``most`` bytes of UTF-8, whole characters."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "…"
