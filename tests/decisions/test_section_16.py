"""§16: what edits, restores and forks do to a session, and what they may not do."""

from __future__ import annotations

from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, pressure_pb2, session_service_pb2

from tests.decisions.script import Script, row
from tests.decisions.table import marks
from tests.support.requests import assistant, user
from tests.support.server import Client, refused

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}
Shape = compaction_service_pb2.RequestShape


class Edited(Script):
    def edit(self, first: int, last: int, *words: str) -> session_service_pb2.EditRowsResponse:
        request = session_service_pb2.EditRowsRequest(session_id=self.id, first_offset=first, last_offset=last)
        request.replacement.rows.rows.extend(row(w, 80 + n) for n, w in enumerate(words))
        if not words:
            request.ClearField("replacement")
        return self.client.session.EditRows(request)

    def restore(self, revision: int) -> session_service_pb2.RestoreRevisionResponse:
        return self.client.session.RestoreRevision(
            session_service_pb2.RestoreRevisionRequest(session_id=self.id, revision=revision)
        )

    def fork(self, name: str, **point: int) -> Edited:
        made = Edited.__new__(Edited)
        made.client, made.id, made.list, made.revision = self.client, name, [], 0
        self.client.session.ForkSession(
            session_service_pb2.ForkSessionRequest(session_id=self.id, fork_session_id=name, **point)
        )
        return made


EDITS = [
    # (rule, case, script, first and last offset, replacement, list after; None where it is refused)
    ("X1", "a whole unit may go", "U A(c) R(c) U", (2, 3), (), "1 4"),
    ("X1", "a result without its call may not stay", "U A(c) R(c) U", (2, 2), (), None),
    ("X1", "nor a call without its result", "U A(c) R(c) U", (3, 3), (), None),
    ("X1", "nor half a batch", "U A(c,d) R(c) R(d) U", (2, 3), (), None),
    ("X1", "nor half of a paused message", "U A@r1^ A@r1> U", (3, 3), (), None),
    ("X1", "nor may a row come between its halves", "U A@r1^ U A@r1> U", (3, 3), ("A",), None),
    ("X1", "a row that came between them may go", "U A@r1^ U A@r1> U", (3, 3), (), "1 2 4 5"),
    ("X1", "nor a user row without its context", "I U A", (2, 2), (), None),
    ("X1", "a key may not lose its current row", "S(k,1) U A", (1, 1), (), None),
    ("X1", "nor fall back to an older one", "S(k,1) U S(k,2) A", (3, 3), (), None),
    ("X1", "a superseded version may go", "S(k,1) S(k,2) U", (1, 1), (), "2 3"),
    ("X1", "a system row without a key may go", "S U A", (1, 1), (), "2 3"),
    ("X1", "the current row may be replaced by a later version", "S(k,1) U A", (1, 1), ("S(k,2)",), "4 2 3"),
    ("X1", "rows may be replaced", "U A U", (2, 2), ("A",), "1 4 3"),
    ("X1", "by more rows", "U A U", (2, 2), ("A", "U", "A"), "1 4 5 6 3"),
    ("X1", "a late result may outlive its call", "U >r1 A(c)@r1 >r1 U R(c) =r1", (2, 2), (), "1 3 4"),
]


@pytest.mark.parametrize(("script", "span", "replacement", "listing"), marks(EDITS))
def test_edits(
    client: Client, name: str, script: str, span: tuple[int, int], replacement: tuple[str, ...], listing: str | None
) -> None:
    host = Edited(client, name, **PLAIN).play(script)
    before = host.listing()
    if listing is None:
        assert refused(host.edit, *span, *replacement).reason == "EDIT_SPLITS_UNIT"
        assert host.listing() == before
    else:
        host.edit(*span, *replacement)
        assert host.listing() == listing
    assert host.verify().ok


def test_x1_a_summary_may_not_be_edited_away(client: Client, name: str) -> None:
    host = Edited(client, name, **PLAIN).play("U A # U")
    assert refused(host.edit, 3, 3).reason == "SUMMARY_ROW_REFUSED"
    assert host.listing() == "K 4"


CANCELS = [
    # (rule, case, script, what is done, whether the open run is cancelled)
    ("X2", "an edit of a row of its request", "U A >r1:U", "edit 3", True),
    ("X2", "an edit of history", "U A >r1:U", "edit 1", False),
    ("X2", "an edit of one of its rounds", "U A >r1:U A@r1", "edit 4", False),
    ("X2", "a restore to before its request", "U A >r1:U", "restore 2", True),
    ("X2", "a restore that keeps it", "U A >r1:U A@r1", "restore 3", False),
]


@pytest.mark.parametrize(("script", "done", "cancelled"), marks(CANCELS))
def test_what_cancels_a_run(client: Client, name: str, script: str, done: str, cancelled: bool) -> None:
    host = Edited(client, name, **PLAIN).play(script)
    what, number = done.split()
    answer: Any = host.edit(int(number), int(number)) if what == "edit" else host.restore(int(number))
    assert answer.cancelled_run_id == ("r1" if cancelled else "")
    assert host.get().session.open_run_id == ("" if cancelled else "r1")
    if cancelled:
        assert refused(host.boundary, "r1", "U").reason == "RUN_NOT_OPEN"


