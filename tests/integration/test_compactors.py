"""Compactors: a Python package decides what stays before the run, and writes the summary (F12, F3, F5, A4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from foldline.config import ConfigError
from foldline.domain.folding import Compacted, CompactorTask
from foldline.server import compactors
from foldline.server.compactors import compactor_named
from foldline.v1 import compaction_pb2, policy_pb2, row_pb2, session_service_pb2

from tests.integration.host import Host
from tests.integration.test_ahead import LINE, cross, ended_once, events, near, settings
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused, running_server


class Scripted:
    """Answers by a function of the task; keeps the tasks."""

    def __init__(self, answer: Callable[[CompactorTask], Any], background: bool = False) -> None:
        self.answer, self.background = answer, background
        self.tasks: list[CompactorTask] = []

    def compact(self, task: CompactorTask) -> Compacted:
        self.tasks.append(task)
        return self.answer(task)


def all_but_first_user(task: CompactorTask) -> Compacted:
    return Compacted(keep=task.units[0], text="What was said so far, told by the package.")


@contextmanager
def served(folder: Path, compactor: Any) -> Iterator[Client]:
    with running_server(folder, settings(folder), compactor=compactor) as client:
        yield client


def test_f12_it_decides_what_stays_and_writes_the_summary(tmp_path: Path) -> None:
    compactor = Scripted(all_but_first_user)
    with served(tmp_path, compactor) as client:
        host = near(client, "s")
        folded = cross(host, 0)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_COMPACTOR
        (task,) = compactor.tasks
        kept = task.units[0]
        assert kept[0] in host.offsets()
        handed = {r.offset for r in task.rows}
        assert {o for r in folded.fold.discarded for o in range(r.first, r.last + 1)} == handed - set(kept)
        assert host.verify().ok
        assert ended_once(host)
        assert "told by the package" in folded.fold.summary_text


def test_f5_it_is_handed_only_rows_before_the_run_and_the_sidecar_folds_the_rounds_itself(tmp_path: Path) -> None:
    """F3: two folds at one check."""
    compactor = Scripted(lambda task: Compacted(keep=(), text="All of it, in one line."))
    with served(tmp_path, compactor) as client:
        host = Host(client, "s", output_reserve_tokens=100, auto_compact=False)
        host.append(*[m for n in range(4) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
        prepared = host.prepare("run", user("go"))
        first = prepared.first_offset
        for n in range(70):
            made = [calls(f"c{n}"), result(f"c{n}", LINE.format(n=n + 100))]
            prepared = host.prepare("run", made[1], previous_answer=host.answer(prepared, made[0]))
        client.session.UpdateSession(
            session_service_pb2.UpdateSessionRequest(session_id="s", policy=policy_pb2.Policy(auto_compact=True))
        )
        folded = host.prepare("run", result("last", "x"), previous_answer=host.answer(prepared, calls("last")))
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        (task,) = compactor.tasks
        assert max(r.offset for r in task.rows) < first
        done = events(host, "COMPACTION_COMPLETED")
        sources = [e.compaction_completed.record.summary_source for e in done]
        assert sources == [row_pb2.SUMMARY_SOURCE_COMPACTOR, row_pb2.SUMMARY_SOURCE_EXTRACTIVE]
        assert first in host.offsets()
        assert host.list == host.offsets()
        assert ended_once(host)
        assert host.verify().ok


@pytest.mark.parametrize(
    "answer",
    [
        lambda task: Compacted(keep=(10**6,), text="a row that was not handed over"),
        lambda task: Compacted(keep=tuple(r.offset for r in task.rows), text="nothing is left to fold"),
        lambda task: Compacted(keep=(), text="   "),
        lambda task: Compacted(keep=(), text="word " * 20_000),
        lambda task: "no answer of the kind",
        lambda task: 1 // 0,
        lambda task: Compacted(keep=next(u for u in task.units if len(u) > 1)[:1], text="half a unit"),
    ],
    ids=["unknown row", "keeps all", "blank", "over budget", "no Compacted", "raises", "V4 half a unit"],
)
def test_f12_its_failure_leaves_the_history_and_nobody_writes_instead(tmp_path: Path, answer: Any) -> None:
    compactor = Scripted(answer)
    with served(tmp_path, compactor) as client:
        host = near(client, "s", summary=policy_pb2.SummaryPolicy(on_failure=policy_pb2.ON_FAILURE_NEXT))
        host.append(user("list"), calls("c1"), result("c1", LINE), assistant("listed"))
        for n in range(30):
            prepared = host.turn(f"r{n}", LINE.format(n=n), LINE.format(n=n + 100))
            if prepared.failure:
                break
        assert prepared.action == compaction_pb2.ACTION_SEND
        assert prepared.skip == compaction_pb2.SKIP_REASON_ATTEMPT_FAILED
        assert host.offsets() == list(range(1, len(host.offsets()) + 1))
        again = host.turn("after", LINE, LINE)
        assert again.skip == compaction_pb2.SKIP_REASON_COOLDOWN
        assert len(compactor.tasks) == 1
        assert ended_once(host)
        assert host.verify().ok


def test_f12_one_that_is_late_is_not_waited_for(tmp_path: Path) -> None:
    go_on = threading.Event()
    compactor = Scripted(lambda task: go_on.wait(30) and all_but_first_user(task))
    with served(tmp_path, compactor) as client:
        host = near(client, "s", summary=policy_pb2.SummaryPolicy(timeout={"nanos": 50_000_000}))
        request = host.compact
        assert refused(request).reason == "CURATOR_FAILED"
        go_on.set()
        assert host.verify().ok


def test_f8_a_summary_of_a_compactor_folds_into_the_next(tmp_path: Path) -> None:
    compactor = Scripted(all_but_first_user)
    with served(tmp_path, compactor) as client:
        host = near(client, "s")
        host.compact()
        host.append(*[m for n in range(8) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
        host.compact()
        assert [s.text for s in compactor.tasks[1].earlier] == [all_but_first_user(compactor.tasks[0]).text]
        assert sum(r.HasField("compaction_summary") for r in host.active()) == 1
        assert host.verify().ok


def test_f8_what_earlier_summaries_carry_is_carried_past_a_compactor_that_leaves_it_out(tmp_path: Path) -> None:
    """Its text stands as written; whoever folds it next still has the user's words."""
    rule = "Never touch the file deploy/production.yaml."
    with served(tmp_path, Scripted(lambda task: Compacted((), "The work went on."))) as client:
        host = near(client, "s")
        host.append(user(f"Mend the parser. {rule}"), assistant("Understood."))
        texts = []
        for source in ("EXTRACTIVE", "AUTO", "EXTRACTIVE"):
            change = session_service_pb2.UpdateSessionRequest(session_id="s")
            change.policy.summary.source = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source}")
            client.session.UpdateSession(change)
            host.append(*[m for n in range(12) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 50)))])
            texts.append(host.compact().summary_text)
        assert [rule in text for text in texts] == [True, False, True]
        assert host.verify().ok


