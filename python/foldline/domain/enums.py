"""Closed vocabularies shared by rules, store and contract.

Every member name equals the value name of the enum of the same name in ``proto/foldline/v1``, less its prefix; the
contract tests compare the two.
"""

from enum import IntEnum, StrEnum, auto


class _Named(StrEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        return name


class RowKind(IntEnum):
    """Row types of semantics §2; the number is the one byte the ledger and the store keep."""

    SYSTEM = 1
    NOTICE = 2
    USER = 3
    INJECTED_CONTEXT = 4
    ASSISTANT = 5
    TOOL_RESULT = 6
    COMPACTION_SUMMARY = 7
    PROVIDER_COMPACTION = 8


class StopReason(_Named):
    """Why a model stopped; ERROR and ABORTED drop the row (R4), PAUSED joins the next assistant row to it (§1)."""

    END_TURN = auto()
    TOOL_CALLS = auto()
    MAX_TOKENS = auto()
    STOP_SEQUENCE = auto()
    REFUSAL = auto()
    PAUSED = auto()
    ERROR = auto()
    ABORTED = auto()
    OTHER = auto()


class TranscriptSource(_Named):
    """Where a transcript block comes from (§2)."""

    SPOKEN = auto()
    SPOKEN_UNMEASURED = auto()


class Format(_Named):
    """Provider message formats (W4)."""

    OPENAI_CHAT = auto()
    OPENAI_RESPONSES = auto()
    ANTHROPIC_MESSAGES = auto()
    GOOGLE_GENAI = auto()
    CANONICAL = auto()


class ReplyMode(_Named):
    """How PrepareRequest answers (W1)."""

    WHOLE = auto()
    EDITS = auto()
    NONE = auto()


class Action(_Named):
    """What the host does with the answer (L3)."""

    SEND = auto()
    SEND_FOLDED = auto()
    TOO_LARGE = auto()


class Ownership(_Named):
    """Who keeps the transcript (§14)."""

    SIDECAR_OWNED = auto()
    HOST_OWNED = auto()


class RowView(_Named):
    """Which rows a listing shows."""

    ACTIVE = auto()
    ARCHIVE = auto()


class RunOutcome(_Named):
    """How a run ended (§3)."""

    COMPLETED = auto()
    FAILED = auto()
    CANCELLED = auto()


class RevisionKind(_Named):
    """What made a revision (§1)."""

    CREATED = auto()
    APPEND = auto()
    FOLD = auto()
    EDIT = auto()
    RESTORE = auto()
    FORK = auto()
    TRIM = auto()


class SignalKind(_Named):
    """Pressure signals P1-P7; P4 compares twice, once with T and once with W."""

    PROVIDER_COUNT = auto()
    PROJECTION = auto()
    HISTORY_ESTIMATE = auto()
    FORECAST_THRESHOLD = auto()
    FORECAST_WINDOW = auto()
    REQUEST_BYTES = auto()
    DID_NOT_FIT = auto()
    MANUAL = auto()


class ReadingSource(_Named):
    """Where a measured value comes from (4.1)."""

    EXACT = auto()
    ANCHORED = auto()
    ESTIMATED = auto()
    ABSENT = auto()


class TriggerClass(_Named):
    """Class of a signal (4.1)."""

    ORDINARY = auto()
    CAPACITY = auto()
    DID_NOT_FIT = auto()
    MANUAL = auto()


class Suppression(_Named):
    """What kept a tripped signal from folding (§5)."""

    FIRST_BOUNDARY = auto()
    CADENCE = auto()
    AUTO_COMPACT_OFF = auto()
    NO_PROGRESS = auto()
    COOLDOWN = auto()
    BUDGET = auto()
    IN_RUN = auto()
    AFTER_RESTORE = auto()
    OTHER_MODEL = auto()
    OUTLIER = auto()


class SkipReason(_Named):
    """Why a due fold did not happen (C8); ATTEMPT_FAILED is an attempt that failed, whose kind is in the events."""

    FIRST_BOUNDARY = auto()
    CADENCE = auto()
    NO_PROGRESS = auto()
    COOLDOWN = auto()
    BUDGET = auto()
    DEADLINE = auto()
    NOTHING_TO_FOLD = auto()
    AFTER_RESTORE = auto()
    ATTEMPT_FAILED = auto()


class FailureKind(_Named):
    """Why an attempt failed (§13)."""

    SUMMARIZER_FAILED = auto()
    SUMMARIZER_TIMEOUT = auto()
    SUMMARY_REJECTED = auto()
    REWRITE_REJECTED = auto()
    NOT_SMALLER = auto()
    PROJECTION_FAILED = auto()
    COMMIT_FAILED = auto()
    CURATOR_UNAVAILABLE = auto()
    CURATOR_FAILED = auto()
    REBASE_LOST = auto()
    CANCELLED = auto()
    INTERRUPTED = auto()
    UNMEASURED_TRANSCRIPT = auto()
    INTERNAL = auto()
    READY_DROPPED = auto()
    NATIVE_UNAVAILABLE = auto()


class Trigger(_Named):
    """What asked for a fold (§13)."""

    AUTOMATIC = auto()
    MANUAL = auto()
    DID_NOT_FIT = auto()
    CHECKPOINT = auto()
    BACKGROUND = auto()


class SummarySource(_Named):
    """Who wrote a summary (S1)."""

    PROVIDER = auto()
    CURATOR = auto()
    COMPACTOR = auto()
    EXTRACTIVE = auto()
    NATIVE = auto()
    MECHANICAL = auto()


class SourceBoundKind(_Named):
    """How much of the history a summary's source carried (S1)."""

    WHOLE = auto()
    TRIMMED = auto()
    MAPPED = auto()
    REQUESTS_ONLY = auto()


class CheckpointKind(_Named):
    """What a checkpoint did to the transcript (§11)."""

    COMPACT = auto()
    TRIM = auto()


class EventKind(_Named):
    """Event types (§13)."""

    COMPACTION_STARTED = auto()
    COMPACTION_COMPLETED = auto()
    COMPACTION_FAILED = auto()
    COMPACTION_SKIPPED = auto()
    TOOL_RESULTS_BOUNDED_FOR_REQUEST = auto()
    DID_NOT_FIT_RECORDED = auto()
    CHECKPOINT_SAVED = auto()
    MEMORY_DEGRADED = auto()
    RUN_SUPERSEDED = auto()
    WARNING = auto()


class WarningCode(_Named):
    """Codes of warnings in answers and events."""

    FORECAST_OVER_WINDOW = auto()
    ENDS_ON_ASSISTANT = auto()
    UNKNOWN_MODEL = auto()
    HISTORY_OVER_THRESHOLD = auto()
    MESSAGE_DROPPED = auto()
    FORMAT_LOSS = auto()
    HOST_BEHIND = auto()
    USAGE_OUTLIER = auto()
    USAGE_AGGREGATED = auto()
    USAGE_MISSING = auto()
    PARTIAL_CALLS_DROPPED = auto()
    LATE_RESULT = auto()
    FOLD_JOINED = auto()
    RUN_SUPERSEDED = auto()
    RUN_EXPIRED = auto()
    SURROGATE_REPLACED = auto()
    MEMORY_DROPPED = auto()
    MEMORY_PENDING = auto()
    CALL_ID_RENAMED = auto()
    TEXT_SHORTENED = auto()
    SOURCE_FAILED = auto()
    NATIVE_ITEM_LEFT_OUT = auto()
    NATIVE_UNAVAILABLE = auto()


class RefusalKind(_Named):
    """What a provider refused a request for (4.4)."""

    CONTEXT_EXCEEDED = auto()
    BODY_TOO_LARGE = auto()
    RATE_LIMITED = auto()
    OVERLOADED = auto()
    AUTHENTICATION = auto()
    INVALID_REQUEST = auto()
    OTHER = auto()


class SummarySourcePolicy(_Named):
    """policy summary.source (S2)."""

    AUTO = auto()
    CURATOR = auto()
    PROVIDER = auto()
    EXTRACTIVE = auto()
    NATIVE = auto()


class OnFailure(_Named):
    """policy summary.on_failure (S2)."""

    PRESERVE = auto()
    RESCUE = auto()
    NEXT = auto()


class Oversize(_Named):
    """policy summary.oversize (S4)."""

    TRIM = auto()
    MAP = auto()


class PromptCache(_Named):
    """policy summary.prompt_cache (S3)."""

    SEPARATE = auto()
    APPEND = auto()


class BoundingCut(_Named):
    """policy bounding.cut (B2)."""

    HEAD = auto()
    HEAD_TAIL = auto()


class MemoryIndex(_Named):
    """policy memory.index (M3)."""

    AUTO = auto()
    EXACT = auto()
    HNSW = auto()


class MemoryFusion(_Named):
    """policy memory.fusion (M4)."""

    MIN_MAX = auto()
    RRF = auto()


class ModelType(_Named):
    """Catalog type: selects request shaping, usage rules and body cap (4.2)."""

    OPENAI = auto()
    ANTHROPIC = auto()
    GOOGLE = auto()
    OTHER = auto()


class EntryRole(_Named):
    """Role of a memory entry (M4)."""

    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()


class EntryKind(_Named):
    """What a memory entry holds (M2)."""

    TEXT = auto()
    TRANSCRIPT = auto()
    TOOL_CALL = auto()
    TOOL_RESULT = auto()
