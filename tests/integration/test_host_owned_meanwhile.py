"""Who else calls while a host's list folds, callers that cannot wait, and sources that fail (L2, A5, C5, S5, H3)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from foldline.domain.enums import FailureKind
from foldline.domain.folding import Compacted, CompactorTask, SummaryFailed, SummaryRequest, SummaryResult
from foldline.v1 import compaction_pb2, session_service_pb2
from structlog.testing import capture_logs

from tests.integration.hosted import HostedHost, long_list, talk, user
from tests.integration.test_rewrites import Slow, slow
from tests.support.server import Client, refused, running_server, until

__all__ = ["slow"]


def codes(answer: Any) -> list[str]:
    return [w.message for w in answer.warnings]


def test_l2_a_second_caller_is_given_the_fold_it_waited_for(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_list(client, "s")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(host.compact)
        assert source.started.wait(10)
        second = pool.submit(host.compact)
        assert not until(second.done, 0.3)
        source.go_on.set()
        one, two = first.result(), second.result()
    assert one.projection_id == two.projection_id != ""
    assert "another caller's fold was waited for" in codes(two)
    assert "another caller's fold was waited for" not in codes(one)
    assert len(host.ends()) == 1
    assert host.get().totals.boundaries == 30
    host.apply(two)
    host.commit(two)
    assert host.verify().ok


def test_l2_a_second_caller_whose_list_is_another_decides_for_itself(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_list(client, "s", min_boundaries_between=0)
    other = HostedHost(client, "s", create=False)
    other.list, other.start = [*host.list[2:]], host.start
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(host.compact)
        assert source.started.wait(10)
        second = pool.submit(other.compact)
        source.go_on.set()
        one, two = first.result(), second.result()
    assert two.projection_id not in ("", one.projection_id)
    if one.projection_id:
        assert refused(host.commit, one).reason == "PROJECTION_NOT_FOUND"
    else:
        assert one.failure == compaction_pb2.FAILURE_KIND_REBASE_LOST, "it gave way before it was told of"
    other.commit(two)
    assert other.verify().ok


def test_a5_a_fold_that_outlives_its_caller_is_there_for_the_next_call(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_list(client, "s", fold_wait={"nanos": 100_000_000})
    late = host.compact(request_id="q")
    assert (late.skip, late.projection_id) == (compaction_pb2.SKIP_REASON_DEADLINE, "")
    assert list(late.kept_row_ids) == host.ids()
    assert late.prepare_id
    source.go_on.set()
    assert until(lambda: bool(host.compact(request_id="q").projection_id))
    given = host.compact(request_id="q")
    assert given.projection_id
    assert host.get().totals.boundaries == 29, "a repeat counts no second boundary (W2)"
    assert len(host.ends()) == 1
    host.add(user("one thing more"))
    again = host.compact()
    assert again.projection_id == given.projection_id
    host.apply(again)
    host.commit(again)
    assert host.verify().ok


@pytest.mark.parametrize("refused_again", [False, True])
def test_p6_a_fold_that_a_refusal_asked_for_and_that_outlives_its_caller_is_there_for_the_next_call(
    slow: tuple[Client, Slow], refused_again: bool
) -> None:
    """A5: the attempt has cleared the fact and nothing else is due; a host that sends and fails again folds no second
    time for nothing."""
    client, source = slow
    host = HostedHost(client, "s", fold_wait={"nanos": 100_000_000})
    talk(host, 6)
    host.ask("And now the next thing.")
    host.refuse(host.compact().prepare_id)
    late = host.compact()
    assert (late.skip, late.projection_id) == (compaction_pb2.SKIP_REASON_DEADLINE, "")
    if refused_again:
        host.refuse(late.prepare_id)
    source.go_on.set()
    assert until(lambda: bool(host.compact().projection_id))
    given = host.compact()
    assert given.record.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    host.apply(given)
    host.commit(given)
    assert len(host.ends()) == 1
    assert host.compact().projection_id == "", "the commit clears the fact"
    assert host.verify().ok


def test_a5_a_fold_of_an_ordinary_trip_that_outlives_its_caller_is_given_to_a_repeat(
    slow: tuple[Client, Slow],
) -> None:
    """C2 holds such trips back at the boundary that made the attempt, and at the next ones."""
    client, source = slow
    host = HostedHost(client, "s", fold_wait={"nanos": 100_000_000}, output_reserve_tokens=0)
    talk(host, 12)
    host.ask("And now the next thing.")
    tools = {"overhead_tokens": 2_000}
    late = host.compact(request_id="q", shape=tools)
    assert late.skip == compaction_pb2.SKIP_REASON_DEADLINE
    source.go_on.set()
    assert until(lambda: bool(host.compact(request_id="q", shape=tools).projection_id))
    given = host.compact(shape=tools)
    assert given.record.trigger == compaction_pb2.TRIGGER_AUTOMATIC
    host.apply(given)
    host.commit(given)
    assert len(host.ends()) == 1
    assert host.verify().ok


def test_a5_a_fold_that_does_not_make_it_fit_is_given_all_the_same(slow: tuple[Client, Slow]) -> None:
    """L3: another fold of the same list would leave no less; callers that cannot wait would fold for ever."""
    client, source = slow
    host = HostedHost(client, "s", fold_wait={"nanos": 100_000_000})
    talk(host, 6)
    host.ask("word " * 3_500)
    assert host.compact(request_id="q").skip == compaction_pb2.SKIP_REASON_DEADLINE
    source.go_on.set()
    assert until(lambda: bool(host.compact(request_id="q").projection_id))
    assert host.compact().projection_id == host.compact().projection_id != ""
    assert len(host.ends()) == 1


def test_l2_a_manual_fold_waits_to_its_deadline_and_says_what_runs(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_list(client, "s")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(host.compact)
        assert source.started.wait(10)
        refusal = refused(client.compaction.CompactTranscript, host.request(manual=True), timeout=1)
        assert refusal.reason == "FOLD_IN_PROGRESS"
        assert refusal.metadata["fold_id"] in host.ends()
        source.go_on.set()
        assert first.result().projection_id == f"pr-{refusal.metadata['fold_id']}"


def test_v9_a_commit_while_another_fold_is_written_leaves_no_projection_that_cannot_be_committed(
    slow: tuple[Client, Slow],
) -> None:
    client, source = slow
    host = long_list(client, "s")
    source.go_on.set()
    first = host.compact()
    source.started.clear()
    source.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(refused, host.compact, manual=True, instructions="Mind the constants.")
        assert source.started.wait(10)
        assert host.commit(first) > 0
        source.go_on.set()
        refusal = second.result()
    assert refusal.reason == "REWRITE_REJECTED"
    assert "another projection was committed meanwhile" in refusal.message
    host.apply(first)
    assert host.compact(manual=True).projection_id, "nothing is left staged that the host cannot commit"
    assert list(host.ends().values()) == [
        ["completed"], [compaction_pb2.FAILURE_KIND_REBASE_LOST], []
    ]  # fmt: skip
    assert host.verify().ok


def test_l2_a_session_that_is_deleted_cancels_its_fold(slow: tuple[Client, Slow]) -> None:
    client, source = slow
    host = long_list(client, "s")
    others = set(threading.enumerate())  # Folds of servers that stopped before may still wait for their sources.
    with capture_logs() as logged, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refused, host.compact)
        assert source.started.wait(10)
        client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id="s"))
        source.go_on.set()
        assert waiting.result().reason == "SESSION_NOT_FOUND"
        assert until(lambda: all(t.name != "fold" for t in set(threading.enumerate()) - others))
    fresh = long_list(client, "s")
    assert fresh.events() == []
    assert "a fold failed" not in [entry["event"] for entry in logged], "who deletes a session has made no mistake"


class Failing:
    """Fails as it is told to, then writes."""

    def __init__(self) -> None:
        self.inner = Slow().inner
        self.errors: list[BaseException] = []

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        if self.errors:
            raise self.errors.pop(0)
        return self.inner.summarize(request)


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[Client, Failing]]:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    source = Failing()
    with running_server(tmp_path, {"catalog": str(catalog)}, summarizer=source) as client:
        yield client, source


def test_c5_a_failed_fold_is_answered_and_cools(failing: tuple[Client, Failing]) -> None:
    client, source = failing
    host = long_list(client, "s", min_boundaries_between=0)
    kinds = (FailureKind.SUMMARIZER_FAILED, FailureKind.SUMMARY_REJECTED)
    source.errors = [SummaryFailed(kind, "no") for kind in kinds]
    answer = host.compact()
    assert (answer.skip, answer.failure) == (
        compaction_pb2.SKIP_REASON_ATTEMPT_FAILED, compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED,
    )  # fmt: skip
    assert list(answer.kept_row_ids) == host.ids()
    cooling = host.compact()
    assert cooling.skip == compaction_pb2.SKIP_REASON_COOLDOWN == host.check().skip
    refusal = refused(host.compact, manual=True)
    assert (refusal.reason, refusal.metadata["failure"]) == ("REWRITE_REJECTED", "SUMMARY_REJECTED")
    host.fold(manual=True)
    assert list(host.ends().values()) == [
        [compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED], [compaction_pb2.FAILURE_KIND_SUMMARY_REJECTED], ["completed"],
    ]  # fmt: skip
    assert not host.get().cadence.HasField("cooldown_until"), "a manual fold that succeeds ends it"
    assert host.verify().ok


def test_c5_a_fold_staged_before_an_attempt_that_failed_leaves_it_cooling(failing: tuple[Client, Failing]) -> None:
    client, source = failing
    host = long_list(client, "s", min_boundaries_between=0)
    staged, whole = host.compact(), list(host.list)
    del host.list[4]
    source.errors = [SummaryFailed(FailureKind.SUMMARIZER_FAILED, "no")]
    assert host.compact().failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED
    host.list = whole
    host.commit(staged)
    assert host.get().cadence.HasField("cooldown_until")
    host.apply(staged)
    host.fold(manual=True)
    assert not host.get().cadence.HasField("cooldown_until")
    assert host.verify().ok


def test_s5_a_failed_manual_fold_is_an_error(failing: tuple[Client, Failing]) -> None:
    client, source = failing
    host = long_list(client, "s")
    source.errors = [SummaryFailed(FailureKind.SUMMARIZER_TIMEOUT, "late")]
    refusal = refused(host.compact, manual=True)
    assert (refusal.reason, refusal.metadata["failure"]) == ("SUMMARIZER_FAILED", "SUMMARIZER_TIMEOUT")
    assert list(host.ends().values()) == [[compaction_pb2.FAILURE_KIND_SUMMARIZER_TIMEOUT]]


class Panic(BaseException):
    """What a panic of the core is: no Exception."""


def test_13_a_panic_ends_the_fold_in_the_log(failing: tuple[Client, Failing]) -> None:
    """§13: a start has its end at once, not when the server starts again."""
    client, source = failing
    host = long_list(client, "s")
    source.errors = [Panic()]
    answer = host.compact()
    assert (answer.skip, answer.failure) == (
        compaction_pb2.SKIP_REASON_ATTEMPT_FAILED, compaction_pb2.FAILURE_KIND_INTERNAL,
    )  # fmt: skip
    assert list(host.ends().values()) == [[compaction_pb2.FAILURE_KIND_INTERNAL]]


class Keeper:
    """A compactor that keeps every second unit."""

    background = False

    def __init__(self) -> None:
        self.tasks: list[CompactorTask] = []

    def compact(self, task: CompactorTask) -> Compacted:
        self.tasks.append(task)
        kept = tuple(o for unit in task.units[1::2] for o in unit)
        return Compacted(kept, "## Goals and constraints\n- what the compactor says")


def test_f12_a_compactor_decides_what_of_a_hosts_list_stays(tmp_path: Path) -> None:
    catalog = tmp_path / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    compactor = Keeper()
    with running_server(tmp_path, {"catalog": str(catalog)}, compactor=compactor) as client:
        host = long_list(client, "s")
        answer = host.compact()
        assert answer.record.summary_source == 3, answer.failure
        handed, kept = compactor.tasks[0].units, compactor.tasks[0].units[1::2]
        assert len(answer.discarded_row_ids) == sum(map(len, handed)) - sum(map(len, kept))
        host.apply(answer)
        host.commit(answer)
        assert host.verify().ok
        talk(host, 20, first=60)
        host.ask("more")
        host.fold(manual=True)
        assert host.verify().ok


def test_l2_many_callers_stage_one_fold(client: Client, name: str) -> None:
    """Whoever comes first: all hold the same projection, and it can be committed by any."""
    host = long_list(client, name)
    ready = threading.Barrier(6)

    def ask(number: int) -> Any:
        ready.wait()
        return host.compact(request_id=f"q{number}")

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert len({a.projection_id for a in answers}) == 1
    assert host.get().totals.boundaries == 34
    with ThreadPoolExecutor(6) as pool:
        committed = list(pool.map(host.commit, answers))
    assert set(committed) == {answers[0].record.memory_entries}
    assert host.verify().folds == 1
    assert list(host.ends().values()) == [["completed"]]
