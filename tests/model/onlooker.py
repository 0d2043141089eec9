"""Looks at a session after every step and holds what it sees to the model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.model.event_log import EventLog
from tests.model.rendered import EVERY_FORMAT, FORMATS, faults, pieces, texts
from tests.model.state import Known, State, expanded, require, sent_form, spliced, stored_form
from tests.support.requests import pages
from tests.support.server import refusal_of

SEND = (compaction_pb2.ACTION_SEND, compaction_pb2.ACTION_SEND_FOLDED)
_NEVER = ("UNKNOWN", "INTERNAL", "DATA_LOSS")


class Onlooker(EventLog):
    # Reading

    def listed(
        self, state: State, view: session_pb2.RowView.ValueType, revision: int | None = None
    ) -> list[row_pb2.Row]:
        request = session_service_pb2.ListRowsRequest(session_id=state.id, view=view, page_size=1000, revision=revision)
        return [row for page in pages(self.client.session.ListRows, request) for row in page.rows]

    def get(self, state: State) -> session_service_pb2.GetSessionResponse:
        return self.client.session.GetSession(session_service_pb2.GetSessionRequest(session_id=state.id))

    def print_of(self, state: State) -> bytes:
        """Everything that an error must leave as it was, but for the event log, which ``settle`` reads."""
        got = self.get(state)
        if state.writes_ahead:
            got.totals.ClearField("usage")
            got.ClearField("cadence")
            got.session.ClearField("update_time")
        return bytes(got.SerializeToString(deterministic=True))

    def render(self, state: State, fmt: int, revision: int | None = None) -> Any:
        request = session_service_pb2.RenderTranscriptRequest(session_id=state.id, format=fmt, revision=revision)
        return json.loads(self.client.session.RenderTranscript(request).rendered_json.decode("utf-8"))

    # What a step told

    def appended(
        self, state: State, first: int, last: int, revision: int, given: Sequence[row_pb2.Row], typed: bool
    ) -> None:
        """Rows that an append acknowledged are in the archive as they were sent, at the end or at their place."""
        rows = [self.read(state, o) for o in range(first, last + 1)] if first else []
        require(len(rows) == len(given), "R1", f"{len(given)} rows sent, {len(rows)} stored at {first}..{last}")
        for row, wanted in zip(rows, given, strict=True):
            require(row.WhichOneof("body") == wanted.WhichOneof("body"), "R1", f"row {row.offset} changed its kind")
            if typed:
                require(
                    sent_form(row) == sent_form(wanted), "V2", f"row {row.offset}: {row} is not what was sent: {wanted}"
                )
            else:
                require(texts(row) == texts(wanted), "W4", f"row {row.offset} lost text: {row} of {wanted}")
        self.learn(state, rows)
        state.change(revision, state.placed(rows))

    def read(self, state: State, offset: int) -> row_pb2.Row:
        request = session_service_pb2.ReadRowRequest(session_id=state.id, offset=offset)
        return self.client.session.ReadRow(request).row

    def learn(self, state: State, rows: Iterable[row_pb2.Row]) -> None:
        for row in rows:
            known = state.archive.get(row.offset)
            if known is None:
                state.archive[row.offset] = Known(stored_form(row), row)
                self._marked(state, row)
                if row.pinned:
                    state.pinned.add(row.offset)
            else:
                require(
                    known.stored == stored_form(row), "V2", f"row {row.offset} is not what it was: {row} of {known.row}"
                )

    @staticmethod
    def _marked(state: State, row: row_pb2.Row) -> None:
        """K4: a result says what the request before it took, or that nobody told; not while checkpoints are off."""
        if row.HasField("tool_result"):
            mark = row.tool_result.usage_mark
            require(not mark or mark == "unavailable" or mark.isdecimal(), "K4", row)
            require(bool(mark) == state.checkpointed, "K4", f"checkpoints {state.checkpointed}: {row}")

    def folded(self, state: State, record: compaction_pb2.CompactionRecord, revision: int) -> None:
        """A fold took only what it may (V1-V5), and the list is what its record says."""
        discarded, retained = expanded(record.discarded), expanded(record.retained)
        require(
            set(discarded) | set(retained) == set(state.active), "V1", f"{record.fold_id} of {state.active}: {record}"
        )
        require(not set(discarded) & set(retained), "V1", "a row is both kept and folded")
        require([o for o in state.active if o in set(retained)] == retained, "V2", "the order of kept rows changed")
        kinds = {o: state.kind(o) for o in discarded}
        require(any(k not in ("system", "compaction_summary") for k in kinds.values()), "V1", f"nothing folds: {kinds}")
        for offset in discarded:
            require(offset not in state.pinned, "F9", f"pinned row {offset} folded")
            require(not state.current_system(offset), "V5", f"current system row {offset} folded")
            require(offset not in state.asked, "V5", f"row {offset} of the open run's request folded")
        self._carried_first(state, discarded)
        gone = set(discarded)
        state.folded = state.folded | gone
        summary = self.read(state, record.summary_offset)
        require(summary.compaction_summary.fold_id == record.fold_id, "V3", summary)
        self.learn(state, [summary])
        listed = [r.offset for r in self.listed(state, session_pb2.ROW_VIEW_ACTIVE, record.revision_after)]
        require(
            [o for o in listed if o != summary.offset] == retained, "V3", f"{listed} of {retained} and {summary.offset}"
        )
        require(record.tokens_after < record.tokens_before, "V6", f"{record.tokens_before} to {record.tokens_after}")
        dropped = (record.memory_dropped, record.memory_entries > 0)
        require(not state.dropped or dropped == (True, False), "M7", f"a fold of a dropped scope: {record}")
        state.folds += 1
        state.seen_folds.add(record.fold_id)
        state.sent.clear()
        state.change(revision, listed)

    def first_of_two(self, state: State, record: compaction_pb2.CompactionRecord) -> None:
        """Takes the fold before this one, where a boundary made two (F3)."""
        self.pending(state)
        for first in state.unseen_folds:
            if first.fold_id not in state.seen_folds and first.fold_id != record.fold_id:
                self.folded(state, first, first.revision_after)

    def _carried_first(self, state: State, discarded: Sequence[int]) -> None:
        imported = max(
            (o for o in state.active if state.kind(o) == "assistant" and not state.archive[o].row.run_id), default=0
        )
        for offset in discarded:
            row = state.archive[offset].row
            if (
                row.HasField("tool_result")
                and offset not in state.carried | state.maybe_carried
                and (row.run_id or offset > imported)
            ):
                require(False, "F6", f"result {offset} folded before any request carried it")

    def prepared(
        self, state: State, request: compaction_service_pb2.PrepareRequestRequest,
        response: compaction_service_pb2.PrepareRequestResponse,
    ) -> None:  # fmt: skip
        """The answer of a boundary: the list, the replica, the run's request, what it says of size."""
        if request.reply == compaction_pb2.REPLY_MODE_EDITS:
            before = state.replica if request.HasField("known_revision") else []
            if response.HasField("rows"):
                state.replica = [r.offset for r in response.rows.rows]
            else:
                require(request.HasField("known_revision"), "W1", "splices against no list")
                state.replica = spliced(before, response.splices)
                self.learn(state, (r for s in response.splices.splices for r in s.rows.rows))
            state.replica_revision = response.revision
            require(state.replica == state.active, "W1", f"the replica is {state.replica}, the list {state.active}")
        elif response.HasField("rows"):
            require([r.offset for r in response.rows.rows] == state.active, "W1", "WHOLE is not the list")
            self.learn(state, response.rows.rows)
        missing = [o for o in state.asked if o not in state.active]
        require(not missing, "V5", f"rows {missing} of the run's request are not in the list")
        exact = (response.pressure_sent.forecast_source, response.pressure_sent.bytes_source)
        if response.action == compaction_pb2.ACTION_TOO_LARGE:
            require(1 in exact, "L3", f"TOO_LARGE by no exact reading: {response.pressure_sent}")
        folded = response.action == compaction_pb2.ACTION_SEND_FOLDED
        if response.action in SEND:
            require(
                folded == response.HasField("fold"), "L3", f"{response.action} with fold {response.HasField('fold')}"
            )
        for bound in response.bounded:
            require(bound.kept_bytes < bound.whole_bytes, "B2", bound)
            require(state.kind(bound.offset) == "tool_result" and bound.offset in state.active, "B7", bound)

    def sendable(
        self, state: State, request: compaction_service_pb2.PrepareRequestRequest,
        response: compaction_service_pb2.PrepareRequestResponse,
    ) -> None:  # fmt: skip
        """What goes out is a request that the endpoints take, and begins with what went out before (R5)."""
        whole = request.reply in (compaction_pb2.REPLY_MODE_UNSPECIFIED, compaction_pb2.REPLY_MODE_WHOLE)
        if whole and request.format in FORMATS:
            value = json.loads(response.rendered_json.decode("utf-8"))
            require(not (found := faults(request.format, value)), "R5", f"{found} in {_short(value)}")
            if not response.bounded:
                require(
                    value == self.render(state, request.format),
                    "R5",
                    "what was sent is not what RenderTranscript shows",
                )
        steady = not response.bounded and not any(state.archive[o].paused for o in state.active)
        for fmt in FORMATS:
            value = self.render(state, fmt)
            now = pieces(fmt, value)
            before = state.sent.get(fmt)
            if before is not None and steady:
                same = next(
                    (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
                )
                require(
                    same == len(before),
                    "R5",
                    f"sent piece {same} of {len(before)} was {before[same : same + 2]} and is {now[same : same + 2]}",
                )
            if steady:
                state.sent[fmt] = now
            else:
                state.sent.pop(fmt, None)
        state.carried.update(o for o in state.active if state.kind(o) == "tool_result")

    def error(self, error: grpc.RpcError, what: str) -> str:
        """The reason of a refusal, which is always one of the contract's."""
        found = refusal_of(error)
        require(found.code not in _NEVER, "W8", f"{what}: {found}")
        if found.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED") and not found.reason:
            return found.code
        require(found.reason and found.reason not in ("INTERNAL", "STORE_CORRUPT"), "W8", f"{what}: {found}")
        return found.reason

    # What must hold whatever happened

    def settle(self, state: State, *, thorough: bool) -> None:
        """After every step: the list, the run and the events; ``thorough`` also replays, renders, and reads it all."""
        got = self.get(state)
        require(
            got.session.revision == state.revision, "W3", f"at {got.session.revision}, the model at {state.revision}"
        )
        rows = self.listed(state, session_pb2.ROW_VIEW_ACTIVE)
        require([r.offset for r in rows] == state.active, "R1", f"{[r.offset for r in rows]} is not {state.active}")
        self.learn(state, rows)
        require({r.offset for r in rows if r.pinned} == state.pinned & set(state.active), "R6", "pins differ")
        stored = got.totals.rows_total
        require(stored == len(state.archive), "R1", f"{stored} rows, acknowledged {len(state.archive)}")
        require(
            got.session.open_run_id == state.open_run,
            "L4",
            f"{got.session.open_run_id!r} is open, not {state.open_run!r}",
        )
        self.events(state)
        require(got.totals.folds == state.folds, "V3", f"{got.totals.folds} folds, seen {state.folds}")
        if thorough:
            self.replayed(state)
            self.archive(state)

    def replayed(self, state: State) -> None:
        verified = self.client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=state.id))
        require(verified.ok, "V10", list(verified.faults))
        require(verified.rows_total == verified.rows_active + verified.rows_archived, "V10", verified)
        require(verified.folds == state.folds, "V3", f"{verified.folds} folds, seen {state.folds}")
        rows = [state.archive[o].row for o in state.active]
        for fmt in EVERY_FORMAT:
            if any(not r.HasField("system") for r in rows):
                value = self.render(state, fmt)
                found = faults(fmt, value)
                require(not found, "R5", f"{found} in {_short(value)}")

    def archive(self, state: State) -> None:
        rows = self.listed(state, session_pb2.ROW_VIEW_ARCHIVE)
        require([r.offset for r in rows] == sorted(state.archive), "R1", "the archive is not every acknowledged row")
        self.learn(state, rows)
        for row in rows:
            require(row.archived == (row.offset not in state.active), "R1", f"row {row.offset} archived {row.archived}")

    def outlived(self, state: State) -> None:
        """Waits for the end of a fold that goes on without its caller, and takes what it committed (A5)."""
        end = time.monotonic() + 30
        while True:
            self.pending(state)
            unseen = [r for r in state.unseen_folds if r.fold_id not in state.seen_folds]
            if unseen:
                self.folded(state, unseen[0], unseen[0].revision_after)
            if not state.started.keys() - state.ended - state.ahead:
                return
            require(time.monotonic() < end, "A5", "a pending fold does not end")
            time.sleep(0.005)


def _short(value: Any) -> str:
    """A request with its texts cut, for a message."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",\n ".join(_short(v) for v in value) + "]"
    text = str(value)
    return text if len(text) < 50 else f"{text[:40]}… ({len(text)})"
