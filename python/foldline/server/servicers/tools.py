"""ToolService."""

from __future__ import annotations

import grpc
import msgspec

from foldline.commands.agent_tools import agent_tools, call_agent_tool
from foldline.server.codec.rows import FORMATS
from foldline.server.servicers.base import Servicer, caller_of
from foldline.v1 import tool_pb2
from foldline.v1 import tool_service_pb2 as pb
from foldline.v1 import tool_service_pb2_grpc as rpc


class ToolServicer(Servicer, rpc.ToolServiceServicer):
    def ListAgentTools(
        self, request: pb.ListAgentToolsRequest, context: grpc.ServicerContext
    ) -> pb.ListAgentToolsResponse:
        caller = caller_of(request, context, "ListAgentTools")
        tools, data = agent_tools(self.services, caller, request.session_id, FORMATS.domain(request.format))
        made = [
            tool_pb2.AgentTool(
                name=tool.name,
                description=tool.description,
                input_schema_json=msgspec.json.encode(tool.input_schema).decode(),
            )
            for tool in tools
        ]
        return pb.ListAgentToolsResponse(tools=made, tools_json=data)

    def CallAgentTool(
        self, request: pb.CallAgentToolRequest, context: grpc.ServicerContext
    ) -> pb.CallAgentToolResponse:
        answer = call_agent_tool(
            self.services, caller_of(request, context, "CallAgentTool"), request.session_id, request.name,
            request.arguments_json, request.request_id,
        )  # fmt: skip
        return pb.CallAgentToolResponse(text=answer.text, is_error=answer.is_error)
