"""Concurrency, with a source that writes when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, event_pb2

from tests.decisions.script import Script
from tests.integration.test_rewrites import Slow, compacted
from tests.support.server import Client, running_server

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Client, Slow]]:
    source = Slow()
    with running_server(tmp_path, summarizer=source) as client:
        yield client, source
        source.go_on.set()


def during_a_fold(
    slow: tuple[Client, Slow], host: Script, meanwhile: Callable[[], object]
) -> compaction_pb2.CompactionRecord:
    """The record of a fold, while which something else happened."""
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(compacted, host)
        assert slow[1].started.wait(10)
        meanwhile()
        slow[1].go_on.set()
        return fold.result()[-1].record


def test_xh1_what_a_user_says_during_a_fold_is_in_the_list_behind_it(slow: tuple[Client, Slow]) -> None:
    """U between snapshot and commit: in neither summary nor tail, or here at the end."""
    host = Script(slow[0], "s", **PLAIN).play("U A U A")
    record = during_a_fold(slow, host, lambda: host.play("U I U"))
    assert host.listing() == "K 5 6 7"
    assert record.retained[-1].last == 7
    assert host.verify().ok


def test_xh2_a_result_that_comes_during_a_fold_finds_its_call(slow: tuple[Client, Slow]) -> None:
    """The call is in the fold, its result races with the commit: the unit stays, and a follow-up is not lost."""
    host = Script(slow[0], "s", **PLAIN).play("U A U >r1 A(c)@r1")
    host.finish("r1", "failed")
    during_a_fold(slow, host, lambda: host.play("R(c) U"))
    rows = {r.offset: r for r in host.active()}
    results = [r for r in rows.values() if r.HasField("tool_result")]
    assert len(results) == 1
    assert results[0].tool_result.late or results[0].tool_result.call_offset in rows
    assert list(rows)[-1] == 6
    assert host.verify().ok


def test_xh3_a_message_between_two_folds_is_in_the_second_or_stays(slow: tuple[Client, Slow]) -> None:
    host = Script(slow[0], "s", **PLAIN).play("U A U A")
    during_a_fold(slow, host, lambda: host.play("U"))
    host.play("A")
    record = host.compact()
    assert [(s.first, s.last) for s in record.discarded] == [(6, 6), (5, 5), (7, 7)]
    assert [r.offset for r in host.archive()] == list(range(1, 9))


def test_xh5_folds_asked_for_at_once_are_one_and_all_are_told(slow: tuple[Client, Slow]) -> None:
    host = Script(slow[0], "s", **PLAIN).play("U A U A")
    waiting = [threading.Event() for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(compacted, host)]
        assert slow[1].started.wait(10)
        asked += [pool.submit(compacted, host, waits) for waits in waiting]
        assert all(waits.wait(10) for waits in waiting)
        slow[1].go_on.set()
        told = [a.result() for a in asked]
    assert len({t[-1].record.fold_id for t in told}) == 1
    assert [any(m.progress.joined for m in t) for t in told] == [False, True, True, True]
    kinds = [e.kind for e in host.events()]
    assert kinds.count(event_pb2.EVENT_KIND_COMPACTION_COMPLETED) == 1


def test_xh6_xh7_what_is_saved_during_a_fold_is_kept_in_order(slow: tuple[Client, Slow]) -> None:
    """Rename over a file loses a save in between; here every append has its place, and none is refused."""
    host = Script(slow[0], "s", **PLAIN).play("U A U A")
    offsets: list[int] = []
    during_a_fold(slow, host, lambda: offsets.extend(host.rows(*host.made("N")).last_offset for _ in range(20)))
    assert host.offsets()[1:] == offsets == sorted(offsets)


def test_xh8_a_session_keeps_its_id_and_takes_what_peers_send_while_it_folds(slow: tuple[Client, Slow]) -> None:
    host = Script(slow[0], "s", **PLAIN).play("U A U A")
    seen = []
    during_a_fold(slow, host, lambda: (host.play("N@peer"), seen.append(host.get().session.session_id)))
    assert seen == ["s"]
    host.boundary("r1")
    assert host.listing() == "K 5"
    assert host.prepared.action == compaction_pb2.ACTION_SEND
