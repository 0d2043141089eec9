"""What a request may carry, over gRPC: shares, exact limits, what other runs left (L3, §9)."""

from __future__ import annotations

import json

from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, policy_pb2, pressure_pb2, row_pb2

from tests.integration.host import Host
from tests.integration.test_boundaries import signal
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client

LINE = "a line of a long file\n"
WHOLE, CHAT = compaction_pb2.REPLY_MODE_WHOLE, row_pb2.FORMAT_OPENAI_CHAT


def bounded(host: Host, size: int = 8_000, run_id: str = "r1") -> compaction_service_pb2.PrepareRequestResponse:
    first = host.prepare(run_id, user("read it"))
    return host.prepare(run_id, result("c1", LINE * size), previous_answer=host.answer(first, calls("c1")))


def test_b1_results_under_the_share_stay_whole_the_others_get_equal_ones(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("read all"))
    outcome = host.answer(first, calls("small", "large", "larger"))
    response = host.prepare(
        "r1", result("small", "short"), result("large", LINE * 900), result("larger", LINE * 4_000),
        previous_answer=outcome,
    )  # fmt: skip
    assert [b.call_id for b in response.bounded] == ["large", "larger"]
    one, other = (b.kept_bytes for b in response.bounded)
    assert abs(one - other) <= 2 * len(LINE)
    assert response.pressure_sent.forecast_tokens <= response.pressure_sent.input_budget_tokens
    assert response.pressure_checked.forecast_tokens > response.pressure_checked.input_budget_tokens, "B5"
    assert all("read" in b.text and str(b.whole_bytes) in b.text and "read_result" in b.text for b in response.bounded)


def test_b2_media_are_part_of_the_whole_size(client: Client, name: str) -> None:
    """B6: what is counted high may become a placeholder."""
    host = Host(client, name)
    first = host.prepare("r1", user("look"))
    host.record("r1", host.answer(first, calls("c1")))
    image = row_pb2.ContentBlock(image=row_pb2.ImageBlock(mime_type="image/png", data=bytes(3_000)))
    text = row_pb2.ContentBlock(text=row_pb2.TextBlock(text=LINE * 20))
    shot = row_pb2.ToolResultRow(call_id="c1", content=[text, image, image, image])
    host.rows(row_pb2.Row(tool_result=shot), run_id="r1")
    (cut,) = host.prepare("r1").bounded
    assert cut.whole_bytes > 3 * 4_000
    assert str(cut.whole_bytes) in cut.text
    assert "image/png left out" in cut.text


def test_b7_results_that_a_request_carried_are_other_runs_business(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    first = host.prepare("r1", user("read both"))
    carried = host.prepare("r1", result("c1", LINE * 150), previous_answer=host.answer(first, calls("c1", "c2")))
    assert not carried.bounded
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=name, run_id="r1", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
        )
    )
    late = host.append(result("c2", LINE * 4_000)).first_offset
    response = host.prepare("r2", user("next"))
    assert [b.offset for b in response.bounded] == [late]


def test_b7_another_runs_result_that_was_carried_shortened_stays_so(client: Client, name: str) -> None:
    """B9: once carried it is no other business again, or the next request would hold it whole and not fit."""
    host = Host(client, name, auto_compact=False)
    first = host.prepare("r1", user("read it"))
    host.record("r1", host.answer(first, calls("c1")))
    late = host.append(result("c1", LINE * 4_000), run_id="r1").first_offset
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=name, run_id="r1", outcome=compaction_pb2.RUN_OUTCOME_CANCELLED
        )
    )
    sent = host.prepare("r2", user("and now?"))
    assert [b.offset for b in sent.bounded] == [late]
    stepped = host.prepare("r2", previous_answer=host.answer(sent, assistant("I see.")))
    again = host.prepare("r2", user("go on"), previous_answer=host.answer(stepped, assistant("I see.")))
    assert [(b.offset, b.text) for b in again.bounded] == [(b.offset, b.text) for b in stepped.bounded]
    assert [b.offset for b in again.bounded] == [late]
    assert again.pressure_sent.forecast_tokens <= again.pressure_sent.input_budget_tokens


