"""One servicer a service of the contract."""

from __future__ import annotations

import grpc

from foldline.commands.services import Services
from foldline.server.servicers.base import Settings
from foldline.server.servicers.compaction import CompactionServicer
from foldline.server.servicers.curator import CuratorServicer
from foldline.server.servicers.memory import MemoryServicer
from foldline.server.servicers.others import AdminServicer, EstimateServicer, EventServicer
from foldline.server.servicers.session import SessionServicer
from foldline.server.servicers.tools import ToolServicer
from foldline.v1 import (
    admin_service_pb2_grpc,
    compaction_service_pb2_grpc,
    curator_service_pb2_grpc,
    estimate_service_pb2_grpc,
    event_service_pb2_grpc,
    memory_service_pb2_grpc,
    session_service_pb2_grpc,
    tool_service_pb2_grpc,
)


def register(server: grpc.Server, services: Services, settings: Settings) -> tuple[str, ...]:
    """Adds every service to a server; returns their full names."""
    session_service_pb2_grpc.add_SessionServiceServicer_to_server(SessionServicer(services, settings), server)
    compaction_service_pb2_grpc.add_CompactionServiceServicer_to_server(CompactionServicer(services, settings), server)
    curator_service_pb2_grpc.add_CuratorServiceServicer_to_server(CuratorServicer(services, settings), server)
    memory_service_pb2_grpc.add_MemoryServiceServicer_to_server(MemoryServicer(services, settings), server)
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(ToolServicer(services, settings), server)
    event_service_pb2_grpc.add_EventServiceServicer_to_server(EventServicer(services, settings), server)
    estimate_service_pb2_grpc.add_EstimateServiceServicer_to_server(EstimateServicer(services, settings), server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(services, settings), server)
    names = ("Session", "Compaction", "Curator", "Memory", "Tool", "Event", "Estimate", "Admin")
    return tuple(f"foldline.v1.{name}Service" for name in names)


__all__ = ["Settings", "register"]
