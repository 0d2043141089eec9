"""Checkpoints that an agent saves: folds it asks for, calls it trims, and what stands for them afterwards (K1-K3)."""

from __future__ import annotations

import json

import grpc
from foldline.v1 import (
    checkpoint_pb2,
    compaction_pb2,
    compaction_service_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    tool_service_pb2,
)

from tests.model.host import Scene
from tests.model.host_lists import MANUAL_REFUSALS
from tests.model.state import Known, State, require
from tests.model.writers import Writers
from tests.support.requests import pages
from tests.support.server import refusal_of


def completed(state: State) -> list[tuple[int, str, list[int]]]:
    """(row, call id, results in the list) of active calls that have a final result there, in the list's order."""
    results: dict[tuple[int, str], list[int]] = {}
    final: set[tuple[int, str]] = set()
    for offset in state.active:
        body = state.archive[offset].row.tool_result
        if state.kind(offset) == "tool_result" and body.call_offset:
            results.setdefault((body.call_offset, body.call_id), []).append(offset)
            final |= set() if body.interim else {(body.call_offset, body.call_id)}
    return [
        (offset, call_id, results[state.archive[offset].origin, call_id])
        for offset in state.active
        if state.kind(offset) == "assistant"
        for call_id in state.archive[offset].calls
        if (state.archive[offset].origin, call_id) in final
    ]


