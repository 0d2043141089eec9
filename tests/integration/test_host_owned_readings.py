"""What a host that keeps its transcript reports of its requests, and what follows from it (4.3, 4.4, C1, C2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    pressure_pb2,
    warning_pb2,
)

from tests.integration.hosted import (
    SMALL,
    HostedHost,
    assistant,
    long_list,
    system,
    talk,
    user,
    work,
)
from tests.support.requests import raw
from tests.support.server import Client, refused, running_server


def test_c1_boundaries_are_counted_by_calls_that_fold_by_themselves(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.add(user("a"))
    host.check()
    assert host.get().totals.boundaries == 0
    first = host.compact()
    assert (host.get().totals.boundaries, first.prepare_id != "") == (1, True)
    refused(host.compact, manual=True)
    host.compact()
    assert host.get().totals.boundaries == 2


def test_boundary_a_list_with_a_history_starts_at_its_assistant_rows(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    talk(host, 7, words=3)
    host.ask("next")
    host.compact()
    assert host.get().totals.boundaries == 8


def test_c2_an_attempt_holds_ordinary_trips_back(client: Client, name: str) -> None:
    """C2 counts attempts; CheckPressure says the same as the call that acts on it."""
    host = long_list(client, name, auto_compact_threshold=2_000)
    host.fold()
    talk(host, 2, words=20, first=50)
    host.ask("next")
    for _ in range(2):
        checked = host.check(input_tokens=2_500)
        held = host.compact(shape={"input_tokens": 2_500})
        assert (checked.skip, held.skip, held.projection_id) == (
            compaction_pb2.SKIP_REASON_CADENCE, compaction_pb2.SKIP_REASON_CADENCE, "",
        )  # fmt: skip
    assert host.check(input_tokens=2_500).fold_due
    assert host.compact(shape={"input_tokens": 2_500}).projection_id
    skips = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_SKIPPED]
    assert len(skips) == 1, "C8: when the reason changes"


def test_p4_exact_numbers_of_the_host_decide(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    talk(host, 8)
    host.ask("next")
    assert not host.check().fold_due
    report = host.check(input_tokens=3_900).pressure
    signal = next(s for s in report.signals if s.kind == pressure_pb2.SIGNAL_KIND_FORECAST_WINDOW)
    assert (signal.tripped, signal.source) == (True, pressure_pb2.SOURCE_EXACT)
    assert host.compact(shape={"input_tokens": 3_900}).projection_id


def anchor(host: HostedHost) -> Any:
    return next(s for s in host.check().pressure.signals if s.kind == pressure_pb2.SIGNAL_KIND_PROJECTION)


def test_p2_usage_anchors_the_rows_it_was_counted_of(client: Client, name: str) -> None:
    """4.3, L1: while the list only grows, the count holds; any other change drops it."""
    host = HostedHost(client, name)
    talk(host, 4, words=20)
    host.ask("next")
    answer = host.compact()
    recorded = host.usage(answer.prepare_id, 700)
    assert recorded.usage.counted
    host.add(assistant("an answer"), user("more"))
    held = anchor(host)
    assert held.source == pressure_pb2.SOURCE_ANCHORED
    assert 700 < held.value < 760
    kept = list(host.list)
    host.list[2] = (host.list[2][0], user("changed by the host"))
    assert anchor(host).source == pressure_pb2.SOURCE_ABSENT
    host.list = kept[1:]
    assert anchor(host).source == pressure_pb2.SOURCE_ABSENT
    host.list = kept
    assert anchor(host).value == held.value, "CheckPressure changes nothing"
    host.list = kept[1:]
    host.compact()
    host.list = kept
    assert anchor(host).source == pressure_pb2.SOURCE_ABSENT, "a boundary has dropped it"


def test_43_a_system_row_that_replaces_one_drops_the_count(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.add(system("v1", "rules", 1))
    talk(host, 3)
    host.ask("next")
    host.usage(host.compact().prepare_id, 500)
    assert anchor(host).value
    host.add(assistant("a"), system("v2", "rules", 2), user("b"))
    assert anchor(host).source == pressure_pb2.SOURCE_ABSENT


def test_43_usage_of_a_folded_list_counts_once_it_is_committed(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    assert not host.usage(answer.prepare_id, 1_000).usage.counted
    host.apply(answer)
    host.commit(answer)
    assert host.usage(answer.prepare_id, 1_000).usage.counted
    assert anchor(host).value == 1_000
    host.add(assistant("fine"))
    assert 1_000 < anchor(host).value < 1_020


def test_43_usage_after_an_abort_is_of_another_list(client: Client, name: str) -> None:
    host = long_list(client, name)
    answer = host.compact()
    host.abort(answer)
    assert not host.usage(answer.prepare_id, 3_500).usage.counted
    assert anchor(host).source == pressure_pb2.SOURCE_ABSENT


def test_43_a_count_over_the_ceiling_and_under_the_window_is_a_reading(tmp_path: Path) -> None:
    """4.3: the ceiling is a guess where a call over it succeeds; a refusal is one of it all the same (4.4)."""
    entry = {"context_window": 60_000, "input_ceiling": 4_000, "type": "openai", "encoding": "o200k_base"}
    (tmp_path / "models.json").write_text(json.dumps({SMALL.model: entry}))
    with running_server(tmp_path, {"catalog": str(tmp_path / "models.json")}) as client:
        host = HostedHost(client, "s", auto_compact=False)
        talk(host, 40, words=60)
        host.ask("next")
        answer = host.compact()
        assert answer.pressure.forecast_tokens > 4_000
        recorded = host.usage(answer.prepare_id, 5_000)
        assert recorded.usage.counted
        assert anchor(host).value == 5_000


def test_l3_a_fold_that_does_not_make_the_request_fit_warns(client: Client, name: str) -> None:
    """L3: the request alone is over the window; what the fold saves is taken off the forecast."""
    host = HostedHost(client, name, output_reserve_tokens=100)
    talk(host, 12, words=20)
    host.ask("word " * 4_500)
    answer = host.compact()
    assert answer.projection_id
    (said,) = [w.message for w in answer.warnings if w.code == warning_pb2.WARNING_CODE_FORECAST_OVER_WINDOW]
    saved = answer.record.tokens_before - answer.record.tokens_after
    assert saved > 0
    assert said == f"forecast {answer.pressure.forecast_tokens - saved} of 3900 tokens"


def test_44_a_refusal_folds_at_the_next_check_and_keeps_no_tail(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    talk(host, 6)
    host.ask("next", run_id="r1")
    answer = host.compact()
    assert not answer.projection_id
    host.refuse(answer.prepare_id)
    assert host.get().cadence.did_not_fit
    host.ask("try this instead", run_id="r2")
    forced = host.compact()
    assert forced.record.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert list(forced.kept_row_ids) == [host.start]
    assert not host.get().cadence.did_not_fit


def test_44_a_run_that_goes_on_after_a_refusal_folds_every_round(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.ask("Do a long task.", run_id="r1")
    work(host, 6)
    refusal = host.refuse(host.compact().prepare_id)
    assert refusal.run_closed
    host.run_id = "r2"
    forced = host.compact()
    assert forced.record.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert list(forced.kept_row_ids) == [host.start]
    host.apply(forced)
    host.commit(forced)
    assert host.verify().ok


def test_l1_rows_of_an_answer_are_refused(client: Client, name: str) -> None:
    host = HostedHost(client, name)
    host.ask("hi")
    prepared = host.compact()
    made = compaction_service_pb2.Answer(input=raw({"role": "assistant", "content": "x"}))
    outcome = compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, answer=made)
    assert refused(host.record, outcome).metadata["field"] == "outcome.answer.input"
    body = {"choices": [{"message": {"role": "assistant", "content": "x"}}], "usage": {"prompt_tokens": 9}}
    response = compaction_service_pb2.ResponseBody(format=1, response_json=json.dumps(body).encode())
    outcome.answer.CopyFrom(compaction_service_pb2.Answer(response=response))
    recorded = host.record(outcome)
    assert (recorded.usage.usage.input_tokens, recorded.first_offset, recorded.revision) == (9, 0, 0)
