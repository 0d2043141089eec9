"""Overflow inside or after compaction, and its detection, as a host would meet them.

XB1 (a summarizer's prompt that is too big) is in ``tests/integration/test_provider_summaries.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from foldline.domain.models import ModelInfo
from foldline.domain.policy import Policy
from foldline.engine.limits import limits
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    estimate_service_pb2,
    event_pb2,
    model_pb2,
    policy_pb2,
    pressure_pb2,
    row_pb2,
    warning_pb2,
)

from tests.decisions.script import Script
from tests.faults.test_a_loops import COMPLETED, LONG, filled, folds
from tests.integration.host import SMALL
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, running_server

Shape = compaction_service_pb2.RequestShape
LARGE = model_pb2.ModelRef(provider="openai", model="large")
WHOLE, CHAT = compaction_pb2.REPLY_MODE_WHOLE, row_pb2.FORMAT_OPENAI_CHAT
CATALOG = {
    "small": {"context_window": 4_000, "type": "openai", "encoding": "o200k_base"},
    "large": {"context_window": 60_000, "type": "openai", "encoding": "o200k_base"},
    "capped": {"context_window": 60_000, "input_ceiling": 4_000, "type": "openai", "encoding": "o200k_base"},
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server that knows models of different windows."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "models.json").write_text(json.dumps(CATALOG))
    with running_server(folder, {"catalog": str(folder / "models.json")}) as client:
        yield client


def shaped(host: Script, run_id: str, model: model_pb2.ModelRef, *messages: dict[str, Any]) -> Any:
    request = compaction_service_pb2.PrepareRequestRequest(
        session_id=host.id, run_id=run_id, reply=compaction_pb2.REPLY_MODE_NONE, shape=Shape(model=model)
    )
    for message in messages:
        request.append.rows.rows.add().user.content.add().text.text = message["content"]
    return host.client.compaction.PrepareRequest(request)


def test_xb2_a_switch_to_a_smaller_window_folds_for_that_window(several: Client, name: str) -> None:
    """A history that fits the old window only: planned against the model that is asked, at the next request."""
    host = filled(several, name, 40)
    roomy = shaped(host, "r1", LARGE, user("go"))
    assert (roomy.action, roomy.HasField("fold")) == (compaction_pb2.ACTION_SEND, False)
    host.record("r1", host.answer(roomy, assistant("ok"), finish=COMPLETED))
    tight = shaped(host, "r2", SMALL, user("go on"))
    assert tight.action == compaction_pb2.ACTION_SEND_FOLDED
    report = tight.pressure_sent
    assert report.forecast_tokens < report.threshold_tokens == 3_200
    assert host.verify().ok


def test_xb3_the_last_step_always_fits(client: Client, name: str) -> None:
    """A refusal over a history four times the window: one forced fold leaves a request that fits."""
    host = filled(client, name, 55, auto_compact=True)
    host.boundary("r1", "U")
    if not host.prepared.HasField("fold"):
        host.refuse("r1", host.prepared.prepare_id, 413, "request_too_large")
        host.boundary("r2")
    report = host.prepared.pressure_sent
    assert report.forecast_tokens + 1_000 < 4_000
    assert folds(host) == 1


def test_xb4_a_fold_that_saves_little_and_suffices_is_taken(client: Client, name: str) -> None:
    """Half is hoped for, a third is saved, and the request fits: there is no ratio to miss."""
    host = filled(client, name, 9, output_reserve_tokens=100, auto_compact_threshold=2_400,
                  retention={"turns": 6, "messages": 12}, target_fraction=0.9)  # fmt: skip
    host.boundary("r1", "U")
    record = host.prepared.fold
    assert 0.1 < 1 - record.tokens_after / record.tokens_before < 0.5


def test_xb5_an_almost_empty_history_is_not_folded_and_the_inputs_are_told(client: Client, name: str) -> None:
    """The first message, counted at the limit: nothing folds, and every signal says what it was judged by."""
    host = Script(client, name)
    prepared = host.prepare("r1", user("hello"), shape=Shape(input_tokens=3_000))
    assert not prepared.HasField("fold")
    assert folds(host) == 0
    stated = {s.kind: (s.value, s.limit) for s in prepared.pressure_checked.signals if s.HasField("limit")}
    assert stated[pressure_pb2.SIGNAL_KIND_FORECAST_THRESHOLD] == (3_000, 3_200)
    assert stated[pressure_pb2.SIGNAL_KIND_FORECAST_WINDOW] == (4_000, 4_000)


def test_xb6_a_provider_that_reports_no_usage_does_not_switch_folding_off(client: Client, name: str) -> None:
    """usage = 0 in every answer: unknown, so that the estimate of the transcript triggers."""
    host = Script(client, name, output_reserve_tokens=100)
    for n in range(14):
        prepared = host.prepare(f"r{n}", user(LONG))
        host.record(f"r{n}", host.answer(prepared, assistant(LONG), usage={"prompt_tokens": 0}, finish=COMPLETED))
    assert not host.get().cadence.HasField("count_tokens")
    assert folds(host) >= 1
    assert prepared.pressure_sent.forecast_tokens < 4_000


def test_xb7_a_session_over_its_window_can_be_folded_by_hand(client: Client, name: str) -> None:
    host = filled(client, name, 30, auto_compact=False)
    host.boundary("r1", "U")
    assert host.prepared.pressure_sent.forecast_tokens > 8_000
    record = host.compact()
    assert record.tokens_after < 2_000 < 8_000 < record.tokens_before


def test_xb8_a_reserve_out_of_what_is_left_is_held_to_the_models_output() -> None:
    """A host that asks for all of the rest as output: the reserve is the model's maximum, or a quarter of W."""
    info = ModelInfo(400_000, max_output=32_000)
    assert limits(Policy(), info, 339_835).reserve == 32_000
    assert limits(Policy(), ModelInfo(400_000), 339_835).reserve == 100_000


