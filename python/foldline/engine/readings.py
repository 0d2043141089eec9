"""What the usage of an answer says: P1's count, P2's anchor, or nothing (L1, 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import WarningCode
from foldline.domain.models import Usage
from foldline.domain.session import Anchor, Cadence, Prepared, Reading

ANSWER_RATIOS, ANSWER_ALLOWANCE = (0.25, 2.5), 256
"""Reported output between these multiples of an answer's raw estimate, and so many tokens for its calls' frames, is its
rows; more is reasoning that does not come back, less a count of something else."""


@dataclass(frozen=True, slots=True)
class UsageVerdict:
    """What became of the usage of an answer (L1, 4.3).

    Attributes:
        input_tokens: the provider's count, also where it is no reading; None where there is none.
        counted, anchored: whether it became P1's count and P2's anchor.
        learn: whether the learned factor may take it.
        warning: USAGE_OUTLIER, USAGE_AGGREGATED or USAGE_MISSING.
    """

    input_tokens: int | None = None
    counted: bool = False
    anchored: bool = False
    learn: bool = False
    warning: WarningCode | None = None


def answered(
    cadence: Cadence,
    prepared: Prepared,
    usage: Usage | None,
    *,
    revisions_only_appends: bool,
    estimate: int,
    media_tokens: int = 0,
    answer_tokens: int = 0,
) -> tuple[Cadence, UsageVerdict]:
    """Takes an answer and its usage, which may also come later, in a second call for the same request (L1, 4.3, 4.4).

    Args:
        prepared: the request that was answered; ``request_bytes`` is of its whole body, ``model`` and ``window`` are
            those of the model that answered.
        usage: normalised; None where the answer carries none (yet).
        revisions_only_appends: every revision since the request was an append that superseded no system row.
        estimate: tokens the request was estimated at, tools included, after the factor.
        media_tokens: part of ``estimate`` that stands for media, which are counted high.
        answer_tokens: raw estimate of the rows that were appended with the answer, all that its output made; 0 where
            some were dropped or come otherwise.
    """
    newest = prepared.boundary >= cadence.boundaries - 1
    if newest:
        cadence = replace(cadence, fit_attempts=0, did_not_fit=cadence.did_not_fit if prepared.bounded else None)
    count = None if usage is None else usage.input_tokens
    if usage is None or not count:
        return cadence, UsageVerdict(warning=None if usage is None else WarningCode.USAGE_MISSING)
    if usage.aggregated:
        return cadence, UsageVerdict(count, warning=WarningCode.USAGE_AGGREGATED)
    if is_outlier(count, prepared, estimate, media_tokens):
        return cadence, UsageVerdict(count, warning=WarningCode.USAGE_OUTLIER)
    # Media are counted high on purpose: a request that is mostly media says little about text.
    learn = not prepared.bounded and media_tokens * 10 <= estimate
    older = cadence.anchor is not None and cadence.anchor.revision > prepared.revision
    if not revisions_only_appends or older:
        return cadence, UsageVerdict(count, learn=learn)
    last = cadence.count is None or cadence.count.revision <= prepared.revision
    if last:
        cadence = replace(cadence, count=Reading(count, prepared.model, prepared.revision))
    if prepared.bounded:
        return cadence, UsageVerdict(count, counted=last)
    anchor = Anchor(count, prepared.revision, prepared.covered_tokens, prepared.model)
    if _counts_the_rows(usage.output_tokens, answer_tokens):
        anchor = replace(anchor, output_tokens=usage.output_tokens or 0, output_covered=answer_tokens)
    return replace(cadence, anchor=anchor), UsageVerdict(count, counted=last, anchored=True, learn=learn)


def is_outlier(count: int, prepared: Prepared, estimate: int, media_tokens: int) -> bool:
    """Whether a count cannot be that of this request (4.3).

    Above the window of a call that succeeded; above one token a byte plus the media allowance; under a quarter of the
    estimate, of which media are no part, since theirs is an upper bound.
    """
    if count > prepared.window or count > prepared.request_bytes + media_tokens:
        return True
    return count * 4 < estimate - media_tokens


def _counts_the_rows(output_tokens: int | None, answer_tokens: int) -> bool:
    if not output_tokens or not answer_tokens:
        return False
    low, high = ANSWER_RATIOS
    return low * answer_tokens <= output_tokens <= high * answer_tokens + ANSWER_ALLOWANCE
