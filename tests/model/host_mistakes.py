"""What hosts get wrong with lists of their own, and copies of their sessions (H1-H3, W4, W8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foldline.v1 import compaction_service_pb2, row_pb2, session_service_pb2

from tests.model import rows as made
from tests.model.host import Scene
from tests.model.host_lists import HostLists
from tests.model.kept import Kept
from tests.model.kept_looks import archive, replayed
from tests.model.state import require

_WRONG = ("FIELD_VALIDATION", "SUMMARY_ROW_REFUSED", "UNKNOWN_TOOL_CALL", "EMPTY_ASSISTANT_ROW", "PROJECTION_NOT_FOUND")


class HostMistakes(HostLists):
    """Calls that must be refused and change nothing."""

    def list_mistake(self, kept: Kept) -> None:
        # The first call after its time removes a projection (H3); what it refuses changes nothing else.
        pb = compaction_service_pb2
        first = pb.AbortProjectionRequest(session_id=kept.log.id, projection_id="pr-none")
        self.tried(self.client.compaction.AbortProjection, first, ("PROJECTION_NOT_FOUND",))
        calls = list(self.wrong_calls(kept.log.id)) + list(self.wrong_lists(kept))
        for stub, request in self.rng.sample(calls, 4):
            answer = self.call(Scene(kept.log), stub, request, expect=_WRONG)
            require(answer is None, "H1", f"taken: {request}")

    def wrong_calls(self, session_id: str) -> Iterator[tuple[Any, Any]]:
        """Calls that need the list to be here."""
        session, compaction, pb = self.client.session, self.client.compaction, compaction_service_pb2
        given = row_pb2.RowInput(rows=row_pb2.RowList(rows=[made.user(self.rng)]))
        yield compaction.PrepareRequest, pb.PrepareRequestRequest(session_id=session_id, run_id="r", append=given)
        yield compaction.PlanCompaction, pb.PlanCompactionRequest(session_id=session_id)
        yield compaction.CheckPressure, pb.CheckPressureRequest(session_id=session_id)
        yield session.AppendRows, session_service_pb2.AppendRowsRequest(session_id=session_id, input=given)
        yield (
            session.EditRows,
            session_service_pb2.EditRowsRequest(session_id=session_id, first_offset=1, last_offset=1),
        )
        yield session.PinRows, session_service_pb2.PinRowsRequest(session_id=session_id, offsets=[1], pinned=True)
        yield session.RestoreRevision, session_service_pb2.RestoreRevisionRequest(session_id=session_id)
        yield session.RenderTranscript, session_service_pb2.RenderTranscriptRequest(session_id=session_id, format=1)
        yield session.ListRows, session_service_pb2.ListRowsRequest(session_id=session_id, view=1)
        yield compaction.CommitProjection, pb.CommitProjectionRequest(session_id=session_id, projection_id="pr-none")
        yield compaction.AbortProjection, pb.AbortProjectionRequest(session_id=session_id, projection_id="pr-none")

    def wrong_lists(self, kept: Kept) -> Iterator[tuple[Any, Any]]:
        """Lists that cannot stand."""
        rng, stub = self.rng, self.client.compaction.CompactTranscript
        good = Kept(kept.log, 0, [*kept.rows, ("m-good", made.user(rng))], start=kept.start)
        forged = row_pb2.Row(compaction_summary=row_pb2.CompactionSummaryRow(text="mine", digest="0" * 64))
        bad = [forged, row_pb2.Row(assistant=row_pb2.AssistantRow()), made.result(rng, "never-made")]
        lists = [Kept(kept.log, 0, [*good.rows, ("m-bad", row)], start=kept.start) for row in bad]
        lists.append(Kept(kept.log, 0, good.rows, start="m-nowhere"))
        folded = [
            i for i, offset in kept.offsets.items() if kept.archive[offset].HasField("user") and i not in kept.ids
        ]
        if folded:
            changed = [(rng.choice(folded), made.user(rng)), *good.rows]
            lists.append(Kept(kept.log, 0, changed, start=kept.start))
        for one in lists if not kept.fmt else ():
            yield stub, self.sent(one)
        short = self.sent(good)
        short.transcript.row_ids.pop()
        yield stub, short
        if len(good.ids) > 1:
            twice = self.sent(good)
            twice.transcript.row_ids[0] = twice.transcript.row_ids[1]
            yield stub, twice
        own = self.scenes[0].state.id if self.scenes else ""
        if own:
            here = self.sent(good)
            here.session_id = own
            yield stub, here

    @staticmethod
    def sent(kept: Kept) -> compaction_service_pb2.CompactTranscriptRequest:
        return compaction_service_pb2.CompactTranscriptRequest(session_id=kept.log.id, transcript=kept.transcript())

    def list_again(self, kept: Kept) -> None:
        """W2: a repeat of a fold under its request id stages no second one and counts no second boundary."""
        if not kept.rows:
            return
        request = self.sent(kept)
        request.request_id = kept.log.next("q-")
        request.shape.CopyFrom(self.shape(kept))
        first = self.list_fold(kept, request)
        before = self.look.get(kept.log).totals.boundaries
        answer = self.client.compaction.CompactTranscript(request)
        require(self.look.get(kept.log).totals.boundaries == before, "W2", "a repeat counted a boundary")
        # What was skipped is measured again.
        require(
            not first or answer.projection_id == first, "W2", f"a repeat staged {answer.projection_id}, not {first}"
        )
        answer = self.waited(kept, request, answer)
        held = kept.staged.answer.projection_id if kept.staged is not None else ""
        self.staged(kept, request, answer, bool(held) and answer.projection_id == held)

    def list_copy(self, kept: Kept) -> None:
        """A copy holds what was committed; what is staged stays with the original."""
        stubs = self.client.session
        chunks = list(stubs.ExportSession(session_service_pb2.ExportSessionRequest(session_id=kept.log.id)))
        self.numbers += 1
        copy = Kept(kept.log.forked(f"h{self.numbers}", 0), kept.fmt)
        copy.log.folds, copy.archive = kept.log.folds, kept.archive

        def parts() -> Iterator[session_service_pb2.ImportSessionRequest]:
            yield session_service_pb2.ImportSessionRequest(
                header=session_service_pb2.ImportHeader(session_id=copy.log.id)
            )
            for chunk in chunks:
                yield session_service_pb2.ImportSessionRequest(
                    chunk=session_service_pb2.ImportChunk(sequence=chunk.sequence, jsonl=chunk.jsonl)
                )

        imported = stubs.ImportSession(parts())
        require(imported.rows == len(kept.archive), "W4", f"{imported.rows} rows imported of {len(kept.archive)}")
        archive(self, copy)
        replayed(self, copy)
        self.look.pending(copy.log)
        require(copy.log.started.keys() == copy.log.ended, "§13", "a fold goes on in a copy")
        if kept.staged is not None:
            commit = compaction_service_pb2.CommitProjectionRequest(
                session_id=copy.log.id, projection_id=kept.staged.answer.projection_id
            )
            refused = self.call(None, self.client.compaction.CommitProjection, commit, expect=("PROJECTION_NOT_FOUND",))
            require(refused is None, "H3", "what is staged was committed in a copy")
        gone = session_service_pb2.DeleteSessionRequest(session_id=copy.log.id)
        self.call(None, self.client.session.DeleteSession, gone)