class Checkpoints(Writers):
    """The agent's own rewrites of its list."""

    def checkpoint(self, scene: Scene) -> None:
        if self.rng.random() < 0.4:
            self.compacted(scene)
        else:
            self.trimmed(scene)
        self.listed_checkpoints(scene)
        self.agent_trims(scene)

    def compacted(self, scene: Scene) -> None:
        """K1: the ordinary manual fold, under the agent's description; saved alone where nothing folds."""
        state = scene.state
        request = compaction_service_pb2.SaveCheckpointRequest(
            session_id=state.id, description="as far as the parser", request_id=self.request_id(scene)
        )
        if not state.checkpointed:
            refused = self.call(scene, self.client.compaction.SaveCheckpoint, request, expect=("CHECKPOINTS_DISABLED",))
            require(refused is None, "K1", "a checkpoint was saved without the policy's leave")
            return
        saved = self.tried(self.client.compaction.SaveCheckpoint, request, MANUAL_REFUSALS)
        if saved is None:
            return
        require(saved.checkpoint.kind == checkpoint_pb2.CHECKPOINT_KIND_COMPACT, "K1", saved)
        state.checkpoints.add(saved.checkpoint.checkpoint_id)
        self.counts["checkpoints"] += 1
        if saved.HasField("fold"):
            self.look.first_of_two(state, saved.fold)
            ahead = saved.fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
            require(ahead or saved.fold.trigger == compaction_pb2.TRIGGER_CHECKPOINT, "K1", saved.fold)
            require(saved.checkpoint.fold_id == saved.fold.fold_id, "K3", saved)
            self.look.folded(state, saved.fold, saved.fold.revision_after)
            self.wrote(state, policy_pb2.Policy(), saved.fold)
            state.cools_until, state.fruitless = 0.0, 0

    def trimmed(self, scene: Scene) -> None:
        """K2: exactly as many of the oldest calls, by the host or by the agent itself."""
        rng, state = self.rng, scene.state
        there = completed(state)
        count = rng.choice((1, 1, 2, 3, len(there) + 1))
        request = compaction_service_pb2.SaveCheckpointRequest(
            session_id=state.id, description="read what was there", trim_count=count, request_id=self.request_id(scene)
        )
        if not state.checkpointed:
            refused = self.call(scene, self.client.compaction.SaveCheckpoint, request, expect=("CHECKPOINTS_DISABLED",))
            require(refused is None, "K2", "a trim without the policy's leave")
            return
        before = self.look.print_of(state)
        try:
            saved = self.client.compaction.SaveCheckpoint(request, timeout=60).checkpoint
        except grpc.RpcError as error:
            refusal = refusal_of(error)
            require(refusal.reason == "TRIM_COUNT_TOO_LARGE", "K2", refusal)
            require(self.look.print_of(state) == before, "K2", "a refused trim changed the session")
            available = int(refusal.metadata["available"])
            require(available < count and available <= len(there), "K2", f"{refusal}, there are {len(there)}")
            if not available:
                return
            request.trim_count, request.request_id = available, ""
            saved = self.client.compaction.SaveCheckpoint(request, timeout=60).checkpoint
        self.trim_is_right(scene, saved, request.trim_count)

    def trim_is_right(self, scene: Scene, saved: checkpoint_pb2.Checkpoint, count: int) -> None:
        """Everything that was said stays, as it was; ``count`` calls go with their results, the oldest that may."""
        state = scene.state
        before, there = list(state.active), completed(state)
        require(saved.kind == checkpoint_pb2.CHECKPOINT_KIND_TRIM and saved.trimmed_calls == count, "K2", saved)
        require(saved.revision_before == state.revision, "K3", f"{saved} at {state.revision}")
        rows = self.look.listed(state, session_pb2.ROW_VIEW_ACTIVE, saved.revision_after)
        fresh = [r for r in rows if r.offset not in state.archive]
        derived = {r.assistant.derived_from: r for r in fresh}
        require(all(r.HasField("assistant") for r in fresh) and len(derived) == len(fresh), "K2", fresh)
        self.look.learn(state, fresh)
        after = [r.offset for r in rows]
        gone = [o for o in before if o not in after]
        taken = self.taken(state, gone, derived)
        require(len(taken) == count, "K2", f"{len(taken)} calls are gone, {count} were to go: {taken}")
        stand = {o: derived[known.origin].offset for o in gone if (known := state.archive[o]).origin in derived}
        places = [stand.get(o, 0) if o in gone else o for o in before]
        require(after == [o for o in places if o], "K2", f"{after} is not {places}")
        self.oldest_went(state, there, taken)
        held = [o for o in gone if o in state.pinned or o in state.asked or o in self.uncarried(state)]
        require(not held, "K2", f"rows {held} were trimmed")
        state.folded = state.folded | set(gone)
        state.change(saved.revision_after, after)
        state.sent.clear()
        state.checkpoints.add(saved.checkpoint_id)
        self.counts["trims"] += 1

    def taken(self, state: State, gone: list[int], derived: dict[int, row_pb2.Row]) -> set[tuple[int, str]]:
        """(identity, id) of calls that are gone; no word of what the model said may be."""
        taken: set[tuple[int, str]] = set()
        for offset in gone:
            known = state.archive[offset]
            if known.kind == "tool_result":
                continue
            require(known.kind == "assistant", "K2", f"row {offset}, a {known.kind}, is gone")
            left = Known(b"", derived[known.origin]) if known.origin in derived else None
            said = _said(known.row)
            require(said == (_said(left.row) if left else []), "K2", f"row {offset} said {said}, its rest {left}")
            calls = left.calls if left else []
            require([c for c in known.calls if c in set(calls)] == calls, "K2", f"{calls} of {known.calls}")
            taken |= {(known.origin, c) for c in known.calls if c not in set(calls)}
            if left:
                kept = [b for b in left.row.assistant.content if b.HasField("reasoning")]
                require(not kept, "K2", f"reasoning of row {offset} stays without its calls")
        results = {
            (r.call_offset, r.call_id) for o in gone if (r := state.archive[o].row.tool_result) and r.call_offset
        }
        require(results <= taken, "K2", f"results of {results - taken} are gone, their calls are not")
        return taken

    @staticmethod
    def uncarried(state: State) -> set[int]:
        sure = {o for o in state.active if state.kind(o) == "tool_result"} - state.carried - state.maybe_carried
        imported = max(
            (o for o in state.active if state.kind(o) == "assistant" and not state.archive[o].row.run_id), default=0
        )
        return {o for o in sure if state.archive[o].row.run_id or o > imported}

    def oldest_went(self, state: State, there: list[tuple[int, str, list[int]]], taken: set[tuple[int, str]]) -> None:
        """A completed call that stays is younger than all that went, or held by a pin, a run, or a result unsent."""
        names = [(state.archive[row].origin, call_id) for row, call_id, _ in there]
        last = max(i for i, name in enumerate(names) if name in taken)
        for (row, call_id, results), name in list(zip(there, names, strict=True))[:last]:
            if name in taken:
                continue
            unit = {row, *(o for r, _, found in there if r == row for o in found)}
            held = unit & state.pinned or unit - state.carried or state.archive[row].paused
            late = any(state.archive[o].row.tool_result.late for o in results)
            require(held or late, "K2", f"call {call_id} of row {row} is older than what was trimmed: {taken}")

    def listed_checkpoints(self, scene: Scene) -> None:
        """K3: newest first, each once, each to be read by its id."""
        rng, state = self.rng, scene.state
        request = compaction_service_pb2.ListCheckpointsRequest(session_id=state.id, page_size=rng.choice((0, 1, 500)))
        found = [c for page in pages(self.client.compaction.ListCheckpoints, request) for c in page.checkpoints]
        ids = [c.checkpoint_id for c in found]
        require(len(set(ids)) == len(ids), "K3", f"doubled: {ids}")
        require(state.checkpoints <= set(ids), "K3", f"{state.checkpoints - set(ids)} are lost")
        times = [(c.create_time.ToNanoseconds()) for c in found]
        require(times == sorted(times, reverse=True), "K3", f"out of order: {found}")
        for one in found[:1]:
            get = compaction_service_pb2.GetCheckpointRequest(session_id=state.id, checkpoint_id=one.checkpoint_id)
            require(self.call(scene, self.client.compaction.GetCheckpoint, get).checkpoint == one, "K3", one)
        get = compaction_service_pb2.GetCheckpointRequest(session_id=state.id, checkpoint_id="c-none")
        refused = self.call(scene, self.client.compaction.GetCheckpoint, get, expect=("FIELD_VALIDATION",))
        require(refused is None, "K3", "a checkpoint that never was")

    def agent_trims(self, scene: Scene) -> None:
        """K5: the same by the agent's own tool, whose mistakes are answers."""
        state = scene.state
        count = self.rng.choice((1, 1, len(state.archive) + 1))
        request = tool_service_pb2.CallAgentToolRequest(
            session_id=state.id, name="checkpoint_and_trim", request_id=self.request_id(scene),
            arguments_json=json.dumps({"count": count, "description": "read"}),
        )  # fmt: skip
        if not state.checkpointed:
            answer = self.call(scene, self.client.tool.CallAgentTool, request, expect=("CHECKPOINTS_DISABLED",))
            require(answer is None, "K5", answer)
            return
        answer = self.client.tool.CallAgentTool(request)
        if answer.is_error:
            return
        require(count <= len(completed(state)), "K5", f"{count} calls were trimmed of {len(completed(state))}")
        newest = compaction_service_pb2.ListCheckpointsRequest(session_id=state.id, page_size=1)
        self.trim_is_right(scene, self.client.compaction.ListCheckpoints(newest).checkpoints[0], count)
        if request.request_id:
            require(self.client.tool.CallAgentTool(request) == answer, "W2", f"a repeat of {answer}")


def _said(row: row_pb2.Row) -> list[bytes]:
    """Blocks of an assistant row but calls and reasoning."""
    return [
        b.SerializeToString(deterministic=True)
        for b in row.assistant.content
        if not b.HasField("tool_call") and not b.HasField("reasoning")
    ]
