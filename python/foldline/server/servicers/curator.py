"""CuratorService: a host that connects is handed tasks for as long as its stream lives (S6, F12).

The stream's thread reads what the host says; a second one sends what it is told, so that neither a fold nor another
host ever waits for a host that does not read. What a host says is only read on while it takes what it is told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from foldline.commands.curators import Curators, Host
from foldline.commands.services import Services
from foldline.domain.curators import Handed
from foldline.domain.enums import FailureKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import SummaryFailed
from foldline.server.chain import Call
from foldline.server.codec.basics import duration, invalid, timestamp
from foldline.server.codec.curators import CHUNK_BYTES, answer_of, registration_of, wire_task
from foldline.server.push import Pushed, pushes
from foldline.server.servicers.base import Servicer, Settings
from foldline.server.validation import validate
from foldline.v1 import curator_pb2, curator_service_pb2_grpc
from foldline.v1 import curator_service_pb2 as pb

log = structlog.get_logger(__name__)

_WAITING = 64
"""Messages that may wait to be sent before the host is not listened to any more."""
_ENVELOPE = 128


class CuratorServicer(Servicer, curator_service_pb2_grpc.CuratorServiceServicer):
    @pushes
    def Curate(  # type: ignore[override]
        self, request_iterator: Iterator[pb.CurateRequest], context: Call, stream: Pushed
    ) -> None:
        serve(self.services, self.settings, request_iterator, stream)


def serve(services: Services, settings: Settings, requests: Iterator[pb.CurateRequest], stream: Pushed) -> None:
    """Serves one stream to its end.

    Raises:
        FoldlineError: FIELD_VALIDATION for what is no message of such a stream; TENANT_DENIED.
    """
    first = next(requests, None)
    if first is None:
        return
    validate(first)
    kind = first.WhichOneof("kind")
    if kind != "register":
        raise invalid(str(kind), "", "register", "the first message of a stream registers its host")
    curators, tenant = services.curators, first.register.tenant
    if tenant:  # There are no keys of tenants yet: every caller's own is the one without a name.
        raise FoldlineError(
            Reason.TENANT_DENIED, f"no key was given that belongs to tenant {tenant}: register without a tenant",
            tenant=tenant,
        )  # fmt: skip
    outbox = _Outbox(stream, curators, min(CHUNK_BYTES, settings.max_message_bytes - _ENVELOPE))
    outbox.host = host = curators.connect(registration_of(first.register, tenant), outbox)
    stream.busy = lambda: curators.is_busy(host)
    sequence = first.sequence
    try:
        with outbox.sending():
            for request in requests:
                if not sequence < request.sequence < 1 << 63:
                    raise invalid(
                        "sequence", request.sequence, f"above {sequence}", f"sequence {request.sequence} follows "
                        f"{sequence}",
                    )  # fmt: skip
                sequence = request.sequence
                _take(curators, host, request, outbox)
                outbox.keep_up()
    finally:
        curators.disconnect(host)


def _take(curators: Curators, host: Host, request: pb.CurateRequest, outbox: _Outbox) -> None:
    try:
        validate(request)
    except FoldlineError as error:
        if request.HasField("result"):  # Whoever waits for it learns it now, not when its lease ends.
            failure = SummaryFailed(FailureKind.CURATOR_FAILED, error.message)
            curators.answer(host, request.result.task_id, failure)
        raise
    kind = request.WhichOneof("kind")
    if kind == "result":
        curators.answer(host, request.result.task_id, answer_of(request.result))
    elif kind == "heartbeat":
        outbox.acknowledge(curators.beat(host, list(request.heartbeat.task_ids)))
    else:
        raise invalid("register", "", "heartbeat, result", "a stream registers once, with its first message")


class _Outbox:
    """What one host is told, in order, numbered without gaps; the broker's ``Link`` to it.

    Attributes:
        host: once it is registered.
    """

    host: Host

    def __init__(self, stream: Pushed, curators: Curators, chunk: int) -> None:
        self._stream, self._curators, self._chunk = stream, curators, chunk
        self._waiting: deque[Handed | pb.CurateResponse] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._sequence = 0

    def welcome(self, curator_id: str) -> None:
        registered = curator_pb2.CuratorRegistered(
            curator_id=curator_id, heartbeat_interval=duration(self._curators.lease)
        )
        self._put(pb.CurateResponse(registered=registered))

    def hand(self, task: Handed) -> None:
        self._put(task)

    def cancel(self, task_id: str, reason: str) -> None:
        self._put(pb.CurateResponse(cancel=curator_pb2.CuratorCancel(task_id=task_id, reason=reason[:256])))

    def acknowledge(self, expire: float) -> None:
        self._put(
            pb.CurateResponse(heartbeat_ack=curator_pb2.CuratorHeartbeatAck(lease_expire_time=timestamp(expire)))
        )  # fmt: skip

    def _put(self, item: Handed | pb.CurateResponse) -> None:
        with self._changed:
            if not self._closed:
                self._waiting.append(item)
                self._changed.notify_all()

    def keep_up(self) -> None:
        """Waits until the host has taken most of what it was told."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < _WAITING)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Within the block, sends on a thread of its own."""
        threading.Thread(target=self._run, name="curator", daemon=True).start()
        try:
            yield
        finally:
            self._close()

    def _run(self) -> None:
        try:
            self._send_all()
        finally:
            self._close()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                item = self._waiting.popleft()
                self._changed.notify_all()
            if isinstance(item, Handed):
                self._send_task(item)
            else:
                self._send(item)

    def _send_task(self, task: Handed) -> None:
        try:
            for message in wire_task(task, self._chunk):
                self._send(message)
        except Exception as error:
            detail = error.message if isinstance(error, FoldlineError) else type(error).__name__
            log.error("a task could not be sent", task=task.task_id, exc_info=error)
            failure = SummaryFailed(FailureKind.CURATOR_FAILED, f"the rows could not be sent: {detail}")
            self._curators.answer(self.host, task.task_id, failure)
            self.cancel(task.task_id, "its rows could not be sent")

    def _send(self, message: pb.CurateResponse) -> None:
        self._sequence += 1
        message.sequence = self._sequence
        try:
            self._stream.send(message)
        except FoldlineError:
            self._sequence -= 1
            raise

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
