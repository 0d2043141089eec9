"""What counts as a reading of a request, over gRPC (4.1, 4.3, 4.4, 4.5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, pressure_pb2, row_pb2, session_service_pb2

from tests.integration.host import SMALL, Host
from tests.integration.test_boundaries import LONG, codes, signal
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, running_server

Shape = compaction_service_pb2.RequestShape


def system(text: str, key: str = "", version: int = 0) -> row_pb2.Row:
    content = [row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text))]
    return row_pb2.Row(system=row_pb2.SystemRow(key=key, version=version, content=content))


def anchored(client: Client, name: str) -> Host:
    host = Host(client, name)
    host.rows(system("rules", "rules", 1))
    prepared = host.prepare("r1", user(LONG))
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens + 5, "completion_tokens": 2}
    assert host.record("r1", host.answer(prepared, assistant("ok"), usage=usage)).usage.counted
    return host


def test_4_3_a_system_row_that_replaces_none_keeps_count_and_anchor(client: Client, name: str) -> None:
    host = anchored(client, name)
    host.rows(system("a note"), system("more", "other", 1))
    state = host.get().cadence
    assert state.HasField("count_tokens")
    assert state.HasField("anchor_tokens")


def test_4_3_a_system_row_update_drops_both(client: Client, name: str) -> None:
    host = anchored(client, name)
    host.rows(system("other rules", "rules", 2))
    state = host.get().cadence
    assert not state.HasField("count_tokens")
    assert not state.HasField("anchor_tokens")


def test_4_3_a_count_of_another_model_is_reported_and_ignored(client: Client, name: str) -> None:
    anchored(client, name)
    shape = Shape()
    shape.model.CopyFrom(SMALL)
    shape.model.provider = "elsewhere"
    request = compaction_service_pb2.CheckPressureRequest(session_id=name, shape=shape)
    report = client.compaction.CheckPressure(request).pressure
    count = signal(report, "PROVIDER_COUNT")
    assert count.HasField("value")
    assert count.suppressed_by
    assert signal(report, "PROJECTION").suppressed_by


def test_4_3_the_count_of_a_bounded_request_is_a_reading_of_what_was_sent(client: Client, name: str) -> None:
    """The whole results are no part of the estimate that an outlier is judged by."""
    host = Host(client, name)
    first = host.prepare("r1", user("read it"))
    text = "a line of a long file\n" * 8_000
    sent = host.prepare("r1", result("c1", text), previous_answer=host.answer(first, calls("c1")))
    assert sent.bounded
    usage = {"prompt_tokens": sent.pressure_sent.forecast_tokens}
    recorded = host.record("r1", host.answer(sent, assistant("read"), usage=usage))
    assert "USAGE_OUTLIER" not in codes(recorded.warnings)
    assert recorded.usage.counted
    assert not host.get().cadence.HasField("anchor_tokens")


def test_4_5_the_hosts_overhead_is_part_of_the_request_and_teaches_nothing(client: Client, name: str) -> None:
    host = Host(client, name)
    model = {"provider": "openai", "model": "small"}
    prepared = host.prepare("r1", user(LONG), shape=Shape(overhead_tokens=1_500, model=model))
    assert prepared.pressure_sent.parts.tools == 1_500
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens}
    recorded = host.record("r1", host.answer(prepared, assistant("ok"), usage=usage))
    assert recorded.usage.counted, recorded.warnings
    again = host.prepare("r1", user("more"), shape=Shape(overhead_tokens=1_500))
    assert abs(again.pressure_sent.estimator_factor / prepared.pressure_sent.estimator_factor - 1) < 0.01


def test_f2_a_fold_leaves_room_for_the_hosts_overhead(client: Client, name: str) -> None:
    """F2, V6: the rebuilt request is under the target with everything that is sent beside the rows."""
    host = Host(client, name, auto_compact=False, retention={"messages": 1})
    for n in range(14):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    client.session.UpdateSession(
        session_service_pb2.UpdateSessionRequest(session_id=name, policy={"auto_compact": True})
    )
    prepared = host.prepare("r1", user("go"), shape=Shape(overhead_tokens=1_000))
    assert prepared.HasField("fold")
    assert prepared.pressure_sent.forecast_tokens < 0.5 * prepared.pressure_sent.threshold_tokens


def test_p5_rendered_bytes_with_the_hosts_overhead_are_exact(client: Client, name: str) -> None:
    host = Host(client, name)
    whole, chat = compaction_pb2.REPLY_MODE_WHOLE, row_pb2.FORMAT_OPENAI_CHAT
    sent = host.prepare("r1", user("go"), shape=Shape(overhead_bytes=700), reply=whole, format=chat)
    assert signal(sent.pressure_sent, "REQUEST_BYTES").value == len(sent.rendered_json) + 700
    assert sent.pressure_sent.bytes_source == signal(sent.pressure_sent, "REQUEST_BYTES").source
    guessed = host.prepare("r1", shape=Shape(overhead_tokens=700), reply=whole, format=chat)
    assert signal(guessed.pressure_sent, "REQUEST_BYTES").value > len(guessed.rendered_json) + 700
    assert guessed.pressure_sent.bytes_source != sent.pressure_sent.bytes_source


def test_4_1_what_the_host_states_of_an_older_list_is_moved_to_this_one(client: Client, name: str) -> None:
    """4.1 anchored: the rows that others appended since are added; also where nothing is prepared."""
    host = Host(client, name)
    host.prepare("r1", user("go"))
    known = host.revision
    host.append(user(LONG))
    request = compaction_service_pb2.CheckPressureRequest(
        session_id=name, shape=Shape(input_tokens=500), known_revision=known
    )
    report = client.compaction.CheckPressure(request).pressure
    assert 600 < report.forecast_tokens < 800
    current = compaction_service_pb2.CheckPressureRequest(session_id=name, shape=Shape(input_tokens=500))
    assert client.compaction.CheckPressure(current).pressure.forecast_tokens == 500
    prepared = host.prepare("r1", shape=Shape(input_tokens=500))
    assert prepared.pressure_sent.forecast_tokens == report.forecast_tokens
    assert prepared.pressure_sent.forecast_source == report.forecast_source


def test_4_3_media_that_an_edit_brings_in_are_allowed_for(client: Client, name: str) -> None:
    host = Host(client, name)
    host.append(user("look"), assistant("at what?"))
    image = row_pb2.Row(
        user=row_pb2.UserRow(
            content=[row_pb2.ContentBlock(image=row_pb2.ImageBlock(mime_type="image/png", data=b"pixels"))]
        )
    )
    client.session.EditRows(
        session_service_pb2.EditRowsRequest(
            session_id=name, first_offset=1, last_offset=1,
            replacement=row_pb2.RowInput(rows=row_pb2.RowList(rows=[image])),
        )
    )  # fmt: skip
    prepared = host.prepare("r1", user("this"))
    assert prepared.pressure_sent.forecast_tokens > 1_600
    recorded = host.record("r1", host.answer(prepared, assistant("ok"), usage={"prompt_tokens": 200}))
    assert "USAGE_OUTLIER" not in codes(recorded.warnings)


def test_4_4_the_fact_survives_a_restart(tmp_path: Path) -> None:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    settings = {"catalog": str(catalog)}
    with running_server(tmp_path, settings) as client:
        host = Host(client, "s")
        for n in range(4):
            host.turn(f"r{n}", f"{n} {LONG}", LONG)
        refused = host.prepare("big", user("the prompt"))
        host.refuse("big", refused.prepare_id, 400, '{"error": {"code": "context_length_exceeded"}}')
    with running_server(tmp_path, settings) as client:
        host.client = client
        assert host.get().cadence.did_not_fit == "refused"
        again = host.prepare("retry")
        assert again.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
        assert host.rendered()[-1]["content"] == "the prompt"


def test_4_4_a_refusal_raises_the_learned_factor(client: Client, name: str) -> None:
    """4.4: to the count it names, else to at least W; bounded by policy. Media and rate limits teach nothing."""
    host = Host(client, name)
    shape = Shape()
    shape.model.provider, shape.model.model = f"provider-of-{name}", "small"
    request = compaction_service_pb2.PrepareRequestRequest(session_id=name, run_id="r1", shape=shape)
    request.append.CopyFrom(row_pb2.RowInput(raw=_chat(user(LONG))))
    prepared = client.compaction.PrepareRequest(request)
    named = 2 * prepared.pressure_sent.forecast_tokens
    body = f"prompt is too long: {named} tokens > 4000 maximum"
    host.refuse("r1", prepared.prepare_id, 400, body)
    request.run_id = "r2"
    request.ClearField("append")
    again = client.compaction.PrepareRequest(request)
    assert 1.9 < again.pressure_sent.estimator_factor <= 2.1


def _chat(*messages: dict[str, object]) -> row_pb2.RawMessages:
    return row_pb2.RawMessages(format=row_pb2.FORMAT_OPENAI_CHAT, json=json.dumps(messages).encode())


def usage_of(prepared: compaction_service_pb2.PrepareRequestResponse, factor: float = 1.0) -> dict[str, int]:
    return {"prompt_tokens": int(prepared.pressure_sent.forecast_tokens * factor)}


def readings(host: Host) -> tuple[bool, bool]:
    state = host.get().cadence
    return state.HasField("count_tokens"), state.HasField("anchor_tokens")


def test_4_3_a_rebuilt_agent_projects_its_first_request_across_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as client:
        host = anchored(client, "s")
        state = host.get().cadence
    with running_server(tmp_path) as client:
        host.client = client
        assert host.get().cadence == state
        report = client.compaction.CheckPressure(
            compaction_service_pb2.CheckPressureRequest(session_id="s", shape=Shape(model=SMALL))
        ).pressure
    assert signal(report, "PROVIDER_COUNT").value == state.count_tokens
    assert signal(report, "PROJECTION").value > state.anchor_tokens


@pytest.mark.parametrize("way", ["fold", "edit", "restore", "system row"])
@pytest.mark.parametrize("when", ["after the answer", "before it"])
def test_4_3_l1_what_changes_more_than_appends_drops_both(client: Client, name: str, way: str, when: str) -> None:
    """Also an answer that comes after the change sets neither: its request was of another list."""
    host = Host(client, name, min_progress=0.0, retention={"turns": 0, "messages": 0})
    host.rows(system("rules", "rules", 1))
    for n in range(3):
        host.turn(f"t{n}", f"{n} {LONG}", LONG)
    prepared = host.prepare("r1", user("go"))
    answer = host.answer(prepared, assistant("ok"), usage=usage_of(prepared))
    if when == "after the answer":
        assert host.record("r1", answer).usage.counted
        assert readings(host) == (True, True)
    if way == "fold":
        assert host.compact().fold_id
    elif way == "edit":
        change = session_service_pb2.EditRowsRequest(session_id=name, first_offset=2, last_offset=2)
        change.replacement.CopyFrom(row_pb2.RowInput(raw=_chat(user("shorter"))))
        client.session.EditRows(change)
    elif way == "restore":
        client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id=name, revision=3))
    else:
        host.rows(system("other rules", "rules", 2))
    assert readings(host) == (False, False)
    if when == "before it" and way != "restore":
        recorded = host.record("r1", answer)
        assert not recorded.usage.counted
        assert recorded.usage.usage.input_tokens == usage_of(prepared)["prompt_tokens"]
        assert readings(host) == (False, False)


def test_4_3_appends_between_a_request_and_its_answer_drop_nothing(client: Client, name: str) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user(LONG))
    host.append(user("meanwhile"))
    assert host.record("r1", host.answer(prepared, assistant("ok"), usage=usage_of(prepared))).usage.counted
    assert host.get().cadence.anchor_revision == prepared.revision


def test_4_3_b4_the_older_anchor_stays_under_a_bounded_requests_answer(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user(LONG))
    done = host.answer(first, calls("c1"), usage=usage_of(first))
    text = "a line of a long file\n" * 8_000
    sent = host.prepare("r1", result("c1", text), previous_answer=done)
    assert sent.bounded
    before = host.get().cadence
    assert before.anchor_revision == first.revision
    recorded = host.record("r1", host.answer(sent, assistant("read"), usage=usage_of(sent)))
    assert recorded.usage.counted
    after = host.get().cadence
    assert (after.anchor_revision, after.anchor_tokens) == (first.revision, before.anchor_tokens)
    assert after.count_tokens == usage_of(sent)["prompt_tokens"]
    # Usage of the first request, once more and late, is neither the last count nor a second reading (L1).
    host.record("r1", host.answer(first, usage=usage_of(first)))
    assert host.get().cadence.count_tokens == after.count_tokens


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("above the window of a call that succeeded", lambda sent: 4_001),
        ("above a token a byte", lambda sent: signal(sent, "REQUEST_BYTES").value + 1),
        ("under a quarter of the estimate", lambda sent: sent.forecast_tokens // 4 - 1),
    ],
)
def test_4_3_xe6_an_outlier_is_neither_anchor_nor_count_and_is_kept_and_told(
    client: Client, name: str, kind: str, count: Callable[[pressure_pb2.PressureReport], int]
) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user(LONG * (24 if "window" in kind else 2)))
    host.record("r1", host.answer(first, assistant("ok"), usage=usage_of(first)))
    known = host.get().cadence
    sent = host.prepare("r1", user("more"))
    factor = sent.pressure_sent.estimator_factor
    number = count(sent.pressure_sent)
    recorded = host.record("r1", host.answer(sent, assistant("ok"), usage={"prompt_tokens": number}))
    assert not recorded.usage.counted
    assert recorded.usage.usage.input_tokens == number
    assert codes(recorded.warnings) == {"USAGE_OUTLIER"}
    assert str(number) in recorded.warnings[0].message
    state = host.get()
    assert (state.cadence.count_tokens, state.cadence.anchor_tokens) == (known.count_tokens, known.anchor_tokens)
    assert state.totals.usage[0].usage.input_tokens == number + usage_of(first)["prompt_tokens"]
    assert any("USAGE_OUTLIER" in codes([e.warning]) for e in host.events() if e.HasField("warning"))
    after = host.prepare("r1", user("and"))
    assert after.pressure_sent.estimator_factor == factor, "it teaches nothing either"


@pytest.mark.parametrize("usage", [{"prompt_tokens": 0}, {"completion_tokens": 5}, {"prompt_tokens": "many"}])
def test_4_3_xb6_zero_or_missing_usage_is_unknown_and_leaves_the_readings(
    client: Client, name: str, usage: dict[str, object]
) -> None:
    host = anchored(client, name)
    known = host.get().cadence
    prepared = host.prepare("r1", user("more"))
    recorded = host.record("r1", host.answer(prepared, assistant("ok"), usage=usage))
    assert codes(recorded.warnings) == {"USAGE_MISSING"}
    state = host.get().cadence
    assert (state.count_tokens, state.anchor_tokens) == (known.count_tokens, known.anchor_tokens)


def test_4_3_a_window_is_no_input_ceiling(tmp_path: Path) -> None:
    """XB12: a call over the ceiling that succeeded is a reading; the ceiling was the catalog's guess."""
    catalog = tmp_path / "models.json"
    entry = {"context_window": 4_000, "input_ceiling": 1_000, "encoding": "o200k_base"}
    catalog.write_text(json.dumps({"small": entry}))
    with running_server(tmp_path, {"catalog": str(catalog)}) as client:
        host = Host(client, "s", auto_compact=False)
        prepared = host.prepare("r1", user(LONG * 12))
        assert prepared.pressure_sent.window_tokens == 1_000
        assert prepared.pressure_sent.forecast_tokens > 1_000
        recorded = host.record("r1", host.answer(prepared, assistant("ok"), usage=usage_of(prepared)))
        assert recorded.usage.counted


