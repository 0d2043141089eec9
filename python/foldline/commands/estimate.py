"""CountTokens, ClassifyError and NormalizeUsage: stateless helpers for hosts."""

from __future__ import annotations

from dataclasses import dataclass

from foldline import _core
from foldline.commands.answer_usage import decoded
from foldline.commands.draft import measured
from foldline.commands.inputs import RowsInput, read_input
from foldline.commands.services import WEIGHTED_BYTES, Services
from foldline.domain.events import Warning_
from foldline.domain.models import Usage
from foldline.domain.rows import ModelRef, Row
from foldline.domain.session import Session
from foldline.engine.refusals import Classified, classify
from foldline.engine.usage import from_response


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Raw tokens (before any learned factor) and estimated body bytes; one entry a row where rows were given."""

    tokens: int
    bytes: int
    rows: tuple[tuple[int, int], ...]
    estimator: str
    exact: bool
    warnings: tuple[Warning_, ...] = ()


def count_tokens(services: Services, model: ModelRef, text: str | None, rows: RowsInput | None) -> TokenCount:
    """Counts a text as it is, or rows by the rules of 4.5.

    Raises:
        FoldlineError: FORMAT_INVALID.
    """
    encoding = services.encoding(model)
    estimator, exact = encoding or WEIGHTED_BYTES, encoding is not None
    if text is not None:
        tokens = _core.count_tokens(text, encoding) if encoding else _core.weighted_tokens(text)
        return TokenCount(tokens, len(text.encode()), (), estimator, exact)
    new, warnings, _ = read_input(services, rows)
    session = Session(key=0, tenant="", session_id="", create_time="", model=model)
    stored = measured(services, session, [Row(i + 1, r.body) for i, r in enumerate(new)], 0, {})
    sizes = tuple((r.tokens, r.bytes) for r in stored)
    return TokenCount(sum(t for t, _ in sizes), sum(b for _, b in sizes), sizes, estimator, exact, tuple(warnings))


def classify_error(http_status: int, body: bytes, provider: str = "") -> Classified:
    """What a provider refused a request for (4.4)."""
    return classify(http_status, body, provider)


def normalize_usage(services: Services, model: ModelRef, usage_json: bytes) -> Usage:
    """A provider's usage as one shape (4.3): its usage object, or the response that holds it.

    Raises:
        FoldlineError: FORMAT_INVALID where it is no JSON object.
    """
    info = services.model(model)
    return from_response(info.type, decoded(usage_json), info.prices) or Usage()
