"""The mechanical handoff (S7): what a fold leaves where the provider's call failed for its size.

No model, no ranking of sentences: the first and the last request, the ledger of calls, files, errors and counts, and
how to reach the rest. The same rows and budget give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.session import CALL_FAILED, CALL_RAN, CALL_UNANSWERED
from foldline.summarize.constraints import MEMORY_LINE, REACH_LINE
from foldline.summarize.coverage import cover
from foldline.summarize.details import carried
from foldline.summarize.earlier import carried_lines
from foldline.summarize.goals import constraint_line, last_request, last_request_line
from foldline.summarize.identifiers import IdentifierKind
from foldline.summarize.outcomes import changes_something, gist, is_path
from foldline.summarize.packing import ACTIONS, DETAILS, ERRORS, GOALS, OPEN, Line, Packer
from foldline.summarize.paths import Shortener, is_file
from foldline.summarize.reading import Call, Reading
from foldline.summarize.source import Source, read_source
from foldline.summarize.text import clip, clip_middle, quote

_SHARES = (0.2, 0.1, 0.3, 0.15, 0.05, 0.2)
_AGED_SHARE = 0.6
_FIRST_SHARE, _LAST_SHARE = 0.2, 0.25
_BRIEF, _TOLD, _LEAST_QUOTE = 160, 160, 16
_A_LINE = 6
_WORDS = {CALL_RAN: "ran", CALL_FAILED: "failed", CALL_UNANSWERED: "no result came"}


class MechanicalHandoff:
    """Writes a handoff of at most ``request.budget`` tokens, plus an appendix of at most ``request.appendix`` (S9).

    Args:
        count: tokens of a text, where a request does not say how its session estimates.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        """Writes the handoff.

        Raises:
            SummaryFailed: NOT_SMALLER when the rows are no longer than the six headings, SUMMARIZER_FAILED for
                patterns that RE2 does not accept.
        """
        count = request.count or self._count
        source = read_source(request, count)
        lines = list(_lines(source, request, count))
        prose = Packer(_preface(source.reading), lines, source.room, count).pack(_SHARES, _AGED_SHARE)
        if prose is None:
            raise SummaryFailed(
                FailureKind.NOT_SMALLER,
                f"the six headings do not fit in {source.room} tokens (budget {request.budget}, source {source.total})",
            )
        spare = min(request.appendix, source.total - count(prose))
        text, coverage, added = cover(prose, source.identifiers, request.coverage_floor, spare, count)
        return SummaryResult(
            text,
            source.kept(prose),
            SummarySource.MECHANICAL,
            coverage=coverage,
            appendix_tokens=added,
            named=source.named,
        )


def _preface(reading: Reading) -> str:
    return (
        f"Handoff of conversation rows {reading.first}-{reading.last}, put together without a model; not the user's "
        "words. Quotes are verbatim, [#n] is a row."
    )


def _lines(source: Source, request: SummaryRequest, count: Callable[[str], int]) -> Iterator[Line]:
    reading, durable = source.reading, source.durable
    yield from _request_lines(reading, source.room, count)
    for age, constraint in enumerate(reversed(durable)):
        yield constraint_line(constraint, age)
    if source.gave_way:
        yield Line(GOALS, f"- {MEMORY_LINE}", 8.0, (1, 0))
    paths = Shortener(source.identifiers)
    yield from _ledger_lines(reading.calls, paths)
    yield from _error_lines(reading.calls, paths)
    yield from _file_lines(source, paths)
    yield Line(DETAILS, _counts(reading), 7.0, (0, 0))
    yield Line(DETAILS, f"- {REACH_LINE}", 7.5, (9, 0))
    yield from carried(carried_lines(request.earlier, [c.text for c in durable], source.clean))


def _request_lines(reading: Reading, room: int, count: Callable[[str], int]) -> Iterator[Line]:
    """The first and the last request in the user's words, head and tail where they are too long (XG11).

    Worded as the extractive source does, so that a next fold reads both alike (F8).
    """
    last = last_request(reading)
    if last is None:
        return
    first = next(r for r in reading.requests if r.text and r.speaker == last.speaker)
    if first is not last:
        text = _fitted(first.text, int(room * _FIRST_SHARE), count)
        who = "Asked first" if first.speaker == "user" else f"First notice {first.speaker}"
        yield Line(GOALS, f"- {who} [#{first.offset}]: {quote(text)}", 8.5, (2, 0))
    yield last_request_line(last, _fitting(last.text, int(room * _LAST_SHARE), count))
    if last.answered is None:
        yield Line(OPEN, f"- The last request [#{last.offset}] has no closing answer in these rows", 0.9, (0, 0))


