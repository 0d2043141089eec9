"""Loops and thrash, as a host would meet them.

XA8 (a plugin that empties an account) is in ``tests/integration/test_provider_summaries.py``, where a source costs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foldline import _core
from foldline.domain.changes import replace
from foldline.domain.folding import SummaryRequest, SummaryResult
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, pressure_pb2, warning_pb2

from tests.decisions.script import Script
from tests.support.requests import assistant, user
from tests.support.server import Client, running_server

LONG = "The queue drops messages when the consumer restarts before it has acknowledged them. " * 10
COMPLETED = compaction_pb2.RUN_OUTCOME_COMPLETED


def folds(host: Script, kind: int = event_pb2.EVENT_KIND_COMPACTION_STARTED) -> int:
    return sum(e.kind == kind for e in host.events())


def filled(client: Client, name: str, turns: int, **policy: Any) -> Script:
    """A history of closed turns, about 290 tokens each, that nothing folded yet."""
    host = Script(client, name, **policy)
    for n in range(turns):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"), run_id=f"old-{n}")
    return host


def test_xa1_what_cannot_shrink_is_tried_once_and_the_refusal_stands(client: Client, name: str) -> None:
    """S U!(huge) refused, again and again: nothing may fold, so that each refusal ends in one answer and no loop."""
    host = Script(client, name)
    for n in range(5):
        host.boundary(f"r{n}", "U!+U!+U!")
        assert host.prepared.action == compaction_pb2.ACTION_SEND
        host.refuse(f"r{n}", host.prepared.prepare_id, 413, "request_too_large")
    assert folds(host) == 0
    assert len(host.archive()) == 15, "nothing is lost"
    assert host.get().cadence.boundaries == 5


def test_xa2_a_run_that_ended_normally_gets_no_turn_of_its_own(client: Client, name: str) -> None:
    """... A(final) near the limit: the fold adds a summary, marked as such, and no message asks to go on."""
    host = filled(client, name, 10, output_reserve_tokens=100)
    host.boundary("r1", "U")
    assert host.prepared.HasField("fold")
    host.record("r1", host.answer(host.prepared, assistant("All done."), finish=COMPLETED))
    assert [r.WhichOneof("body") for r in host.archive()[20:]] == ["user", "compaction_summary", "assistant"]
    said = host.rendered()
    assert said[-1] == {"role": "assistant", "content": "All done."}
    assert sum(m["role"] == "user" for m in said) == sum(r.HasField("user") for r in host.active()) + 1


class Weak:
    """A source that uses all of its budget, whatever there is to say."""

    def __init__(self) -> None:
        self.inner = ExtractiveSummarizer(lambda text: _core.count_tokens(text, "o200k_base"))

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        made = self.inner.summarize(request)
        used = _core.count_tokens(made.text, "o200k_base")
        return replace(made, text=made.text + " and" * max(0, request.budget + made.appendix_tokens - used - 8))


def test_xa3_xa10_a_weak_source_is_not_asked_again_and_again(tmp_path: Path) -> None:
    """A summary as long as what it stands for: after one fold the plan foresees as little, and waits (C4)."""
    with running_server(tmp_path, {"catalog": _catalog(tmp_path)}, summarizer=Weak()) as client:
        host = Script(
            client, "s", min_progress=0.15, min_boundaries_between=0, auto_compact_threshold=2_200,
            retention={"turns": 0, "messages": 0}, output_reserve_tokens=100,
        )  # fmt: skip
        host.append({"role": "system", "content": "Mind the rules of this house. " * 230})
        skips = []
        for n in range(20):
            skips.append(compaction_pb2.SkipReason.Name(host.turn(f"r{n}", LONG[:300], "ok").skip))
        assert 1 <= folds(host) <= 3
        assert "SKIP_REASON_NO_PROGRESS" in skips
        assert host.verify().ok


def _catalog(folder: Path) -> str:
    path = folder / "models.json"
    path.write_text('{"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}')
    return str(path)


def test_xa5_one_attempt_a_refusal_and_an_answer_resets_the_guard(client: Client, name: str) -> None:
    """Overflow, fold, same overflow: the next request folds once more, then nothing is left and it stays as it is."""
    host = filled(client, name, 6)
    host.boundary("r0", "U")
    host.refuse("r0", host.prepared.prepare_id, 413, "request_too_large")
    host.boundary("r1")
    assert host.prepared.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    host.boundary("r1")
    assert not host.prepared.HasField("fold"), "the fold was for one request"
    host.refuse("r1", host.prepared.prepare_id, 413, "request_too_large")
    host.boundary("r2")
    assert not host.prepared.HasField("fold"), "a summary alone is no reason to fold"
    assert host.get().cadence.did_not_fit == ""
    host.record("r2", host.answer(host.prepared, assistant("ok"), finish=COMPLETED))
    assert folds(host) == 1


def test_xa7_a_fold_lands_well_below_what_triggered_it(client: Client, name: str) -> None:
    """At T, fold, one edit, T again: the target is half of T, so that several turns fit before the next."""
    host = filled(client, name, 11, output_reserve_tokens=100, retention={"turns": 4, "messages": 2})
    host.boundary("r1", "U")
    sent = host.prepared.pressure_sent
    assert host.prepared.HasField("fold")
    assert sent.forecast_tokens < 0.5 * sent.threshold_tokens
    host.record("r1", host.answer(host.prepared, assistant(LONG), finish=COMPLETED))
    for n in range(3):
        assert not host.turn(f"later-{n}", LONG, LONG).HasField("fold")


@pytest.mark.parametrize("trigger", ["AUTOMATIC", "MANUAL", "DID_NOT_FIT"])
def test_xa9_xa12_the_count_goes_with_every_fold_whatever_triggered_it(client: Client, name: str, trigger: str) -> None:
    """Usage over T is what the provider counted of the old list: after the fold it trips nothing."""
    host = filled(client, name, 9, output_reserve_tokens=100, auto_compact=trigger != "MANUAL")
    host.boundary("r1", "U")
    usage = {"prompt_tokens": 3_300}
    host.record("r1", host.answer(host.prepared, assistant("ok"), usage=usage, finish=COMPLETED))
    assert host.get().cadence.count_tokens == 3_300
    if trigger == "MANUAL":
        host.compact()
        host.boundary("r2", "U")
    else:
        if trigger == "DID_NOT_FIT":
            host.boundary("r2", "U")
            host.refuse("r2", host.prepared.prepare_id, 413, "request_too_large")
        host.boundary("r3", "U")
        assert host.prepared.HasField("fold")
    state = host.get().cadence
    assert not state.HasField("count_tokens")
    assert not state.HasField("anchor_tokens")
    host.boundary("r2" if trigger == "MANUAL" else "r3", "U")
    counted = next(
        s for s in host.prepared.pressure_checked.signals if s.kind == pressure_pb2.SIGNAL_KIND_PROVIDER_COUNT
    )
    assert not counted.tripped
    assert not host.prepared.HasField("fold"), "no second fold in a row"


def test_xa10_a_count_far_from_reality_folds_nothing(client: Client, name: str) -> None:
    """~750k counted in a chat of a few rows: an outlier, which is reported and neither anchors nor trips."""
    host = Script(client, name)
    host.boundary("r1", "U")
    usage = {"prompt_tokens": 750_000}
    recorded = host.record("r1", host.answer(host.prepared, assistant("ok"), usage=usage, finish=COMPLETED))
    assert [w.code for w in recorded.warnings] == [warning_pb2.WARNING_CODE_USAGE_OUTLIER]
    host.boundary("r2", "U")
    assert not any(s.tripped for s in host.prepared.pressure_checked.signals)
    assert folds(host) == 0


def test_xa14_few_huge_messages_are_counted_and_results_cut_not_folded(client: Client, name: str) -> None:
    """U(huge) C R(huge): the estimate follows the text, and what no fold may take is shortened for the request."""
    host = Script(client, name)
    first = host.prepare("r1", user("Read all of it. " + "word " * 1_500))
    assert first.pressure_sent.forecast_tokens > 1_500
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    done = host.answer(first, {"role": "assistant", "content": None, "tool_calls": [call]})
    big = {"role": "tool", "tool_call_id": "c", "content": "line of a file\n" * 30_000}
    prepared = host.prepare("r1", big, previous_answer=done, shape=compaction_service_pb2.RequestShape())
    assert prepared.pressure_checked.forecast_tokens > 100_000
    assert prepared.pressure_sent.forecast_tokens <= prepared.pressure_sent.input_budget_tokens
    assert folds(host) == 0
    assert [b.call_id for b in prepared.bounded] == ["c"]
