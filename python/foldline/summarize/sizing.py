"""Sizes a transcript for the window of the model that summarizes it (S4): trims it, or parts it into chunks.

Everything here is deterministic: the same parts and room give the same transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, SourceBoundKind
from foldline.domain.folding import SourceBound, SummaryFailed
from foldline.summarize.transcript import Part, Rank

MAX_CHUNKS = 16
_STEPS = (
    (Rank.TOOL, (2000, 800, 300, 100)),
    (Rank.CONTEXT, (2000, 800, 300)),
    (Rank.TOOL, (0,)),
    (Rank.CONTEXT, (0,)),
    (Rank.NOTICE, (2000, 500, 0)),
    (Rank.REQUEST, (4000, 2000, 1000, 500, 200, 0)),
)
"""Characters that the parts of a rank are cut to, step by step; 0 leaves a part out."""
_LEAST_REQUEST = 120
_JOIN_TOKENS = 1


@dataclass(frozen=True, slots=True)
class Sized:
    """What is left of a transcript, and the bound that says so."""

    parts: tuple[Part, ...]
    bound: SourceBound

    def render(self) -> str:
        return "\n".join(part.render() for part in self.parts)


def trim(parts: Sequence[Part], room: int, count: Callable[[str], int]) -> Sized:
    """Shortens parts until they fit ``room`` tokens: tools' first, then context, then notices, requests last.

    Tools' parts and context are all cut short before any of them is left out. Of a rank the oldest give way first; of
    the requests the first one goes after the others, and the newest never.

    Raises:
        SummaryFailed: UNMEASURED_TRANSCRIPT where speech that nothing else holds does not fit; SUMMARIZER_FAILED with
            ``context_exceeded`` where not even the last request does.
    """
    whole = Sized(tuple(parts), SourceBound())
    if count(whole.render()) <= room:
        return whole
    target = room
    while True:
        sized = _trim(parts, target, count)
        over = count(sized.render()) - room
        if over <= 0:
            return sized
        # Parts counted alone may sum to less than the text they form.
        target -= over


def _trim(parts: Sequence[Part], room: int, count: Callable[[str], int]) -> Sized:
    kept: list[Part | None] = list(parts)
    cost = [count(part.render()) + _JOIN_TOKENS for part in parts]
    total = sum(cost)
    through = 0
    for rank, limits in _STEPS:
        order = _order(parts, rank)
        for limit in limits:
            for index in order:
                if total <= room:
                    return _sized(parts, kept, through)
                was = kept[index]
                if was is None or (limit and len(was.text) <= limit):
                    continue
                last = rank == Rank.REQUEST and index == order[-1]
                made = replace(was, limit=limit or _LEAST_REQUEST) if limit or last else None
                total -= cost[index]
                kept[index], cost[index] = made, count(made.render()) + _JOIN_TOKENS if made else 0
                total += cost[index]
                through = max(through, parts[index].offset)
    if total <= room:
        return _sized(parts, kept, through)
    if any(part.rank == Rank.SPEECH for part in parts):
        raise SummaryFailed(
            FailureKind.UNMEASURED_TRANSCRIPT, f"unmeasured speech takes {total} tokens, there is room for {room}"
        )
    raise SummaryFailed(
        FailureKind.SUMMARIZER_FAILED,
        f"the last request takes {total} tokens, the summarizing model's window leaves {room}",
        context_exceeded=True,
    )


def _order(parts: Sequence[Part], rank: Rank) -> list[int]:
    own = [i for i, part in enumerate(parts) if part.rank == rank]
    return [*own[1:-1], own[0], own[-1]] if rank == Rank.REQUEST and len(own) > 1 else own


def _sized(parts: Sequence[Part], kept: Sequence[Part | None], through: int) -> Sized:
    left = tuple(part for part in kept if part is not None)
    if any(part.rank in (Rank.TOOL, Rank.CONTEXT, Rank.SPEECH) for part in left):
        return Sized(left, SourceBound(SourceBoundKind.TRIMMED, through=through))
    asked = [part for part in parts if part.rank in (Rank.NOTICE, Rank.REQUEST)]
    carried = sum(part.rank in (Rank.NOTICE, Rank.REQUEST) for part in left)
    return Sized(left, SourceBound(SourceBoundKind.REQUESTS_ONLY, kept=carried, of=len(asked)))


def chunks(parts: Sequence[Part], room: int, count: Callable[[str], int]) -> list[Sized]:
    """Parts in at most ``MAX_CHUNKS`` chunks of at most ``room`` tokens, in order; more than that is trimmed first.

    A part that is larger than a chunk is cut into pieces.
    """
    # Two chunks in a row hold more than one's room, so that these fill no more than the most.
    whole = trim(parts, room * (MAX_CHUNKS // 2 - 1), count)
    made: list[list[Part]] = [[]]
    left = room
    for part in (piece for one in whole.parts for piece in _pieces(one, room, count)):
        cost = count(part.render()) + _JOIN_TOKENS
        if cost > left and made[-1]:
            made.append([])
            left = room
        made[-1].append(part)
        left -= cost
    # A chunk's parts counted alone may sum to less than the chunk.
    return [trim(own, room, count) for own in made if own]


def _pieces(part: Part, room: int, count: Callable[[str], int]) -> list[Part]:
    whole = replace(part, limit=None) if part.limit is None or len(part.text) <= part.limit else part
    if count(whole.render()) + _JOIN_TOKENS <= room or whole.limit is not None:
        return [whole]
    middle = len(part.text) // 2
    line = part.text.rfind("\n", middle // 2, middle) + 1
    at = line or middle
    if not at:
        return [whole]
    first, rest = replace(part, text=part.text[:at]), replace(part, text=part.text[at:])
    return [*_pieces(first, room, count), *_pieces(rest, room, count)]
