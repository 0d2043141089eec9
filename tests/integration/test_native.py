"""Compaction by the provider itself, through the whole server, against providers at the wire (N1-N4)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from foldline.domain.folding import Compacted, CompactorTask
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
    warning_pb2,
)
from google.protobuf.duration_pb2 import Duration

from tests.integration.hosted import HostedHost
from tests.integration.hosted import assistant as hosted_assistant
from tests.integration.hosted import user as hosted_user
from tests.integration.test_extremes import exported, imported
from tests.support.curators import Curator, Task
from tests.support.native import (
    CLAUDE,
    LINE,
    LOCAL,
    NATIVE,
    OPENAI,
    WAYS,
    NativeHost,
    World,
    settings,
    source_of,
    world_of,
)
from tests.support.providers import Does, FakeProvider
from tests.support.requests import assistant, calls, raw, result, user
from tests.support.server import refused, running_server, until

Prepared = compaction_service_pb2.PrepareRequestResponse
COMPLETED = compaction_pb2.RUN_OUTCOME_COMPLETED


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of(tmp_path_factory.mktemp("native")) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fresh()
    world.now += 8 * 86_400  # What was learned of a capability is learned anew.


def codes(prepared: Prepared) -> list[str]:
    return [warning_pb2.WarningCode.Name(w.code).removeprefix("WARNING_CODE_") for w in prepared.warnings]


@pytest.mark.parametrize("way", WAYS)
def test_n2_an_item_is_kept_byte_for_byte_and_starts_the_next_request(world: World, way: str) -> None:
    host = NativeHost(world.client, way)
    host.append({"role": "system", "content": "You are careful."})
    host.ready()
    record = host.fold()
    assert source_of(record) == "NATIVE"
    assert record.model == host.model
    assert host.kinds()[:2] == ["system", "provider_compaction"]
    prepared = host.ask("r1", user("go on"))
    sent = json.loads(prepared.rendered_json)
    item = host.item()
    if way == "openai":
        asked = world.compactions[0].body
        users = [i for i in asked["input"] if i["role"] == "user"]
        output = json.loads(item.item_json)
        assert output[:-1] == users, "all user messages, unpruned"
        assert output[-1]["type"] == "compaction"
        assert sent["input"][: len(output)] == output
        assert (item.beta, dict(prepared.request_headers)) == ("", {})
    else:
        block = json.loads(item.item_json)
        assert sent["messages"][0] == {"role": "assistant", "content": [block]}
        assert sent["messages"][1]["role"] == "user"
        assert dict(prepared.request_headers) == {"anthropic-beta": item.beta}
        assert ("signature" in block) == (way == "claude")
        assert ("context_management" in sent) == (way == "edited")
    assert (item.model, item.fold_id) == (host.model, record.fold_id)
    assert host.sound()
    assert host.ended_once()


@pytest.mark.parametrize("way", WAYS)
def test_n2_events_and_pages_show_a_placeholder(world: World, way: str) -> None:
    host = NativeHost(world.client, way).ready()
    record = host.fold()
    shown = f"[opaque compaction item of {way}]"
    assert record.summary_text == shown
    (ended,) = host.events_of("COMPACTION_COMPLETED")
    assert ended.compaction_completed.record.summary_text == shown
    (row,) = [r for r in host.active() if r.HasField("provider_compaction")]
    assert json.loads(row.provider_compaction.item_json) == shown
    ranged = row_pb2.ByteRange(start=0, end=len(shown))
    read = world.client.session.ReadRow(
        session_service_pb2.ReadRowRequest(session_id=host.id, offset=row.offset, range=ranged)
    )
    assert read.text == shown
    assert not host.search("opaque compaction item").hits, "an item is never indexed (§2)"


@pytest.mark.parametrize("way", WAYS)
def test_xi8_the_call_has_the_live_requests_system_prompt_and_tools(world: World, way: str) -> None:
    host = NativeHost(world.client, way)
    host.append({"role": "system", "content": "You are careful."})
    host.ready()
    tools = [{"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
    shape = compaction_service_pb2.RequestShape(tools_json=json.dumps(tools).encode())
    live = json.loads(host.ask("r1", user("go on"), shape=shape).rendered_json)
    host.fold()
    (asked,) = world.compactions
    if way == "openai":
        assert asked.body["instructions"] == live["instructions"] == "You are careful."
        assert asked.body["input"] == live["input"][: len(asked.body["input"])], "a prefix of the live request (XJ1)"
        return
    assert asked.body["system"] == live["system"] == "You are careful."
    assert asked.body["tools"] == tools
    told = asked.body["messages"]
    if way == "edited":
        assert told.pop() == {"role": "user", "content": "(Go on.)"}, "an ordinary request may not end on an answer"
    assert told == live["messages"][: len(told)]


def test_n1_the_two_betas_of_anthropic_are_never_mixed(world: World) -> None:
    for way, beta, other in (("claude", "compact-2026-09-04", "context_management"),
                             ("edited", "compact-2026-01-12", "compaction")):  # fmt: skip
        NativeHost(world.client, way).ready().fold()
        asked = world.compactions[-1]
        assert asked.headers["anthropic-beta"].split(",") == [beta]
        assert other not in asked.body
    edit = world.compactions[-1].body["context_management"]["edits"][0]
    assert (edit["type"], edit["pause_after_compaction"]) == ("compact_20260112", True)
    assert edit["trigger"] == {"type": "input_tokens", "value": 50_000}


@pytest.mark.parametrize("way", ["claude", "edited"])
def test_usage_of_a_compaction_is_that_of_its_iterations_and_no_size_of_the_context(world: World, way: str) -> None:
    host = NativeHost(world.client, way).ready()
    record = host.fold()
    asked = world.compactions[0]
    taken = len(asked.system + asked.user) // 4 + 128
    assert record.usage.input_tokens == taken, "with what the cache held"
    assert record.usage.output_tokens > 0
    used = host.used()
    assert (used.calls, used.folds, used.usage.input_tokens) == (1, 1, taken)
    assert used.usage.cost > 0
    assert not host.get().cadence.HasField("count_tokens"), "it was no request of the session (4.3)"


def test_instructions_replace_anthropics_prompt_with_one_of_ours(world: World) -> None:
    NativeHost(world.client, "claude").ready().fold(instructions="Keep the ticket numbers.")
    said = world.compactions[0].body["compaction"]["instructions"]
    assert said.endswith("Keep the ticket numbers.")
    assert "summary" in said
    assert len(said) <= 16_384


def test_openais_compaction_takes_no_instructions_so_that_the_provider_writes(world: World) -> None:
    host = NativeHost(world.client).ready()
    assert source_of(host.fold(instructions="Keep the ticket numbers.")) == "PROVIDER"
    assert not world.compactions
    assert "Keep the ticket numbers." in world.fake.received[0].user


@pytest.mark.parametrize("way", WAYS)
def test_a_second_fold_takes_the_first_item_in(world: World, way: str) -> None:
    """Compact again: the item leads the rows, and one item is left."""
    host = NativeHost(world.client, way).ready()
    host.fold()
    first = json.loads(host.item().item_json)
    host.ready() if way == "edited" else host.filled(8)
    assert source_of(host.fold()) == "NATIVE"
    asked = world.compactions[-1].body
    if way == "openai":
        assert asked["input"][: len(first)] == first
    else:
        assert asked["messages"][0]["content"] == [first]
        assert sum(e.get("pause_after_compaction") is None for e in _edits(asked)) == 0, (
            "one edit, and it is the call's"
        )
    assert host.kinds().count("provider_compaction") == 1
    assert host.sound()


def _edits(body: dict[str, Any]) -> list[dict[str, Any]]:
    return list(body.get("context_management", {}).get("edits", ()))


@pytest.mark.parametrize("writer", ["EXTRACTIVE", "PROVIDER"])
def test_whoever_else_folds_an_item_reads_the_rows_behind_it(world: World, writer: str) -> None:
    host = NativeHost(world.client)
    host.append(user("Never touch the ledger of Zürich-77."), assistant("Understood."), run_id="first")
    host.filled()
    host.fold()
    first = next(r.offset for r in host.active() if r.HasField("provider_compaction"))
    host.filled(6)
    change = session_service_pb2.UpdateSessionRequest(session_id=host.id)
    change.policy.summary.source = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{writer}")
    world.client.session.UpdateSession(change)
    record = host.fold()
    assert source_of(record) == writer
    assert first in {o for r in record.discarded for o in range(r.first, r.last + 1)}
    read = record.summary_text if writer == "EXTRACTIVE" else world.fake.received[-1].user
    assert "Zürich-77" in read
    assert "opaque" not in read
    assert host.sound()


def test_two_items_deep_the_archive_is_read_to_its_beginning(world: World) -> None:
    host = NativeHost(world.client)
    host.append(user("Never touch the ledger of Zürich-77."), assistant("Understood."), run_id="first")
    for _ in range(3):
        host.filled(8)
        assert source_of(host.fold()) == "NATIVE"
    prepared = host.ask("r1", user("and now?"), model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT)
    assert source_of(prepared.fold) == "PROVIDER"
    told = world.fake.received[-1].user
    assert "Zürich-77" in told
    assert told.index("Zürich-77") < told.index("line 0 then fails"), "in the order in which it was said"
    assert host.sound()


def test_memory_holds_the_rows_that_a_provider_compacted_once(world: World) -> None:
    host = NativeHost(world.client)
    host.append(user("The walnut is in the third drawer."), assistant("Noted."), run_id="first")
    record = host.filled().fold()
    assert record.memory_entries > 0
    assert [h.offset for h in host.search("walnut drawer").hits][:1] == [1]
    before = host.get().totals.memory_entries
    host.ask("r1", user("and now?"), model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT)
    assert host.get().totals.memory_entries == before, "summarizing again indexes nothing twice (M2)"
    assert host.sound()


def test_restore_fork_export_and_import_carry_an_item(world: World) -> None:
    host = NativeHost(world.client).ready()
    revision = host.get().session.revision
    record = host.fold()
    item = host.item()
    client = world.client
    client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id=host.id, revision=revision))
    assert "provider_compaction" not in host.kinds()
    client.session.RestoreRevision(
        session_service_pb2.RestoreRevisionRequest(session_id=host.id, revision=record.revision_after)
    )
    assert host.kinds()[0] == "provider_compaction"
    assert host.item() == item
    assert host.sound()
    client.session.ForkSession(
        session_service_pb2.ForkSessionRequest(
            session_id=host.id, fork_session_id=f"{host.id}-fork", revision=host.get().session.revision
        )
    )
    imported(client, f"{host.id}-copy", exported(client, host.id)[:-1])
    for name in ("fork", "copy"):
        other = NativeHost.__new__(NativeHost)
        other.__dict__ |= host.__dict__ | {"id": f"{host.id}-{name}", "list": [], "revision": 0}
        assert other.item() == item
        told = other.ask("r9", user("more"), model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT, supersede_open_run=True)
        assert source_of(told.fold) == "PROVIDER", "the rows behind it came along"
        assert "line 0 then fails" in world.fake.received[-1].user
        assert other.sound()


# N4


def moved(host: NativeHost, run_id: str = "r1", **fields: Any) -> Prepared:
    return host.ask(run_id, user("and now?"), model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT, **fields)


@pytest.mark.parametrize("way", ["openai", "claude"])
def test_n4_another_model_gets_a_summary_of_the_archived_rows_before_its_request(world: World, way: str) -> None:
    host = NativeHost(world.client, way).ready()
    kept = host.kinds()[1:]
    folded = host.fold()
    kept = host.kinds()[1:]
    prepared = moved(host)
    assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
    record = prepared.fold
    assert source_of(record) == "PROVIDER"
    assert [(r.first, r.last) for r in record.discarded] == [(folded.summary_offset, folded.summary_offset)]
    assert record.rows_summarized == folded.rows_summarized
    assert host.kinds() == ["compaction_summary", *kept, "user"]
    assert b"Summary of earlier work" in prepared.rendered_json
    assert "line 0 then fails" in world.fake.received[-1].user
    assert not prepared.request_headers
    assert not codes(prepared)
    assert host.sound()
    assert host.ended_once()
    again = host.ask("r1", model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT)
    assert not again.HasField("fold"), "once is enough"


def test_n4_the_same_model_keeps_its_item(world: World) -> None:
    host = NativeHost(world.client).ready()
    host.fold()
    for n in range(3):
        prepared = host.ask("r1", *([user("go on")] if n == 0 else []))
        assert prepared.action == compaction_pb2.ACTION_SEND
    assert host.kinds()[0] == "provider_compaction"


def test_n4_a_format_that_cannot_carry_the_item_counts_as_another_model(world: World) -> None:
    """XI6: the same model, by another API."""
    host = NativeHost(world.client).ready()
    host.fold()
    prepared = host.ask("r1", user("go on"), format=row_pb2.FORMAT_OPENAI_CHAT)
    assert source_of(prepared.fold) == "PROVIDER"
    assert host.kinds()[0] == "compaction_summary"


def test_n4_a_host_that_lowers_rows_itself_is_told_by_the_model(world: World) -> None:
    host = NativeHost(world.client, "claude").ready()
    host.fold()
    kept = host.prepare("r1", user("go on"))
    assert dict(kept.request_headers) == {"anthropic-beta": "compact-2026-09-04"}
    assert host.list == host.offsets()
    prepared = host.prepare("r1", model=OPENAI)
    assert prepared.HasField("fold")
    assert not prepared.request_headers
    assert host.list == host.offsets(), "the host's list is spliced as by any fold (W1)"


def test_n4_where_the_provider_fails_the_extractive_source_writes_and_the_provider_cools(world: World) -> None:
    host = NativeHost(world.client).ready()
    host.fold()
    world.fake.otherwise = Does("server_error")
    prepared = moved(host)
    assert source_of(prepared.fold) == "EXTRACTIVE", "whatever on_failure says: the request cannot carry the item"
    assert codes(prepared) == ["SOURCE_FAILED"]
    assert "Goals and constraints" in prepared.fold.summary_text
    assert host.get().cadence.HasField("cooldown_until")
    assert host.sound()


def test_n4_while_the_provider_cools_it_is_not_asked(world: World) -> None:
    host = NativeHost(world.client, retention={"turns": 0, "messages": 0}).ready()
    host.fold()
    world.fake.script = [Does("server_error")]
    host.append(*(m for n in range(30) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n)))))
    failed = host.ask("r1", user("go on"))
    assert compaction_pb2.FailureKind.Name(failed.failure) == "FAILURE_KIND_SUMMARIZER_FAILED"
    calls_before = world.fake.calls
    prepared = host.ask("r1", model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT)
    assert source_of(prepared.fold) == "EXTRACTIVE"
    assert world.fake.calls == calls_before, "no second paid call within the cooldown (C5)"
    assert host.sound()


@pytest.mark.parametrize("what", ["server_error", "context_exceeded"])
def test_n4_what_nobody_can_summarize_is_left_out_with_a_warning_and_tried_again(world: World, what: str) -> None:
    """Speech of which nobody knows how much was heard may not be shortened: the request goes out without the item.

    Nor does a handoff come for what is too large, which would lose it (S7).
    """
    host = NativeHost(world.client)
    speech = row_pb2.ContentBlock(
        transcript=row_pb2.TranscriptBlock(
            text="word " * 4_000, source=row_pb2.TRANSCRIPT_SOURCE_SPOKEN_UNMEASURED
        )
    )  # fmt: skip
    host.rows(row_pb2.Row(user=_said("Read it out.")), row_pb2.Row(assistant=row_pb2.AssistantRow(content=[speech])))
    host.filled(8)
    assert source_of(host.fold()) == "NATIVE"
    world.fake.otherwise = Does(what)
    prepared = moved(host)
    assert not prepared.HasField("fold")
    assert "NATIVE_ITEM_LEFT_OUT" in codes(prepared)
    assert b"compaction" not in prepared.rendered_json
    assert host.kinds()[0] == "provider_compaction", "nothing is lost"
    world.fake.otherwise = Does()
    world.now += 3_600
    back = host.ask("r1")
    assert "NATIVE_ITEM_LEFT_OUT" not in codes(back), "its own model reads it"
    assert b'"compaction"' in back.rendered_json
    assert host.ended_once()


def _said(text: str) -> row_pb2.UserRow:
    return row_pb2.UserRow(content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text))])


def test_n4_a_request_that_cannot_wait_goes_out_without_the_item_and_the_fold_goes_on(world: World) -> None:
    """A5: nobody is kept waiting; the next request finds the summary."""
    host = NativeHost(world.client, fold_wait=Duration(nanos=50_000_000)).ready()
    host.fold()
    gate = threading.Event()
    world.fake.otherwise = Does(gate=gate)
    prepared = moved(host)
    assert prepared.fold_pending
    assert "NATIVE_ITEM_LEFT_OUT" in codes(prepared)
    assert b"encrypted_content" not in prepared.rendered_json
    gate.set()
    assert until(lambda: host.kinds()[0] == "compaction_summary")
    again = host.ask("r1", model=LOCAL, format=row_pb2.FORMAT_OPENAI_CHAT)
    assert b"Summary of earlier work" in again.rendered_json
    assert host.sound()
    assert host.ended_once()


def test_n4_rows_that_come_while_the_item_is_summarized_follow(world: World) -> None:
    """V9."""
    host = NativeHost(world.client, fold_wait=Duration(nanos=50_000_000)).ready()
    host.fold()
    gate = threading.Event()
    world.fake.otherwise = Does(gate=gate)
    prepared = moved(host)
    host.record("r1", host.answer(prepared, assistant("Meanwhile."), finish=COMPLETED))
    gate.set()
    assert until(lambda: host.kinds()[0] == "compaction_summary")
    assert host.active()[-1].assistant.content[0].text.text == "Meanwhile."
    assert host.sound()


def test_n3_what_was_learned_outlives_a_restart(tmp_path: Path) -> None:
    with FakeProvider(Does("not_found")) as fake:
        with running_server(tmp_path, settings(tmp_path, fake)) as client:
            host = NativeHost(client).ready()
            assert source_of(host.fold()) == "PROVIDER"
        with running_server(tmp_path, settings(tmp_path, fake)) as client:
            host.client = client
            assert source_of(host.filled(8).fold()) == "PROVIDER"
        assert sum(r.api == "openai_compact" for r in fake.received) == 1


def test_s6_a_curator_is_handed_the_rows_behind_an_item(world: World) -> None:
    host = NativeHost(world.client)
    host.append(user("Never touch the ledger of Zürich-77."), assistant("Understood."), run_id="first")
    host.filled().fold()
    change = session_service_pb2.UpdateSessionRequest(session_id=host.id)
    change.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR
    world.client.session.UpdateSession(change)
    host.filled(6)
    handed: list[row_pb2.Row] = []

    def write(task: Task) -> str:
        handed.extend(task.rows)
        return "The parser dropped commas; the ledger of Zürich-77 is not to be touched."

    curator = Curator(world.client).serving(write)
    try:
        assert source_of(host.fold()) == "CURATOR"
    finally:
        curator.close()
    assert handed[0].user.content[0].text.text == "Never touch the ledger of Zürich-77."
    assert not any(r.HasField("provider_compaction") for r in handed)
    assert host.sound()


def test_n4_it_is_summarized_again_also_while_auto_compact_is_off(world: World) -> None:
    host = NativeHost(world.client, auto_compact=False).ready()
    host.fold()
    assert source_of(moved(host).fold) == "PROVIDER"


def test_n4_a_fold_that_is_due_takes_the_item_along(world: World) -> None:
    """One fold a boundary: the one that pressure asks for reads the archive too."""
    host = NativeHost(world.client).ready()
    host.fold()
    host.filled(30)
    prepared = moved(host)
    assert prepared.HasField("fold")
    assert prepared.fold.rows_summarized > 16, "not the item alone"
    assert "provider_compaction" not in host.kinds()
    assert len(host.events_of("COMPACTION_COMPLETED")) == 2


def test_n4_rendering_for_another_leaves_the_item_out_and_says_so(world: World) -> None:
    host = NativeHost(world.client).ready()
    host.fold()
    for fmt in (row_pb2.FORMAT_OPENAI_CHAT, row_pb2.FORMAT_ANTHROPIC_MESSAGES, row_pb2.FORMAT_GOOGLE_GENAI):
        request = session_service_pb2.RenderTranscriptRequest(session_id=host.id, format=fmt)
        answer = world.client.session.RenderTranscript(request)
        assert any(w.code == warning_pb2.WARNING_CODE_FORMAT_LOSS for w in answer.warnings)
        assert b"encrypted_content" not in answer.rendered_json
    assert host.kinds()[0] == "provider_compaction", "rendering changes nothing"


def test_n4_an_item_that_an_edit_put_rows_before_is_summarized_again(world: World) -> None:
    """What stands before an item would be lost to the model, or the request refused."""
    host = NativeHost(world.client, "claude")
    host.append({"role": "system", "content": "You are careful."})
    host.filled()
    host.fold()
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=1, last_offset=1)
    edit.replacement.CopyFrom(raw(user("Mind the gap.")))
    world.client.session.EditRows(edit)
    assert host.kinds()[:2] == ["user", "provider_compaction"]
    prepared = host.ask("r1", user("go on"))
    assert source_of(prepared.fold) == "PROVIDER"
    assert "provider_compaction" not in host.kinds()
    assert host.sound()


def test_x1_only_folds_and_restores_move_an_item_and_none_is_pinned(world: World) -> None:
    host = NativeHost(world.client).ready()
    host.fold()
    item = host.offsets()[0]
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=item, last_offset=item)
    assert refused(world.client.session.EditRows, edit).reason == "SUMMARY_ROW_REFUSED"
    pin = session_service_pb2.PinRowsRequest(session_id=host.id, offsets=[item], pinned=True)
    assert refused(world.client.session.PinRows, pin).reason == "SUMMARY_ROW_REFUSED"


# What a plan foresees


def planned(host: NativeHost, **fields: Any) -> compaction_service_pb2.PlanCompactionResponse:
    fields.setdefault("shape", compaction_service_pb2.RequestShape(model=host.model))
    request = compaction_service_pb2.PlanCompactionRequest(session_id=host.id, **fields)
    return host.client.compaction.PlanCompaction(request)


@pytest.mark.parametrize("way", WAYS)
def test_n1_a_plan_says_that_the_provider_itself_would_compact_and_for_how_much(world: World, way: str) -> None:
    host = NativeHost(world.client, way).ready()
    plan = planned(host).plan
    assert not world.fake.received, "no call"
    assert row_pb2.SummarySource.Name(plan.summary_source) == "SUMMARY_SOURCE_NATIVE"
    assert (plan.model, plan.native_unavailable, plan.currency) == (host.model, "", "USD")
    record = host.fold()
    assert list(plan.discarded) == list(record.discarded)
    # The prices of input and output, of as many tokens as fold and as a summary has at most.
    assert plan.source_tokens * 2 <= plan.cost * 1e6 <= plan.source_tokens * 2 + plan.summary_budget_tokens * 8
    assert plan.tokens_before // 2 < plan.source_tokens <= plan.tokens_before


def test_n3_a_plan_says_who_writes_in_its_place_and_why(world: World) -> None:
    host = NativeHost(world.client)
    host.rows(row_pb2.Row(user=_said("Keep me."), pinned=True))
    plan = planned(host.filled()).plan
    assert row_pb2.SummarySource.Name(plan.summary_source) == "SUMMARY_SOURCE_PROVIDER"
    assert (plan.model, plan.native_unavailable) == (host.model, "rows that stay stand before rows that fold")
    assert not host.events(), "a plan warns nobody"
    record = host.fold()
    assert (source_of(record), record.model) == ("PROVIDER", plan.model)
    change = session_service_pb2.UpdateSessionRequest(session_id=host.id)
    change.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_EXTRACTIVE
    world.client.session.UpdateSession(change)
    plan = planned(host.filled()).plan
    assert row_pb2.SummarySource.Name(plan.summary_source) == "SUMMARY_SOURCE_EXTRACTIVE"
    assert (plan.HasField("model"), plan.source_tokens, plan.HasField("cost"), plan.native_unavailable) == (
        False, 0, False, "",
    )  # fmt: skip


def test_n3_what_was_learned_of_the_capability_is_foreseen(world: World) -> None:
    host = NativeHost(world.client)
    world.fake.script = [Does("not_found")]
    assert source_of(host.filled().fold()) == "PROVIDER"
    plan = planned(host.filled()).plan
    assert row_pb2.SummarySource.Name(plan.summary_source) == "SUMMARY_SOURCE_PROVIDER"
    assert "404" in plan.native_unavailable


def test_n4_a_move_to_another_model_is_foreseen(world: World) -> None:
    """The item alone is nothing that a manual fold would take; a request to another model is preceded by one."""
    host = NativeHost(world.client, auto_compact=False).filled()
    host.fold()
    other = compaction_service_pb2.RequestShape(model=LOCAL)
    check = compaction_service_pb2.CheckPressureRequest(session_id=host.id)
    assert not world.client.compaction.CheckPressure(check).fold_due
    check.shape.CopyFrom(other)
    assert world.client.compaction.CheckPressure(check).fold_due
    assert planned(host, shape=other).plan.source_tokens > 1_500, "the archived rows are read"
    item, first, *_, last = host.offsets()
    edit = session_service_pb2.EditRowsRequest(session_id=host.id, first_offset=first, last_offset=last)
    world.client.session.EditRows(edit)
    assert host.offsets() == [item]
    assert planned(host).skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD
    seen = planned(host, shape=other)
    assert seen.skip == compaction_pb2.SKIP_REASON_UNSPECIFIED
    assert [(r.first, r.last) for r in seen.plan.discarded] == [(item, item)]
    assert seen.plan.source_tokens > 1_500
    record = moved(host).fold
    assert list(record.discarded) == list(seen.plan.discarded)
    assert (record.summary_source, record.model) == (seen.plan.summary_source, seen.plan.model)


# Where the provider itself does not write


def test_rounds_of_the_open_run_are_written_by_the_provider(world: World) -> None:
    """F3: an item carries no ledger, so that stage 2 is not native."""
    host = NativeHost(world.client, retention={"turns": 0, "messages": 0})
    prepared = host.ask("r1", user("look"))
    for n in range(9):
        outcome = host.answer(prepared, calls(f"c{n}"))
        prepared = host.ask("r1", result(f"c{n}", LINE.format(n=n) * 3), previous_answer=outcome)
    record = host.fold()
    assert source_of(record) == "PROVIDER"
    assert not world.compactions
    assert "read" in record.summary_text or "c0" in _ledger(host)


def _ledger(host: NativeHost) -> str:
    return next(r.compaction_summary.text for r in host.active() if r.HasField("compaction_summary"))


def test_a_pin_before_what_folds_keeps_the_provider_from_writing(world: World) -> None:
    """What stayed before an item would be lost to the model, or the request refused."""
    host = NativeHost(world.client)
    host.rows(row_pb2.Row(user=_said("Keep me."), pinned=True))
    assert source_of(host.filled().fold()) == "PROVIDER"
    assert not world.compactions
    (said,) = [e for e in host.events_of("WARNING") if e.warning.code == warning_pb2.WARNING_CODE_NATIVE_UNAVAILABLE]
    assert "rows that stay" in said.warning.message
    host.filled(8)
    host.fold()
    assert len(host.events_of("WARNING")) == 1, "once a session"


def test_rows_that_are_too_few_for_the_edits_trigger_are_the_providers(world: World) -> None:
    assert source_of(NativeHost(world.client, "edited").filled().fold()) == "PROVIDER"
    assert not world.compactions


def test_rows_that_do_not_fit_the_call_are_the_providers(world: World) -> None:
    """P6: a history over the window cannot be compacted by a request that holds it."""
    host = NativeHost(world.client).filled(50)
    assert source_of(host.fold()) == "PROVIDER"
    assert not world.compactions


def test_a_host_that_sends_chat_completions_gets_no_item(world: World) -> None:
    host = NativeHost(world.client)
    host.ask("r0", user("hi"), format=row_pb2.FORMAT_OPENAI_CHAT)
    host.filled()
    assert source_of(host.fold()) == "PROVIDER"
    assert not world.compactions


def test_xi8_the_live_requests_tools_outlive_a_restart(tmp_path: Path) -> None:
    tools = json.dumps([{"name": "read", "input_schema": {"type": "object"}}]).encode()
    with FakeProvider() as fake:
        with running_server(tmp_path, settings(tmp_path, fake)) as client:
            host = NativeHost(client, "claude").filled()
            host.ask("r1", user("go on"), shape=compaction_service_pb2.RequestShape(tools_json=tools))
        with running_server(tmp_path, settings(tmp_path, fake)) as client:
            host.client = client
            assert source_of(host.fold()) == "NATIVE"
            assert fake.received[-1].body["tools"] == json.loads(tools)


def test_tools_that_are_known_by_their_digest_alone_keep_anthropic_from_writing(world: World) -> None:
    """XI8: a copy knows them only once the host has sent them again."""
    tools = json.dumps([{"name": "read", "input_schema": {"type": "object"}}]).encode()
    original = NativeHost(world.client, "claude").filled()
    original.ask("r1", user("go on"), shape=compaction_service_pb2.RequestShape(tools_json=tools))
    imported(world.client, "copy-of-tools", exported(world.client, original.id)[:-1])
    host = copy(original)
    host.id, host.list, host.revision = "copy-of-tools", [], 0
    assert source_of(host.fold()) == "PROVIDER"
    host.filled(8)
    host.ask("r2", shape=compaction_service_pb2.RequestShape(tools_json=tools), supersede_open_run=True)
    assert source_of(host.fold()) == "NATIVE"
    assert world.compactions[-1].body["tools"] == json.loads(tools)


def test_automatic_folds_are_native_too_and_an_item_is_never_written_ahead(world: World) -> None:
    host = NativeHost(world.client, background={"enabled": True})
    host.filled(29)
    prepared = host.ask("r1", user(LINE.format(n=1)))
    for n in range(2, 30):
        outcome = host.answer(prepared, assistant(LINE.format(n=n)), finish=COMPLETED)
        prepared = host.ask(f"r{n}", user(LINE.format(n=n)), previous_answer=outcome)
        if prepared.HasField("fold"):
            break
    assert source_of(prepared.fold) == "NATIVE"
    assert prepared.fold.trigger == compaction_pb2.TRIGGER_AUTOMATIC
    assert b"encrypted_content" in prepared.rendered_json
    assert all(e.trigger != compaction_pb2.TRIGGER_BACKGROUND for e in host.events())
    assert host.ended_once()


def test_an_answer_to_a_request_with_an_item_is_counted_as_any(world: World) -> None:
    """4.3: the count is of the request that carried the item."""
    host = NativeHost(world.client, "claude").ready()
    host.fold()
    prepared = host.ask("r1", user("go on"))
    usage = {"input_tokens": 1200, "output_tokens": 40, "cache_read_input_tokens": 0}
    answered = host.record("r1", host.answer(prepared, assistant("Done."), usage=usage))
    assert answered.usage.counted


class Asks:
    """A compactor that notes what it was handed."""

    def __init__(self) -> None:
        self.tasks: list[CompactorTask] = []

    def compact(self, task: CompactorTask) -> Compacted:
        self.tasks.append(task)
        return Compacted((), "The work went on.")


def test_f12_a_compactor_gets_what_an_item_stands_for_as_an_earlier_summary(tmp_path: Path) -> None:
    with FakeProvider() as fake:
        compactor = Asks()
        with running_server(tmp_path, settings(tmp_path, fake), compactor=compactor) as client:
            host = NativeHost(client)
            host.append(user("Never touch the ledger of Zürich-77."), assistant("Understood."), run_id="first")
            host.filled()
            host.fold()
            change = session_service_pb2.UpdateSessionRequest(session_id=host.id)
            change.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_AUTO
            client.session.UpdateSession(change)
            assert source_of(host.filled(4).fold()) == "COMPACTOR"
            (task,) = compactor.tasks
            assert "Zürich-77" in task.earlier[0].text
            assert host.sound()


def test_the_policy_refuses_native_without_its_switch(world: World) -> None:
    """Both knobs are named, and no session is made that would fail at every fold."""
    refusal = refused(NativeHost, world.client, "openai", native={"enabled": False})
    assert refusal.reason == "FIELD_VALIDATION"
    assert "summary.source" in refusal.message
    assert "native.enabled" in refusal.message
    host = NativeHost(world.client)
    change = session_service_pb2.UpdateSessionRequest(session_id=host.id)
    change.policy.native.enabled = False
    assert refused(world.client.session.UpdateSession, change).reason == "FIELD_VALIDATION"


def test_auto_stays_what_it_says_with_native_on(world: World) -> None:
    host = NativeHost(world.client, summary={"source": policy_pb2.SUMMARY_SOURCE_POLICY_AUTO}).filled()
    assert source_of(host.fold()) == "PROVIDER"
    assert not world.compactions


def test_h2_a_list_that_its_host_keeps_is_not_compacted_by_the_provider(world: World) -> None:
    """H2 knows a summary by its text or digest, and an item has neither: wherever it is asked for, it is refused."""
    native = policy_pb2.Policy(summary=policy_pb2.SummaryPolicy(source=NATIVE), native={"enabled": True})
    new = session_service_pb2.CreateSessionRequest(
        session_id="hosted-native", model=OPENAI, policy=native, ownership=session_pb2.OWNERSHIP_HOST_OWNED
    )
    host = HostedHost(world.client, "hosted", native={"enabled": True}, min_progress=0.0)
    change = session_service_pb2.UpdateSessionRequest(session_id="hosted", policy=native)
    for n in range(12):
        host.add(hosted_user(LINE.format(n=n)), hosted_assistant(LINE.format(n=n + 500)))
    check = compaction_service_pb2.CheckPressureRequest(
        session_id="hosted", transcript=host.transcript(), override=native
    )
    for refusal in (
        refused(world.client.session.CreateSession, new), refused(world.client.session.UpdateSession, change),
        refused(host.compact, manual=True, override=native), refused(world.client.compaction.CheckPressure, check),
    ):  # fmt: skip
        assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "FIELD_VALIDATION")
        assert refusal.metadata["field"] == "policy.summary.source"
        assert "HOST_OWNED" in refusal.message
    assert refused(host.client.session.GetSession, session_service_pb2.GetSessionRequest(session_id="hosted-native"))
    assert not host.events()
    assert source_of(host.compact(manual=True).record) == "PROVIDER", "the switch alone asks for nothing"
    assert not world.compactions


def test_h2_a_server_whose_default_it_is_keeps_its_hosts_from_creating_such_lists_alone(tmp_path: Path) -> None:
    """The session's own policy names another source."""
    with world_of(tmp_path, {"policy.summary.source": "NATIVE", "policy.native.enabled": "true"}) as world:
        new = session_service_pb2.CreateSessionRequest(
            session_id="h", model=OPENAI, ownership=session_pb2.OWNERSHIP_HOST_OWNED
        )
        assert refused(world.client.session.CreateSession, new).metadata["field"] == "policy.summary.source"
        new.policy.summary.source = policy_pb2.SUMMARY_SOURCE_POLICY_AUTO
        world.client.session.CreateSession(new)
        assert source_of(NativeHost(world.client).filled().fold()) == "NATIVE"


def test_started_and_ended_events_name_the_model_that_compacts(world: World) -> None:
    host = NativeHost(world.client, "claude").ready()
    host.fold()
    (started,) = host.events_of("COMPACTION_STARTED")
    assert started.compaction_started.summary_source == row_pb2.SUMMARY_SOURCE_NATIVE
    assert started.compaction_started.model == CLAUDE
    kinds = [event_pb2.EventKind.Name(e.kind) for e in host.events()]
    assert kinds.count("EVENT_KIND_COMPACTION_COMPLETED") == 1
