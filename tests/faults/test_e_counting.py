"""Token counting. XE1, XE3 and XE4 are in ``tests/unit/engine/test_usage.py``."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, estimate_service_pb2, model_pb2, row_pb2

from tests.decisions.script import Script
from tests.faults.test_a_loops import COMPLETED, LONG, filled, folds
from tests.integration.host import SMALL
from tests.support.requests import assistant, calls, raw, user
from tests.support.server import Client

IMAGE_TOKENS = 1_600
PICTURE = base64.b64encode(bytes(600_000)).decode()


def picture(text: str = "What is this?") -> dict[str, Any]:
    url = {"url": f"data:image/png;base64,{PICTURE}"}
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": url}]}


def tokens(client: Client, *messages: dict[str, Any]) -> int:
    request = estimate_service_pb2.CountTokensRequest(model=SMALL, rows=raw(*messages))
    return int(client.estimate.CountTokens(request).tokens)


def test_xe6_a_reading_that_spikes_for_one_request_is_left_out(client: Client, name: str) -> None:
    """×4 for one request, then as before: reported, and the anchor is that of the request before."""
    host = Script(client, name)
    host.boundary("r1", "U+U+U")
    true = host.prepared.pressure_sent.forecast_tokens
    host.record("r1", host.answer(host.prepared, assistant("ok"), usage={"prompt_tokens": true}, finish=COMPLETED))
    host.boundary("r2", "U")
    recorded = host.record("r2", host.answer(host.prepared, assistant("ok"), usage={"prompt_tokens": 60_000}))
    assert not recorded.usage.counted
    assert recorded.usage.usage.input_tokens == 60_000
    assert host.get().cadence.anchor_tokens == true


def test_xe7_what_was_paid_for_is_not_what_fills_the_window(client: Client, name: str) -> None:
    """Totals grow with each answer, the count is the last one's."""
    host = Script(client, name)
    counts = []
    for n in range(4):
        host.boundary(f"r{n}", "U")
        counts.append(host.prepared.pressure_sent.forecast_tokens)
        usage = {"prompt_tokens": counts[-1], "completion_tokens": 5}
        host.record(f"r{n}", host.answer(host.prepared, assistant("ok"), usage=usage, finish=COMPLETED))
    state = host.get()
    assert state.cadence.count_tokens == counts[-1]
    paid = [u.usage.input_tokens for u in state.totals.usage]
    assert paid == [sum(counts)]


def test_xe8_xe11_a_picture_counts_as_a_picture_and_text_as_text(client: Client) -> None:
    """800 KB of base64 in an image block, then the same in a text."""
    seen = tokens(client, picture())
    assert IMAGE_TOKENS <= seen < IMAGE_TOKENS + 100
    told = tokens(client, user(PICTURE[:40_000]))
    assert told > 5_000, "base64 inside a text counts as the text it is"


def test_xe9_the_first_message_with_a_picture_is_not_folded_before_anyone_saw_it(client: Client, name: str) -> None:
    host = Script(client, name)
    prepared = host.prepare("r1", picture())
    assert not prepared.HasField("fold")
    assert folds(host) == 0
    assert prepared.pressure_sent.forecast_tokens < 2_000
    assert host.rendered()[0]["content"][1]["type"] == "image_url"


def test_xe10_a_picture_in_a_result_counts_no_more(client: Client, name: str) -> None:
    """The rows behind the last reading: a base64 image is no text of a million tokens."""
    host = Script(client, name)
    first = host.prepare("r1", user("look"))
    usage = {"prompt_tokens": first.pressure_sent.forecast_tokens}
    host.record("r1", host.answer(first, calls("c"), usage=usage))
    shot = row_pb2.ContentBlock(image=row_pb2.ImageBlock(mime_type="image/png", data=bytes(600_000)))
    host.rows(row_pb2.Row(tool_result=row_pb2.ToolResultRow(call_id="c", content=[shot])), run_id="r1")
    report = host.prepare("r1").pressure_checked
    assert report.forecast_tokens < usage["prompt_tokens"] + IMAGE_TOKENS + 100


def test_xe12_one_estimator_counts_everywhere(client: Client, name: str) -> None:
    """Asked for a text, measured at a boundary, and read off the record of a fold: the same numbers."""
    messages = [m for n in range(6) for m in (user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))]
    host = Script(client, name, auto_compact=False, retention={"turns": 0, "messages": 0})
    host.append(*messages)
    pressure = client.compaction.CheckPressure(
        compaction_service_pb2.CheckPressureRequest(session_id=name, shape=_shape())
    ).pressure
    assert tokens(client, *messages) == pressure.forecast_tokens == host.compact().tokens_before


def _shape() -> compaction_service_pb2.RequestShape:
    return compaction_service_pb2.RequestShape(model=SMALL)


def test_xe14_an_endpoint_that_counts_otherwise_is_learned(client: Client, name: str) -> None:
    """A proxy that bills half as much again: its factor is its own, another model's stays."""
    proxy = model_pb2.ModelRef(provider="proxy", model="small")
    host = Script(client, name, auto_compact=False)
    request = compaction_service_pb2.PrepareRequestRequest(
        session_id=name, run_id="r1", reply=compaction_pb2.REPLY_MODE_NONE
    )
    request.shape.model.CopyFrom(proxy)
    request.append.CopyFrom(raw(*[user(LONG)] * 6))
    prepared = client.compaction.PrepareRequest(request)
    billed = prepared.pressure_sent.forecast_tokens * 3 // 2
    host.record("r1", host.answer(prepared, assistant("ok"), usage={"prompt_tokens": billed}))
    request.ClearField("append")
    again = client.compaction.PrepareRequest(request).pressure_checked
    assert again.estimator_factor == pytest.approx(1.5, abs=0.02)
    request.shape.model.CopyFrom(model_pb2.ModelRef(provider="other", model="small"))
    assert client.compaction.PrepareRequest(request).pressure_checked.estimator_factor == 1.0


def test_xe16_before_and_after_are_counted_by_one_method(client: Client, name: str) -> None:
    """No "661 became 1 752": a fold's numbers are those of the pressure before and after it."""
    host = filled(client, name, 11, output_reserve_tokens=100)
    before = client.compaction.CheckPressure(
        compaction_service_pb2.CheckPressureRequest(session_id=name, shape=_shape())
    ).pressure.forecast_tokens
    record = host.compact()
    after = client.compaction.CheckPressure(
        compaction_service_pb2.CheckPressureRequest(session_id=name, shape=_shape())
    ).pressure.forecast_tokens
    assert (record.tokens_before, record.tokens_after) == (before, after)
    assert after < before
    assert record.trigger == compaction_pb2.TRIGGER_MANUAL
