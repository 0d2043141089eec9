"""Checkpoints over gRPC: what they fold, trim, mark and tell (K1-K5)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import (
    checkpoint_pb2,
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
    tool_service_pb2,
)

from tests.integration.host import Host
from tests.support.requests import assistant, calls, raw, result, user
from tests.support.server import Client, refused, running_server

ON = policy_pb2.CheckpointsPolicy(enabled=True)
LONG = "The consumer restarts before it has acknowledged what it read. " * 12
FORMATS = [f for f in row_pb2.Format.values() if f != row_pb2.FORMAT_UNSPECIFIED]


class Agent(Host):
    """A host whose agent saves checkpoints."""

    def __init__(self, client: Client, session_id: str, **policy: Any) -> None:
        super().__init__(client, session_id, checkpoints=ON, **policy)

    def save(self, description: str = "done", **fields: Any) -> compaction_service_pb2.SaveCheckpointResponse:
        return self.client.compaction.SaveCheckpoint(
            compaction_service_pb2.SaveCheckpointRequest(session_id=self.id, description=description, **fields)
        )

    def trim(self, count: int, **fields: Any) -> checkpoint_pb2.Checkpoint:
        return self.save(trim_count=count, **fields).checkpoint

    def checkpoints(self, **fields: Any) -> compaction_service_pb2.ListCheckpointsResponse:
        return self.client.compaction.ListCheckpoints(
            compaction_service_pb2.ListCheckpointsRequest(session_id=self.id, **fields)
        )

    def available(self) -> int:
        """How many calls could be trimmed."""
        return int(refused(self.save, trim_count=1 << 30).metadata["available"])

    def tool(self, name: str, arguments: Any, **fields: Any) -> tool_service_pb2.CallAgentToolResponse:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        request = tool_service_pb2.CallAgentToolRequest(session_id=self.id, name=name, arguments_json=text, **fields)
        return self.client.tool.CallAgentTool(request)

    def restore(self, revision: int) -> None:
        self.client.session.RestoreRevision(
            session_service_pb2.RestoreRevisionRequest(session_id=self.id, revision=revision)
        )

    def call_ids(self) -> list[str]:
        """Of the calls in the list, in its order."""
        return [b.tool_call.call_id for r in self.active() for b in r.assistant.content if b.HasField("tool_call")]

    def sound(self) -> None:
        found = self.verify()
        assert found.ok, found.faults


def kinds(rows: Sequence[row_pb2.Row]) -> list[str]:
    return [str(r.WhichOneof("body")) for r in rows]


def told(text: str, *ids: str) -> dict[str, Any]:
    """An answer that says something and makes calls."""
    return {**calls(*ids), "content": text}


def worked(client: Client, name: str, rounds: int = 4, **policy: Any) -> Agent:
    """An open run of some rounds of one call each, the last one not sent yet."""
    policy.setdefault("auto_compact", False)
    agent = Agent(client, name, **policy)
    prepared = agent.prepare("r", user(f"Why does the queue stall? {LONG}"))
    for n in range(rounds):
        outcome = agent.answer(prepared, calls(f"c{n}"), usage={"prompt_tokens": 100 + n, "completion_tokens": 5})
        prepared = agent.prepare("r", result(f"c{n}", f"E{4000 + n} {LONG}"), previous_answer=outcome)
    return agent


def history(client: Client, name: str, turns: int = 4, **policy: Any) -> Agent:
    """Turns of no run, each with a call and an answer."""
    agent = Agent(client, name, auto_compact=False, **policy)
    for n in range(turns):
        agent.append(
            user(f"Question {n}"), told(f"I look at {n}.", f"h{n}"), result(f"h{n}", f"E{n} {LONG}"),
            assistant(f"Cause {n}."),
        )  # fmt: skip
    return agent


class TestCompact:
    def test_k1_a_checkpoint_is_saved_with_the_fold_that_it_runs(self, client: Client, name: str) -> None:
        agent = history(client, name, 8)
        before = agent.get().session.revision
        saved = agent.save("The queue was looked at.")
        assert saved.fold.trigger == compaction_pb2.TRIGGER_CHECKPOINT
        assert saved.skip == compaction_pb2.SKIP_REASON_UNSPECIFIED
        checkpoint = saved.checkpoint
        assert checkpoint.kind == checkpoint_pb2.CHECKPOINT_KIND_COMPACT
        assert checkpoint.description == "The queue was looked at."
        assert checkpoint.fold_id == saved.fold.fold_id
        assert (checkpoint.revision_before, checkpoint.revision_after) == (before, before + 1)
        assert list(checkpoint.discarded) == list(saved.fold.discarded)
        told = [(e.kind, e.fold_id) for e in agent.events()]
        assert told == [
            (event_pb2.EVENT_KIND_COMPACTION_STARTED, checkpoint.fold_id),
            (event_pb2.EVENT_KIND_COMPACTION_COMPLETED, checkpoint.fold_id),
            (event_pb2.EVENT_KIND_CHECKPOINT_SAVED, checkpoint.fold_id),
        ]
        assert agent.events()[-1].checkpoint_saved.checkpoint == checkpoint
        agent.sound()

    def test_k1_the_fold_is_the_ordinary_manual_one(self, client: Client, name: str) -> None:
        """P7: signal and retention are those of CompactSession."""
        agent, plain = history(client, name, 8), history(client, f"{name}-plain", 8)
        by_checkpoint, by_hand = agent.save().fold, plain.compact()
        assert list(by_checkpoint.discarded) == list(by_hand.discarded)
        assert list(by_checkpoint.signals) == list(by_hand.signals)
        assert by_checkpoint.summary_text == by_hand.summary_text

    def test_k1_where_nothing_folds_the_checkpoint_is_saved_and_says_so(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        agent.append(user("one"))
        saved = agent.save("Nothing yet.")
        assert saved.skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD
        assert not saved.HasField("fold")
        assert not saved.checkpoint.fold_id
        assert saved.checkpoint.revision_before == saved.checkpoint.revision_after == agent.get().session.revision
        assert list(agent.checkpoints().checkpoints) == [saved.checkpoint]
        assert agent.events()[-1].checkpoint_saved.checkpoint == saved.checkpoint

    @pytest.mark.parametrize("turns", [1, 8])
    def test_w2_a_repeat_saves_no_second_one(self, client: Client, name: str, turns: int) -> None:
        agent = history(client, name, turns)
        first = agent.save(request_id="k1")
        assert agent.save(request_id="k1") == first
        assert len(agent.checkpoints().checkpoints) == 1
        assert refused(agent.save, "else", request_id="k1").reason == "REQUEST_ID_REUSED"

    def test_w3_a_stale_revision_saves_nothing(self, client: Client, name: str) -> None:
        agent = history(client, name)
        for fields in ({}, {"trim_count": 1}):
            assert refused(agent.save, expected_revision=0, **fields).reason == "REVISION_MISMATCH"
        assert not agent.checkpoints().checkpoints
        agent.trim(1, expected_revision=agent.get().session.revision)


class TestTrim:
    def test_k2_exactly_the_oldest_completed_calls_go_and_what_was_said_stays(self, client: Client, name: str) -> None:
        agent = history(client, name)
        before = agent.active()
        checkpoint = agent.trim(2, description="Looked at 0 and 1.")
        assert agent.call_ids() == ["h2", "h3"]
        after = agent.active()
        assert kinds(after) == ["user", "assistant", "assistant"] * 2 + [
            "user", "assistant", "tool_result", "assistant",
        ] * 2  # fmt: skip
        assert [b.text.text for b in after[1].assistant.content] == ["I look at 0."]
        assert after[1].assistant.derived_from == before[1].offset
        assert checkpoint.kind == checkpoint_pb2.CHECKPOINT_KIND_TRIM
        assert checkpoint.trimmed_calls == 2
        gone = {o for r in checkpoint.discarded for o in range(r.first, r.last + 1)}
        assert gone == {r.offset for r in before} - {r.offset for r in after}
        kept = {r.offset: r for r in after}
        assert all(kept[r.offset] == r for r in before if r.offset in kept)
        agent.sound()

    def test_k2_a_row_that_held_nothing_else_goes_whole(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        agent.append(user("q"), calls("a"), result("a", LONG), calls("b"), result("b", LONG), assistant("done"))
        agent.trim(1)
        assert kinds(agent.active()) == ["user", "assistant", "tool_result", "assistant"]
        assert agent.call_ids() == ["b"]
        agent.sound()

    def test_k2_a_row_that_loses_some_of_its_calls_keeps_the_others(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        agent.append(user("q"), calls("a", "b", "c"), *(result(i, f"{i} {LONG}") for i in "abc"), assistant("done"))
        agent.trim(1)
        agent.trim(1)
        (row,) = [r for r in agent.active() if any(b.HasField("tool_call") for b in r.assistant.content)]
        assert [b.tool_call.call_id for b in row.assistant.content] == ["c"]
        assert row.assistant.derived_from == 2, "the row that made the calls first"
        assert [r.tool_result.call_id for r in agent.active() if r.HasField("tool_result")] == ["c"]
        agent.sound()

    def test_k2_the_reasoning_of_trimmed_calls_goes_with_them(self, client: Client, name: str) -> None:
        def think(text: str) -> row_pb2.ContentBlock:
            return row_pb2.ContentBlock(reasoning=row_pb2.ReasoningBlock(text=text, signature="c2lnbmVk"))

        def call(call_id: str) -> row_pb2.ContentBlock:
            return row_pb2.ContentBlock(
                tool_call=row_pb2.ToolCallBlock(call_id=call_id, name="read", arguments_json="{}")
            )

        said = row_pb2.ContentBlock(text=row_pb2.TextBlock(text="I look."))
        agent = Agent(client, name)
        agent.append(user("q"))
        agent.rows(
            row_pb2.Row(assistant=row_pb2.AssistantRow(content=[think("1"), said, call("a"), think("2"), call("b")]))
        )
        agent.append(result("a", LONG), result("b", LONG), assistant("done"))
        agent.trim(1)
        row = agent.active()[1].assistant
        assert [b.WhichOneof("kind") for b in row.content] == ["text", "reasoning", "tool_call"]
        assert row.content[1].reasoning.text == "2"
        agent.sound()

    def test_k2_more_than_there_are_is_refused_with_how_many_there_are(self, client: Client, name: str) -> None:
        agent = history(client, name, 3)
        refusal = refused(agent.trim, 4)
        assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "TRIM_COUNT_TOO_LARGE")
        assert (refusal.metadata["count"], refusal.metadata["available"]) == ("4", "3")
        assert not agent.checkpoints().checkpoints
        agent.trim(3)
        assert agent.available() == 0

    def test_k2_the_newest_round_and_what_was_not_carried_do_not_count(self, client: Client, name: str) -> None:
        agent = worked(client, name, 4)
        assert agent.available() == 3
        agent.trim(3)
        assert agent.call_ids() == ["c3"]
        agent.sound()

    def test_k2_calls_without_a_result_do_not_count(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        agent.append(user("q"), calls("a", "b"), result("b", LONG), assistant("meanwhile"))
        assert agent.available() == 1
        agent.trim(1)
        assert agent.call_ids() == ["a"]
        late = agent.append(result("a", "at last"))
        assert not late.warnings
        assert agent.active()[-1].tool_result.call_offset == 2
        assert refused(agent.append, result("b", "again")).reason == "DUPLICATE_TOOL_RESULT"
        agent.sound()

    def test_k2_pinned_units_do_not_count(self, client: Client, name: str) -> None:
        agent = history(client, name, 3)
        pinned = next(r.offset for r in agent.active() if r.HasField("tool_result"))
        agent.client.session.PinRows(
            session_service_pb2.PinRowsRequest(session_id=agent.id, offsets=[pinned], pinned=True)
        )
        assert agent.available() == 2
        agent.trim(1)
        assert agent.call_ids() == ["h0", "h2"]

    def test_k2_a_late_result_goes_with_its_call_unless_the_request_asks_of_it(self, client: Client, name: str) -> None:
        agent = Agent(client, name, auto_compact=False)
        prepared = agent.prepare("r1", user("start"))
        agent.prepare("r1", previous_answer=agent.answer(prepared, calls("a")))
        agent.client.compaction.FinishRun(
            compaction_service_pb2.FinishRunRequest(
                session_id=agent.id, run_id="r1", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
        )
        prepared = agent.prepare("r2", user("go on"), result("a", f"late {LONG}"))
        agent.record("r2", agent.answer(prepared, calls("b")))
        assert agent.available() == 0, "the late result is part of the open request"
        prepared = agent.prepare("r2", result("b", "ok"))
        agent.record("r2", agent.answer(prepared, assistant("done"), finish=compaction_pb2.RUN_OUTCOME_COMPLETED))
        assert agent.available() == 2
        agent.trim(1)
        assert "late" not in " ".join(json.dumps(m) for m in agent.rendered())
        assert agent.call_ids() == ["b"]
        agent.sound()

    def test_k2_memory_and_archive_hold_the_originals(self, client: Client, name: str) -> None:
        """V8, M2."""
        agent = history(client, name)
        assert not agent.search("E1").hits
        original = next(r for r in agent.active() if r.HasField("tool_result") and "E1 " in str(r))
        agent.trim(2)
        hits = agent.search("E1").hits
        assert hits[0].offset == original.offset
        archived = {r.offset: r for r in agent.archive()}
        assert archived[original.offset].tool_result == original.tool_result
        derived = {r.offset for r in agent.active() if r.assistant.derived_from}
        assert derived
        assert derived.isdisjoint(h.offset for h in agent.search("look", limit=20).hits)

    def test_k2_a_later_fold_neither_doubles_nor_drops_what_memory_holds(self, client: Client, name: str) -> None:
        agent = history(client, name, 8)
        agent.trim(3)
        held = {h.offset for h in agent.search("look at", limit=20).hits}
        agent.compact()
        found = [(h.offset, h.byte_range.start) for h in agent.search("look at", limit=20).hits]
        assert len(found) == len(set(found))
        assert held <= {offset for offset, _ in found}
        agent.sound()

    def test_m2_a_restore_takes_a_trim_back_and_another_puts_it_in_place(self, client: Client, name: str) -> None:
        agent = history(client, name)
        before = agent.offsets()
        at = agent.get().session.revision
        agent.trim(2)
        trimmed = agent.offsets()
        agent.restore(at)
        assert agent.offsets() == before
        assert not agent.search("E1").hits
        assert agent.available() == 4
        agent.sound()
        agent.restore(at + 1)
        assert agent.offsets() == trimmed
        assert agent.search("E1").hits
        assert agent.available() == 2
        agent.sound()

    def test_x1_edits_see_the_calls_of_derived_rows(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        agent.append(user("q"), calls("a", "b"), result("a", LONG), result("b", LONG), assistant("done"))
        agent.trim(1)
        derived = next(r.offset for r in agent.active() if r.assistant.derived_from)
        answered = next(r.offset for r in agent.active() if r.HasField("tool_result"))

        def edit(first: int, last: int) -> Any:
            request = session_service_pb2.EditRowsRequest(session_id=agent.id, first_offset=first, last_offset=last)
            return agent.client.session.EditRows(request)

        assert refused(edit, derived, derived).reason == "EDIT_SPLITS_UNIT"
        edit(derived, answered)
        removed = refused(agent.append, result("b", "again"))
        assert removed.reason == "UNKNOWN_TOOL_CALL", "the edit removed it"
        assert refused(agent.append, result("a", "again")).reason == "DUPLICATE_TOOL_RESULT"
        agent.sound()

    @pytest.mark.parametrize("back", [False, True])
    def test_x3_a_fork_of_either_side_of_a_trim_is_whole(self, client: Client, name: str, back: bool) -> None:
        agent = history(client, name)
        at = agent.get().session.revision
        before = agent.offsets()
        agent.trim(2)
        after = agent.offsets()
        agent.append(user("more"))
        fork = f"{name}-fork"
        agent.client.session.ForkSession(
            session_service_pb2.ForkSessionRequest(
                session_id=agent.id, fork_session_id=fork, revision=at + (0 if back else 1)
            )
        )
        other = Agent.__new__(Agent)
        other.client, other.id = client, fork
        assert other.offsets() == (before if back else after)
        assert len(other.checkpoints().checkpoints) == (0 if back else 1)
        assert bool(other.search("E1").hits) is not back
        other.sound()
        assert refused(other.append, result("h0", "again")).reason == "DUPLICATE_TOOL_RESULT"
        assert other.available() == (4 if back else 2)
        other.trim(1)
        other.sound()
        agent.sound()

    def test_a_trim_survives_export_and_import(self, client: Client, name: str) -> None:
        agent = history(client, name)
        agent.trim(2, description="kept")
        chunks = list(client.session.ExportSession(session_service_pb2.ExportSessionRequest(session_id=agent.id)))
        copy = f"{name}-copy"
        other = Agent.__new__(Agent)
        other.client, other.id = client, copy
        imported(client, copy, chunks)
        assert other.offsets() == agent.offsets()
        assert list(other.checkpoints().checkpoints) == list(agent.checkpoints().checkpoints)
        other.sound()
        other.trim(1)
        other.sound()

    def test_f3_trimmed_calls_of_the_open_run_enter_its_ledger(self, client: Client, name: str) -> None:
        agent = worked(client, name, 8)
        agent.trim(2)
        record = agent.compact()
        assert record.scope in (compaction_pb2.FOLD_SCOPE_STAGE_2, compaction_pb2.FOLD_SCOPE_COMBINED)
        summary = next(r for r in agent.active() if r.HasField("compaction_summary"))
        sent = "\n".join(str(m["content"]) for m in agent.rendered())
        assert "read({})" in sent, summary
        assert "×7" in sent, sent
        agent.sound()

    def test_w1_a_replica_follows_by_splices(self, client: Client, name: str) -> None:
        agent = worked(client, name, 4)
        agent.trim(2)
        agent.prepare("r", user("go on"))
        assert agent.list == agent.offsets()

    def test_revisions_name_the_checkpoint_of_a_trim(self, client: Client, name: str) -> None:
        agent = history(client, name)
        checkpoint = agent.trim(1)
        request = session_service_pb2.ListRevisionsRequest(session_id=agent.id)
        newest = client.session.ListRevisions(request).revisions[0]
        assert newest.kind == session_pb2.REVISION_KIND_TRIM
        assert newest.checkpoint_id == checkpoint.checkpoint_id

    def test_w2_a_repeat_trims_once(self, client: Client, name: str) -> None:
        agent = history(client, name)
        assert agent.trim(1, request_id="t") == agent.trim(1, request_id="t")
        assert agent.available() == 3

    def test_4_3_a_trim_drops_count_and_anchor(self, client: Client, name: str) -> None:
        agent = worked(client, name, 4)
        assert agent.get().cadence.count_tokens
        agent.trim(1)
        state = agent.get().cadence
        assert not state.HasField("count_tokens")
        assert not state.HasField("anchor_tokens")


def imported(client: Client, session_id: str, chunks: Sequence[session_service_pb2.ExportSessionResponse]) -> None:
    parts = [session_service_pb2.ImportSessionRequest(chunk={"sequence": c.sequence, "jsonl": c.jsonl}) for c in chunks]
    head = session_service_pb2.ImportSessionRequest(header={"session_id": session_id})
    client.session.ImportSession(iter([head, *parts]))


class TestLists:
    def test_k3_checkpoints_are_listed_newest_first_page_by_page(self, client: Client, name: str) -> None:
        agent = history(client, name)
        saved = [agent.trim(1, description=f"part {n}") for n in range(3)]
        first = agent.checkpoints(page_size=2)
        rest = agent.checkpoints(page_size=2, page_token=first.next_page_token)
        assert [*first.checkpoints, *rest.checkpoints] == saved[::-1]
        assert not rest.next_page_token
        read = client.compaction.GetCheckpoint(
            compaction_service_pb2.GetCheckpointRequest(session_id=agent.id, checkpoint_id=saved[1].checkpoint_id)
        )
        assert read.checkpoint == saved[1]

    def test_k3_another_sessions_checkpoint_is_not_found(self, client: Client, name: str) -> None:
        one, two = history(client, name), history(client, f"{name}-two")
        saved = one.trim(1)
        request = compaction_service_pb2.GetCheckpointRequest(session_id=two.id, checkpoint_id=saved.checkpoint_id)
        refusal = refused(client.compaction.GetCheckpoint, request)
        assert (refusal.reason, refusal.metadata["field"]) == ("FIELD_VALIDATION", "checkpoint_id")

    def test_k3_they_stay_readable_once_they_are_off(self, client: Client, name: str) -> None:
        agent = history(client, name)
        saved = agent.trim(1)
        policy = policy_pb2.Policy(checkpoints=policy_pb2.CheckpointsPolicy(enabled=False))
        request = session_service_pb2.UpdateSessionRequest(session_id=agent.id, policy=policy)
        request.update_mask.paths.append("policy")
        client.session.UpdateSession(request)
        assert list(agent.checkpoints().checkpoints) == [saved]
        assert refused(agent.save).reason == "CHECKPOINTS_DISABLED"

    def test_a_session_that_its_host_keeps_has_none(self, client: Client, name: str) -> None:
        client.session.CreateSession(
            session_service_pb2.CreateSessionRequest(
                session_id=name, ownership=session_pb2.OWNERSHIP_HOST_OWNED, policy=policy_pb2.Policy(checkpoints=ON)
            )
        )
        other = Agent.__new__(Agent)
        other.client, other.id = client, name
        assert refused(other.save).reason == "FIELD_VALIDATION"
        listed = client.tool.ListAgentTools(
            tool_service_pb2.ListAgentToolsRequest(session_id=name, format=row_pb2.FORMAT_OPENAI_CHAT)
        )
        assert len(listed.tools) == 2


class TestMarks:
    def marks(self, agent: Agent) -> list[str]:
        return [r.tool_result.usage_mark for r in agent.active() if r.HasField("tool_result")]

    def test_k4_a_result_carries_the_count_of_the_request_that_made_its_call(self, client: Client, name: str) -> None:
        agent = worked(client, name, 3)
        assert self.marks(agent) == ["100", "101", "102"]

    def test_k4_it_is_unavailable_without_a_report(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        prepared = agent.prepare("r", user("q"))
        agent.prepare("r", result("a", "x"), previous_answer=agent.answer(prepared, calls("a")))
        agent.append(calls("b"), result("b", "y"))
        assert self.marks(agent) == ["unavailable", "unavailable"]

    def test_k4_usage_that_comes_before_the_result_counts_and_later_changes_nothing(
        self, client: Client, name: str
    ) -> None:
        """L1. Of two reports of one request the first holds, so that all results of its calls say the same."""
        agent = Agent(client, name)
        prepared = agent.prepare("r", user("q"))
        agent.record("r", agent.answer(prepared, calls("a", "b", "c")))
        agent.append(result("a", "early"), run_id="r")
        agent.record("r", agent.answer(prepared, usage={"prompt_tokens": 77, "completion_tokens": 1}))
        agent.append(result("b", "late"), run_id="r")
        agent.record("r", agent.answer(prepared, usage={"prompt_tokens": 88, "completion_tokens": 1}))
        agent.append(result("c", "later"), run_id="r")
        assert self.marks(agent) == ["unavailable", "77", "77"]

    def test_k4_a_sum_over_several_calls_is_no_report(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        prepared = agent.prepare("r", user("q"))
        made = agent.answer(prepared, calls("a"))
        made.answer.usage.input_tokens = 90
        made.answer.usage.aggregated = True
        agent.prepare("r", result("a", "x"), previous_answer=made)
        assert self.marks(agent) == ["unavailable"]

    def test_k4_an_edit_keeps_the_marks_of_what_it_restates(self, client: Client, name: str) -> None:
        """Of a call that is new nobody has reported."""
        agent = worked(client, name)
        before = self.marks(agent)
        assert before[:2] == ["100", "101"]
        first, last = agent.offsets()[1], agent.offsets()[4]
        edit = session_service_pb2.EditRowsRequest(session_id=name, first_offset=first, last_offset=last)
        edit.replacement.CopyFrom(
            raw(
                calls("c0"), result("c0", "short"), calls("c1"), result("c1", "shorter"), calls("n"), result("n", "new")
            )
        )
        client.session.EditRows(edit)
        assert self.marks(agent) == [*before[:2], "unavailable", *before[2:]]
        agent.sound()

    def test_k4_equal_ids_keep_theirs_in_order(self, client: Client, name: str) -> None:
        """R3: recordings reuse ids; a result more than there was has no report."""
        agent = Agent(client, name, auto_compact=False)
        prepared = agent.prepare("r", user("Look."))
        for n in range(2):
            outcome = agent.answer(prepared, calls("c"), usage={"prompt_tokens": 100 + n, "completion_tokens": 5})
            prepared = agent.prepare("r", result("c", f"E{n}"), previous_answer=outcome)
        offsets = agent.offsets()
        edit = session_service_pb2.EditRowsRequest(session_id=name, first_offset=offsets[1], last_offset=offsets[-1])
        edit.replacement.CopyFrom(raw(*(m for n in range(3) for m in (calls("c"), result("c", f"F{n}")))))
        client.session.EditRows(edit)
        assert self.marks(agent) == ["100", "101", "unavailable"]

    def test_k4_there_are_none_while_checkpoints_are_off(self, client: Client, name: str) -> None:
        host = Host(client, name)
        prepared = host.prepare("r", user("q"))
        outcome = host.answer(prepared, calls("a"), usage={"prompt_tokens": 100, "completion_tokens": 1})
        host.prepare("r", result("a", "x"), previous_answer=outcome)
        assert [r.tool_result.usage_mark for r in host.active() if r.HasField("tool_result")] == [""]
        assert "input tokens" not in json.dumps(host.rendered())

    @pytest.mark.parametrize("fmt", FORMATS)
    def test_k4_every_format_renders_it_after_the_text(
        self, client: Client, name: str, fmt: row_pb2.Format.ValueType
    ) -> None:
        agent = worked(client, name, 1)
        text = json.dumps(agent.rendered(fmt))
        mark = "100" if fmt == row_pb2.FORMAT_CANONICAL else "[input tokens: 100, one request behind]"
        assert 0 < text.index("E4000") < text.rindex(mark)

    def test_4_5_a_mark_counts_as_it_is_sent(self, client: Client, name: str) -> None:
        agent, plain = worked(client, name, 1), Host(client, f"{name}-plain", auto_compact=False)
        prepared = plain.prepare("r", user(f"Why does the queue stall? {LONG}"))
        outcome = plain.answer(prepared, calls("c0"), usage={"prompt_tokens": 100, "completion_tokens": 5})
        plain.prepare("r", result("c0", f"E4000 {LONG}"), previous_answer=outcome)
        more = agent.get().totals.tokens_active - plain.get().totals.tokens_active
        assert 8 <= more <= 16


class TestTools:
    def test_k5_both_are_offered_where_checkpoints_are_on(self, client: Client, name: str) -> None:
        agent = history(client, name)
        request = tool_service_pb2.ListAgentToolsRequest(session_id=name, format=row_pb2.FORMAT_OPENAI_CHAT)
        offered = client.tool.ListAgentTools(request).tools
        assert [t.name for t in offered] == [
            "memory_search", "read_result", "checkpoint_and_compact", "checkpoint_and_trim",
        ]  # fmt: skip
        assert agent.tool("checkpoint_and_trim", {"count": 2, "description": "seen"}).text.count("2 tool calls") == 1
        assert agent.available() == 2
        (saved,) = agent.checkpoints().checkpoints
        assert (saved.description, saved.trimmed_calls) == ("seen", 2)

    def test_k5_compacting_tells_what_was_done(self, client: Client, name: str) -> None:
        agent = history(client, name, 8)
        answer = agent.tool("checkpoint_and_compact", {"description": "half of it"})
        assert not answer.is_error
        assert "earlier rows were summarized" in answer.text
        assert [c.description for c in agent.checkpoints().checkpoints] == ["half of it"]

    def test_k1_the_model_is_told_where_nothing_was_to_fold(self, client: Client, name: str) -> None:
        agent = Agent(client, name)
        agent.append(user("q"))
        answer = agent.tool("checkpoint_and_compact", {"description": "early"})
        assert not answer.is_error
        assert "nothing was summarized" in answer.text
        assert [c.description for c in agent.checkpoints().checkpoints] == ["early"]

    def test_k2_the_model_learns_how_many_calls_there_are(self, client: Client, name: str) -> None:
        agent = history(client, name, 3)
        answer = agent.tool("checkpoint_and_trim", {"count": 9, "description": "x"})
        assert answer.is_error
        assert "9 completed tool calls were to be trimmed, there are 3" in answer.text

    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            ("checkpoint_and_trim", {"description": "x"}),
            ("checkpoint_and_trim", {"count": 0, "description": "x"}),
            ("checkpoint_and_trim", {"count": -1, "description": "x"}),
            ("checkpoint_and_trim", {"count": 1 << 40, "description": "x"}),
            ("checkpoint_and_trim", {"count": 1.5, "description": "x"}),
            ("checkpoint_and_trim", {"count": [1], "description": "x"}),
            ("checkpoint_and_trim", {"count": 1, "description": ""}),
            ("checkpoint_and_trim", {"count": 1, "description": 5}),
            ("checkpoint_and_trim", {"count": 1, "description": "x", "session_id": "other"}),
            ("checkpoint_and_compact", {}),
            ("checkpoint_and_compact", {"description": None}),
            ("checkpoint_and_compact", {"description": "é" * 8_193}),
            ("checkpoint_and_compact", []),
            ("checkpoint_and_compact", "[" * 5_000),
            ("checkpoint_and_compact", '{"description": "\\ud800"}'),
        ],
    )
    def test_k5_wrong_arguments_are_told_and_change_nothing(
        self, client: Client, name: str, tool: str, arguments: Any
    ) -> None:
        agent = history(client, name, 2)
        answer = agent.tool(tool, arguments)
        assert answer.is_error, answer.text
        assert not agent.checkpoints().checkpoints
        assert agent.available() == 2

    @pytest.mark.parametrize("tool", ["checkpoint_and_compact", "checkpoint_and_trim"])
    def test_w2_a_repeat_of_a_tool_call_saves_once(self, client: Client, name: str, tool: str) -> None:
        agent = history(client, name, 8)
        arguments = {"description": "x"} | ({"count": 1} if tool.endswith("trim") else {})
        first = agent.tool(tool, arguments, request_id="q")
        assert agent.tool(tool, arguments, request_id="q") == first
        assert len(agent.checkpoints().checkpoints) == 1


def test_v6_a_trim_that_does_not_hold_is_told_and_leaves_the_list(tmp_path: Path) -> None:
    """§7, §13: one start, one end that names the check. The sizes that the store has of its rows were damaged."""
    with running_server(tmp_path) as client:
        agent = history(client, "s")
        agent.append(
            user("two at once"), told("Both.", "x", "y"), result("x", "1"), result("y", "2"), assistant("done")
        )
        agent.append(user("and now?"), assistant("nothing"))
    for path in (tmp_path / "data").glob("*.db"):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE archive_row SET tokens = 0")
    with running_server(tmp_path) as client:
        agent.client = client
        before, revision = agent.offsets(), agent.get().session.revision
        refusal = refused(agent.save, trim_count=5)
        assert (refusal.reason, refusal.metadata["checks"]) == ("REWRITE_REJECTED", "V6")
        assert (agent.offsets(), agent.get().session.revision) == (before, revision)
        assert not agent.checkpoints().checkpoints
        started, failed = agent.events()
        assert [event_pb2.EventKind.Name(e.kind) for e in (started, failed)] == [
            "EVENT_KIND_COMPACTION_STARTED", "EVENT_KIND_COMPACTION_FAILED",
        ]  # fmt: skip
        assert started.fold_id == failed.fold_id != ""
        assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_REWRITE_REJECTED
        assert [c.rule for c in failed.compaction_failed.checks] == ["V6"]
