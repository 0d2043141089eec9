"""AttachSession: the steps of a model call over one stream (api: the same messages, rules and errors as the RPCs).

A step is answered under its sequence before the next is read. One that fails is answered with its error, and the
stream goes on; what is no step of the stream ends it. The list of the last answer is taken for the one that the host
holds (W1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from foldline.commands.services import Caller, Services
from foldline.commands.sessions import revision_of
from foldline.server.chain import Call
from foldline.server.codec.basics import duration, invalid, seconds, timestamp
from foldline.server.push import Pushed
from foldline.server.servicers import steps
from foldline.server.servicers.base import Settings
from foldline.server.validation import validate
from foldline.v1 import compaction_service_pb2 as pb
from foldline.v1 import session_service_pb2

MAX_TIMEOUT = 86_400.0
_ENVELOPE = 64
"""Bytes that an answer may have around that of its step."""


class _Step:
    """A step while it is worked on: how long its host waits (W9)."""

    __slots__ = ("_ends",)

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def time_remaining(self) -> float:
        return max(0.0, self._ends - time.monotonic())


def attach(
    services: Services, settings: Settings, requests: Iterator[pb.AttachSessionRequest], call: Call, stream: Pushed
) -> None:
    """Serves one stream to its end.

    Raises:
        FoldlineError: FIELD_VALIDATION for what is no step of the stream; SESSION_NOT_FOUND and what else refuses
            ``open``.
    """
    first = next(requests, None)
    if first is None:
        return
    attached = _Attached(services, settings, call, first)
    stream.send(attached.opened())

    def beat() -> pb.AttachSessionResponse:
        return pb.AttachSessionResponse(heartbeat=pb.AttachHeartbeat(time=timestamp(services.clock())))

    with stream.beating(settings.heartbeat_interval, beat):
        for request in requests:
            stream.send(attached.answer(request))


class _Attached:
    """A stream whose first message has opened a session."""

    def __init__(self, services: Services, settings: Settings, call: Call, first: pb.AttachSessionRequest) -> None:
        validate(first)
        if first.WhichOneof("step") != "open":
            raise invalid(first.WhichOneof("step") or "", "", "open", "the first message of a stream opens its session")
        self._services = services
        self._settings = settings
        self._call = call
        self._session_id = first.open.session_id
        self._known: int | None = first.open.known_revision if first.open.HasField("known_revision") else None
        self._sequence = first.sequence
        self._steps: dict[str, Callable[[Any, _Step], pb.AttachSessionResponse]] = {
            "prepare": self._prepare,
            "record": self._record,
            "finish": self._finish,
            "append": self._append,
            "check": self._check,
        }

    def opened(self) -> pb.AttachSessionResponse:
        return pb.AttachSessionResponse(
            sequence=self._sequence,
            opened=pb.AttachOpened(
                revision=revision_of(self._services, Caller(), self._session_id),
                heartbeat_interval=duration(self._settings.heartbeat_interval),
            ),
        )

    def answer(self, request: pb.AttachSessionRequest) -> pb.AttachSessionResponse:
        """The answer to a step, or its error.

        Raises:
            FoldlineError: FIELD_VALIDATION for what is no step of this stream.
        """
        kind, step = self._step(request)
        with self._call.step(request.sequence, kind) as entry:
            validate(step)
            self._call.require()
            made = self._steps[kind](step, _Step(self._call.ends(self._timeout(request))))
        if entry.error is not None:
            made = pb.AttachSessionResponse(error=entry.error)
        made.sequence = request.sequence
        return made

    def _step(self, request: pb.AttachSessionRequest) -> tuple[str, Any]:
        """The step of a message, by its name."""
        sequence, kind = request.sequence, request.WhichOneof("step")
        if not self._sequence < sequence < 1 << 63:
            raise invalid(
                "sequence", sequence, f"above {self._sequence}", f"sequence {sequence} follows {self._sequence}"
            )
        self._sequence = sequence
        if kind is None or kind == "open":
            raise invalid(
                kind or "step", "", ", ".join(self._steps), "after its first message a stream takes steps, each one of "
                f"{', '.join(self._steps)}",
            )  # fmt: skip
        step = getattr(request, kind)
        if kind != "append" and step.session_id != self._session_id:
            raise invalid(
                f"{kind}.session_id", step.session_id, self._session_id,
                f"the stream is attached to {self._session_id}; another session needs another stream",
            )  # fmt: skip
        return kind, step

    def _timeout(self, request: pb.AttachSessionRequest) -> float | None:
        if not request.HasField("timeout"):
            return None
        given = seconds(request.timeout)
        if not 0 < given <= MAX_TIMEOUT:
            raise invalid("timeout", f"{given} s", "above 0, at most a day", f"timeout is {given} s")
        return given

    def _prepare(self, request: pb.PrepareRequestRequest, step: _Step) -> pb.AttachSessionResponse:
        room = self._settings.max_message_bytes - _ENVELOPE
        made = steps.prepare(self._services, request, step, room, self._known)
        if made.HasField("rows") or made.HasField("splices"):
            self._known = made.revision
        return pb.AttachSessionResponse(prepared=made)

    def _record(self, request: pb.RecordAnswerRequest, step: _Step) -> pb.AttachSessionResponse:
        return pb.AttachSessionResponse(recorded=steps.record(self._services, request, step))

    def _finish(self, request: pb.FinishRunRequest, step: _Step) -> pb.AttachSessionResponse:
        return pb.AttachSessionResponse(finished=steps.finish(self._services, request, step))

    def _append(self, request: pb.AttachAppend, step: _Step) -> pb.AttachSessionResponse:
        # The very message of the unary RPC, so that either knows the other's first answers (W2).
        same = session_service_pb2.AppendRowsRequest(
            session_id=self._session_id, request_id=request.request_id, input=request.input, run_id=request.run_id
        )
        made = steps.append(self._services, same, step)
        return pb.AttachSessionResponse(
            appended=pb.AttachAppended(
                revision=made.revision, first_offset=made.first_offset, last_offset=made.last_offset,
                warnings=made.warnings,
            )
        )  # fmt: skip

    def _check(self, request: pb.CheckPressureRequest, step: _Step) -> pb.AttachSessionResponse:
        return pb.AttachSessionResponse(checked=steps.check(self._services, request, step))
