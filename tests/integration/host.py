"""A host for tests: one session, its replica, and the calls an agent makes."""

from __future__ import annotations

import json
from typing import Any

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    event_service_pb2,
    memory_service_pb2,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)

from tests.support.requests import pages, raw
from tests.support.server import Client

SMALL = model_pb2.ModelRef(provider="openai", model="small")


class Host:
    def __init__(self, client: Client, session_id: str, **policy: Any) -> None:
        self.client = client
        self.id = session_id
        self.list: list[int] = []
        self.revision = 0
        client.session.CreateSession(
            session_service_pb2.CreateSessionRequest(
                session_id=session_id, model=SMALL, policy=policy_pb2.Policy(**policy)
            )
        )

    @classmethod
    def of(cls, client: Client, session_id: str) -> Host:
        """A host of a session that there is, whose list it does not hold."""
        host = cls.__new__(cls)
        host.client, host.id, host.list, host.revision = client, session_id, [], 0
        return host

    def append(self, *messages: dict[str, Any], **fields: Any) -> session_service_pb2.AppendRowsResponse:
        request = session_service_pb2.AppendRowsRequest(session_id=self.id, input=raw(*messages), **fields)
        return self.client.session.AppendRows(request)

    def rows(self, *rows: row_pb2.Row, **fields: Any) -> session_service_pb2.AppendRowsResponse:
        given = row_pb2.RowInput(rows=row_pb2.RowList(rows=rows))
        return self.client.session.AppendRows(
            session_service_pb2.AppendRowsRequest(session_id=self.id, input=given, **fields)
        )

    def prepare(
        self, run_id: str, *messages: dict[str, Any], **fields: Any
    ) -> compaction_service_pb2.PrepareRequestResponse:
        """EDITS against the replica, which is brought up to date."""
        fields.setdefault("reply", compaction_pb2.REPLY_MODE_EDITS)
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=run_id, known_revision=self.revision, **fields
        )
        request.shape.model.CopyFrom(SMALL)
        if messages:
            request.append.CopyFrom(raw(*messages))
        response = self.client.compaction.PrepareRequest(request)
        if request.reply == compaction_pb2.REPLY_MODE_EDITS:
            self._apply(response)
        return response

    def _apply(self, response: compaction_service_pb2.PrepareRequestResponse) -> None:
        if response.HasField("rows"):
            self.list = [r.offset for r in response.rows.rows]
        held = {*self.list, *range(response.first_offset, response.last_offset + 1)}
        for splice in response.splices.splices:
            inserted = [r.offset for r in splice.rows.rows] or list(splice.offsets.offsets)
            assert held.issuperset(splice.offsets.offsets), "bodies that the host does not hold must travel (W1)"
            self.list[splice.position : splice.position + splice.delete_count] = inserted
        self.revision = response.revision

    def answer(
        self, prepared: compaction_service_pb2.PrepareRequestResponse, *messages: dict[str, Any], **fields: Any
    ) -> compaction_service_pb2.Outcome:
        """An outcome for the next prepare; ``usage`` is a provider's usage object."""
        usage = fields.pop("usage", None)
        partial = fields.pop("partial", False)
        made = compaction_service_pb2.Answer(partial=partial)
        if messages:
            made.input.CopyFrom(raw(*messages))
        if usage is not None:
            made.usage_json = json.dumps(usage).encode()
        return compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, answer=made, **fields)

    def record(
        self, run_id: str, outcome: compaction_service_pb2.Outcome, request_id: str = ""
    ) -> compaction_service_pb2.RecordAnswerResponse:
        return self.client.compaction.RecordAnswer(
            compaction_service_pb2.RecordAnswerRequest(
                session_id=self.id, run_id=run_id, outcome=outcome, request_id=request_id
            )
        )

    def refuse(
        self, run_id: str, prepare_id: str, status: int, body: str
    ) -> compaction_service_pb2.RecordAnswerResponse:
        refusal = compaction_service_pb2.Refusal(http_status=status, raw_body=body.encode())
        return self.record(run_id, compaction_service_pb2.Outcome(prepare_id=prepare_id, refusal=refusal))

    def turn(self, run_id: str, question: str, reply: str) -> compaction_service_pb2.PrepareRequestResponse:
        """A whole run of one call."""
        prepared = self.prepare(run_id, {"role": "user", "content": question})
        outcome = self.answer(
            prepared, {"role": "assistant", "content": reply}, finish=compaction_pb2.RUN_OUTCOME_COMPLETED
        )
        self.record(run_id, outcome)
        return prepared

    def compact(self, **fields: Any) -> compaction_pb2.CompactionRecord:
        request = compaction_service_pb2.CompactSessionRequest(session_id=self.id, **fields)
        return list(self.client.compaction.CompactSession(request))[-1].record

    def active(self) -> list[row_pb2.Row]:
        return self._listed(session_pb2.ROW_VIEW_ACTIVE)

    def archive(self) -> list[row_pb2.Row]:
        return self._listed(session_pb2.ROW_VIEW_ARCHIVE)

    def _listed(self, view: session_pb2.RowView.ValueType) -> list[row_pb2.Row]:
        request = session_service_pb2.ListRowsRequest(session_id=self.id, view=view, page_size=500)
        return [row for page in pages(self.client.session.ListRows, request) for row in page.rows]

    def offsets(self) -> list[int]:
        return [r.offset for r in self.active()]

    def rendered(self, fmt: row_pb2.Format.ValueType = row_pb2.FORMAT_OPENAI_CHAT) -> Any:
        request = session_service_pb2.RenderTranscriptRequest(session_id=self.id, format=fmt)
        return json.loads(self.client.session.RenderTranscript(request).rendered_json)

    def verify(self) -> session_service_pb2.VerifySessionResponse:
        return self.client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=self.id))

    def events(self) -> list[event_pb2.Event]:
        request = event_service_pb2.ListEventsRequest(session_id=self.id, page_size=500)
        return [event for page in pages(self.client.event.ListEvents, request) for event in page.events]

    def search(self, query: str, **fields: Any) -> memory_service_pb2.SearchMemoryResponse:
        return self.client.memory.SearchMemory(
            memory_service_pb2.SearchMemoryRequest(session_id=self.id, query=query, **fields)
        )

    def get(self) -> session_service_pb2.GetSessionResponse:
        return self.client.session.GetSession(session_service_pb2.GetSessionRequest(session_id=self.id))
