"""CountTokens, ClassifyError and NormalizeUsage: stateless helpers for hosts."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.commands.answer_usage import decoded
from foldline.commands.draft import measured
from foldline.commands.inputs import RowsInput, read_input
from foldline.commands.services import WEIGHTED_BYTES, Caller, Services
from foldline.domain.events import Warning_
from foldline.domain.models import Factor, Usage
from foldline.domain.policy import resolve
from foldline.domain.rows import ModelRef, Row
from foldline.domain.session import Session
from foldline.engine.factor import apply, within
from foldline.engine.refusals import Classified, classify
from foldline.engine.usage import from_response


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens after the learned factor, and body bytes; ``rows`` are those of each row, where rows were given.

    Attributes:
        exact: by the model's own vocabulary, of text alone: no factor is applied.
    """

    tokens: int
    bytes: int
    estimator: str
    factor: Factor
    exact: bool = False
    rows: tuple[int, ...] = ()
    warnings: tuple[Warning_, ...] = ()


def count_tokens(
    services: Services, caller: Caller, model: ModelRef, text: str | None = None, rows: RowsInput | None = None,
    tools: bytes = b"",
) -> TokenCount:  # fmt: skip
    """Counts a text as it is, or rows or tool definitions by the rules of 4.5.

    Raises:
        FoldlineError: FORMAT_INVALID.
    """
    encoding = services.encoding(model)
    estimator = encoding or WEIGHTED_BYTES
    if text is not None and encoding:
        return TokenCount(services.count(text, model), len(text.encode()), estimator, Factor(model), exact=True)
    known = within(services.factor(caller.tenant, model), resolve({"config": services.config_policy}).policy)
    if rows is None:
        data = text.encode() if text is not None else tools
        raw = services.count(data.decode(errors="replace"), model)
        return TokenCount(apply(known, raw), len(data), estimator, known)
    new, warnings, _ = read_input(services, rows)
    session = Session(key=0, tenant="", session_id="", create_time="", model=model)
    stored = measured(services, session, [Row(i + 1, r.body) for i, r in enumerate(new)], 0, {})
    return TokenCount(
        apply(known, sum(r.tokens for r in stored)), sum(r.bytes for r in stored), estimator, known,
        rows=tuple(apply(known, r.tokens) for r in stored), warnings=tuple(warnings),
    )  # fmt: skip


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