def test_p2_the_projection_is_the_anchor_and_an_estimate_of_what_came_since(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user(LONG))
    done = host.answer(first, assistant("ok"), usage={"prompt_tokens": 2 * first.pressure_sent.forecast_tokens})
    before = host.prepare("r1", user("next"), previous_answer=done).pressure_checked
    more = host.prepare("r1", user(LONG)).pressure_checked
    grown = signal(more, "PROJECTION").value - signal(before, "PROJECTION").value
    learned = more.estimator_factor / first.pressure_sent.estimator_factor
    assert grown == pytest.approx(first.pressure_sent.forecast_tokens * learned, abs=8)
    assert signal(more, "PROJECTION").source == pressure_pb2.SOURCE_ANCHORED
    assert signal(more, "PROVIDER_COUNT").value == signal(before, "PROVIDER_COUNT").value


def test_4_5_the_factor_is_kept_by_provider_and_model_across_a_restart_with_its_error(tmp_path: Path) -> None:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    settings = {"catalog": str(catalog)}
    with running_server(tmp_path, settings) as client:
        host = Host(client, "s")
        prepared = host.prepare("r1", user(LONG))
        assert not prepared.pressure_sent.HasField("estimator_error")
        assert prepared.pressure_sent.estimator_factor == 1.0
        host.record("r1", host.answer(prepared, assistant("ok"), usage=usage_of(prepared, 1.5)))
    with running_server(tmp_path, settings) as client:
        host = Host(client, "another")
        report = host.prepare("r1", user(LONG)).pressure_sent
        assert report.estimator_factor == pytest.approx(1.5, abs=0.02)
        assert report.estimator_error == pytest.approx(1 / 3, abs=0.02)
        assert report.estimator_name == "o200k_base"
        other = Shape()
        other.model.provider, other.model.model = "elsewhere", "small"
        check = compaction_service_pb2.CheckPressureRequest(session_id="another", shape=other)
        assert client.compaction.CheckPressure(check).pressure.estimator_factor == 1.0
