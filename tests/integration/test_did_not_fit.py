"""4.4, P6: a request that did not fit, in every path it can come by, also across restarts of the server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.domain.enums import FailureKind
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.ports import Summarizer
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, pressure_pb2, session_service_pb2

from tests.integration.host import Host
from tests.integration.test_boundaries import LONG, codes, signal
from tests.integration.test_rewrites import Slow, slow
from tests.support.requests import assistant, calls, raw, result, user
from tests.support.server import Client, running_server, until

__all__ = ["slow"]

CATALOG = {"small": {"context_window": 4_000, "type": "openai", "encoding": "o200k_base"}}
OVER = '{"error": {"code": "context_length_exceeded", "message": "maximum context length is 4000 tokens"}}'
FORCED = compaction_pb2.TRIGGER_DID_NOT_FIT
FAILED, COMPLETED = compaction_pb2.RUN_OUTCOME_FAILED, compaction_pb2.RUN_OUTCOME_COMPLETED
CONTEXT, RATE = compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED, compaction_pb2.REFUSAL_KIND_RATE_LIMITED
Refusal = compaction_service_pb2.Refusal


class Source:
    """Fails while it is told to."""

    def __init__(self) -> None:
        self.fails = False
        self.inner = ExtractiveSummarizer(lambda text: len(text) // 4)

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        if self.fails:
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, "told to")
        return self.inner.summarize(request)


class Served:
    """A host of one session, whose server is started again between any two steps where the test asks for it."""

    def __init__(self, folder: Path, restarts: bool, summarizer: Summarizer | None = None) -> None:
        self.folder, self.restarts, self.summarizer = folder, restarts, summarizer
        (folder / "models.json").write_text(json.dumps(CATALOG))
        self._open()
        self.host = Host(self._server, "s")

    def _open(self) -> None:
        settings = {"catalog": str(self.folder / "models.json"), "policy.background.enabled": False}
        self._running = running_server(self.folder, settings, self.summarizer)
        self._server = self._running.__enter__()

    def again(self) -> Host:
        """The host, after a restart if there is to be one."""
        if self.restarts:
            self.close()
            self._open()
            self.host.client = self._server
        return self.host

    def close(self) -> None:
        self._running.__exit__(None, None, None)

    @property
    def fact(self) -> str:
        return self.host.get().cadence.did_not_fit


@pytest.fixture(params=[False, True], ids=["running", "restarted"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[Served, Source]]:
    source = Source()
    made = Served(tmp_path, False, source)
    yield made, source
    made.close()


def talk(host: Host, turns: int = 4) -> None:
    for n in range(turns):
        host.turn(f"t{n}", f"{n} {LONG}", f"{n} {LONG}")


def outcome(prepared: Any, **refusal: Any) -> compaction_service_pb2.Outcome:
    return compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, refusal=Refusal(**refusal))


def recorded(host: Host) -> list[event_pb2.Event]:
    return [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_DID_NOT_FIT_RECORDED]


def finish(host: Host, run_id: str, how: compaction_pb2.RunOutcome.ValueType = FAILED) -> None:
    request = compaction_service_pb2.FinishRunRequest(session_id=host.id, run_id=run_id, outcome=how)
    host.client.compaction.FinishRun(request)


# --- refused


def test_4_4_a_refused_first_request_folds_everything_before_it_and_is_asked_again(served: Served) -> None:
    talk(served.host)
    prepared = served.host.prepare("r1", user("the prompt"))
    host = served.again()
    assert host.refuse("r1", prepared.prepare_id, 400, OVER).run_closed
    host = served.again()
    assert served.fact == "refused"
    assert host.rendered()[-1]["content"] == "the prompt", "the refused prompt stays committed"
    again = host.prepare("r2")
    assert again.fold.trigger == FORCED
    assert served.fact == ""
    kept = host.rendered()
    assert [m["content"] for m in kept[1:]] == ["the prompt"], "no tail is kept"
    [event] = recorded(host)
    said = event.did_not_fit_recorded
    assert (event.run_id, said.cause, said.refusal, said.HasField("named_tokens")) == ("r1", "refused", CONTEXT, False)
    assert host.verify().ok


def test_4_4_with_a_request_of_its_own_the_refused_prompt_folds_too(served: Served) -> None:
    talk(served.host)
    prepared = served.host.prepare("r1", user("the prompt"))
    served.again().refuse("r1", prepared.prepare_id, 400, OVER)
    host = served.again()
    again = host.prepare("r2", user("something else"))
    assert again.fold.trigger == FORCED
    assert [m["content"] for m in host.rendered()[1:]] == ["something else"]


def test_4_4_a_continued_run_folds_every_round_the_newest_too(served: Served) -> None:
    host = served.host
    prepared = host.prepare("r1", user("go"))
    for n in range(3):
        done = host.answer(prepared, calls(f"c{n}"))
        prepared = host.prepare("r1", result(f"c{n}", f"{n} {LONG}"), previous_answer=done)
    host = served.again()
    host.refuse("r1", prepared.prepare_id, 400, OVER)
    host = served.again()
    again = host.prepare("r2")
    assert again.fold.trigger == FORCED
    shown = host.rendered()
    assert shown[0]["content"] == "go"
    assert len(shown) == 2, "the request and the summary of its rounds"
    assert served.fact == ""
    # It folds once: the check is not the first of its run any more.
    later = host.prepare("r2", user("and?"), previous_answer=host.answer(again, assistant("done")))
    assert not later.HasField("fold")


def test_4_4_a_refusal_in_the_call_that_opens_the_next_run_folds_in_that_call(served: Served) -> None:
    talk(served.host)
    prepared = served.host.prepare("r1", user("the prompt"))
    host = served.again()
    again = host.prepare("r2", previous_answer=outcome(prepared, http_status=400, raw_body=OVER.encode()))
    assert again.fold.trigger == FORCED
    assert signal(again.pressure_checked, "DID_NOT_FIT").tripped
    assert served.fact == ""


def test_4_4_the_hosts_kind_counts_more_than_the_words(served: Served) -> None:
    talk(served.host)
    host = served.host
    prepared = host.prepare("r1", user("one"))
    said = host.record("r1", outcome(prepared, http_status=400, raw_body=OVER.encode(), kind=RATE))
    assert (said.refusal, said.run_closed) == (RATE, True)
    assert served.fact == ""
    prepared = served.again().prepare("r2", user("two"))
    assert not prepared.HasField("fold")
    said = host.record("r2", outcome(prepared, kind=CONTEXT))
    assert said.refusal == CONTEXT
    served.again()
    assert served.fact == "refused"


@pytest.mark.parametrize(
    ("status", "body", "fact"),
    [
        (413, "", "refused"),
        (400, OVER, "refused"),
        (429, OVER, ""),
        (400, '{"error": {"message": "tokens per minute (TPM): Limit 6000, Requested 12328"}}', ""),
        (529, "overloaded", ""),
        (401, OVER, ""),
        (500, "", ""),
        (400, "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for x", ""),
    ],
)
def test_4_4_only_a_refusal_for_size_sets_the_fact_and_each_closes_the_run(
    client: Client, name: str, status: int, body: str, fact: str
) -> None:
    host = Host(client, name)
    prepared = host.prepare("r1", user("go"))
    assert host.refuse("r1", prepared.prepare_id, status, body).run_closed
    assert host.get().cadence.did_not_fit == fact
    assert len(recorded(host)) == bool(fact)
    assert host.get().session.open_run_id == ""


def test_4_4_a_run_that_was_ended_before_its_refusal_is_told_sets_the_fact(served: Served) -> None:
    """Choice: whoever ends a run and then says why has said it; no request was prepared since."""
    talk(served.host)
    prepared = served.host.prepare("r1", user("the prompt"))
    host = served.again()
    finish(host, "r1")
    assert host.refuse("r1", prepared.prepare_id, 400, OVER).run_closed
    served.again()
    assert served.fact == "refused"
    assert host.prepare("r2").fold.trigger == FORCED


def test_4_4_a_refusal_of_a_superseded_run_is_no_fact_of_the_request_after_it(served: Served) -> None:
    talk(served.host)
    host = served.host
    old = host.prepare("r1", user("old"))
    new = host.prepare("r2", user("new"), supersede_open_run=True)
    host = served.again()
    assert host.refuse("r1", old.prepare_id, 400, OVER).run_closed
    assert served.fact == ""
    assert host.get().session.open_run_id == "r2", "it closes no run but its own"
    answered = host.record("r2", host.answer(new, assistant("ok"), finish=COMPLETED))
    assert answered.run_closed
    assert not recorded(host)


def test_4_4_a_late_refusal_of_an_older_request_is_none_of_the_last(served: Served) -> None:
    host = served.host
    old = host.prepare("r1", user("go"))
    host = served.again()
    new = host.prepare("r1", user("more"))
    answer = host.record("r1", host.answer(new, assistant("it fits")))
    assert not answer.run_closed
    assert host.refuse("r1", old.prepare_id, 400, OVER).run_closed
    served.again()
    assert served.fact == ""
    assert not recorded(host)


def test_4_4_a_partial_answer_and_then_a_refusal_of_the_same_request(served: Served) -> None:
    """A local server may run out of its context in the middle of an answer."""
    host = served.host
    prepared = host.prepare("r1", user("go"))
    host.record("r1", host.answer(prepared, assistant("so far"), partial=True))
    host = served.again()
    host.refuse("r1", prepared.prepare_id, 500, '{"error": {"message": "Context size has been exceeded."}}')
    assert served.fact == "refused"
    assert host.rendered()[-1]["content"] == "so far"


def test_4_4_nothing_to_fold_ends_the_fact_and_the_request_goes_out(served: Served) -> None:
    prepared = served.host.prepare("r1", user("the only prompt"))
    served.again().refuse("r1", prepared.prepare_id, 413, "")
    host = served.again()
    again = host.prepare("r2")
    assert (again.skip, again.action) == (compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD, compaction_pb2.ACTION_SEND)
    assert served.fact == ""


# --- while a fold is written


def test_4_4_a_refusal_while_a_fold_is_written_is_answered_by_that_fold(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = Host(client, "s", min_progress=0.0, background={"enabled": False})
    source.go_on.set()
    talk(host)
    prepared = host.prepare("r1", user("the prompt"))
    source.started.clear()
    source.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(host.compact)
        assert source.started.wait(10)
        assert host.refuse("r1", prepared.prepare_id, 400, OVER).run_closed
        assert host.get().cadence.did_not_fit == "refused"
        source.go_on.set()
        assert fold.result().fold_id
    assert host.get().cadence.did_not_fit == "", "an attempt ends it, committed or not"
    assert host.verify().ok


def test_4_4_a_refusal_while_an_attempt_fails_stays(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = Host(client, "s", background={"enabled": False})
    source.go_on.set()
    talk(host)
    prepared = host.prepare("r1", user("the prompt"))
    source.started.clear()
    source.go_on.clear()
    source.inner = Source()  # type: ignore[assignment]
    source.inner.fails = True  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(host.compact)
        assert source.started.wait(10)
        host.refuse("r1", prepared.prepare_id, 400, OVER)
        source.go_on.set()
        assert fold.exception() is not None
    assert host.get().cadence.did_not_fit == "refused"
    source.inner.fails = False  # type: ignore[attr-defined]
    assert host.prepare("r2").fold.trigger == FORCED


# --- too large, bounded


def test_4_4_too_large_sets_the_fact_and_leaves_the_run_open(served: Served) -> None:
    """C4: what little stands before the request saves too little, until the request has not fit."""
    talk(served.host, 1)
    host = served.host
    # What is stated of an older list would be moved to this one, and be exact no more (4.1).
    host.revision = host.get().session.revision
    first = host.prepare("r1", user(LONG * 20), shape={"input_tokens": 9_000})
    assert (first.skip, first.action) == (
        compaction_pb2.SKIP_REASON_NO_PROGRESS, compaction_pb2.ACTION_TOO_LARGE,
    )  # fmt: skip
    host = served.again()
    assert served.fact == "too_large"
    assert host.get().session.open_run_id == "r1"
    [event] = recorded(host)
    assert event.did_not_fit_recorded.cause == "too_large"
    again = host.prepare("r1")
    assert again.fold.trigger == FORCED, "the run's checks are whole until its first answer"
    assert served.fact == ""


def test_4_4_in_a_run_the_fact_waits_for_the_next_run(served: Served) -> None:
    host = served.host
    prepared = host.prepare("r1", user("go"))
    done = host.answer(prepared, calls("c1"))
    large = host.prepare("r1", result("c1", LONG), previous_answer=done, shape={"input_tokens": 9_000})
    assert (large.skip, large.action) == (
        compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD, compaction_pb2.ACTION_TOO_LARGE,
    )  # fmt: skip
    host = served.again()
    waits = host.prepare("r1")
    fact = signal(waits.pressure_checked, "DID_NOT_FIT")
    assert (fact.tripped, fact.suppressed_by) == (True, pressure_pb2.SUPPRESSION_IN_RUN)
    assert not waits.HasField("fold")
    assert served.fact == "too_large"
    finish(host, "r1")
    host = served.again()
    assert host.prepare("r2").fold.trigger == FORCED


def test_4_4_a_bound_sets_the_fact_and_the_bounded_answer_keeps_it(served: Served) -> None:
    host = served.host
    talk(host, 2)
    prepared = host.prepare("r1", user("read it"))
    text = "a line of a long file\n" * 8_000
    done = host.answer(prepared, calls("c1"))
    sent = host.prepare("r1", result("c1", text), previous_answer=done)
    assert sent.bounded
    assert served.fact == "bounded"
    host = served.again()
    assert host.record("r1", host.answer(sent, assistant("read"), finish=COMPLETED)).run_closed
    assert served.fact == "bounded"
    host = served.again()
    whole = host.prepare("r2", user("next"))
    assert whole.fold.trigger == FORCED
    assert served.fact == ""


# --- what ends it, and what does not


def refused_once(host: Host) -> None:
    talk(host)
    prepared = host.prepare("r1", user("the prompt"))
    host.refuse("r1", prepared.prepare_id, 400, OVER)


def test_4_4_a_failed_attempt_ends_the_fact(failing: tuple[Served, Source]) -> None:
    served, source = failing
    refused_once(served.host)
    source.fails = True
    sent = served.host.prepare("r2")
    assert sent.skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
    assert sent.action == compaction_pb2.ACTION_SEND
    assert served.fact == ""


def test_4_4_a_skip_keeps_it_and_an_answer_to_the_whole_request_ends_it(failing: tuple[Served, Source]) -> None:
    """C5: while the source cools the request goes out as it is; if it is answered, it fits."""
    served, source = failing
    host = served.host
    refused_once(host)
    source.fails = True
    host.prepare("r2")
    refused = host.prepare("r2", user("more"))
    host.refuse("r2", refused.prepare_id, 400, OVER)
    skipped = host.prepare("r3")
    assert skipped.skip == compaction_pb2.SKIP_REASON_COOLDOWN
    assert served.fact == "refused"
    skipped = host.prepare("r3")
    assert skipped.skip == compaction_pb2.SKIP_REASON_COOLDOWN
    assert served.fact == "refused"
    host.record("r3", host.answer(skipped, assistant("it fits after all")))
    assert served.fact == ""


def test_4_4_too_little_time_keeps_it(served: Served) -> None:
    """W9: a skip, not an attempt."""
    host = served.host
    refused_once(host)
    host = served.again()
    request = compaction_service_pb2.PrepareRequestRequest(session_id="s", run_id="r2", request_id="soon")
    request.shape.model.provider, request.shape.model.model = "openai", "small"
    skips: list[int] = []

    def asked() -> bool:
        """A busy machine may miss the deadline itself; the repeat of the id is then asked the same."""
        with contextlib.suppress(grpc.RpcError):
            skips.append(host.client.compaction.PrepareRequest(request, timeout=0.09).skip)
        return bool(skips)

    assert until(asked, 30)
    assert skips == [compaction_pb2.SKIP_REASON_DEADLINE]
    assert served.fact == "refused"
    host = served.again()
    again = host.client.compaction.PrepareRequest(request)
    assert again.fold.trigger == FORCED, "the repeat measures again (W2)"
    assert served.fact == ""


@pytest.mark.parametrize("way", ["edit", "restore"])
def test_4_4_edits_and_restores_drop_it(served: Served, way: str) -> None:
    host = served.host
    refused_once(host)
    host = served.again()
    if way == "edit":
        replacement = raw(user("shorter"))
        request = session_service_pb2.EditRowsRequest(
            session_id="s", first_offset=1, last_offset=1, replacement=replacement
        )
        host.client.session.EditRows(request)
    else:
        host.client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id="s", revision=4))
    host = served.again()
    assert served.fact == ""
    state = host.get().cadence
    assert not state.HasField("count_tokens")
    assert not state.HasField("anchor_tokens")


def test_4_4_a_manual_fold_is_an_attempt_and_ends_it(served: Served) -> None:
    refused_once(served.host)
    host = served.again()
    assert host.compact().fold_id
    assert served.fact == ""


def test_4_4_with_auto_compact_off_it_is_recorded_reported_and_acted_on_later(served: Served) -> None:
    """Choice: the refusal is a fact of the transcript, not of the policy of that hour."""

    def automatic(on: bool) -> None:
        change = session_service_pb2.UpdateSessionRequest(session_id="s", policy={"auto_compact": on})
        served.host.client.session.UpdateSession(change)

    automatic(False)
    refused_once(served.host)
    host = served.again()
    reported = host.prepare("r2")
    fact = signal(reported.pressure_checked, "DID_NOT_FIT")
    assert (fact.tripped, fact.suppressed_by) == (True, pressure_pb2.SUPPRESSION_AUTO_COMPACT_OFF)
    assert served.fact == "refused"
    automatic(True)
    host = served.again()
    assert host.prepare("r2").fold.trigger == FORCED


def test_4_4_a_refusal_that_is_recorded_twice_under_one_id_is_one(served: Served) -> None:
    """W2."""
    talk(served.host)
    host = served.host
    prepared = host.prepare("r1", user("the prompt"))
    said = outcome(prepared, http_status=400, raw_body=OVER.encode())
    first = host.record("r1", said, request_id="once")
    host = served.again()
    assert host.record("r1", said, request_id="once") == first
    assert len(recorded(host)) == 1


# --- a refusal is a reading


def learned(host: Host, forecast: Callable[[int], str]) -> float:
    """The factor after a refusal of a request that was estimated at some tokens."""
    prepared = host.prepare("r1", user(LONG * 8))
    host.refuse("r1", prepared.prepare_id, 400, forecast(prepared.pressure_sent.forecast_tokens))
    return host.prepare("r2", user("go")).pressure_checked.estimator_factor


def test_4_4_a_refusal_teaches_its_count_across_a_restart(tmp_path: Path) -> None:
    served = Served(tmp_path, True)
    try:
        host = served.host
        prepared = host.prepare("r1", user(LONG * 8))
        tokens = prepared.pressure_sent.forecast_tokens
        host = served.again()
        host.refuse("r1", prepared.prepare_id, 400, f"prompt is too long: {tokens * 2} tokens > 4000 maximum")
        report = served.again().prepare("r2", user("go")).pressure_checked
        assert 1.95 < report.estimator_factor < 2.05
    finally:
        served.close()


@pytest.mark.parametrize(
    ("said", "low", "high"),
    [
        (lambda tokens: f"prompt is too long: {tokens // 2} tokens > {tokens // 4} maximum", 1.0, 1.0),
        (lambda tokens: "context_length_exceeded", 2.5, 2.5),
        (lambda tokens: f"maximum context length is {tokens + tokens // 2} tokens", 1.4, 1.6),
        (lambda tokens: "prompt is too long: 9000000 tokens > 4000 maximum", 2.5, 2.5),
        (lambda tokens: "rate limit reached: too many tokens per minute", 1.0, 1.0),
        (lambda tokens: "request entity too large", 1.0, 1.0),
    ],
)
def test_4_4_what_a_refusal_teaches(tmp_path: Path, said: Callable[[int], str], low: float, high: float) -> None:
    """Never less than before; W where no count is named; a smaller limit that is named instead of W; bounded (4.5)."""
    served = Served(tmp_path, False)
    try:
        assert low <= learned(served.host, said) <= high
    finally:
        served.close()


def test_4_4_warnings_do_not_pile_up(served: Served) -> None:
    refused_once(served.host)
    host = served.again()
    assert not codes(host.prepare("r2").warnings)