@pytest.mark.parametrize("opted", [False, True])
def test_a4_it_is_asked_ahead_of_need_only_if_it_opted_in(tmp_path: Path, opted: bool) -> None:
    compactor = Scripted(all_but_first_user, background=opted)
    with served(tmp_path, compactor) as client:
        host = near(client, "s", background=policy_pb2.BackgroundPolicy(enabled=True))
        folded = cross(host, 0)
        expected = compaction_pb2.TRIGGER_BACKGROUND if opted else compaction_pb2.TRIGGER_AUTOMATIC
        assert folded.fold.trigger == expected


def test_b4_bounding_forces_no_fold_of_a_compactor(tmp_path: Path) -> None:
    compactor = Scripted(all_but_first_user)
    with served(tmp_path, compactor) as client:
        host = Host(client, "s", output_reserve_tokens=100)
        prepared = host.prepare("run", user("read it"))
        prepared = host.prepare("run", result("c", LINE * 100), previous_answer=host.answer(prepared, calls("c")))
        assert prepared.bounded
        outcome = host.answer(prepared, assistant("read"), finish=compaction_pb2.RUN_OUTCOME_COMPLETED)
        host.record("run", outcome)
        assert not events(host, "DID_NOT_FIT_RECORDED")


class TestLoading:
    """The setting ``compactor`` names an entry point of the group ``foldline.compactors``."""

    @pytest.fixture
    def offered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        group = compactors.GROUP
        found = EntryPoints(
            [
                EntryPoint("good", "tests.integration.test_compactors:made", group),
                EntryPoint("absent", "tests.integration.test_compactors:nothing", group),
                EntryPoint("wrong", "builtins:dict", group),
                EntryPoint("twice", "builtins:dict", group),
                EntryPoint("twice", "builtins:list", group),
            ]
        )
        monkeypatch.setattr(compactors, "entry_points", lambda group: found)

    @pytest.mark.usefixtures("offered")
    def test_a_good_one_is_made(self) -> None:
        assert isinstance(compactor_named("good"), Scripted)

    @pytest.mark.usefixtures("offered")
    @pytest.mark.parametrize(
        ("name", "says"),
        [("absent", "cannot be loaded"), ("wrong", "without compact"), ("twice", "several"), ("none", "good")],
    )
    def test_others_are_refused_by_name(self, name: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            compactor_named(name)


def made() -> Scripted:
    return Scripted(all_but_first_user)
