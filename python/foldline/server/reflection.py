"""Server reflection v1 over the services that the contract publishes, and over itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1 = "grpc.reflection.v1.ServerReflection"
_ALPHA = "grpc.reflection.v1alpha.ServerReflection"


def add(server: grpc.Server, services: Iterable[str]) -> None:
    """Describes ``services`` to clients of v1, and to older ones of v1alpha: the messages are the same on the wire."""
    servicer = reflection.ReflectionServicer((*services, V1, _ALPHA), _Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (V1, _ALPHA):
        methods = {"ServerReflectionInfo": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))


class _Pool:
    """The pool of everything that is loaded, and v1 of reflection.

    Its Python package ships v1alpha alone. v1 is the same under another name; it has a pool of its own, so that a
    process that loads v1 itself is not in the way.
    """

    def __init__(self) -> None:
        renamed = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(renamed)
        _rename(renamed)
        self._own = descriptor_pool.DescriptorPool()
        self._own.Add(renamed)

    def __getattr__(self, name: str) -> Any:
        return getattr(descriptor_pool.Default(), name)

    def FindFileByName(self, name: str) -> Any:
        return self._find("FindFileByName", name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        return self._find("FindFileContainingSymbol", symbol)

    def _find(self, method: str, name: str) -> Any:
        try:
            return getattr(self._own, method)(name)
        except KeyError:
            return getattr(descriptor_pool.Default(), method)(name)


def _rename(file: descriptor_pb2.FileDescriptorProto) -> None:
    """v1alpha as v1, wherever a name stands."""
    file.name, file.package = file.name.replace("v1alpha", "v1"), file.package.replace("v1alpha", "v1")
    file.ClearField("options")
    for message in file.message_type:
        for each in filter(lambda field: field.type_name, message.field):
            each.type_name = each.type_name.replace("v1alpha", "v1")
    for method in (m for service in file.service for m in service.method):
        method.input_type = method.input_type.replace("v1alpha", "v1")
        method.output_type = method.output_type.replace("v1alpha", "v1")
