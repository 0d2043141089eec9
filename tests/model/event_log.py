"""The event log of a session, read as it grows (§13)."""

from __future__ import annotations

from collections.abc import Callable

from foldline.v1 import compaction_pb2, event_pb2, event_service_pb2

from tests.model.state import State, require
from tests.support.requests import pages
from tests.support.server import Client


class EventLog:
    """Every start has one end, in order, without gaps in the numbers."""

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client

    @property
    def client(self) -> Client:
        return self._client()

    def events(self, state: State) -> None:
        """Every start has one end (§13), in order, without gaps in the numbers."""
        self.pending(state)
        open_folds = state.started.keys() - state.ended
        require(not open_folds - state.ahead, "§13", f"folds {open_folds} started and did not end")
        require(len(open_folds) <= 1, "A2", f"{open_folds} are written ahead of need at once")
        unseen = [r.fold_id for r in state.unseen_folds if r.fold_id not in state.seen_folds]
        require(not unseen, "A5", f"folds {unseen} committed and no answer told of them")

    def pending(self, state: State) -> None:
        """Reads the new events; ``state.started`` less ``state.ended`` is what is under way."""
        request = event_service_pb2.ListEventsRequest(session_id=state.id, after=state.event, page_size=500)
        for page in pages(self.client.event.ListEvents, request):
            for event in page.events:
                self._event(state, event)

    def _event(self, state: State, event: event_pb2.Event) -> None:
        require(event.sequence == state.event + 1, "§13", f"event {event.sequence} after {state.event}")
        state.event = event.sequence
        if event.kind == event_pb2.EVENT_KIND_COMPACTION_STARTED:
            require(event.fold_id not in state.started, "§13", f"{event.fold_id} started twice")
            state.started[event.fold_id] = event.sequence
            if event.trigger == compaction_pb2.TRIGGER_BACKGROUND:
                state.ahead.add(event.fold_id)
        elif event.kind in (event_pb2.EVENT_KIND_COMPACTION_COMPLETED, event_pb2.EVENT_KIND_COMPACTION_FAILED):
            require(event.fold_id in state.started, "§13", f"{event.fold_id} ended and never started")
            require(event.fold_id not in state.ended, "§13", f"{event.fold_id} ended twice")
            state.ended.add(event.fold_id)
            if event.HasField("compaction_completed"):
                state.unseen_folds.append(event.compaction_completed.record)
            failed = event.compaction_failed
            # Sources may fail; a plan that its own checks refuse is a defect.
            refused = failed.failure == compaction_pb2.FAILURE_KIND_REWRITE_REJECTED
            require(not refused, "§7", f"{event.fold_id} was refused: {failed}")
