"""What §7 asks of a committed fold, read off the rows before and after it, slowly and by nothing of the engine.

``witness`` lists every rule that a fold broke. It knows of the session only what a host knows: the rows, the open run
with its request, and what went out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from foldline.v1 import compaction_pb2, row_pb2

IN_RUN = (compaction_pb2.FOLD_SCOPE_STAGE_2, compaction_pb2.FOLD_SCOPE_COMBINED)
HEADINGS = ("Goals", "Decisions", "Actions", "Errors", "Open questions", "Technical details")


@dataclass
class Known:
    """What the host knows when the fold commits.

    Attributes:
        request: offsets of the open run's request, empty without one; ``runs`` are the open run and those it continues.
        carried: highest offset that a sent request held; ``prepared`` the highest at the last PrepareRequest.
        forced: the fold answers a request that did not fit.
    """

    request: frozenset[int] = frozenset()
    runs: frozenset[str] = frozenset()
    carried: int = 0
    prepared: int = 0
    forced: bool = False
    pinned: frozenset[int] = field(default_factory=frozenset)


def kind(row: row_pb2.Row) -> str:
    return row.WhichOneof("body") or ""


def waits(row: row_pb2.Row) -> bool:
    late = kind(row) == "tool_result" and row.tool_result.late
    return late or kind(row) in ("user", "injected_context", "notice")


def witness(
    before: Sequence[row_pb2.Row], after: Sequence[row_pb2.Row], record: compaction_pb2.CompactionRecord, known: Known
) -> list[str]:
    """Rules that the fold broke, with what was seen."""
    was = {r.offset: r for r in before}
    now = {r.offset: r for r in after}
    discarded = [o for span in record.discarded for o in range(span.first, span.last + 1)]
    retained = [o for span in record.retained for o in range(span.first, span.last + 1)]
    gone = set(discarded)
    faults: list[str] = []

    def say(rule: str, what: object) -> None:
        faults.append(f"{rule}: {what} (fold {record.fold_id})")

    if sorted([*discarded, *retained]) != sorted(was):
        say("V1", f"{discarded} and {retained} are not {sorted(was)}")
    if all(kind(was[o]) in ("system", "compaction_summary") for o in gone):
        say("V1", "nothing that can be summarized is discarded")
    if [o for o in now if o in was] != [r.offset for r in before if r.offset not in gone]:
        say("V2", "kept rows changed their order")
    for offset in now.keys() & was.keys():
        if _bytes(now[offset]) != _bytes(was[offset]):
            say("V2", f"row {offset} is not what it was")
    new = [r for r in after if r.offset not in was]
    if [kind(r) for r in new] != ["compaction_summary"] or new[0].offset != record.summary_offset:
        say("V3", f"new rows: {new}")
        return faults
    pairs = list(_together(before))
    for a, b in pairs:
        if (a in gone) != (b in gone):
            say("V4", f"rows {a} and {b} were separated")
    place = [r.offset for r in after].index(new[0].offset)
    wanted = _place(before, gone, record.scope, known, pairs)
    if place != wanted:
        say("V3", f"the summary stands at {place}, not at {wanted}")
    for offset, why in _must_stay(before, known, pairs):
        if offset in gone:
            say("V5", f"row {offset} folded: {why}")
    text = new[0].compaction_summary.text
    if not text.strip() or not all(h in text for h in HEADINGS):
        say("V6", f"the summary reads {text[:80]!r}")
    if record.tokens_after >= record.tokens_before:
        say("V6", f"{record.tokens_before} became {record.tokens_after}")
    if not record.digest or discarded != [r.offset for r in before if r.offset in gone]:
        say("V7", f"the record says {discarded}")
    return faults


def _bytes(row: row_pb2.Row) -> bytes:
    same = row_pb2.Row()
    same.CopyFrom(row)
    same.archived = False
    return same.SerializeToString(deterministic=True)


def _together(rows: Sequence[row_pb2.Row]) -> Iterator[tuple[int, int]]:
    """§1 unit: calls with results that are not late, injected rows with their user row, both sides of a pause."""
    offsets = {r.offset for r in rows}
    for i, row in enumerate(rows):
        if kind(row) == "tool_result" and not row.tool_result.late and row.tool_result.call_offset in offsets:
            yield row.tool_result.call_offset, row.offset
        if kind(row) == "injected_context":
            following = [r for r in rows[i + 1 :] if kind(r) != "system"]
            group = following[: next((n for n, r in enumerate(following) if not waits(r)), len(following))]
            user = next((r for r in group if kind(r) == "user"), None)
            if user is not None:
                yield row.offset, user.offset


def _request_end(rows: Sequence[row_pb2.Row], known: Known) -> int | None:
    """Position behind the request as it stood when the first answer or summary came; None where none of it is there."""
    first = next((i for i, r in enumerate(rows) if r.offset in known.request), None)
    if first is None:
        return None
    end = first
    for i in range(first, len(rows)):
        if kind(rows[i]) in ("assistant", "compaction_summary"):
            break
        if rows[i].offset in known.request:
            end = i + 1
    return end


def _place(
    before: Sequence[row_pb2.Row], gone: set[int], scope: int, known: Known, pairs: Sequence[tuple[int, int]]
) -> int:
    kept = [r for r in before if r.offset not in gone]
    if scope in IN_RUN:
        end = _request_end(before, known) or 0
        return sum(1 for r in before[:end] if r.offset not in gone)
    first = next(i for i, r in enumerate(before) if r.offset in gone and kind(r) != "system")
    place = sum(1 for r in before[:first] if r.offset not in gone)
    index = {r.offset: i for i, r in enumerate(kept)}
    spans = [(index[a], index[b]) for a, b in pairs if a in index and b in index]
    while inside := [low for low, high in spans if low < place <= high]:
        place = min(inside)
    return place


def _must_stay(
    rows: Sequence[row_pb2.Row], known: Known, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, str]]:
    reasons: dict[int, str] = {}
    newest = {r.system.key: r.system.version for r in rows if kind(r) == "system" and r.system.key}
    for r in rows:
        if kind(r) == "system" and r.system.key:
            newest[r.system.key] = max(newest[r.system.key], r.system.version)
    answered = max((r.offset for r in rows if kind(r) == "assistant" and not r.run_id), default=0)
    for row in rows:
        if kind(row) == "system" and (not row.system.key or row.system.version == newest[row.system.key]):
            reasons[row.offset] = "it is a current system row"
        if row.pinned or row.offset in known.pinned:
            reasons[row.offset] = "it is pinned"
        if row.offset in known.request:
            reasons[row.offset] = "it is of the open run's request"
        imported = not row.run_id and row.offset < answered
        if kind(row) == "tool_result" and row.offset > known.carried and not imported:
            reasons[row.offset] = "no request carried it"
    for row in reversed([r for r in rows if kind(r) != "system"]):
        if row.run_id or row.offset <= known.prepared or not waits(row):
            break
        reasons[row.offset] = "nobody answered it yet"
    end = _request_end(rows, known)
    if known.runs and end is not None:
        own = rows[end:]
        reasons.update((r.offset, "it steers the open run") for r in own if kind(r) == "user")
        last = max((i for i, r in enumerate(own) if kind(r) == "assistant"), default=None)
        if last is not None and not known.forced:
            reasons.update((r.offset, "it is of the newest round") for r in own[last:] if kind(r) != "system")
    todo = list(reasons)
    while todo:
        offset = todo.pop()
        for a, b in pairs:
            for other in {a, b} - {offset} if offset in (a, b) else ():
                if other not in reasons:
                    reasons[other] = f"it belongs to row {offset}"
                    todo.append(other)
    yield from reasons.items()
