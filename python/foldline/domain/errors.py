"""The one exception that crosses layers, and its published reasons (``ErrorReason`` in the contract).

Codes are not chosen here: ``foldline.server`` maps a reason to its gRPC status in one place.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Published reasons; names equal the contract's ``ErrorReason`` less its prefix."""

    FIELD_VALIDATION = "FIELD_VALIDATION"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    SESSION_EXISTS = "SESSION_EXISTS"
    REVISION_MISMATCH = "REVISION_MISMATCH"
    REVISION_NOT_FOUND = "REVISION_NOT_FOUND"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    RUN_NOT_OPEN = "RUN_NOT_OPEN"
    RUN_ALREADY_OPEN = "RUN_ALREADY_OPEN"
    PREPARE_NOT_FOUND = "PREPARE_NOT_FOUND"
    UNKNOWN_TOOL_CALL = "UNKNOWN_TOOL_CALL"
    DUPLICATE_TOOL_RESULT = "DUPLICATE_TOOL_RESULT"
    SUMMARY_ROW_REFUSED = "SUMMARY_ROW_REFUSED"
    EMPTY_ASSISTANT_ROW = "EMPTY_ASSISTANT_ROW"
    STALE_SYSTEM_VERSION = "STALE_SYSTEM_VERSION"
    EDIT_SPLITS_UNIT = "EDIT_SPLITS_UNIT"
    TOOLS_UNKNOWN = "TOOLS_UNKNOWN"
    NOTHING_TO_FOLD = "NOTHING_TO_FOLD"
    FOLD_IN_PROGRESS = "FOLD_IN_PROGRESS"
    SUMMARIZER_FAILED = "SUMMARIZER_FAILED"
    CURATOR_UNAVAILABLE = "CURATOR_UNAVAILABLE"
    CURATOR_FAILED = "CURATOR_FAILED"
    REWRITE_REJECTED = "REWRITE_REJECTED"
    PROJECTION_NOT_FOUND = "PROJECTION_NOT_FOUND"
    PROJECTION_EXPIRED = "PROJECTION_EXPIRED"
    MEMORY_LIMIT_EXCEEDED = "MEMORY_LIMIT_EXCEEDED"
    EMPTY_QUERY = "EMPTY_QUERY"
    EMBEDDER_UNAVAILABLE = "EMBEDDER_UNAVAILABLE"
    EMBEDDING_MISMATCH = "EMBEDDING_MISMATCH"
    CHECKPOINTS_DISABLED = "CHECKPOINTS_DISABLED"
    TRIM_COUNT_TOO_LARGE = "TRIM_COUNT_TOO_LARGE"
    PAGE_TOKEN_MISMATCH = "PAGE_TOKEN_MISMATCH"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    FORMAT_INVALID = "FORMAT_INVALID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    TENANT_DENIED = "TENANT_DENIED"
    READ_ONLY = "READ_ONLY"
    ADMIN_ONLY = "ADMIN_ONLY"
    OVERLOADED = "OVERLOADED"
    NOT_READY = "NOT_READY"
    NOT_YET = "NOT_YET"
    STORE_CORRUPT = "STORE_CORRUPT"
    INTERNAL = "INTERNAL"


class FoldlineError(Exception):
    """A failure a host can act on: a published reason, a sentence with the numbers, and metadata.

    Args:
        reason: one of the published reasons.
        message: for developers; names what was given and what is allowed, no internals (W8).
        metadata: everything variable in the message again, as text, for programs.
    """

    def __init__(self, reason: Reason, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class RevisionConflict(Exception):
    """The store holds another revision than the commit was computed from; nothing was written."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"commit expected revision {expected}, store holds {actual}")
        self.expected = expected
        self.actual = actual


class StoreLocked(Exception):
    """Another process serves the same data."""
