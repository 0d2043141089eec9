"""Bounding a run's results for one request (§9); stored rows stay whole."""

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
    cut_text,
    water_fill,
    weighted_tokens,
)
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import MEDIA, ContentBlock, StructuredBlock, TextBlock, TranscriptBlock
from foldline.domain.session import Share

BYTES_A_TOKEN = 2
"""Where a vocabulary is not embedded a token of a shortened text counts as few bytes, so that dense text fits (B1)."""
SMALLEST_SHARE = 256
"""Bytes of a row that hold the marker, whatever ``bounding.min_bytes`` says."""
SHRINK = (3, 4)
"""One step of B9."""
_NAME_BYTES = 40
_GUESS_BYTES_A_TOKEN = 5
_TRIES = 12


@dataclass(frozen=True, slots=True)
class BoundableResult:
    """A result that may be shortened: the run's own, or another's that no request carried yet (B7).

    Attributes:
        tokens: raw estimate of the row, before the factor.
        bytes: of the row in the request body.
    """

    offset: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """Which results go out shortened.

    Attributes:
        share: what each result's row may take; kept in the open run for B9.
        offsets: results over their share, in list order.
        fits: False where even ``bounding.min_bytes`` a result do not fit (B8); the share is then that minimum.
        limit: the limit that was exceeded (B3), in bytes where ``by_bytes``, else in tokens.
        sent_tokens, sent_bytes: of the whole request once bounded, at most; tokens after the factor.
    """

    share: Share
    offsets: tuple[int, ...]
    fits: bool
    limit: int
    by_bytes: bool
    sent_tokens: int
    sent_bytes: int


