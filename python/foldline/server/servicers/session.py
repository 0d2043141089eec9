"""SessionService."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from foldline.commands import fork_session, list_rows, relist, sessions, transfer
from foldline.commands.render_transcript import render_transcript
from foldline.commands.verify_session import verify_session
from foldline.domain.enums import Ownership, RowView
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import field_names
from foldline.domain.rows import ModelRef
from foldline.server.codec.basics import enum_map, invalid, model_ref, wire_warnings
from foldline.server.codec.policy import effective, layer
from foldline.server.codec.rows import FORMATS, rows_input, wire_row
from foldline.server.codec.sessions import OWNERSHIP, wire_cadence, wire_fault, wire_revision, wire_session, wire_totals
from foldline.server.servicers import steps
from foldline.server.servicers.base import (
    LONG_PAGE,
    Servicer,
    caller_of,
    optional,
    page_size,
    page_token,
    read_token,
)
from foldline.v1 import session_pb2
from foldline.v1 import session_service_pb2 as pb
from foldline.v1 import session_service_pb2_grpc as rpc

VIEWS = enum_map(session_pb2.RowView, RowView, "ROW_VIEW")
MAX_FAULTS = 1024


class SessionServicer(Servicer, rpc.SessionServiceServicer):
    def CreateSession(
        self, request: pb.CreateSessionRequest, context: grpc.ServicerContext
    ) -> pb.CreateSessionResponse:
        view = sessions.create_session(
            self.services, caller_of(request, context, "CreateSession"),
            sessions.NewSession(
                session_id=request.session_id, model=model_ref(request.model), policy=layer(request.policy),
                labels=dict(request.labels), ownership=OWNERSHIP.domain(request.ownership) or Ownership.SIDECAR_OWNED,
                request_id=request.request_id,
            ),
        )  # fmt: skip
        return pb.CreateSessionResponse(session=wire_session(view.session))

    def GetSession(self, request: pb.GetSessionRequest, context: grpc.ServicerContext) -> pb.GetSessionResponse:
        view = sessions.get_session(self.services, caller_of(request, context, "GetSession"), request.session_id)
        return pb.GetSessionResponse(
            session=wire_session(view.session), totals=wire_totals(view), effective_policy=effective(view.policy),
            cadence=wire_cadence(view.session.cadence),
        )  # fmt: skip

    def ListSessions(self, request: pb.ListSessionsRequest, context: grpc.ServicerContext) -> pb.ListSessionsResponse:
        token, size = read_token(request, str), page_size(request.page_size)
        caller = caller_of(request, context, "ListSessions")
        found, more = sessions.list_sessions(
            self.services, caller, token[0] if token else "", size, dict(request.labels)
        )
        return pb.ListSessionsResponse(
            sessions=[wire_session(s) for s in found],
            next_page_token=page_token(request, found[-1].session_id) if more else "",
        )

    def UpdateSession(
        self, request: pb.UpdateSessionRequest, context: grpc.ServicerContext
    ) -> pb.UpdateSessionResponse:
        policy, labels, model = _changes(request)
        view = sessions.update_session(
            self.services, caller_of(request, context, "UpdateSession"),
            sessions.SessionChange(
                request.session_id, model=model, policy=policy, labels=labels,
                expected_revision=optional(request, "expected_revision"), request_id=request.request_id,
            ),
        )  # fmt: skip
        return pb.UpdateSessionResponse(session=wire_session(view.session))

    def DeleteSession(
        self, request: pb.DeleteSessionRequest, context: grpc.ServicerContext
    ) -> pb.DeleteSessionResponse:
        caller = caller_of(request, context, "DeleteSession")
        sessions.delete_session(self.services, caller, request.session_id, request.request_id)
        return pb.DeleteSessionResponse()

    def ForkSession(self, request: pb.ForkSessionRequest, context: grpc.ServicerContext) -> pb.ForkSessionResponse:
        view = fork_session.fork_session(
            self.services, caller_of(request, context, "ForkSession"),
            fork_session.NewFork(
                request.session_id, request.fork_session_id, revision=optional(request, "revision"),
                offset=optional(request, "offset"), labels=dict(request.labels), request_id=request.request_id,
            ),
        )  # fmt: skip
        return pb.ForkSessionResponse(session=wire_session(view.session))

    def AppendRows(self, request: pb.AppendRowsRequest, context: grpc.ServicerContext) -> pb.AppendRowsResponse:
        return steps.append(self.services, request, context)

    def EditRows(self, request: pb.EditRowsRequest, context: grpc.ServicerContext) -> pb.EditRowsResponse:
        replacement = rows_input(request.replacement, "replacement") if request.HasField("replacement") else None
        edited = relist.edit_rows(
            self.services, caller_of(request, context, "EditRows"),
            relist.Edit(
                request.session_id, request.first_offset, request.last_offset, replacement, request.request_id,
                optional(request, "expected_revision"),
            ),
        )  # fmt: skip
        return pb.EditRowsResponse(
            revision=edited.revision, first_offset=edited.first_offset, last_offset=edited.last_offset,
            cancelled_run_id=edited.run_cancelled, warnings=wire_warnings(edited.warnings),
        )  # fmt: skip

    def PinRows(self, request: pb.PinRowsRequest, context: grpc.ServicerContext) -> pb.PinRowsResponse:
        pinned = relist.pin_rows(
            self.services, caller_of(request, context, "PinRows"), request.session_id, list(request.offsets),
            request.pinned, request.request_id,
        )  # fmt: skip
        return pb.PinRowsResponse(changed=pinned.changed, revision=pinned.revision)

    def ListRows(self, request: pb.ListRowsRequest, context: grpc.ServicerContext) -> pb.ListRowsResponse:
        token = read_token(request)
        position, pinned = token or (0, None)
        revision = pinned if token else optional(request, "revision")
        view = VIEWS.domain(request.view) or RowView.ACTIVE
        page = list_rows.list_rows(
            self.services, caller_of(request, context, "ListRows"), request.session_id, view,
            None if view is RowView.ARCHIVE else revision, position, page_size(request.page_size, LONG_PAGE),
            self.settings.max_message_bytes * 3 // 4,
        )  # fmt: skip
        rows = []
        for row, active in zip(page.rows, page.active, strict=True):
            wire = wire_row(row)
            wire.archived = not active
            rows.append(wire)
        following = "" if page.next_position is None else page_token(request, page.next_position, page.revision)
        return pb.ListRowsResponse(rows=rows, next_page_token=following, revision=page.revision)

    def ReadRow(self, request: pb.ReadRowRequest, context: grpc.ServicerContext) -> pb.ReadRowResponse:
        given = request.HasField("range")
        read = list_rows.read_row(
            self.services, caller_of(request, context, "ReadRow"), request.session_id, request.offset,
            request.range.start if given else 0, request.range.end if given else None,
        )  # fmt: skip
        # A row is asked for whole, or by its text where the whole does not fit into a message (W5): never as both.
        made = pb.ReadRowResponse(text_bytes=read.total)
        if given:
            made.text = read.text
            made.range.start, made.range.end = read.first_byte, read.last_byte
        else:
            made.row.CopyFrom(wire_row(read.row))
            made.row.archived = not read.active
        return made

    def ListRevisions(
        self, request: pb.ListRevisionsRequest, context: grpc.ServicerContext
    ) -> pb.ListRevisionsResponse:
        token = read_token(request)
        found, _, following = list_rows.list_revisions(
            self.services, caller_of(request, context, "ListRevisions"), request.session_id,
            token[0] if token else None,
            page_size(request.page_size),
        )  # fmt: skip
        return pb.ListRevisionsResponse(
            revisions=[wire_revision(r) for r in found],
            next_page_token="" if following is None else page_token(request, following),
        )

    def RestoreRevision(
        self, request: pb.RestoreRevisionRequest, context: grpc.ServicerContext
    ) -> pb.RestoreRevisionResponse:
        restored = relist.restore_revision(
            self.services, caller_of(request, context, "RestoreRevision"), request.session_id, request.revision,
            request.request_id, optional(request, "expected_revision"),
        )  # fmt: skip
        return pb.RestoreRevisionResponse(
            revision=restored.revision, cancelled_run_id=restored.run_cancelled, rows_active=restored.rows_active
        )

    def RenderTranscript(
        self, request: pb.RenderTranscriptRequest, context: grpc.ServicerContext
    ) -> pb.RenderTranscriptResponse:
        rendered = render_transcript(
            self.services, caller_of(request, context, "RenderTranscript"), request.session_id,
            FORMATS.domain(request.format), optional(request, "revision"),
        )  # fmt: skip
        return pb.RenderTranscriptResponse(
            rendered_json=rendered.json,
            revision=rendered.revision,
            warnings=wire_warnings(rendered.warnings),
            request_headers=rendered.headers,
        )

    def VerifySession(
        self, request: pb.VerifySessionRequest, context: grpc.ServicerContext
    ) -> pb.VerifySessionResponse:
        verified = verify_session(self.services, caller_of(request, context, "VerifySession"), request.session_id)
        faults = [wire_fault(f) for f in verified.faults[:MAX_FAULTS]]
        if len(verified.faults) > MAX_FAULTS:
            faults[-1] = session_pb2.VerifyFault(
                rule="V10", detail=f"{len(verified.faults) - MAX_FAULTS + 1} further faults are not listed"
            )
        return pb.VerifySessionResponse(
            ok=not verified.faults, rows_total=verified.rows_total, rows_active=verified.rows_active,
            rows_archived=verified.rows_archived, folds=verified.folds, faults=faults,
        )  # fmt: skip

    def ExportSession(
        self, request: pb.ExportSessionRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ExportSessionResponse]:
        caller = caller_of(request, context, "ExportSession")
        held: bytes | None = None
        number = 1
        for chunk in transfer.export_session(self.services, caller, request.session_id):
            if held is not None:
                yield pb.ExportSessionResponse(sequence=number, jsonl=held)
                number += 1
            held = chunk
        yield pb.ExportSessionResponse(sequence=number, jsonl=held or b"", last=True)

    def ImportSession(
        self, request_iterator: Iterator[pb.ImportSessionRequest], context: grpc.ServicerContext
    ) -> pb.ImportSessionResponse:
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise invalid("header", "", "first message", "the first message of an import is its header")
        header = first.header
        caller = caller_of(first, context, "ImportSession")
        view = transfer.import_session(
            self.services, caller, _chunks(request_iterator), header.session_id, header.request_id
        )
        return pb.ImportSessionResponse(session=wire_session(view.session), rows=view.rows_total)


def _chunks(messages: Iterator[pb.ImportSessionRequest]) -> Iterator[bytes]:
    for expected, message in enumerate(messages, 1):
        if message.WhichOneof("part") != "chunk":
            raise invalid("header", "", "once", "an import has one header")
        if message.chunk.sequence != expected:
            raise FoldlineError(
                Reason.FORMAT_INVALID, f"chunk {message.chunk.sequence} came where {expected} was due",
                given=message.chunk.sequence, expected=expected,
            )  # fmt: skip
        yield message.chunk.jsonl


def _changes(request: pb.UpdateSessionRequest) -> tuple[dict[str, Any] | None, dict[str, str] | None, Any]:
    """What an update changes: the paths of its mask, or without one every field that is set (AIP-134)."""
    paths = list(request.update_mask.paths)
    policy: dict[str, Any] | None = layer(request.policy) if request.HasField("policy") else None
    labels = dict(request.labels) if request.labels else None
    model = model_ref(request.model) if request.HasField("model") else None
    if not paths:
        return policy, labels, model
    top = {p.split(".")[0] for p in paths}
    unknown = top - {"policy", "labels", "model"}
    if unknown:
        raise invalid(
            "update_mask", ",".join(sorted(unknown)), "policy, policy.<knob>, labels, model",
            f"update_mask names {sorted(unknown)}",
        )  # fmt: skip
    given, named = policy or {}, set[str]()
    for path in paths:
        if path.split(".")[0] == "policy":
            named |= _knobs(path)
    return (
        {name: given.get(name) for name in named} if "policy" in top else None,
        dict(request.labels) if "labels" in top else None,
        (model or ModelRef()) if "model" in top else None,
    )


def _knobs(path: str) -> set[str]:
    """The knobs that a path of a mask names: all of them, those of a group, or one."""
    knob = path.removeprefix("policy").removeprefix(".")
    found = {n for n in field_names() if not knob or n == knob or n.startswith(knob + ".")}
    if not found:
        raise invalid("update_mask", path, "policy.<knob> with a knob of the policy", f"update_mask names {path}")
    return found
