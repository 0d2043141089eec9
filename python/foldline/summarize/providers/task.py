"""What a model is asked for one summary, sized for its window (S4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

from foldline.domain.enums import FailureKind, SourceBoundKind
from foldline.domain.folding import LiveRequest, SourceBound, SummaryFailed, SummaryRequest
from foldline.summarize.packing import HEADINGS
from foldline.summarize.prompt import Ask, ask_appended, ask_for_merge, ask_for_summary
from foldline.summarize.providers.appended import NotAppendable, appended
from foldline.summarize.sizing import Sized
from foldline.summarize.source import Source
from foldline.summarize.text import clip_middle
from foldline.summarize.transcript import Part
from foldline.summarize.written import Sections, composed, render

_LEAST_ROOM = 200
_EARLIER_SHARE, _INSTRUCTIONS_SHARE = 0.25, 0.1
_TOLD_SHARE = 0.9
_LEAST_ANSWER = 1.25
"""Room for an answer, of what the model is told to use: it counts badly."""
_SUMMARIES_A_MERGE = 3
_FILL = 0.95
_FENCE_TOKENS = 40
_FRAME_TOKENS = 64
"""What roles and separators of a request take beside its texts."""
_LARGE = 10**9
_BOUND = SourceBound(SourceBoundKind.REQUESTS_ONLY, _LARGE, _LARGE, _LARGE, _LARGE)


class Task:
    """The asks of one summary: each of them fits the window with the answer it asks for.

    Attributes:
        most: tokens that the model may answer with; reasoning counts among them.
        room: tokens of transcript that one call may carry.
    """

    def __init__(
        self, request: SummaryRequest, source: Source, window: int, most: int, count: Callable[[str], int],
        scale: float, prose_tokens: Callable[[str], int],
    ) -> None:  # fmt: skip
        """Sizes the request.

        Args:
            window: of the summarizing model, in its tokens.
            count: raw tokens of a text, of which the model counts ``scale`` each.
            most: tokens of answer to ask for, where the window is large enough.

        Raises:
            SummaryFailed: NOT_SMALLER where the rows are no longer than the bare headings; SUMMARIZER_FAILED with
                ``context_exceeded`` where the window leaves no room for them.
        """
        self.request, self.source, self.prose_tokens = request, source, prose_tokens
        self._count, self._scale = count, scale
        if prose_tokens(render([[]] * len(HEADINGS))) > source.room:
            raise SummaryFailed(
                FailureKind.NOT_SMALLER,
                f"the six headings do not fit in {source.room} tokens (budget {request.budget}, source {source.total})",
            )
        # A small window is shared out by what the bare prompt leaves of it, a large one by itself.
        self._window = window
        bare = ask_for_summary("", _BOUND, _LARGE, earlier="-", part=(_LARGE, _LARGE))
        free = window - self._tokens(bare)
        self.most = max(1, min(most, max(min(request.budget, free // 2), window // 4)))
        self._input, left = window - self.most, max(0, free - self.most)
        self._instructions = self._cut(
            source.clean(request.instructions), min(int(window * _INSTRUCTIONS_SHARE), left // 4)
        )
        carried = tuple(c.text for c in source.durable)
        listed = sum(map(self.size, carried))
        # They are put beside the summary whether or not the model is told of them.
        self._carried = carried if listed <= left // 4 else ()
        left -= self.size(self._instructions) + (listed if self._carried else 0)
        self._earlier = self._cut(_earlier(request, source.clean), min(int(window * _EARLIER_SHARE), left // 2))
        frame = ask_for_summary(
            "", _BOUND, self.told, earlier=self._earlier, instructions=self._instructions, carried=self._carried,
            part=(_LARGE, _LARGE),
        )  # fmt: skip
        self.room = int((self._input - self._tokens(frame)) * _FILL)
        if self.room < _LEAST_ROOM:
            raise SummaryFailed(
                FailureKind.SUMMARIZER_FAILED,
                f"a window of {window} tokens leaves {self.room} for the transcript, beside prompt and answer: it is "
                "the catalog's, the provider's window, or what a refusal named; summary.max_tokens asks for less",
                context_exceeded=True,
            )

    @cached_property
    def told(self) -> int:
        """The budget that the model is told: less than there is, as models count badly, and without what is carried."""
        carried = sum(self.prose_tokens(c.text) for c in self.source.durable)
        return max(64, int(min(self.source.room, self.most) * _TOLD_SHARE) - carried)

    def size(self, text: str) -> int:
        """Tokens of a text as the model counts them, as far as that is known."""
        return math.ceil(self._count(text) * self._scale)

    def counted(self, ask: Ask) -> int:
        """Raw tokens of a call's input; 0 where it is appended to another's."""
        return 0 if ask.fields is not None else self._count(ask.system) + self._count(ask.user) + _FRAME_TOKENS

    def ask(self, sized: Sized, part: tuple[int, int] | None = None) -> Ask:
        """Asks for the summary of a transcript, or of one part of it; the earlier summary goes with the first."""
        first = part is None or part[0] == 1
        return ask_for_summary(
            sized.render(), sized.bound, self.told if part is None else min(self.told, self._share), part=part,
            earlier=self._earlier if first else "", instructions=self._instructions, carried=self._carried,
        )  # fmt: skip

    def ask_live(self, live: LiveRequest) -> tuple[Ask, int]:
        """Asks for the summary by one more message of the live request (S3, APPEND), and for how long an answer.

        Raises:
            NotAppendable: the window leaves no room for the answer, or the request cannot be continued.
        """
        text = ask_appended(self.told, instructions=self._instructions, carried=self._carried)
        taken = math.ceil(live.tokens * self._scale) + self.size(text) + _FRAME_TOKENS
        most = min(self.most, self._window - taken)
        if most < self.told * _LEAST_ANSWER:
            raise NotAppendable(f"the live request takes {taken} tokens of a window of {self._window}")
        return Ask(text, self.told, fields=appended(live, text)), most

    def merge(self, summaries: Sequence[str]) -> Ask:
        """Asks for one summary of the parts' own."""
        return ask_for_merge(summaries, self.told, instructions=self._instructions, carried=self._carried)

    def grouped(self, summaries: Sequence[str]) -> list[list[str]]:
        """Summaries in groups of which each fits a merge; of two or more where there are as many."""
        groups: list[list[str]] = [[]]
        for text in summaries:
            if groups[-1] and self._tokens(self.merge([*groups[-1], text])) > self._input:
                groups.append([])
            groups[-1].append(text)
        return groups

    def partial(self, sections: Sections) -> str:
        """The summary of a part, short enough that a few of them fit a merge.

        Raises:
            SummaryFailed: SUMMARIZER_FAILED with ``context_exceeded`` where the bare headings are too long for that.
        """
        text = composed(sections, (), False, self._share, self.size)
        if text is None:
            raise SummaryFailed(
                FailureKind.SUMMARIZER_FAILED, f"summaries of parts do not fit in {self._share} tokens each",
                context_exceeded=True,
            )  # fmt: skip
        return text

    def fits(self, parts: Sequence[Part]) -> bool:
        """Whether one call carries the whole transcript."""
        return self.size(Sized(tuple(parts), SourceBound()).render()) <= self.room

    @property
    def _share(self) -> int:
        return self.room // _SUMMARIES_A_MERGE - _FENCE_TOKENS

    def _tokens(self, ask: Ask) -> int:
        return self.size(ask.system) + self.size(ask.user) + _FRAME_TOKENS

    def _cut(self, text: str, room: int) -> str:
        """Head and tail of a text in at most ``room`` tokens."""
        tokens, limit = self.size(text), len(text)
        while tokens > room and limit > 1:
            limit = min(limit * room // tokens, limit - 1)
            text = clip_middle(text, limit)
            tokens = self.size(text)
        return text if tokens <= room else ""


def _earlier(request: SummaryRequest, clean: Callable[[str], str]) -> str:
    """Earlier summaries without their ledgers, which end with their run (F3, F8)."""
    return "\n\n".join(clean(e.text).strip() for e in request.earlier)