REFUSALS = [
    # (fault, provider, status, body, tokens that it names, limit that it names)
    ("xb10", "", 400, '{"error": {"message": "the request exceeds the available context size (8192 tokens), '
     'try increasing it", "n_prompt_tokens": 9000, "n_ctx": 8192, "type": "exceed_context_size_error"}}', 9_000, 8_192),
    ("xb14", "ollama", 400, '{"error": "prompt too long; exceeded max context length by 73 tokens"}', None, None),
    ("xb15", "", 400, '{"object": "error", "message": "This model\'s maximum context length is 8192 tokens. However, '
     'you requested 9000 tokens (8000 in the messages, 1000 in the completion).", "code": 400}', None, 8_192),
    ("xb16", "", 400, '{"error": {"code": 400, "message": "request (124071 tokens) exceeds the available context size '
     '(123904 tokens), try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 124071, '
     '"n_ctx": 123904}}', 124_071, 123_904),
]  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "status", "body", "tokens", "limit"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_xb10_xb14_xb15_xb16_refusals_for_size_are_known_by_their_words(
    client: Client, provider: str, status: int, body: str, tokens: int | None, limit: int | None
) -> None:
    """The served window wins over the configured one: both numbers of the refusal are told."""
    found = client.estimate.ClassifyError(
        estimate_service_pb2.ClassifyErrorRequest(provider=provider, http_status=status, raw_body=body.encode())
    )
    assert found.kind == compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED
    if tokens:
        assert found.request_tokens == tokens
    if limit:
        assert found.limit_tokens == limit


def test_xb10_a_refusal_under_the_configured_window_is_acted_on(client: Client, name: str) -> None:
    """Served 1 500, configured 4 000: no signal would trip, the refusal folds all the same and names its count."""
    host = filled(client, name, 7)
    host.boundary("r1", "U")
    assert not any(s.tripped for s in host.prepared.pressure_checked.signals)
    body = '{"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 2100, "n_ctx": 1500, "message": "the ' \
        'request exceeds the available context size"}}'  # fmt: skip
    host.refuse("r1", host.prepared.prepare_id, 400, body)
    (event,) = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_DID_NOT_FIT_RECORDED]
    assert event.did_not_fit_recorded.named_tokens == 2_100
    host.boundary("r2")
    assert host.prepared.action == compaction_pb2.ACTION_SEND_FOLDED


def test_xb11_the_trigger_leaves_headroom_below_a_window_that_overstates() -> None:
    """A window of a million that refuses at 940k: T is 80 % of it."""
    assert limits(Policy(), ModelInfo(1_000_000), None).threshold == 800_000


