"""A session whose transcript its host keeps, and what a fold of such a list must be, in the plainest form (§14)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from foldline.v1 import compaction_pb2, compaction_service_pb2, row_pb2

from tests.model import rows as made
from tests.model.state import State, expanded, require

Answer = compaction_service_pb2.CompactTranscriptResponse
Listed = tuple[str, row_pb2.Row]


@dataclass
class Staged:
    """A projection as it was answered: of which list, with what in it, and until when."""

    answer: Answer
    ids: list[str]
    rows: dict[str, row_pb2.Row]
    start: str
    pins: set[str]
    expires: float


@dataclass
class Kept:
    """What the host knows.

    Attributes:
        log: the session as the onlooker reads its events and bills.
        fmt: format of the messages that the host keeps, 0 for typed rows.
        rows: the list, (id, row) in order; ``before`` is the list before the last fold that was applied.
        start: id of the first row of the open run's request.
        shown: ids of rows that an answer gave to be sent.
        offsets: of the ids that folded, in the archive; ``archive`` is what must be there.
        ended: how each projection that is over ended: the reason of a later commit, empty once it was committed.
    """

    log: State
    fmt: int = 0
    rows: list[Listed] = field(default_factory=list)
    before: list[Listed] = field(default_factory=list)
    start: str = ""
    shown: set[str] = field(default_factory=set)
    staged: Staged | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    archive: dict[int, row_pb2.Row] = field(default_factory=dict)
    summaries: dict[str, int] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    prepared: str = ""

    @property
    def ids(self) -> list[str]:
        return [row_id for row_id, _ in self.rows]

    @property
    def pins(self) -> set[str]:
        return {row_id for row_id, row in self.rows if row.pinned}

    def add(self, *rows: row_pb2.Row) -> list[str]:
        ids = [self.log.next("m-") for _ in rows]
        self.rows += zip(ids, rows, strict=True)
        return ids

    def kinds(self) -> list[str]:
        return [str(row.WhichOneof("body")) for _, row in self.rows]

    def waiting(self) -> list[str]:
        """Calls of the list that have no result, oldest first."""
        calls = [b.tool_call.call_id for _, row in self.rows for b in row.assistant.content if b.HasField("tool_call")]
        for _, row in self.rows:
            if row.HasField("tool_result") and not row.tool_result.interim and row.tool_result.call_id in calls:
                calls.remove(row.tool_result.call_id)
        return calls

    def transcript(self) -> compaction_service_pb2.HostTranscript:
        listed = [row for _, row in self.rows]
        given = row_pb2.RowInput(rows=row_pb2.RowList(rows=listed))
        if self.fmt:
            text = json.dumps([lowered(row, self.fmt) for row in listed], ensure_ascii=False)
            given = row_pb2.RowInput(raw=row_pb2.RawMessages(format=self.fmt, json=text.encode()))
        return compaction_service_pb2.HostTranscript(input=given, row_ids=self.ids, open_run_start=self.start)

    # What a fold must leave

    def held(self, forced: bool) -> set[str]:
        """Ids that no fold may take (V5, F6, F9): pins, current system rows, the open run's own, what none sent.

        Args:
            forced: by P6, which in a continued run takes the newest round too (4.4).
        """
        kinds, ids = self.kinds(), self.ids
        held = self.pins
        newest: dict[str, str] = {}
        for row_id, row in self.rows:
            if row.HasField("system"):
                newest[row.system.key or row_id] = row_id
        held |= set(newest.values())
        last = max((i for i, kind in enumerate(kinds) if kind == "assistant"), default=-1)
        held |= {ids[i] for i in range(last + 1, len(ids)) if kinds[i] == "tool_result" and ids[i] not in self.shown}
        if self.start:
            first = ids.index(self.start)
            held |= {ids[i] for i in range(first, len(ids)) if kinds[i] == "user"}
            answer = next((i for i in range(first, len(ids)) if kinds[i] == "assistant"), len(ids))
            held |= {ids[i] for i in range(first, answer) if kinds[i] in ("injected_context", "notice")}
            if last > first and not forced:
                held |= {ids[i] for i in range(last, len(ids)) if kinds[i] != "compaction_summary"}
        return held

    def torn(self, gone: set[str]) -> list[str]:
        """Calls that were parted from a result directly behind them (V4)."""
        torn, call, waiting = [], "", set[str]()
        for row_id, row in self.rows:
            if row.HasField("assistant"):
                call = row_id
                waiting = {b.tool_call.call_id for b in row.assistant.content if b.HasField("tool_call")}
            elif row.HasField("tool_result") and row.tool_result.call_id in waiting:
                if (row_id in gone) != (call in gone):
                    torn.append(f"{row_id} of {call}")
                if not row.tool_result.interim:
                    waiting.discard(row.tool_result.call_id)
            else:
                waiting = set()
        return torn

    def fold_is_right(self, answer: Answer) -> None:
        kept, gone = list(answer.kept_row_ids), list(answer.discarded_row_ids)
        ids, kinds = self.ids, dict(zip(self.ids, self.kinds(), strict=True))
        record, summary = answer.record, answer.summary.compaction_summary
        require(sorted([*kept, *gone]) == sorted(ids), "V1", f"{kept} and {gone} are not {ids}")
        require([i for i in ids if i in set(kept)] == kept, "V2", f"{kept} is out of order")
        require(any(kinds[i] not in ("system", "compaction_summary") for i in gone), "V1", f"nothing folds: {gone}")
        taken = self.held(record.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT) & set(gone)
        require(not taken, "V5", f"{ {i: kinds[i] for i in taken} } folded, open from {self.start!r}")
        require(not (torn := self.torn(set(gone))), "V4", torn)
        stay = [i for i in kept if kinds[i] == "compaction_summary"]
        require(not stay, "F8", f"the earlier summary {stay} stays beside a new one")
        require(record.tokens_after < record.tokens_before, "V6", f"{record.tokens_before} to {record.tokens_after}")
        require(summary.text.strip() and summary.fold_id == record.fold_id, "V6", answer.summary)
        require(summary.digest == record.digest, "H2", f"{summary.digest} is not {record.digest}")
        require(len(expanded(record.discarded)) == len(gone), "V7", f"{record.discarded} for {gone}")
        self.place_is_right(answer, kept)

    def place_is_right(self, answer: Answer, kept: list[str]) -> None:
        """V3: before the request where rows before the run fold, behind it where its own rounds do."""
        behind = answer.summary_before_row_id
        require(not behind or behind in kept, "V3", f"before {behind}, which does not stay")
        if not self.start:
            return
        place = kept.index(behind) if behind else len(kept)
        request = kept.index(self.start)
        if answer.record.scope in (compaction_pb2.FOLD_SCOPE_WHOLE, compaction_pb2.FOLD_SCOPE_STAGE_1):
            require(place <= request, "V3", f"a summary of rows before the run at {place}, its request at {request}")
        else:
            require(place > request, "V3", f"a summary of the run's rounds at {place}, its request at {request}")

    def apply(self, staged: Staged) -> str:
        """Does to the list what the answer says; rows that came since follow at the end."""
        answer, gone = staged.answer, set(staged.answer.discarded_row_ids)
        known = set(staged.ids)
        stay = [one for one in self.rows if one[0] not in gone and one[0] in known]
        since = [one for one in self.rows if one[0] not in known]
        named = [i for i, _ in stay]
        place = named.index(answer.summary_before_row_id) if answer.summary_before_row_id in named else len(stay)
        summary_id = self.log.next("s-")
        self.before = list(self.rows)
        self.rows = [*stay[:place], (summary_id, answer.summary), *stay[place:], *since]
        self.summaries[summary_id] = answer.record.summary_offset
        return summary_id


def lowered(row: row_pb2.Row, fmt: int) -> dict[str, Any]:
    if row.HasField("compaction_summary"):
        return {"role": "user", "content": row.compaction_summary.text}
    return made.lowered(row, fmt)
