"""Bounding results for one request (§9): a run's own, or texts of no session; stored rows stay whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from foldline._core import (
    BLOCK_OVERHEAD,
    ROW_OVERHEAD,
    ROW_TOKENS,
    count_tokens,
    shorten_many,
    water_fill,
    weighted_tokens,
)
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Bounding
from foldline.domain.rows import MEDIA, ContentBlock, StructuredBlock, TextBlock, TranscriptBlock
from foldline.domain.session import Share

BYTES_A_TOKEN = 2
"""Where a vocabulary is not embedded a token of a shortened text counts as few bytes, so that dense text fits (B1)."""
SMALLEST_SHARE = 256
"""Bytes of a row that hold the marker, whatever ``bounding.min_bytes`` says."""
SHRINK = (3, 4)
"""One step of B9."""
_NAME_BYTES = 40


@dataclass(frozen=True, slots=True)
class BoundableResult:
    """A result that may be shortened: the run's own, or another's that no request carried yet (B7).

    Attributes:
        tokens: raw estimate of the row, before the factor; of a text alone, its tokens, or any number above both its
            share and the least one.
        bytes: of the row in the request body; of a text alone, its UTF-8.
    """

    offset: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """Which results go out shortened.

    Attributes:
        share: what each result may take; kept in the open run for B9.
        offsets: results over their share, in the order given.
        fits: False where even ``bounding.min_bytes`` a result do not fit (B8); the share is then that minimum.
        by_bytes: whether the limit that was exceeded is that of bytes (B3).
    """

    share: Share
    offsets: tuple[int, ...]
    fits: bool
    by_bytes: bool


def plan(
    results: Sequence[BoundableResult],
    *,
    token_budget: int | None,
    byte_budget: int | None,
    bounding: Bounding,
    previous: Share | None = None,
    encoding: str = "",
    factor: float = 1.0,
) -> BoundPlan | None:
    """Shares a budget among results (B1); None where everything goes out whole.

    Args:
        token_budget, byte_budget: what the results may take together; below 0 where the rest of the request leaves
            nothing, None for no limit. Tokens after the factor.
        previous: the run's last share. Results over it stay shortened, and it only shrinks, in steps (B9); a caller
            whose list was rewritten in between, so that no cached prefix is left, passes None.
        encoding: the model's own vocabulary if it is embedded.
        factor: the learned factor.
    """
    before = previous or Share()
    smallest = smallest_share(bounding)
    raw_budget = None if token_budget is None else math.floor(token_budget / factor)
    smallest_tokens = math.ceil(smallest / BYTES_A_TOKEN / factor)
    by_tokens = _axis([r.tokens for r in results], raw_budget, smallest_tokens, before.tokens)
    by_bytes = _axis([r.bytes for r in results], byte_budget, smallest, before.bytes)
    share = Share(by_bytes.share, by_tokens.share, _head_bytes(by_tokens.share, before, encoding, factor))
    cut = tuple(r.offset for r in results if _over(r.tokens, share.tokens) or _over(r.bytes, share.bytes))
    fits = by_tokens.fits and by_bytes.fits
    if not cut and fits:
        return None
    over_bytes = byte_budget is not None and sum(r.bytes for r in results) > byte_budget
    return BoundPlan(share, cut, fits, by_bytes=over_bytes or (share.tokens is None and byte_budget is not None))


def smallest_share(bounding: Bounding) -> int:
    """Bytes of the least share that is worth sending (B8)."""
    return max(bounding.min_bytes, SMALLEST_SHARE)


@dataclass(frozen=True, slots=True)
class _Axis:
    share: int | None
    fits: bool


def _axis(sizes: list[int], budget: int | None, smallest: int, before: int | None) -> _Axis:
    """The share on one axis: None while it binds nothing, and no step below the one before unless it must."""
    capped = sizes if before is None else [min(size, before) for size in sizes]
    if budget is None or sum(capped) <= budget:
        return _Axis(before, True)
    shares = water_fill(capped, budget, smallest) if budget >= 0 else None
    if shares is None:
        return _Axis(smallest if before is None else min(smallest, before), False)
    needed = min(share for share, size in zip(shares, capped, strict=True) if share < size)
    if before is None:
        return _Axis(needed, True)
    share = before
    while share > needed:
        share = max(share * SHRINK[0] // SHRINK[1], smallest)
    return _Axis(share, True)


def _head_bytes(tokens: int | None, before: Share, encoding: str, factor: float) -> int | None:
    if tokens is None or encoding:
        return None
    head = int(tokens * factor) * BYTES_A_TOKEN
    if before.head_bytes is None:
        return head
    return before.head_bytes if tokens == before.tokens else min(before.head_bytes, head)


def _over(size: int, share: int | None) -> bool:
    return share is not None and size > share


def text_of(content: Sequence[ContentBlock]) -> str:
    """The text of a result, with a placeholder that names the type in place of each medium (B2)."""
    return "\n".join(_block_text(block) for block in content)


def whole_size(content: Sequence[ContentBlock]) -> int:
    """Bytes of a whole result: of its text, and of the base64 of its media."""
    sizes = (len(b.data) if isinstance(b, MEDIA) and b.data else utf8_size(_block_text(b)) for b in content)
    return sum(sizes) + max(0, len(content) - 1)


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _block_text(block: ContentBlock) -> str:
    if isinstance(block, TextBlock | TranscriptBlock):
        return block.text
    if isinstance(block, StructuredBlock):
        return block.json
    kind = type(block).__name__.removesuffix("Block").lower()
    if isinstance(block, MEDIA):
        size = f", {len(block.data)} bytes of base64" if block.data else ""
        return f"[{block.mime_type or kind} left out{size}]"
    return f"[{kind} left out]"


@dataclass(frozen=True, slots=True)
class LongResult:
    """A result to shorten.

    Attributes:
        text: as ``text_of`` gives it.
        whole_bytes: size of the whole result as the marker names it, media included.
        usage_mark: what is sent behind its text (K4).
    """

    text: str
    whole_bytes: int
    call_id: str
    name: str = ""
    usage_mark: str = ""


@dataclass(frozen=True, slots=True)
class Shortened:
    """What is sent in place of a result's content: the head of its text (or head and tail) and a marker (B2).

    Attributes:
        kept_bytes: of the result's text, in ``text``.
        tokens, bytes: of the row with this text, as rows are measured (4.5); of a text alone, not known.
    """

    text: str
    kept_bytes: int
    tokens: int = 0
    bytes: int = 0


def shorten(
    results: Sequence[LongResult], share: Share, cut: BoundingCut, encoding: str | None = None
) -> list[Shortened]:
    """Shortens results so that the row of each stays within ``share`` (B2).

    Args:
        encoding: what the rows were counted by; None for weighted bytes.
    """
    beside = [_row_beside(result, encoding) for result in results]
    limits = [
        (
            None if share.bytes is None else max(0, share.bytes - size),
            share.head_bytes,
            # The row's new tokens are wanted also where nothing limits them.
            sys.maxsize if share.tokens is None else max(0, share.tokens - tokens),
        )
        for tokens, size in beside
    ]
    found = _shorten(results, limits, cut, encoding)
    return [
        Shortened(text, kept, tokens + (counted or 0), size + escaped)
        for (tokens, size), (text, kept, counted, escaped) in zip(beside, found, strict=True)
    ]


def shorten_texts(
    results: Sequence[LongResult], share: Share, cut: BoundingCut, encoding: str | None = None
) -> list[Shortened]:
    """Shortens texts of no rows, so that the UTF-8 and the tokens of each stay within ``share`` (B2)."""
    limits = [(None, share.bytes, share.tokens)] * len(results)
    return [Shortened(text, kept) for text, kept, _, _ in _shorten(results, limits, cut, encoding)]


def _shorten(
    results: Sequence[LongResult],
    limits: Sequence[tuple[int | None, int | None, int | None]],
    cut: BoundingCut,
    encoding: str | None,
) -> list[tuple[str, int, int | None, int]]:
    items = [(r.text, limit, *_marker(r)) for r, limit in zip(results, limits, strict=True)]
    return shorten_many(items, encoding or None, cut is BoundingCut.HEAD_TAIL)


def _row_beside(result: LongResult, encoding: str | None) -> tuple[int, int]:
    """(tokens, bytes) that the row takes besides the text that is sent."""
    mark = result.usage_mark
    tokens = count_tokens(mark, encoding) if encoding else weighted_tokens(mark)
    return ROW_TOKENS + tokens, ROW_OVERHEAD + BLOCK_OVERHEAD + _escaped(result.call_id) + _escaped(mark)


def _marker(result: LongResult) -> tuple[str, str]:
    """What stands behind a shortened text, before and behind the number of kept bytes (B2)."""
    call = _label(result.call_id)
    label = f"{_label(result.name)} (call {call})" if result.name else f"call {call}"
    return (
        f"\n[result of {label} shortened: ",
        f" of {result.whole_bytes} bytes kept; read_result reads the rest]",
    )


def _label(text: str) -> str:
    text = text[: 4 * _NAME_BYTES]
    if not text.isprintable() or '"' in text or "\\" in text:
        text = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)
    return text.encode()[:_NAME_BYTES].decode(errors="ignore")


def _escaped(text: str) -> int:
    return len(msgspec.json.encode(text)) - 2