def known(host: Script) -> set[str]:
    state = host.get().cadence
    return {f for f in ("count_tokens", "anchor_tokens", "left_tokens") if state.HasField(f)} | (
        {"did_not_fit"} if state.did_not_fit else set()
    )


DROPS = [
    # (rule, case, what is done, what the record still holds)
    ("4.3", "nothing", "", {"count_tokens", "anchor_tokens", "left_tokens"}),
    ("4.3", "an edit drops count and anchor", "edit", {"left_tokens"}),
    ("X2", "a restore drops them and what the last fold left", "restore", set()),
    ("X3", "a fork has neither", "fork", {"left_tokens"}),
]


@pytest.mark.parametrize(("done", "left"), marks(DROPS))
def test_what_the_record_loses(client: Client, name: str, done: str, left: set[str]) -> None:
    host = Edited(client, name, **PLAIN).play("U A U A # >r1:U")
    usage = {"prompt_tokens": host.prepared.pressure_sent.forecast_tokens}
    host.record("r1", host.answer(host.prepared, assistant("ok"), usage=usage, finish=1))
    if done == "edit":
        host.edit(7, 7)
    elif done == "restore":
        host.restore(host.get().session.revision)
    elif done == "fork":
        host = host.fork(f"{name}-fork")
    assert known(host) == left


@pytest.mark.parametrize("done", ["edit", "restore", "fork"])
def test_4_4_the_fact_is_dropped_too(client: Client, name: str, done: str) -> None:
    host = Edited(client, name, **PLAIN).play("U A >r1:U *r1")
    assert known(host) == {"did_not_fit"}
    if done == "edit":
        host.edit(1, 2)
    elif done == "restore":
        host.restore(2)
    else:
        host = host.fork(f"{name}-fork")
    assert known(host) == set()


AFTER_RESTORE = [
    # (rule, case, turns that come after the restore, what is sent beside the rows, how the next boundary goes)
    ("X2", "the next boundary does not undo it", 0, 0, "AFTER_RESTORE"),
    ("X2", "it lasts until the transcript grew by min_progress", 1, 0, "FOLDS"),
    ("X2", "over W it folds all the same", 0, 700, "FOLDS"),
]


@pytest.mark.parametrize(("turns", "beside", "goes"), marks(AFTER_RESTORE))
def test_after_a_restore(client: Client, name: str, turns: int, beside: int, goes: str) -> None:
    """X2: capacity trips wait; the history is over T, what is sent under W."""
    host = Edited(client, name, output_reserve_tokens=100, auto_compact_threshold=2_500)
    host.play(" ".join(["U A"] * 10))
    early = host.get().session.revision
    host.compact()
    host.restore(early)
    assert host.get().cadence.HasField("last_attempt_boundary"), "it counts as an attempt"
    host.play(" ".join(["U A"] * turns))
    prepared = host.prepare("r1", user("go on"), shape=Shape(overhead_tokens=beside))
    assert prepared.HasField("fold") == (goes == "FOLDS"), prepared.pressure_checked
    if goes != "FOLDS":
        assert compaction_pb2.SkipReason.Name(prepared.skip) == f"SKIP_REASON_{goes}"
        held = {s.suppressed_by for s in prepared.pressure_checked.signals if s.tripped}
        assert pressure_pb2.SUPPRESSION_AFTER_RESTORE in held


POINTS = [
    # (rule, case, script, point, list of the fork)
    ("X3", "the current revision", "U A U A # U", {}, "K 6"),
    ("X3", "an earlier revision", "U A U A # U", {"revision": 4}, "1 2 3 4"),
    ("X3", "a fold's", "U A U A # U", {"revision": 5}, "K"),
    ("X3", "the empty transcript", "U A", {"revision": 0}, ""),
    ("X3", "an offset is the last revision before a later row", "U A U A # U", {"offset": 4}, "1 2 3 4"),
    ("X3", "rows that came together stay together", "U A U+A U", {"offset": 3}, "1 2"),
]


@pytest.mark.parametrize(("script", "point", "listing"), marks(POINTS))
def test_fork_points(client: Client, name: str, script: str, point: dict[str, int], listing: str) -> None:
    host = Edited(client, name, **PLAIN).play(script)
    before = host.get()
    fork = host.fork(f"{name}-fork", **point)
    assert fork.listing() == listing
    assert fork.verify().ok
    assert host.get() == before, "the source does not notice"


def test_x3_a_fork_holds_archive_memory_boundaries_and_no_run(client: Client, name: str) -> None:
    host = Edited(client, name, **PLAIN).play("U A U A # >r1:U")
    fork = host.fork(f"{name}-fork")
    assert fork.get().session.open_run_id == ""
    assert fork.get().cadence.boundaries == host.get().cadence.boundaries
    assert [r.offset for r in fork.archive()] == [r.offset for r in host.archive()]
    query = "consumer queue broker restarts"
    assert {h.offset for h in fork.search(query).hits} == {h.offset for h in host.search(query).hits} != set()
    earlier = host.fork(f"{name}-earlier", revision=4)
    assert not earlier.search(query).hits, "nothing had folded by then"