def plan(
    results: Sequence[BoundableResult],
    *,
    rest_tokens: int,
    rest_bytes: int,
    limits: Limits,
    policy: Policy,
    previous: Share | None = None,
    encoding: str = "",
    factor: float = 1.0,
) -> BoundPlan | None:
    """Shares what the rest of the request leaves among the results (B1); None where everything goes out whole.

    Args:
        rest_tokens: estimate of everything else in the request, tools included, after the factor.
        rest_bytes: body bytes of everything else.
        previous: the run's last share. Results over it stay shortened, and it only shrinks, in steps (B9); a caller
            whose list was rewritten in between, so that no cached prefix is left, passes None.
        encoding: the model's own vocabulary if it is embedded.
        factor: the learned factor.
    """
    tokens, sizes = [r.tokens for r in results], [r.bytes for r in results]
    before = previous or Share()
    smallest = max(policy.bounding.min_bytes, SMALLEST_SHARE)
    token_budget = math.floor((limits.input_budget - rest_tokens) / factor)
    by_tokens = _axis(tokens, token_budget, math.ceil(smallest / BYTES_A_TOKEN / factor), before.tokens)
    by_bytes = _Axis(None, True)
    if limits.body_cap is not None:
        by_bytes = _axis(sizes, limits.body_cap - rest_bytes, smallest, before.bytes)
    share = Share(by_bytes.share, by_tokens.share, _head_bytes(by_tokens.share, before, encoding, factor))
    cut = tuple(r.offset for r in results if _over(r.tokens, share.tokens) or _over(r.bytes, share.bytes))
    fits = by_tokens.fits and by_bytes.fits
    if not cut and fits:
        return None
    over_bytes = limits.body_cap is not None and rest_bytes + sum(sizes) > limits.body_cap
    names_bytes = over_bytes or share.tokens is None
    return BoundPlan(
        share=share,
        offsets=cut,
        fits=fits,
        limit=limits.body_cap if names_bytes and limits.body_cap is not None else limits.input_budget,
        by_bytes=names_bytes,
        sent_tokens=rest_tokens + math.ceil(factor * sum(_at_most(size, share.tokens) for size in tokens)),
        sent_bytes=rest_bytes + sum(_at_most(size, share.bytes) for size in sizes),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    share: int | None
    fits: bool


def _axis(sizes: list[int], budget: int, smallest: int, before: int | None) -> _Axis:
    """The share on one axis: None while it binds nothing, and no step below the one before unless it must."""
    capped = [_at_most(size, before) for size in sizes]
    if sum(capped) <= budget:
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


def _at_most(size: int, share: int | None) -> int:
    return size if share is None else min(size, share)


def _over(size: int, share: int | None) -> bool:
    return share is not None and size > share


def text_of(content: Sequence[ContentBlock]) -> str:
    """The text of a result, with a placeholder that names the type in place of each medium (B2)."""
    return "\n".join(_block_text(block) for block in content)


def whole_size(content: Sequence[ContentBlock]) -> int:
    """Bytes of a whole result: of its text, and of the base64 of its media."""
    sizes = (len(b.data) if isinstance(b, MEDIA) and b.data else len(_block_text(b).encode()) for b in content)
    return sum(sizes) + max(0, len(content) - 1)


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


def shorten(
    text: str,
    share: Share,
    *,
    call_id: str,
    name: str,
    policy: Policy,
    whole_bytes: int | None = None,
    encoding: str = "",
) -> tuple[str, int]:
    """The head of a text (or head and tail) and a marker, so that the result's row stays within ``share`` (B2).

    Args:
        text: the result as ``text_of`` gives it.
        whole_bytes: size of the whole result as the marker names it, media included; by default of ``text``.
        encoding: the model's own vocabulary if it is embedded, as given to ``plan``.

    Returns:
        The text to send in place of the result's content, and how many bytes of ``text`` it keeps.
    """
    total = len(text) if text.isascii() else len(text.encode())
    whole = total if whole_bytes is None else whole_bytes
    head_tail = policy.bounding.cut == BoundingCut.HEAD_TAIL
    limits = _TextLimits(
        escaped=None if share.bytes is None else share.bytes - ROW_OVERHEAD - BLOCK_OVERHEAD - _escaped(call_id),
        tokens=None if share.tokens is None else share.tokens - ROW_TOKENS,
        plain=share.head_bytes,
        encoding=encoding,
    )
    room = min(total, limits.most_bytes() - len(_marker(name, call_id, total, whole)))
    for _ in range(_TRIES):
        kept_text, kept = cut_text(text, max(0, room), head_tail)
        marker = _marker(name, call_id, kept, whole)
        excess = limits.excess(kept_text + marker)
        if excess <= 1:
            return kept_text + marker, kept
        if room <= 0:
            break
        # The marker takes its part of the room, so that the text gives way by more than the ratio.
        room = int((room + len(marker)) / excess * 0.99) - len(marker)
    return _marker(name, call_id, 0, whole).lstrip(), 0


@dataclass(frozen=True, slots=True)
class _TextLimits:
    """Limits of a shortened text: JSON-escaped bytes, tokens, and plain bytes."""

    escaped: int | None
    tokens: int | None
    plain: int | None
    encoding: str

    def most_bytes(self) -> int:
        """Where to start looking for the text that fits."""
        bounds = [self.escaped, self.plain, None if self.tokens is None else self.tokens * _GUESS_BYTES_A_TOKEN]
        return min((bound for bound in bounds if bound is not None), default=sys.maxsize)

    def excess(self, text: str) -> float:
        """How many times over its limits a text is; at most 1 where it is within all of them."""
        ratios = [0.0]
        if self.escaped is not None:
            ratios.append(_escaped(text) / max(1, self.escaped))
        if self.plain is not None:
            ratios.append(len(text.encode()) / max(1, self.plain))
        if self.tokens is not None:
            count = count_tokens(text, self.encoding) if self.encoding else weighted_tokens(text)
            ratios.append(count / max(1, self.tokens))
        return max(ratios)


def _marker(name: str, call_id: str, kept: int, whole: int) -> str:
    label = f"{_label(name)} (call {_label(call_id)})" if name else f"call {_label(call_id)}"
    return f"\n[result of {label} shortened: {kept} of {whole} bytes kept; read_result reads the rest]"


def _label(text: str) -> str:
    printable = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text[: 4 * _NAME_BYTES])
    return cut_text(printable, _NAME_BYTES, False)[0]


def _escaped(text: str) -> int:
    return len(msgspec.json.encode(text)) - 2
