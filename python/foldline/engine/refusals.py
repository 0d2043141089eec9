"""What a provider refused a request for (4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.enums import RefusalKind


@dataclass(frozen=True, slots=True)
class Classified:
    """A refusal: its kind, the tokens it says the request had, the limit it names, and when to come back, in seconds."""

    kind: RefusalKind
    named_tokens: int | None = None
    named_limit: int | None = None
    retry_after: float | None = None


def classify(http_status: int, body: bytes, retry_after: float | None = None) -> Classified:
    """Classifies a refusal by status and raw body; a rate limit is never taken for one of size.

    Args:
        http_status: 0 where the transport knows none (an error inside a stream).
        retry_after: seconds of the ``Retry-After`` header, if the host passed it on.
    """
    raise NotImplementedError