def test_b6_an_inline_video_may_become_a_placeholder(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("watch"))
    host.record("r1", host.answer(first, calls("c1")))
    video = row_pb2.ContentBlock(video=row_pb2.VideoBlock(mime_type="video/mp4", data=bytes(30_000)))
    text = row_pb2.ContentBlock(text=row_pb2.TextBlock(text="what was filmed"))
    host.rows(row_pb2.Row(tool_result=row_pb2.ToolResultRow(call_id="c1", content=[text, video])), run_id="r1")
    (cut,) = host.prepare("r1").bounded
    assert cut.whole_bytes > 40_000
    assert cut.text.startswith("what was filmed\n[video/mp4 left out, 40000 bytes of base64]\n[result of")
    assert cut.kept_bytes == cut.text.index("\n[result of")


def test_b4_without_auto_compact_nothing_is_recorded(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    sent = bounded(host)
    assert sent.bounded
    assert host.get().cadence.did_not_fit == ""
    (event,) = host.events()
    assert event.kind == event_pb2.EVENT_KIND_TOOL_RESULTS_BOUNDED_FOR_REQUEST, "B3 tells what was sent all the same"
    usage = {"prompt_tokens": sent.pressure_sent.forecast_tokens}
    host.record("r1", host.answer(sent, assistant("read"), usage=usage))
    assert not host.get().cadence.HasField("anchor_tokens")


def test_b9_shares_shrink_in_steps_so_that_most_requests_keep_the_prefix(client: Client, name: str) -> None:
    host = Host(client, name, auto_compact=False)
    first = bounded(host)
    stepped = host.prepare("r1", previous_answer=host.answer(first, assistant("I see.")))
    again = host.prepare("r1", user(LINE), previous_answer=host.answer(stepped, assistant("I see.")))
    assert stepped.bounded[0].kept_bytes < first.bounded[0].kept_bytes
    assert [(b.offset, b.text) for b in again.bounded] == [(b.offset, b.text) for b in stepped.bounded]
    assert again.stable_prefix_rows == 4
    outcome = host.answer(again, calls("c2"))
    more = host.prepare("r1", result("c2", LINE * 8_000), previous_answer=outcome)
    assert [b.call_id for b in more.bounded] == ["c1", "c2"]
    assert more.bounded[0].kept_bytes < again.bounded[0].kept_bytes


def test_b8_what_cannot_be_shortened_enough_is_too_large_by_exact_bytes(client: Client, name: str) -> None:
    """L3, P5: with the numbers; the run stays open and the fact is set."""
    host = Host(client, name)
    override = policy_pb2.Policy(body_cap_bytes=2_000)
    response = host.prepare("r1", user(LINE * 100), override=override, reply=WHOLE, format=CHAT)
    assert response.action == compaction_pb2.ACTION_TOO_LARGE
    size = signal(response.pressure_sent, "REQUEST_BYTES")
    assert (size.value, size.limit) == (len(response.rendered_json), 1_600)
    assert size.source == pressure_pb2.SOURCE_EXACT
    assert response.pressure_sent.parts.request > 0
    assert host.get().cadence.did_not_fit == "too_large"
    assert host.get().session.open_run_id == "r1"


def test_p5_results_are_cut_to_the_body_cap(client: Client, name: str) -> None:
    host = Host(client, name)
    first = host.prepare("r1", user("read it"))
    response = host.prepare(
        "r1", result("c1", LINE * 110), previous_answer=host.answer(first, calls("c1")),
        override=policy_pb2.Policy(body_cap_bytes=2_000), reply=WHOLE, format=CHAT,
    )  # fmt: skip
    assert response.action == compaction_pb2.ACTION_SEND
    assert len(response.rendered_json) <= 2_000
    assert response.bounded[0].text in json.loads(response.rendered_json)[-1]["content"]


def test_carried_is_what_was_answered_send(client: Client, name: str) -> None:
    """§1 carried, R3: a call that only a TOO_LARGE request held unanswered gets its result in time."""
    host = Host(client, name)
    first = host.prepare("r1", user("go"))
    shape = compaction_service_pb2.RequestShape(input_tokens=3_500)
    refused = host.prepare("r1", previous_answer=host.answer(first, calls("c1")), shape=shape)
    assert refused.action == compaction_pb2.ACTION_TOO_LARGE
    host.append(result("c1", "in time"), run_id="r1")
    assert [m["role"] for m in host.rendered()] == ["user", "assistant", "tool"]
    assert host.rendered()[-1]["content"] == "in time"
