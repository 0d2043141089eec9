"""A curator's text as a summary (S6): what the user requires is carried in it (F8), what it misses is listed (S9)."""

from __future__ import annotations

from collections.abc import Callable

from foldline.domain.curators import Curated
from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.summarize.constraints import MEMORY_LINE
from foldline.summarize.coverage import cover
from foldline.summarize.goals import constraint_line
from foldline.summarize.source import read_source

CARRIED = "What the user requires, as stated:"
_SEAM = 4
"""Tokens that two texts may take more than each alone."""


class CuratedText:
    """What a curator's text for one request has to carry.

    Attributes:
        tokens: of the budget that its own words leave to the user's constraints.
    """

    def __init__(self, request: SummaryRequest, count: Callable[[str], int]) -> None:
        self._request, self._count = request, request.count or count
        self._source = read_source(request, self._count)
        block = self._block("")
        self.tokens = self._count(block) + _SEAM if block else 0

    def _block(self, text: str) -> str:
        """The constraints that a text does not hold word for word."""
        source = self._source
        lines = [constraint_line(c, 0).text for c in source.durable if c.text not in text]
        lines += [f"- {MEMORY_LINE}"] * (source.gave_way and MEMORY_LINE not in text)
        return "\n".join((CARRIED, *lines)) if lines else ""

    def into(self, answer: Curated) -> SummaryResult:
        """The summary, of at most the request's budget, plus an appendix of at most ``request.appendix``.

        Raises:
            SummaryFailed: SUMMARY_REJECTED where no room is left for the constraints, with what was used.
        """
        request, source, count = self._request, self._source, self._count
        block = self._block(answer.text)
        # What speaks for itself is judged as it is (V6), also where it is blank.
        prose = f"{answer.text.rstrip()}\n\n{block}" if block and answer.text.strip() else answer.text
        if block and count(prose) > request.budget:
            raise SummaryFailed(
                FailureKind.SUMMARY_REJECTED,
                f"{count(answer.text)} tokens of text; the budget is {request.budget}, of which {self.tokens} are for "
                "what the user requires", model=answer.model, usage=answer.usage,
            )  # fmt: skip
        spare = min(request.appendix, max(0, source.total - count(prose))) if prose.strip() else 0
        text, coverage, added = cover(prose, source.identifiers, request.coverage_floor, spare, count)
        return SummaryResult(
            text, source.kept(text), SummarySource.CURATOR, coverage=coverage, model=answer.model, usage=answer.usage,
            appendix_tokens=added, named=source.named,
        )  # fmt: skip
