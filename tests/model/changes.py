"""Changes beside the loop: appends, edits, restores, folds, and what happens to the server."""

from __future__ import annotations

import grpc
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.model import rows as made
from tests.model.checkpoints import Checkpoints
from tests.model.host import POLICIES, Scene, policy
from tests.model.server import CATALOG
from tests.model.state import State, require

MOST_SCENES = 5


class Changes(Checkpoints):
    """Changes beside the loop: appends, edits, restores, folds, and what happens to the server."""

    def append(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        draw = rng.random()
        if draw < 0.3:
            rows = self.result_rows(scene)
        elif draw < 0.5:
            rows = self.request_rows(scene)
        elif draw < 0.6:
            rows = [self.system_row(scene)]
        elif draw < 0.7:
            state.numbers += 1
            first, second = made.paused(rng, state.numbers, done=rng.random() < 0.3)
            rows = [first, *([made.user(rng)] if rng.random() < 0.2 else []), *([second] if rng.random() < 0.7 else [])]
        else:
            rows = self.history(scene)
        if not rows:
            return
        run_id = rng.choice(("", "", "", state.open_run, state.open_run, "run-other"))
        given, typed = made.as_input(rng, rows)
        request = session_service_pb2.AppendRowsRequest(
            session_id=state.id, input=given, run_id=run_id, request_id=self.request_id(scene)
        )
        if rng.random() < 0.2:
            request.expected_revision = state.revision
        response = self.call(scene, self.client.session.AppendRows, request)
        self.look.appended(state, response.first_offset, response.last_offset, state.revision + 1, rows, typed)
        require(response.revision == state.revision, "W3", response)
        if any(r.HasField("system") for r in rows):
            state.sent.clear()
        if state.open_run:
            new = state.active[len(state.active) - len(rows) :]
            state.asked += [
                o for o in new if state.kind(o) == "user" and state.archive[o].row.run_id in ("", state.open_run)
            ]

    def history(self, scene: Scene) -> list[row_pb2.Row]:
        """Turns as an import brings them."""
        rng = self.rng
        rows: list[row_pb2.Row] = []
        for _ in range(rng.randrange(1, 5)):
            rows.append(made.user(rng))
            for _ in range(rng.randrange(1, 3)):
                ids = [scene.state.next("call_") for _ in range(rng.choice((0, 1, 2)))]
                rows.append(made.assistant(rng, ids))
                rows += [made.result(rng, i) for i in ids if rng.random() < 0.95]
        return rows

    def bad_append(self, scene: Scene) -> None:
        """Appends that must be refused whole; a good row goes with each."""
        rng, state = self.rng, scene.state
        good = made.user(rng)
        answered = [key for key, (final, _) in state.calls().items() if final]
        open_ids = {call_id for _, call_id in state.unanswered()}
        twice = [call_id for _, call_id in answered if call_id not in open_ids]
        keys = state.systems()
        cases: list[tuple[row_pb2.Row, str]] = [
            (row_pb2.Row(compaction_summary=row_pb2.CompactionSummaryRow(text="mine")), "SUMMARY_ROW_REFUSED"),
            (row_pb2.Row(assistant=row_pb2.AssistantRow()), "EMPTY_ASSISTANT_ROW"),
            (made.result(rng, "never-made"), "UNKNOWN_TOOL_CALL"),
            (row_pb2.Row(user=row_pb2.UserRow()), "FIELD_VALIDATION"),
            (row_pb2.Row(), "FIELD_VALIDATION"),
            (row_pb2.Row(user=row_pb2.UserRow(content=[row_pb2.ContentBlock()])), "FIELD_VALIDATION"),
            (made.assistant(rng, ["same", "same"]), "FIELD_VALIDATION"),
        ]
        if twice:
            cases.append((made.result(rng, rng.choice(twice)), "DUPLICATE_TOOL_RESULT"))
        if keys:
            key, (version, _) = rng.choice(list(keys.items()))
            cases.append((made.system(rng, key, rng.randrange(version + 1)), "STALE_SYSTEM_VERSION"))
        bad, reason = rng.choice(cases)
        rows = [good, bad] if rng.random() < 0.5 else [bad, good]
        request = session_service_pb2.AppendRowsRequest(
            session_id=state.id,
            input=row_pb2.RowInput(rows=row_pb2.RowList(rows=rows)),
            request_id=self.request_id(scene),
        )
        require(
            self.call(scene, self.client.session.AppendRows, request, expect=(reason,)) is None,
            "R1",
            f"{bad} was taken",
        )

    def pin(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.active:
            return
        offsets = rng.sample(state.active, min(len(state.active), rng.randrange(1, 4)))
        pinned = rng.random() < 0.4
        summary = any(state.kind(o) == "compaction_summary" for o in offsets)
        request = session_service_pb2.PinRowsRequest(
            session_id=state.id, offsets=offsets, pinned=pinned, request_id=self.request_id(scene)
        )
        response = self.call(
            scene, self.client.session.PinRows, request, expect=("SUMMARY_ROW_REFUSED",) if summary else ()
        )
        require((response is None) == summary, "R6", "a summary was pinned")
        if response is not None:
            changed = {o for o in offsets if (o in state.pinned) != pinned}
            require(response.changed == len(changed), "R6", f"{response.changed} changed, not {changed}")
            state.pinned = state.pinned | changed if pinned else state.pinned - changed

    def edit(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.active:
            return
        first = rng.randrange(len(state.active))
        last = min(len(state.active) - 1, first + rng.choice((0, 0, 1, 2, 5)))
        rows = [made.user(rng)] if rng.random() < 0.5 else []
        rows += [made.assistant(rng, [state.next("call_")] if rng.random() < 0.3 else [])] if rng.random() < 0.3 else []
        request = session_service_pb2.EditRowsRequest(
            session_id=state.id,
            first_offset=state.active[first],
            last_offset=state.active[last],
            request_id=self.request_id(scene),
        )
        if rows:
            request.replacement.rows.rows.extend(rows)
        response = self.call(
            scene, self.client.session.EditRows, request, expect=("EDIT_SPLITS_UNIT", "SUMMARY_ROW_REFUSED")
        )
        if response is None:
            return
        before, removed = list(state.active), set(state.active[first : last + 1])
        self.look.appended(state, response.first_offset, response.last_offset, response.revision, rows, True)
        new = list(range(response.first_offset, response.last_offset + 1)) if rows else []
        state.change(response.revision, [*before[:first], *new, *before[last + 1 :]])
        self.rewritten(state, response.cancelled_run_id, removed)

    def restore(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        revision = rng.choice(sorted(state.lists))
        request = session_service_pb2.RestoreRevisionRequest(
            session_id=state.id, revision=revision, request_id=self.request_id(scene)
        )
        response = self.call(scene, self.client.session.RestoreRevision, request)
        active, folded = state.lists[revision]
        removed = set(state.active).difference(active)
        # A result that was away while requests went out counts as carried by offset, though none carried it.
        back = set(active).difference(state.active)
        state.maybe_carried |= {o for o in back if state.kind(o) == "tool_result"}
        state.folded = folded
        state.change(response.revision, active)
        require(response.rows_active == len(active), "X2", response)
        self.rewritten(state, response.cancelled_run_id, removed)

    def fork(self, scene: Scene) -> None:
        """X3: a session that is this one up to a revision; both go on."""
        rng, state = self.rng, scene.state
        if len(self.scenes) > MOST_SCENES:
            return
        self.numbers += 1
        request = session_service_pb2.ForkSessionRequest(
            session_id=state.id, fork_session_id=f"s{self.numbers}", request_id=f"f-{self.numbers}"
        )
        revision = state.revision
        draw = rng.random()
        if draw < 0.4:
            revision = request.revision = rng.choice(sorted(state.lists))
        elif draw < 0.6 and state.archive:
            request.offset = rng.choice(sorted(state.archive))
            revision = max(r for r, (top, _) in state.tops.items() if top <= request.offset)
        response = self.call(scene, self.client.session.ForkSession, request)
        made_revision = response.session.revision
        if made_revision not in state.lists and request.HasField("offset"):
            # A crowd made revisions that the model saw only the last of.
            require(made_revision > revision, "X3", f"forked at {made_revision}, before {revision}: {request}")
            gone = session_service_pb2.DeleteSessionRequest(session_id=request.fork_session_id)
            self.call(None, self.client.session.DeleteSession, gone)
            return
        require(made_revision == revision, "X3", f"forked at {made_revision}, asked for {request}, it is {revision}")
        forked = Scene(state.forked(response.session.session_id, revision))
        self.scenes.append(forked)
        self.look.settle(forked.state, thorough=True)
        self.look.settle(state, thorough=False)

    def rewritten(self, state: State, cancelled: str, removed: set[int]) -> None:
        state.sent.clear()
        state.prepared = state.prepared if not cancelled else ""
        asked_gone = [o for o in state.asked if o in removed]
        if cancelled:
            require(
                cancelled == state.open_run and removed, "X2", f"{cancelled} was cancelled, {state.open_run} is open"
            )
            self.closed(state)
        state.asked = [o for o in state.asked if o not in asked_gone]

    def compact(self, scene: Scene) -> None:
        state = scene.state
        request = compaction_service_pb2.CompactSessionRequest(
            session_id=state.id,
            request_id=self.request_id(scene),
            instructions=self.rng.choice(("", "mind the tickets")),
        )
        try:
            steps = list(self.client.compaction.CompactSession(request, timeout=60))
        except grpc.RpcError as error:
            reason = self.look.error(error, "CompactSession")
            allowed = (
                "NOTHING_TO_FOLD",
                "SUMMARIZER_FAILED",
                "REWRITE_REJECTED",
                "CURATOR_UNAVAILABLE",
                "CURATOR_FAILED",
            )
            require(reason in allowed, "P7", f"{reason}: {error.details()}")
            self.counts[reason] += 1
            return
        record = steps[-1].record
        self.look.first_of_two(state, record)
        require(steps[-1].HasField("record") and record.revision_before == state.revision, "L2", steps[-1])
        self.look.folded(state, record, record.revision_after)
        self.wrote(state, policy_pb2.Policy(), record)
        self.counts[
            f"asked for: {compaction_pb2.FoldScope.Name(record.scope)} {compaction_pb2.Trigger.Name(record.trigger)}"
        ] += 1
        state.cools_until, state.fruitless = 0.0, 0

    def update(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        values, model = rng.choice(POLICIES), rng.choice((state.model, rng.choice(list(CATALOG))))
        request = session_service_pb2.UpdateSessionRequest(
            session_id=state.id,
            policy=policy(values),
            model=self.model(model),
            labels={"n": str(self.step)},
            request_id=self.request_id(scene),
        )
        request.update_mask.paths.extend(["policy", "model", "labels"])
        response = self.call(scene, self.client.session.UpdateSession, request, expect=("FIELD_VALIDATION",))
        if response is not None:
            state.policy, state.model = values, model