def test_xb12_switching_folding_off_concerns_one_session_and_the_input_cap_is_not_the_window(
    several: Client, name: str
) -> None:
    quiet, other = filled(several, name, 14, auto_compact=False), filled(several, f"{name}-other", 14)
    for host in (quiet, other):
        capped = shaped(host, "r1", model_pb2.ModelRef(provider="openai", model="capped"), user("go"))
        assert capped.HasField("fold") is (host is other), "4 000 tokens of input, whatever the window"


def test_xb12_a_request_that_did_not_fit_is_not_sent_again_unchanged(client: Client, name: str) -> None:
    """A goal loop that resends the overflow: each refusal makes the next request smaller, as long as anything can."""
    host = filled(client, name, 9)
    sizes = []
    for n in range(3):
        host.boundary(f"r{n}", "U" if n == 0 else "")
        sizes.append(host.prepared.pressure_sent.forecast_tokens)
        host.refuse(f"r{n}", host.prepared.prepare_id, 413, "request_too_large")
    assert sizes[1] < 0.5 * sizes[0]
    assert host.archive()[18].HasField("user"), "the prompt is there"


def test_xb18_a_check_comes_before_each_call_of_a_run_and_results_are_cut_by_the_window(
    client: Client, name: str
) -> None:
    """50 KB results in a small window, within one user turn: folds and bounds keep each request under W."""
    host = Script(client, name, min_boundaries_between=0)
    prepared = host.prepare("r1", user("Look into all of it."))
    for n in range(8):
        done = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"line {n} of a log\n" * 3_000), previous_answer=done)
        assert prepared.pressure_sent.forecast_tokens <= 3_000
    assert folds(host) >= 1
    assert host.verify().ok


def test_xb19_a_huge_result_in_the_kept_part_is_cut_after_the_fold(client: Client, name: str) -> None:
    """A 668 000 character result in the newest round: the fold cannot take it, the bound can."""
    host = filled(client, name, 10, output_reserve_tokens=1_000)
    host.boundary("r1", "U")
    done = host.answer(host.prepared, calls("c"))
    prepared = host.prepare("r1", result("c", "x = 1\n" * 111_000), previous_answer=done)
    assert [b.whole_bytes for b in prepared.bounded] == [666_000]
    assert prepared.pressure_sent.forecast_tokens <= prepared.pressure_sent.input_budget_tokens


def test_xb20_the_prompt_that_did_not_fit_stays_until_it_is_answered(client: Client, name: str) -> None:
    host = filled(client, name, 6)
    prompt = "What did worker-9 say about the lease?"
    prepared = host.prepare("r1", user(prompt))
    host.refuse("r1", prepared.prepare_id, 413, "request_too_large")
    for n in range(2, 5):
        prepared = host.prepare(f"r{n}", reply=WHOLE, format=CHAT)
        assert json.loads(prepared.rendered_json)[-1] == {"role": "user", "content": prompt}
        host.refuse(f"r{n}", prepared.prepare_id, 413, "request_too_large")
    prepared = host.prepare("r5")
    host.record("r5", host.answer(prepared, assistant("Nothing."), finish=COMPLETED))
    assert [m["content"] for m in host.rendered()][-2:] == [prompt, "Nothing."]


@pytest.mark.parametrize("exact", [False, True])
def test_xb22_a_fold_that_fails_sends_what_still_fits_and_names_the_cause(
    client: Client, name: str, exact: bool
) -> None:
    """The source is away: the request goes out unfolded, or is too large with its numbers; never silence."""
    curator = {"source": policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR}
    host = filled(client, name, 11, output_reserve_tokens=100, summary=curator)
    host.revision, host.list = host.get().session.revision, host.offsets()
    prepared = host.prepare("r1", user("go"), shape=Shape(input_tokens=4_500 if exact else None))
    assert prepared.skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
    assert prepared.failure == compaction_pb2.FAILURE_KIND_CURATOR_UNAVAILABLE
    assert prepared.action == (compaction_pb2.ACTION_TOO_LARGE if exact else compaction_pb2.ACTION_SEND)
    assert len(host.active()) == 23, "the history is untouched"
    assert warning_pb2.WARNING_CODE_UNSPECIFIED not in [w.code for w in prepared.warnings]
