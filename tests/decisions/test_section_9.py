"""§9: which results a request carries shortened, and what follows from it. W is 4 000 tokens, 1 000 are reserved."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, pressure_pb2, row_pb2, warning_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client

LINE = "a line of a long file\n"
Shape = compaction_service_pb2.RequestShape
WHOLE, CHAT = compaction_pb2.REPLY_MODE_WHOLE, row_pb2.FORMAT_OPENAI_CHAT


class Reader(Script):
    """Its run r1 makes calls whose results are so many lines long."""

    def read(self, lines: dict[str, int], **fields: Any) -> compaction_service_pb2.PrepareRequestResponse:
        first = self.prepare("r1", user("read"))
        outcome = self.answer(first, calls(*lines))
        given = [result(call_id, LINE * n) for call_id, n in lines.items()]
        self.prepared = self.prepare("r1", *given, previous_answer=outcome, **fields)
        return self.prepared


def reader(client: Client, name: str, **policy: Any) -> Reader:
    return Reader(client, name, **{"output_reserve_tokens": 1_000, "auto_compact": False} | policy)


BOUNDED = [
    # (rule, case, policy, lines by call, what else is stated, calls that are carried shortened)
    ("§9", "nothing over a limit", {}, {"a": 100}, {}, []),
    ("B1", "what is over its share", {}, {"a": 1_000}, {}, ["a"]),
    ("B1", "results under the share stay whole", {}, {"a": 10, "b": 1_000}, {}, ["b"]),
    ("B1", "the rest get equal shares", {}, {"a": 10, "b": 700, "c": 900}, {}, ["b", "c"]),
    ("B1", "the share is what the rest of the request leaves", {}, {"a": 400}, {"overhead_tokens": 1_500}, ["a"]),
    ("B1", "the byte cap is an axis of its own", {"body_cap_bytes": 6_000}, {"a": 300}, {}, ["a"]),
    ("§9", "the forecast at the budget is not over it", {}, {"a": 1}, {"input_tokens": 3_000}, []),
    ("B8", "under min_bytes a result nothing is shortened", {"bounding": {"min_bytes": 100_000}}, {"a": 1_000}, {}, []),
]


@pytest.mark.parametrize(("policy", "lines", "stated", "shortened"), marks(BOUNDED))
def test_which_results_are_shortened(
    client: Client, name: str, policy: dict[str, Any], lines: dict[str, int], stated: dict[str, int],
    shortened: list[str],
) -> None:  # fmt: skip
    prepared = reader(client, name, **policy).read(lines, shape=Shape(**stated))
    assert [b.call_id for b in prepared.bounded] == shortened
    report = prepared.pressure_sent
    if shortened:
        assert report.forecast_tokens <= report.input_budget_tokens
        assert report.body_bytes <= policy.get("body_cap_bytes", report.body_bytes)


FOLLOWS = [
    # (rule, case, auto_compact, whether the fact is set, whether an event is written)
    ("B4", "the bound sets the did-not-fit fact", True, True, True),
    ("B4", "not while auto_compact is off", False, False, True),
]


@pytest.mark.parametrize(("automatic", "fact", "event"), marks(FOLLOWS))
def test_what_follows_from_a_bound(client: Client, name: str, automatic: bool, fact: bool, event: bool) -> None:
    host = reader(client, name, auto_compact=automatic)
    prepared = host.read({"a": 1_000})
    assert (host.get().cadence.did_not_fit == "bounded") is fact
    told = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_TOOL_RESULTS_BOUNDED_FOR_REQUEST]
    assert len(told) == event
    assert told[0].run_id == "r1"
    (said,) = told[0].tool_results_bounded.results
    assert (said.call_id, said.kept_bytes, said.whole_bytes, said.text) == (
        "a", prepared.bounded[0].kept_bytes, len(LINE) * 1_000, "",
    )  # fmt: skip
    assert told[0].tool_results_bounded.limit > 0
    usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens}
    recorded = host.record("r1", host.answer(prepared, assistant("read"), usage=usage))
    assert recorded.usage.counted
    assert not host.get().cadence.HasField("anchor_tokens"), "its answer anchors nothing"
    assert (host.get().cadence.did_not_fit == "bounded") is fact, "and keeps the fact"


def test_b2_the_head_ends_at_a_line_and_the_marker_says_how_to_read_the_rest(client: Client, name: str) -> None:
    host = reader(client, name)
    prepared = host.read({"a": 1_000}, reply=WHOLE, format=CHAT)
    (bound,) = prepared.bounded
    assert bound.text.startswith(LINE)
    head, _, marker = bound.text.rpartition("\n")
    assert all(line + "\n" == LINE for line in head.splitlines() if line)
    assert all(word in marker for word in ("read", str(len(LINE) * 1_000), "read_result"))
    stored = next(r for r in host.active() if r.HasField("tool_result"))
    assert stored.tool_result.content[0].text.text == LINE * 1_000, "stored rows stay whole"
    assert LINE.encode()[:-1] in prepared.rendered_json


def test_b5_the_check_measures_the_request_before_the_bound(client: Client, name: str) -> None:
    prepared = reader(client, name).read({"a": 1_000})
    assert prepared.pressure_checked.forecast_tokens > prepared.pressure_checked.input_budget_tokens
    assert any(
        s.tripped for s in prepared.pressure_checked.signals if s.kind == pressure_pb2.SIGNAL_KIND_FORECAST_WINDOW
    )


OTHERS = [
    # (rule, case, whether a request of the other run carried the result, calls that are shortened for the next run)
    ("B7", "results of other runs are not touched", True, []),
    ("B7", "but for those that no request carried", False, ["a"]),
]


@pytest.mark.parametrize(("carried", "shortened"), marks(OTHERS))
def test_results_of_other_runs(client: Client, name: str, carried: bool, shortened: list[str]) -> None:
    host = reader(client, name)
    first = host.prepare("r1", user("read"))
    host.record("r1", host.answer(first, calls("a")))
    host.append(result("a", LINE * 380))
    if carried:
        host.boundary("r1")
    host.finish("r1", "completed")
    prepared = host.prepare("r2", user("and now"), shape=Shape(overhead_tokens=1_200))
    assert [b.call_id for b in prepared.bounded] == shortened


def test_b8_what_does_not_fit_at_the_least_is_judged_by_l3(client: Client, name: str) -> None:
    host = reader(client, name, bounding={"min_bytes": 100_000})
    prepared = host.read({"a": 1_000})
    assert prepared.action == compaction_pb2.ACTION_SEND, "by estimate alone"
    assert warning_pb2.WARNING_CODE_FORECAST_OVER_WINDOW in [w.code for w in prepared.warnings]
    done = host.answer(prepared, assistant("read"))
    exact = host.prepare("r1", user("more"), previous_answer=done, shape=Shape(input_tokens=9_000))
    assert exact.action == compaction_pb2.ACTION_TOO_LARGE, "by an exact count"


def test_b9_within_a_run_shares_only_shrink_in_steps(client: Client, name: str) -> None:
    """What was sent stays a prefix: a text is the same again, or shorter by a step, never longer."""
    host = reader(client, name)
    texts = [host.read({"a": 1_000}).bounded[0].text]
    for n in range(12):
        done = host.answer(host.prepared, calls(f"c{n}"))
        host.prepared = host.prepare("r1", result(f"c{n}", LINE * 12), previous_answer=done)
        texts.append(next(b.text for b in host.prepared.bounded if b.call_id == "a"))
    sizes = [len(t) for t in texts]
    assert sizes == sorted(sizes, reverse=True)
    assert 1 < len(set(texts)) < 8, "a step serves several requests"
    assert all(b < 0.85 * a for a, b in pairwise(sizes) if a != b)
