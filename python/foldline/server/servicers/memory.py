"""MemoryService."""

from __future__ import annotations

import grpc

from foldline.commands import memory_scope
from foldline.commands.memory_scope import ScopeEntry
from foldline.commands.search_memory import HITS, search_memory
from foldline.domain.enums import EntryKind, EntryRole
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter, MemoryHit, MemoryQuery
from foldline.server.codec.basics import enum_map, time_text, timestamp_of
from foldline.server.servicers.base import Servicer, caller_of, optional, page_token, read_token
from foldline.v1 import memory_pb2
from foldline.v1 import memory_service_pb2 as pb
from foldline.v1 import memory_service_pb2_grpc as rpc

ROLES = enum_map(memory_pb2.EntryRole, EntryRole, "ENTRY_ROLE")
KINDS = enum_map(memory_pb2.EntryKind, EntryKind, "ENTRY_KIND")


class MemoryServicer(Servicer, rpc.MemoryServiceServicer):
    def SearchMemory(self, request: pb.SearchMemoryRequest, context: grpc.ServicerContext) -> pb.SearchMemoryResponse:
        query = MemoryQuery(
            text=request.query,
            limit=request.limit if request.HasField("limit") else HITS,
            min_score=optional(request, "min_score"),
            filter=_filter(request.filter),
            include_neighbors=request.include_neighbors,
        )
        caller = caller_of(request, context, "SearchMemory")
        answer = search_memory(self.services, caller, request.session_id, query, optional(request, "max_tokens"))
        return pb.SearchMemoryResponse(
            hits=[_hit(h) for h in answer.hits], degraded=bool(answer.degraded), degraded_reason=answer.degraded,
            scope_dropped=answer.scope_dropped,
        )  # fmt: skip

    def GetMemory(self, request: pb.GetMemoryRequest, context: grpc.ServicerContext) -> pb.GetMemoryResponse:
        caller = caller_of(request, context, "GetMemory")
        found = memory_scope.get_memory(self.services, caller, request.session_id, request.offset, request.chunk)
        entry = _entry(found.entries[0]) if found.entries else None
        return pb.GetMemoryResponse(entry=entry, scope_dropped=found.scope_dropped)

    def EnumerateScope(
        self, request: pb.EnumerateScopeRequest, context: grpc.ServicerContext
    ) -> pb.EnumerateScopeResponse:
        token = read_token(request, list)
        limit = request.limit if request.HasField("limit") else memory_scope.PAGE
        caller = self.admin_of(request, context, "EnumerateScope")
        page = memory_scope.enumerate_scope(
            self.services, caller, request.session_id, _filter(request.filter), limit,
            _position(token[0]) if token else (0, -1), self.settings.max_message_bytes * 3 // 4,
        )  # fmt: skip
        return pb.EnumerateScopeResponse(
            entries=[_entry(e) for e in page.entries], scope_dropped=page.scope_dropped,
            next_page_token=page_token(request, page.following) if page.following else "",
        )  # fmt: skip

    def DropScope(self, request: pb.DropScopeRequest, context: grpc.ServicerContext) -> pb.DropScopeResponse:
        caller = self.admin_of(request, context, "DropScope")
        dropped = memory_scope.drop_scope(self.services, caller, request.session_id, request.request_id)
        return pb.DropScopeResponse(entries=dropped)


def _position(found: list[object]) -> tuple[int, int]:
    match found:
        case [int(offset), int(chunk)] if 0 <= offset < 1 << 63 and 0 <= chunk < 1 << 31:
            return offset, chunk
    raise FoldlineError(Reason.PAGE_TOKEN_MISMATCH, "page_token is none of this server's")


def _filter(value: memory_pb2.MemoryFilter) -> MemoryFilter:
    return MemoryFilter(
        roles=tuple(ROLES.domain(r) for r in value.roles),
        kinds=tuple(KINDS.domain(k) for k in value.kinds),
        first_offset=optional(value, "first_offset"),
        last_offset=optional(value, "last_offset"),
        after_time=time_text(value.after_time, "filter.after_time") if value.HasField("after_time") else "",
        before_time=time_text(value.before_time, "filter.before_time") if value.HasField("before_time") else "",
    )


def _hit(hit: MemoryHit) -> memory_pb2.MemoryHit:
    entry = hit.entry
    made = memory_pb2.MemoryHit(
        text=entry.text, score=hit.score, offset=entry.offset, role=ROLES.wire(entry.role), call_id=entry.call_id,
        chunk=entry.chunk, kind=KINDS.wire(entry.kind), lexical_score=hit.lexical, semantic_score=hit.semantic,
        before=hit.before, after=hit.after, create_time=timestamp_of(entry.create_time),
    )  # fmt: skip
    made.byte_range.start, made.byte_range.end = entry.byte_start, entry.byte_end
    return made


def _entry(found: ScopeEntry) -> memory_pb2.MemoryEntry:
    entry = found.stored.entry
    made = memory_pb2.MemoryEntry(
        offset=entry.offset, chunk=entry.chunk, text=entry.text, role=ROLES.wire(entry.role),
        kind=KINDS.wire(entry.kind), call_id=entry.call_id, create_time=timestamp_of(entry.create_time),
        pending=found.pending,
    )  # fmt: skip
    made.byte_range.start, made.byte_range.end = entry.byte_start, entry.byte_end
    return made
