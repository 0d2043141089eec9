"""Types of the compiled core (`rust/py`). Text that is not valid Unicode raises `UnicodeEncodeError` at this border."""

from collections.abc import Sequence
from typing import Final, final

__all__ = [
    "BLOCK_OVERHEAD",
    "IMAGE_TOKENS",
    "OMISSION",
    "ROW_OVERHEAD",
    "ROW_TOKENS",
    "VIDEO_TOKENS_PER_SECOND",
    "CoreError",
    "Ledger",
    "Words",
    "__version__",
    "ascii_terms",
    "build_info",
    "chain",
    "count_tokens",
    "digest_rows",
    "encodings",
    "measure_rows",
    "ranks",
    "shorten_many",
    "tokens_within",
    "warm",
    "water_fill",
    "weighted_tokens",
]

__version__: Final[str]

OMISSION: Final[str]
"""Stands between head and tail of a cut text; counted in the size, not in the kept bytes."""
ROW_TOKENS: Final[int]
IMAGE_TOKENS: Final[int]
VIDEO_TOKENS_PER_SECOND: Final[int]
ROW_OVERHEAD: Final[int]
BLOCK_OVERHEAD: Final[int]

class CoreError(ValueError):
    """What the core refuses: UNKNOWN_ENCODING, ROW_INVALID, LENGTH_MISMATCH, RANGE_INVALID or DIGEST_LENGTH."""

    reason: str
    message: str

def build_info() -> dict[str, str]: ...

# Estimation (semantics 4.5)
def encodings() -> list[str]: ...
def warm(encoding: str) -> None: ...
def ranks(encoding: str) -> list[bytes]: ...
def count_tokens(text: str, encoding: str) -> int: ...
def weighted_tokens(text: str) -> int: ...
def measure_rows(rows: Sequence[bytes], encoding: str | None) -> list[tuple[int, int]]:
    """(tokens, bytes) of each row, given as the canonical JSON of its body."""

# Bounding (B1, B2)
def water_fill(sizes: Sequence[int], budget: int, minimum: int) -> list[int] | None: ...
def tokens_within(texts: Sequence[str], budget: int, least: int, encoding: str) -> list[int]:
    """Tokens of each text; of one over its share of the budget, and over ``least``, only some number above both."""

def shorten_many(
    items: Sequence[tuple[str, tuple[int | None, int | None, int | None], str, str]],
    encoding: str | None,
    head_tail: bool,
) -> list[tuple[str, int, int | None, int]]:
    """Cuts texts to their limits, each with its marker behind it.

    Args:
        items: (text, limits, marker before and behind the number of kept bytes); limits are (bytes inside JSON, UTF-8
            bytes, tokens) of what is returned, None for none.
        encoding: None to count tokens as weighted bytes.

    Returns:
        (what to send, bytes of the text that it keeps, its tokens where they were limited, its bytes inside JSON).
    """

# Memory (M4)
def ascii_terms(text: str, most: int | None = None) -> str | None:
    """Search terms of an ASCII text, joined by spaces; of the last ones no more than ``most``. None for other texts."""

@final
class Words:
    """The words of a group of entries, given as the text and the context of each in turn."""

    def __new__(cls, columns: Sequence[str]) -> Words: ...
    def words(self) -> list[str]: ...
    def lengths(self) -> list[int]: ...
    def postings(self, stems: Sequence[str]) -> list[tuple[str, bytes]]:
        """Postings by stem, for the stem of each of ``words``."""

# Digests (§1 revision, V7)
def digest_rows(offsets: Sequence[int], bodies: Sequence[bytes]) -> bytes: ...
def chain(parent: bytes, kind: int, payload: Sequence[bytes]) -> bytes: ...

@final
class Ledger:
    """The active transcript's rows as columns, in list order, with their sums kept."""

    def __new__(cls) -> Ledger: ...
    def __len__(self) -> int: ...
    def append(
        self,
        offsets: Sequence[int],
        kinds: Sequence[int],
        runs: Sequence[int],
        rounds: Sequence[int],
        tokens: Sequence[int],
        bytes: Sequence[int],
    ) -> None: ...
    def insert(
        self,
        position: int,
        offsets: Sequence[int],
        kinds: Sequence[int],
        runs: Sequence[int],
        rounds: Sequence[int],
        tokens: Sequence[int],
        bytes: Sequence[int],
    ) -> None: ...
    def replace(
        self,
        discard: Sequence[tuple[int, int]],
        position: int | None = None,
        row: tuple[int, int, int, int, int, int] | None = None,
    ) -> tuple[int, int, int]: ...
    def total_tokens(self) -> int: ...
    def total_bytes(self) -> int: ...
    def totals_by_run(self, run: int) -> tuple[int, int, int]: ...
    def totals_by_kind(self, kind: int) -> tuple[int, int, int]: ...
    def suffix_totals(self, position: int) -> tuple[int, int, int]: ...
    def position(self, offset: int) -> int | None: ...
    def slice(
        self, start: int = 0, stop: int | None = None
    ) -> tuple[list[int], bytes, list[int], list[int], list[int], list[int]]: ...
