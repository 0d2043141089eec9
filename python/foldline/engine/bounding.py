"""Bounding a run's results for one request (§9); stored rows stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foldline.domain.policy import Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import ContentBlock
from foldline.domain.session import Share


@dataclass(frozen=True, slots=True)
class BoundableResult:
    """A result that may be shortened: the run's own, or another's that no request carried yet (B7).

    Attributes:
        tokens: estimate of the row, after the factor; ``bytes`` its size in the request body.
        text_bytes: UTF-8 bytes of ``text_of`` its content.
    """

    offset: int
    call_id: str
    tokens: int
    bytes: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """Which results go out shortened.

    Attributes:
        share: what every listed result is shortened to; kept in the open run for B9.
        offsets: results over their share, in list order.
        fits: False where even ``bounding.min_bytes`` a result do not fit (B8); then the share is that minimum.
        limit: the limit that was exceeded, in bytes or tokens (B3); ``by_bytes`` says which.
    """

    share: Share
    offsets: tuple[int, ...]
    fits: bool
    limit: int
    by_bytes: bool


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
        previous: the run's last share; results over it stay shortened, and it only shrinks, in steps (B9).
        encoding: the model's own vocabulary if it is embedded; then the token axis is cut by tokens.
    """
    raise NotImplementedError


def text_of(content: Sequence[ContentBlock]) -> str:
    """The text of a result, with a placeholder in place of each medium (B2)."""
    raise NotImplementedError


def shorten(
    text: str, share: Share, *, call_id: str, name: str, policy: Policy, encoding: str = "", factor: float = 1.0
) -> tuple[str, int]:
    """The head of a text (or head and tail) and its marker, within ``share``; and how many of its bytes it keeps (B2)."""
    raise NotImplementedError