def _fitted(text: str, tokens: int, count: Callable[[str], int]) -> str:
    return clip_middle(text, _fitting(text, tokens, count))


def _fitting(text: str, tokens: int, count: Callable[[str], int]) -> int:
    """Characters of the text, cut in its middle, that take at most ``tokens``."""
    limit, used = len(text), count(text)
    while used > tokens and limit > _LEAST_QUOTE:
        limit = max(_LEAST_QUOTE, min(limit * tokens // used, limit - 1))
        used = count(clip_middle(text, limit))
    return limit


def _ledger_lines(calls: list[Call], paths: Shortener) -> Iterator[Line]:
    """Every distinct call once, with how often it was made and what came of it last; over the room the oldest go."""
    if not calls:
        return
    names = ", ".join(f"{name} ×{n}" for name, n in Counter(c.name for c in calls).most_common(12))
    yield Line(ACTIONS, f"- {len(calls)} calls were made and are not to be repeated blindly: {names}", 6.0, (0, 0))
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.name, call.brief), []).append(call)
    for own in groups.values():
        last = own[-1]
        times = f" ×{len(own)}" if len(own) > 1 else ""
        text = f"- [#{last.offset}] {_brief(last, paths)}{times}: {_WORDS[last.outcome]}"
        worth = 0.2 + 0.5 * (last.order + 1) / len(calls) + 0.2 * changes_something(last.name, last.brief)
        yield Line(ACTIONS, text, worth, (1, last.offset))
        if last.outcome == CALL_UNANSWERED:
            yield Line(
                OPEN,
                f"- [#{last.offset}] {_brief(last, paths)}: no result among these rows",
                0.8,
                (1, last.offset),
            )


def _error_lines(calls: list[Call], paths: Shortener) -> Iterator[Line]:
    """The newest failure of each call, and whether the same call ran later."""
    ran = {(c.name, c.brief): c for c in calls if c.outcome == CALL_RAN}
    newest = {(c.name, c.brief): c for c in calls if c.outcome == CALL_FAILED}
    for key, call in newest.items():
        later = ran.get(key)
        mended = f"; ran in [#{later.offset}]" if later is not None and later.order > call.order else ""
        told = gist(call.result, True, _TOLD) or "no message"
        text = f"- [#{call.result_offset}] {_brief(call, paths)} failed: {told}{mended}"
        yield Line(ERRORS, text, 0.3 + 0.6 * (call.order + 1) / len(calls), (0, call.result_offset))


def _brief(call: Call, paths: Shortener) -> str:
    return clip(paths.brief(call.brief), _BRIEF)


def _file_lines(source: Source, paths: Shortener) -> Iterator[Line]:
    if paths.root:
        yield Line(DETAILS, f"- Relative paths are under {paths.root}", 1.2, (1, 0))
    changed = [
        c.target.replace(paths.root, "") if paths.root else c.target
        for c in reversed(source.reading.calls)
        if is_path(c.target) and c.outcome == CALL_RAN and changes_something(c.name, c.brief)
    ]
    named = [paths.path(i) for i in source.identifiers if i.kind is IdentifierKind.PATH and is_file(i.text)]
    listed = dict.fromkeys(changed)
    others = dict.fromkeys(path for path in named if path not in listed)
    for title, found, worth, place in (("Files changed", list(listed), 0.95, 2), ("Files", list(others), 0.8, 3)):
        for at in range(0, len(found), _A_LINE):
            text = f"- {title}: {', '.join(found[at : at + _A_LINE])}"
            yield Line(DETAILS, text, worth / (1 + at / 24), (place, at))


def _counts(reading: Reading) -> str:
    asked = sum(r.speaker == "user" for r in reading.requests)
    notices = len(reading.requests) - asked
    failed = sum(c.outcome == CALL_FAILED for c in reading.calls)
    parts = [f"{asked} user requests", f"{len(reading.statements)} assistant messages", f"{len(reading.calls)} calls"]
    parts += [f"{failed} failed"] * bool(failed) + [f"{notices} notices"] * bool(notices)
    return f"- {reading.rows} rows folded here: {', '.join(parts)}"
