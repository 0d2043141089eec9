"""A host that keeps its own list, and the calls that it makes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from foldline import formats
from foldline.domain.enums import Format
from foldline.domain.rows import CompactionSummaryRow
from foldline.engine.hosted import HostList, Known, SentRow, read
from foldline.engine.render import arrange
from foldline.server.codec.rows import new_row
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

from tests.support.requests import pages
from tests.support.server import Client
from tests.validity import anthropic_faults, openai_chat_faults

SMALL = model_pb2.ModelRef(provider="openai", model="small")
Answer = compaction_service_pb2.CompactTranscriptResponse
FORMATS = (Format.OPENAI_CHAT, Format.ANTHROPIC_MESSAGES)
ENDS = (event_pb2.EVENT_KIND_COMPACTION_COMPLETED, event_pb2.EVENT_KIND_COMPACTION_FAILED)


def text(value: str) -> row_pb2.ContentBlock:
    return row_pb2.ContentBlock(text=row_pb2.TextBlock(text=value))


def user(value: str, **fields: Any) -> row_pb2.Row:
    return row_pb2.Row(user=row_pb2.UserRow(content=[text(value)]), **fields)


def assistant(value: str = "", *calls: str, **fields: Any) -> row_pb2.Row:
    """An answer; ``calls`` are ids of calls of the tool ``read``, their arguments name them."""
    blocks = [text(value)] if value else []
    for call in calls:
        made = row_pb2.ToolCallBlock(call_id=call, name="read", arguments_json=json.dumps({"path": f"{call}.py"}))
        blocks.append(row_pb2.ContentBlock(tool_call=made))
    return row_pb2.Row(assistant=row_pb2.AssistantRow(content=blocks), **fields)


def result(call_id: str, value: str, **fields: Any) -> row_pb2.Row:
    return row_pb2.Row(tool_result=row_pb2.ToolResultRow(call_id=call_id, content=[text(value)], **fields))


def system(value: str, key: str = "", version: int = 0) -> row_pb2.Row:
    return row_pb2.Row(system=row_pb2.SystemRow(key=key, version=version, content=[text(value)]))


class HostedHost:
    """One host-owned session; ``list`` are (id, row) of the host's own."""

    def __init__(self, client: Client, session_id: str, *, create: bool = True, **policy: Any) -> None:
        self.client, self.id = client, session_id
        self.list: list[tuple[str, row_pb2.Row]] = []
        self.start = ""
        self.run_id = ""
        self._numbers = itertools.count(1)
        if create:
            client.session.CreateSession(
                session_service_pb2.CreateSessionRequest(
                    session_id=session_id, model=SMALL, policy=policy_pb2.Policy(**policy),
                    ownership=session_pb2.OWNERSHIP_HOST_OWNED,
                )
            )  # fmt: skip

    # The list

    def add(self, *rows: row_pb2.Row, prefix: str = "m") -> list[str]:
        ids = [f"{prefix}{next(self._numbers)}" for _ in rows]
        self.list += zip(ids, rows, strict=True)
        return ids

    def ask(self, value: str, run_id: str = "") -> str:
        """A user row that opens a run."""
        self.start, self.run_id = self.add(user(value))[0], run_id
        return self.start

    def end_run(self) -> None:
        self.start = self.run_id = ""

    def ids(self) -> list[str]:
        return [row_id for row_id, _ in self.list]

    def transcript(self) -> compaction_service_pb2.HostTranscript:
        return compaction_service_pb2.HostTranscript(
            input=row_pb2.RowInput(rows=row_pb2.RowList(rows=[row for _, row in self.list])),
            row_ids=self.ids(), open_run_start=self.start, run_id=self.run_id,
        )  # fmt: skip

    # Calls

    def request(self, **fields: Any) -> compaction_service_pb2.CompactTranscriptRequest:
        shape = compaction_service_pb2.RequestShape(model=SMALL, **fields.pop("shape", {}))
        return compaction_service_pb2.CompactTranscriptRequest(
            session_id=self.id, transcript=self.transcript(), shape=shape, **fields
        )

    def compact(self, **fields: Any) -> Answer:
        return self.client.compaction.CompactTranscript(self.request(**fields))

    def check(self, **shape: Any) -> compaction_service_pb2.CheckPressureResponse:
        return self.client.compaction.CheckPressure(
            compaction_service_pb2.CheckPressureRequest(
                session_id=self.id, transcript=self.transcript(),
                shape=compaction_service_pb2.RequestShape(model=SMALL, **shape),
            )
        )  # fmt: skip

    def commit(self, answer: Answer, request_id: str = "") -> int:
        request = compaction_service_pb2.CommitProjectionRequest(
            session_id=self.id, projection_id=answer.projection_id, request_id=request_id
        )
        return self.client.compaction.CommitProjection(request).memory_entries

    def abort(self, answer: Answer) -> None:
        self.client.compaction.AbortProjection(
            compaction_service_pb2.AbortProjectionRequest(session_id=self.id, projection_id=answer.projection_id)
        )

    def apply(self, answer: Answer, summary_id: str = "") -> str:
        """Does to the list what the answer says; returns the id that the summary got."""
        summary_id = summary_id or f"s{next(self._numbers)}"
        rows = dict(self.list)
        kept = [(row_id, rows[row_id]) for row_id in answer.kept_row_ids]
        at = (
            [row_id for row_id, _ in kept].index(answer.summary_before_row_id) if answer.summary_before_row_id else None
        )
        self.list = [*kept[:at], (summary_id, answer.summary), *(kept[at:] if at is not None else [])]
        return summary_id

    def fold(self, **fields: Any) -> Answer:
        """A fold that is due, applied and committed."""
        answer = self.compact(**fields)
        assert answer.projection_id, (answer.skip, answer.failure)
        self.apply(answer)
        self.commit(answer)
        return answer

    def usage(self, prepare_id: str, tokens: int) -> compaction_service_pb2.RecordAnswerResponse:
        made = compaction_service_pb2.Answer(usage=model_pb2.Usage(input_tokens=tokens))
        return self.record(compaction_service_pb2.Outcome(prepare_id=prepare_id, answer=made))

    def refuse(self, prepare_id: str) -> compaction_service_pb2.RecordAnswerResponse:
        refusal = compaction_service_pb2.Refusal(kind=compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED)
        return self.record(compaction_service_pb2.Outcome(prepare_id=prepare_id, refusal=refusal))

    def record(self, outcome: compaction_service_pb2.Outcome) -> compaction_service_pb2.RecordAnswerResponse:
        return self.client.compaction.RecordAnswer(
            compaction_service_pb2.RecordAnswerRequest(session_id=self.id, outcome=outcome)
        )

    def faults(self) -> list[str]:
        """R5: what is wrong with the list as it would be sent, results of calls that have folded apart."""
        rows = [(row_id, row, new_row(row, row_id)) for row_id, row in self.list]
        made = {b.tool_call.call_id for _, row in self.list for b in row.assistant.content if b.HasField("tool_call")}
        paired = [r for r in rows if not r[1].HasField("tool_result") or r[1].tool_result.call_id in made]
        summaries = {
            i: new.body for i, (_, _, new) in enumerate(paired) if isinstance(new.body, CompactionSummaryRow)
        }  # fmt: skip
        sent = tuple(SentRow(new, i, i) for i, (_, _, new) in enumerate(paired))
        given = HostList(sent, tuple(row_id for row_id, _, _ in paired), self.start, self.run_id)
        transcript = read(given, Known(summaries), now=0.0)
        arranged = arrange(transcript.rows, open_run=transcript.open_run, calls=transcript.calls)
        chat, messages = (json.loads(formats.render(f, arranged).json) for f in FORMATS)
        return [*openai_chat_faults(chat), *anthropic_faults(messages)]

    # What the sidecar holds

    def archive(self) -> list[row_pb2.Row]:
        request = session_service_pb2.ListRowsRequest(
            session_id=self.id, view=session_pb2.ROW_VIEW_ARCHIVE, page_size=1000
        )
        return [row for page in pages(self.client.session.ListRows, request) for row in page.rows]

    def read(self, offset: int) -> row_pb2.Row:
        """A row of the archive."""
        return self.client.session.ReadRow(session_service_pb2.ReadRowRequest(session_id=self.id, offset=offset)).row

    def text(self, offset: int) -> str:
        """The text of a row of the archive."""
        request = session_service_pb2.ReadRowRequest(session_id=self.id, offset=offset)
        request.range.end = self.client.session.ReadRow(request).text_bytes
        return self.client.session.ReadRow(request).text

    def found(self, query: str, limit: int = 20) -> list[int]:
        """Offsets of hits."""
        return [offset for offset, _ in self.hits(query, limit)]

    def hits(self, query: str, limit: int = 20) -> list[tuple[int, str]]:
        """(offset, text) of hits."""
        request = memory_service_pb2.SearchMemoryRequest(session_id=self.id, query=query, limit=limit)
        return [(hit.offset, hit.text) for hit in self.client.memory.SearchMemory(request).hits]

    def verify(self) -> session_service_pb2.VerifySessionResponse:
        return self.client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=self.id))

    def get(self) -> session_service_pb2.GetSessionResponse:
        return self.client.session.GetSession(session_service_pb2.GetSessionRequest(session_id=self.id))

    def events(self) -> list[event_pb2.Event]:
        request = event_service_pb2.ListEventsRequest(session_id=self.id, page_size=1000)
        return list(self.client.event.ListEvents(request).events)

    def ends(self) -> dict[str, list[Any]]:
        """How the folds of the log ended, by fold: each start must have one end."""
        events = self.events()
        started = Counter(e.fold_id for e in events if e.kind == event_pb2.EVENT_KIND_COMPACTION_STARTED)
        assert not started or set(started.values()) == {1}
        ended: dict[str, list[Any]] = {fold_id: [] for fold_id in started}
        for event in events:
            if event.kind in ENDS:
                ended[event.fold_id].append(
                    event.compaction_failed.failure if event.HasField("compaction_failed") else "completed"
                )
        return ended


def talk(host: HostedHost, turns: int, words: int = 60, first: int = 0) -> None:
    """Whole turns of one question and one answer each, with names to find them by."""
    for number in range(first, first + turns):
        host.add(user(f"Please look at file_{number}.py for me. " + "word " * words))
        host.add(assistant(f"The file file_{number}.py holds the constant {number * 77}. " + "text " * words))


def work(host: HostedHost, rounds: int, words: int = 120, first: int = 0) -> None:
    """Rounds of one call each."""
    for number in range(first, first + rounds):
        host.add(assistant("", f"call{number}"), result(f"call{number}", f"output {number} " + "line " * words))


def long_list(client: Client, session_id: str, turns: int = 28, **policy: Any) -> HostedHost:
    """A session whose list is over the threshold, with a run open on its last row."""
    host = HostedHost(client, session_id, **policy)
    talk(host, turns)
    host.ask("And now the next thing.")
    return host


def flat(ranges: Iterable[row_pb2.OffsetRange]) -> list[int]:
    return [offset for r in ranges for offset in range(r.first, r.last + 1)]


def bodies(rows: Sequence[tuple[str, row_pb2.Row]]) -> list[bytes]:
    return [row.SerializeToString(deterministic=True) for _, row in rows]
